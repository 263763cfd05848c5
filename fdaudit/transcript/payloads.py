"""Files of payloads: small payloads of a round share one file, larger ones have their own.

Guarantees:
  * a payload is complete in its file before `write` returns, so a line that names it may follow;
  * every byte of every file belongs to one payload: a round's file holds its payloads without gaps, in the messages'
    order;
  * a message gives the length of its own payload, and nothing that reveals the length of another's;
  * a file of one payload is never rewritten once it has its name.
"""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from fdaudit.errors import IntegrityError, reason_of
from fdaudit.limits import TENSOR_BYTES, open_file
from fdaudit.parallel.memory import refuse_forecast
from fdaudit.storage.files import commitment, write_atomically
from fdaudit.storage.tree import make_folder, open_appending

if TYPE_CHECKING:
    from fdaudit.transcript.messages import Message

__all__ = ["PAYLOADS", "Payloads", "payload_name", "placed", "read_payload", "shared_name"]

PAYLOADS = "payloads"
_OWN = re.compile(r"payloads/(\d{8})\.safetensors")
_SHARED = re.compile(r"payloads/round-(\d{6})\.shard")


_SMALL = 1 << 20
"""Largest payload, in bytes, that is stored in its round's file. A separate file costs time to make, flush, send and
remove."""


class Payloads:
    """Writes the payloads of one transcript.

    Args:
        directory: the transcript's directory.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        directory.parent.mkdir(parents=True, exist_ok=True)
        for folder in (directory, directory / PAYLOADS):
            make_folder(folder)
        self._unsynced: list[Path] = []
        self._open: tuple[Path, BinaryIO] | None = None

    def rewind(self, seq: int, round: int, end: int) -> None:
        """Remove the payloads of messages from `seq` on.

        Args:
            seq: number of the next message.
            round: the round of the message before it; -1 if there is none.
            end: end of the payloads before `seq` in that round's file; 0 if it has none of them.
        """
        for path in (self._directory / PAYLOADS).iterdir():
            name = f"{PAYLOADS}/{path.name}"
            own, shared = _OWN.fullmatch(name), _SHARED.fullmatch(name)
            if own is not None and int(own[1]) < seq:
                continue
            if shared is not None and int(shared[1]) < round:
                continue
            if shared is not None and int(shared[1]) == round and end:
                open_appending(path, end).close()
                continue
            path.unlink()

    def write(self, seq: int, round: int, payload: bytes) -> dict[str, Any]:
        """Write one payload and return its `file` and `length`."""
        if len(payload) > _SMALL:
            name = _own_name(seq)
            write_atomically(self._directory / name, payload, sync=False)
            self._unsynced.append(self._directory / name)
            return {"file": name, "length": len(payload)}
        name = shared_name(round)
        if self._file(self._directory / name).write(payload) != len(payload):
            raise OSError(errno.ENOSPC, "only part of a payload could be written", name)
        return {"file": name, "length": len(payload)}

    def written(self) -> list[Path]:
        """Return the files, and their directory, to be made durable since the last call."""
        paths = [*self._unsynced, self._directory / PAYLOADS]
        self._unsynced.clear()
        return paths

    def close(self) -> None:
        """Close open files."""
        if self._open is not None:
            self._open[1].close()
            self._open = None

    def _file(self, path: Path) -> BinaryIO:
        """Return the file of a round, at its end."""
        if self._open is None or self._open[0] != path:
            self.close()
            self._open = (path, open_appending(path))
            self._unsynced.append(path)
        elif path not in self._unsynced[-1:]:
            self._unsynced.append(path)
        return self._open[1]


def shared_name(round: int) -> str:
    """Return the name, below the transcript, of the file of a round's small payloads."""
    return f"{PAYLOADS}/round-{round:06d}.shard"


def _own_name(seq: int) -> str:
    """Return the name, below the transcript, of the file of a large payload."""
    return f"{PAYLOADS}/{seq:08d}.safetensors"


def placed(messages: Iterable[Message]) -> Iterator[Message]:
    """Yield the messages of a log, or of an exported one, in order, each with its payload's offset."""
    round, end = -1, 0
    for message in messages:
        if message.round != round:
            round, end = message.round, 0
        if message.payload is None or message.payload["file"] != shared_name(round):
            yield message
            continue
        yield message if message.offset == end else replace(message, offset=end)
        end += message.payload["length"]


def payload_name(message: Message) -> str:
    """Return the name, below the transcript, of the file of a message's payload; it never leads out of it.

    Raises:
        IntegrityError: the payload was not kept, or its name is not one that a transcript writes.
    """
    if message.payload is None:
        raise IntegrityError([f"message {message.seq} was recorded as a digest only"])
    name = str(message.payload.get("file"))
    if name not in (_own_name(message.seq), shared_name(message.round)):
        raise IntegrityError([f"message {message.seq} names {name!r}, not a payload of this transcript"])
    return name


def read_payload(directory: Path, message: Message) -> bytes:
    """Return the payload of a message from `placed`, checked against its digest.

    Raises:
        IntegrityError: the payload was not kept, its name is not one a transcript writes, or it differs.
    """
    name, length = payload_name(message), (message.payload or {})["length"]
    try:
        payload = _slice(directory / name, message.offset, length)
        salt = bytes.fromhex(message.salt)
    except (OSError, ValueError) as error:
        problem = reason_of(error)
        raise IntegrityError([f"payload of message {message.seq} ({name}): {problem}"]) from None
    if commitment(salt, payload) != message.sha256:
        raise IntegrityError([f"payload of message {message.seq} ({name}) does not match its digest"])
    return payload


def _slice(path: Path, offset: int, length: int) -> bytes:
    if path.is_symlink() or not path.is_file():
        raise ValueError("is missing" if not path.exists() else "is no regular file")
    if length > TENSOR_BYTES.most:
        raise ValueError(f"has {TENSOR_BYTES.refusal(length)}")
    refuse_forecast("payload", path.name, 3 * length)  # as read, decoded, and in its reader's form
    with open_file(path, follow=False) as file:
        if min(offset, length) < 0 or offset + length > os.fstat(file.fileno()).st_size:
            raise ValueError("is shorter than its line says")
        file.seek(offset)
        return file.read(length)
