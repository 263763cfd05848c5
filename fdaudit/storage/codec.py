"""One codec for objects that cross between processes: they become JSON values with tensors, and back.

An object is packed by the parameters of its constructor: each is an attribute, and its annotation says how it crosses.
An annotation may be `str`, `int`, `float`, `bool`, `Path`, a literal, a tensor, a tuple, a mapping with text as keys,
plain JSON (`Any`), a class of this kind, one whose objects are listed by name, or one of these or None.

Guarantees:
  * unpacking makes only the values that the annotations name: a missing or unknown field, and a value of another type,
    is refused with the place of the field;
  * a float that is not finite crosses as None where None is allowed, and is refused where it is not;
  * the uses of each received tensor, and the bytes of all after conversion, are bounded (`ReceivedTensors`).
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Collection, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, is_dataclass
from operator import index
from pathlib import Path
from types import NoneType, UnionType
from typing import (
    TYPE_CHECKING,
    Annotated,
    Any,
    Literal,
    NamedTuple,
    Union,
    get_args,
    get_origin,
    get_type_hints,
)

import torch

from fdaudit.goals.guess import Longest, Numbers, Within
from fdaudit.names import visible

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["Codec", "ReceivedTensors"]


class ReceivedTensors:
    """The tensors of a frame. Each is converted once; all uses count, with their bytes after conversion.

    Args:
        tensors: by name.
        most: the most uses of one tensor; None sets no bound, for a sender that is trusted.
        most_bytes: the most bytes of all tensors, after conversion and with every use.
    """

    def __init__(
        self, tensors: Mapping[str, Tensor], most: int | None = None, most_bytes: float = math.inf
    ) -> None:
        self._tensors, self._most, self._most_bytes = tensors, most, most_bytes
        self._uses: dict[str, int] = {}
        self._converted: dict[str, Tensor] = {}
        self._bytes = 0

    def take(self, name: str, numbers: Numbers | None) -> Tensor:
        """Return a tensor, converted to the numbers that its field holds; None leaves it as it is.

        Raises:
            TypeError: it holds other numbers.
            ValueError: there is none of this name, it is used too often, or all would take too many bytes.
        """
        if name not in self._tensors:
            raise ValueError(f"there is no tensor {name!r:.40}")
        tensor = self._tensors[name]
        if numbers is None:
            return self._used(name, tensor.dtype)
        integers = not (tensor.is_floating_point() or tensor.is_complex())
        if numbers.whole and not integers:
            raise TypeError(f"needs integers, got {tensor.dtype}")
        if not numbers.whole and tensor.is_complex():
            raise TypeError(f"needs real numbers, got {tensor.dtype}")
        dtype = tensor.dtype
        if integers and not numbers.whole:
            dtype = torch.float64
        if numbers.whole and numbers.wide:
            dtype = torch.int64
        return self._used(name, dtype)

    def _used(self, name: str, dtype: torch.dtype) -> Tensor:
        """Count one use of a tensor in this type, and return it so."""
        tensor = self._tensors[name]
        if self._most is not None:
            self._uses[name] = self._uses.get(name, 0) + 1
            if self._uses[name] > self._most:
                raise ValueError(f"the tensor {name!r:.40} is used more than {self._most} times")
            # An empty tensor can be long, so no dimension counts as nothing.
            self._bytes += dtype.itemsize * math.prod(max(1, size) for size in tensor.shape)
            if self._bytes > self._most_bytes:
                raise ValueError(
                    f"the tensors would take {self._bytes:,} bytes, more than {self._most_bytes:,}"
                )
        if dtype == tensor.dtype:
            return tensor
        if name not in self._converted:
            self._converted[name] = tensor.to(dtype)
        return self._converted[name]


class _Form(NamedTuple):
    """An annotation: the type of its values, what bounds them, and whether None is one of them."""

    type: Any
    marks: tuple[Any, ...]
    optional: bool


@dataclass(frozen=True, eq=False)
class Codec:
    """Packs and unpacks values by annotations.

    Attributes:
        names: what annotations name that their module imports for type checkers only.
        concrete: by an annotation that names an interface, the class whose objects cross for it.
        listed: by a class with a closed list of objects, these by their names, by which they cross.
    """

    names: Mapping[str, Any]
    concrete: Mapping[Any, type[Any]] = field(default_factory=dict)
    listed: Mapping[type[Any], Mapping[str, Any]] = field(default_factory=dict)
    _fields: dict[type[Any], Mapping[str, Any]] = field(default_factory=dict, init=False)

    def pack(self, value: Any, hint: Any, keep: Callable[[Tensor], str], at: str = "") -> Any:
        """Return a value as JSON.

        Args:
            value: the value.
            hint: its annotation.
            keep: keeps a tensor for the same frame, and returns its name there.
            at: its place, for errors.

        Raises:
            TypeError: it is not what its annotation says.
        """
        form = self._form(hint)
        if value is None and form.optional:
            return None
        if form.type is Any:
            return dict(value) if isinstance(value, Mapping) else value
        if form.type in (int, float):
            return _number(value, form, at)
        origin, inside = get_origin(form.type), get_args(form.type)
        if origin is Literal:
            return value
        kind = origin or form.type
        _refuse_other_type(isinstance(value, (tuple, list) if kind is tuple else kind), value, kind, at)
        if kind is tuple:
            members = _with_places(value, inside, at)
            return [self.pack(member, part, keep, place) for member, part, place in members]
        packed = {}
        if origin is not None:  # a mapping
            _, part = inside
            for key, member in value.items():
                name = _text(key, at)
                packed[name] = self.pack(member, part, keep, _below(at, key))
            return packed
        if kind is torch.Tensor:
            return keep(value)
        if kind is Path:
            return str(value)
        if kind in (str, bool):
            return value
        if kind in self.listed:
            return value.name
        for key, part in self._fields_of(kind).items():
            packed[key] = self.pack(getattr(value, key), part, keep, _below(at, key))
        return packed

    def unpack(self, value: Any, hint: Any, received: ReceivedTensors, at: str = "") -> Any:
        """Return the value that `pack` wrote, with new objects.

        Args:
            value: its JSON value, which need not be trusted.
            hint: its annotation.
            received: the tensors that came with it.
            at: its place, for errors.

        Raises:
            TypeError: a part has another type than its annotation says.
            ValueError: a field is missing or unknown, or a value is out of range.
        """
        form = self._form(hint)
        if value is None and form.optional:
            return None
        if form.type is Any:
            return value
        if form.type in (str, int, float, bool):
            # By `is`: a bool is an int to `isinstance`, and a subclass could decide later what it holds.
            _refuse_other_type(type(value) is form.type, value, form.type, at)
            return _bounded(value, form, at)
        if form.type is Path:
            return Path(_text(value, at))
        if form.type is torch.Tensor:
            return _taken(received, _text(value, at), form, at)
        origin, inside = get_origin(form.type), get_args(form.type)
        if origin is Literal:
            _refuse_unlisted(value, inside, at)
            return value
        if form.type in self.listed:
            values = self.listed[form.type]
            _refuse_unlisted(value, values, at)
            return values[value]
        if origin is tuple:
            _refuse_other_type(type(value) is list, value, list, at)
            members = _with_places(value, inside, at)
            return tuple(self.unpack(member, part, received, place) for member, part, place in members)
        _refuse_other_type(type(value) is dict, value, dict, at)
        parts = {}
        if origin is not None:  # a mapping
            _, part = inside
            for key, member in value.items():
                parts[key] = self.unpack(member, part, received, _below(at, key))
            return parts
        fields = self._fields_of(form.type)
        for key in sorted(set(value) ^ set(fields)):
            problem = "is missing" if key in fields else "is unknown"
            raise ValueError(f"{_below(at, key)}: {problem}")
        for key, part in fields.items():
            parts[key] = self.unpack(value[key], part, received, _below(at, key))
        return form.type(**parts)

    def _form(self, hint: Any) -> _Form:
        """Return an annotation's type, with a class in place of an interface."""
        marks: tuple[Any, ...] = ()
        optional = False
        while (origin := get_origin(hint)) in (Annotated, Union, UnionType):
            if origin is Annotated:
                hint, *more = get_args(hint)
                marks += tuple(more)
            else:
                optional = True
                (hint,) = (option for option in get_args(hint) if option is not NoneType)
        return _Form(self.concrete.get(hint, hint), marks, optional)

    def _fields_of(self, cls: type[Any]) -> Mapping[str, Any]:
        """Return the annotations of a class's constructor by parameter."""
        if cls not in self._fields:
            # A dataclass may inherit fields from another module, whose names only the class as a whole resolves.
            source = cls if is_dataclass(cls) else cls.__init__
            hints = get_type_hints(source, localns=dict(self.names), include_extras=True)
            self._fields[cls] = {name: hints[name] for name in inspect.signature(cls).parameters}
        return self._fields[cls]


def _refuse_other_type(fits: bool, value: Any, kind: type[Any], at: str) -> None:
    if not fits:
        raise TypeError(f"{at}: a {type(value).__name__} is no {kind.__name__}")


def _refuse_unlisted(value: Any, known: Collection[Any], at: str) -> None:
    if not isinstance(value, Hashable) or value not in known:
        raise ValueError(f"{at}: {value!r:.60} is none of {', '.join(map(str, known))}")


def _text(value: Any, at: str) -> str:
    _refuse_other_type(type(value) is str, value, str, at)
    return str(value)


def _below(at: str, name: object) -> str:
    """Return the place of a part, with an untrusted name cut to a length that people read."""
    shown = f"{name!s:.60}"
    return f"{at}.{shown}" if at else shown


def _with_places(values: Sequence[Any], inside: Sequence[Any], at: str) -> Iterator[tuple[Any, Any, str]]:
    """Yield the members of a tuple with their annotations and places."""
    parts = [inside[0]] * len(values) if inside[-1] is Ellipsis else list(inside)
    if len(parts) != len(values):
        raise ValueError(f"{at}: has {len(values)} members, not {len(parts)}")
    for number, (value, part) in enumerate(zip(values, parts, strict=True)):
        yield value, part, _below(at, number)


def _number(value: Any, form: _Form, at: str) -> int | float | None:
    """Return a number of an attack, which may be of NumPy or PyTorch, as one that JSON has a word for."""
    try:
        if form.type is int:
            return int(index(value))
        number = float(value)
    except (TypeError, ValueError):
        raise TypeError(f"{at}: a {type(value).__name__} is no {form.type.__name__}") from None
    if math.isfinite(number):
        return number
    if form.optional:
        return None
    raise TypeError(f"{at}: {number} is not finite")


def _bounded(value: Any, form: _Form, at: str) -> Any:
    """Return a value within what its annotation allows; a text is cut to its length."""
    for mark in form.marks:
        if isinstance(mark, Longest):
            value = visible(value[: mark.characters])
        if isinstance(mark, Within) and not mark.least <= value <= mark.most:
            raise ValueError(f"{at}: {value} does not lie in [{mark.least:g}, {mark.most:g}]")
    return value


def _taken(received: ReceivedTensors, name: str, form: _Form, at: str) -> Tensor:
    numbers: Numbers | None = None
    for mark in form.marks:
        if isinstance(mark, Numbers):
            numbers = mark
            break
    try:
        return received.take(name, numbers)
    except (TypeError, ValueError) as error:
        raise type(error)(f"{at}: {error}") from None
