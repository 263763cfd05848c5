"""Messages: a line gives back its message, and nothing else is one."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fdaudit.errors import IntegrityError
from fdaudit.storage.digests import canonical
from fdaudit.transcript.messages import Message, role
from fdaudit.types import TensorInfo

from ..helpers.transcript_cases import (
    messages,
    plain,
)


@given(messages)
def test_a_line_gives_back_its_message(message: Message) -> None:
    line = message.to_line()
    assert line.endswith(b"\n")
    assert line.count(b"\n") == 1
    assert line.isascii()
    assert Message.from_line(line[:-1]) == message


@given(messages, st.data())
def test_only_the_canonical_line_is_a_message(message: Message, data: st.DataObject) -> None:
    value = json.loads(message.to_line())
    other = data.draw(
        st.sampled_from(
            [
                json.dumps(value, sort_keys=True),  # spaces
                json.dumps(dict(reversed(value.items())), separators=(",", ":")),  # another order
                json.dumps({**value, "more": 1}, sort_keys=True, separators=(",", ":")),  # one field more
                json.dumps(
                    {k: v for k, v in value.items() if k != "salt"}, sort_keys=True, separators=(",", ":")
                ),
                json.dumps(value, sort_keys=True, separators=(",", ":"))[:-1] + ',"step":0}',  # a key twice
                json.dumps(value, sort_keys=True, separators=(",", ":")) + " ",
            ]
        )
    )
    with pytest.raises(IntegrityError):
        Message.from_line(other.encode())


@given(messages, st.data())
def test_a_field_of_another_type_is_damage_and_nothing_else(message: Message, data: st.DataObject) -> None:
    """Whatever stands in a field, canonical or not, the answer is a message or `IntegrityError`."""
    value = json.loads(message.to_line())
    field = data.draw(st.sampled_from(sorted(value)))
    value[field] = data.draw(plain)
    line = canonical(value)
    try:
        read = Message.from_line(line)
    except IntegrityError:
        return
    assert read.to_line() == line + b"\n"
    assert {type(n) for n in (read.seq, read.round, read.step, read.bytes_on_wire)} == {int}
    assert {type(t) for t in (read.sender, read.kind, read.salt, read.sha256, read.previous)} == {str}


@given(st.binary(max_size=200))
def test_arbitrary_bytes_are_no_message(line: bytes) -> None:
    with pytest.raises(IntegrityError):
        Message.from_line(line)


@pytest.mark.parametrize(
    "line",
    [
        b"[" * 100_000,
        b'{"seq":' + b"9" * 5000 + b"}",
        b'{"seq":1e999}',
        b"null",
        b'"\\ud800"',
        b"\xff\xfe\x00",
        b"",
    ],
    ids=["nested", "huge", "infinite", "null", "surrogate", "utf-16", "empty"],
)
def test_hostile_lines_are_damage(line: bytes) -> None:
    with pytest.raises(IntegrityError):
        Message.from_line(line)


@given(plain)
def test_canonical_bytes_are_one_ascii_line_and_sorted(value: Any) -> None:
    data = canonical(value)
    assert data.isascii()
    assert b"\n" not in data
    assert canonical(json.loads(data)) == data


@pytest.mark.parametrize("value", [float("nan"), float("inf"), {"a": [float("-inf")]}, {1, 2}, object()])
def test_what_json_cannot_say_has_no_canonical_form(value: Any) -> None:
    with pytest.raises((ValueError, TypeError)):
        canonical(value)


def test_the_role_of_a_party() -> None:
    assert [role(p) for p in ("client/3", "server", "world")] == ["client", "server", "world"]


def test_the_form_is_the_kind_and_what_describes_the_tensors() -> None:
    one, other = TensorInfo("F32", (2, 3)), TensorInfo("F32", (6,))
    sent = Message(
        seq=0, round=0, step=0, sender="a", receivers=("b",), kind="logits", tensors={"x": one, "y": other}
    )
    turned = replace(sent, seq=4, sender="c", tensors={"y": other, "x": one})
    assert turned.form == sent.form
    others = [
        replace(sent, kind="soft_labels"),
        replace(sent, tensors={"x": one, "z": other}),
        replace(sent, tensors={"x": other, "y": one}),
        replace(sent, tensors={"x": one, "y": TensorInfo("F16", (6,))}),
    ]
    assert len({m.form for m in (sent, *others)}) == 5
