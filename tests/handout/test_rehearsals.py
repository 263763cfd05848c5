"""Rehearsals of a run in which parties deviate."""

from __future__ import annotations

from pathlib import Path

import pytest

from fdaudit import api
from fdaudit.adversary.knowledge import Knowledge
from fdaudit.adversary.view import View
from fdaudit.audit.run import Run
from fdaudit.evaluation.controls.rehearsed import Rehearsed
from fdaudit.handout.rehearsals import rehearsal_of
from fdaudit.isolation.frames import Tensors
from fdaudit.isolation.schema import Trial, packed, unpacked
from fdaudit.testing.specs import small_spec
from fdaudit.transcript.messages import DEVIATION
from fdaudit.types import AttackTask

SPEC = small_spec(
    protocol={"name": "fedmd", "params": {"rounds": 2, "batch_size": 4, "warm_up_steps": 1}},
    splits={"test": 0.2, "proxy": 0.3, "auxiliary": 0.2, "candidates": 4},
    deviations=[{"party": "server", "name": "crafted-consensus"}],
)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return api.run(SPEC, tmp_path_factory.mktemp("rehearsals") / "run")


def rehearsed(run: Run, adversary: str, folder: Path, *, defended: bool = True) -> View:
    case = run.case
    data = [case.records(k) for k in case.clients]
    rehearsal = rehearsal_of(case, adversary, defended=defended, own=folder)
    return rehearsal(data, 5)


def marked(view: View) -> list[tuple[str, object, list[int]]]:
    """Kind and mark of each message of the server about public samples, and which samples."""
    about = [m for m in view.messages if m.sender == "server" and m.kind in ("proxy_indices", "logits")]
    return [(m.kind, m.fields.get(DEVIATION), view.tensors(m)["index"].tolist()) for m in about]


def test_an_adversary_rehearses_what_its_own_party_sent_by_the_same_draws(run: Run, tmp_path: Path) -> None:
    sent = marked(run.view("server"))
    assert any(mark for _, mark, _ in sent)
    assert marked(rehearsed(run, "server", tmp_path)) == sent


@pytest.mark.parametrize(("adversary", "defended"), [("client/0", True), ("server", False)])
def test_others_and_controls_rehearse_the_honest_protocol(
    run: Run, tmp_path: Path, adversary: str, defended: bool
) -> None:
    view = rehearsed(run, adversary, tmp_path, defended=defended)
    assert view.messages
    assert not any(m.fields.get(DEVIATION) for m in view.messages)


def test_a_coalition_rehearses_its_members_deviations(run: Run, tmp_path: Path) -> None:
    view = rehearsed(run, "server+client/0", tmp_path)
    assert any(m.fields.get(DEVIATION) for m in view.messages)


def test_the_power_control_deviates_as_the_run_does(run: Run) -> None:
    view = Rehearsed(run.opened).view("server")
    assert any(m.fields.get(DEVIATION) for m in view.messages)


def test_a_deviating_rehearsal_can_be_sent_to_an_attack(run: Run, tmp_path: Path) -> None:
    case = run.case
    rehearsal = rehearsal_of(case, "server", own=tmp_path)
    trial = Trial(knowledge=Knowledge(rehearse=rehearsal), task=AttackTask(targets=("client/0",)), seed=1)
    tensors = Tensors()
    received = unpacked(packed(trial, tensors), tensors.named).knowledge.rehearse
    assert received is not None
    data = [case.records(k) for k in case.clients]
    assert marked(received(data, 5)) == marked(rehearsal(data, 5))
    assert case.seed not in rehearsal.setting.values()
