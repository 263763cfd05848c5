"""Labels cost few bytes: the narrowest types, and no index where a message is about all samples in order."""

from __future__ import annotations

from math import prod
from typing import Any

import pytest
import torch

from fdaudit.federation.public_answers import answer
from fdaudit.transcript.messages import Message
from fdaudit.transcript.samples import sample_index

from ..helpers.protocol_cases import run

_BYTES = {"U8": 1, "I8": 1, "U16": 2, "I16": 2, "I32": 4, "F32": 4, "I64": 8}
SOME = {"public_batch": 4}
BALLOTS = {"weights": "uniform", "shares": "uniform", "outputs": "votes"}
LABELS: list[tuple[str, dict[str, Any], int]] = [
    ("fedmd", {"share": "hard_labels", **SOME}, 2),
    ("fedmd", {"share": "hard_labels"}, 1),
    ("ds-fl", {"share": "hard_labels", **SOME}, 2),
    ("ds-fl", {"share": "hard_labels"}, 1),
    ("feded", {"share": "hard_labels", **SOME}, 2),
    ("feded", {"share": "hard_labels"}, 1),
    ("selective-fd", {"selector": "none", **SOME}, 2),
    ("selective-fd", {"selector": "none", "ensemble": "votes", **SOME}, 2),
    ("fedkd", {"ensemble": "votes"}, 1),
    ("fediod", BALLOTS, 1),
]
"""Protocols that share predicted classes, with the bytes of one among few samples."""


def size_of(message: Message) -> int:
    """Return the bytes of a message's tensors."""
    return sum(_BYTES[t.dtype] * prod(t.shape) for t in message.tensors.values())


@pytest.mark.parametrize(("name", "params", "wanted"), LABELS, ids=str)
def test_a_hard_label_costs_its_class_and_where_it_must_its_sample(
    name: str, params: dict[str, Any], wanted: int, tmp_path
) -> None:
    ran = run(tmp_path / "a", name, params, rounds=2)
    answers = [m for m in ran.messages if m.kind == "hard_labels" and m.sender.startswith("client/")]
    assert answers
    for message in answers:
        assert size_of(message) == wanted * message.tensors["values"].shape[0]
        assert ("index" in message.tensors) == (wanted == 2)


@pytest.mark.parametrize(
    ("name", "params", "kinds"),
    [
        ("fedmd", {}, {"logits", "ensemble_labels"}),
        ("ds-fl", {}, {"soft_labels", "ensemble_labels"}),
        ("feded", {}, {"soft_labels"}),
        ("fedkd", {"levels": None, "gamma": None}, {"logits", "ensemble_labels"}),
        ("fediod", {}, {"logits"}),
        ("dafkd", {"upload_discriminator": False}, {"soft_labels"}),
    ],
)
def test_no_index_goes_with_answers_about_all_samples(
    name: str, params: dict[str, Any], kinds: set[str], tmp_path
) -> None:
    ran = run(tmp_path / "a", name, params, rounds=2)
    sent = [m for m in ran.messages if m.kind in kinds]
    assert {m.kind for m in sent} == kinds
    for message in sent:
        assert message.tensors.keys() == {"values"}
        rows = message.tensors["values"].shape[0]
        assert sample_index(ran.tensors(message)).tolist() == list(range(rows))


def test_votes_that_leave_samples_out_are_averaged_with_their_index(tmp_path) -> None:
    """Which samples have a valid vote depends on private data, so the ensemble of votes always names them."""
    for name in ("fedmd", "ds-fl"):
        ran = run(tmp_path / name, name, {"share": "hard_labels"}, rounds=1)
        (labels,) = (m for m in ran.messages if m.kind == "ensemble_labels")
        assert labels.tensors["index"].dtype == "U8"


@pytest.mark.parametrize(("samples", "classes"), [(300, 10), (70_000, 10), (70_000, 256)])
def test_a_hard_label_among_many_samples_costs_at_most_five_bytes(samples: int, classes: int) -> None:
    index = torch.arange(1, samples)
    made = answer(index, torch.rand(len(index), classes), "hard_labels", samples)
    assert sum(t.numel() * t.element_size() for t in made.values()) <= 5 * len(index)
    assert torch.equal(sample_index(made), index)
