"""The conformance check of a defence."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from fdaudit import defenses
from fdaudit.events import event_from_json, event_to_json
from fdaudit.kinds import is_kind
from fdaudit.rng import child
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
from fdaudit.testing.messages import MessageDefence, example_message, message_defences, noise_stream
from fdaudit.testing.noise import SCALES, SLACK, check_noise, check_noise_in_training, check_sensitivity
from fdaudit.transcript.encoding import readable
from fdaudit.transcript.wire import Defense, acts_in_training

__all__ = ["check_defense"]

_FLOATS = (torch.float32, torch.float64, torch.float16, torch.bfloat16)


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
    * the noise that the event states is drawn afresh for each message, and is as large where nothing follows it;
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
        for subject in message_defences(name, defence, kind):
            _check_release(subject)
            _check_event(subject)
            _check_form(subject)
            _check_without_index(subject)
            _check_size(subject)
            check_sensitivity(subject)
            check_noise(subject)
            _check_cuda(subject)
            if identity is not None:
                same = cls(read_settings(name, cls.Config, identity))
                sent = MessageDefence(name, same, subject.kind).release(subject.message()).tensors
                if not _equal(sent, subject.message()):
                    fail(name, f"changes a message under {dict(identity)}, where it should change nothing.")


def _equal(one: Mapping[str, Tensor], two: Mapping[str, Tensor]) -> bool:
    if one.keys() != two.keys():
        return False
    return all(t.dtype == two[n].dtype and torch.equal(t, two[n]) for n, t in one.items())


def _check_description(name: str, defence: Any, config: Any) -> None:
    """A defence says on record what it is."""
    with during(name, "describe()"):
        description = dict(defence.describe())
        canonical(description)
    expected = {"name": name, **config.model_dump()}
    if description != expected:
        fail(name, f"describes itself as {description}, where its name and settings are {expected}.")


def _check_release(subject: MessageDefence) -> None:
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


def _check_event(subject: MessageDefence) -> None:
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


def _check_form(subject: MessageDefence) -> None:
    """Kind, shapes and number types are those that the card promises."""
    card, name = subject.defence.card, subject.name
    for dtype in _FLOATS:
        message = subject.message()
        for n, tensor in message.items():
            if tensor.is_floating_point():
                message[n] = tensor.to(dtype)
        released = subject.release(message)
        due = card.makes or subject.kind
        if released.kind != due or not is_kind(released.kind):
            fail(name, f"makes {released.kind} of {subject.kind}, where its card says {due}.")
        received = readable(dict(released.tensors))
        for n, tensor in received.items():
            if not bool(tensor.double().isfinite().all()):
                fail(name, f"releases {n} with values that are not finite, for {dtype}.")
        if type(released.bytes_on_wire) is not int or released.bytes_on_wire < 0:
            fail(name, f"states {released.bytes_on_wire!r} bytes on the wire, which is no size.")
        if "index" in message and "index" in received:  # about samples of the message, in their order
            rows = torch.isin(message["index"], received["index"])
            if not torch.equal(message["index"][rows].long(), received["index"].long()):
                fail(name, "changes `index`, which says which samples a message is about.")
        if released.kind != subject.kind:
            continue
        for n, tensor in message.items():
            sent = received.get(n)
            if sent is None or sent.shape != tensor.shape:
                fail(name, f"releases {subject.kind} without {n}, or in another shape.")
            if n in released.tensors and tensor.is_floating_point() and sent.dtype != dtype:
                fail(name, f"releases {n} as {sent.dtype} where {dtype} was given.")


def _check_without_index(subject: MessageDefence) -> None:
    """A message without `index` is about all samples in their order, as one whose `index` says so."""
    numbered = subject.message()
    bare = dict(numbered)
    bare.pop("index", None)
    if not bare or len(bare) == len(numbered):
        return
    with during(subject.name, "release of a message without `index`"):
        released = subject.defence.release(subject.kind, bare, noise_stream()).tensors
    expected = subject.release(numbered).tensors
    if not _equal({**released, "index": numbered["index"]}, {**expected, "index": numbered["index"]}):
        fail(
            subject.name,
            f"releases another {subject.kind} without `index` than with all samples in their order.",
        )


def _check_size(subject: MessageDefence) -> None:
    """Messages of one shape have one size, where the card says so."""
    if not subject.defence.card.fixed_size:
        return
    sizes = set()
    for seed, scale in enumerate(SCALES):
        released = subject.release(subject.message(seed, scale), str(seed))
        shapes: list[tuple[str, tuple[str, tuple[int, ...]]]] = []
        for n, tensor in released.tensors.items():
            shapes.append((n, (str(tensor.dtype), tuple(tensor.shape))))
        sizes.add((released.bytes_on_wire, str(sorted(shapes))))
    if len(sizes) > 1:
        fail(
            subject.name,
            "releases messages of different sizes for other values, although its card says fixed_size.",
        )


def _check_cuda(subject: MessageDefence) -> None:
    """On CUDA the same values are released, up to rounding."""
    if not has_cuda(subject.name):
        return
    here = subject.release(subject.message()).tensors
    message = subject.message()
    for n, tensor in message.items():
        message[n] = tensor.cuda()
    there = subject.release(message).tensors
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
    description = dict(defence.describe())
    canonical(description)
    if description.get("name") != name:
        fail(name, f"describes itself as {description.get('name')!r}.")
    gradients = {"w": torch.randn(5, 3, 2, generator=child(0, "gradients")) * 1e3}
    before = gradients["w"].clone()
    outcomes = []
    for seed in (1, 2):
        with global_seed(name, seed), during(name, "a step"):
            drawn = defence.draw(records, noise_stream())
            total = defence.clipped(gradients)
            noised = defence.noised(total, noise_stream("noise"))
            outcomes.append((drawn.tolist(), total["w"].tolist(), noised["w"].tolist()))
    if outcomes[0] != outcomes[1]:
        fail(name, "takes another step for the same noise; draw from `noise` alone.")
    if not torch.equal(gradients["w"], before):
        fail(name, "changes the gradients that it is given; clone them first.")
    if not all(0 <= number < records for number in outcomes[0][0]):
        fail(name, "draws numbers that no record has.")
    if noised["w"].shape != before.shape[1:]:
        fail(name, "returns a gradient of another shape than the parameter's.")
    steps = defence.steps({"steps": 3, "epochs": None})
    with during(name, "writing its event on record"):
        event = defence.event(steps)
        again = event_from_json(event_to_json(event))
    if event is None or again != event:
        fail(name, "has no event that the record can hold.")
    clip = getattr(defence.config, "clip", None)
    if isinstance(clip, float):
        for scale in SCALES:
            one = {"w": torch.randn(1, 3, 2, generator=child(1, "gradients")) * scale}
            norm = float(defence.clipped(one)["w"].double().norm())
            if norm > clip * (1 + SLACK):
                fail(
                    name,
                    f"has a clip of {clip:g}, and one record's gradient has a norm of {norm:g} after it.",
                )
    check_noise_in_training(name, defence, event)
