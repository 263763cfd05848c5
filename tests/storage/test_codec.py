"""Objects become JSON values with tensors, and back, by their annotations."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal, Protocol

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from fdaudit.goals.guess import Long, Note, Numbers, Real, Share, Whole
from fdaudit.storage.codec import Codec, ReceivedTensors


class Speaks(Protocol):
    def word(self) -> str: ...


class Speaker:
    """No dataclass: its constructor's parameters are its fields."""

    def __init__(self, said: str, times: int = 1) -> None:
        self.said, self.times = said, times

    def word(self) -> str:
        return self.said * self.times


@dataclass(frozen=True, kw_only=True, eq=False)
class Inner:
    x: Tensor
    label: Literal["a", "b"] = "a"


@dataclass(frozen=True, kw_only=True, eq=False)
class Everything:
    name: str
    size: int
    loss: float | None
    on: bool
    pair: tuple[Tensor, int]
    many: tuple[float, ...]
    inner: Mapping[str, Inner]
    who: Speaks | None = None
    free: Any = None
    place: Path | None = None
    note: Note = ""
    share: Share | None = None
    real: Real | None = None
    whole: Whole | None = None
    long: Long | None = None
    extra: Mapping[str, Annotated[int, "a mark of another kind"]] = field(default_factory=dict)


FLOATS = Annotated[Tensor, Numbers()]
CODEC = Codec(names={"Tensor": Tensor}, concrete={Speaks: Speaker})


def crossed(value: Any, hint: Any = Everything, most: int | None = None) -> Any:
    tensors: dict[str, Tensor] = {}

    def keep(tensor: Tensor) -> str:
        tensors[f"t{len(tensors)}"] = tensor
        return f"t{len(tensors) - 1}"

    packed = json.loads(json.dumps(CODEC.pack(value, hint, keep), allow_nan=False))
    return CODEC.unpack(packed, hint, ReceivedTensors(tensors, most), "here")


def whole(**changes: Any) -> Everything:
    x = torch.rand(2)
    base = {
        "name": "n", "size": 3, "loss": None, "on": True, "pair": (x, 4), "many": (0.5, 1.5),
        "inner": {"k": Inner(x=x, label="b")},
    }  # fmt: skip
    return Everything(**{**base, **changes})


@given(
    size=st.integers(-(2**53), 2**53),
    loss=st.none() | st.floats(),
    many=st.lists(st.floats(allow_nan=False, allow_infinity=False)).map(tuple),
    name=st.text(st.characters(codec="utf-8")),
)
def test_values_return_as_they_were(
    size: int, loss: float | None, many: tuple[float, ...], name: str
) -> None:
    back = crossed(whole(size=size, loss=loss, many=many, name=name))
    assert (back.size, back.many, back.name) == (size, many, name)
    assert back.loss == (loss if loss is not None and math.isfinite(loss) else None)


def test_objects_inside_are_made_anew() -> None:
    sent = whole(who=Speaker("so", 2), free={"a": [1, None]}, place=Path("a/b"), share=0.25)
    back = crossed(sent)
    assert isinstance(back.who, Speaker)
    assert back.who.word() == "soso"
    assert (back.free, back.place, back.share) == ({"a": [1, None]}, Path("a/b"), 0.25)
    assert torch.equal(back.inner["k"].x, sent.inner["k"].x)
    assert (back.inner["k"].label, back.pair[1]) == ("b", 4)


def test_tensors_and_numbers_of_other_libraries_become_plain() -> None:
    bytes_ = torch.tensor([1, 2], dtype=torch.uint8)
    back = crossed(whole(real=bytes_, whole=bytes_, long=bytes_))
    assert (back.real.dtype, back.whole.dtype, back.long.dtype) == (torch.float64, torch.uint8, torch.int64)
    back = crossed(whole(size=np.int64(5), loss=np.float32(0.5), many=[torch.tensor(0.25)]))
    assert [type(v) for v in (back.size, back.loss, back.many)] == [int, float, tuple]
    assert (back.size, back.loss, back.many) == (5, 0.5, (0.25,))


def test_a_note_is_cut_and_shown_in_plain_characters() -> None:
    assert len(crossed(whole(note="n" * 600)).note) == 500
    assert "\x1b" not in crossed(whole(note="\x1b[31m")).note


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"size": 1.5}, "size: a float is no int"),
        ({"name": 7}, "name: a int is no str"),
        ({"many": (math.nan,)}, "many.0: nan is not finite"),
        ({"many": ("x",)}, "many.0: a str is no float"),
        ({"pair": (1, 2)}, "pair.0: a int is no Tensor"),
        ({"pair": (torch.zeros(1),)}, "pair: has 1 members, not 2"),
        ({"inner": {"k": 7}}, "inner.k: a int is no Inner"),
        ({"inner": {7: None}}, "inner: a int is no str"),
        ({"who": object()}, "who: a object is no Speaker"),
    ],
)
def test_what_an_annotation_does_not_allow_is_not_packed(changes: dict[str, Any], said: str) -> None:
    with pytest.raises((TypeError, ValueError), match=said):
        crossed(whole(**changes))


@pytest.mark.parametrize(
    ("hint", "value", "said"),
    [
        (Share, 1.5, r"here: 1.5 does not lie in \[0, 1\]"),
        (Literal["a", "b"], "c", "here: 'c' is none of a, b"),
        (Literal["a", "b"], ["a"], "is none of"),
        (float, 1, "here: a int is no float"),
        (int, True, "here: a bool is no int"),
        (str, None, "here: a NoneType is no str"),
        (tuple[int, ...], {"0": 1}, "here: a dict is no list"),
        (tuple[int, int], [1], "here: has 1 members, not 2"),
        (Mapping[str, int], [1], "here: a list is no dict"),
        (Inner, {"x": "t0"}, "here.label: is missing"),
        (Inner, {"x": "t0", "label": "a", "__class__": "b"}, "here.__class__: is unknown"),
        (Inner, {"x": 0, "label": "a"}, "here.x: a int is no str"),
        (FLOATS, "complex", "here: needs real numbers"),
        (Annotated[Tensor, Numbers(whole=True)], "t0", "here: needs integers"),
    ],
    ids=str,
)
def test_what_an_annotation_does_not_allow_is_not_unpacked(hint: Any, value: Any, said: str) -> None:
    sent = {"t0": torch.zeros(2), "complex": torch.zeros(2, dtype=torch.complex64)}
    with pytest.raises((TypeError, ValueError), match=said):
        CODEC.unpack(value, hint, ReceivedTensors(sent), "here")


def test_uses_and_bytes_are_bounded_after_conversion() -> None:
    sent = {"t0": torch.zeros(100, dtype=torch.uint8)}
    received = ReceivedTensors(sent, most=3, most_bytes=1600)
    first, second = (CODEC.unpack("t0", FLOATS, received) for _ in range(2))
    assert first is second
    with pytest.raises(ValueError, match=r"2,400 bytes, .* 1,600"):
        CODEC.unpack("t0", FLOATS, received)
    with pytest.raises(ValueError, match=r"'t0' .* 3 times"):
        CODEC.unpack("t0", FLOATS, received)
