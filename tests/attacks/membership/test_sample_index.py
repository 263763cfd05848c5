"""Attacks read a message about all samples in order and one that names them alike."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from fdaudit.attacks.label_distribution.answers import read_answers
from fdaudit.attacks.label_distribution.declined import accepted_samples
from fdaudit.attacks.membership._answers import recorded
from fdaudit.attacks.membership._averages import ensembles_of
from fdaudit.attacks.membership._rounds import lesson_of
from fdaudit.attacks.model_inversion.paired_logits import _last
from torch import Tensor

from fdaudit.adversary.knowledge import Knowledge
from fdaudit.adversary.view import View
from fdaudit.types import AttackTask

from .membership_cases import CLASSES, knowledge, records, view

SAMPLES = 20
SETTINGS = {"share": "soft_labels", "lr": 0.1, "batch_size": 8, "distill_steps": 1}
FORMS = {
    "none": None,
    "int64": torch.int64,
    "int32": torch.int32,
    "uint16": torch.uint16,
    "uint8": torch.uint8,
}


def known() -> Knowledge:
    public, _ = records(SAMPLES, seed=5)
    return knowledge(*records(8), public=public)


def rows(seed: int) -> Tensor:
    return torch.randn(SAMPLES, CLASSES, generator=torch.Generator().manual_seed(seed)).softmax(1)


def read(place: Path, form: torch.dtype | None) -> dict[str, Any]:
    """What every reader of answers finds where all samples were answered."""

    def named(values: Tensor) -> dict[str, Tensor]:
        index = {} if form is None else {"index": torch.arange(SAMPLES).to(form)}
        return {**index, "values": values}

    classes = rows(3).argmax(1).to(torch.uint16 if form == torch.uint16 else torch.uint8)
    asked = torch.arange(SAMPLES).to(form or torch.uint8)
    sent = [
        ("server", "client/1", "proxy_indices", {"index": asked}),
        ("client/1", "server", "soft_labels", named(rows(1))),
        ("client/2", "server", "hard_labels", named(classes)),
        ("server", "client/1", "ensemble_labels", named(rows(2))),
    ]
    with view(place, sent) as seen:
        whole: View = replace(seen, hyperparameters=SETTINGS)
        knows, task = known(), AttackTask(targets=("client/1",))
        hard = recorded(whole, knows, 100, kinds=("hard_labels",))["client/2"]
        soft = recorded(whole, knows, 100)["client/1"]
        (ensemble,) = ensembles_of(whole, knows, task, 1, 100)
        lesson = lesson_of(whole, knows, "client/1", 0)
        assert lesson is not None
        mine = [m for m in whole.messages if m.kind == "soft_labels"]
        return {
            "hard": (hard.samples, hard.values),
            "soft": (soft.samples, soft.values),
            "ensemble": (ensemble.x, ensemble.values),
            "lesson": (lesson.x, lesson.targets),
            "pairs": _last(whole, mine, SAMPLES, CLASSES),
            "shares": tuple(read_answers(whole, k, CLASSES) for k in ("client/1", "client/2")),
            "accepted": accepted_samples(whole, "client/1", SAMPLES),
        }


@pytest.mark.parametrize("form", [f for f in FORMS if f != "none"])
def test_both_forms_say_the_same_to_every_reader(form: str, tmp_path: Path) -> None:
    whole, named = read(tmp_path / "a", None), read(tmp_path / "b", FORMS[form])
    for reader, found in whole.items():
        for one, other in zip(found, named[reader], strict=True):
            assert one is not None
            torch.testing.assert_close(one, other, rtol=0, atol=0, msg=reader)
