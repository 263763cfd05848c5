"""Detectors: what a receiver could compute from a message, and from what it holds, to notice a deviation.

Guarantees:
  * a detector sees what one receiver saw, and its own records; the mark of a deviation is not among it;
  * a larger value is more suspicious, and None means that the receiver cannot compute one.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

if TYPE_CHECKING:
    from fdaudit.models import Architecture

__all__ = ["DETECTORS", "Detector", "ReceivedMessage"]

_ROWS = 4096
"""Rows of a layer, or samples of a message, that are compared with each other."""
_PARALLEL = 0.999
"""Cosine above which two rows of a layer count as equal."""
_LEAST_WIDTH = 8
"""Entries of a row below which rows of an honest layer may be parallel by chance."""
_NEAR = 1 / 255
"""Root-mean-square difference below which two samples count as one."""
_ENTRIES = 1 << 20
"""Entries of a tensor that are looked at for constants."""
_RECORDS = 64
"""Own records on which a receiver tries a model."""
_OTHERS = 2
"""Other senders' messages that have a median distance."""


@dataclass(frozen=True, kw_only=True, eq=False)
class ReceivedMessage:
    """A message as its receiver holds it, with what the receiver saw before.

    Attributes:
        tensors: of the message.
        fields: its public scalars.
        before: tensors of the message before it of the same kind from the same sender; None if there is none.
        answers: tensors of the answers, or of their mean, that the receiver itself sent last; None if it sent none.
        own: tensors of the message of this kind that the receiver itself sent last; None if it sent none.
        others: tensors of the messages of this kind from other senders in the same step of the round.
        records: (n, …) the receiver's own records; None if it holds none.
        network: what the receiver builds from a message of parameters; None if the federation trains none.
        public: (m, …) the public samples that everyone was handed; None without any.
    """

    tensors: Mapping[str, Tensor]
    fields: Mapping[str, Any] = field(default_factory=dict)
    before: Mapping[str, Tensor] | None = None
    answers: Mapping[str, Tensor] | None = None
    own: Mapping[str, Tensor] | None = None
    others: Sequence[Mapping[str, Tensor]] = ()
    records: Tensor | None = None
    network: Architecture | None = None
    public: Tensor | None = None


@dataclass(frozen=True, kw_only=True)
class Detector:
    """A detector.

    Attributes:
        words: what it measures, in a clause.
        measure: returns its value for a message, or None.
        own: whether it reads the receiver's own messages or records, so that receivers of one message differ.
        others: whether it reads other senders' messages.
    """

    words: str
    measure: Callable[[ReceivedMessage], float | None]
    own: bool = False
    others: bool = False


_DETECTORS: dict[str, Detector] = {}
_Measure = Callable[[ReceivedMessage], float | None]


def _detector(
    name: str, words: str, *, own: bool = False, others: bool = False
) -> Callable[[_Measure], _Measure]:
    """Return a decorator that lists a measure among the detectors."""

    def register(measure: _Measure) -> _Measure:
        _DETECTORS[name] = Detector(words=words, measure=measure, own=own, others=others)
        return measure

    return register


@_detector("change", "the norm of the change since the last one")
def _change(received: ReceivedMessage) -> float | None:
    """Return the L2 norm of the change since the message before."""
    if received.before is None:
        return None
    total = 0.0
    for name, tensor in received.tensors.items():
        before = received.before.get(name)
        if before is None or before.shape != tensor.shape or not tensor.is_floating_point():
            continue
        total += float((tensor.double() - before.double()).square().sum())
    return math.sqrt(total)


@_detector(
    "outlier",
    "the distance to the mean of the other senders' messages, over their median distance",
    others=True,
)
def _outlier(received: ReceivedMessage) -> float | None:
    """Return the L2 distance to the mean of the other senders' messages, over their own median distance to it."""
    shapes: dict[str, torch.Size] = {}
    for name, tensor in received.tensors.items():
        if tensor.is_floating_point():
            shapes[name] = tensor.shape

    def comparable(other: Mapping[str, Tensor]) -> bool:
        return all(name in other and other[name].shape == shape for name, shape in shapes.items())

    messages = list(filter(comparable, received.others))
    if not shapes or len(messages) < _OTHERS:
        return None
    messages.append(received.tensors)
    squares = torch.zeros(len(messages), dtype=torch.float64)
    for name in shapes:
        rows = torch.stack([message[name].double().flatten() for message in messages])
        mean_of_others = rows[:-1].mean(0)
        squares += (rows - mean_of_others).square().sum(1).cpu()
    distances = squares.sqrt()
    median = float(distances[:-1].median())
    if median == 0:
        return None
    return float(distances[-1]) / median


@_detector("few-clients", "one over the number of clients that a sum says it has, or of votes that it counts")
def _few_clients(received: ReceivedMessage) -> float | None:
    """Return one over the number of clients in a sum of updates, or of voters in counts of votes."""
    counts = received.tensors.get("counts")
    if counts is not None and counts.ndim == 2 and len(counts):
        clients = float(counts.sum(1).max())
    else:
        clients = float(len(received.fields.get("clients", ())))
    if not clients > 0:
        return None
    return 1.0 / clients


@_detector("nothing-new", "the share of values that are alike, or as the receiver had or sent them", own=True)
def _nothing_new(received: ReceivedMessage) -> float | None:
    """Return the share of entries that are a tensor's commonest value, or as in what the receiver had or sent last."""
    old, total = 0, 0
    for name, tensor in received.tensors.items():
        if name == "index" or tensor.numel() < 2:
            continue
        entries = tensor.flatten()[:_ENTRIES]
        is_old = entries == entries.mode().values
        for message in (received.before, received.own):
            same = (message or {}).get(name)
            if same is not None and same.shape == tensor.shape:
                is_old |= entries == same.flatten()[:_ENTRIES]
        old += int(is_old.sum())
        total += len(entries)
    if total == 0:
        return None
    return old / total


@_detector("equal-rows", "the share of equal rows in a layer")
def _equal_rows(received: ReceivedMessage) -> float | None:
    """Return the largest share of a layer's rows that are parallel to another row of the layer."""
    shares = []
    for tensor in received.tensors.values():
        if not tensor.is_floating_point() or tensor.ndim < 2 or tensor[0].numel() < _LEAST_WIDTH:
            continue
        rows = tensor.flatten(1).double()
        unit = nn.functional.normalize(rows[:_ROWS])
        cosines = (unit @ unit.T).fill_diagonal_(0.0)  # rows of zeros are parallel to none
        shares.append(float((cosines.amax(1) > _PARALLEL).double().mean()))
    return max(shares, default=None)


@_detector("silence", "the share of first neurons silent on the receiver's own records", own=True)
def _silence(received: ReceivedMessage) -> float | None:
    """Return the share of the first ReLU's outputs that are zero on the receiver's own records."""
    if received.records is None or received.network is None:
        return None
    module = received.network.build(torch.Generator().manual_seed(0)).eval()
    for layer in module.modules():
        if isinstance(layer, nn.ReLU):
            break
    else:
        return None
    module.load_state_dict(dict(received.tensors), strict=False)
    outputs: list[Tensor] = []
    hook = layer.register_forward_hook(lambda _, inputs, output: outputs.append(output))
    try:
        with torch.no_grad():
            module(received.records[:_RECORDS])
    finally:
        hook.remove()
    if not outputs:
        return None
    return float((outputs[0] <= 0).double().mean())


@_detector("certainty", "how certain the answers are")
def _certainty(received: ReceivedMessage) -> float | None:
    """Return 1 minus the mean entropy of the rows, over the entropy of a uniform row."""
    rows = _shares(received.tensors.get("values"))
    if rows is None or rows.shape[1] < 2:
        return None
    entropy = torch.special.entr(rows).sum(1).mean()
    return 1.0 - float(entropy) / float(torch.tensor(rows.shape[1]).double().log())


@_detector("disagreement", "the distance to the receiver's own answers", own=True)
def _disagreement(received: ReceivedMessage) -> float | None:
    """Return the mean total-variation distance to the receiver's own answers on the same samples."""
    both = _on_same_samples(received)
    if both is None:
        return None
    theirs, own = both
    return float((theirs - own).abs().sum(1).mean()) / 2


@_detector("other-classes", "the share of answers with another class than the receiver's own", own=True)
def _other_classes(received: ReceivedMessage) -> float | None:
    """Return the share of samples whose likeliest class differs from the receiver's own answer."""
    both = _on_same_samples(received)
    if both is None:
        return None
    theirs, own = both
    return float((theirs.argmax(1) != own.argmax(1)).double().mean())


def _on_same_samples(received: ReceivedMessage) -> tuple[Tensor, Tensor] | None:
    """Return the message's rows and the receiver's own (m, C) on the samples that both name; None without any."""
    if received.answers is None:
        return None
    values = [received.tensors.get("values"), received.answers.get("values")]
    classes = 0
    for value in values:
        if value is not None and value.ndim == 2:
            classes = max(classes, value.shape[1])
    theirs, own = _shares(values[0], classes), _shares(values[1], classes)
    if theirs is None or own is None or theirs.shape[1] != own.shape[1]:
        return None
    own_rows = {sample: row for row, sample in enumerate(_samples(received.answers, len(own)))}
    pairs = []
    for row, sample in enumerate(_samples(received.tensors, len(theirs))):
        if sample in own_rows:
            pairs.append((row, own_rows[sample]))
    if not pairs:
        return None
    their_rows, same_rows = torch.tensor(pairs).T
    return theirs[their_rows], own[same_rows]


def _samples(tensors: Mapping[str, Tensor], count: int) -> list[int]:
    """Return the numbers of the samples that answers are about: in order, unless `index` names them."""
    if "index" not in tensors:
        return list(range(count))
    return tensors["index"].long().tolist()


def _shares(values: Tensor | None, classes: int = 0) -> Tensor | None:
    """Return answers as class shares (n, C): classes (n,) as ones, logits through a softmax; None for masks."""
    if values is None or not len(values):
        return None
    if values.ndim == 1:
        if int(values.max()) >= classes or int(values.min()) < 0:
            return None
        return nn.functional.one_hot(values.long(), classes).double()
    if values.ndim != 2:
        return None
    rows = values.double()
    if bool((rows < 0).any()) or bool((rows.sum(1) - 1).abs().max() > 0.5):
        return rows.softmax(1)
    return rows / rows.sum(1, keepdim=True)


@_detector("repeats", "the share of samples that are repeated")
def _repeats(received: ReceivedMessage) -> float | None:
    """Return the share of samples that occur twice in the message, or in the one before it."""
    rows = _sample_rows(received.tensors)
    if rows is None or not len(rows):
        return None
    before = _sample_rows(received.before or {})
    distances = torch.cdist(rows, rows).fill_diagonal_(float("inf"))
    nearest = distances.amin(1)
    if before is not None and len(before) and before.shape[1] == rows.shape[1]:
        nearest = torch.minimum(nearest, torch.cdist(rows, before).amin(1))
    return float((nearest < _NEAR * rows.shape[1] ** 0.5).double().mean())


def _sample_rows(tensors: Mapping[str, Tensor]) -> Tensor | None:
    """Return the samples (n, d) of a message, or their numbers (n, 1)."""
    samples = tensors.get("samples", tensors.get("index"))
    if samples is None:
        return None
    return samples[:_ROWS].double().reshape(min(len(samples), _ROWS), -1)


@_detector("own-records", "the share of samples that are the receiver's own records", own=True)
def _own_records(received: ReceivedMessage) -> float | None:
    """Return the share of the samples that a message names or shows which equal a record of the receiver."""
    samples = received.tensors.get("samples")
    if samples is None and received.public is not None and "index" in received.tensors:
        samples = received.public[received.tensors["index"].long()]
    if samples is None or received.records is None or samples.shape[1:] != received.records.shape[1:]:
        return None
    own = received.records.double().flatten(1)
    theirs = samples[:_ROWS].double().flatten(1)
    near = torch.cdist(theirs, own).amin(1) < _NEAR * own.shape[1] ** 0.5
    return float(near.double().mean())


DETECTORS: Mapping[str, Detector] = MappingProxyType(dict(sorted(_DETECTORS.items())))
"""By name."""
