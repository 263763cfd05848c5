"""Utility and communication cost: accuracy, macro-F1, bytes on the wire.

Guarantees:
  * accuracy carries a Clopper-Pearson interval;
  * macro-F1 equals scikit-learn's over the classes that occur;
  * bytes are counted once for each receiver, and every message is counted under exactly one kind and role.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from fdaudit.errors import UsageError
from fdaudit.metrics._arrays import Floats, Integers, integers
from fdaudit.metrics.intervals import clopper_pearson
from fdaudit.transcript.messages import Message, role
from fdaudit.types import Figure

__all__ = [
    "WireBytes",
    "accuracy",
    "accuracy_figure",
    "bytes_figure",
    "bytes_on_wire",
    "macro_f1",
    "macro_f1_figure",
]


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
    interval = clopper_pearson(right, n, confidence)
    return Figure(
        name="accuracy",
        value=right / n,
        unit="fraction",
        low=interval.low,
        high=interval.high,
        confidence=confidence,
        method=interval.method,
        n=n,
    )


def _confusion(predicted: ArrayLike, true: ArrayLike) -> Floats:
    """Return counts (true, predicted) over the classes that occur in either."""
    guess, truth = _labels(predicted, true)
    classes, code = np.unique(np.concatenate([truth, guess]), return_inverse=True)
    size = len(classes)
    flat = np.bincount(code[: len(truth)] * size + code[len(truth) :], minlength=size * size)
    return flat.reshape(size, size).astype(np.float64)


def _macro_f1(confusion: Floats) -> Floats:
    """Return the mean F1 of confusion counts (..., C, C) over the classes that occur in them."""
    right = np.diagonal(confusion, axis1=-2, axis2=-1)
    either = confusion.sum(-1) + confusion.sum(-2)
    return np.asarray((2 * right / np.maximum(either, 1)).sum(-1) / (either > 0).sum(-1))


def macro_f1(predicted: ArrayLike, true: ArrayLike) -> float:
    """Return the unweighted mean of the F1 of every class that occurs among true or predicted labels (n,).

    Raises:
        UsageError: there is no label, or lengths differ.
    """
    return float(_macro_f1(_confusion(predicted, true)))


def macro_f1_figure(
    predicted: ArrayLike,
    true: ArrayLike,
    generator: np.random.Generator,
    *,
    confidence: float = 0.95,
    resamples: int = 2000,
) -> Figure:
    """Return macro-F1 with a percentile bootstrap interval over records.

    Raises:
        UsageError: there is no label, or lengths differ.
    """
    confusion = _confusion(predicted, true)
    n = int(confusion.sum())
    # To resample records is to redraw the confusion counts.
    drawn = generator.multinomial(n, confusion.ravel() / n, size=resamples)
    values = _macro_f1(drawn.reshape(resamples, *confusion.shape).astype(np.float64))
    tail = (1 - confidence) / 2
    low, high = (float(q) for q in np.quantile(values, [tail, 1 - tail]))
    varies = low < high
    return Figure(
        name="macro_f1",
        value=float(_macro_f1(confusion)),
        unit="fraction",
        low=low if varies else None,
        high=high if varies else None,
        confidence=confidence if varies else None,
        method="bootstrap (percentile)" if varies else "",
        n=n,
        note="" if varies else "no interval: resampling changes nothing",
    )


@dataclass(frozen=True, kw_only=True)
class WireBytes:
    """The traffic of one role in one kind of message.

    Attributes:
        kind: the message kind.
        sender: the senders' role, for example `client`.
        messages: how many messages.
        bytes: encoded bytes delivered: each message's bytes times its receivers.
    """

    kind: str
    sender: str
    messages: int
    bytes: int


def bytes_on_wire(messages: Iterable[Message]) -> tuple[WireBytes, ...]:
    """Return traffic by kind and sender role, sorted.

    A message to three receivers counts three times (unicast; a broadcast medium would send it once). A message without
    receivers (a release inside a party) counts as a message of no bytes. Bytes are those of the encoded tensors,
    without framing.
    """
    counts: dict[tuple[str, str], list[int]] = {}
    for message in messages:
        entry = counts.setdefault((message.kind, role(message.sender)), [0, 0])
        entry[0] += 1
        entry[1] += message.bytes_on_wire * len(message.receivers)
    return tuple(
        WireBytes(kind=kind, sender=sender, messages=n, bytes=total)
        for (kind, sender), (n, total) in sorted(counts.items())
    )


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
