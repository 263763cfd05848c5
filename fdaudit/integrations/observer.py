"""Observe a federation of another framework: who sent which kind of message to whom, in which round.

An adapter translates the framework's objects: its messages into parts with tensors, its names of clients, its numbers
of rounds. Everything else is the same for all frameworks and is here.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from fdaudit.recording.recorder import RecordedMessage, Recorder

from .truth import ServerTruth, join_key

__all__ = [
    "SERVER",
    "Clients",
    "Direction",
    "Instruction",
    "ObservedMessage",
    "Observer",
    "Passage",
    "checked_inputs",
    "checked_kinds",
    "own_kind",
]

SERVER, _WORLD = "server", "world"
Direction = Literal["instruction", "reply"]
"""An instruction goes from the server to a client, a reply from a client to the server."""

_DIRECTIONS = ("instruction", "reply")
_INPUTS = ("data", "instruction")
_CLIENT = re.compile(r"client/(0|[1-9][0-9]*)")


def own_kind(framework: str, name: str) -> str:
    """Return the namespaced kind of a record that fdaudit's vocabulary does not cover: `flower/train-metrics`."""
    word = re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")[:40].rstrip("-")
    return f"{framework}/{word or 'record'}"


def checked_kinds(
    kinds: Mapping[tuple[str, str], str] | None, fixed: Iterable[str] = ()
) -> dict[tuple[str, str], str]:
    """Return the user's kinds, by name and direction.

    Raises:
        ValueError: a key is not a pair of a name and a direction, or a name in `fixed` is given another kind.
    """
    for key in kinds or {}:
        _refuse_no_pair("kinds", key)
        if key[0] in fixed:
            raise ValueError(f"kinds: the kind of {key[0]!r} follows from its protocol. Leave it out.")
    return dict(kinds or {})


def checked_inputs(
    inputs: Mapping[tuple[str, str], Sequence[str]] | None,
) -> dict[tuple[str, str], tuple[str, ...]]:
    """Return the user's declarations of inputs, by name and direction.

    Raises:
        ValueError: a declaration has a word other than `data` and `instruction`, or an instruction declares one.
    """
    declared = {}
    for key, words in (inputs or {}).items():
        _refuse_no_pair("inputs", key)
        allowed = _INPUTS if key[1] == "reply" else ()
        if isinstance(words, str) or not set(words) <= set(allowed):
            raise ValueError(
                f"inputs: {words!r} for {key!r}. A reply lists 'data', 'instruction', both or nothing; an instruction "
                "lists nothing. Leave the pair out where a message may depend on more."
            )
        declared[key] = tuple(words)
    return declared


def _refuse_no_pair(field: str, key: Any) -> None:
    if not (isinstance(key, tuple) and len(key) == 2 and key[1] in _DIRECTIONS):
        raise ValueError(
            f"{field}: {key!r} is not a pair such as ('train', 'reply'). Use {_DIRECTIONS[0]!r} or 'reply'."
        )


class Clients:
    """The clients of a record: a framework's name of a client becomes `client/N`, the same for the whole record.

    A client that `given` does not name takes the lowest free number when it first appears.

    Args:
        given: the party of clients that are known beforehand.

    Raises:
        ValueError: a party is not `client/N`, or two clients have the same.
    """

    def __init__(self, given: Mapping[Any, str] | None = None) -> None:
        self._parties: dict[Any, str] = dict(given or {})
        for party in self._parties.values():
            if not _CLIENT.fullmatch(party):
                raise ValueError(f"clients: {party!r} is no party. Write 'client/0', 'client/1', …")
        if len(set(self._parties.values())) < len(self._parties):
            raise ValueError("clients: two clients have the same party. Give each its own number.")
        self._lock = threading.Lock()

    def party(self, client: Any) -> str:
        """Return the party of a client, and number it if it is new."""
        with self._lock:
            if client not in self._parties:
                names = set(self._parties.values())
                number = 0
                while f"client/{number}" in names:
                    number += 1
                self._parties[client] = f"client/{number}"
            return self._parties[client]


@dataclass(frozen=True)
class Passage:
    """The way of a message.

    Attributes:
        sender: the sending party.
        receivers: the receiving parties.
        task: the framework's name of what it is about: a type of message, or a task.
        stage: the step of a protocol within the framework, such as secure aggregation.
        answers: numbers of the recorded messages that a reply answers.
        key: of a reply, by which a site's notes name it.
    """

    sender: str
    receivers: tuple[str, ...]
    task: str
    stage: str | None = None
    answers: tuple[int, ...] = ()
    key: str | None = None

    @property
    def direction(self) -> Direction:
        """Return `instruction` or `reply`."""
        return "instruction" if self.sender == SERVER else "reply"


@dataclass(frozen=True)
class Instruction:
    """A recorded instruction as far as its reply needs it: the receiver, the numbers of its messages, its stage."""

    party: str
    seqs: tuple[int, ...]
    stage: str | None = None


class Observer:
    """Records what a server and its clients send, for the adapter of a framework.

    Guarantees:
      * a client of the framework is the same `client/N` for the whole record, and a party of it from its first
        appearance;
      * a round opens with each instruction whose number differs from that of the instruction before;
      * an instruction without a reply is on record as `silence` when its round closes.

    Its methods hold `lock`. An adapter holds it around several that belong together.

    Args:
        framework: the first part of kinds of its own.
        directory: of the record.
        truth: the server's directory of the truth: it learns the name of each client, and the key of each reply.
        card: the file of the system's card.
        kinds: the user's kinds, by name and direction.
        inputs: the user's declarations of inputs, by name and direction.
        clients: the party of clients that are known beforehand.
        fixed: names whose kind the user cannot choose.

    Raises:
        ValueError: an argument is refused; nothing was written.
    """

    def __init__(
        self,
        framework: str,
        directory: str | Path,
        truth: str | Path | None = None,
        *,
        card: str | Path | None = None,
        kinds: Mapping[tuple[str, str], str] | None = None,
        inputs: Mapping[tuple[str, str], Sequence[str]] | None = None,
        clients: Mapping[Any, str] | None = None,
        fixed: Iterable[str] = (),
    ) -> None:
        self._framework = framework
        self._kinds, self._inputs = checked_kinds(kinds, fixed), checked_inputs(inputs)
        self._clients = Clients(clients)
        if truth is not None:
            ServerTruth.refuse(Path(truth), Path(directory))
        self._recorder = Recorder(directory, [SERVER, *(clients or {}).values()], card)
        self._truth = None if truth is None else ServerTruth(Path(truth), Path(directory))
        self.lock = threading.RLock()
        self._instructions: dict[str, Instruction] = {}
        """Instructions without a reply, by their identifier."""
        self._awaited: set[str] = set()
        """Identifiers of those whose missing reply is not on record yet."""
        self._round = -1
        self._number: Hashable = None
        self._by_hand = False

    def close(self, failed: bool = False) -> None:
        """Close the record, with the replies that never came; after a failure, leave it open."""
        if failed:
            error = RuntimeError("the federation failed")
            self._recorder.__exit__(RuntimeError, error, None)
        else:
            self.record_silence()
            self._recorder.close()
        if self._truth is not None:
            self._truth.close()

    def release(self, tensors: Mapping[str, Any], kind: str = "model_parameters") -> None:
        """Record what the server publishes: a message to `world`."""
        with self.lock:
            self.follow(None)
            self._recorder.add_parties([_WORLD])
            self._recorder.send(SERVER, _WORLD, kind, tensors)

    def hold(self, name: str, dataset: Any) -> None:
        """Write records that no client holds to the truth."""
        if self._truth is None:
            raise ValueError("truth: no directory is given for the records. Give one.")
        self._truth.hold(name, dataset)

    def party(self, client: Any) -> str:
        """Return the party of a client; the record and the truth learn of a new one at once."""
        party = self._clients.party(client)
        self._recorder.add_parties([party])
        if self._truth is not None:
            self._truth.name(party, str(client))
        return party

    # -- rounds -----------------------------------------------------------------------------------------------------

    def round(self, t: int) -> None:
        """Open round `t` of the record. From then on, the numbers of instructions are ignored."""
        with self.lock:
            self._by_hand = True
            self._open(t)

    def follow(self, number: Hashable) -> None:
        """Open the next round if an instruction has another number than the one before; None is no number."""
        with self.lock:
            if self._by_hand:
                return
            is_other = None not in (number, self._number) and number != self._number
            if self._round < 0 or is_other:
                self._open(self._round + 1)
            if number is not None:
                self._number = number

    def _open(self, t: int) -> None:
        self.record_silence()
        if self._truth is not None:
            self._truth.sync()
        self._recorder.round(t)
        self._round = t

    # -- messages ---------------------------------------------------------------------------------------------------

    def kind(self, direction: Direction, *names: str) -> str | None:
        """Return the user's kind for the first of these names that has one."""
        for name in names:
            if (name, direction) in self._kinds:
                return self._kinds[name, direction]
        return None

    def send(
        self, passage: Passage, name: str, tensors: Mapping[str, Any], kind: str | None = None
    ) -> RecordedMessage:
        """Record one message.

        Args:
            passage: its way.
            name: of the framework's record. The user may declare the message's inputs by it or by the passage's task.
            tensors: its arrays by name.
            kind: its kind; without one, the framework's own.
        """
        with self.lock:
            delivery = self._recorder.send(
                passage.sender,
                passage.receivers,
                kind or own_kind(self._framework, name),
                tensors,
                self._inputs_of(passage, name),
            )
            if self._truth is not None and passage.key is not None:
                self._truth.note_reply(delivery.seq, passage.sender, passage.key)
            return delivery

    def _inputs_of(self, passage: Passage, name: str) -> Literal["all"] | list[int | str]:
        """Return what a message was computed from, as the user declares it."""
        words = self._inputs.get((name, passage.direction))
        if words is None:
            words = self._inputs.get((passage.task, passage.direction))
        if words is None:
            return "all"
        inputs: list[int | str] = []
        if "data" in words:
            inputs.append("data")
        if "instruction" in words:
            inputs += passage.answers
        return inputs

    # -- instructions and their replies -----------------------------------------------------------------------------

    def expect(self, identifier: str, instruction: Instruction) -> None:
        """Expect a reply to an instruction."""
        with self.lock:
            self._instructions[identifier] = instruction
            self._awaited.add(identifier)

    def instruction(self, identifier: str) -> Instruction | None:
        """Return an instruction that has no reply yet."""
        return self._instructions.get(identifier)

    def reply(self, identifier: str, party: str, task: str) -> Passage:
        """Return the way of a reply, and expect none to its instruction any longer.

        Args:
            identifier: of the instruction. If none of the party has it, the reply may depend on anything.
            party: the sender.
            task: the framework's name of what the reply is about.
        """
        key = join_key(identifier)
        with self.lock:
            instruction = self._instructions.get(identifier)
            if instruction is None or instruction.party != party:
                return Passage(party, (SERVER,), task, key=key)
            del self._instructions[identifier]
            self._awaited.discard(identifier)
            return Passage(party, (SERVER,), task, instruction.stage, instruction.seqs, key)

    def record_silence(self, identifiers: Iterable[str] | None = None) -> None:
        """Record that replies did not come: to these instructions, or to all. One that comes late is recorded too."""
        with self.lock:
            missing = set(self._awaited)
            if identifiers is not None:
                missing &= set(identifiers)
            for party in sorted(self._instructions[identifier].party for identifier in missing):
                self._recorder.send(party, [SERVER], "silence", {})
            self._awaited -= missing


class ObservedMessage:
    """One message of a framework, which is on record as a message for each of its parts.

    Args:
        observer: records it.
        passage: its way.

    Attributes:
        passage: the same.
        seqs: numbers of the recorded messages.
    """

    def __init__(self, observer: Observer, passage: Passage) -> None:
        self._observer = observer
        self.passage = passage
        self.seqs: list[int] = []

    def kind(self, *names: str) -> str | None:
        """Return the user's kind for the first of these names that has one."""
        return self._observer.kind(self.passage.direction, *names)

    def send(self, name: str, tensors: Mapping[str, Any], kind: str | None = None) -> RecordedMessage:
        """Record a part: of this kind, or of the framework's own kind for a part of this name."""
        delivery = self._observer.send(self.passage, name, tensors, kind)
        self.seqs.append(delivery.seq)
        return delivery

    def end(self) -> None:
        """Record a message without parts as empty."""
        if not self.seqs:
            self.send("empty", {})
