"""Matches of an upload: the stand-ins that they start with, their cache, and the guesses made of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from fdaudit.goals.reconstruction import Reconstruction
from fdaudit.goals.row_reconstruction import RowReconstruction
from fdaudit.storage.cache import computed_once

from .engine import Matched
from .gradients import PLAIN
from .labels import probe_images
from .uploads import Upload

if TYPE_CHECKING:
    from fdaudit.adversary.knowledge import Knowledge

__all__ = ["adversary_probes", "matched_once", "reconstruction", "row_reconstruction"]


def adversary_probes(knowledge: Knowledge, generator: torch.Generator) -> Tensor:
    """Return images (m, c, h, w) that stand in for the clients': auxiliary ones, or noise without any."""
    if knowledge.architecture is None:
        raise ValueError("adversary_probes: the architecture is unknown. Ask `applicable` first.")
    noise = probe_images(knowledge.architecture.input_shape, 256, generator)
    if knowledge.auxiliary is None:
        return noise
    return knowledge.auxiliary[0][:1024]


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
    }
    if upload.training.step != PLAIN:
        card["step"] = step
    auxiliary = knowledge.auxiliary or ()
    matched = computed_once(card, [*auxiliary, upload.start, upload.sent], lambda draws: vars(match(draws)))
    return Matched(**matched)


def reconstruction(upload: Upload, match: Matched) -> Reconstruction:
    """Return the guess of images from an upload's match, of a single problem."""
    images = match.images[0].nan_to_num(0.5).clamp(0, 1).cpu()
    return Reconstruction(images=images, **_described(upload, match))


def row_reconstruction(upload: Upload, match: Matched) -> RowReconstruction:
    """Return the guess of a table's rows from an upload's match, of a single problem."""
    return RowReconstruction(rows=match.images[0].nan_to_num(0.0).cpu(), **_described(upload, match))


def _described(upload: Upload, match: Matched) -> dict[str, Any]:
    """Return the fields that both guesses have."""
    return {
        "target": upload.target,
        "messages": upload.messages,
        "labels": match.labels[0].cpu(),
        "objective": float(match.objective[0]),
        "evaluations": int(match.evaluations[0]),
        "note": upload.note,
    }
