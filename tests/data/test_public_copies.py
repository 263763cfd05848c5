"""Copies of the public samples: the images themselves first, then the same ones shifted, known to everybody."""

from __future__ import annotations

import pytest
import torch

import fdaudit
from fdaudit.data.public import shifted_copies
from fdaudit.errors import SpecError
from fdaudit.planning.simulated import simulated_case
from fdaudit.rng import child
from fdaudit.spec.schema import load_spec
from fdaudit.storage.files import decode
from fdaudit.testing.specs import small_spec
from fdaudit.transcript.log import read_log
from fdaudit.transcript.payloads import read_payload

from ..helpers.run_cases import known


def test_the_first_copies_are_the_images_and_the_others_are_shifted_by_up_to_an_eighth():
    x = torch.rand(40, 2, 16, 24, generator=child(0, "x")) + 0.1
    made = shifted_copies(x, 3)
    assert torch.equal(made[:40], x)
    seen = set()
    for number, image in enumerate(made[40:]):
        filled = (image[0] > 0).nonzero()
        (top, left), (bottom, right) = filled.min(0).values, filled.max(0).values
        rows, columns = int(bottom - top) + 1, int(right - left) + 1
        down = int(top) if top > 0 else rows - 16
        along = int(left) if left > 0 else columns - 24
        assert abs(down) <= 2
        assert abs(along) <= 3
        seen.add((down, along))
        whole = x[number % 40]
        kept = whole[:, max(-down, 0) : 16 - max(down, 0), max(-along, 0) : 24 - max(along, 0)]
        assert torch.equal(image[:, top : bottom + 1, left : right + 1], kept)
    assert len(seen) > 10
    assert torch.equal(made, shifted_copies(x, 3))


def test_one_copy_is_the_public_samples_as_they_are():
    x = torch.rand(5, 1, 8, 8, generator=child(0, "x"))
    assert torch.equal(shifted_copies(x, 1), x)


def test_every_copy_is_answered(tmp_path):
    kd = {
        "name": "fedkd",
        "params": {"local_steps": 2, "distill_rounds": 1, "distill_steps": 1, "levels": None},
    }
    spec = small_spec(
        protocol=kd, public_copies=4, splits={"proxy": 0.2, "candidates": 4}, adversaries=["aggregator"]
    )
    made = fdaudit.run(spec, tmp_path / "run")
    case = simulated_case(load_spec(spec), known(0))
    assert len(made.case.public) == len(case.public) == 4 * len(made.case.splits.proxy)
    folder = tmp_path / "run" / "transcript"
    sent = [m for m in read_log(folder).messages if m.kind == "logits"]
    assert sent
    assert {len(decode(read_payload(folder, m))["values"]) for m in sent} == {len(made.case.public)}


def test_texts_are_not_shifted(tmp_path):
    table = tmp_path / "t.csv"
    table.write_text(
        "text,label\n" + "".join(f"some words {i},{i % 2}\n" for i in range(60)), encoding="utf-8"
    )
    spec = small_spec(
        dataset={"name": f"text:{table}", "length": 4},
        model={"name": "transformer", "params": {"width": 8}},
        protocol={"name": "fedkd", "params": {}},
        splits={"proxy": 0.3, "candidates": 2},
        public_copies=2,
    )
    with pytest.raises(SpecError, match="shifts images"):
        simulated_case(load_spec(spec), known(0))
