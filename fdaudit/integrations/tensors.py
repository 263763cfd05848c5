"""Values of a framework's message as tensors of a record, whatever names a client chose for them."""

from __future__ import annotations

import hashlib
import io
import re
from typing import Any
from urllib.parse import quote

import numpy as np
from numpy.typing import NDArray

from fdaudit.recording.recorder import is_name

__all__ = ["Tensors", "as_bytes", "as_tensors", "npy", "safe_name"]

Tensors = dict[str, NDArray[Any]]

_LONGEST = 400
"""Most characters of a name that is kept as it is; a record accepts longer ones, which leaves room for an ending."""
_SPECIAL = re.compile(r".*:(bytes|codes|grid|layout|lengths|name)|__metadata__", re.DOTALL)
_TEXT = str | bytes | bytearray


def safe_name(name: str) -> str:
    """Return a name that a record accepts for a tensor: the name itself, a quoted form, or a digest of a long one.

    A client chooses its names. None of them stops the recorder, and no two have the same form.
    """
    if is_name(name) and not _SPECIAL.fullmatch(name) and len(name) <= _LONGEST:
        return name
    quoted = quote(name, safe="", errors="surrogatepass")
    if len(quoted) > _LONGEST:
        quoted = hashlib.sha256(name.encode("utf-8", "surrogatepass")).hexdigest()
    return quoted + ":name"


def as_bytes(name: str, data: bytes | bytearray | memoryview) -> Tensors:
    """Return bytes that are no array of numbers as a tensor `NAME:bytes`."""
    return {f"{name}:bytes": np.frombuffer(data, dtype=np.uint8)}


def npy(value: NDArray[Any]) -> bytes:
    """Return an array in NumPy's format."""
    buffer = io.BytesIO()
    np.save(buffer, value, allow_pickle=False)
    return buffer.getvalue()


def as_tensors(name: str, value: Any) -> Tensors:
    """Return a number, a text, bytes or a list of them as tensors.

    Numbers keep their value: whole numbers are int64 or uint64, others float64. Text is UTF-8, as bytes. A list of
    texts or bytes is one tensor of bytes, and `NAME:lengths` has the length of each.

    Raises:
        TypeError: the value is none of these.
    """
    if isinstance(value, _TEXT | memoryview):
        return {name: np.frombuffer(_encoded(value), dtype=np.uint8)}
    is_list = isinstance(value, list | tuple)
    if is_list and value and all(isinstance(part, _TEXT) for part in value):
        parts = list(map(_encoded, value))
        lengths = list(map(len, parts))
        return {
            name: np.frombuffer(b"".join(parts), dtype=np.uint8),
            f"{name}:lengths": np.array(lengths, dtype=np.int64),
        }
    numbers = value if is_list else [value]
    if not all(isinstance(number, bool | int | float | np.number | np.bool_) for number in numbers):
        raise TypeError(
            f"{name}: {type(value).__name__} is neither a number nor a text, bytes or a list of them."
        )
    dtype: type[Any] = np.float64
    if numbers and all(isinstance(number, bool | np.bool_) for number in numbers):
        dtype = np.bool_
    elif numbers and all(isinstance(number, bool | int | np.integer | np.bool_) for number in numbers):
        dtype = np.int64 if max(numbers) < 2**63 else np.uint64
    return {name: np.array(value, dtype=dtype)}


def _encoded(value: str | bytes | bytearray | memoryview) -> bytes:
    if isinstance(value, str):
        return value.encode("utf-8", "surrogatepass")
    return bytes(value)
