"""What a view holds on a client's round: its upload, the model it started from, and how it trained."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from fdaudit.cache import computed_once
from fdaudit.types import Applicability, Reconstruction

from .engine import Matched
from .gradients import mixes_samples
from .labels import probe_images
from .updates import LocalSGD, gradient_of_update, schedule

if TYPE_CHECKING:
    from fdaudit.config import Config
    from fdaudit.knowledge import Knowledge
    from fdaudit.messages import Message
    from fdaudit.view import View

__all__ = [
    "KINDS",
    "Upload",
    "adversary_probes",
    "applies",
    "device_of",
    "find_upload",
    "find_uploads",
    "matched_once",
    "network",
    "reconstruction",
    "together",
]

KINDS = ("gradient", "model_update", "model_parameters")
"""Kinds of message that an inversion starts from."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Upload:
    """One client's upload with what is needed to simulate it.

    Attributes:
        target: the client.
        seq: the upload's number.
        start_seq: number of the message with the model it started from.
        start: that model's parameters and buffers.
        training: the local steps taken.
        gradient: the mean gradient applied; the gradient itself where there was one step.
        update: parameters after training less those before, where there were several steps, else None.
    """

    target: str
    seq: int
    start_seq: int
    start: Mapping[str, Tensor]
    training: LocalSGD
    gradient: Mapping[str, Tensor]
    update: Mapping[str, Tensor] | None


def find_uploads(
    view: View, targets: Iterable[str], round: int, max_images: int
) -> tuple[list[Upload], dict[str, str]]:
    """The uploads of these clients in a round, and a reason for every client that has none fit for inversion."""
    found, reasons = [], {}
    for target in targets:
        upload = find_upload(view, target, round, max_images)
        if isinstance(upload, Upload):
            found.append(upload)
        else:
            reasons[target] = upload
    return found, reasons


def applies(found: Sequence[Upload], reasons: Mapping[str, str]) -> Applicability:
    """Whether there is anything to invert; if not, why, each reason said once for all whom it holds of."""
    if found:
        return Applicability(True)
    of: dict[str, list[str]] = {}
    for target, reason in reasons.items():
        of.setdefault(reason, []).append(target)
    said = [f"{', '.join(targets)}: {reason}" for reason, targets in of.items()]
    return Applicability(False, "; ".join(said) or "no victim is named")


def find_upload(view: View, target: str, round: int, max_images: int) -> Upload | str:
    """The first upload of a client in a round; or, as text, why there is none fit for inversion."""
    sent = [m for kind in KINDS for m in view.select(kind=kind, sender=target, round=round)]
    if not sent:
        return f"no {', '.join(KINDS[:-1])} or {KINDS[-1]} of round {round} in view"
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
    training = _training(view, message, target)
    if isinstance(training, str):
        return training
    if training.images > max_images:
        return (
            f"its upload mixes {training.images} images in {len(training.batches)} steps; "
            f"max_images allows {max_images}"
        )
    return _upload(view, message, received[-1], target, training)


def _upload(view: View, message: Message, origin: Message, target: str, training: LocalSGD) -> Upload:
    start, sent = view.tensors(origin), view.tensors(message)
    update: dict[str, Tensor] | None = None
    if message.kind == "gradient":
        gradient = sent
    else:
        absolute = message.kind == "model_parameters"
        weight = float(message.fields.get("weight", 1.0))  # of an update that was weighted before it was sent
        update = {name: value - start[name] if absolute else value / weight for name, value in sent.items()}
        gradient = gradient_of_update(update, start, training)
        if len(training.batches) == 1:
            update = None
    return Upload(
        target=target,
        seq=message.seq,
        start_seq=origin.seq,
        start=start,
        training=training,
        gradient=gradient,
        update=update,
    )


def _training(view: View, message: Message, target: str) -> LocalSGD | str:
    """The local steps behind an upload, from the public configuration and the sample count if it was seen."""
    public: Mapping[str, Any] = view.hyperparameters
    size, lr = public.get("batch_size"), public.get("lr")
    if size is None or lr is None:
        return "the public configuration names no batch_size or lr"
    counts = [m for m in view.select(kind="sample_count", sender=target) if m.payload is not None]
    n = int(view.tensors(counts[-1])["n"]) if counts else None
    steps, epochs = public.get("local_steps"), public.get("local_epochs")
    if message.kind == "gradient":
        steps, epochs = 1, None
    elif steps is None and epochs is None:
        epochs = 1
    if epochs is not None and n is None:
        return "its sample count is not in view, so the number of its local steps is unknown"
    return LocalSGD(
        lr=float(lr),
        batches=schedule(n, int(size), steps=steps, epochs=epochs),
        momentum=float(public.get("momentum") or 0),
        weight_decay=float(public.get("weight_decay") or 0),
        mu=float(public.get("mu") or 0),
    )


def network(knowledge: Knowledge) -> nn.Module | str:
    """The network whose gradients are inverted; or, as text, why it is not known or not fit."""
    if knowledge.architecture is None:
        return "the architecture of the model is not known"
    # Its weights are replaced by the model in view: the generator only fills the mould.
    module = knowledge.architecture.build(torch.Generator().manual_seed(0))
    if mixes_samples(module):
        return "the model has BatchNorm, so a batch's gradient is not the mean of its images' gradients"
    return module.eval()


def together(uploads: Iterable[Upload]) -> list[list[Upload]]:
    """Uploads that can be inverted at once: from the same model, by the same steps."""
    groups: dict[tuple[object, ...], list[Upload]] = {}
    for upload in uploads:
        groups.setdefault((upload.start_seq, upload.training, upload.update is None), []).append(upload)
    return list(groups.values())


def adversary_probes(knowledge: Knowledge, generator: torch.Generator) -> Tensor:
    """Images (m, c, h, w) that stand for the clients': auxiliary ones, or noise where there are none."""
    if knowledge.architecture is None:
        raise ValueError("adversary_probes: the architecture is unknown. Ask `applicable` first.")
    noise = probe_images(knowledge.architecture.input_shape, 256, generator)
    return noise if knowledge.auxiliary is None else knowledge.auxiliary[0][:1024]


def device_of(knowledge: Knowledge) -> torch.device:
    """Where to optimise: the adversary's training device, or the CPU."""
    return knowledge.train.device if knowledge.train is not None else torch.device("cpu")


def matched_once(
    attack: str,
    config: Config,
    knowledge: Knowledge,
    group: Sequence[Upload],
    match: Callable[[torch.Generator], Matched],
) -> Matched:
    """What an attack makes of some uploads: once for all who have the same uploads in view (`fdaudit.cache`).

    Args:
        attack: its name.
        config: its settings.
        knowledge: with the network and auxiliary images.
        group: uploads that are matched together.
        match: the attack.
    """
    card = {
        "attack": attack,
        "settings": config.model_dump(mode="json"),
        "network": None if knowledge.architecture is None else knowledge.architecture.described,
        "execution": None if knowledge.train is None else knowledge.train.execution.described,
        "training": [None if u.update is None else asdict(u.training) for u in group],
        "images": [u.training.images for u in group],
    }
    known = () if knowledge.auxiliary is None else knowledge.auxiliary[:1]
    sent = [u.gradient if u.update is None else u.update for u in group]
    found = computed_once(card, [*known, *(u.start for u in group), *sent], lambda draws: vars(match(draws)))
    return Matched(**found)


def reconstruction(upload: Upload, found: Matched, i: int) -> Reconstruction:
    """The guess that row i of a match makes for an upload."""
    return Reconstruction(
        target=upload.target,
        messages=(upload.start_seq, upload.seq),
        images=found.images[i].nan_to_num(0.5).clamp(0, 1).cpu(),
        labels=found.labels[i].cpu(),
        objective=float(found.objective[i]),
        evaluations=int(found.evaluations[i]),
    )
