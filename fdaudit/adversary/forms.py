"""Whether a message's tensors have the form that its kind promises, and that attacks rely on.

A protocol from outside may call a part of a model `model_parameters`, or make up a kind of its own. An attack that
loads such a message would fail, or read something else than what was sent. It leaves the message out instead and says
so. Reports count what is left out as untested.

Guarantees:
  * the check reads the record's lines only: names, types and shapes, never values;
  * a message that is left out has a reason, which names what is missing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING

import torch

from fdaudit.kinds import ANSWERS, KINDS, OWN_KIND, Kind, Shapes
from fdaudit.limits import TENSOR_BYTES
from fdaudit.models.declared import GeneratorCard
from fdaudit.models.network import Network, feature_width
from fdaudit.transcript.encoding import Naming, is_counter, shapes_of
from fdaudit.types import TensorInfo

if TYPE_CHECKING:
    from fdaudit.adversary.knowledge import Knowledge
    from fdaudit.adversary.view import View
    from fdaudit.models import Architecture
    from fdaudit.transcript.messages import Message

__all__ = ["Forms", "forms_of", "left_out", "legible", "with_every_class"]

_SHOWN = 3
"""Names of tensors in one sentence."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Forms:
    """What the tensors of an audited federation look like.

    Attributes:
        architecture: the audited network; None if it is not known, and models are not judged.
        classes: number of classes C; 0 if it is not known.
        generator: the protocol's declared generator, if it has one.
        naming: how the names of tensors on record follow from those of the network.
    """

    architecture: Architecture | None = None
    classes: int = 0
    generator: GeneratorCard | None = None
    naming: Naming = field(default_factory=Naming)
    _misfits: dict[bytes, str] = field(default_factory=dict)

    def misfit(self, message: Message) -> str:
        """Return why attacks do not read a message: what its tensors lack for its kind; empty if they read it."""
        if message.form not in self._misfits:
            shapes = shapes_of(message.tensors, self.naming)
            self._misfits[message.form] = self._misfit(message.kind, shapes)
        return self._misfits[message.form]

    def unread_in(self, messages: Sequence[Message]) -> Callable[[Message], str]:
        """Return why attacks on these messages do not read one of them, or an empty text, as a function of it.

        A generator of features is read beside a whole model only: nothing else tells which features an image has.
        """
        whole = any(m.kind == "model_parameters" and not self.misfit(m) for m in messages)
        alone = self.generator is not None and self.generator.makes == "features" and not whole

        def unread(message: Message) -> str:
            if alone and message.kind == "generator_parameters":
                return self.misfit(message) or "it makes features, and no whole model is in view"
            return self.misfit(message)

        return unread

    def _misfit(self, name: str, found: Shapes) -> str:
        kind = KINDS.get(name)
        if kind is None:
            return OWN_KIND
        if kind.network == "model":
            return self._no_model(found)
        if kind.network == "optimizer":
            return self._no_state(found)
        if kind.network == "generator":
            if self.generator is None:
                return "its protocol declares no generator"
            return self.generator.misfit(found)
        if kind.network == "discriminator":
            return self._no_discriminator(found)
        misfit = _unnumbered(kind, found) or kind.misfit(found, self._sizes)
        if kind.read_as and not misfit:
            return self._not_spread(found["classes"])
        return misfit

    def _not_spread(self, shape: tuple[int, ...] | None) -> str:
        """Return why answers about classes (n, k) cannot be given a value for every class; empty if they can."""
        if not self.classes:
            return "the number of classes is not known"
        if shape is None:
            return "its classes are quantised"
        size = 4 * shape[0] * self.classes
        if size > TENSOR_BYTES.most:
            return f"with a value for every class it has {TENSOR_BYTES.refusal(size)}"
        return ""

    @cached_property
    def _sizes(self) -> dict[str, int]:
        """Return the known sizes of classes and images, by the letters of `fdaudit.kinds`."""
        sizes: dict[str, int] = {}
        if self.classes:
            sizes["C"] = self.classes
        if self.architecture is not None and len(self.architecture.input_shape) == 3:
            sizes["c"], sizes["h"], sizes["w"] = self.architecture.input_shape
        return sizes

    # -- networks -------------------------------------------------------------------------------------------

    @cached_property
    def _width(self) -> int:
        """Return the number of features of the audited network; 0 if it has no extractor."""
        if self.architecture is None:
            return 0
        module = self.architecture.build(torch.Generator().manual_seed(0)).eval()
        if not isinstance(module, Network):
            return 0
        return feature_width(module.extractor, self.architecture.input_shape)

    @cached_property
    def _shapes(self) -> tuple[Shapes, Shapes]:
        """Return the shapes of a whole model's parameters, and of all its tensors."""
        if self.architecture is None:
            return {}, {}
        return self.architecture.parameter_shapes, _without_counters(self.architecture.tensor_shapes)

    def _no_model(self, found: Shapes) -> str:
        """Return why tensors are not a whole model of the audited network; empty if they are."""
        if self.architecture is None:
            return ""
        needed, shapes = self._shapes
        found = _without_counters(found)
        whole = f"a whole {self.architecture.name}"
        lacking = [n for n in needed if n not in found]
        strange = [n for n in found if n not in shapes]
        if lacking:
            counts = f"{len(needed) - len(lacking)} of {len(needed)} tensors of {whole}"
            return f"it has {counts}: {_listed(lacking)} missing"
        if strange:
            return f"it has tensors that {whole} has not: {_listed(strange)}"
        for name, shape in found.items():
            if shape not in (None, shapes[name]):
                return f"{name} is {shape}, in {whole} {shapes[name]}"
        return ""

    def _no_state(self, found: Shapes) -> str:
        """Return why tensors are no state of an optimiser of the audited network; empty if they are."""
        if self.architecture is None:
            return ""
        trained = self.architecture.trained_parameters
        shapes: dict[str, tuple[int, ...]] = {}
        for parameter, shape in self.architecture.parameter_shapes.items():
            if parameter in trained:
                shapes[parameter] = shape
        for state in ("exp_avg", "momentum_buffer"):
            lacking: list[str] = []
            for parameter in shapes:
                name = f"{state}/{parameter}"
                if name not in found:
                    lacking.append(name)
            if len(lacking) < len(shapes):
                break
        else:
            return f"it has no exp_avg/ and no momentum_buffer/ of the {self.architecture.name}'s parameters"
        if lacking:
            return f"{_listed(lacking)} missing"
        for name, own_shape in found.items():
            state, _, parameter = name.partition("/")
            if state != "step" and own_shape not in (None, shapes.get(parameter)):
                return (
                    f"{name} is {own_shape}, its parameter {shapes.get(parameter, 'is none of the network')}"
                )
        return ""

    def _no_discriminator(self, found: Shapes) -> str:
        """Return why tensors are no discriminator of the audited network's kind; empty if they are.

        A discriminator is one layer over the network's features, or such a `head` over an extractor of its own.
        """
        if self.architecture is None:
            return ""
        width = self._width
        if not width:
            return "the audited network has no extractor whose features a discriminator could judge"
        expected: dict[str, tuple[int, ...] | None] = {"bias": (1,), "weight": (1, width)}
        if any(name.startswith("extractor.") for name in found):
            expected = {"head.bias": (1,), "head.weight": (1, width)}
            _, shapes = self._shapes
            for name, shape in shapes.items():
                if name.startswith("extractor."):
                    expected[name] = shape
            found = _without_counters(found)
        if found.keys() != expected.keys() or any(s not in (None, expected[n]) for n, s in found.items()):
            return (
                f"it is no layer from {width} features to one score (weight, bias), over the audited network's "
                "extractor or one of its own of the same form"
            )
        return ""


def _without_counters(shapes: Shapes) -> Shapes:
    """Return the shapes of all tensors but counters."""
    values: dict[str, tuple[int, ...] | None] = {}
    for name, shape in shapes.items():
        if not is_counter(name):
            values[name] = shape
    return values


def forms_of(view: View, knowledge: Knowledge) -> Forms:
    """Return what an adversary knows of the form of messages."""
    return Forms(
        architecture=knowledge.architecture,
        classes=knowledge.classes,
        generator=knowledge.generator,
        naming=view.naming,
    )


def legible(view: View, forms: Forms) -> View:
    """Return the view without the messages that attacks cannot read.

    Generators stay: who reads answers must know that there is one. Answers of a round whose generated samples cannot be
    read are left out with them, because nothing else tells which samples they are about.
    """
    unread_rounds = set[int]()
    for message in view.messages:
        if message.kind == "generated_samples" and forms.misfit(message):
            unread_rounds.add(message.round)

    def read(m: Message) -> bool:
        if m.kind == "generator_parameters":
            return True
        return not forms.misfit(m) and not (m.kind in ANSWERS and m.round in unread_rounds)

    messages = tuple(filter(read, view.messages))
    if len(messages) == len(view.messages):
        return view
    return replace(view, messages=messages)


def with_every_class(view: View, classes: int) -> View:
    """Return the view as attacks read it: answers about the k most likely classes have a value for every class.

    Their messages get the kind that `Kind.read_as` names. A message whose tensors do not fit its kind stays as it is,
    and attacks leave it out.

    Args:
        view: the adversary's view.
        classes: the number of classes.
    """
    forms = Forms(classes=classes)
    originals = {}
    messages = []
    for message in view.messages:
        kind = KINDS.get(message.kind)
        if kind is not None and kind.read_as and not forms.misfit(message):
            originals[message.seq] = message
            tensors = dict(message.tensors)
            rows = tensors.pop("classes").shape[0]
            tensors["values"] = TensorInfo(dtype="F32", shape=(rows, classes))
            message = replace(message, kind=kind.read_as, tensors=tensors)
        messages.append(message)
    if not originals:
        return view
    return replace(view, messages=tuple(messages), originals=originals)


def left_out(view: View, forms: Forms, kinds: tuple[str, ...]) -> str:
    """Return which messages of these kinds attacks leave out, and why: one clause for each kind and reason."""
    senders: dict[tuple[str, str], dict[str, None]] = {}
    for m in view.messages:
        if m.kind in kinds and m.payload is not None:
            senders.setdefault((m.kind, forms.misfit(m)), {})[m.sender] = None
    clauses = []
    for (kind, why), who in senders.items():
        if why:
            clauses.append(f"{kind} of {_listed(list(who))} left out: {why}")
    return "; ".join(clauses)


def _unnumbered(kind: Kind, found: Shapes) -> str:
    """Return which tensor may number the samples of a message that has no index; empty if none does."""
    if not kind.lists_samples or "index" in found:
        return ""
    row = kind.tensors[-1].name
    rows = found.get(row)
    for name, shape in found.items():
        if rows is not None and name != row and shape == rows[:1]:
            return (
                f"it has no index, and {name[:60]} may number its samples, where {kind.name} is: {kind.text}"
            )
    return ""


def _listed(names: list[str]) -> str:
    listing = ", ".join(name[:60] for name in names[:_SHOWN])
    if len(names) > _SHOWN:
        listing += f" and {len(names) - _SHOWN} more"
    return listing
