"""The message, as the transcript records it, and the closed vocabulary of message kinds."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields
from functools import cached_property, lru_cache
from types import MappingProxyType
from typing import Any, Literal

from fdaudit.errors import IntegrityError
from fdaudit.events import Event, event_from_json, event_to_json
from fdaudit.limits import MOST_DIMENSIONS
from fdaudit.names import name_problem, text_problem
from fdaudit.storage.digests import canonical
from fdaudit.types import TensorInfo

__all__ = ["ALL", "DATA", "DEVIATION", "DRAWN", "DTYPES", "GENESIS", "SUM", "Inputs", "Message", "role"]

DATA = "data"
"""The input that stands for the sender's raw private data."""

ALL: Literal["all"] = "all"
"""`inputs` left undeclared: everything the sender held when it sent, which is always sound."""

SUM = "exact_sum"
"""The field that marks a message as the exact sum of the messages among its inputs."""

DRAWN = "drawn_from"
"""The field of a request to a client that was drawn for it by a secret, uniform draw from so many clients."""

DEVIATION = "deviation"
"""The field of a message that its sender changed against the protocol; it holds the deviation's name."""

GENESIS = "0" * 64
"""`previous` of the first line."""

DTYPES = frozenset(
    ["BF16", "BOOL", "C64", "F16", "F32", "F64", "F8_E4M3", "F8_E4M3FNUZ", "F8_E5M2", "F8_E5M2FNUZ"]
    + [f"{sign}{bits}" for sign in "IU" for bits in (8, 16, 32, 64)]
)
"""safetensors' names of the types that tensors may have."""

Inputs = tuple[str | int, ...] | Literal["all"]


def role(party: str) -> str:
    """Return the role of a party: `client/3` has the role `client`."""
    return party.partition("/")[0]


@dataclass(frozen=True, kw_only=True)
class Message:
    """One line of `messages.jsonl`.

    `sha256` is of the salt's bytes followed by the payload's. `previous` is the SHA-256 of the line before, without its
    newline. `payload` names the payload's file and length, or is `None` if only the digest was kept. `offset` is the
    payload's start in that file. It is not part of the line, because it would reveal the lengths of other payloads in
    the file. Readers add up the lengths, see `fdaudit.transcript.payloads.placed`. `bytes_on_wire` counts the tensors'
    encoded bytes to one receiver.
    """

    seq: int
    round: int
    step: int
    sender: str
    receivers: tuple[str, ...]
    kind: str
    tensors: Mapping[str, TensorInfo] = field(default_factory=dict)
    fields: Mapping[str, Any] = field(default_factory=dict)
    inputs: Inputs = "all"
    defenses: tuple[Mapping[str, Any], ...] = ()
    event: Event | None = None
    bytes_on_wire: int = 0
    payload: Mapping[str, Any] | None = None
    salt: str = ""
    sha256: str = ""
    previous: str = GENESIS
    offset: int = field(default=0, compare=False)

    def parties(self) -> tuple[str, ...]:
        """Return the sender and every receiver."""
        return (self.sender, *self.receivers)

    @cached_property
    def form(self) -> bytes:
        """Return the kind and the tensors' names, types and shapes, equal for messages that have the same ones."""
        return canonical([self.kind, _described(self.tensors)])

    def odd_text(self) -> str:
        """Return the first field that holds a text or name which no reader accepts, and why; empty if none does."""
        return _odd_text(self.as_json())

    def to_line(self) -> bytes:
        """Return the message's line in the log, with its newline."""
        return canonical(self.as_json()) + b"\n"

    def as_json(self) -> dict[str, Any]:
        """Return the JSON value of the line."""
        value = {name: getattr(self, name) for name in _IN_LINE}
        value["tensors"] = _described(self.tensors)
        if self.event is not None:
            value["event"] = event_to_json(self.event)
        return value

    @classmethod
    def from_line(cls, line: bytes) -> Message:
        """Return the message of a line without its newline.

        Raises:
            IntegrityError: the line is not the canonical form of a message.
        """
        if len(line) > _SHORT:
            return _parsed.__wrapped__(line)
        return _parsed(line)


def _described(tensors: Mapping[str, TensorInfo]) -> dict[str, Any]:
    described = {}
    for name, info in tensors.items():
        described[name] = {"dtype": info.dtype, "shape": list(info.shape)}
    return described


_SHORT = 4096
"""Longest line, in bytes, that is cached after parsing."""


_IN_LINE = tuple(f.name for f in fields(Message) if f.name != "offset")


@lru_cache(maxsize=1 << 13)
def _parsed(line: bytes) -> Message:
    """Return the message of a line, cached, because each view of a transcript parses the same lines."""
    try:
        value = json.loads(line)
        same = canonical(value) == line
        _refuse_mistyped(value)
        for name, tensor in value["tensors"].items():
            value["tensors"][name] = TensorInfo(tensor["dtype"], tuple(tensor["shape"]))
        value["receivers"] = tuple(value["receivers"])
        value["defenses"] = tuple(value["defenses"])
        if value["inputs"] != ALL:
            value["inputs"] = tuple(value["inputs"])
        if value["event"] is not None:
            event = event_from_json(value["event"])
            same &= canonical(event_to_json(event)) == canonical(value["event"])
            value["event"] = event
        message = Message(**value)
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise IntegrityError([f"line is not a message: {type(error).__name__}: {error}"]) from None
    if not same:
        raise IntegrityError(["line is not in canonical form"])
    return message


_TYPES: Mapping[str, type] = MappingProxyType(
    {
        **dict.fromkeys(("seq", "round", "step", "bytes_on_wire"), int),
        **dict.fromkeys(("sender", "kind", "salt", "sha256", "previous"), str),
        **dict.fromkeys(("tensors", "fields"), dict),
        **dict.fromkeys(("receivers", "defenses"), list),
    }
)


_MOST = 1 << 63
"""No count in a line reaches this."""


def _refuse_mistyped(value: Any) -> None:
    """Raise unless exactly the expected fields are there, with their types: a line is untrusted."""
    if value.keys() != frozenset(_IN_LINE):
        raise TypeError(f"its fields are not {', '.join(_IN_LINE)}")
    for name, expected in _TYPES.items():
        content = value[name]
        if expected is int and (type(content) is not int or not 0 <= content < _MOST):
            raise TypeError(f"{name} is not a count")
        if type(content) is not expected:
            raise TypeError(f"{name} is not a {expected.__name__}")
    for tensor in value["tensors"].values():
        if set(tensor) != {"dtype", "shape"} or type(tensor["shape"]) is not list:
            raise TypeError("tensors have something other than dtype and shape")
        _each("tensors.dtype", [tensor["dtype"]], str)
        _each("tensors.shape", tensor["shape"], int)
        if len(tensor["shape"]) > MOST_DIMENSIONS:
            raise TypeError(f"tensors.shape has more than {MOST_DIMENSIONS} dimensions")
        if tensor["shape"] and not 0 <= min(tensor["shape"]) <= max(tensor["shape"]) < _MOST:
            raise TypeError("tensors.shape holds something other than counts")
    _each("receivers", value["receivers"], str)
    _each("defenses", value["defenses"], dict)
    inputs = value["inputs"]
    if inputs != ALL and (type(inputs) is not list or not all(type(i) in (int, str) for i in inputs)):
        raise TypeError("inputs are neither messages nor names")
    if odd := _odd_text(value):
        raise ValueError(odd)
    payload = value["payload"]
    if payload is not None:
        types = {name: type(part) for name, part in payload.items()}
        if types != {"file": str, "length": int} or not 0 <= payload["length"] < _MOST:
            raise TypeError("payload does not say file and length")


def _odd_text(value: Mapping[str, Any]) -> str:
    """Return why a text or a name in a line's value is refused, with its field; empty if none is."""
    for name, tensor in value["tensors"].items():
        if problem := name_problem(name):
            return f"tensors: the name {name!r:.80} {problem}"
        if tensor["dtype"] not in DTYPES:
            return f"tensors.dtype: {tensor['dtype']!r:.80} is no type of numbers"
    for part in _IN_LINE:
        for text in _texts(value[part]):
            if problem := text_problem(text):
                return f"{part}: {text!r:.80} {problem}"
    return ""


def _texts(value: object) -> Iterator[str]:
    """Yield every text in a JSON value, the names of fields included."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for name, below in value.items():
            yield name
            yield from _texts(below)
    elif isinstance(value, list | tuple):
        for below in value:
            yield from _texts(below)


def _each(name: str, values: list[Any], wanted: type) -> None:
    for value in values:
        if type(value) is not wanted:
            raise TypeError(f"{name} holds something other than {wanted.__name__}")
