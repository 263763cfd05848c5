"""Atomic file writes, tensors as bytes without pickle, and salted digests."""

from __future__ import annotations

import hashlib
import json
import math
import os
import shutil
import struct
import tempfile
from collections.abc import Collection, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fdaudit.errors import IntegrityError, RunError
from fdaudit.limits import JSON_BYTES, TENSOR_BYTES, Limit, open_file
from fdaudit.parallel.memory import refuse_forecast
from fdaudit.storage.digests import canonical
from fdaudit.storage.tree import open_new, put_in_place
from fdaudit.types import TensorInfo

if TYPE_CHECKING:
    from torch import Tensor

__all__ = [
    "commitment",
    "decode",
    "encode",
    "header",
    "indented",
    "load_json",
    "load_tensors",
    "parse_json",
    "save_json",
    "save_json_together",
    "sync_path",
    "write_aside",
    "write_atomically",
    "write_together",
    "written_whole",
]

_PARSED = 24
"""Bytes of memory that a byte of JSON takes at most, parsed: an empty list has three of them."""
_MAX_HEADER = 16 << 20
_SYNCS_AT_ONCE = 8
_BITS = {
    **dict.fromkeys(("BOOL", "U8", "I8", "F8_E4M3", "F8_E5M2"), 8),
    **dict.fromkeys(("I16", "U16", "F16", "BF16"), 16),
    **dict.fromkeys(("I32", "U32", "F32"), 32),
    **dict.fromkeys(("I64", "U64", "F64", "C64"), 64),
}
"""Bits of a number, by its type's name in safetensors."""


def write_atomically(path: Path, data: bytes, *, mode: int = 0o644, sync: bool = True) -> None:
    """Write `data` under a temporary name in the same directory, then rename it to `path`."""
    temporary = write_aside(path, data, mode=mode, sync=sync)
    put_in_place(temporary, path)
    if sync:
        sync_path(path.parent)


def write_aside(path: Path, data: bytes, *, mode: int = 0o644, sync: bool = True) -> Path:
    """Write the future content of `path` next to it, and return the temporary name."""
    temporary = path.with_name(f".{path.name}.tmp")
    with open_new(temporary, mode) as file:
        file.write(data)
        if sync:
            file.flush()
            os.fsync(file.fileno())
    return temporary


@contextmanager
def written_whole(target: Path) -> Iterator[Path]:
    """Yield a directory to fill. It is renamed to `target` when the block ends, and removed if the block fails.

    Raises:
        RunError: it cannot be made.
    """
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        scratch = Path(tempfile.mkdtemp(prefix=f".{target.name}.", dir=target.parent))
    except OSError as error:
        problem = f"cannot be made ({error.strerror})"
        raise RunError("out", str(target), problem, "Choose another directory.") from None
    try:
        yield scratch
        try:
            scratch.replace(target)
        except OSError as error:  # another process was faster
            problem = f"cannot be made ({error.strerror})"
            raise RunError("out", str(target), problem, "Choose another directory.") from None
    except BaseException:
        shutil.rmtree(scratch, ignore_errors=True)
        raise


def sync_path(path: Path) -> None:
    """Make a file's content durable, or the renames inside a directory."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def save_json(path: Path, value: object, *, indent: int | None = None, sync: bool = True) -> None:
    """Write JSON atomically: canonical bytes and a newline, or indented for people."""
    write_atomically(path, _text(value, indent), sync=sync)


def save_json_together(values: Mapping[Path, Any], *, indent: int | None = None) -> None:
    """Write each value as `save_json` does, and make all of them durable at once."""
    texts = {}
    for path, value in values.items():
        texts[path] = _text(value, indent)
    write_together(texts)


def write_together(contents: Mapping[Path, bytes]) -> None:
    """Write each file as `write_atomically` does, and make all of them durable at once."""
    aside = {write_aside(path, data, sync=False): path for path, data in contents.items()}
    with ThreadPoolExecutor(_SYNCS_AT_ONCE, thread_name_prefix="fdaudit-sync") as threads:
        list(threads.map(sync_path, aside))
        for temporary, path in aside.items():
            put_in_place(temporary, path)
        list(threads.map(sync_path, {path.parent for path in contents}))


def _text(value: object, indent: int | None) -> bytes:
    if indent is None:
        return canonical(value) + b"\n"
    return indented(value, indent).encode() + b"\n"


def indented(value: Any, indent: int = 1, depth: int = 0) -> str:
    """Return the text of `json.dumps` with `indent`, `sort_keys` and `allow_nan=False`, in a part of its time.

    Python's encoder in C knows no indentation. It gets each list or object of plain values, with line breaks in the
    separator. Names in objects are texts.

    Raises:
        ValueError: a number is not finite.
    """
    line = "\n" + " " * (indent * (depth + 1))
    items: Collection[Any] = ()
    if isinstance(value, dict):
        items = value.values()
    elif isinstance(value, list | tuple):
        items = value
    if not any(isinstance(item, dict | list | tuple) for item in items):
        text = json.dumps(value, separators=(f",{line}", ": "), sort_keys=True, allow_nan=False)
        if not items:
            return text
        text = text[1:-1]
    elif isinstance(value, dict):
        below = (f"{json.dumps(name)}: {indented(value[name], indent, depth + 1)}" for name in sorted(value))
        text = f",{line}".join(below)
    else:
        text = f",{line}".join(indented(item, indent, depth + 1) for item in value)
    opening, closing = "{}" if isinstance(value, dict) else "[]"
    return f"{opening}{line}{text}{line[:-indent]}{closing}"


def load_json(path: Path) -> Any:
    """Read JSON as `parse_json` does, from a regular file that is not a link.

    Raises:
        IntegrityError: the file cannot be read, is a link or too large, or is not JSON.
        UsageError: it takes more memory than may be used.
    """
    try:
        with open_file(path, JSON_BYTES, follow=False) as file:
            refuse_forecast("file", str(path), _PARSED * os.fstat(file.fileno()).st_size)
            return parse_json(file.read(JSON_BYTES.most))
    except OSError as error:
        raise IntegrityError([f"{path.name} cannot be read: {error.strerror}"]) from None
    except ValueError as error:
        raise IntegrityError([f"{path.name} is not JSON: {error}"]) from None


def parse_json(data: bytes | str) -> Any:
    """Parse unambiguous JSON: no name occurs twice in an object, and every number is finite.

    Raises:
        ValueError: it is not JSON, nested too deeply, or ambiguous.
    """
    try:
        if isinstance(data, bytes):
            data = data.decode("utf-8")
        return json.loads(
            data, object_pairs_hook=_named_once, parse_constant=_not_finite, parse_float=_finite
        )
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def _named_once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    fields: dict[str, Any] = {}
    for name, value in pairs:
        if name in fields:
            raise ValueError(f"the name {name[:80]!r} stands twice in an object")
        fields[name] = value
    return fields


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(f"the number {text[:40]} is too large")
    return value


def _not_finite(name: str) -> float:
    raise ValueError(f"{name} is no number of JSON")


def encode(tensors: Mapping[str, Tensor]) -> bytes:
    """Return the safetensors bytes of named tensors; equal tensors always give equal bytes."""
    from safetensors.torch import save

    plain: dict[str, Tensor] = {}
    storages: set[int] = set()
    for name, tensor in tensors.items():
        values = tensor.detach().cpu().contiguous()
        # safetensors refuses tensors that share memory; views of one tensor are sent by value like any other.
        storage = values.untyped_storage().data_ptr()
        if storage in storages:
            values = values.clone()
        plain[name] = values
        storages.add(storage)
    return save(plain)


def decode(payload: bytes) -> dict[str, Tensor]:
    """Return the named tensors of safetensors bytes, as fresh CPU tensors, sorted by name.

    The library's own order differs from call to call, and sums over tensors would differ with it.

    Raises:
        IntegrityError: the bytes are not safetensors.
    """
    from safetensors import SafetensorError
    from safetensors.torch import load

    try:
        return dict(sorted(load(payload).items()))
    except (SafetensorError, ValueError, KeyError, RuntimeError) as error:
        raise IntegrityError([f"payload is not safetensors: {error}"]) from None


def header(payload: bytes) -> dict[str, TensorInfo]:
    """Return dtype and shape of the tensors in safetensors bytes, without decoding them.

    Raises:
        IntegrityError: the header is malformed, or does not describe the bytes behind it.
    """
    try:
        (length,) = struct.unpack("<Q", payload[:8])
        if length > _MAX_HEADER:
            raise ValueError(f"header of {length} bytes")
        entries = parse_json(payload[8 : 8 + length])
        entries.pop("__metadata__", None)
        # Tensors fill the stored bytes, one after the other, as `decode` demands.
        stored = len(payload) - 8 - length
        end = 0
        for entry in sorted(entries.values(), key=lambda one: tuple(one["data_offsets"])):
            begin, after = entry["data_offsets"]
            size = math.prod(entry["shape"]) * _BITS[entry["dtype"]] // 8
            if begin != end or after - begin != size or any(n < 0 for n in entry["shape"]):
                raise ValueError(f"it places a tensor of {size} bytes at {begin} to {after}, after {end}")
            end = after
        if end != stored:
            raise ValueError(f"it describes {end} bytes, and {stored} follow")
        tensors = {}
        for name, entry in entries.items():
            tensors[str(name)] = TensorInfo(str(entry["dtype"]), tuple(entry["shape"]))
        return tensors
    except (struct.error, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise IntegrityError([f"payload header is malformed: {error}"]) from None


def load_tensors(
    path: Path, sha256: str | None = None, *, limit: Limit | None = TENSOR_BYTES
) -> dict[str, Tensor]:
    """Read named tensors from a file of what `encode` returns.

    Args:
        path: the file.
        sha256: its expected digest, if known.
        limit: size limits; None for a file that only this user could have written.

    Raises:
        IntegrityError: the file is missing, too large or damaged, or has another digest than `sha256`.
        UsageError: it takes more memory than may be used.
    """
    try:
        with open_file(path, limit) as file:
            refuse_forecast("file", str(path), 2 * os.fstat(file.fileno()).st_size)  # as read, and decoded
            payload = file.read()
    except OSError as error:
        raise IntegrityError([f"{path.name} cannot be read: {error.strerror}"]) from None
    if sha256 not in (None, hashlib.sha256(payload).hexdigest()):
        raise IntegrityError([f"{path.name} does not match its digest"])
    return decode(payload)


def commitment(salt: bytes, *parts: bytes) -> str:
    """Return the SHA-256 of the salt followed by the parts. It hides the parts while the salt is secret."""
    digest = hashlib.sha256(salt)
    for part in parts:
        digest.update(part)
    return digest.hexdigest()
