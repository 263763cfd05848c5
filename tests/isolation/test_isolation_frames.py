"""What crosses between an attack and the auditor: bytes by schema, plain tensors rebuilt, everything else refused."""

from __future__ import annotations

import io
import json
import struct
from typing import Any

import pytest
import torch

from fdaudit.goals.label_distribution import LabelDistribution
from fdaudit.goals.membership import Membership
from fdaudit.goals.reconstruction import Reconstruction
from fdaudit.isolation.frames import EndedError, MalformedError, Tensors, receive, send
from fdaudit.isolation.process import _said, serve_cases
from fdaudit.isolation.schema import guesses_of, packed_guesses


class Lazy(torch.Tensor):
    """A tensor that decides what it holds when it is looked at."""

    def __len__(self) -> int:
        return 0

    @classmethod
    def __torch_function__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        LOOKED.append(function)
        return super().__torch_function__(function, types, args, kwargs or {})


LOOKED: list[Any] = []


def frame(header: bytes, body: bytes = b"", claimed: int | None = None) -> io.BytesIO:
    return io.BytesIO(
        struct.pack(">IQ", len(header), len(body) if claimed is None else claimed) + header + body
    )


def crossed(guesses: tuple[Any, ...]) -> tuple[Any, ...]:
    """The guesses as they come out at the other end."""
    stream, tensors = io.BytesIO(), Tensors()
    send(stream, "guesses", {"guesses": packed_guesses(guesses, tensors)}, tensors.named)
    stream.seek(0)
    found = receive(stream)
    return guesses_of(found.fields["guesses"], found.tensors, 8)


def test_tensors_arrive_plain_and_counted_from_their_bytes() -> None:
    x, stream = torch.rand(3, 1, 4, 4), io.BytesIO()
    send(stream, "question", {"of": "client/0"}, {"samples": x, "again": x})
    send(stream, "ready", {}, {})
    stream.seek(0)
    first, second = receive(stream), receive(stream)
    assert (first.kind, first.fields) == ("question", {"of": "client/0"})
    assert torch.equal(first.tensors["samples"], x)
    assert (second.kind, second.fields, second.tensors) == ("ready", {}, {})
    with pytest.raises(EndedError):
        receive(stream)
    guess = Membership(target="client/0", scores=torch.arange(4.0).as_subclass(Lazy))
    assert len(guess.scores) == 0
    (found,) = crossed((guess,))
    LOOKED.clear()
    assert type(found.scores) is torch.Tensor
    assert found.scores.tolist() == [0.0, 1.0, 2.0, 3.0]
    assert len(found.scores) == 4
    assert LOOKED == []


def test_every_kind_of_guess_arrives_whole():
    given = (
        Membership(target="client/0", scores=torch.rand(4), generated=torch.rand(2, 1, 4, 4), note="as it is"),
        Membership(target="client/1", scores=torch.tensor([0, 1]), rehearsed=0.75),
        LabelDistribution(target="client/0", distribution=torch.tensor([0.25, 0.75])),
        Reconstruction(
            target="client/0", messages=(3, 4), images=torch.rand(2, 1, 4, 4), labels=torch.tensor([1, 2]),
            objective=0.5, evaluations=7,
        ),
        Reconstruction(target="client/0", messages=(), images=torch.rand(1, 1, 4, 4), objective=float("nan")),
    )  # fmt: skip
    found = crossed(given)
    assert [type(g) for g in found] == [type(g) for g in given]
    assert torch.equal(found[0].scores, given[0].scores)
    assert torch.equal(found[0].generated, given[0].generated)
    assert found[0].note == "as it is"
    assert found[1].scores.tolist() == [0.0, 1.0]
    assert [found[0].rehearsed, found[1].rehearsed] == [None, 0.75]
    assert torch.equal(found[2].distribution, given[2].distribution)
    assert (found[3].messages, found[3].objective, found[3].evaluations) == ((3, 4), 0.5, 7)
    assert torch.equal(found[3].labels, given[3].labels)
    assert found[4].objective is None


GOOD = {
    "kind": "membership",
    "target": "client/0",
    "scores": "t0",
    "generated": None,
    "note": "",
    "rehearsed": None,
}
REBUILT = {
    "kind": "reconstruction", "target": "client/0", "messages": [1], "images": "t0", "labels": None,
    "objective": None, "evaluations": 1, "note": "",
}  # fmt: skip


@pytest.mark.parametrize(
    "value",
    [
        None,
        7,
        {"kind": "membership"},
        [7],
        [{**GOOD, "kind": "truth"}],
        [{**GOOD, "rehearsed": 1.5}],
        [{**GOOD, "rehearsed": "all"}],
        [{**GOOD, "target": 7}],
        [{**GOOD, "target": None}],
        [{**GOOD, "scores": "t9"}],
        [{**GOOD, "scores": ["t0"]}],
        [{**GOOD, "scores": "complex"}],
        [{**GOOD, "note": {"a": 1}}],
        [{k: v for k, v in GOOD.items() if k != "note"}],
        [{**REBUILT, "messages": "12"}],
        [{**REBUILT, "messages": [True]}],
        [{**REBUILT, "messages": [1.0]}],
        [{**REBUILT, "labels": "t0"}],
        [{**REBUILT, "objective": "low"}],
        [{**REBUILT, "evaluations": 1.5}],
    ],
    ids=str,
)
def test_what_is_no_guess_is_refused(value):
    tensors = {"t0": torch.rand(4), "complex": torch.zeros(4, dtype=torch.complex64)}
    with pytest.raises(MalformedError):
        guesses_of(value, tensors, 8)
    assert guesses_of([GOOD, REBUILT], tensors, 8)


@pytest.mark.parametrize(
    "stream",
    [
        io.BytesIO(b"\x00"),
        frame(b""),
        frame(b"{}"),
        frame(b"[1]"),
        frame(b'{"kind": 7, "fields": {}}'),
        frame(b'{"kind": "a", "fields": []}'),
        frame(b'{"kind": "a", "fields": {}, "more": 1}'),
        frame(b'{"kind": "a", "kind": "b", "fields": {}}'),
        frame(b'{"kind": "a", "fields": {"n": NaN}}'),
        frame(b"[" * 100_000),
        frame(b'{"kind": "a", "fields": {}}', b"no tensors"),
        frame(b'{"kind": "a", "fields": {}}', b"", claimed=8),
        frame(b'{"kind": "a", "fields": {}}', b"", claimed=2**63),
        io.BytesIO(struct.pack(">IQ", 2**32 - 1, 0)),
    ],
    ids=range(14),
)
def test_what_is_no_frame_is_refused(stream):
    with pytest.raises(MalformedError):
        receive(stream)


def test_a_frame_larger_than_the_receiver_allows_is_not_read():
    stream = io.BytesIO()
    send(stream, "question", {}, {"samples": torch.zeros(1000)})
    stream.seek(0)
    with pytest.raises(MalformedError, match="more than"):
        receive(stream, most=100)
    assert stream.tell() == 12


def test_a_header_is_plain_json(tmp_path):
    stream = io.BytesIO()
    send(stream, "ready", {"missing": {}}, {})
    assert json.loads(stream.getvalue()[12:]) == {"kind": "ready", "fields": {"missing": {}}}


@pytest.mark.parametrize("fields", [{"a": "\ud800"}, {"\udfff": 1}, {"a": [{"b": "x\udc00"}]}])
def test_text_with_half_a_character_is_no_frame(fields):
    stream = io.BytesIO()
    send(stream, "guesses", fields, {})
    stream.seek(0)
    with pytest.raises(MalformedError):
        receive(stream)


def test_an_error_with_half_a_character_is_told_all_the_same():
    told = _said(ValueError("half \ud800"))
    assert told == r"ValueError: half \ud800"
    stream = io.BytesIO()
    send(stream, "failed", {"reason": told}, {})
    stream.seek(0)
    assert receive(stream).fields["reason"] == told


@pytest.mark.parametrize(
    "stream", [io.BytesIO(), frame(b"[1]"), frame(b'{"kind": "a", "fields": {}}', b"no tensors")]
)
def test_a_process_ends_when_nothing_more_can_be_read(stream, capfd):
    """Otherwise it would wait for ever, and so would the auditor."""
    ended = []
    serve_cases(stream, io.BytesIO(), missing={}, at_end=lambda: ended.append(True))
    assert ended == [True]
    assert ("MalformedError" in capfd.readouterr().err) == bool(stream.getvalue())
