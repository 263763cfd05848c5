"""Whether receivers could have noticed a deviation: its detectors on crafted messages, and on those of the honest twin.

Guarantees:
  * detectors read messages without the mark of the deviation;
  * the honest messages are the twin's: those of the run are the same before its first crafted one, and what comes later
    follows from that one;
  * a threshold is learnt on the first half of the honest messages, and its false alarms are counted on the other half;
  * a detector without enough honest messages has a reason and no rate.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

from fdaudit.errors import SpecError, nearest
from fdaudit.kinds.vocabulary import ANSWERS
from fdaudit.result import Noticed
from fdaudit.transcript.messages import DEVIATION, Message
from fdaudit.twin.detectors import DETECTORS, ReceivedMessage

if TYPE_CHECKING:
    from torch import Tensor

    from fdaudit.adversary.view import View
    from fdaudit.planning.case import Case
    from fdaudit.scoring.run_directory import RunDirectory

__all__ = ["noticed", "refuse_unknown_detectors"]

_LEAST = 8
"""Fewest honest messages that give a rate."""
_ANSWERS = (*ANSWERS, "ensemble_labels", "class_prototypes")
"""Kinds of a receiver's own answers: a client's on samples, a server's mean of them, or either's for each class."""
_KEPT = 4
"""Messages whose tensors are kept in memory."""
_OTHERS = 32
"""Messages of other senders that one is compared with at most, the first ones."""
_WORLD = "world"
"""Receives what is published, and holds nothing to compare it with."""


def refuse_unknown_detectors(case: Case) -> None:
    """Refuse a deviation whose card names a detector that does not exist.

    Raises:
        SpecError: one does.
    """
    for number, entry in enumerate(case.spec.deviations):
        for detector in case.deviants[entry.party].deviation.card.detectors:
            if detector not in DETECTORS:
                problem = f"names the unknown detector {detector!r}"
                raise SpecError(
                    f"deviations.{number}.name", entry.name, problem, nearest(detector, DETECTORS)
                )


def noticed(active: RunDirectory, honest: RunDirectory) -> Iterator[Noticed]:
    """Yield how well each detector of a run's deviations tells crafted messages from those of its honest twin.

    Args:
        active: the run.
        honest: its twin.
    """
    for party, deviant in active.case.deviants.items():
        card = deviant.deviation.card
        for kind in card.changes:
            crafted: list[Message] = []
            receivers = set[str]()
            for message in _sent(active, party, kind):
                if DEVIATION in message.fields:
                    crafted.append(message)
                    receivers.update(message.receivers)
            receivers.discard(_WORLD)
            alike: list[Message] = []
            for message in _sent(honest, party, kind):
                if not receivers.isdisjoint(message.receivers):
                    alike.append(message)
            if not receivers:
                continue
            suspected = _values(active, crafted, receivers, card.detectors)
            trusted = _values(honest, alike, receivers, card.detectors)
            for detector in card.detectors:
                outcome = Noticed(
                    party=party,
                    deviation=card.name,
                    kind=kind,
                    detector=detector,
                    of_crafted=len(crafted),
                )
                values = [value for value in trusted[detector] if value is not None]
                yield _judged(outcome, values, suspected[detector])


def _sent(run: RunDirectory, party: str, kind: str) -> Iterator[Message]:
    """Yield a party's messages of one kind, in order."""
    for message in run.messages:
        if (message.sender, message.kind) == (party, kind):
            yield message


def _judged(outcome: Noticed, honest: Sequence[float], crafted: Sequence[float | None]) -> Noticed:
    """Return the counts of alarms by a threshold that the first half of the honest values gives."""
    if len(honest) < _LEAST:
        reason = f"it has a value for {len(honest)} honest messages, and a rate needs {_LEAST}"
        return outcome.model_copy(update={"reason": reason})
    if all(value is None for value in crafted):
        return outcome.model_copy(update={"reason": "it has a value for no crafted message"})
    first, second = honest[: len(honest) // 2], honest[len(honest) // 2 :]
    threshold = max(first)
    return outcome.model_copy(
        update={
            "learnt_on": len(first),
            "threshold": threshold,
            "alarms": sum(value > threshold for value in second),
            "of_honest": len(second),
            "caught": sum(value is not None and value > threshold for value in crafted),
        }
    )


def _values(
    run: RunDirectory, messages: Sequence[Message], names: set[str], detectors: Sequence[str]
) -> Mapping[str, list[float | None]]:
    """Return the value of each detector for each message: the largest of its receivers', or None."""
    record = _MessageTensors()
    parties = {name: _Receiver(run, name, record) for name in sorted(names)}
    values: dict[str, list[float | None]] = {detector: [] for detector in detectors}
    for message in messages:
        receivers = [parties[name] for name in message.receivers if name in names]
        of_message = _of_message(message, receivers, detectors)
        for detector in detectors:
            values[detector].append(max(of_message[detector], default=None))
    return values


def _of_message(
    message: Message, receivers: Sequence[_Receiver], detectors: Sequence[str]
) -> Mapping[str, list[float]]:
    """Return the values that receivers compute for one message; one that is the same for all is computed once."""
    values: dict[str, list[float]] = {detector: [] for detector in detectors}
    computed = set[tuple[str, int]]()
    if message.payload is None:
        return values
    others = any(DETECTORS[name].others for name in detectors)
    for receiver in receivers:
        received = receiver.received(message.seq, others)
        for name in detectors:
            of_all = (name, receiver.before(message.seq))
            if not DETECTORS[name].own and of_all in computed:
                continue
            computed.add(of_all)
            value = DETECTORS[name].measure(received)
            if value is not None:
                values[name].append(value)
    return values


class _MessageTensors:
    """The tensors of a run's messages; the last ones that were read are kept, since many receivers get the same."""

    def __init__(self) -> None:
        self._kept: dict[int, Mapping[str, Tensor]] = {}

    def tensors(self, view: View, message: Message) -> Mapping[str, Tensor]:
        """Return the tensors of a message of a view."""
        tensors = self._kept.pop(message.seq, None)
        if tensors is None:
            tensors = view.tensors(message)
        self._kept[message.seq] = tensors  # the last one used is the last to go
        if len(self._kept) > _KEPT:
            del self._kept[next(iter(self._kept))]
        return tensors


class _Receiver:
    """What one receiver of a run saw and holds.

    Args:
        run: the run.
        name: the receiver.
        record: the run's tensors.
    """

    def __init__(self, run: RunDirectory, name: str, record: _MessageTensors) -> None:
        view = run.view(name)
        self._view = replace(view, messages=tuple(map(_unmarked, view.messages)))
        self._record, self._network = record, run.case.named_networks.of(name)
        self._public = run.case.public if len(run.case.public) else None
        self._records: Tensor | None = None
        if name in self._view.own_data:
            self._records, _ = self._view.own_data[name]
        self._seen: dict[int, _SeenMessage] = {}
        self._alike: dict[tuple[str, int, int], list[Message]] = {}
        last: dict[tuple[str, str], Message] = {}  # by kind and sender
        answers: Message | None = None
        for message in self._view.messages:
            stream = (message.kind, message.sender)
            own = last.get((message.kind, name))
            self._seen[message.seq] = _SeenMessage(message, last.get(stream), answers, own)
            last[stream] = message
            self._alike.setdefault(_turn(message), []).append(message)
            if message.sender == name and message.kind in _ANSWERS and message.payload is not None:
                answers = message

    def before(self, seq: int) -> int:
        """Return the number of the message before one, of the same kind from the same sender; -1 if there is none."""
        before = self._seen[seq].before
        if before is None:
            return -1
        return before.seq

    def received(self, seq: int, others: bool) -> ReceivedMessage:
        """Return a message as this party holds it, with those of other senders if they are asked for."""
        message, before, answers, own = self._seen[seq]
        from_others: list[Message] = []
        if others:
            for other in self._alike[_turn(message)]:
                if other.sender != message.sender and other.payload:
                    from_others.append(other)
        of_model = message.kind == "model_parameters"
        return ReceivedMessage(
            tensors=self._record.tensors(self._view, message),
            fields=message.fields,
            before=self._tensors(before),
            answers=self._tensors(answers),
            own=self._tensors(own),
            others=[self._record.tensors(self._view, other) for other in from_others[:_OTHERS]],
            records=self._records,
            network=self._network if of_model else None,
            public=self._public,
        )

    def _tensors(self, message: Message | None) -> Mapping[str, Tensor] | None:
        if message is None or message.payload is None:
            return None
        return self._record.tensors(self._view, message)


class _SeenMessage(NamedTuple):
    """A message that a receiver saw, the one before it in its stream, and the receiver's own last messages.

    Attributes:
        answers: answers of any kind, or the mean of clients'.
        own: a message of this kind.
    """

    message: Message
    before: Message | None
    answers: Message | None
    own: Message | None


def _turn(message: Message) -> tuple[str, int, int]:
    """Return what the messages of several senders share that are sent in one step of a round."""
    return message.kind, message.round, message.step


def _unmarked(message: Message) -> Message:
    """Return a message without the mark of a deviation."""
    if DEVIATION not in message.fields:
        return message
    fields = dict(message.fields)
    del fields[DEVIATION]
    return replace(message, fields=fields)
