"""Find and read payloads: small payloads of a round share one file, larger ones have their own.

`TranscriptFiles` writes them. Its lines give each payload's length, from which `placed` computes where it begins.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from fdaudit.errors import IntegrityError, reason_of
from fdaudit.limits import TENSOR_BYTES, open_file
from fdaudit.parallel.memory import refuse_forecast
from fdaudit.recording.recorder import own_name, shared_name
from fdaudit.storage.files import commitment
from fdaudit.storage.tree import open_appending

if TYPE_CHECKING:
    from fdaudit.transcript.messages import Message

__all__ = ["PAYLOADS", "payload_name", "placed", "read_payload", "rewind"]

PAYLOADS = "payloads"
_OWN = re.compile(r"payloads/(\d{8})\.safetensors")
_SHARED = re.compile(r"payloads/round-(\d{6})\.shard")


def rewind(directory: Path, seq: int, round: int, end: int) -> BinaryIO | None:
    """Remove the payloads of messages from `seq` on.

    Args:
        directory: of the transcript.
        seq: number of the next message.
        round: the round of the message before it; -1 if there is none.
        end: end of the payloads before `seq` in that round's file; 0 if it has none of them.

    Returns:
        That round's file, open at its end; None if it has none of the payloads.
    """
    last_shared = None
    for path in (directory / PAYLOADS).iterdir():
        name = f"{PAYLOADS}/{path.name}"
        own, shared = _OWN.fullmatch(name), _SHARED.fullmatch(name)
        if own is not None and int(own[1]) < seq:
            continue
        if shared is not None and int(shared[1]) < round:
            continue
        if shared is not None and int(shared[1]) == round and end:
            last_shared = open_appending(path, end)
            continue
        path.unlink()
    return last_shared


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
    if name not in (own_name(message.seq), shared_name(message.round)):
        raise IntegrityError([f"message {message.seq} names {name!r}, not a payload of this transcript"])
    return name


def read_payload(directory: Path, message: Message) -> bytes:
    """Return the payload of a message from `placed`, checked against its digest.

    Raises:
        IntegrityError: the payload was not kept, its name is not one a transcript writes, or it differs.
    """
    name, length = payload_name(message), (message.payload or {})["length"]
    path, offset = directory / name, message.offset
    try:
        if path.is_symlink() or not path.is_file():
            raise ValueError("is missing" if not path.exists() else "is no regular file")
        if length > TENSOR_BYTES.most:
            raise ValueError(f"has {TENSOR_BYTES.refusal(length)}")
        refuse_forecast("payload", path.name, 3 * length)  # as read, decoded, and in its reader's form
        with open_file(path, follow=False) as file:
            if min(offset, length) < 0 or offset + length > os.fstat(file.fileno()).st_size:
                raise ValueError("is shorter than its line says")
            file.seek(offset)
            payload = file.read(length)
        salt = bytes.fromhex(message.salt)
    except (OSError, ValueError) as error:
        problem = reason_of(error)
        raise IntegrityError([f"payload of message {message.seq} ({name}): {problem}"]) from None
    if commitment(salt, payload) != message.sha256:
        raise IntegrityError([f"payload of message {message.seq} ({name}) does not match its digest"])
    return payload
