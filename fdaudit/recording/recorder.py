"""Record the messages of a federation that fdaudit does not run.

A site may copy this one file. It needs Python and NumPy, and imports neither fdaudit nor PyTorch. The command `fdaudit
verify RECORD` checks the record. In Python, `read_messages` of `fdaudit.transcript.transcript` reads its messages.
fdaudit's own runs write their messages with `TranscriptFiles` of this file, too.

Guarantees:
  * `send` returns arrays that are views of the very bytes on record, so that a receiver can use these;
  * everything up to the last closed round is durable, and `record.json` names its end: a kill loses at most the open
    round;
  * messages sent by several threads at once are recorded one after the other;
  * memory does not grow with the messages, only with the files of the open round's payloads above 1 MiB;
  * nothing is written that fdaudit would refuse to read;
  * a refused argument leaves the record as it was; after a failed write nothing more is recorded;
  * the truth, such as which records a client trained on, is written to a directory of its own, never to the record.

The record proves neither that it is complete nor that the federation was honest.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import secrets
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO, Literal

import numpy as np
import numpy.typing as npt

__all__ = [
    "GENESIS",
    "KINDS",
    "PARTY",
    "SCHEMA",
    "RecordError",
    "RecordedMessage",
    "Recorder",
    "TranscriptFiles",
    "canonical",
    "is_name",
    "own_name",
    "record_json",
    "replace_file",
    "shared_name",
    "write_records",
    "write_shared",
]

SCHEMA = "fdaudit-record/1"
_VERSION = "1"

KINDS = (
    "class_counts",
    "class_prototypes",
    "discriminator_parameters",
    "discriminator_scores",
    "ensemble_labels",
    "generated_samples",
    "generator_parameters",
    "gradient",
    "hard_labels",
    "logit_cotangents",
    "logit_range",
    "logits",
    "model_parameters",
    "model_update",
    "optimizer_state",
    "oracle_answer",
    "oracle_query",
    "private_labels",
    "proxy_indices",
    "release",
    "sample_count",
    "sample_gradients",
    "silence",
    "soft_labels",
    "top_logits",
    "top_soft_labels",
    "vote_counts",
)
"""The names in `fdaudit.kinds`, sorted; any other kind has a name such as `vendor/name`."""

_OWN_KIND = re.compile(r"[a-z0-9][a-z0-9-]*/[a-z0-9][a-z0-9-]*")
PARTY = re.compile(r"server|aggregator|world|client/(0|[1-9][0-9]{0,3})")
"""The names of parties."""
_SHARED = ("auxiliary", "public", "test")
"""Files of records that no party holds."""
_SITE = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]{0,99}")
_RESERVED = re.compile(r".*:(codes|grid|layout)|__metadata__", re.DOTALL)

# The grammar of names, as in fdaudit's `names.py`.
_MOST_NAME = 500
_INVISIBLE = re.compile(
    "[\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180f\u2800\u3164\ufe00-\ufe0f\uffa0\U000e0100-\U000e01ef]"
)

# The limits of fdaudit's readers: the environment variable that raises each, and its default.
_LINE_BYTES = ("FDAUDIT_MOST_LINE_BYTES", 256 << 10)
_LOG_BYTES = ("FDAUDIT_MOST_LOG_BYTES", 1 << 30)
_TENSOR_BYTES = ("FDAUDIT_MOST_TENSOR_BYTES", 1 << 30)
_YAML_BYTES = ("FDAUDIT_MOST_YAML_BYTES", 1 << 20)
_MOST_ROUNDS = 1_000_000
_MOST_ID = 1 << 63

GENESIS = "0" * 64
"""`previous` of the first line."""

_SMALL = 1 << 20
"""Largest payload, in bytes, that shares its round's file: a separate file takes time to make and to flush."""
_SYNCS_AT_ONCE = 8

# safetensors' name of each type, in the order in which its files hold tensors.
_TYPES = {
    "uint64": "U64",
    "int64": "I64",
    "float64": "F64",
    "float32": "F32",
    "uint32": "U32",
    "int32": "I32",
    "bfloat16": "BF16",
    "float16": "F16",
    "uint16": "U16",
    "int16": "I16",
    "int8": "I8",
    "uint8": "U8",
    "bool": "BOOL",
}
_RANKS = {name: rank for rank, name in enumerate(_TYPES.values())}

Array = npt.NDArray[Any]
Inputs = Literal["all"] | Iterable[int | str]


class RecordError(ValueError):
    """A refused argument or a failed write: the field, its value, and the remedy.

    Args:
        field: name of the argument.
        value: the refused value, or a description of it.
        problem: the defect, as a clause.
        remedy: the way to mend it, as a sentence.
    """

    def __init__(self, field: str, value: object, problem: str, remedy: str) -> None:
        self.field, self.value, self.problem, self.remedy = field, value, problem, remedy
        value_text = repr(value)
        if len(value_text) > 200:
            value_text = value_text[:197] + "..."
        text = f"{field}: {value_text} {problem}. {remedy}"
        printable = ""
        for c in text:
            if not c.isprintable():
                c = ascii(c)[1:-1]
            printable += c
        super().__init__(printable)


class RecordedMessage(dict[str, Array]):
    """A recorded message: its arrays by name, and the `seq` by which later messages name it among their inputs."""

    def __init__(self, arrays: Mapping[str, Array], seq: int) -> None:
        super().__init__(arrays)
        self.seq = seq


class Recorder:
    """Writes one record.

    Args:
        directory: of the record; made if missing. It may hold a card, and no record yet.
        parties: every party: `server`, `client/0`, `client/1`, …, `aggregator`, and `world`, which gets
            what is published.
        card: the file of the system's card, which is copied to `card.yaml`; it can be added later.
        truth: the directory of the truth, outside the record.

    Raises:
        RecordError: an argument is refused, or a file cannot be written.
    """

    def __init__(
        self,
        directory: str | os.PathLike[str],
        parties: Iterable[str],
        card: str | os.PathLike[str] | None = None,
        truth: str | os.PathLike[str] | None = None,
    ) -> None:
        self.directory = Path(directory)
        self._parties = _checked_parties(parties)
        self._truth = None if truth is None else Path(truth)
        self._refuse_occupied()
        card_path = self.directory / "card.yaml"
        card_bytes: bytes | None = None
        if card is not None:
            source = str(Path(card))
            try:
                with Path(card).open("rb") as file:
                    card_bytes = file.read(_most(_YAML_BYTES) + 1)
            except OSError as error:
                problem = f"cannot be read ({error.strerror})"
                raise RecordError("card", source, problem, "Give a YAML file.") from None
            _refuse_above(_YAML_BYTES, len(card_bytes), "card", source, "the card")
            if card_path.exists() and card_path.read_bytes() != card_bytes:
                raise RecordError("card", source, f"differs from {card_path}", "Keep one of the two.")
        self._lock, self._pid = threading.RLock(), os.getpid()
        self._round, self._step, self._rounds = -1, 0, 0
        self._uses: BinaryIO | None = None
        self._state = "broken"
        transcript = self.directory / "transcript"
        with _writing(self.directory):
            _make_private(self.directory)
            (transcript / "payloads").mkdir(parents=True)
            log = _new(transcript / "messages.jsonl")
            if self._truth is not None:
                _make_private(self._truth)
                self._uses = _new(self._truth / "uses.jsonl")
                _sync(self._truth)
            if card_bytes is not None:
                replace_file(card_path, card_bytes)
            self._files = TranscriptFiles(transcript, log)
            self._save("open")
        self._state = "open"

    def round(self, t: int) -> None:
        """Open round `t`. The round before it is closed and made durable.

        Args:
            t: number of the round, from 0. It never goes back; the open round's own number changes nothing.

        Raises:
            RecordError: the number is refused, or the round before cannot be made durable.
        """
        with self._alone():
            number = _whole(t, _MOST_ROUNDS)
            if number is None:
                remedy = f"Count rounds from 0 to {_MOST_ROUNDS - 1}."
                raise RecordError("t", t, "is no number of a round", remedy)
            if number < self._round:
                raise RecordError("t", t, f"lies before round {self._round}", "Record rounds in their order.")
            if number > self._round:
                self._close_round("open")
                self._round, self._step = number, 0

    def send(
        self,
        sender: str,
        receivers: str | Iterable[str],
        kind: str,
        tensors: Mapping[str, Any],
        inputs: Inputs = "all",
        records: Iterable[int] | None = None,
    ) -> RecordedMessage:
        """Record one message of the open round, and return its arrays as recorded.

        Args:
            sender: the sending party.
            receivers: the receiving party or parties; empty for what a party releases to itself.
            kind: one of `KINDS`, or a name of your own such as `vendor/name`.
            tensors: by name: NumPy arrays, PyTorch tensors, numbers, or anything with `__array__` or DLPack.
            inputs: what the message was computed from: `"data"` for the sender's private data, and the `seq` of
                earlier messages. `"all"` means everything the sender held, which is always sound.
            records: the sender's own numbers of the records behind this message, for the truth.

        Returns:
            New arrays by name, sorted. PyTorch's bfloat16 is returned as float32, with the same values.

        Raises:
            RecordError: an argument is refused, or the message cannot be written.
        """
        self._refuse_strangers("sender", [sender])
        to = _names("receivers", receivers)
        self._refuse_strangers("receivers", to)
        if not isinstance(kind, str) or not (kind in KINDS or _OWN_KIND.fullmatch(kind)):
            remedy = f"Use a name of your own such as 'vendor/name' in small letters, or one of {', '.join(KINDS)}."
            raise RecordError("kind", kind, "is not known", remedy)
        if not isinstance(inputs, str):
            inputs = _items("inputs", inputs)
        record_numbers = None
        if records is not None:
            record_numbers = self._checked_records(records)
        about, payload, arrays = _encoded(tensors)
        salt = secrets.token_bytes(16)
        digest = hashlib.sha256(salt)
        digest.update(payload)
        fields = {
            **about,
            "defenses": [],
            "event": None,
            "fields": {},
            "kind": kind,
            "receivers": sorted(set(to)),
            "salt": salt.hex(),
            "sender": sender,
            "sha256": digest.hexdigest(),
        }
        with self._alone():
            fields["inputs"] = self._checked_inputs(inputs)
            seq = self._write(fields, payload, record_numbers)
            return RecordedMessage(arrays, seq)

    def add_parties(self, parties: Iterable[str]) -> None:
        """Add parties that take part from now on; those that the record names already stay as they are.

        Raises:
            RecordError: a party's name is refused.
        """
        added = _checked_parties(parties)
        with self._alone():
            self._parties |= added

    def hold(self, party: str, x: Any, y: Any, held_out: Iterable[int] = ()) -> None:
        """Write to the truth the records that a party holds: record i is row i. A second call replaces the first.

        Args:
            party: the party, or whose records attacks may use: `auxiliary` (like the clients', and no one trained on
                them), `test`, or `public` (in the order of the messages' `index`).
            x: (n, …) the records as the network gets them, channels first.
            y: (n,) their classes, (n, C) of 1 and 0, or (n, h, w) masks.
            held_out: rows that the party never trains on.

        Raises:
            RecordError: an argument is refused, or there is no directory of the truth.
        """
        with self._alone():
            truth = self._truth_directory("records that a party holds")
            if party in _SHARED:
                if _items("held_out", held_out):
                    raise RecordError("held_out", party, "has no rows to hold out", "Leave held_out out.")
                write_shared(truth, party, x, y)
                return
            self._refuse_strangers("party", [party])
            write_records(truth, party.removeprefix("client/"), x, y, held_out)

    def sites(self, sites: Mapping[str, str | int]) -> None:
        """Write to the truth which site, or node, stands behind each party. A second call replaces the first.

        Raises:
            RecordError: an argument is refused, or there is no directory of the truth.
        """
        with self._alone():
            truth = self._truth_directory("sites")
            self._refuse_strangers("sites", sites)
            for site in sites.values():
                if type(site) is not int and not is_name(site):
                    raise RecordError("sites", site, "is no site", f"Give its number, or {_NAMING}.")
            with _writing(truth):
                replace_file(truth / "sites.json", canonical(dict(sites)) + b"\n")

    def close(self) -> None:
        """Close the open round and the record. A closed recorder stays closed.

        Raises:
            RecordError: the round cannot be made durable.
        """
        if self._state == "closed":
            return
        try:
            with self._alone():
                self._close_round("closed")
                self._state = "closed"
        finally:
            self._release()

    def __enter__(self) -> Recorder:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close the record; if the block failed, leave it open at its last closed round."""
        if error is None:
            self.close()
        elif os.getpid() == self._pid:
            with self._lock:
                self._state = "broken"
                self._release()

    # -- arguments ---------------------------------------------------------------------------------------------

    def _refuse_occupied(self) -> None:
        """Refuse directories that hold a record or a truth already, or lie within each other."""
        for path in (self.directory / "record.json", self.directory / "transcript"):
            if os.path.lexists(path):
                place = str(self.directory)
                raise RecordError("directory", place, "holds a record already", "Choose another one.")
        if self._truth is None:
            return
        record, truth = self.directory.resolve(), self._truth.resolve()
        if record == truth or record in truth.parents or truth in record.parents:
            remedy = "Choose a directory outside the record, which is given to the auditor."
            raise RecordError("truth", str(self._truth), "and the record lie within each other", remedy)
        if os.path.lexists(self._truth / "uses.jsonl"):
            raise RecordError("truth", str(self._truth), "holds a truth already", "Choose another directory.")

    def _refuse_strangers(self, field: str, parties: Iterable[Any]) -> None:
        for party in parties:
            if not isinstance(party, str) or party not in self._parties:
                raise RecordError(field, party, "is no party of this record", "Name it in `parties` first.")

    def _truth_directory(self, field: str) -> Path:
        if self._truth is None:
            remedy = (
                f"Give the recorder a directory, as in Recorder(..., truth='TRUTH'), or leave out {field}."
            )
            raise RecordError("truth", None, f"leaves no place for {field}", remedy)
        return self._truth

    def _checked_records(self, records: Any) -> list[int]:
        self._truth_directory("records")
        if hasattr(records, "tolist"):
            records = records.tolist()
        numbers = []
        for record in _items("records", records):
            number = _whole(record, _MOST_ID)
            if number is None:
                raise RecordError("records", record, "is no number of a record", "Number the records from 0.")
            numbers.append(number)
        return numbers

    def _checked_inputs(self, inputs: str | list[int | str]) -> str | list[int | str]:
        if isinstance(inputs, str):
            if inputs != "all":
                remedy = "Give 'all', or a list such as ['data', 3]."
                raise RecordError("inputs", inputs, "is neither 'all' nor a list", remedy)
            return inputs
        checked: list[int | str] = []
        for source in inputs:
            seq = _whole(source, self._files.seq)
            if seq is not None:
                checked.append(seq)
            elif source == "data":
                checked.append("data")
            else:
                remedy = "Give the seq of messages sent before this one, which `send` returns, and 'data'."
                raise RecordError("inputs", source, "is no earlier message", remedy)
        return checked

    # -- files -------------------------------------------------------------------------------------------------

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """Keep other threads out, and refuse what would damage the record."""
        if os.getpid() != self._pid:
            remedy = (
                "Send from the process that made the recorder, or give each process a recorder of its own."
            )
            raise RecordError("recorder", str(self.directory), "belongs to another process", remedy)
        with self._lock:
            if self._state != "open":
                problem = "is closed" if self._state == "closed" else "ended with an error"
                remedy = "Begin a record in a new directory."
                raise RecordError("recorder", str(self.directory), problem, remedy)
            yield

    def _write(self, fields: dict[str, Any], payload: memoryview, records: list[int] | None) -> int:
        """Write a message, then its truth; return its `seq`."""
        if self._round < 0:
            raise RecordError("round", None, "is open", "Call round(0) before the first message.")
        kind, files = fields["kind"], self._files
        seq = files.seq
        line = files.line({**fields, "round": self._round, "step": self._step}, len(payload))
        _refuse_above(_LINE_BYTES, len(line), "message", kind, "a line of the log")
        _refuse_above(_LOG_BYTES, files.end + len(line), "message", kind, "the log")
        # Whatever interrupts the next lines leaves a record without a whole last message.
        self._state = "broken"
        with _writing(files.directory):
            files.write(line, self._round, payload)
            if records is not None and self._uses is not None:
                _append(self._uses, canonical({"records": records, "seq": seq}) + b"\n")
        self._step += 1
        self._state = "open"
        return seq

    def _close_round(self, status: str) -> None:
        """Make the open round durable, then say in `record.json` that it is."""
        self._state = "broken"
        with _writing(self.directory):
            if self._round >= 0:
                self._rounds += 1
            self._save(status)
        self._state = "open"

    def _save(self, status: str) -> None:
        """Replace `record.json`, once everything that it counts is durable."""
        value = record_json(self._parties, self._files.seq, self._files.head, self._rounds, status)
        truth = []
        if self._uses is not None:
            truth.append(self._uses)
        replace_file(self.directory / "record.json", value, lambda path: self._files.sync(path, *truth))

    def _release(self) -> None:
        """Close the files."""
        self._files.close()
        if self._uses is not None:
            self._uses.close()


def record_json(parties: Iterable[str], messages: int, head: str, rounds: int, status: str) -> bytes:
    """Return the bytes of `record.json`.

    Args:
        parties: every party of the record.
        messages: number of messages in closed rounds.
        head: SHA-256 of the last one's line.
        rounds: number of closed rounds.
        status: `open` or `closed`.
    """
    value = {
        "head": head,
        "messages": messages,
        "parties": list(parties),
        "recorder": _VERSION,
        "rounds": rounds,
        "schema": SCHEMA,
        "status": status,
    }
    return canonical(value) + b"\n"


# -- messages on disk ------------------------------------------------------------------------------------------


class TranscriptFiles:
    """Writes the log of a transcript and the payloads beside it, for the recorder and for fdaudit's own runs.

    Guarantees:
      * a payload is whole in its file before the line that names it is written;
      * every line holds the SHA-256 of the line before;
      * every byte of every file belongs to one payload: small payloads of a round share a file, without gaps and in the
        messages' order, and a larger one has its own, which is never rewritten;
      * a line gives the length of its own payload, and nothing that reveals the length of another's.

    Args:
        directory: of the transcript; it has a folder `payloads`.
        log: the log, open at its end, unbuffered.
        seq: number of the next message.
        end: length of the log in bytes.
        head: SHA-256 of the log's last line.
        round: of that line; later ones have no file in `payloads`.
        shared: the file of that round's small payloads, open at its end, unbuffered; None if there is none.

    Attributes:
        directory: the same.
        seq: the same, after the messages written.
        end: the same.
        head: the same.
    """

    def __init__(
        self,
        directory: Path,
        log: BinaryIO,
        *,
        seq: int = 0,
        end: int = 0,
        head: str = GENESIS,
        round: int = -1,
        shared: BinaryIO | None = None,
    ) -> None:
        self.directory, self.seq, self.end, self.head = directory, seq, end, head
        self._log, self._round, self._shared = log, round, shared
        self._unsynced: dict[Path, None] = {}
        self._threads = ThreadPoolExecutor(_SYNCS_AT_ONCE, thread_name_prefix="fdaudit-sync")

    def line(self, fields: Mapping[str, Any], length: int | None) -> bytes:
        """Return the line of the next message, with its newline; nothing is written.

        Args:
            fields: all fields of the line; `payload`, `previous` and `seq` are filled in.
            length: of the payload in bytes; None if only its digest is kept.
        """
        payload = None
        if length is not None:
            payload = {"file": self._payload_name(fields["round"], length), "length": length}
        return canonical({**fields, "payload": payload, "previous": self.head, "seq": self.seq}) + b"\n"

    def write(self, line: bytes, round: int, payload: bytes | memoryview | None) -> None:
        """Write the next message.

        Args:
            line: from `line`.
            round: the message's round.
            payload: None if only its digest is kept.

        Raises:
            OSError: something could not be written whole; write nothing more.
        """
        if payload is not None:
            path = self.directory / self._payload_name(round, len(payload))
            self._unsynced[path] = None
            if len(payload) > _SMALL:
                with _new(path) as file:
                    _append(file, payload)
            else:
                if self._shared is None or self._round != round:
                    if self._shared is not None:
                        self._shared.close()
                    self._round, self._shared = round, _new(path)
                _append(self._shared, payload)
        _append(self._log, line)
        self.head = hashlib.sha256(line[:-1]).hexdigest()
        self.end += len(line)
        self.seq += 1

    def sync(self, *others: Path | BinaryIO) -> None:
        """Make everything so far durable, and `others`: contents of files, and names inside directories.

        Several are flushed side by side: a disk does that in less time than one after the other.
        """
        targets = [*self._unsynced, self.directory / "payloads", self._log, self.directory, *others]
        self._unsynced.clear()
        try:
            for _ in self._threads.map(_sync, targets):
                pass
        except RuntimeError:  # no thread can start, as when Python is about to end
            for target in targets:
                _sync(target)

    def close(self) -> None:
        """Close the files and end the threads."""
        self._threads.shutdown()
        self._log.close()
        if self._shared is not None:
            self._shared.close()

    def _payload_name(self, round: int, length: int) -> str:
        if length > _SMALL:
            return own_name(self.seq)
        return shared_name(round)


def shared_name(round: int) -> str:
    """Return the name, below the transcript, of the file of a round's small payloads."""
    return f"payloads/round-{round:06d}.shard"


def own_name(seq: int) -> str:
    """Return the name, below the transcript, of the file of a large payload."""
    return f"payloads/{seq:08d}.safetensors"


# -- the truth -------------------------------------------------------------------------------------------------


def write_records(truth: Path, site: str, x: Any, y: Any, held_out: Iterable[int] = ()) -> None:
    """Write the records of a site to a directory of the truth, as `client-SITE.npz`.

    Args:
        truth: the directory.
        site: the site's name, such as `0`.
        x: (n, …) the records as the network gets them, channels first.
        y: (n,) their classes, (n, C) of 1 and 0, or (n, h, w) masks.
        held_out: rows that the site never trains on.

    Raises:
        RecordError: an argument is refused, or the file cannot be written.
    """
    if not _SITE.fullmatch(site):
        remedy = "Give its number, or a name of letters, digits, dots, dashes and underscores."
        raise RecordError("site", site, "is no name of a site's file", remedy)
    _write_records(truth, f"client-{site}.npz", x, y, held_out)


def write_shared(truth: Path, name: str, x: Any, y: Any) -> None:
    """Write records that no party holds to a directory of the truth, as `NAME.npz`.

    Args:
        truth: the directory.
        name: whose records attacks may use: `auxiliary`, `test` or `public`, see `Recorder.hold`.
        x: (n, …) the records as the network gets them, channels first.
        y: (n,) their classes, (n, C) of 1 and 0, or (n, h, w) masks.

    Raises:
        RecordError: an argument is refused, or the file cannot be written.
    """
    if name not in _SHARED:
        raise RecordError("name", name, "is no name of shared records", f"Choose from {', '.join(_SHARED)}.")
    _write_records(truth, f"{name}.npz", x, y)


def _write_records(
    truth: Path, file_name: str, x: Any, y: Any, held_out: Iterable[int] | None = None
) -> None:
    """Write records to a file of the truth; without `held_out` the file has no such rows."""
    arrays = {}
    for name, value in (("x", x), ("y", y)):
        if isinstance(value, list | tuple):
            value = np.asarray(value)
        array, _, dtype = _bits(name, value)
        if dtype is None:
            array = _widened(array)
        arrays[name] = array
    records = 0
    if arrays["x"].ndim:
        records = len(arrays["x"])
    if not records or arrays["y"].ndim not in (1, 2, 3) or len(arrays["y"]) != records:
        shapes = f"{arrays['x'].shape} and {arrays['y'].shape}"
        raise RecordError("x, y", shapes, "are no records", "Give x and y with one row for each record.")
    rows = []
    if held_out is not None:
        rows = _items("held_out", held_out)
    if any(_whole(row, records) is None for row in rows) or len(set(rows)) < len(rows):
        raise RecordError("held_out", rows, "are no rows of x", f"Give different rows, below {records}.")
    with _writing(truth):
        truth.mkdir(mode=0o700, parents=True, exist_ok=True)
        path = truth / file_name
        temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
        with temporary.open("wb") as file:
            if held_out is not None:
                arrays["held_out"] = np.array(sorted(rows), dtype=np.int64)
            np.savez(file, **arrays)  # type: ignore[arg-type]  # its own keyword `allow_pickle` is no array
        temporary.replace(path)


def _checked_parties(parties: Iterable[str]) -> dict[str, None]:
    """Return the parties in their order, as the keys of a mapping."""
    names = _names("parties", parties)
    for party in names:
        if not isinstance(party, str) or not PARTY.fullmatch(party):
            remedy = "Name them server, client/0 to client/9999, aggregator and world."
            raise RecordError("parties", party, "is no name of a party", remedy)
    distinct = dict.fromkeys(names)
    if not names or len(distinct) < len(names):
        raise RecordError("parties", names, "are none, or name one twice", "Name every party once.")
    return distinct


# -- tensors ---------------------------------------------------------------------------------------------------


def _encoded(tensors: Any) -> tuple[dict[str, Any], memoryview, dict[str, Array]]:
    """Return the line's fields about the tensors, their safetensors bytes, and arrays that are views of these bytes."""
    if not isinstance(tensors, Mapping):
        remedy = "Give a mapping of names to arrays, such as dict(zip(model.state_dict(), parameters, strict=True))."
        raise RecordError("tensors", type(tensors).__name__, "has no names", remedy)
    encodings = {name: _bits(name, value) for name, value in tensors.items()}
    header: dict[str, Any] = {}
    end = 0
    for name in sorted(encodings, key=lambda n: (_RANKS[encodings[n][1]], n)):
        bits, kind, _ = encodings[name]
        begin, end = end, end + bits.nbytes
        header[name] = {"dtype": kind, "shape": list(bits.shape), "data_offsets": [begin, end]}
    text = json.dumps(header, ensure_ascii=False, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    start = 8 + len(text)
    _refuse_above(_TENSOR_BYTES, start + end, "tensors", sorted(encodings)[:8], "the message")
    payload = np.empty(start + end, dtype=np.uint8).data  # the next lines fill all of it
    payload[:start] = len(text).to_bytes(8, "little") + text
    arrays: dict[str, Array] = {}
    for name in sorted(encodings):
        bits, _, dtype = encodings[name]
        place = start + header[name].pop("data_offsets")[0]
        recorded: Array = np.ndarray(bits.shape, bits.dtype.newbyteorder("<"), payload, place)
        recorded[...] = bits
        if dtype is None:
            arrays[name] = _widened(recorded)
        else:
            arrays[name] = recorded.view(dtype)
    return {"bytes_on_wire": end, "tensors": header}, payload, arrays


def _bits(name: Any, value: Any) -> tuple[Array, str, np.dtype[Any] | None]:
    """Return a tensor as an array, safetensors' name of its type, and the type to return it in.

    NumPy has no bfloat16. Such an array holds the bits as whole numbers. The type to return is None for PyTorch's.
    """
    if not is_name(name):
        raise RecordError("tensors", name, "is no name of a tensor", f"Use {_NAMING}.")
    if _RESERVED.fullmatch(name):
        remedy = (
            "Use a name that does not end with ':codes', ':grid' or ':layout', and is not '__metadata__'."
        )
        raise RecordError("tensors", name, "is a name that the format reserves", remedy)
    described = f"{name!r} of type {type(value).__name__}"
    try:
        array, dtype = _array(value)
    except (TypeError, ValueError, RuntimeError, AttributeError, BufferError) as error:
        remedy = "Give a dense array with its values in memory, as from numpy.asarray."
        raise RecordError("tensors", described, f"is no array ({error})", remedy) from None
    kind = "bfloat16" if dtype is None or dtype.name == "bfloat16" else dtype.name
    if kind not in _TYPES:
        raise RecordError("tensors", described, f"holds {kind}", f"Convert it to one of {', '.join(_TYPES)}.")
    return array, _TYPES[kind], dtype


def _array(value: Any) -> tuple[Array, np.dtype[Any] | None]:
    """Return an array, or the bits of bfloat16, and its type in this machine's byte order; None: PyTorch's bfloat16."""
    if hasattr(value, "detach"):  # a PyTorch tensor
        value = value.detach().cpu()  # NumPy reads only what has no gradient and lies in main memory
        if str(value.dtype) == "torch.bfloat16":
            return value.view(sys.modules["torch"].int16).numpy().view(np.uint16), None
        array: Array = value.numpy(force=True)
    elif hasattr(value, "__array__") or isinstance(value, (bool, int, float)):
        array = np.asarray(value)
    elif hasattr(value, "__dlpack__"):
        array = np.from_dlpack(value)
    else:
        raise TypeError("it has neither __array__ nor __dlpack__")
    if array.dtype.name == "bfloat16":
        return array.view(np.uint16), array.dtype
    return array, array.dtype.newbyteorder("=")


def _widened(bits: Array) -> Array:
    """Return bfloat16 values as float32, which holds each of them exactly."""
    wide = bits.astype(np.uint32)
    wide <<= 16
    return wide.view(np.float32)


# -- small things ----------------------------------------------------------------------------------------------


def _whole(value: Any, below: int) -> int | None:
    """Return a whole number from 0 up to, not including, `below`; None if the value is none."""
    if isinstance(value, (int, np.integer)) and not isinstance(value, bool) and 0 <= value < below:
        return int(value)
    return None


_NAMING = (
    f"a name of 1 to {_MOST_NAME} characters that print, without a space at either end, or a part '.' or '..'"
)


def is_name(value: object) -> bool:
    """Return whether a value may name a tensor or a site."""
    if not isinstance(value, str) or not 0 < len(value) <= _MOST_NAME:
        return False
    if not value.isprintable() or _INVISIBLE.search(value) or value.strip() != value:
        return False
    return {".", ".."}.isdisjoint(value.split("/"))


def _names(field: str, value: str | Iterable[str]) -> list[Any]:
    """Return one name as a list, and several as they are."""
    if isinstance(value, str):
        return [value]
    return _items(field, value)


def _items(field: str, value: Any) -> list[Any]:
    try:
        return list(value)
    except TypeError:
        raise RecordError(field, type(value).__name__, "is no list", "Give a list.") from None


def canonical(value: object) -> bytes:
    """Return fdaudit's canonical form of a JSON value."""
    return _ENCODER.encode(value).encode()


_ENCODER = json.JSONEncoder(sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False)


def _most(limit: tuple[str, int]) -> int:
    variable, default = limit
    text = os.environ.get(variable, str(default))
    if not (text.isascii() and text.isdigit()):
        raise RecordError(variable, text, "is no whole number", f"Set it to {default}, say.")
    return int(text)


def _refuse_above(limit: tuple[str, int], size: int, field: str, value: object, what: str) -> None:
    """Refuse what fdaudit's readers would refuse."""
    most = _most(limit)
    if size > most:
        problem = f"does not fit: {what} would have {size:,} bytes, and at most {most:,} are read"
        remedy = f"Send less at once, or set {limit[0]} here and at the reader."
        raise RecordError(field, value, problem, remedy)


@contextmanager
def _writing(path: Path) -> Iterator[None]:
    """Turn a failed write into an error with a remedy."""
    try:
        yield
    except OSError as error:
        remedy = "Begin a record in a new directory with enough room. Rounds that were closed are kept."
        place = str(error.filename or path)
        raise RecordError("file", place, f"cannot be written ({error.strerror or error})", remedy) from error


def _make_private(directory: Path) -> None:
    """Make a directory and close it to other users."""
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    directory.chmod(0o700)


def _new(path: Path) -> BinaryIO:
    """Make a file that does not exist, and open it unbuffered. Only its owner may write to it."""
    return open(path, "xb", buffering=0, opener=lambda path, flags: os.open(path, flags, 0o644))


def _append(file: BinaryIO, data: bytes | memoryview) -> None:
    """Write all of `data`; a system call may write a part."""
    rest = memoryview(data)
    try:
        while rest:
            rest = rest[file.write(rest) :]
    except OSError as error:
        error.filename = str(file.name)
        raise


def _sync(target: Path | BinaryIO) -> None:
    """Make the contents of a file durable, or the names inside a directory."""
    if not isinstance(target, Path):
        os.fsync(target.fileno())
        return
    descriptor = os.open(target, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def replace_file(path: Path, data: bytes, sync: Callable[[Path], None] = _sync) -> None:
    """Replace a file in one step, and make it durable.

    Args:
        path: the file.
        data: its new content.
        sync: makes a file durable, and what must be durable before `path` has its new content.
    """
    temporary = path.with_name(f".{path.name}.tmp")
    temporary.write_bytes(data)
    sync(temporary)
    temporary.replace(path)
    _sync(path.parent)
