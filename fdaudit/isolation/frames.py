"""Frames: a JSON header and a safetensors body. An attack and the auditor exchange nothing else.

Guarantees:
  * received data are plain: JSON values, and tensors rebuilt from bytes; no class of the other side is included;
  * received text has only complete characters: it can be written to a result and to a page;
  * no more is read into memory than the receiver allows.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, BinaryIO

from fdaudit.errors import FdauditError, IntegrityError
from fdaudit.storage.files import decode, encode, parse_json

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["MOST_ANSWER", "MOST_BYTES", "EndedError", "Frame", "MalformedError", "Tensors", "receive", "send"]

MOST_BYTES = 1 << 30
"""Most bytes of tensors in one frame, unless the receiver sets a smaller limit."""
_MOST_HEADER = 16 << 20
MOST_ANSWER = 1 << 20
"""Most bytes of JSON in a frame from an attack: it holds no long list but numbers of messages."""
_LENGTHS = struct.Struct(">IQ")


class EndedError(FdauditError):
    """The other side has closed its end."""


class MalformedError(FdauditError):
    """The other side sent an invalid or an unexpected frame."""


@dataclass(frozen=True, eq=False)
class Frame:
    """One message between an attack and the auditor.

    Attributes:
        kind: its type.
        fields: its JSON values.
        tensors: by name.
    """

    kind: str
    fields: Mapping[str, Any]
    tensors: Mapping[str, Tensor]


class Tensors:
    """Names for the tensors of a frame under construction; a tensor used twice is sent once."""

    def __init__(self) -> None:
        self.named: dict[str, Tensor] = {}
        self._names: dict[int, str] = {}

    def name(self, tensor: Tensor) -> str:
        """Return the name under which a tensor is sent."""
        if id(tensor) not in self._names:
            self._names[id(tensor)] = name = f"t{len(self.named)}"
            self.named[name] = tensor
        return self._names[id(tensor)]


def send(stream: BinaryIO, kind: str, fields: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> None:
    """Write one frame.

    Raises:
        EndedError: the reader has closed its end.
    """
    header = json.dumps({"kind": kind, "fields": dict(fields)}, allow_nan=False).encode("ascii")
    body = encode(tensors) if tensors else b""
    try:
        stream.write(_LENGTHS.pack(len(header), len(body)))
        stream.write(header)
        stream.write(body)
        stream.flush()
    except (BrokenPipeError, ValueError) as error:
        raise EndedError(f"the other side has gone: {error}") from None


def receive(stream: BinaryIO, most: int = MOST_BYTES, *, most_header: int = _MOST_HEADER) -> Frame:
    """Return the next frame.

    Args:
        stream: the stream to read.
        most: the most bytes of tensors that are accepted.
        most_header: the most bytes of JSON that are accepted.

    Raises:
        EndedError: the stream is at its end.
        MalformedError: the data are not a frame, or larger than accepted.
    """
    start = stream.read(_LENGTHS.size)
    if not start:
        raise EndedError("the other side has closed its end")
    try:
        header, body = _LENGTHS.unpack(start)
        if header > most_header or body > most:
            raise ValueError(f"{header} and {body} bytes are more than {most_header} and {most}")
        value = parse_json(_whole(stream, header))
        json.dumps(value, ensure_ascii=False).encode()  # text with half a character is refused
        tensors = decode(_whole(stream, body)) if body else {}
        kind, fields = value["kind"], value["fields"]
        if not isinstance(kind, str) or not isinstance(fields, dict) or len(value) != 2:
            raise ValueError("not a kind with its fields")
    except (struct.error, ValueError, KeyError, TypeError, IntegrityError) as error:
        raise MalformedError(f"what came is no frame: {error}") from None
    return Frame(kind, fields, tensors)


def _whole(stream: BinaryIO, length: int) -> bytes:
    """Read a number of bytes in parts, so that a claimed length by itself reserves no memory."""
    parts, missing = [], length
    while missing:
        part = stream.read(min(missing, 1 << 24))
        if not part:
            raise ValueError("it ends too early")
        parts.append(part)
        missing -= len(part)
    return b"".join(parts)
