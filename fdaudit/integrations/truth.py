"""The notes of a site and those of the server: which records a reply used. The import joins them."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fdaudit.recording.recorder import canonical, replace_file, write_records, write_shared

__all__ = ["ServerTruth", "hold_dataset", "join_key", "note_uses"]

_REPLIES = "replies.jsonl"


def join_key(message_id: str) -> str:
    """Return the key under which the server's record and a site's notes name the same reply.

    Both sides hold the identifier of the instruction, and the key is a digest of it. It reveals nothing of records.
    """
    return hashlib.sha256(b"fdaudit-join/1\0" + message_id.encode("utf-8", "surrogatepass")).hexdigest()[:32]


def note_uses(directory: Path, message_id: str, site: str, records: Sequence[int]) -> None:
    """Note at a site that its reply to an instruction used these records; the note is durable on return.

    Args:
        directory: the site's own directory of the truth; made with mode 0700 if it is missing.
        message_id: the instruction's identifier.
        site: the site's name.
        records: their numbers as the site counts them.
    """
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    note = {"records": list(map(int, records)), "reply": join_key(message_id), "site": site}
    file = os.open(directory / "notes.jsonl", os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    try:
        # In one call, so that processes of a site do not mix their lines.
        os.write(file, canonical(note) + b"\n")
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
    datasets = [dataset] if held_out is None else [dataset, held_out]
    x, y = _stacked(datasets)
    write_records(directory, site, x, y, range(trained, len(x)))
    return trained


def _stacked(datasets: Sequence[Any]) -> tuple[NDArray[Any], NDArray[Any]]:
    """Return the inputs (n, …) and the labels of the records of datasets, one after the other."""
    inputs, labels = [], []
    for dataset in datasets:
        for i in range(len(dataset)):
            record = values = dataset[i]
            if isinstance(record, Mapping):  # in any order
                values = sorted(record.values(), key=np.ndim, reverse=True)
            if not isinstance(values, list | tuple) or len(values) != 2:
                form = type(record).__name__
                raise ValueError(
                    f"dataset: a record is {form}, not (x, y). Give a dataset of pairs, or ids only."
                )
            x, y = np.asarray(values[0]), np.asarray(values[1])
            if y.ndim > x.ndim:
                raise ValueError("dataset: a record is (y, x), not (x, y). Give the input first.")
            inputs.append(x)
            labels.append(y)
    return np.stack(inputs), np.stack(labels)


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
        truth, described = directory.resolve(), record.resolve()
        if truth.is_relative_to(described) or described.is_relative_to(truth):
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
        x, y = _stacked([dataset])
        write_shared(self._directory, name, x, y)

    def name(self, party: str, node: str) -> None:
        """Note the node of a party."""
        if party not in self._nodes:
            self._nodes[party] = node
            replace_file(self._directory / "nodes.json", canonical(self._nodes) + b"\n")

    def note_reply(self, seq: int, party: str, key: str) -> None:
        """Note by which key a site's notes name a recorded message of a party."""
        self._replies.write(canonical({"party": party, "reply": key, "seq": seq}) + b"\n")

    def sync(self) -> None:
        """Make the notes durable."""
        os.fsync(self._replies.fileno())

    def close(self) -> None:
        """Make the notes durable and close them."""
        if not self._replies.closed:
            self.sync()
            self._replies.close()
