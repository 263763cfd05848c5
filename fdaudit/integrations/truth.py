"""Which records a reply used: the notes of a site, those of the server, and how they join."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

__all__ = ["ServerTruth", "append_uses", "join_key", "join_uses"]


def join_key(message_id: str) -> str:
    """Return the key under which the server's record and a site's notes name the same reply.

    Both sides hold the identifier of the instruction, and the key is a digest of it. It reveals nothing of records.
    """
    return hashlib.sha256(b"fdaudit-join/1\0" + message_id.encode("utf-8", "surrogatepass")).hexdigest()[:32]


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
