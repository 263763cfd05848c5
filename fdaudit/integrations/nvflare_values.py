"""Turn messages of NVIDIA FLARE into tensors of a record, and back."""

from __future__ import annotations

import copy
import sys
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray
from nvflare.fuel.utils import fobs

from fdaudit.recording.recorder import RecordedMessage

from .tensors import as_bytes, as_tensors, npy, safe_name

__all__ = ["Flat"]

_NUMBERS = {
    *("bool", "uint8", "int8", "int16", "uint16", "int32", "uint32", "int64", "uint64"),
    *("float16", "bfloat16", "float32", "float64"),
}
"""Types of arrays that a record holds as they are."""


class Flat:
    """Nested dictionaries and lists as tensors by name, where a name joins the keys with dots.

    Numbers and text become tensors. Bytes, and what is none of these, are bytes under `NAME:bytes`: other arrays in
    NumPy's format, and the rest in the form in which NVIDIA FLARE sends it (FOBS).

    Args:
        value: of a message. It is not changed.

    Attributes:
        tensors: arrays of NumPy or PyTorch by name.
    """

    def __init__(self, value: Any) -> None:
        self._value = value
        self._arrays: dict[tuple[Any, ...], str] = {}
        """Name of each array, by its keys."""
        self.tensors: dict[str, Any] = {}
        self._visit(value, ())

    def received(self, delivery: RecordedMessage) -> Any:
        """Return the value with the recorded arrays in place of its own."""
        return self._rebuilt(self._value, (), delivery)

    def _visit(self, value: Any, keys: tuple[Any, ...]) -> None:
        if isinstance(value, Mapping):
            for key, part in value.items():
                self._visit(part, (*keys, key))
            return
        # Other keys may join to the same text.
        name = safe_name(".".join(map(str, keys)))
        while name in self.tensors or f"{name}:bytes" in self.tensors:
            name += "'"
        if _is_array(value):
            self._arrays[keys] = name
            self.tensors[name] = value
            return
        try:
            tensors: dict[str, Any] = as_tensors(name, value)
        except (TypeError, ValueError, OverflowError):
            table = _table(value)
            if table is not None:
                self.tensors[name] = table
                return
            if isinstance(value, list | tuple):
                for i, part in enumerate(value):
                    self._visit(part, (*keys, i))
                return
            value = npy(value) if isinstance(value, np.ndarray) else fobs.dumps(value)
        if isinstance(value, bytes | bytearray | memoryview):
            tensors = as_bytes(name, bytes(value))
        self.tensors |= tensors

    def _rebuilt(self, value: Any, keys: tuple[Any, ...], delivery: RecordedMessage) -> Any:
        if keys in self._arrays:
            return _like(value, delivery[self._arrays[keys]])
        if isinstance(value, Mapping):
            parts: dict[Any, Any] = {}
            for key, part in value.items():
                parts[key] = self._rebuilt(part, (*keys, key), delivery)
            if all(parts[key] is part for key, part in value.items()):
                return value
            changed: Any = copy.copy(value)  # of its own class
            changed.update(parts)
            return changed
        if isinstance(value, list | tuple):
            items = [self._rebuilt(part, (*keys, i), delivery) for i, part in enumerate(value)]
            if all(item is part for item, part in zip(items, value, strict=True)):
                return value
            return type(value)(items)
        return value


def _table(value: Any) -> NDArray[Any] | None:
    """Return lists of numbers within lists as one array; None if they are none, or of different lengths."""
    if not isinstance(value, list | tuple) or not all(isinstance(row, list | tuple) for row in value):
        return None
    try:
        array = np.asarray(value)
    except ValueError:  # of different lengths
        return None
    return array if array.dtype.kind in "biuf" and array.size else None


def _is_array(value: Any) -> bool:
    """Return whether a value is an array of numbers in memory, of NumPy or PyTorch."""
    if isinstance(value, np.ndarray | np.generic):
        return value.dtype.name in _NUMBERS
    if not (hasattr(value, "detach") and hasattr(value, "layout")):
        return False
    return str(value.layout) == "torch.strided" and str(value.dtype).removeprefix("torch.") in _NUMBERS


def _like(value: Any, recorded: NDArray[Any]) -> Any:
    """Return a recorded array as what it was sent as, bit for bit."""
    if isinstance(value, np.ndarray):
        return recorded
    if isinstance(value, np.generic):
        return recorded[()]
    torch = sys.modules["torch"]
    if value.dtype == torch.bfloat16:  # recorded as float32, whose first half it is
        bits = (recorded.view(np.uint32) >> 16).astype(np.uint16)
        return torch.from_numpy(bits.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(recorded)
