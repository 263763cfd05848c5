"""Where payloads lie below a transcript: small ones of a round in one file, larger ones in files of their own.

Guarantees:
  * a payload is whole in its file before `write` returns, so a line that names it may follow;
  * every byte of every file belongs to one payload: those of a round's file lie end to end, in the messages' order;
  * a file of one payload is never written again once it has its name.
"""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from fdaudit.errors import IntegrityError
from fdaudit.storage import commitment, write_atomically

if TYPE_CHECKING:
    from fdaudit.messages import Message

__all__ = ["PAYLOADS", "Payloads", "payload_name", "read_payload", "shared_name"]

PAYLOADS = "payloads"
_OWN = re.compile(r"payloads/(\d{8})\.safetensors")
_SHARED = re.compile(r"payloads/round-(\d{6})\.shard")


_SMALL = 1 << 20
"""Bytes up to which a payload lies in its round's file: to make, flush, send and remove a file costs more."""


class Payloads:
    """Writes the payloads of one transcript.

    Args:
        directory: the transcript's directory.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        (directory / PAYLOADS).mkdir(parents=True, exist_ok=True)
        self._unsynced: list[Path] = []
        self._open: tuple[Path, BinaryIO] | None = None

    def rewind(self, seq: int, round: int, end: int) -> None:
        """Removes what was written for messages from `seq` on.

        Args:
            seq: number of the next message.
            round: the round of the message before it; -1 where there is none.
            end: where in that round's file the payloads before `seq` end; 0 where it has none of them.
        """
        for path in (self._directory / PAYLOADS).iterdir():
            name = f"{PAYLOADS}/{path.name}"
            own, shared = _OWN.fullmatch(name), _SHARED.fullmatch(name)
            if own is not None and int(own[1]) < seq:
                continue
            if shared is not None and int(shared[1]) < round:
                continue
            if shared is not None and int(shared[1]) == round and end:
                os.truncate(path, end)
                continue
            path.unlink()

    def write(self, seq: int, round: int, payload: bytes) -> dict[str, Any]:
        """Writes one payload and says where it lies: `file`, `offset`, `length`."""
        if len(payload) > _SMALL:
            name = f"{PAYLOADS}/{seq:08d}.safetensors"
            write_atomically(self._directory / name, payload, sync=False)
            self._unsynced.append(self._directory / name)
            return {"file": name, "offset": 0, "length": len(payload)}
        name = shared_name(round)
        file = self._file(self._directory / name)
        offset = file.tell()
        if file.write(payload) != len(payload):
            raise OSError(errno.ENOSPC, "only part of a payload could be written", name)
        return {"file": name, "offset": offset, "length": len(payload)}

    def written(self) -> list[Path]:
        """What has to be made durable since this was last asked: the files, and their directory."""
        paths = [*self._unsynced, self._directory / PAYLOADS]
        self._unsynced.clear()
        return paths

    def close(self) -> None:
        """Closes what is open."""
        if self._open is not None:
            self._open[1].close()
            self._open = None

    def _file(self, path: Path) -> BinaryIO:
        """The file of a round, at its end."""
        if self._open is None or self._open[0] != path:
            self.close()
            file = path.open("ab", buffering=0)
            file.seek(0, 2)
            self._open = (path, file)
            self._unsynced.append(path)
        elif path not in self._unsynced[-1:]:
            self._unsynced.append(path)
        return self._open[1]


def shared_name(round: int) -> str:
    """The file in which the small payloads of a round lie, below its transcript."""
    return f"{PAYLOADS}/round-{round:06d}.shard"


def payload_name(message: Message) -> str:
    """The file in which the payload of a message lies, below its transcript; never outside of it.

    Raises:
        IntegrityError: the payload was not kept, or its name is not one that a transcript writes.
    """
    if message.payload is None:
        raise IntegrityError([f"message {message.seq} was recorded as a digest only"])
    name = str(message.payload.get("file"))
    if not (_OWN.fullmatch(name) or _SHARED.fullmatch(name)):
        raise IntegrityError([f"message {message.seq} names {name!r}, not a payload of this transcript"])
    return name


def read_payload(directory: Path, message: Message) -> bytes:
    """The payload of a message, checked against its digest.

    Raises:
        IntegrityError: the payload was not kept, its name is not one a transcript writes, or it differs.
    """
    name, where = payload_name(message), message.payload or {}
    try:
        payload = _slice(directory / name, where)
        salt = bytes.fromhex(message.salt)
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise IntegrityError([f"payload of message {message.seq} ({name}): {error}"]) from None
    if commitment(salt, payload) != message.sha256:
        raise IntegrityError([f"payload of message {message.seq} ({name}) does not match its digest"])
    return payload


def _slice(path: Path, where: Mapping[str, Any]) -> bytes:
    if path.is_symlink() or not path.is_file():
        raise ValueError("is missing" if not path.exists() else "is no regular file")
    with path.open("rb") as file:
        offset, length = int(where["offset"]), int(where["length"])
        if min(offset, length) < 0 or offset + length > path.stat().st_size:
            raise ValueError("is shorter than its line says")
        file.seek(offset)
        return file.read(length)
