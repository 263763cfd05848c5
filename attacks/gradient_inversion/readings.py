"""Readings of an upload: one for each possible number of records, and one for each member of a coalition."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from .composition import batch_like, labels_behind
from .gradients import flatten
from .updates import UpdateMap
from .uploads import UNCOUNTED, Upload, read_upload, sample_count, sent_from

if TYPE_CHECKING:
    from fdaudit.adversary.view import View

__all__ = ["COUNTS", "auxiliary_distance", "find_readings", "likeliest", "relative_distance"]

COUNTS = (8, 16, 32, 64)
"""Numbers of records to try if the sample count is not in view."""

_DRAWS = 2
"""Auxiliary clients that stand in for a victim with one number of records."""
_CLOSE = 1.15
"""A second reading is tried too if its distance is at most this many times the best one's."""


def find_readings(view: View, target: str, round: int, max_images: int) -> list[Upload] | str:
    """Return every reading of a client's upload that is suitable for inversion, or the reason why there is none.

    A coalition reads the upload as a whole and as each member would alone, so it finds everything that a member finds.
    Equal readings are listed once. Guessed numbers of records are left out if the coalition knows the number.
    """
    readings: dict[object, Upload] = {}  # equal ones once
    reasons = list[str]()
    views = [view]
    if len(view.members) > 1:
        for member in view.members:
            messages = [m for m in view.messages if member in m.parties()]
            views.append(replace(view, messages=tuple(messages)))
    for one_view in views:
        own = _readings(one_view, target, round, max_images)
        if isinstance(own, str):
            reasons.append(own)
            continue
        for reading in own:
            readings.setdefault((reading.seq, reading.start_seq, reading.training), reading)
    counted = [reading for reading in readings.values() if not reading.guessed]
    return counted or list(readings.values()) or reasons[0]


def likeliest(readings: Sequence[Upload], distances: Sequence[float]) -> list[Upload]:
    """Return the readings worth an inversion: the closest, and the second if it is nearly as close."""
    order = sorted(range(len(readings)), key=distances.__getitem__)[:2]
    likely = []
    for i in order:
        if distances[i] <= _CLOSE * distances[order[0]]:
            reading = readings[i]
            likely.append(reading)
    return likely


def relative_distance(simulated: Tensor, sent: Tensor) -> float:
    """Return ‖simulated - sent‖² / ‖sent‖² of two vectors (P,). Unlike a cosine it depends on their lengths."""
    return float((simulated - sent).square().sum() / sent.square().sum().clamp_min(1e-30))


def auxiliary_distance(
    upload: Upload,
    module: nn.Module,
    auxiliary: tuple[Tensor, Tensor],
    probes: Tensor,
    generator: torch.Generator,
) -> float:
    """Return the mean relative distance of auxiliary clients' updates, or gradients, from the one that was sent.

    An auxiliary client has the reading's number of records and the upload's classes, and trains as the victim did. A
    closer update makes the reading more likely. Updates are compared with their length, which grows with the number of
    steps.

    Args:
        upload: the reading.
        module: the architecture.
        auxiliary: records (x, y).
        probes: (m, c, h, w) images that stand in for the clients'.
        generator: draws auxiliary records.
    """
    labels = labels_behind(upload, module, upload.training.images, probes, auxiliary)
    draws = []
    for _ in range(_DRAWS):
        draw = batch_like(labels, auxiliary[1], generator)
        draws.append(draw)
    rows = torch.stack(draws)
    simulate = UpdateMap(module, upload.start, upload.training)
    target = flatten(upload.sent, simulate.names)
    with torch.no_grad():
        simulated = simulate(auxiliary[0][rows], auxiliary[1][rows])
    if upload.update is None:
        simulated = -simulated / upload.training.gain
    total: float = 0
    for one in simulated:
        total += relative_distance(one, target)
    return total / _DRAWS


def _readings(view: View, target: str, round: int, max_images: int) -> list[Upload] | str:
    """Return the readings of one view: a single one if the number of records is known or does not matter."""
    messages = sent_from(view, target, round)
    if isinstance(messages, str):
        return messages
    reading = read_upload(view, *messages, target, sample_count(view, target), max_images, adaptive=True)
    if isinstance(reading, Upload):
        return [reading]
    if reading != UNCOUNTED:
        return reading
    guesses = []
    for n in COUNTS:
        if n <= max_images:
            guess = read_upload(view, *messages, target, n, max_images, adaptive=True)
            if isinstance(guess, Upload):
                guesses.append(replace(guess, guessed=True))
    return guesses or f"{UNCOUNTED}; max_images allows none of the numbers that are tried"
