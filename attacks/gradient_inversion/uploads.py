"""A client's round in a view: its upload, the model that it started from, and its training."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from fdaudit.goals.reconstruction import Reconstruction
from fdaudit.kinds import MODELS
from fdaudit.storage.cache import computed_once
from fdaudit.types import Applicability

from .engine import Matched
from .gradients import mixes_samples
from .labels import probe_images
from .updates import LocalSGD, gradient_of_update, schedule

if TYPE_CHECKING:
    from fdaudit.adversary.knowledge import Knowledge
    from fdaudit.adversary.view import View
    from fdaudit.transcript.messages import Message

__all__ = [
    "UNCOUNTED",
    "Upload",
    "adversary_probes",
    "applies",
    "described",
    "device_of",
    "find_upload",
    "find_uploads",
    "matched_once",
    "network",
    "read_upload",
    "reconstruction",
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
        defenses: the message's recorded defences.
        scale: ratio of the inverted gradient or update to the sent values.
        guessed: whether the number of records is an assumption of the adversary.
    """

    target: str
    seq: int
    start_seq: int
    start: Mapping[str, Tensor]
    training: LocalSGD
    gradient: Mapping[str, Tensor]
    update: Mapping[str, Tensor] | None
    defenses: tuple[Mapping[str, Any], ...] = ()
    scale: float = 1.0
    guessed: bool = False

    @property
    def sent(self) -> Mapping[str, Tensor]:
        """Return the values that a simulation has to match: the update of several steps, or the gradient."""
        return self.gradient if self.update is None else self.update

    def as_one_step(self) -> Upload:
        """Return the upload read as one step on all its images at once, which ignores the model's movement."""
        if self.update is None:
            return self
        one = replace(self.training, batches=(tuple(range(self.training.images)),), momentum=0.0, mu=0.0)
        return replace(self, training=one, update=None)


def find_uploads(
    view: View, targets: Iterable[str], round: int, max_images: int
) -> tuple[list[Upload], dict[str, str]]:
    """Return the clients' uploads in a round, and a reason for every client without one suitable for inversion."""
    found, reasons = [], {}
    for target in targets:
        upload = find_upload(view, target, round, max_images)
        if isinstance(upload, Upload):
            found.append(upload)
        else:
            reasons[target] = upload
    return found, reasons


def applies(found: Sequence[object], reasons: Mapping[str, str]) -> Applicability:
    """Check that there is an upload to invert; otherwise state each reason once, with all its clients."""
    if found:
        return Applicability(True)
    of: dict[str, list[str]] = {}
    for target, reason in reasons.items():
        of.setdefault(reason, []).append(target)
    said = [f"{', '.join(targets)}: {reason}" for reason, targets in of.items()]
    return Applicability(False, "; ".join(said) or "no victim is named")


def find_upload(view: View, target: str, round: int, max_images: int) -> Upload | str:
    """Return the first upload of a client in a round, or the reason why none is suitable for inversion."""
    found = sent_from(view, target, round)
    if isinstance(found, str):
        return found
    return read_upload(view, *found, target, sample_count(view, target), max_images)


def sent_from(view: View, target: str, round: int) -> tuple[Message, Message] | str:
    """Return the first upload of a client in a round and the model before it, or why they are not in view."""
    sent = [m for kind in MODELS for m in view.select(kind=kind, sender=target, round=round)]
    if not sent:
        return f"no {', '.join(MODELS[:-1])} or {MODELS[-1]} of round {round} in view"
    kept = [m for m in sent if m.payload is not None]
    if not kept:
        return f"its uploads of round {round} were recorded as digests only"
    message = min(kept, key=lambda m: m.seq)
    received = [
        m
        for m in view.select(kind="model_parameters")
        if m.seq < message.seq and target in m.receivers and m.payload is not None
    ]
    if not received:
        return "the model it started from is not in view"
    return message, received[-1]


def sample_count(view: View, target: str) -> int | None:
    """Return the client's last reported number of records, or None if that is not in view."""
    counts = [m for m in view.select(kind="sample_count", sender=target) if m.payload is not None]
    return int(view.tensors(counts[-1])["n"]) if counts else None


def read_upload(
    view: View, message: Message, origin: Message, target: str, n: int | None, max_images: int
) -> Upload | str:
    """Return an upload as one of a client with n records, or the reason why it is not suitable for inversion.

    Args:
        view: the adversary's view.
        message: the upload.
        origin: the model that it started from.
        target: the client.
        n: its records, or None if unknown.
        max_images: largest number of images that it may mix.
    """
    training = _training(view, message, n)
    if isinstance(training, str):
        return training
    if training.images > max_images:
        return (
            f"its upload mixes {training.images} images in {len(training.batches)} steps; "
            f"max_images allows {max_images}"
        )
    return _upload(view, message, origin, target, training)


def _upload(view: View, message: Message, origin: Message, target: str, training: LocalSGD) -> Upload:
    start, sent = view.tensors(origin), view.tensors(message)
    update: dict[str, Tensor] | None = None
    scale = 1.0
    if message.kind == "gradient":
        gradient = sent
    else:
        absolute = message.kind == "model_parameters"
        weight = float(message.fields.get("weight", 1.0))  # of an update that was weighted before it was sent
        update = {name: value - start[name] if absolute else value / weight for name, value in sent.items()}
        scale = 1.0 if absolute else 1 / weight
        gradient = gradient_of_update(update, start, training)
        if len(training.batches) == 1:
            update, scale = None, -scale / training.gain
    return Upload(
        target=target,
        seq=message.seq,
        start_seq=origin.seq,
        start=start,
        training=training,
        gradient=gradient,
        update=update,
        defenses=view.defenses_of(message),
        scale=scale,
    )


def _training(view: View, message: Message, n: int | None) -> LocalSGD | str:
    """Return the local steps behind an upload, from the public configuration and the number of records if known."""
    public: Mapping[str, Any] = view.hyperparameters
    size, lr = public.get("batch_size"), public.get("lr")
    if size is None or lr is None:
        return "the public configuration names no batch_size or lr"
    if message.kind != "gradient" and public.get("optimizer") == "adam":
        return "the clients' optimiser is Adam, so an update is no sum of gradients"
    steps, epochs = public.get("local_steps"), public.get("local_epochs")
    if message.kind == "gradient":
        steps, epochs = 1, None
    elif steps is None and epochs is None:
        epochs = 1
    if epochs is not None and n is None:
        return UNCOUNTED
    return LocalSGD(
        lr=float(lr),
        batches=schedule(n, int(size), steps=steps, epochs=epochs),
        momentum=float(public.get("momentum") or 0),
        weight_decay=float(public.get("weight_decay") or 0),
        mu=float(public.get("mu") or 0),
    )


def network(knowledge: Knowledge) -> nn.Module | str:
    """Return the network whose gradients are inverted, or the reason why it is not known or not suitable."""
    if knowledge.architecture is None:
        return "the architecture of the model is not known"
    # Its weights are replaced by the model in view: the generator only fills the mould.
    module = knowledge.architecture.build(torch.Generator().manual_seed(0))
    if mixes_samples(module):
        return "the model has BatchNorm, so a batch's gradient is not the mean of its images' gradients"
    return module.eval()


def adversary_probes(knowledge: Knowledge, generator: torch.Generator) -> Tensor:
    """Return images (m, c, h, w) that stand in for the clients': auxiliary ones, or noise without any."""
    if knowledge.architecture is None:
        raise ValueError("adversary_probes: the architecture is unknown. Ask `applicable` first.")
    noise = probe_images(knowledge.architecture.input_shape, 256, generator)
    return noise if knowledge.auxiliary is None else knowledge.auxiliary[0][:1024]


def device_of(knowledge: Knowledge) -> torch.device:
    """Return the device of optimisation: the adversary's training device, or the CPU."""
    return knowledge.train.device if knowledge.train is not None else torch.device("cpu")


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
    card = {
        "attack": attack,
        "settings": dict(settings),
        **described(knowledge),
        "training": None if upload.update is None else asdict(upload.training),
        "images": upload.training.images,
    }
    known = knowledge.auxiliary or ()
    found = computed_once(card, [*known, upload.start, upload.sent], lambda draws: vars(match(draws)))
    return Matched(**found)


def described(knowledge: Knowledge) -> dict[str, Any]:
    """Return what determines an inversion in addition to tensors: the network and its execution."""
    return {
        "network": None if knowledge.architecture is None else knowledge.architecture.described,
        "execution": None if knowledge.train is None else knowledge.train.execution.described,
    }


def reconstruction(upload: Upload, found: Matched, i: int = 0) -> Reconstruction:
    """Return the guess from row i of an upload's match."""
    return Reconstruction(
        target=upload.target,
        messages=(upload.start_seq, upload.seq),
        images=found.images[i].nan_to_num(0.5).clamp(0, 1).cpu(),
        labels=found.labels[i].cpu(),
        objective=float(found.objective[i]),
        evaluations=int(found.evaluations[i]),
    )
