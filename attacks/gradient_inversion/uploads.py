"""A client's round in a view: its upload, the model that it started from, and its training."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from fdaudit.goals.reconstruction import Reconstruction
from fdaudit.goals.row_reconstruction import RowReconstruction
from fdaudit.kinds import MODELS
from fdaudit.storage.cache import computed_once
from fdaudit.training.objectives import ClientStep
from fdaudit.training.optimizers import BETAS, optimizer_in, rate_in
from fdaudit.types import Applicability

from .._moments import StateGradient, state_gradient
from .._uploads import received_before
from .engine import Matched
from .fished import Fished, fished
from .gradients import PLAIN
from .labels import probe_images
from .repeated import uploads_for_one_model
from .updates import ClientSteps, gradient_of_update, schedule

if TYPE_CHECKING:
    from fdaudit.adversary.knowledge import Knowledge
    from fdaudit.adversary.view import View
    from fdaudit.transcript.messages import Message

__all__ = [
    "UNCOUNTED",
    "Upload",
    "adversary_probes",
    "applies",
    "find_upload",
    "find_uploads",
    "matched_once",
    "read_upload",
    "reconstruction",
    "row_reconstruction",
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
        return self.gradient if self.update is None else self.update

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


def find_uploads(
    view: View, targets: Iterable[str], round: int, max_images: int, *, any_rate: bool = False
) -> tuple[list[Upload], dict[str, str]]:
    """Return the clients' uploads in a round, and a reason for every client without one suitable for inversion.

    Args:
        view: the adversary's view.
        targets: the clients.
        round: the round.
        max_images: largest number of images that an upload may mix.
        any_rate: whether the gradient is needed up to a factor only. The rate is taken as 1 where it is not known.
    """
    uploads, reasons = [], {}
    for target in targets:
        upload = find_upload(view, target, round, max_images, any_rate=any_rate)
        if isinstance(upload, Upload):
            uploads.append(upload)
        else:
            reasons[target] = upload
    return uploads, reasons


def applies(found: Sequence[object], reasons: Mapping[str, str]) -> Applicability:
    """Check that there is an upload to invert; otherwise state each reason once, with all its clients."""
    if found:
        return Applicability(True)
    of: dict[str, list[str]] = {}
    for target, reason in reasons.items():
        of.setdefault(reason, []).append(target)
    lines = [f"{', '.join(targets)}: {reason}" for reason, targets in of.items()]
    return Applicability(False, "; ".join(lines) or "no victim is named")


def find_upload(
    view: View, target: str, round: int, max_images: int, *, any_rate: bool = False
) -> Upload | str:
    """Return the first upload of a client in a round, or the reason why none is suitable; see `find_uploads`."""
    messages = sent_from(view, target, round)
    if isinstance(messages, str):
        return messages
    count = sample_count(view, target)
    return read_upload(view, *messages, target, count, max_images, any_rate=any_rate)


def sent_from(view: View, target: str, round: int) -> tuple[Message, Message] | str:
    """Return the first upload of a client in a round and the model before it, or why they are not in view.

    If the round shows no upload of the client, the next round that does is read: clients may take turns.
    """
    sent = [m for kind in MODELS for m in view.select(kind=kind, sender=target) if m.round >= round]
    if not sent:
        return f"no {', '.join(MODELS[:-1])} or {MODELS[-1]} of round {round} or later in view"
    first = min(m.round for m in sent)
    readable = [m for m in sent if m.round == first and m.payload is not None]
    if not readable:
        return f"its uploads of round {first} were recorded as digests only"
    message = min(readable, key=lambda m: m.seq)
    received = received_before(view, message, target)
    if not received:
        return "the model it started from is not in view"
    return message, received[-1]


def sample_count(view: View, target: str) -> int | None:
    """Return the client's last reported number of records, or None if that is not in view."""
    counts = [m for m in view.select(kind="sample_count", sender=target) if m.payload is not None]
    return int(view.tensors(counts[-1])["n"]) if counts else None


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
        any_rate: as for `find_uploads`.
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
    note = state if isinstance(state, str) else ""
    if training.adaptive and not adaptive and not isinstance(state, StateGradient):
        reason = "the clients' optimiser is Adam, so an update is no sum of gradients"
        return f"{reason}; {note}" if note else reason
    stateful = training.adaptive or bool(training.momentum)
    if stateful and not isinstance(state, StateGradient) and _goes_on(view, message, target):
        reason = "the clients keep their optimiser's state, and that before this round is not known"
        return f"{reason}; {note}" if note else reason
    alike = [message]
    if len(training.batches) == 1 and training.images == n:  # other batches are of other records
        alike = uploads_for_one_model(view, message, origin, target)
    upload = _upload(view, alike, origin, target, training)
    upload = _read_off(upload, state) if isinstance(state, StateGradient) else replace(upload, note=note)
    part = None
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


def _goes_on(view: View, message: Message, target: str) -> bool:
    """Return whether a client's optimiser goes on from an earlier round, by the public configuration."""
    earlier = (m for m in view.messages if m.sender == target and m.kind in MODELS)
    return bool(view.hyperparameters.get("optimizer_kept")) and any(m.round < message.round for m in earlier)


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
    described = f"{part.count} of {images} records were fished out"
    return replace(
        upload,
        start=part.start,
        training=replace(upload.training, batches=(tuple(range(part.count)),)),
        gradient=part.gradient,
        change={},
        scale=upload.scale * images / part.count,
        note=f"{upload.note}; {described}" if upload.note else described,
    )


def _upload(
    view: View, alike: Sequence[Message], origin: Message, target: str, training: ClientSteps
) -> Upload:
    """Return the upload that several for one model are together: their mean has less of the defences' noise."""
    start, message = view.tensors(origin), alike[0]
    values = view.tensors(message)
    if len(alike) > 1:
        sent = [view.tensors(one) for one in alike]
        floating = [name for name, value in values.items() if value.is_floating_point()]
        values |= {name: torch.stack([one[name] for one in sent]).mean(0) for name in floating}
    update: dict[str, Tensor] | None = None
    change: dict[str, Tensor] = {}
    scale = 1.0
    if message.kind == "gradient":
        gradient = values
    else:
        if message.kind == "model_parameters":
            update = {name: value - start[name] for name, value in values.items()}
        else:
            weight = float(message.fields.get("weight", 1.0))  # of an update weighted before it was sent
            update = {name: value / weight for name, value in values.items()}
            scale = 1 / weight
        gradient, change = gradient_of_update(update, start, training), update
        if len(training.batches) == 1 and not training.adaptive:
            update, scale = None, -scale / training.gain
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
    if lr is None and any_rate:
        lr = 1.0
    if lr is None:
        return "the public configuration names no lr"
    steps, epochs = public.get("local_steps"), public.get("local_epochs")
    if message.kind == "gradient":
        steps, epochs = 1, None
    elif steps is None and epochs is None:
        epochs = 1
    if epochs is not None and n is None:
        return UNCOUNTED
    return ClientSteps(
        lr=lr,
        batches=schedule(n, int(size), steps=steps, epochs=epochs),
        optimizer="sgd" if message.kind == "gradient" else optimizer_in(public),
        betas=tuple(public.get("betas") or BETAS),
        momentum=float(public.get("momentum") or 0),
        weight_decay=float(public.get("weight_decay") or 0),
        mu=float(public.get("mu") or 0),
        step=ClientStep.of(public),
    )


def adversary_probes(knowledge: Knowledge, generator: torch.Generator) -> Tensor:
    """Return images (m, c, h, w) that stand in for the clients': auxiliary ones, or noise without any."""
    if knowledge.architecture is None:
        raise ValueError("adversary_probes: the architecture is unknown. Ask `applicable` first.")
    noise = probe_images(knowledge.architecture.input_shape, 256, generator)
    return noise if knowledge.auxiliary is None else knowledge.auxiliary[0][:1024]


def matched_once(
    attack: str,
    settings: Mapping[str, Any],
    knowledge: Knowledge,
    upload: Upload,
    match: Callable[[torch.Generator], Matched],
) -> Matched:
    """Return an attack's result on an upload, cached for adversaries with the same upload in view.

    The cache is `fdaudit.storage.cache`. Only the upload and the settings determine the result, not the adversary or
    its other victims. A coalition therefore finds what its members find.

    Args:
        attack: its name.
        settings: its settings, as JSON values.
        knowledge: with the network and auxiliary images.
        upload: the upload to match.
        match: the attack.
    """
    training = asdict(upload.training)
    step = training.pop("step")
    card = {
        "attack": attack,
        "settings": dict(settings),
        **knowledge.described,
        "training": None if upload.update is None else training,
        "images": upload.training.images,
        **({} if upload.training.step == PLAIN else {"step": step}),
    }
    auxiliary = knowledge.auxiliary or ()
    matched = computed_once(card, [*auxiliary, upload.start, upload.sent], lambda draws: vars(match(draws)))
    return Matched(**matched)


def reconstruction(upload: Upload, found: Matched, i: int = 0) -> Reconstruction:
    """Return the guess of images from row i of an upload's match."""
    return Reconstruction(
        target=upload.target,
        messages=upload.messages,
        images=found.images[i].nan_to_num(0.5).clamp(0, 1).cpu(),
        labels=found.labels[i].cpu(),
        objective=float(found.objective[i]),
        evaluations=int(found.evaluations[i]),
        note=upload.note,
    )


def row_reconstruction(upload: Upload, found: Matched, i: int = 0) -> RowReconstruction:
    """Return the guess of a table's rows from row i of an upload's match."""
    return RowReconstruction(
        target=upload.target,
        messages=upload.messages,
        rows=found.images[i].nan_to_num(0.0).cpu(),
        labels=found.labels[i].cpu(),
        objective=float(found.objective[i]),
        evaluations=int(found.evaluations[i]),
        note=upload.note,
    )
