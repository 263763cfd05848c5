"""Where payloads lie below a transcript: a file a message, or a file a round where messages are many and small.

Guarantees:
  * a payload is whole in its file before `write` returns, so a line that names it may follow;
  * every byte of every file belongs to one payload: payloads of a shared file lie end to end;
  * a file a message is never written again once it has its name.
"""

from __future__ import annotations

import errno
import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from fdaudit.errors import IntegrityError
from fdaudit.storage import commitment, write_atomically

if TYPE_CHECKING:
    from fdaudit.messages import Message

__all__ = ["PAYLOADS", "Payloads", "payload_name", "read_payload"]

PAYLOADS = "payloads"
_OWN = re.compile(r"payloads/(\d{8})\.safetensors")
_SHARED = re.compile(r"payloads/round-(\d{6})\.shard")


class Payloads:
    """Writes the payloads of one transcript.

    Args:
        directory: the transcript's directory.
        shared: all payloads of a round lie in one file.
    """

    def __init__(self, directory: Path, *, shared: bool) -> None:
        self._directory, self._shared = directory, shared
        (directory / PAYLOADS).mkdir(parents=True, exist_ok=True)
        self._unsynced: list[Path] = []
        self._open: tuple[Path, BinaryIO] | None = None

    def rewind(self, seq: int, last: Message | None) -> None:
        """Removes what was written for messages from `seq` on; `last` is the message before it."""
        for path in (self._directory / PAYLOADS).iterdir():
            name = f"{PAYLOADS}/{path.name}"
            own, shared = _OWN.fullmatch(name), _SHARED.fullmatch(name)
            if own is not None and int(own[1]) < seq:
                continue
            if shared is not None and last is not None and int(shared[1]) < last.round:
                continue
            if last is not None and last.payload is not None and last.payload["file"] == name:
                with path.open("r+b") as file:
                    file.truncate(last.payload["offset"] + last.payload["length"])
                continue
            path.unlink()

    def write(self, seq: int, round: int, payload: bytes) -> dict[str, Any]:
        """Writes one payload and says where it lies: `file`, `offset`, `length`."""
        if not self._shared:
            name = f"{PAYLOADS}/{seq:08d}.safetensors"
            write_atomically(self._directory / name, payload, sync=False)
            self._unsynced.append(self._directory / name)
            return {"file": name, "offset": 0, "length": len(payload)}
        name = f"{PAYLOADS}/round-{round:06d}.shard"
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
