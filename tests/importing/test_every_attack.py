"""Every attack on records of other systems: in other precisions, and beside a message that is not finite."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest
import torch
from fdaudit.attacks import REGISTRY
from torch import Tensor

import fdaudit
from fdaudit.errors import RunError
from fdaudit.evaluation.stage import Stage
from fdaudit.planning.attacks import plan_attack
from fdaudit.testing.recorded import RecordedFederation, Sent

KINDS = (
    "gradient",
    "model_update",
    "model_parameters",
    "class_prototypes",
    "logits",
    "soft_labels",
    "top_logits",
    "top_soft_labels",
)
"""Kinds of numbers that are no whole ones."""
DTYPES = (torch.float16, torch.bfloat16, torch.float64)
FEW = {"iterations": 3, "tune": False, "steps": 5, "shadows": 8, "matched": 8, "students": 2, "restarts": 1}
"""Settings that make an attack short, where it has them."""
STAND_IN = {"stand_in": {"name": "fedmd", "params": {"rounds": 1}}}


def in_precision(dtype: torch.dtype) -> Sent:
    def sent(tensors: dict[str, Tensor], kind: str) -> dict[str, Tensor]:
        return {n: t.to(dtype) if t.is_floating_point() else t for n, t in tensors.items()}

    return sent


@pytest.fixture(scope="module")
def imported(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str, torch.dtype], fdaudit.Run]:
    @cache
    def run(kind: str, dtype: torch.dtype) -> fdaudit.Run:
        rest = STAND_IN if kind.endswith(("logits", "labels")) else {}
        federation = RecordedFederation(kind=kind, shared=60, card=rest, sent=in_precision(dtype))
        return federation.run(tmp_path_factory.mktemp("precision"))

    return run


def attacked(run: fdaudit.Run, name: str, adversary: str) -> bool:
    """Return whether an attack guessed something; raise what it raises."""
    settings = REGISTRY.load(name, "attack").Config.model_fields
    params = {field: value for field, value in FEW.items() if field in settings}
    plan = plan_attack(name, params, run.case.spec, "attack", (adversary,))
    stage = Stage(run.opened)
    with stage.adversary(adversary) as ready:
        try:
            return bool(stage.guesses(ready, plan))
        except RunError:  # it does not apply
            return False


@pytest.mark.thorough
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", REGISTRY.names())
def test_every_attack_reads_other_precisions(name: str, dtype: torch.dtype, imported) -> None:
    needs = [kind for kind in REGISTRY.describe(name).needs if kind in KINDS]
    run = imported(needs[0] if needs else "model_update", dtype)
    for adversary in ("server", "world"):
        attacked(run, name, adversary)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("kind", KINDS)
def test_a_view_has_single_precision_whatever_was_sent(kind: str, dtype: torch.dtype, tmp_path: Path) -> None:
    view = RecordedFederation(kind=kind, sent=in_precision(dtype)).run(tmp_path).view("server")
    for message in view.messages:
        floats = [t for t in view.tensors(message).values() if t.is_floating_point()]
        assert floats
        assert {t.dtype for t in floats} == {torch.float32}


def damaged(value: float) -> Sent:
    """Damage the second message of clients."""
    count = 0

    def sent(tensors: dict[str, Tensor], kind: str) -> dict[str, Tensor]:
        nonlocal count
        if kind == "model_parameters" and "values" not in tensors and count == 0:
            count += 1  # what the server sends first
        count += 1
        if count != 3:
            return tensors
        found = {n: t.clone() for n, t in tensors.items()}
        first = next(t for t in found.values() if t.is_floating_point())
        first.view(-1)[0] = value
        return found

    return sent


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
@pytest.mark.parametrize("kind", KINDS)
def test_what_is_not_finite_is_named_and_the_rest_is_read(kind: str, value: float, tmp_path: Path) -> None:
    run = RecordedFederation(kind=kind, sent=damaged(value)).run(tmp_path)
    recording = run.result.run.recording
    assert recording is not None
    named = [note for note in recording.notes if "is not finite" in note]
    assert len(named) == 1
    assert "left out" in named[0]
    view = run.view("server")
    assert view.select(kind=kind)
    for message in view.messages:
        assert all(bool(t.isfinite().all()) for t in view.tensors(message).values())
    assert attacked(run, "label-presence", "server") == (not kind.startswith(("gradient", "model")))
