"""Records of Flower as tensors, and back."""

from __future__ import annotations

import hashlib
import io
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord
from numpy.typing import NDArray

from fdaudit.recording.recorder import RecordedMessage

from .tensors import Tensors, as_bytes, as_tensors, npy, safe_name

__all__ = ["Record", "array_tensors", "decoded_arrays", "masked_vector", "received", "shared_records"]

Record: TypeAlias = ArrayRecord | MetricRecord | ConfigRecord

Values = Mapping[str, NDArray[Any] | None]
"""The arrays of a record by name; None for one that holds other than numbers, or cannot be read."""


def decoded_arrays(record: ArrayRecord) -> Values:
    """Return the values of the arrays of a record."""
    return {name: _decoded(array) for name, array in record.items()}


def array_tensors(record: ArrayRecord, values: Values) -> Tensors:
    """Return arrays by name, and the bytes of those that are no arrays of numbers as `NAME:bytes`."""
    tensors: Tensors = {}
    for name, array in record.items():
        value = values[name]
        if value is None:
            tensors |= as_bytes(safe_name(name), array.data)
        else:
            tensors[safe_name(name)] = value
    return tensors


def received(record: ArrayRecord, values: Values, delivery: RecordedMessage) -> ArrayRecord:
    """Return the record with the recorded arrays; an array whose bytes are already those on record stays as it is."""
    arrays, is_same = dict(record), True
    for name, array in record.items():
        if values[name] is None:
            continue
        value = delivery[safe_name(name)]
        data, dtype = npy(value), str(value.dtype)
        stated = (array.dtype, tuple(array.shape))  # Flower's older interface states neither
        if data != array.data or stated not in (("", ()), (dtype, value.shape)):
            arrays[name] = Array(dtype, value.shape, array.stype, data)
            is_same = False
    return record if is_same else ArrayRecord(arrays)


def masked_vector(parts: Sequence[Any]) -> Tensors:
    """Return the parts of a masked vector by their number; the first is the masked weight."""
    tensors: Tensors = {}
    for i, part in enumerate(parts):
        value = None
        if isinstance(part, bytes):
            value = _decoded(Array("", (), "numpy.ndarray", part))
        if value is None:
            tensors |= as_tensors(f"{i}:bytes", part)
        else:
            tensors[str(i)] = value
    return tensors


def shared_records(messages: Sequence[Message]) -> dict[tuple[str, str, bytes], list[int]]:
    """Return the messages that share a record, by the record's name, the message type and the record's digest."""
    digests: dict[int, bytes] = {}  # by object: strategies give one record to many messages
    groups: dict[tuple[str, str, bytes], list[int]] = {}
    for i, message in enumerate(messages):
        for name, record in message.content.items():
            if id(record) not in digests:
                digest = hashlib.sha256(type(record).__name__.encode())
                for entry, value in record.items():
                    about: tuple[object, ...] = (entry, value)
                    data = b""
                    if isinstance(value, Array):
                        about = (entry, value.dtype, value.shape, value.stype, len(value.data))
                        data = value.data
                    digest.update(repr(about).encode("utf-8", "surrogatepass"))
                    digest.update(data)
                digests[id(record)] = digest.digest()
            key = (name, message.metadata.message_type, digests[id(record)])
            groups.setdefault(key, []).append(i)
    return groups


def _decoded(array: Array) -> NDArray[Any] | None:
    """Return the values of an array; None if it holds other than numbers, or cannot be read."""
    if array.stype != "numpy.ndarray":
        return None
    try:
        value = np.lib.format.read_array(io.BytesIO(array.data), allow_pickle=False)
    except Exception:  # a client sends any bytes; those that are no array are recorded as bytes
        return None
    is_recordable = value.dtype.kind in "biuf" and value.dtype.itemsize <= 8
    return value if is_recordable else None
