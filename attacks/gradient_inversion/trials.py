"""Auxiliary uploads like a victim's, at the same model and under the same defences, to choose settings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from fdaudit.models.network import moved
from fdaudit.storage.cache import computed_once

from .._uploads import clients_of
from .class_prior import ClassPrior
from .composition import batch_like, labels_behind
from .defended import defended
from .gradients import GradientMap, flatten
from .readings import find_readings
from .statistics import BatchStatistics, shown_statistics
from .tuning import BATCHES, RECORDS, SearchSettings, TuningTrial, choose
from .updates import SMOOTHING, ClientSteps, UpdateMap, schedule
from .uploads import Upload

if TYPE_CHECKING:
    from fdaudit.adversary.knowledge import Knowledge
    from fdaudit.adversary.view import View

__all__ = ["auxiliary_trial", "compositions", "peers", "trained_alike", "tuned"]


def tuned(
    given: Mapping[str, Any],
    upload: Upload,
    labels: Tensor,
    module: nn.Module,
    knowledge: Knowledge,
    *,
    iterations: int,
    one_step: bool,
    signed: bool,
    statistics: float,
    device: torch.device,
) -> SearchSettings:
    """Return the settings for uploads like this one, chosen once for all adversaries with such uploads in view.

    Args:
        given: the user's settings, which are kept.
        upload: an upload; its model, steps and defences count.
        labels: (K, n) classes of the records in each auxiliary batch.
        module: the architecture.
        knowledge: with auxiliary records.
        iterations: of a long trial.
        one_step: whether the attack reads updates as one step.
        signed: whether its steps follow the gradient's sign.
        statistics: weight of the distance to batch statistics, where the upload carries them.
        device: where to optimise.
    """
    auxiliary = knowledge.auxiliary
    if auxiliary is None or SearchSettings().tensors().keys() <= given.keys():
        return SearchSettings(**given)
    training = trained_alike(upload.training, labels.shape[1])

    def make(generator: torch.Generator) -> dict[str, Tensor]:
        trial = auxiliary_trial(
            upload,
            labels,
            module,
            auxiliary,
            generator,
            one_step=one_step,
            statistics=statistics,
            device=device,
        )
        settings = choose(given, replace(trial, signed=signed), iterations, generator)
        return settings.tensors()

    card = {
        "tuned": dict(given),
        **knowledge.described,
        "iterations": iterations,
        "signed": signed,
        "statistics": statistics if shown_statistics(upload, module) else 0.0,
        "one_step": one_step,
        "updates": upload.update is not None,
        "training": asdict(training),
        "scale": upload.scale,
        "defenses": [dict(d) for d in upload.defenses],
        "labels": labels.tolist(),
    }
    if upload.repeats > 1:
        card["repeats"] = upload.repeats
    return SearchSettings.of(computed_once(card, [*auxiliary, upload.start], make))


def peers(view: View, upload: Upload, round: int, max_images: int) -> list[Upload]:
    """Return the first clients' uploads, at most `BATCHES`, that were made like this one; at least this upload.

    They include clients that are not victims, so adversaries who see the same uploads choose the same settings.
    """
    uploads = list[Upload]()
    for client in clients_of(view):
        readings = find_readings(view, client, round, max_images)
        if not isinstance(readings, str):
            alike = [u for u in readings if _conditions(u) == _conditions(upload)]
            uploads += alike[:1]
        if len(uploads) == BATCHES:
            break
    return uploads or [upload]


def compositions(
    uploads: Sequence[Upload],
    module: nn.Module,
    probes: Tensor,
    auxiliary: tuple[Tensor, Tensor],
    records: int = RECORDS,
) -> Tensor:
    """Return labels (K, n) of auxiliary batches: K of the uploads' own, in turn, until there are `records` records."""
    n = min(uploads[0].training.images, records)
    count = max(1, min(BATCHES, records // n))
    labels = []
    for k in range(count):
        upload = uploads[k % len(uploads)]
        labels.append(labels_behind(upload, module, n, probes, auxiliary))
    return torch.stack(labels)


def auxiliary_trial(
    upload: Upload,
    labels: Tensor,
    module: nn.Module,
    auxiliary: tuple[Tensor, Tensor],
    generator: torch.Generator,
    *,
    one_step: bool = False,
    statistics: float = 0.0,
    device: torch.device | None = None,
) -> TuningTrial:
    """Return uploads that clients with auxiliary records would have sent in the victim's place.

    Args:
        upload: the victim's.
        labels: (K, n) classes of the records in each batch.
        module: the architecture.
        auxiliary: records (x, y).
        generator: draws records and the noise of defences.
        one_step: read updates of several steps as one.
        statistics: weight of the distance to batch statistics, where the upload carries them.
        device: where to optimise; default: the CPU.
    """
    device = device or torch.device("cpu")
    all_x, all_y = auxiliary
    rows = torch.stack([batch_like(row, all_y, generator) for row in labels])
    x, y = all_x[rows].to(device), all_y[rows].to(device)
    training = trained_alike(upload.training, labels.shape[1])
    module, start = module.to(device), moved(upload.start, device)
    gradient = GradientMap(module, start, step=training.step)
    # The clients' uploads follow their steps exactly. The search simulates what the attack would: a gradient, smoothed
    # steps, or an update's mean gradient.
    simulate: GradientMap | UpdateMap = gradient
    if upload.update is None:
        values = gradient(x, y).detach()
    else:
        values = UpdateMap(module, start, training)(x, y).detach()
        if not one_step:
            simulate = UpdateMap(module, start, training, smoothing=SMOOTHING)
    released = [defended(values / upload.scale, upload.defenses, generator) for _ in range(upload.repeats)]
    target = torch.stack(released).mean(0) * upload.scale
    if upload.update is not None and one_step:
        target = -target / training.gain - training.weight_decay * flatten(start, gradient.names)
    order = y.argsort(1)
    if simulate is not gradient:  # across steps the order of labels is unknown
        order = torch.rand(y.shape, generator=generator).argsort(1).to(device)
    penalty = None
    shown = shown_statistics(upload, module) if statistics else {}
    if shown:
        penalty = BatchStatistics.of(module, start, x, shown).weighted(statistics)
    others = torch.ones(len(all_y), dtype=torch.bool)
    others[rows] = False
    rest = auxiliary
    if others.any():
        rest = (all_x[others], all_y[others])
    return TuningTrial(
        simulate=simulate,
        target=target,
        x=x,
        y=y.gather(1, order),
        prior=ClassPrior.of(rest, int(all_y.max()) + 1).to(device),
        statistics=penalty,
    )


def trained_alike(training: ClientSteps, n: int) -> ClientSteps:
    """Return the local steps of a client with n records under the same configuration."""
    if n == training.images:
        return training
    size = len(training.batches[0])
    if len(training.batches) == 1:
        size = max(size, n)
    passes = max(1, round(sum(map(len, training.batches)) / training.images))
    return replace(training, batches=schedule(n, size, epochs=passes))


def _conditions(upload: Upload) -> tuple[object, ...]:
    """Return what uploads from the same model, by the same steps and under the same defences, have in common."""
    steps = (upload.start_seq, upload.training, upload.update is None)
    return (*steps, upload.scale, upload.guessed, list(upload.defenses), upload.repeats)
