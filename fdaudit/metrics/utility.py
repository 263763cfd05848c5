"""Utility and communication cost: accuracy, macro-F1, bytes on the wire.

Guarantees:
  * accuracy carries a Clopper-Pearson interval;
  * macro-F1 equals scikit-learn's over the classes that occur;
  * a model is reported as near chance if its interval reaches the accuracy of a constant answer;
  * bytes are counted once for each receiver, and every message is counted under exactly one kind and role.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from fdaudit.errors import UsageError
from fdaudit.metrics._arrays import Integers, integers
from fdaudit.metrics.intervals import share_figure
from fdaudit.result import CurvePoint, FinalUtility, WireRow
from fdaudit.transcript.messages import Message, role
from fdaudit.types import Figure

__all__ = [
    "Chance",
    "accuracy",
    "accuracy_figure",
    "bytes_figure",
    "bytes_on_wire",
    "constant_accuracy",
    "macro_f1",
    "near_chance",
]

_FALL = 0.1
"""A model that was better than at the end by more than this has got worse."""


def _labels(predicted: ArrayLike, true: ArrayLike) -> tuple[Integers, Integers]:
    truth = integers(true, "true")
    if truth.size == 0:
        raise UsageError("true", 0, "is no label at all", "Evaluate on at least one record.")
    return integers(predicted, "predicted", len(truth)), truth


def accuracy(predicted: ArrayLike, true: ArrayLike) -> float:
    """Return the share of labels (n,) predicted correctly.

    Raises:
        UsageError: there is no label, or lengths differ.
    """
    guess, truth = _labels(predicted, true)
    return float((guess == truth).mean())


def accuracy_figure(predicted: ArrayLike, true: ArrayLike, *, confidence: float = 0.95) -> Figure:
    """Return the accuracy with a Clopper-Pearson interval.

    Raises:
        UsageError: there is no label, or lengths differ.
    """
    guess, truth = _labels(predicted, true)
    right, n = int((guess == truth).sum()), len(truth)
    return share_figure("accuracy", right, n, confidence)


class Chance(NamedTuple):
    """The utility of an answer that has learnt nothing."""

    level: float
    """Its value."""
    answer: str
    """The answer, as in "guessing"."""


def constant_accuracy(labels: ArrayLike) -> Chance:
    """Return the accuracy of always naming the most frequent class among labels (n,)."""
    counts = np.unique(integers(labels, "labels"), return_counts=True)[1]
    return Chance(float(counts.max() / counts.sum()), "always naming the most frequent class")


def near_chance(
    final: Sequence[FinalUtility],
    curve: Sequence[CurvePoint],
    line: str,
    chance: Chance,
) -> list[str]:
    """Return a warning if a line's final models are near chance, in plain words; no warning if none is.

    A model is near chance if the lower end of its interval is at most the chance level.

    Args:
        final: utility of all final models.
        curve: utility by round.
        line: the protocol's name, or a reference line's.
        chance: the chance level on the test records.
    """
    own, of_server = [], []
    for row in final:
        if row.line != line or row.figure.value is None:
            continue
        own.append(row)
        if row.party == "server":
            of_server.append(row)
    rows = of_server or own
    low = []
    for row in rows:
        lower_end = row.figure.value if row.figure.low is None else row.figure.low
        if (lower_end or 0.0) <= chance.level:
            low.append(row)
    if not low:
        return []
    worst = min(low, key=lambda row: row.figure.value or 0.0)
    value = worst.figure.value or 0.0
    who = f"The model of {worst.party} ends"
    if len(rows) > 1:
        who = f"{len(low)} of {len(rows)} models end"
    at = f"{worst.party} has {value:.1%} on test records, and {chance.answer} reaches {chance.level:.1%}"
    points = []
    for point in curve:
        if point.line == line and point.party == worst.party:
            points.append(point)
    best = max(points, key=lambda point: point.value, default=None)
    cause = "Training diverged (try a smaller learning rate), was too short, or was drowned in noise."
    if best is not None and best.value > value + _FALL:
        cause = (
            f"It had {best.value:.1%} after round {best.round}: training diverged or was drowned in noise."
        )
    return [f"{who} near chance: {at}. {cause}"]


def macro_f1(predicted: ArrayLike, true: ArrayLike) -> float:
    """Return the unweighted mean of the F1 of every class that occurs among true or predicted labels (n,).

    Raises:
        UsageError: there is no label, or lengths differ.
    """
    guess, truth = _labels(predicted, true)
    classes, code = np.unique(np.concatenate([truth, guess]), return_inverse=True)
    true_code, guess_code = np.split(code, 2)
    right = np.bincount(true_code[true_code == guess_code], minlength=len(classes))
    # F1 = 2 TP / (2 TP + FP + FN): the denominator counts a class among true and predicted labels alike.
    return float((2 * right / np.bincount(code)).mean())


def bytes_on_wire(messages: Iterable[Message]) -> tuple[WireRow, ...]:
    """Return traffic by kind and sender role, sorted: encoded bytes delivered.

    A message to three receivers counts three times (unicast; a broadcast medium would send it once). A message without
    receivers (a release inside a party) counts as a message of no bytes. Bytes are those of the encoded tensors,
    without framing.
    """
    counts: dict[tuple[str, str], list[int]] = {}
    for message in messages:
        entry = counts.setdefault((message.kind, role(message.sender)), [0, 0])
        entry[0] += 1
        entry[1] += message.bytes_on_wire * len(message.receivers)
    rows = []
    for (kind, sender), (n, total) in sorted(counts.items()):
        rows.append(WireRow(kind=kind, sender_role=sender, messages=n, bytes=total))
    return tuple(rows)


def bytes_figure(messages: Iterable[Message]) -> Figure:
    """Return all bytes on the wire; the number is exact, so it has no interval."""
    table = bytes_on_wire(messages)
    return Figure(
        name="bytes_on_wire",
        value=float(sum(row.bytes for row in table)),
        unit="bytes",
        n=sum(row.messages for row in table),
        note="n counts messages; a message counts once for each receiver",
    )
