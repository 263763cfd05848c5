"""The rules that every adapter follows: kinds and inputs of messages, numbers of clients, rounds, silence."""

from __future__ import annotations

import hashlib
import re
import threading
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal
from urllib.parse import quote

import numpy as np
from numpy.typing import NDArray

from fdaudit.recording.recorder import RecordedMessage, Recorder, is_name

from .truth import ServerTruth

__all__ = [
    "SERVER",
    "Clients",
    "Direction",
    "Exchange",
    "Instruction",
    "Passage",
    "Tensors",
    "as_tensors",
    "checked_inputs",
    "checked_kinds",
    "own_kind",
    "safe_name",
]

SERVER, _WORLD = "server", "world"
Direction = Literal["instruction", "reply"]
"""An instruction goes from the server to a client, a reply from a client to the server."""

Tensors = dict[str, NDArray[Any]]

_DIRECTIONS = ("instruction", "reply")
_INPUTS = ("data", "instruction")
_LONGEST = 400
"""Most characters of a name that is kept as it is; a record accepts longer ones, which leaves room for an ending."""
_SPECIAL = re.compile(r".*:(bytes|codes|grid|layout|lengths|name)|__metadata__", re.DOTALL)
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
        if not (isinstance(key, tuple) and len(key) == 2 and key[1] in _DIRECTIONS):
            raise ValueError(
                f"kinds: {key!r} is not a pair such as ('train', 'reply'). Use {_DIRECTIONS[0]!r} or 'reply'."
            )
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
    for key, words in (inputs or {}).items():
        if not (isinstance(key, tuple) and len(key) == 2 and key[1] in _DIRECTIONS):
            raise ValueError(
                f"inputs: {key!r} is not a pair such as ('train', 'reply'). Use {_DIRECTIONS[0]!r} or 'reply'."
            )
        if isinstance(words, str) or not set(words) <= set(_INPUTS if key[1] == "reply" else ()):
            raise ValueError(
                f"inputs: {words!r} for {key!r}. A reply lists 'data', 'instruction', both or nothing; an instruction "
                "lists nothing. Leave the pair out where a message may depend on more."
            )
    return {key: tuple(words) for key, words in (inputs or {}).items()}


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
                number = next(n for n in range(len(names) + 1) if f"client/{n}" not in names)
                self._parties[client] = f"client/{number}"
            return self._parties[client]

    def seen(self) -> dict[str, str]:
        """Return the framework's name of each party."""
        with self._lock:
            return {party: str(client) for client, party in self._parties.items()}


@dataclass(frozen=True)
class Instruction:
    """A recorded instruction as far as its reply needs it: the receiver, and the numbers of its messages."""

    party: str
    seqs: tuple[int, ...]


@dataclass(frozen=True)
class Passage:
    """The way of a message: sender, receivers, the messages that a reply answers, and its key for the truth."""

    sender: str
    receivers: tuple[str, ...]
    answers: tuple[int, ...] = ()
    reply: str | None = None

    @property
    def direction(self) -> Direction:
        """Return `instruction` or `reply`."""
        return "instruction" if self.sender == SERVER else "reply"


class Exchange:
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
        self.clients = Clients(clients)
        if truth is not None:
            ServerTruth.refuse(Path(truth), Path(directory))
        self._recorder = Recorder(directory, [SERVER, *(clients or {}).values()], card)
        self._truth = None if truth is None else ServerTruth(Path(truth), Path(directory))
        self.lock = threading.RLock()
        self._sent: dict[str, Instruction] = {}
        """Instructions without a reply, by their identifier."""
        self._awaited: set[str] = set()
        """Identifiers in `_sent` whose missing reply is not on record yet."""
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
        party = self.clients.party(client)
        self._recorder.add_parties([party])
        if self._truth is not None:
            self._truth.name(party, str(client))
        return party

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
            if self._round < 0 or (None not in (number, self._number) and number != self._number):
                self._open(self._round + 1)
            if number is not None:
                self._number = number

    def _open(self, t: int) -> None:
        self.record_silence()
        if self._truth is not None:
            self._truth.sync()
        self._recorder.round(t)
        self._round = t

    def kind(self, direction: Direction, *names: str) -> str | None:
        """Return the user's kind for the first of these names that has one."""
        return next((self._kinds[n, direction] for n in names if (n, direction) in self._kinds), None)

    def send(
        self, passage: Passage, names: Sequence[str], tensors: Mapping[str, Any], kind: str | None = None
    ) -> RecordedMessage:
        """Record one message.

        Args:
            passage: its way.
            names: by which the user may declare its inputs; the first one names the framework's own kind.
            tensors: its arrays by name.
            kind: its kind; without one, the framework's own.
        """
        inputs: str | list[int | str] = "all"
        declared = [
            self._inputs[n, passage.direction] for n in names if (n, passage.direction) in self._inputs
        ]
        for words in declared[:1]:
            inputs = [
                *(["data"] if "data" in words else []),
                *(passage.answers if "instruction" in words else ()),
            ]
        with self.lock:
            delivery = self._recorder.send(
                passage.sender,
                passage.receivers,
                kind or own_kind(self._framework, names[0]),
                tensors,
                inputs,
            )
            if self._truth is not None and passage.reply is not None:
                self._truth.note_reply(delivery.seq, passage.sender, passage.reply)
            return delivery

    def expect(self, identifier: str, instruction: Instruction) -> None:
        """Expect a reply to an instruction."""
        with self.lock:
            self._sent[identifier] = instruction
            self._awaited.add(identifier)

    def instruction(self, identifier: str) -> Instruction | None:
        """Return an instruction that has no reply yet."""
        return self._sent.get(identifier)

    def answered(self, identifier: str) -> None:
        """Expect no reply to an instruction any longer."""
        with self.lock:
            del self._sent[identifier]
            self._awaited.discard(identifier)

    def record_silence(self, identifiers: Iterable[str] | None = None) -> None:
        """Record that replies did not come: to these instructions, or to all. One that comes late is recorded too."""
        with self.lock:
            missing = self._awaited & set(self._awaited if identifiers is None else identifiers)
            for party in sorted(self._sent[i].party for i in missing):
                self._recorder.send(party, [SERVER], "silence", {})
            self._awaited -= missing


def safe_name(name: str) -> str:
    """Return a name that a record accepts for a tensor: the name itself, a quoted form, or a digest of a long one.

    A client chooses its names. None of them stops the recorder, and no two have the same form.
    """
    if is_name(name) and not _SPECIAL.fullmatch(name) and len(name) <= _LONGEST:
        return name
    quoted = quote(name, safe="", errors="surrogatepass")
    if len(quoted) > _LONGEST:
        quoted = hashlib.sha256(name.encode("utf-8", "surrogatepass")).hexdigest()
    return quoted + ":name"


def as_tensors(name: str, value: Any) -> Tensors:
    """Return a number, a text, bytes or a list of them as tensors.

    Numbers keep their value: whole numbers are int64 or uint64, others float64. Text is UTF-8, as bytes. A list of
    texts or bytes is one tensor of bytes, and `NAME:lengths` has the length of each.

    Raises:
        TypeError: the value is none of these.
    """
    if isinstance(value, str | bytes | bytearray | memoryview):
        return {name: np.frombuffer(_bytes(value), dtype=np.uint8)}
    if (
        isinstance(value, list | tuple)
        and value
        and all(isinstance(v, str | bytes | bytearray) for v in value)
    ):
        parts = list(map(_bytes, value))
        return {
            name: np.frombuffer(b"".join(parts), dtype=np.uint8),
            f"{name}:lengths": np.array(list(map(len, parts)), dtype=np.int64),
        }
    numbers = value if isinstance(value, list | tuple) else [value]
    if not all(isinstance(v, bool | int | float | np.number | np.bool_) for v in numbers):
        raise TypeError(
            f"{name}: {type(value).__name__} is neither a number nor a text, bytes or a list of them."
        )
    array = np.array(value, dtype=_dtype(numbers))
    return {name: array}


def _bytes(value: str | bytes | bytearray | memoryview) -> bytes:
    return value.encode("utf-8", "surrogatepass") if isinstance(value, str) else bytes(value)


def _dtype(numbers: Sequence[Any]) -> type[Any]:
    if not numbers or not all(isinstance(v, bool | int | np.integer | np.bool_) for v in numbers):
        return np.float64
    if all(isinstance(v, bool | np.bool_) for v in numbers):
        return np.bool_
    return np.int64 if max(numbers) < 2**63 else np.uint64
