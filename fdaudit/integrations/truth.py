"""The notes of a site and those of the server: which records a reply used. The import joins them."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fdaudit.recording.recorder import write_records, write_shared

__all__ = ["ServerTruth", "hold_dataset", "join_key", "note_uses"]

_REPLIES = "replies.jsonl"


def join_key(message_id: str) -> str:
    """Return the key under which the server's record and a site's notes name the same reply.

    Both sides hold the identifier of the instruction, and the key is a digest of it. It reveals nothing of records.
    """
    return hashlib.sha256(b"fdaudit-join/1\0" + message_id.encode("utf-8", "surrogatepass")).hexdigest()[:32]


def note_uses(directory: Path, key: str, site: str, records: Sequence[int]) -> None:
    """Note at a site that the reply of this key used these records; the note is durable on return.

    Args:
        directory: the site's own directory of the truth; made with mode 0700 if it is missing.
        key: of the reply, from `join_key`.
        site: the site's name.
        records: their numbers as the site counts them.
    """
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    note = {"records": list(map(int, records)), "reply": key, "site": site}
    file = os.open(directory / "notes.jsonl", os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    try:
        # In one call, so that processes of a site do not mix their lines.
        os.write(file, _canonical(note) + b"\n")
        os.fsync(file)
    finally:
        os.close(file)


def hold_dataset(directory: Path, site: str, dataset: Any, held_out: Any = None) -> int:
    """Write the records of a site to its directory of the truth; return the number of those that it trains on.

    Args:
        directory: the site's own directory of the truth.
        site: the site's name.
        dataset: as PyTorch's `DataLoader` takes it: `dataset[i]` is (x, y), or a mapping with the two in any order. x
            is what the network gets, channels first.
        held_out: another dataset, of records that the site never trains on.

    Raises:
        ValueError: the dataset gives something else.
    """
    trained = len(dataset)
    pairs = [_pair(dataset[i]) for i in range(trained)]
    pairs += [_pair(held_out[i]) for i in range(len(held_out))] if held_out is not None else []
    x, y = _stacked(pairs)
    write_records(directory, site, x, y, range(trained, len(pairs)))
    return trained


def _stacked(pairs: Sequence[tuple[NDArray[Any], NDArray[Any]]]) -> tuple[NDArray[Any], NDArray[Any]]:
    """Return the inputs (n, …) and the labels of records."""
    x, y = (np.stack(values) for values in zip(*pairs, strict=True))
    return x, y


def _pair(record: Any) -> tuple[NDArray[Any], NDArray[Any]]:
    """Return the input and the label of a dataset's record."""
    values = record
    if isinstance(record, Mapping):  # in any order
        values = sorted(record.values(), key=np.ndim, reverse=True)
    if not isinstance(values, list | tuple) or len(values) != 2:
        raise ValueError(
            f"dataset: a record is {type(record).__name__}, not (x, y). Give a dataset of pairs, or ids only."
        )
    x, y = (np.asarray(value) for value in values)
    if y.ndim > x.ndim:
        raise ValueError("dataset: a record is (y, x), not (x, y). Give the input first.")
    return x, y


class ServerTruth:
    """The server's own notes, outside the record: the node of each party, and the key of each reply.

    Args:
        directory: made with mode 0700 if it is missing; it holds no notes yet.
        record: the directory of the record, which goes to the auditor.

    Raises:
        ValueError: the directories lie within each other, or notes are there already.
    """

    def __init__(self, directory: Path, record: Path) -> None:
        self.refuse(directory, record)
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._directory = directory
        self._nodes: dict[str, str] = {}
        self._replies = (directory / _REPLIES).open("xb", buffering=0)

    @staticmethod
    def refuse(directory: Path, record: Path) -> None:
        """Refuse directories that lie within each other, or hold notes. Nothing is written.

        Raises:
            ValueError: they do.
        """
        inside, outside = sorted(
            (directory.resolve(), record.resolve()), key=lambda p: len(p.parts), reverse=True
        )
        if inside.is_relative_to(outside):
            raise ValueError(
                f"truth: {directory} and the record lie within each other. Choose another directory."
            )
        if (directory / _REPLIES).exists():
            raise ValueError(f"truth: {directory} holds notes already. Choose another directory.")

    def hold(self, name: str, dataset: Any) -> None:
        """Write records that no client holds: `auxiliary`, `test` or `public`.

        Raises:
            ValueError: it is another name, or the dataset is none of pairs (x, y).
        """
        write_shared(self._directory, name, *_stacked([_pair(dataset[i]) for i in range(len(dataset))]))

    def name(self, party: str, node: str) -> None:
        """Note the node of a party."""
        if party not in self._nodes:
            self._nodes[party] = node
            _replace(self._directory / "nodes.json", _canonical(self._nodes) + b"\n")

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
