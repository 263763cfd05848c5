"""The rules that every adapter follows: kinds of messages, numbers of clients, numbers as tensors, keys of truth."""

from __future__ import annotations

import hashlib
import json
import os
import re
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal
from urllib.parse import quote

import numpy as np
from numpy.typing import NDArray

__all__ = [
    "SERVER",
    "Clients",
    "Direction",
    "ServerTruth",
    "append_uses",
    "as_tensors",
    "checked_inputs",
    "checked_kinds",
    "join_key",
    "join_uses",
    "own_kind",
    "parties",
    "safe_name",
]

SERVER = "server"
Direction = Literal["instruction", "reply"]
"""An instruction goes from the server to a client, a reply from a client to the server."""

_DIRECTIONS = ("instruction", "reply")
_INPUTS = ("data", "instruction")
_SPECIAL = re.compile(r".*:(bytes|codes|grid|layout|lengths|name)|__metadata__", re.DOTALL)
_CLIENT = re.compile(r"client/(0|[1-9][0-9]*)")


def parties(clients: int) -> list[str]:
    """Return the parties of a federation of one server and a number of clients, for `Recorder(parties=…)`."""
    return [SERVER, *(f"client/{n}" for n in range(clients))]


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


def join_key(message_id: str) -> str:
    """Return the key under which the server's record and a site's notes name the same reply.

    Both sides hold the identifier of the instruction, and the key is a digest of it. It reveals nothing of records.
    """
    return hashlib.sha256(b"fdaudit-join/1\0" + message_id.encode("utf-8", "surrogatepass")).hexdigest()[:32]


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
                taken = set(self._parties.values())
                number = next(n for n in range(len(taken) + 1) if f"client/{n}" not in taken)
                self._parties[client] = f"client/{number}"
            return self._parties[client]

    def seen(self) -> dict[str, str]:
        """Return the framework's name of each party."""
        with self._lock:
            return {party: str(client) for client, party in self._parties.items()}


def safe_name(name: str) -> str:
    """Return a name that a record accepts for a tensor: the name itself, or a quoted form of one with a special use.

    A client chooses its names. None of them stops the recorder, and no two have the same form.
    """
    if name and not _SPECIAL.fullmatch(name) and name.isprintable():
        return name
    return quote(name, safe="", errors="surrogatepass") + ":name"


def as_tensors(name: str, value: Any) -> dict[str, NDArray[Any]]:
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
        parts = [_bytes(v) for v in value]
        return {
            name: np.frombuffer(b"".join(parts), dtype=np.uint8),
            f"{name}:lengths": np.array([len(p) for p in parts], dtype=np.int64),
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


# -- which records a reply used -------------------------------------------------------------------------------------


def append_uses(directory: Path, key: str, records: Sequence[int]) -> None:
    """Note at a site that the reply of this key used these records; the note is durable on return.

    Args:
        directory: the site's own directory of the truth; made with mode 0700 if it is missing.
        key: of the reply, from `join_key`.
        records: their numbers as the site counts them.
    """
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    line = _canonical({"records": [int(r) for r in records], "reply": key}) + b"\n"
    file = os.open(directory / "uses.jsonl", os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    try:
        os.write(file, line)  # in one call, so that processes of a site do not mix their lines
        os.fsync(file)
    finally:
        os.close(file)


class ServerTruth:
    """The server's own notes, outside the record: the node of each party, and the key of each reply.

    Args:
        directory: made with mode 0700 if it is missing; it holds no notes yet.
        record: the directory of the record, which goes to the auditor.

    Raises:
        ValueError: the directories lie within each other, or notes are there already.
    """

    def __init__(self, directory: Path, record: Path) -> None:
        inside, outside = sorted(
            (directory.resolve(), record.resolve()), key=lambda p: len(p.parts), reverse=True
        )
        if inside.is_relative_to(outside):
            raise ValueError(
                f"truth: {directory} and the record lie within each other. Choose another directory."
            )
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._directory = directory
        self._nodes: dict[str, str] = {}
        try:
            self._replies = (directory / "replies.jsonl").open("xb", buffering=0)
        except FileExistsError:
            raise ValueError(f"truth: {directory} holds notes already. Choose another directory.") from None

    def name(self, party: str, node: str) -> None:
        """Note the node of a party."""
        if party not in self._nodes:
            self._nodes[party] = node
            for name in ("nodes.json", "sites.json"):
                _replace(self._directory / name, _canonical(self._nodes) + b"\n")

    def note_reply(self, seq: int, party: str, key: str) -> None:
        """Note by which key a site's notes name a recorded message of a party."""
        self._replies.write(_canonical({"party": party, "reply": key, "seq": seq}) + b"\n")

    def sync(self) -> None:
        """Make the notes durable."""
        os.fsync(self._replies.fileno())

    def close(self) -> None:
        """Make the notes durable and close them."""
        if not self._replies.closed:
            self.sync()
            self._replies.close()


def join_uses(truth: Path, sites: Mapping[str, Path]) -> dict[str, str]:
    """Join the notes of sites with those of the server: write `uses.jsonl` and `sites.json` of the server's truth.

    Args:
        truth: the server's directory of the truth.
        sites: the directory of the truth of each site, by the site's name.

    Returns:
        The site of each party that a note names; the others keep their node in `sites.json`.

    Raises:
        ValueError: two notes name the same reply, or notes of two sites name replies of one party.
    """
    noted: dict[str, tuple[str, list[int]]] = {}
    for site, directory in sites.items():
        for line in _lines(directory / "uses.jsonl"):
            if line["reply"] in noted:
                raise ValueError(
                    f"{directory}: {line['reply']} is noted twice. Keep one run's notes in a directory."
                )
            noted[line["reply"]] = (site, line["records"])
    uses, found = list[bytes](), dict[str, str]()
    for line in _lines(truth / "replies.jsonl"):
        if line["reply"] in noted:
            site, records = noted[line["reply"]]
            if found.setdefault(line["party"], site) != site:
                raise ValueError(
                    f"{line['party']} replied for {found[line['party']]!r} and {site!r}. Name a site once."
                )
            uses.append(_canonical({"records": records, "seq": line["seq"]}) + b"\n")
    _replace(truth / "uses.jsonl", b"".join(uses))
    nodes = json.loads((truth / "nodes.json").read_bytes())
    _replace(truth / "sites.json", _canonical(nodes | found) + b"\n")
    return found


def _replace(path: Path, data: bytes) -> None:
    """Replace a file in one step; its new bytes are durable on return."""
    part = path.with_name(f".{path.name}.tmp")
    with part.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    part.replace(path)


def _canonical(value: Any) -> bytes:
    return json.dumps(
        value, sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False
    ).encode()


def _lines(path: Path) -> Iterator[dict[str, Any]]:
    with path.open("rb") as file:
        for line in file:
            if line.endswith(b"\n"):  # a kill may leave a part of the last line
                yield json.loads(line)
