"""A client's round in a view: its upload, the model that it started from, and its training."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from fdaudit.kinds import MODELS
from fdaudit.training.objectives import ClientStep
from fdaudit.training.optimizers import BETAS, optimizer_in, rate_in

from .._moments import StateGradient, state_gradient
from .._uploads import received_before, weight_of, with_payload
from .fished import Fished, fished
from .repeated import uploads_for_one_model
from .updates import ClientSteps, gradient_of_update, schedule

if TYPE_CHECKING:
    from fdaudit.adversary.view import View
    from fdaudit.transcript.messages import Message

__all__ = [
    "UNCOUNTED",
    "Upload",
    "find_upload",
    "read_upload",
    "sample_count",
    "sent_from",
]

UNCOUNTED = "its sample count is not in view, so the number of its local steps is unknown"
"""Why an upload of whole epochs is not suitable for inversion, unless counts are tried."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Upload:
    """One client's upload with everything needed to simulate it.

    Attributes:
        target: the client.
        seq: the upload's number.
        start_seq: number of the message with the model it started from.
        start: that model's parameters and buffers.
        training: the local steps taken.
        gradient: the mean gradient applied; the gradient itself for one step.
        update: parameters after training less those before, if there were several steps, else None.
        change: all parameters and buffers after training less those before; empty for a gradient.
        defenses: the message's recorded defences.
        scale: ratio of the inverted gradient or update to the sent values.
        guessed: whether the number of records is an assumption of the adversary.
        states: number of the message with the optimiser's state that the gradient was read off, if it was.
        note: why an optimiser's state in view was not read, or that it was.
        repeats: of how many uploads for one model the sent values are the mean.
    """

    target: str
    seq: int
    start_seq: int
    start: Mapping[str, Tensor]
    training: ClientSteps
    gradient: Mapping[str, Tensor]
    update: Mapping[str, Tensor] | None
    change: Mapping[str, Tensor] = field(default_factory=dict)
    defenses: tuple[Mapping[str, Any], ...] = ()
    scale: float = 1.0
    guessed: bool = False
    states: tuple[int, ...] = ()
    note: str = ""
    repeats: int = 1

    @property
    def sent(self) -> Mapping[str, Tensor]:
        """Return the values that a simulation has to match: the update of several steps, or the gradient."""
        if self.update is None:
            return self.gradient
        return self.update

    @property
    def messages(self) -> tuple[int, ...]:
        """Return the numbers of the messages that it was read from."""
        return (self.start_seq, self.seq, *self.states)

    def as_one_step(self) -> Upload:
        """Return the upload read as one step on all its images at once, which ignores the model's movement."""
        if self.update is None:
            return self
        one = replace(self.training, batches=(tuple(range(self.training.images)),), momentum=0.0, mu=0.0)
        return replace(self, training=one, update=None)


def find_upload(
    view: View, target: str, round: int, max_images: int, *, any_rate: bool = False
) -> Upload | str:
    """Return the first upload of a client in a round, or the reason why none is suitable for inversion.

    Args:
        view: the adversary's view.
        target: the client.
        round: the round.
        max_images: largest number of images that an upload may mix.
        any_rate: whether the gradient is needed up to a factor only. The rate is taken as 1 where it is not known.
    """
    messages = sent_from(view, target, round)
    if isinstance(messages, str):
        return messages
    count = sample_count(view, target)
    return read_upload(view, *messages, target, count, max_images, any_rate=any_rate)


def sent_from(view: View, target: str, round: int) -> tuple[Message, Message] | str:
    """Return the first upload of a client in a round and the model before it, or why they are not in view.

    If the round shows no upload of the client, the next round that does is read: clients may take turns.
    """
    sent = []
    for message in view.select(sender=target):
        if message.kind not in MODELS or message.round < round:
            continue
        sent.append(message)
    if not sent:
        return f"no {', '.join(MODELS[:-1])} or {MODELS[-1]} of round {round} or later in view"
    first = min(m.round for m in sent)
    readable = []
    for message in sent:
        if message.round == first and message.payload is not None:
            readable.append(message)
    if not readable:
        return f"its uploads of round {first} were recorded as digests only"
    message = min(readable, key=lambda m: m.seq)
    received = received_before(view, message, target)
    if not received:
        return "the model it started from is not in view"
    return message, received[-1]


def sample_count(view: View, target: str) -> int | None:
    """Return the client's last reported number of records, or None if that is not in view."""
    counts = with_payload(view.select(kind="sample_count", sender=target))
    if not counts:
        return None
    return int(view.tensors(counts[-1])["n"])


def read_upload(
    view: View,
    message: Message,
    origin: Message,
    target: str,
    n: int | None,
    max_images: int,
    *,
    adaptive: bool = False,
    any_rate: bool = False,
) -> Upload | str:
    """Return an upload as one of a client with n records, or the reason why it is not suitable for inversion.

    Args:
        view: the adversary's view.
        message: the upload.
        origin: the model that it started from.
        target: the client.
        n: its records, or None if unknown.
        max_images: largest number of images that it may mix.
        any_rate: as for `find_upload`.
        adaptive: whether updates by Adam are suitable, which are no sums of gradients.
    """
    state = state_gradient(view, message, origin, target)
    # Weight decay in an update is known up to the rate only; in a state it is known.
    any_rate = any_rate and not view.hyperparameters.get("weight_decay")
    training = _training(view, message, n, any_rate or isinstance(state, StateGradient))
    if isinstance(training, str):
        return training
    if state is not None and len(training.batches) > 1:
        state = f"its optimiser's state after {len(training.batches)} steps shows no gradient of a single one"
    if not isinstance(state, StateGradient):
        reason = _hidden_by_optimizer(view, message, target, training, adaptive)
        if reason:
            return f"{reason}; {state}" if state else reason
    alike = [message]
    if len(training.batches) == 1 and training.images == n:  # other batches are of other records
        alike = uploads_for_one_model(view, message, origin, target)
    upload = _upload(view, alike, origin, target, training)
    if isinstance(state, StateGradient):
        upload = _read_off(upload, state)
    elif state is not None:
        upload = replace(upload, note=state)
    if upload.update is None:
        part = fished(upload.start, upload.gradient, training.images)
        if part is not None and not part.count:
            return "none of its records is of the class that the model was crafted for"
        if part is not None:
            upload = _fished_out(upload, part)
    if upload.training.images > max_images:
        return (
            f"its upload mixes {training.images} images in {len(training.batches)} steps; "
            f"max_images allows {max_images}"
        )
    return upload


def _hidden_by_optimizer(
    view: View, message: Message, target: str, training: ClientSteps, adaptive: bool
) -> str:
    """Return why an update cannot be read if no state of the optimiser shows its gradient; empty if it can."""
    if training.adaptive and not adaptive:
        return "the clients' optimiser is Adam, so an update is no sum of gradients"
    stateful = training.adaptive or training.momentum
    if stateful and view.hyperparameters.get("optimizer_kept"):
        for other in view.select(sender=target):
            if other.kind in MODELS and other.round < message.round:
                return "the clients keep their optimiser's state, and that before this round is not known"
    return ""


def _read_off(upload: Upload, state: StateGradient) -> Upload:
    """Return an upload of one step with the gradient that its optimiser's state shows."""
    return replace(
        upload,
        training=replace(upload.training, optimizer="sgd", momentum=0.0, weight_decay=0.0, mu=0.0),
        gradient={**upload.gradient, **state.gradient},
        update=None,
        change={} if upload.defenses else upload.change,
        defenses=state.defenses,
        scale=state.scale,
        states=(state.seq,),
        repeats=1,
        note="gradients were read off the optimiser's state",
    )


def _fished_out(upload: Upload, part: Fished) -> Upload:
    """Return an upload as one of a part of its records."""
    images = upload.training.images
    note = f"{part.count} of {images} records were fished out"
    if upload.note:
        note = f"{upload.note}; {note}"
    return replace(
        upload,
        start=part.start,
        training=replace(upload.training, batches=(tuple(range(part.count)),)),
        gradient=part.gradient,
        change={},
        scale=upload.scale * images / part.count,
        note=note,
    )


def _upload(
    view: View, alike: Sequence[Message], origin: Message, target: str, training: ClientSteps
) -> Upload:
    """Return the upload that several for one model are together: their mean has less of the defences' noise."""
    start, message = view.tensors(origin), alike[0]
    values = view.tensors(message)
    if len(alike) > 1:
        uploads = [view.tensors(one) for one in alike]
        for name, value in values.items():
            if value.is_floating_point():
                values[name] = torch.stack([upload[name] for upload in uploads]).mean(0)
    update: dict[str, Tensor] | None = None
    change: dict[str, Tensor] = {}
    gradient, scale = values, 1.0
    if message.kind != "gradient":
        if message.kind == "model_update":
            weight = weight_of(message)
            change = {name: value / weight for name, value in values.items()}
            scale = 1 / weight
        else:
            change = {name: value - start[name] for name, value in values.items()}
        gradient = gradient_of_update(change, start, training)
        if len(training.batches) == 1 and not training.adaptive:
            scale = -scale / training.gain
        else:
            update = change
    return Upload(
        target=target,
        seq=message.seq,
        start_seq=origin.seq,
        start=start,
        training=training,
        gradient=gradient,
        update=update,
        change=change,
        defenses=view.defenses_of(message),
        scale=scale,
        repeats=len(alike),
    )


def _training(view: View, message: Message, n: int | None, any_rate: bool) -> ClientSteps | str:
    """Return the local steps behind an upload, from the public configuration and the number of records if known."""
    public: Mapping[str, Any] = view.hyperparameters
    size, lr = public.get("batch_size"), rate_in(public, message.round)
    if size is None:
        return "the public configuration names no batch_size"
    if lr is None:
        if not any_rate:
            return "the public configuration names no lr"
        lr = 1.0
    steps, epochs, optimizer = public.get("local_steps"), public.get("local_epochs"), optimizer_in(public)
    if message.kind == "gradient":
        steps, epochs, optimizer = 1, None, "sgd"
    elif steps is None and epochs is None:
        epochs = 1
    if epochs is not None and n is None:
        return UNCOUNTED
    return ClientSteps(
        lr=lr,
        batches=schedule(n, int(size), steps=steps, epochs=epochs),
        optimizer=optimizer,
        betas=tuple(public.get("betas") or BETAS),
        momentum=float(public.get("momentum") or 0),
        weight_decay=float(public.get("weight_decay") or 0),
        mu=float(public.get("mu") or 0),
        step=ClientStep.of(public),
    )
