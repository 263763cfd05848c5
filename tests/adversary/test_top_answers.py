"""Answers about the k most likely classes: what attacks read, and what is refused."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from fdaudit.attacks.membership._answers import treatment_of
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from fdaudit.adversary.forms import Forms, left_out, with_every_class
from fdaudit.adversary.top_answers import every_class, only_top, strange_classes
from fdaudit.adversary.view import View, view_of
from fdaudit.recording.recorder import Recorder

CLASSES = 4
TOP = {"logits": "top_logits", "soft_labels": "top_soft_labels"}


def answers(kind: str, n: int = 6, classes: int = CLASSES, seed: int = 0) -> Tensor:
    z = 3 * torch.randn(n, classes, generator=torch.Generator().manual_seed(seed))
    return z if kind == "logits" else z.softmax(1)


def top(values: Tensor, k: int) -> dict[str, Tensor]:
    found = values.topk(k, dim=1)
    return {"values": found.values, "classes": found.indices}


@given(
    st.sampled_from(sorted(TOP)), st.integers(0, 7), st.integers(1, 6), st.integers(1, 6), st.integers(0, 99)
)
def test_named_classes_keep_their_values_and_no_other_gets_more(kind, n, classes, k, seed) -> None:
    k = min(k, classes)
    values = answers(kind, n, classes, seed)
    sent = top(values, k)
    order = torch.randperm(k, generator=torch.Generator().manual_seed(seed))
    read = every_class({name: t[:, order] for name, t in sent.items()}, kind, classes)["values"]
    assert read.shape == values.shape
    torch.testing.assert_close(read.gather(1, sent["classes"]), sent["values"])
    rest = torch.ones_like(read, dtype=torch.bool).scatter(1, sent["classes"], False)
    least = sent["values"].amin(1, keepdim=True).expand_as(read)
    assert bool((read[rest] <= least[rest]).all())
    if k == classes:
        torch.testing.assert_close(read, values)
    elif kind == "soft_labels":
        torch.testing.assert_close(read.sum(1), torch.ones(n))
    else:
        assert n == 0 or float(read[rest].max()) == pytest.approx(float(sent["values"].min()) - 1)
    torch.testing.assert_close(only_top(values, k, kind), read)


@pytest.mark.parametrize("kind", TOP)
def test_ties_and_one_row_keep_their_order(kind: str) -> None:
    read = every_class(
        {"values": torch.tensor([[0.25, 0.25]]), "classes": torch.tensor([[2, 0]])}, kind, CLASSES
    )["values"][0]
    assert read[0] == read[2]
    assert read[1] == read[3]
    assert read[1] <= read[0]
    alone = every_class({"values": torch.tensor([[-7.0]]), "classes": torch.tensor([[3]])}, "logits", CLASSES)
    assert alone["values"].argmax() == 3


def test_rows_that_were_scaled_to_one_leave_nothing_for_others() -> None:
    sent = top(answers("soft_labels"), 2)
    sent["values"] = sent["values"] / sent["values"].sum(1, keepdim=True)
    read = every_class(sent, "soft_labels", CLASSES)["values"]
    assert bool((read > 0).sum(1).eq(2).all())
    treatment = treatment_of("soft_labels", [{"name": "top-answers", "k": 2}], read)
    assert treatment.rescaled
    own = treatment.as_sent(answers("soft_labels", seed=1))
    torch.testing.assert_close(own.sum(1), torch.ones(6))
    assert bool((own > 0).sum(1).eq(2).all())


@pytest.mark.parametrize("kind", TOP)
def test_an_adversarys_own_models_leave_out_what_the_client_leaves_out(kind: str) -> None:
    values = answers(kind)
    read = every_class(top(values, 2), kind, CLASSES)["values"]
    treatment = treatment_of(kind, [{"name": "top-answers", "k": 2}], read)
    own = treatment.as_sent(values)
    expected = read - read.mean(1, keepdim=True) if kind == "logits" else read
    torch.testing.assert_close(own, expected)
    assert treatment_of(kind, [], values).as_sent(values) is values


@pytest.mark.parametrize(
    ("classes", "problem"),
    [
        ([[0, 1], [2, 2]], "row 1 names a class twice"),
        ([[0, 4], [2, 1]], "row 0 names class 4 of 4"),
        ([[0, -1], [2, 1]], "row 0 names class -1"),
        ([[0.5, 1.0], [2.0, 1.0]], "no whole numbers"),
        ([[0, 1], [3, 2]], ""),
    ],
)
def test_strange_classes_are_named(classes: list[list[float]], problem: str) -> None:
    named = torch.tensor(classes)
    assert problem in strange_classes(named, CLASSES)
    if problem:
        with pytest.raises(ValueError, match=problem):
            every_class({"values": torch.rand(2, 2), "classes": named}, "logits", CLASSES)


def seen(folder: Path, kind: str, **tensors: Tensor) -> View:
    with Recorder(folder / "record", ["server", "client/0"], truth=folder / "truth") as recorder:
        recorder.round(0)
        recorder.send("client/0", "server", kind, tensors)
    from fdaudit.recording.record import closed_part, read_record

    closed_part(read_record(folder / "record"), folder / "transcript")
    return view_of(folder / "transcript", "server", parties=["server", "client/0"], hyperparameters={})


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("kind", TOP)
def test_a_view_hands_attacks_a_value_for_every_class(kind: str, dtype: torch.dtype, tmp_path: Path) -> None:
    sent = top(answers(kind).to(dtype), 3)
    named = sent["classes"].to(torch.uint8)
    view = seen(tmp_path, TOP[kind], values=sent["values"], classes=named, index=torch.arange(6).flip(0))
    assert "number of classes" in Forms().misfit(view.messages[0])
    read = with_every_class(view, CLASSES)
    (message,) = read.select(kind=kind)
    assert not Forms(classes=CLASSES).misfit(message)
    tensors = read.tensors(message)
    assert tensors.keys() == {"index", "values"}
    assert tensors["values"].dtype == torch.float32
    expected = every_class({"values": sent["values"].float(), "classes": named}, kind, CLASSES)["values"]
    torch.testing.assert_close(tensors["values"], expected)
    assert read.defenses_of(message) == ({"name": "top-answers", "k": 3},)
    assert view.tensors(view.messages[0])["values"].shape == (6, 3)
    assert with_every_class(read, CLASSES) is read


@pytest.mark.parametrize(
    ("shapes", "problem"),
    [
        ({"values": (5, 5), "classes": (5, 5)}, "5 of 4 classes"),
        ({"values": (5, 2), "classes": (5, 3)}, "it has values (5, 2)"),
        ({"values": (5, 2), "classes": (4, 2)}, "it has values (5, 2)"),
        ({"values": (5,), "classes": (5,)}, "classes may number its samples"),
        ({"values": (5, 2)}, "it has no tensor classes"),
    ],
)
def test_messages_that_do_not_fit_are_left_out_with_a_reason(shapes, problem: str, tmp_path: Path) -> None:
    tensors = {
        name: torch.zeros(shape, dtype=torch.int64 if name == "classes" else torch.float32)
        for name, shape in shapes.items()
    }
    view = seen(tmp_path, "top_logits", **tensors)
    assert problem in Forms(classes=CLASSES).misfit(view.messages[0])
    assert with_every_class(view, CLASSES) is view
    assert problem in left_out(view, Forms(classes=CLASSES), ("logits", "top_logits"))


def test_what_would_not_fit_in_memory_is_left_out(tmp_path: Path) -> None:
    view = seen(
        tmp_path, "top_logits", values=torch.zeros(3000, 1), classes=torch.zeros(3000, 1, dtype=torch.int64)
    )
    assert "every class" in Forms(classes=1_000_000).misfit(view.messages[0])
