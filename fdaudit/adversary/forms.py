"""Whether a message's tensors have the form that its kind promises, and that attacks rely on.

A protocol from outside may call a part of a model `model_parameters`, or make up a kind of its own. An attack that
loads such a message would fail, or read something else than what was sent. It leaves the message out instead and says
so. Reports count what is left out as untested.

Guarantees:
  * the check reads the record's lines only: names, types and shapes, never values;
  * a message that is left out has a reason, which names what is missing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING

import torch

from fdaudit.models.declared import GeneratorCard
from fdaudit.models.network import Network, feature_width
from fdaudit.transcript.encoding import is_counter
from fdaudit.types import KINDS, OWN_KIND

if TYPE_CHECKING:
    from fdaudit.adversary.knowledge import Knowledge
    from fdaudit.adversary.view import View
    from fdaudit.models import Architecture
    from fdaudit.transcript.messages import Message

__all__ = ["MODELS", "Forms", "forms_of", "left_out", "legible"]

MODELS = ("model_parameters", "model_update", "gradient")
"""Kinds of messages with a model, or what training changes in it."""
_ANSWERS = ("logits", "soft_labels", "hard_labels")
_NAMED: Mapping[str, tuple[str, ...]] = {
    "class_counts": ("counts",),
    "class_prototypes": ("values",),
    "ensemble_labels": ("values",),
    "generated_samples": ("samples",),
    "hard_labels": ("values",),
    "logits": ("values",),
    "private_labels": ("values",),
    "proxy_indices": ("index",),
    "sample_count": ("n",),
    "soft_labels": ("values",),
    "vote_counts": ("counts",),
}
"""Names that attacks read, by kind."""
_ROWS = (*_ANSWERS, "ensemble_labels", "vote_counts")
"""Kinds with a row a sample: all samples in order, unless `index` numbers them."""
_PARTS = (":codes", ":grid", ":layout")
_SHOWN = 3
"""Names of tensors in one sentence."""

Shapes = dict[str, "tuple[int, ...] | None"]
"""Shapes by name; None where the line does not tell the shape."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Forms:
    """What the tensors of an audited federation look like.

    Attributes:
        architecture: the audited network; None if it is not known, and models are not judged.
        classes: number of classes C; 0 if it is not known.
        generator: the protocol's declared generator, if it has one.
    """

    architecture: Architecture | None = None
    classes: int = 0
    generator: GeneratorCard | None = None
    _known: dict[tuple[object, ...], str] = field(default_factory=dict)

    def misfit(self, message: Message) -> str:
        """Return why attacks do not read a message: what its tensors lack for its kind; empty if they read it."""
        key = (message.kind, *sorted(message.tensors.items(), key=lambda one: one[0]))
        if key not in self._known:
            self._known[key] = self._misfit(message.kind, _shapes(message))
        return self._known[key]

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

    def _misfit(self, kind: str, found: Shapes) -> str:
        if kind not in KINDS:
            return OWN_KIND
        if kind in MODELS:
            return self._no_model(kind, found)
        if kind == "generator_parameters":
            return (
                "its protocol declares no generator"
                if self.generator is None
                else self.generator.misfit(found)
            )
        if kind == "discriminator_parameters":
            return self._no_discriminator(found)
        if lacking := [name for name in _NAMED.get(kind, ()) if name not in found]:
            return f"it has no tensor {_listed(lacking)}, which {kind} has: {KINDS[kind]}"
        return self._other_shape(kind, found)

    def _other_shape(self, kind: str, found: Shapes) -> str:
        """Return what is wrong with the shape of the tensor that attacks read; empty if nothing is."""
        name = _NAMED.get(kind, ("",))[-1]
        shape = found.get(name)
        if shape is None:
            return ""
        rows = len(shape) == 2 and self.classes in (0, shape[1])
        if "index" not in found and kind in _ROWS:
            for other, size in found.items():
                if size == shape[:1] and other != name:
                    return f"it has no index, and {other[:60]} may number its samples, where {kind} is: {KINDS[kind]}"
        fits = {
            "class_counts": self.classes == 0 or shape == (self.classes,),
            "class_prototypes": len(shape) == 2 and shape == (self.classes or shape[0],) * 2,
            "ensemble_labels": len(shape) == 1 or rows,
            "generated_samples": self.architecture is None or shape[1:] == self.architecture.input_shape,
            "hard_labels": len(shape) == 1,
            "logits": rows,
            "private_labels": len(shape) in (1, 3),
            "proxy_indices": len(shape) == 1,
            "sample_count": shape in ((), (1,)),
            "soft_labels": rows,
            "vote_counts": rows,
        }[kind]
        return "" if fits else f"it has {name} {shape}, where {kind} is: {KINDS[kind]}"

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
    def _shapes(self) -> tuple[dict[str, tuple[int, ...]], dict[str, tuple[int, ...]]]:
        """Return the shapes of a whole model's parameters, and of all its tensors."""
        if self.architecture is None:
            return {}, {}
        named = self.architecture.tensor_shapes
        return self.architecture.parameter_shapes, {n: s for n, s in named.items() if not is_counter(n)}

    def _no_model(self, kind: str, found: Shapes) -> str:
        """Return why tensors are not a whole model of the audited network; empty if they are."""
        if self.architecture is None:
            return ""
        needed, named = self._shapes
        found = {n: shape for n, shape in found.items() if not is_counter(n)}
        whole = f"a whole {self.architecture.name}"
        if lacking := [n for n in needed if n not in found]:
            held = f"{len(needed) - len(lacking)} of {len(needed)} tensors of {whole}"
            return f"it has {held}: {_listed(lacking)} missing"
        if strange := [n for n in found if n not in named]:
            return f"it has tensors that {whole} has not: {_listed(strange)}"
        if other := [n for n, shape in found.items() if shape is not None and shape != named[n]]:
            return f"{other[0]} is {found[other[0]]}, in {whole} {named[other[0]]}"
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
        wanted: Shapes = {"bias": (1,), "weight": (1, width)}
        if any(name.startswith("extractor.") for name in found):
            below = {n: s for n, s in self._shapes[1].items() if n.startswith("extractor.")}
            wanted = {**{f"head.{n}": s for n, s in wanted.items()}, **below}
            found = {n: s for n, s in found.items() if not is_counter(n)}
        if found.keys() != wanted.keys() or any(s not in (None, wanted[n]) for n, s in found.items()):
            return (
                f"it is no layer from {width} features to one score (weight, bias), over the audited network's "
                "extractor or one of its own of the same form"
            )
        return ""


def forms_of(knowledge: Knowledge) -> Forms:
    """Return what an adversary knows of the form of messages."""
    return Forms(
        architecture=knowledge.architecture, classes=knowledge.classes, generator=knowledge.generator
    )


def legible(view: View, forms: Forms) -> View:
    """Return the view without the messages that attacks cannot read.

    Generators stay: who reads answers must know that there is one. Answers of a round whose generated samples cannot be
    read are left out with them, because nothing else tells which samples they are about.
    """
    lost = {m.round for m in view.messages if m.kind == "generated_samples" and forms.misfit(m)}

    def read(m: Message) -> bool:
        if m.kind == "generator_parameters":
            return True
        return not forms.misfit(m) and not (m.kind in _ANSWERS and m.round in lost)

    kept = tuple(m for m in view.messages if read(m))
    return view if len(kept) == len(view.messages) else replace(view, messages=kept)


def left_out(view: View, forms: Forms, kinds: tuple[str, ...]) -> str:
    """Return which messages of these kinds attacks leave out, and why: one clause for each kind and reason."""
    senders: dict[tuple[str, str], dict[str, None]] = {}
    for m in view.messages:
        if m.kind in kinds and m.payload is not None and (why := forms.misfit(m)):
            senders.setdefault((m.kind, why), {})[m.sender] = None
    return "; ".join(
        f"{kind} of {_listed(list(who))} left out: {why}" for (kind, why), who in senders.items()
    )


def _shapes(message: Message) -> Shapes:
    """Return the readable tensors' shapes by name; None for a quantised one, whose line tells only its codes'."""
    found: Shapes = {}
    for name, info in message.tensors.items():
        base, mark, part = name.rpartition(":")
        if mark and f":{part}" in _PARTS:
            found[base] = None
        else:
            found[name] = info.shape
    return found


def _listed(names: list[str]) -> str:
    shown = ", ".join(name[:60] for name in names[:_SHOWN])
    return shown + (f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else "")
