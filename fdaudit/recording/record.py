"""Read and check a record that a recorder, or another program, wrote.

Guarantees:
  * nothing of a record is trusted: sizes, names, types and digests are checked before a value is used;
  * only closed rounds count. What a killed federation left of its open round is counted, and never read as a message.
"""

from __future__ import annotations

import hashlib
import json
import re
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from fdaudit.errors import IntegrityError, RunError, reason_of
from fdaudit.limits import JSON_BYTES, MOST_CLIENTS, read_file
from fdaudit.parallel.memory import refuse_forecast
from fdaudit.recording.recorder import PARTY, SCHEMA, record_json
from fdaudit.storage.digests import canonical
from fdaudit.storage.files import write_atomically
from fdaudit.storage.scratch import scratch
from fdaudit.storage.tree import refuse_links
from fdaudit.transcript.messages import GENESIS, Message
from fdaudit.transcript.payloads import PAYLOADS, payload_name
from fdaudit.transcript.transcript import LOG, read_lines, read_messages, verify_transcript

__all__ = [
    "RECORD",
    "Checked",
    "Record",
    "check_record",
    "closed_part",
    "held_messages",
    "is_record",
    "read_lines_only",
    "read_record",
    "write_lines_only",
]

RECORD = "record.json"
_TYPES = {
    "head": str,
    "messages": int,
    "parties": list,
    "recorder": str,
    "rounds": int,
    "schema": str,
    "status": str,
}
_DIGEST = re.compile("[0-9a-f]{64}")
_BESIDE = frozenset({RECORD, f".{RECORD}.tmp", "card.yaml", "transcript"})
"""What a record may hold; the second is left by a kill between writing and naming."""
_CHUNK = 1 << 20
_PARSED = 12
"""Bytes of memory for each byte of a log whose messages are held."""


@dataclass(frozen=True)
class Record:
    """A record on disk, as its `record.json` describes it.

    Attributes:
        directory: the record.
        parties: every party that it names.
        head: SHA-256 of the last line of the last closed round.
        messages: number of messages in closed rounds.
        rounds: number of closed rounds.
        closed: whether the recorder was closed; otherwise the federation, or its recording, ended early.
    """

    directory: Path
    parties: tuple[str, ...]
    head: str
    messages: int
    rounds: int
    closed: bool

    @property
    def transcript(self) -> Path:
        """Return the directory of the messages."""
        return self.directory / "transcript"


@dataclass(frozen=True)
class Checked:
    """The outcome of a check.

    Attributes:
        findings: one sentence for each defect; empty if there is none.
        notes: what is missing from the record without being a defect, one sentence each.
    """

    findings: tuple[str, ...]
    notes: tuple[str, ...]


def is_record(directory: Path) -> bool:
    """Return whether a directory is a record, not a run."""
    return (directory / RECORD).is_file() and not (directory / "manifest.json").exists()


def read_record(directory: Path) -> Record:
    """Return a record after a check of the fields of its `record.json`.

    Raises:
        RunError: there is none.
        IntegrityError: it is damaged, or of another version.
    """
    path = directory / RECORD
    if path.is_symlink() or (path.exists() and not path.is_file()):
        raise IntegrityError([f"{RECORD} is no regular file"])
    if not path.is_file():
        remedy = "Give a directory that a recorder wrote."
        raise RunError("record", str(directory), f"has no {RECORD}", remedy)
    refuse_links(directory, _BESIDE)
    try:
        data = read_file(path, JSON_BYTES)
        value = json.loads(data)
        _refuse_odd(value)
        if canonical(value) + b"\n" != data:
            raise ValueError("it is not in canonical form")
    except (OSError, ValueError, TypeError, RecursionError) as error:
        raise IntegrityError([f"{RECORD} is damaged: {reason_of(error)}"]) from None
    return Record(
        directory=directory,
        parties=tuple(value["parties"]),
        head=value["head"],
        messages=value["messages"],
        rounds=value["rounds"],
        closed=value["status"] == "closed",
    )


def write_lines_only(record: Record, target: Path) -> None:
    """Write a record's lines to a new directory, without the payloads.

    Args:
        record: the record, whose transcript ends with its last closed round.
        target: the new directory.
    """
    (target / "transcript").mkdir(parents=True)
    status = "closed" if record.closed else "open"
    value = record_json(record.parties, record.messages, record.head, record.rounds, status)
    write_atomically(target / RECORD, value)
    shutil.copyfile(record.transcript / LOG, target / "transcript" / LOG)


def read_lines_only(directory: Path) -> tuple[Record, list[Message]]:
    """Return a record and its messages, whose payloads need not be there.

    Raises:
        RunError: there is no record.
        IntegrityError: its lines are damaged, or not those that `record.json` counts.
    """
    record = read_record(directory)
    log = _log_of(record)
    refuse_forecast("record", str(log), _PARSED * log.stat().st_size)
    messages, findings, previous = list[Message](), list[str](), GENESIS
    for number, line in enumerate(islice(_whole_lines(log), record.messages), start=1):
        message = Message.from_line(line)
        if message.previous != previous:
            findings.append(f"{LOG} line {number}: does not chain to the line before")
        previous = hashlib.sha256(line).hexdigest()
        messages.append(message)
    if (len(messages), previous) != (record.messages, record.head):
        findings.append(f"{LOG} does not end where {RECORD} says")
    if findings:
        raise IntegrityError(findings)
    return record, messages


def _refuse_odd(value: Any) -> None:
    if type(value) is not dict or value.keys() != _TYPES.keys():
        raise TypeError(f"its fields are not {', '.join(_TYPES)}")
    if value["schema"] != SCHEMA:
        raise ValueError(f"its schema is {value['schema']!r:.60}, not {SCHEMA}")
    for name, expected in _TYPES.items():
        if type(value[name]) is not expected:
            raise TypeError(f"{name} is no {expected.__name__}")
    parties = value["parties"]
    if not parties or len(parties) > MOST_CLIENTS + 3:
        raise ValueError(f"it names {len(parties)} parties")
    for party in parties:
        if type(party) is not str or not PARTY.fullmatch(party):
            raise ValueError(f"{party!r:.60} is no name of a party")
    if len(set(parties)) < len(parties):
        raise ValueError("it names a party twice")
    if min(value["messages"], value["rounds"]) < 0 or value["rounds"] > value["messages"] + 1_000_000:
        raise ValueError("it counts fewer than no messages or rounds")
    if value["status"] not in ("open", "closed"):
        raise ValueError(f"its status is {value['status']!r:.60}, neither open nor closed")
    if not _DIGEST.fullmatch(value["head"]) or (value["messages"] == 0) != (value["head"] == GENESIS):
        raise ValueError("its head is no digest of a last line")


def check_record(directory: Path) -> Checked:
    """Check a record: `record.json`, every line and payload of its closed rounds, and that there is nothing else.

    Raises:
        RunError: there is no record.
    """
    try:
        record = read_record(directory)
    except IntegrityError as error:
        return Checked(error.findings, ())
    others = {path.name for path in directory.iterdir()} - _BESIDE
    findings = [f"{name} is not part of a record" for name in sorted(others)]
    notes = []
    try:
        with scratch("record") as folder:
            surplus = closed_part(record, folder / "transcript")
            defects = verify_transcript(folder / "transcript", head=record.head, count=record.messages)
            findings += defects or _untrue(record, folder / "transcript")
    except IntegrityError as error:
        return Checked((*findings, *error.findings), ())
    if not record.closed:
        notes.append(
            f"The recording was not closed: it ends with {record.rounds} closed rounds and {record.messages} messages."
        )
        if surplus:
            notes.append(
                f"{surplus} messages of a round that was never closed are left out: nothing shows that they are whole."
            )
    elif surplus:
        findings.append(f"{LOG} has {surplus} lines beyond the end that {RECORD} names")
    return Checked(tuple(findings), tuple(notes))


def closed_part(record: Record, target: Path) -> int:
    """Copy the closed rounds of a record to a new directory, byte for byte.

    Args:
        record: the record.
        target: the directory of the copy; must not exist.

    Returns:
        The number of lines after the closed rounds, which are not copied.

    Raises:
        IntegrityError: a line is no message, or a payload is missing.
    """
    log = _log_of(record)
    (target / PAYLOADS).mkdir(parents=True)
    lengths: dict[str, int] = {}
    rest = 0
    lines = _whole_lines(log)
    if record.closed:
        lines = read_lines(log)
    with (target / LOG).open("xb") as copy:
        for number, line in enumerate(lines):
            if number >= record.messages:
                rest += 1
                continue
            copy.write(line + b"\n")
            try:
                message = Message.from_line(line)
                if message.payload is None:
                    continue
                name = payload_name(message)
            except IntegrityError as error:
                raise IntegrityError([f"{LOG} line {number + 1}: {error}"]) from None
            lengths[name] = lengths.get(name, 0) + message.payload["length"]
    for name, length in lengths.items():
        _copy(record.transcript / name, target / name, length + 1)  # a byte too many is found by the check
    return rest


def held_messages(transcript: Path) -> list[Message]:
    """Return all messages of a transcript, which are held in memory together.

    Raises:
        UsageError: they would take too much.
        IntegrityError: a line is not a message.
    """
    log = transcript / LOG
    if log.is_file():
        refuse_forecast("record", str(log), _PARSED * log.stat().st_size)
    return list(read_messages(transcript))


def _log_of(record: Record) -> Path:
    """Return the log of a record, which is a regular file inside it."""
    log = record.transcript / LOG
    if record.transcript.is_symlink() or log.is_symlink() or not log.is_file():
        raise IntegrityError([f"transcript/{LOG} is missing, or no regular file"])
    return log


def _whole_lines(log: Path) -> Iterator[bytes]:
    """Yield the lines of a log whose last one may have been cut by a kill; that one is counted as a line as well."""
    try:
        yield from read_lines(log)
    except IntegrityError as error:
        if not any("does not end with a newline" in finding for finding in error.findings):
            raise
        yield b""


def _copy(source: Path, target: Path, most: int) -> None:
    """Copy a file, or its first `most` bytes."""
    if source.is_symlink() or not source.is_file():
        raise IntegrityError([f"{PAYLOADS}/{source.name} is missing, or no regular file"])
    with source.open("rb") as reading, target.open("xb") as writing:
        while data := reading.read(min(most, _CHUNK)):
            writing.write(data)
            most -= len(data)


def _untrue(record: Record, transcript: Path) -> list[str]:
    """Return one sentence for each party that the record does not name, input never held, and uncounted round."""
    parties, rounds, findings = set(record.parties), set[int](), list[str]()
    holders: list[frozenset[str]] = []
    for number, line in enumerate(read_lines(transcript / LOG), start=1):
        message = Message.from_line(line)
        where = f"{LOG} line {number}"
        rounds.add(message.round)
        holders.append(frozenset(message.parties()))
        for party in sorted(holders[-1] - parties):
            findings.append(f"{where}: {party!r:.60} is no party of the record")
        for i in dict.fromkeys(message.inputs):
            if isinstance(i, int) and message.sender not in holders[i]:
                problem = f"names message {i} as an input, which it neither sent nor received"
                findings.append(f"{where}: {message.sender} {problem}")
    if len(rounds) > record.rounds:
        findings.append(f"{LOG} has messages of {len(rounds)} rounds, and {RECORD} counts {record.rounds}")
    return findings
