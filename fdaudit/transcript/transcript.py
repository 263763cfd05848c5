"""The transcript: append-only, on disk, readable and checkable without trusting its writer.

Guarantees:
  * a digest in the log covers every byte of every payload, safetensors headers included;
  * every line is chained to the line before it, so a dropped, swapped, added or edited line is detected;
  * memory does not grow with the messages sent: writing holds one message (or as much as its writer lets wait) and
    the names of those since the last `sync`; verifying holds one message and the payloads' names;
  * a payload is on disk under its final name before the line that names it is appended.

It proves neither authorship nor an honest run: a party that can rewrite the head can rewrite the rest.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING

from fdaudit.errors import IntegrityError, RunError
from fdaudit.kinds import is_kind
from fdaudit.limits import LINE_BYTES, LOG_BYTES, TENSOR_BYTES, open_file
from fdaudit.recording.recorder import TranscriptFiles, shared_name
from fdaudit.rng import SecretStream
from fdaudit.storage.files import commitment, decode, encode, header
from fdaudit.storage.tree import make_folder, open_appending
from fdaudit.storage.writer import InlineWriter, Writer
from fdaudit.transcript.messages import ALL, DATA, GENESIS, Message
from fdaudit.transcript.payloads import PAYLOADS, payload_name, placed, read_payload, rewind

if TYPE_CHECKING:
    from torch import Tensor

__all__ = [
    "LOG",
    "Position",
    "Transcript",
    "read_lines",
    "read_messages",
    "refuse_broken",
    "verify_transcript",
]

LOG = "messages.jsonl"
_SALT_BYTES = 16
_MOST_FINDINGS = 1_000
"""Defects that are listed: each takes memory, and nobody reads on."""


@dataclass(frozen=True)
class Position:
    """The end of a transcript: next `seq`, the log's length in bytes, and the SHA-256 of its last line."""

    seq: int = 0
    offset: int = 0
    head: str = GENESIS


class Transcript:
    """Writes one transcript.

    Args:
        directory: contains the log and `payloads/`; created if missing.
        secret: the run's key (`Secrets.for_run`), from which the messages' salts are drawn.
        start: where to continue; everything after it is removed first.
        keep: returns for a round whether payloads are kept, or only their digests.
        log: the log's file name.
        salt_path: names the stream of salts, so that two transcripts of one run never share one.
        writer: digests and writes appended messages; by default at once. Closed with the transcript.

    Attributes:
        directory: the same.
        writer: the same.
        seq: number of the next message.
    """

    def __init__(
        self,
        directory: Path,
        *,
        secret: bytes,
        start: Position | None = None,
        keep: Callable[[int], bool] = lambda round: True,
        log: str = LOG,
        salt_path: tuple[str, ...] = ("transcript",),
        writer: Writer | None = None,
    ) -> None:
        self.directory = directory
        self.writer: Writer = writer or InlineWriter()
        self._secret, self._keep, self._salt_path = secret, keep, salt_path
        directory.parent.mkdir(parents=True, exist_ok=True)
        for folder in (directory, directory / PAYLOADS):
            make_folder(folder)
        start = start or Position()
        self.seq = start.seq
        self._files = _reopened(directory, log, start)

    @property
    def position(self) -> Position:
        """Return the transcript's end after everything appended has been written."""
        self.writer.drain()
        return Position(self._files.seq, self._files.end, self._files.head)

    def append(self, draft: Message, tensors: Mapping[str, Tensor]) -> tuple[int, dict[str, Tensor]]:
        """Record a message and return its `seq` with the decoded payload, which is what a receiver gets.

        The draft's `seq`, `tensors`, `payload`, `bytes_on_wire`, `salt`, `sha256`, `previous` are filled in.
        """
        seq, payload = self.seq, encode(tensors)
        size = draft.bytes_on_wire or sum(t.nbytes for t in tensors.values())
        self.seq += 1
        self.writer.put(
            lambda: self._write(replace(draft, seq=seq, bytes_on_wire=size), payload), len(payload)
        )
        return seq, decode(payload)

    def _write(self, draft: Message, payload: bytes) -> None:
        """Write a message to disk: its payload, then its line."""
        salt = SecretStream(self._secret, "salt", *self._salt_path, draft.seq).bytes(_SALT_BYTES)
        message = replace(
            draft,
            tensors=header(payload),
            salt=salt.hex(),
            sha256=commitment(salt, payload),
        )
        if odd := message.odd_text():
            raise RunError(
                "transcript", f"{draft.kind} of {draft.sender}", f"is refused: {odd}", "Rename it."
            )
        keeps_payload = self._keep(draft.round)
        line = self._files.line(message.as_json(), len(payload) if keeps_payload else None)
        end = self._files.end + len(line)
        # Readers refuse a message that exceeds their limits.
        for limit, size in ((LINE_BYTES, len(line)), (LOG_BYTES, end), (TENSOR_BYTES, len(payload))):
            if size > limit.most:
                problem, remedy = f"would have {limit.refusal(size)}", f"Set {limit.variable}."
                raise RunError("transcript", f"{draft.kind} of {draft.sender}", problem, remedy)
        self._files.write(line, draft.round, payload if keeps_payload else None)

    def record(self, sender: str, receiver: str, kind: str, tensors: Mapping[str, Tensor]) -> int:
        """Record a message outside the protocol, an oracle's question or answer, and return its `seq`."""
        draft = Message(seq=0, round=0, step=self.seq, sender=sender, receivers=(receiver,), kind=kind)
        return self.append(draft, tensors)[0]

    def sync(self, others: Sequence[Path] = ()) -> Position:
        """Make everything so far durable: the payloads, the log, their directories, and `others`."""
        self.writer.put(lambda: self._files.sync(*others))
        return self.position

    def close(self) -> None:
        """Write what was appended, unless writing failed, and close the log."""
        self.writer.close()
        self._files.close()

    def __enter__(self) -> Transcript:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if error is None:
                self.writer.drain()
        finally:
            self.close()


def _reopened(directory: Path, log: str, start: Position) -> TranscriptFiles:
    """Cut the log back to a position, remove later payloads, and return the files to go on with.

    Raises:
        IntegrityError: the log does not reach the position, or its line there is another.
    """
    path = directory / log
    # A continued chain (an oracle's log) starts with a foreign head at offset 0.
    with open_appending(path) as file:
        if os.fstat(file.fileno()).st_size < start.offset:
            raise IntegrityError([f"{log} is shorter than the last checkpoint says"])
    file = open_appending(path, start.offset)
    lines = _lines_back(path)
    last = next(lines, None)
    if last is None:
        rewind(directory, 0, -1, 0)
        return TranscriptFiles(directory, file, seq=start.seq, head=start.head)
    if hashlib.sha256(last).hexdigest() != start.head:
        file.close()
        raise IntegrityError([f"{log} does not end as the last checkpoint says"])
    round = Message.from_line(last).round
    end = 0  # of the payloads in the round's file
    for line in chain([last], lines):
        message = Message.from_line(line)
        if message.round < round:
            break
        if message.payload is not None and message.payload["file"] == shared_name(round):
            end += message.payload["length"]
    shared = rewind(directory, start.seq, round, end)
    return TranscriptFiles(
        directory,
        file,
        seq=start.seq,
        end=start.offset,
        head=start.head,
        round=round,
        shared=shared,
    )


def _lines_back(path: Path) -> Iterator[bytes]:
    """Yield a log's lines without their newlines, the last one first."""
    with path.open("rb") as file:
        partial, start = b"", path.stat().st_size - 1
        while start > 0:
            step = min(start, 1 << 16)
            start -= step
            file.seek(start)
            partial, *whole = (file.read(step) + partial).split(b"\n")
            yield from reversed(whole)
        if partial:
            yield partial


def read_lines(path: Path) -> Iterator[bytes]:
    """Yield a log's lines without their newlines, split only at the newline byte; line k is message k's.

    Raises:
        IntegrityError: the log cannot be read, it or a line is too long, or the final newline is missing.
    """
    most = LINE_BYTES.most
    try:
        with open_file(path, LOG_BYTES) as file:
            while line := file.readline(most + 1):
                if len(line) > most:
                    raise IntegrityError([f"{path.name} has {LINE_BYTES.refusal(len(line))}"])
                if not line.endswith(b"\n"):
                    raise IntegrityError([f"{path.name} does not end with a newline"])
                yield line[:-1]
    except OSError as error:
        raise IntegrityError([f"{path.name} cannot be read: {error.strerror}"]) from None


def refuse_broken(directory: Path, end: Position) -> None:
    """Refuse a transcript whose lines up to a position are not one chain that ends there; change nothing.

    Args:
        directory: the transcript's directory.
        end: the position of a checkpoint; later lines are not read.

    Raises:
        IntegrityError: they are not.
    """
    previous, offset = GENESIS, 0
    lines = read_lines(directory / LOG) if end.offset else ()
    for number, line in enumerate(lines, start=1):
        if Message.from_line(line).previous != previous:
            raise IntegrityError([f"{LOG} line {number}: does not chain to the line before"])
        previous, offset = hashlib.sha256(line).hexdigest(), offset + len(line) + 1
        if offset >= end.offset:
            break
    if (previous, offset) != (end.head, end.offset):
        raise IntegrityError([f"{LOG} does not end as the last checkpoint says"])


def read_messages(directory: Path, log: str = LOG) -> Iterator[Message]:
    """Yield the messages of a transcript in order, one at a time, each with its payload's offset.

    Raises:
        IntegrityError: a line is not a message.
    """
    return placed(_unplaced(directory, log))


def _unplaced(directory: Path, log: str) -> Iterator[Message]:
    for number, line in enumerate(read_lines(directory / log), start=1):
        try:
            yield Message.from_line(line)
        except IntegrityError as error:
            raise IntegrityError([f"{log} line {number}: {error}"]) from None


def verify_transcript(
    directory: Path,
    *,
    head: str,
    count: int,
    start: str = GENESIS,
    log: str = LOG,
) -> list[str]:
    """Check a transcript against the head and count in its manifest.

    Args:
        directory: the transcript's directory.
        head: expected SHA-256 of the last line.
        count: expected number of messages.
        start: `previous` of the first line.
        log: the log's file name.

    Returns:
        One sentence for each defect; empty when there is none.
    """
    findings: list[str] = []
    previous, order, number = start, (0, 0), 0
    covered: dict[str, int] = {}
    path = directory / log
    if not path.is_file() or path.is_symlink() or directory.is_symlink():
        return [f"{log} is missing, or no regular file"]
    if odd := _irregular(directory):
        return odd
    try:
        for number, line in enumerate(read_lines(path), start=1):
            where = f"{log} line {number}"
            try:
                message = Message.from_line(line)
            except IntegrityError as error:
                findings.append(f"{where}: {error}")
                previous = hashlib.sha256(line).hexdigest()
            else:
                findings += [
                    f"{where}: {problem}" for problem in _check(message, number - 1, previous, order)
                ]
                findings += _check_payload(directory, message, covered)
                previous, order = hashlib.sha256(line).hexdigest(), (message.round, message.step)
            if len(findings) >= _MOST_FINDINGS:
                return [*findings, f"{where} is the last that was checked: nothing of this transcript holds"]
    except IntegrityError as error:
        findings += error.findings
    if number != count:
        findings.append(f"{log} has {number} messages, the manifest says {count}")
    if previous != head:
        findings.append(f"{log}: the last line does not match the head in the manifest")
    for file, length in covered.items():
        if (directory / file).is_file() and (directory / file).stat().st_size != length:
            findings.append(f"{file} holds bytes that no digest covers")
    return findings + _strays(directory, {log, *covered})


def _irregular(directory: Path) -> list[str]:
    """Return one sentence for each entry that is neither a folder nor a regular file; none is opened."""
    paths = []
    for root, folders, files in os.walk(directory):
        for name in (*folders, *files):
            path = Path(root) / name
            if path.is_symlink() or not (path.is_file() or path.is_dir()):
                paths.append(path)
    return [f"{path.relative_to(directory).as_posix()} is no regular file" for path in sorted(paths)]


def _check(message: Message, seq: int, previous: str, order: tuple[int, int]) -> Iterator[str]:
    if message.seq != seq:
        yield f"seq is {message.seq}, not {seq}"
    if message.previous != previous:
        yield "does not chain to the line before"
    if (message.round, message.step) < order:
        yield "is out of order of round and step"
    if not is_kind(message.kind):
        yield f"kind {message.kind!r} is not known"
    if message.inputs != ALL and any(i != DATA and i not in range(seq) for i in message.inputs):
        yield "names an input that was not sent before it"


def _check_payload(directory: Path, message: Message, covered: dict[str, int]) -> list[str]:
    """Check one payload; `covered` is by file the length covered by the payloads before it."""
    if message.payload is None:
        return []
    try:
        file = payload_name(message)
    except IntegrityError as error:
        return list(error.findings)
    begin = covered.get(file, 0)
    covered[file] = begin + message.payload["length"]
    try:
        payload = read_payload(directory, replace(message, offset=begin))
    except IntegrityError as error:
        return list(error.findings)
    if header(payload) != dict(message.tensors):
        return [f"message {message.seq}: {file} does not hold the tensors that the line names"]
    return []


def _strays(directory: Path, listed: set[str]) -> list[str]:
    """Return files under the directory that no line names; symbolic links are never followed."""
    findings = []
    for root, folders, files in os.walk(directory):
        below = Path(root).relative_to(directory)
        for folder in folders:
            name = (below / folder).as_posix()
            if name != PAYLOADS or (Path(root) / folder).is_symlink():
                findings.append(f"{name}/ is not part of a transcript")
        for file in files:
            name = (below / file).as_posix()
            if name not in listed or (Path(root) / file).is_symlink():
                findings.append(f"{name} is listed by no message")
    return sorted(findings)
