"""Walks everything that some objects lead to, and tells what of it an attack must never reach.

It goes where an attack could go with attribute access alone: attributes and slots, items, closures and defaults,
bound methods, partials, generators' locals, frames of kept tracebacks, weak references, threads and queues, autograd
graphs, and files below every directory that a path names. Whatever has no named way is taken from the garbage
collector. Globals of modules are code and are left out.
"""

from __future__ import annotations

import functools
import gc
import tempfile
import threading
import types
import weakref
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path, PurePath
from queue import SimpleQueue
from typing import Any

import numpy as np
import torch
from safetensors.torch import load as load_safetensors
from torch import Tensor

LEAVES = (type(None), bool, int, float, complex, str, bytes, bytearray, torch.dtype, torch.device, torch.Size)
OURS = ("fdaudit", "tests")


@dataclass(frozen=True)
class Forbidden:
    """What must not be reached.

    Attributes:
        types: classes of which no instance may be reached.
        numbers: integers, such as the seed.
        blobs: byte strings, such as the secret; their hexadecimal and decimal forms are looked for too.
        paths: directories; neither they nor anything inside may be named.
        rows: private records (n, ...) in any float dtype, each looked for by itself, at any offset.
        tensors: tensors looked for whole: parameters, indices, labels.
        flags: by name, who is a member; looked for as two-valued sequences, and so is the complement.
        shared: tensors in whose memory nothing may lie: a view of one row shows all of them.
    """

    types: tuple[type, ...] = ()
    numbers: frozenset[int] = frozenset()
    blobs: tuple[bytes, ...] = ()
    paths: tuple[Path, ...] = ()
    rows: Tensor | None = None
    tensors: Mapping[str, Tensor] = field(default_factory=dict)
    flags: Mapping[str, Tensor] = field(default_factory=dict)
    shared: Mapping[str, Tensor] = field(default_factory=dict)


# -- walking ------------------------------------------------------------------------------------------------------


def walk(roots: Mapping[str, object]) -> Iterator[tuple[str, object]]:
    """Every object that the roots lead to, once, with the way to it."""
    seen: dict[int, object] = {}  # holds what was seen: an id is not used again while its object lives
    agenda = deque(roots.items())
    while agenda:
        way, found = agenda.popleft()
        if id(found) in seen or _is_code(found):
            continue
        seen[id(found)] = found
        yield way, found
        if not isinstance(found, LEAVES):
            agenda.extend((f"{way}{step}", child) for step, child in _children(found))


def _is_code(found: object) -> bool:
    """Modules, their globals, and classes that are not of this project hold code, not data of a run."""
    if isinstance(found, types.ModuleType | types.CodeType):
        return True
    if isinstance(found, type):
        return not found.__module__.startswith(OURS)
    return isinstance(found, dict) and "__builtins__" in found and "__name__" in found


def _children(found: Any) -> Iterator[tuple[str, object]]:
    yield from _special(found)
    if isinstance(found, Mapping):
        yield from ((".keys()", key) for key in found)
        yield from ((f"[{_short(key)}]", value) for key, value in found.items())
    elif isinstance(found, list | tuple | set | frozenset | deque):
        yield from ((f"[{i}]", value) for i, value in enumerate(found))
    yield from ((f".{name}", value) for name, value in _attributes(found))
    if isinstance(found, types.FunctionType | types.FrameType | type):
        return  # the collector would lead from them to globals, callers and base classes
    yield from ((".<held>", held) for held in gc.get_referents(found))


def _short(key: object) -> str:
    text = repr(key)
    return text if len(text) < 40 else text[:37] + "..."


def _attributes(found: Any) -> Iterator[tuple[str, object]]:
    attributes = getattr(found, "__dict__", None)
    if isinstance(attributes, Mapping) and not _is_code(attributes):
        yield from list(attributes.items())
    for cls in type(found).__mro__:
        slots = cls.__dict__.get("__slots__", ())
        for slot in (slots,) if isinstance(slots, str) else slots:
            name = f"_{cls.__name__.lstrip('_')}{slot}" if slot.startswith("__") else slot
            if hasattr(found, name):
                yield name, getattr(found, name)
    if type(found).__module__.startswith(OURS):
        yield "__class__", type(found)


def _special(found: Any) -> Iterator[tuple[str, object]]:
    """Ways that are neither attributes of an instance nor items."""
    if isinstance(found, types.FunctionType):
        for name, cell in zip(found.__code__.co_freevars, found.__closure__ or (), strict=True):
            yield f".<closure {name}>", cell
        yield ".__defaults__", found.__defaults__
        yield ".__kwdefaults__", found.__kwdefaults__
    elif isinstance(found, types.CellType):
        try:
            yield "", found.cell_contents
        except ValueError:  # an empty cell
            return
    elif isinstance(found, types.MethodType | types.BuiltinMethodType):
        yield ".__self__", found.__self__
        yield ".__func__", getattr(found, "__func__", None)
    elif isinstance(found, functools.partial):
        yield ".func", found.func
        yield ".args", found.args
        yield ".keywords", found.keywords
    elif isinstance(found, property):
        yield from ((f".{n}", getattr(found, n)) for n in ("fget", "fset", "fdel"))
    elif isinstance(found, types.GeneratorType):
        yield ".gi_frame", found.gi_frame
    elif isinstance(found, types.CoroutineType):
        yield ".cr_frame", found.cr_frame
    elif isinstance(found, types.TracebackType):
        yield ".tb_frame", found.tb_frame
        yield ".tb_next", found.tb_next
    elif isinstance(found, types.FrameType):
        yield ".f_locals", dict(found.f_locals)  # not its callers: they lead to whatever runs the tests
    elif isinstance(found, BaseException):
        yield ".__traceback__", found.__traceback__
        yield ".__context__", found.__context__
    elif isinstance(found, weakref.ref):
        yield "()", found()
    elif type(found) in weakref.ProxyTypes:
        yield ".<proxied>", found.__init__.__self__  # type: ignore[misc]
    elif isinstance(found, SimpleQueue):
        held = [found.get() for _ in range(found.qsize())]
        for item in held:
            found.put(item)
        yield ".<queued>", held
    elif isinstance(found, Tensor):
        yield from ((f".{n}", getattr(found, n)) for n in ("grad_fn", "_base", "_backward_hooks"))
        if found.is_leaf or found.retains_grad:  # others have none, and warn
            yield ".grad", found.grad
    elif isinstance(found, torch.autograd.graph.Node):
        yield from ((f".{n}", getattr(found, n)) for n in dir(found) if n.startswith("_saved_"))
        yield ".variable", getattr(found, "variable", None)
        yield ".next_functions", found.next_functions
    elif isinstance(found, np.ndarray):
        yield ".base", found.base
        if found.dtype == object:
            yield ".tolist()", found.tolist()
    elif isinstance(found, memoryview):
        yield ".obj", found.obj


# -- judging ------------------------------------------------------------------------------------------------------


def findings(roots: Mapping[str, object], forbidden: Forbidden) -> list[str]:
    """One sentence for each forbidden thing that the roots lead to; empty when there is none."""
    judge = _Judge(forbidden)
    return [f"{way}: {problem}" for way, found in walk(roots) for problem in judge(found)]


class _Judge:
    def __init__(self, forbidden: Forbidden) -> None:
        self._forbidden = forbidden
        self._paths = [p.resolve() for p in forbidden.paths]
        self._blobs = {b for raw in forbidden.blobs for b in (raw, raw.hex().encode())}
        self._numbers = forbidden.numbers | {int.from_bytes(b, e) for b in forbidden.blobs for e in _ENDIANS}
        self._texts = {str(n) for n in self._numbers} | {b.hex() for b in forbidden.blobs}
        self._rows = _Rows(forbidden.rows)
        self._wholes = [
            (name, variant)
            for name, tensor in forbidden.tensors.items()
            for variant in _encodings(tensor)
            if len(variant) >= 16
        ]
        self._flags = {name: {tuple(f.tolist()), tuple((~f).tolist())} for name, f in forbidden.flags.items()}
        self._memory = {name: _span(t) for name, t in forbidden.shared.items()}
        self._stored: set[tuple[int, int]] = set()

    def __call__(self, found: object) -> Iterator[str]:
        if isinstance(found, self._forbidden.types):
            yield f"is a {type(found).__name__}"
        if isinstance(found, int | np.integer) and int(found) in self._numbers:
            yield "is the seed or the secret as a number"
        if isinstance(found, torch.Generator) and found.initial_seed() in self._numbers:
            yield "is seeded with the seed or the secret"
        if isinstance(found, str):
            yield from self._text(found)
        if isinstance(found, PurePath) or hasattr(found, "fileno"):
            yield from self._path(
                Path(str(found if isinstance(found, PurePath) else getattr(found, "name", "")))
            )
        if isinstance(found, bytes | bytearray | memoryview):
            yield from self._bytes(bytes(found))
        if isinstance(found, Tensor | np.ndarray):
            yield from self._array(found)
        if isinstance(found, list | tuple | set | frozenset):
            yield from self._sequence(found)

    def _text(self, text: str) -> Iterator[str]:
        if any(t in text for t in self._texts):
            yield "spells the seed or the secret"
        if any(str(p) in text for p in self._paths):
            yield f"names {text!r}, inside the run"
        if 0 < len(text) < 4096 and "\0" not in text and "/" in text:
            yield from self._path(Path(text))

    def _path(self, path: Path) -> Iterator[str]:
        try:
            place = path.resolve()
            exists = place.exists()
        except (OSError, ValueError, RuntimeError):  # a text that only looks like a path
            return
        if self._inside(place):
            yield f"leads to {place}, inside the run"
        elif exists and _TEMPORARY in place.parents:
            yield from self._files(place)

    def _inside(self, place: Path) -> bool:
        return any(place == p or p in place.parents for p in self._paths)

    def _files(self, place: Path) -> Iterator[str]:
        """What lies below a path in the directory for temporary files, where views and rehearsals lie."""
        for file in sorted(place.rglob("*")) if place.is_dir() else [place]:
            if self._inside(file.resolve()):
                yield f"{file.name} is a link into the run"
            elif file.is_file():
                content = file.read_bytes()
                yield from (f"file {file.name} {problem}" for problem in self._bytes(content))
                if file.suffix == ".safetensors":
                    for name, tensor in load_safetensors(content).items():
                        yield from (f"file {file.name}, {name}, {p}" for p in self._array(tensor))

    def _bytes(self, content: bytes) -> Iterator[str]:
        if any(b in content for b in self._blobs):
            yield "holds the secret"
        if self._rows.in_bytes(content):
            yield "holds private records"
        yield from (f"holds {name}" for name, whole in self._wholes if whole in content)

    def _array(self, array: Tensor | np.ndarray) -> Iterator[str]:
        start, end = _span(array)
        for name, (low, high) in self._memory.items():
            if start < high and low < end:
                yield f"lies in the memory of {name}"
        storage = _storage(array)
        if storage is not None:
            key = (hash(storage), len(storage))
            if key not in self._stored:  # many views of one storage are one find
                self._stored.add(key)
                yield from self._bytes(storage)
        if not (isinstance(array, Tensor) and array.is_meta):
            yield from self._flagged(array.reshape(-1).tolist())

    def _sequence(self, values: Any) -> Iterator[str]:
        if all(isinstance(v, bool | int | float) for v in values):
            yield from self._flagged(list(values))
            flat = torch.tensor([float(v) for v in values], dtype=torch.float64)
            yield from self._bytes(flat.numpy().tobytes())
            if all(isinstance(v, int) and abs(v) < 2**62 for v in values):
                yield from self._bytes(torch.tensor([int(v) for v in values]).numpy().tobytes())

    def _flagged(self, values: list[Any]) -> Iterator[str]:
        distinct = sorted(set(values)) if len(values) < 100_000 else []
        if len(distinct) == 2:
            as_flags = tuple(v == distinct[1] for v in values)
            yield from (f"tells {name}" for name, both in self._flags.items() if as_flags in both)


_ENDIANS = ("big", "little")
_TEMPORARY = Path(tempfile.gettempdir()).resolve()


class _Rows:
    """Finds any of many byte strings of one length at any 4-byte offset."""

    def __init__(self, rows: Tensor | None) -> None:
        self._rows: dict[int, set[int]] = {}
        for dtype in (torch.float32, torch.float64):
            for row in () if rows is None else rows.flatten(1).to(dtype):
                content = row.numpy().tobytes()
                self._rows.setdefault(len(content), set()).add(hash(content))

    def in_bytes(self, content: bytes) -> bool:
        view = memoryview(content)
        for length, hashes in self._rows.items():
            for shift in range(0, len(content) - length + 1, 4):
                if hash(view[shift : shift + length]) in hashes:
                    return True
        return False


def _encodings(tensor: Tensor) -> Iterator[bytes]:
    dtypes = (
        (torch.float32, torch.float64)
        if tensor.is_floating_point()
        else (torch.int32, torch.int64, torch.float64)
    )
    for dtype in dtypes:
        yield tensor.detach().cpu().contiguous().to(dtype).numpy().tobytes()


def _span(array: Tensor | np.ndarray) -> tuple[int, int]:
    """First and last address of an array's elements' storage; nothing where it has none."""
    if isinstance(array, np.ndarray):
        start = array.__array_interface__["data"][0]
        return start, start + array.nbytes
    if array.is_meta or array.layout != torch.strided or array.device.type != "cpu":
        return 0, 0
    storage = array.untyped_storage()
    return storage.data_ptr(), storage.data_ptr() + storage.nbytes()


def _storage(array: Tensor | np.ndarray) -> bytes | None:
    """All bytes of the storage behind an array, also those that a view leaves out."""
    if isinstance(array, np.ndarray):
        return array.tobytes()  # its base is walked by itself
    if array.is_meta or array.layout != torch.strided:
        return None
    storage = array.detach().cpu().untyped_storage()
    return bytes(torch.empty(0, dtype=torch.uint8).set_(storage).numpy())


def own_thread() -> threading.Thread | None:
    """The thread that runs an attack, unless that is the main one."""
    current = threading.current_thread()
    return None if current is threading.main_thread() else current
