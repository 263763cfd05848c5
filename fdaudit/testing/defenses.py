"""The conformance check of a defence."""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from fdaudit import defenses
from fdaudit.errors import ProtocolError
from fdaudit.events import (
    DiscreteGaussian,
    DiscreteLaplace,
    Gaussian,
    Laplace,
    SampledGaussian,
    event_from_json,
    event_to_json,
)
from fdaudit.kinds import KINDS, is_kind
from fdaudit.rng import SecretStream, child
from fdaudit.storage.digests import canonical
from fdaudit.testing.extensions import (
    check_settings,
    during,
    fail,
    global_seed,
    has_cuda,
    load_extension,
    read_settings,
    torch_defaults_kept,
)
from fdaudit.testing.federation import CLASSES, SHAPE
from fdaudit.transcript.encoding import readable
from fdaudit.transcript.wire import Defense, Released, acts_in_training

__all__ = ["check_defense", "example_message"]

_KINDS = ("logits", "model_update", "soft_labels", "vote_counts", "sample_gradients", "generated_samples")
"""Kinds that are tried where a card accepts every kind: the first that the defence treats."""
_FLOATS = (torch.float32, torch.float64, torch.float16, torch.bfloat16)
_SCALES = (1.0, 1e3, 1e6)
"""Factors of messages on which a stated sensitivity is subject."""
_SLACK = 1e-3
"""Relative rounding that a stated sensitivity may be exceeded by, in single precision."""
_ADDITIVE = (Gaussian, DiscreteGaussian, Laplace, DiscreteLaplace)
"""Events that state a sensitivity and a scale of noise on the values sent."""
_ROWS = 6
_SIZES = {"n": _ROWS, "C": CLASSES, "k": 2, **dict(zip("chw", SHAPE, strict=True))}
"""The sizes of an example message, by the letters of `fdaudit.kinds`."""
_DRAWS = 32
"""Releases from which the spread of noise is measured: about 600 values, so within a few percent."""
_LEAST_SPREAD = 0.75
"""Least spread of noise, as a share of the stated one."""
_SECRET = b"a secret of the auditor, not the seed"


def example_message(kind: str, seed: int = 0, scale: float = 1.0) -> dict[str, Tensor]:
    """Return random tensors of a kind of message, about six samples of three classes.

    Args:
        kind: one of `fdaudit.kinds.KINDS`; a kind that states no tensors, or of your own, is a model of two tensors.
        seed: of the values.
        scale: factor of the values, where they have no fixed range.
    """
    draws = child(seed, "message", kind)
    index = torch.arange(_ROWS)
    logits = 3 * torch.randn(_ROWS, CLASSES, generator=draws)
    if kind == "logits":
        return {"index": index, "values": logits * scale}
    if kind in ("soft_labels", "ensemble_labels"):
        return {"index": index, "values": logits.softmax(1)}
    if kind == "vote_counts":
        return {"index": index, "counts": torch.randint(9, (_ROWS, CLASSES), generator=draws)}
    if kind in ("top_logits", "top_soft_labels"):
        answers = logits * scale if kind == "top_logits" else logits.softmax(1)
        values, classes = answers.topk(_SIZES["k"], dim=1)
        return {"index": index, "classes": classes, "values": values}
    forms = KINDS[kind].tensors if kind in KINDS else ()
    tensors = {}
    for form in forms:
        shape = [_SIZES[letter] for letter in form.shapes[0].split()]
        if form.name == "index":
            tensors[form.name] = index
        elif form.whole:
            tensors[form.name] = torch.randint(CLASSES, shape, generator=draws)
        elif form.name == "samples":
            tensors[form.name] = torch.rand(shape, generator=draws)
        elif not form.when:
            tensors[form.name] = torch.randn(shape, generator=draws) * scale
    return tensors or {
        "head.0.weight": torch.randn(CLASSES, 5, generator=draws) * scale,
        "head.0.bias": torch.randn(CLASSES, generator=draws) * scale,
    }


def check_defense(
    defense: type[Defense] | str,
    params: Mapping[str, Any] | None = None,
    *,
    kind: str | None = None,
    identity: Mapping[str, Any] | None = None,
) -> None:
    """Check that a defence keeps the guarantees of its room.

    It checks that

    * wrong settings are refused with a SpecError that names the field;
    * `describe` gives the card's name and the settings, as plain data;
    * a release leaves what it is given, draws from `noise` alone, and never moves a global generator;
    * each release has an event, which the record can hold;
    * the kind is the one that the card makes; shapes, types and `index` stay where the kind stays, for single,
      double and half precision; the values are finite;
    * a message without `index` is treated as one about all samples in their order;
    * messages of one shape have one size, where the card says `fixed_size`;
    * two messages differ after their clip by no more than the sensitivity that the event states;
    * the noise that the event states is drawn anew for each message, and is as large where nothing follows it;
    * PyTorch's defaults stay as they are;
    * on CUDA it releases the same, where there is a device.

    A defence in training is checked on gradients of a few records, and a check on receipt on messages to two clients.

    Args:
        defense: the class, its public name, or `import:module:Class`.
        params: settings.
        kind: the kind of message that it is tried on; default: every kind that the card accepts, or the first of some
            that it treats.
        identity: settings under which the defence changes nothing, if it states any.

    Raises:
        AssertionError: it breaks a guarantee; the text names it.
    """
    cls: Any = load_extension(defense, defenses.REGISTRY)
    name = cls.card.name
    config = read_settings(name, cls.Config, params or {})
    check_settings(name, cls.Config, config.model_dump(mode="json"))
    with torch_defaults_kept(name):
        if acts_in_training(cls):
            _check_training(name, cls, config)
            return
        with during(name, "making it from its settings"):
            defence = cls(config)
        _check_description(name, defence, config)
        if cls.card.at == "receipt":
            _check_receipt(name, defence)
            return
        for subject in _subjects(name, defence, kind):
            _check_release(subject)
            _check_event(subject)
            _check_form(subject)
            _check_without_index(subject)
            _check_size(subject)
            _check_sensitivity(subject)
            _check_noise(subject)
            _check_cuda(subject)
            if identity is not None:
                same = cls(read_settings(name, cls.Config, identity))
                sent = _MessageDefence(name, same, subject.kind).release(subject.message()).tensors
                if not _equal(sent, subject.message()):
                    fail(name, f"changes a message under {dict(identity)}, where it should change nothing.")


@dataclass(frozen=True)
class _MessageDefence:
    """A message defence that is tried on one kind of message."""

    name: str
    defence: Any
    kind: str

    def values(self, tensors: Mapping[str, Tensor], path: str = "m") -> Tensor:
        """Return all values but the index of what the defence makes of a message, as one vector."""
        released = readable(dict(self.release(tensors, path).tensors))
        parts = [released[n].double().flatten() for n in released if n != "index"]
        return torch.cat(parts)

    def message(self, seed: int = 0, scale: float = 1.0) -> dict[str, Tensor]:
        """Return a message of the kind."""
        return example_message(self.kind, seed, scale)

    def release(self, tensors: Mapping[str, Tensor], path: str = "m") -> Released:
        """Return what the defence makes of a message, with the noise of a path."""
        with during(self.name, f"release of {self.kind}"):
            released: Released = self.defence.release(self.kind, tensors, _noise(path))
        return released


def _subjects(name: str, defence: Any, kind: str | None) -> list[_MessageDefence]:
    """Return the defence with each kind of message that it is tried on.

    Where the card accepts every kind, it may refuse some under its settings, and one that it treats is enough.
    """
    accepted = (kind,) if kind else defence.card.accepts
    subjects: list[_MessageDefence] = []
    for tried in accepted or _KINDS:
        subject = _MessageDefence(name, defence, tried)
        try:
            defence.release(tried, subject.message(), _noise())
        except ProtocolError as error:
            refusal = error
        except Exception:  # the checks name it
            return [*subjects, subject]
        else:
            subjects.append(subject)
            if not accepted:
                break
    if not subjects:
        kinds = ", ".join(accepted or _KINDS)
        fail(name, f"refuses messages of {kinds} ({refusal}); give params or another kind.")
    return subjects


def _noise(path: str = "m") -> SecretStream:
    return SecretStream(_SECRET, path)


def _equal(one: Mapping[str, Tensor], two: Mapping[str, Tensor]) -> bool:
    if one.keys() != two.keys():
        return False
    return all(t.dtype == two[n].dtype and torch.equal(t, two[n]) for n, t in one.items())


def _check_description(name: str, defence: Any, config: Any) -> None:
    """A defence says on record what it is."""
    with during(name, "describe()"):
        stated = dict(defence.describe())
        canonical(stated)
    expected = {"name": name, **config.model_dump()}
    if stated != expected:
        fail(name, f"describes itself as {stated}, where its name and settings are {expected}.")


def _check_release(subject: _MessageDefence) -> None:
    """A release leaves what it is given and follows from the message and the noise alone."""
    tensors = subject.message()
    first = subject.release(tensors)
    if not _equal(tensors, subject.message()):
        fail(subject.name, "changes the tensors that it is given; clone them first.")
    for seed in (1, 2):
        with global_seed(subject.name, seed):
            again = subject.release(tensors)
        if not _equal(again.tensors, first.tensors):
            fail(subject.name, "releases other values for the same noise; draw from `noise` alone.")


def _check_event(subject: _MessageDefence) -> None:
    """Each release has an event that the record can hold."""
    event = subject.release(subject.message()).event
    if event is None:
        fail(
            subject.name,
            "releases a message without an event; say NoGuarantee(reason=…) if it gives no guarantee.",
        )
    with during(subject.name, "writing its event on record"):
        again = event_from_json(event_to_json(event))
    if again != event:
        fail(subject.name, "has an event that is another one when it is read from the record.")


def _check_form(subject: _MessageDefence) -> None:
    """Kind, shapes and number types are those that the card promises."""
    card, name = subject.defence.card, subject.name
    for dtype in _FLOATS:
        given = subject.message()
        given = {n: t.to(dtype) if t.is_floating_point() else t for n, t in given.items()}
        released = subject.release(given)
        due = card.makes or subject.kind
        if released.kind != due or not is_kind(released.kind):
            fail(name, f"makes {released.kind} of {subject.kind}, where its card says {due}.")
        received = readable(dict(released.tensors))
        for n, tensor in received.items():
            if not bool(tensor.double().isfinite().all()):
                fail(name, f"releases {n} with values that are not finite, for {dtype}.")
        if type(released.bytes_on_wire) is not int or released.bytes_on_wire < 0:
            fail(name, f"states {released.bytes_on_wire!r} bytes on the wire, which is no size.")
        if "index" in given and not _same_index(received, given):
            fail(name, "changes `index`, which says which samples a message is about.")
        if released.kind != subject.kind:
            continue
        for n, tensor in given.items():
            sent = received.get(n)
            if sent is None or sent.shape != tensor.shape:
                fail(name, f"releases {subject.kind} without {n}, or in another shape.")
            if n in released.tensors and tensor.is_floating_point() and sent.dtype != dtype:
                fail(name, f"releases {n} as {sent.dtype} where {dtype} was given.")


def _same_index(released: Mapping[str, Tensor], given: Mapping[str, Tensor]) -> bool:
    """Return whether a release is about samples of the message, in their order."""
    if "index" not in released:
        return True
    kept = torch.isin(given["index"], released["index"])
    return torch.equal(given["index"][kept].long(), released["index"].long())


def _check_without_index(subject: _MessageDefence) -> None:
    """A message without `index` is about all samples in their order, as one whose `index` says so."""
    numbered = subject.message()
    bare = {n: t for n, t in numbered.items() if n != "index"}
    if not bare or len(bare) == len(numbered):
        return
    with during(subject.name, "release of a message without `index`"):
        released = subject.defence.release(subject.kind, bare, _noise()).tensors
    expected = subject.release(numbered).tensors
    if not _equal({**released, "index": numbered["index"]}, {**expected, "index": numbered["index"]}):
        fail(
            subject.name,
            f"releases another {subject.kind} without `index` than with all samples in their order.",
        )


def _check_size(subject: _MessageDefence) -> None:
    """Messages of one shape have one size, where the card says so."""
    if not subject.defence.card.fixed_size:
        return
    sizes = set()
    for seed, scale in enumerate(_SCALES):
        released = subject.release(subject.message(seed, scale), str(seed))
        shapes = {n: (str(t.dtype), tuple(t.shape)) for n, t in released.tensors.items()}
        sizes.add((released.bytes_on_wire, str(sorted(shapes.items()))))
    if len(sizes) > 1:
        fail(
            subject.name,
            "releases messages of different sizes for other values, although its card says fixed_size.",
        )


def _check_sensitivity(subject: _MessageDefence) -> None:
    """Two messages differ after their clip by no more than the stated sensitivity."""
    first = subject.release(subject.message())
    if not isinstance(first.event, _ADDITIVE) or first.kind != subject.kind:
        return
    norm = 1.0 if isinstance(first.event, (Laplace, DiscreteLaplace)) else 2.0
    # A message of `count` releases is that many vectors, side by side.
    stated = first.event.sensitivity * first.event.count ** (1 / norm)
    for scale in _SCALES:
        up = subject.message(1, scale)
        down = {n: -t if t.is_floating_point() else t for n, t in up.items()}
        # Both have the same noise, which falls out of the difference.
        difference = subject.values(up) - subject.values(down)
        distance = float(torch.linalg.vector_norm(difference, norm))
        if distance > stated * (1 + _SLACK) + _SLACK:
            problem = f"states a sensitivity of {stated:g}, and two of its messages differ by {distance:g}"
            fail(subject.name, f"{problem} before noise; clip to a constant of the settings.")


def _check_noise(subject: _MessageDefence) -> None:
    """The noise of a message is as the event states: drawn anew, and as large."""
    message = subject.message()
    first = subject.release(message)
    if not isinstance(first.event, _ADDITIVE) or first.kind != subject.kind:
        return
    nothing = {n: t if n == "index" else torch.zeros_like(t) for n, t in message.items()}
    paths = [f"noise of message {number}" for number in range(_DRAWS)]
    draws = [subject.values(nothing, path) for path in paths]
    shifts = [subject.values(message, path) - draw for path, draw in zip(paths[:3], draws, strict=False)]
    # What is done to values after the noise, such as a projection, costs no privacy and may make them spread less.
    added_last = all(torch.allclose(shift, shifts[0], rtol=1e-3, atol=1e-3) for shift in shifts)
    _refuse_weak_noise(subject.name, first.event, draws, added_last)


def _refuse_weak_noise(name: str, event: Any, draws: Sequence[Tensor], added_last: bool) -> None:
    """Refuse noise that is less than an event states.

    Args:
        name: of the defence.
        event: an event of additive noise.
        draws: releases of one message with different noise.
        added_last: whether the noise is added to values that do not change afterwards.
    """
    values = torch.stack(list(draws))
    if all(torch.equal(draw, draws[0]) for draw in draws):
        fail(
            name,
            f"states a {type(event).__name__}, and releases the same for other noise; add draws of `noise`.",
        )
    # The scale of discrete noise is in steps of a grid, which the event does not give.
    if not added_last or isinstance(event, (DiscreteGaussian, DiscreteLaplace)):
        return
    stated = event.scale
    if isinstance(event, Laplace):
        stated *= math.sqrt(2)
    spread = float(values.var(0).mean().sqrt())
    if spread < _LEAST_SPREAD * stated:
        fail(name, f"states noise of standard deviation {stated:g}, and its messages spread by {spread:g}.")


def _check_cuda(subject: _MessageDefence) -> None:
    """On CUDA the same values are released, up to rounding."""
    if not has_cuda(subject.name):
        return
    here = subject.release(subject.message()).tensors
    there = subject.release({n: t.cuda() for n, t in subject.message().items()}).tensors
    for n, tensor in here.items():
        if not torch.allclose(tensor.double(), there[n].cpu().double(), rtol=1e-4, atol=1e-4):
            fail(subject.name, f"releases another {n} on CUDA than on the CPU.")


def _check_receipt(name: str, defence: Any) -> None:
    """A check on receipt leaves the copies, names receivers, and accepts a usual message."""
    kinds = defence.card.accepts or ("model_parameters",)
    for kind in kinds:
        copies = {k: example_message(kind) for k in ("client/0", "client/1")}
        answers = []
        for seed in (1, 2):
            # Checks remember what they saw, so each is asked once.
            check = copy.deepcopy(defence)
            with global_seed(name, seed), during(name, f"refuses() of {kind}"):
                answers.append(sorted(check.refuses(copies)))
        if answers[0] != answers[1] or not set(answers[0]) <= copies.keys():
            fail(name, "names other receivers than those that got a message, or other ones each time.")
        if answers[0]:
            fail(name, f"refuses an undisturbed {kind}.")
        if any(not _equal(tensors, example_message(kind)) for tensors in copies.values()):
            fail(name, "changes the messages that it checks; clone them first.")


def _check_training(name: str, cls: Any, config: Any) -> None:
    """A defence in training draws from `noise` alone, leaves gradients, keeps its clip and has an event."""
    records = 12
    with during(name, "making it from its settings"):
        defence = cls(config, 4)
    stated = dict(defence.describe())
    canonical(stated)
    if stated.get("name") != name:
        fail(name, f"describes itself as {stated.get('name')!r}.")
    gradients = {"w": torch.randn(5, 3, 2, generator=child(0, "gradients")) * 1e3}
    given = gradients["w"].clone()
    outcomes = []
    for seed in (1, 2):
        with global_seed(name, seed), during(name, "a step"):
            drawn = defence.draw(records, _noise())
            total = defence.clipped(gradients)
            noised = defence.noised(total, _noise("noise"))
            outcomes.append((drawn.tolist(), total["w"].tolist(), noised["w"].tolist()))
    if outcomes[0] != outcomes[1]:
        fail(name, "takes another step for the same noise; draw from `noise` alone.")
    if not torch.equal(gradients["w"], given):
        fail(name, "changes the gradients that it is given; clone them first.")
    if not all(0 <= number < records for number in outcomes[0][0]):
        fail(name, "draws numbers that no record has.")
    if noised["w"].shape != given.shape[1:]:
        fail(name, "returns a gradient of another shape than the parameter's.")
    steps = defence.steps({"steps": 3, "epochs": None})
    with during(name, "writing its event on record"):
        event = defence.event(steps)
        again = event_from_json(event_to_json(event))
    if event is None or again != event:
        fail(name, "has no event that the record can hold.")
    _check_clip(name, defence)
    _check_noise_in_training(name, defence, event)


def _check_clip(name: str, defence: Any) -> None:
    """One record moves the sum of clipped gradients by no more than the clip."""
    clip = getattr(defence.config, "clip", None)
    if not isinstance(clip, float):
        return
    for scale in _SCALES:
        one = {"w": torch.randn(1, 3, 2, generator=child(1, "gradients")) * scale}
        norm = float(defence.clipped(one)["w"].double().norm())
        if norm > clip * (1 + _SLACK):
            fail(name, f"has a clip of {clip:g}, and one record's gradient has a norm of {norm:g} after it.")


def _check_noise_in_training(name: str, defence: Any, event: Any) -> None:
    """The noise of a step is as the event states: drawn anew, and as large, before the sum is divided."""
    if not isinstance(event, SampledGaussian):
        return
    nothing = {"w": torch.zeros(3, 2)}
    draws = []
    for number in range(4 * _DRAWS):
        step = defence.noised(nothing, _noise(f"noise of step {number}"))
        draws.append(step["w"].double().flatten() * defence.expected_batch)
    _refuse_weak_noise(name, event, draws, added_last=True)
