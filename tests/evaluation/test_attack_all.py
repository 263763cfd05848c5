"""`attack --all`: every adversary and every attack, whoever asked; a cell that fails says so, and ends with 1."""

from __future__ import annotations

import json
import re

import pytest
import torch

import fdaudit
from fdaudit import attacks
from fdaudit.adversary.oracle import Oracle
from fdaudit.api import attack_all, every_adversary
from fdaudit.evaluation.stage import Stage
from fdaudit.isolation.schema import Trial
from fdaudit.isolation.trials import attack as run_attack
from fdaudit.storage.timings import note_time
from fdaudit.types import AttackTask, Challenge

from ..helpers.command import Cli
from ..helpers.doubles import HOOKS, registered, spec
from ..helpers.refusals import refused

FEDKD = {"local_epochs": 1, "distill_rounds": 1, "distill_steps": 1}


@pytest.fixture(scope="module")
def audited(tmp_path_factory):
    """FedKD, whose spec asks for one attack by one adversary, then attacked by all."""
    asked = spec(
        protocol={"name": "fedkd", "params": FEDKD},
        victims=2,
        model={"name": "mlp", "params": {"widths": [8]}},
        adversaries=["server"],
        attacks=[{"name": "label-answers", "params": {"shadows": 3}}],
    )
    run = fdaudit.run(asked, tmp_path_factory.mktemp("all") / "run")
    with pytest.MonkeyPatch.context() as patch:
        few = {k: v for k, v in attacks.REGISTRY._own.items() if k.startswith("label-")}
        patch.setattr(attacks.REGISTRY, "_own", few)
        attacks.REGISTRY.__dict__.pop("_targets", None)
        run = fdaudit.load(run.directory)
        cells = attack_all(run)
    attacks.REGISTRY.__dict__.pop("_targets", None)
    return run, cells


def test_every_adversary_is_tried_and_each_cell_has_a_status_a_reason_and_its_time(audited) -> None:
    run, cells = audited
    expected = {"server", "aggregator", "world", "client/0", "eavesdropper", "server+client/0"}
    assert set(every_adversary(run)) == expected
    named = {(c.adversary, c.attack) for c in cells}
    names = ("label-answers", "label-counts", "label-declined", "label-presence", "label-updates")
    assert named == {(a, n) for a in expected for n in names}
    assert {(c["adversary"], c["attack"]) for c in run.result.plain()["cells"]} >= named
    assert "not-requested" not in {c.status for c in cells}
    for cell in cells:
        assert cell.status == "run" or cell.reason
        assert cell.id in run.timings
    found = {c.id: c for c in cells}
    assert found["aggregator/label-counts"].status == "run"
    assert found["server/label-counts"].status == "not-applicable"
    assert found["server/label-counts"].reason.startswith("no class_counts or ")
    assert [t.target for t in found["eavesdropper/label-counts"].targets] == ["client/0", "client/1"]
    _, cells = audited
    params = {c.adversary: c.params for c in cells if c.attack == "label-answers"}
    assert params["aggregator"]["shadows"] == params["server"]["shadows"] == 3
    _, cells = audited
    asked = {c.id: [t.target for t in c.targets] for c in cells if c.status == "run"}
    assert all("client/0" not in targets for name, targets in asked.items() if "client/0" in name)


def test_the_page_shows_status_reason_time_and_queries_of_each_cell(audited):
    run, cells = audited
    page = fdaudit.report(run).read_text("utf-8")
    coverage = page[page.index('id="coverage"') :]
    for adversary in every_adversary(run):
        assert re.search(rf'data-label="Adversary">[^<]*{re.escape(adversary)}', coverage), adversary
    (reason,) = (c.reason for c in cells if c.id == "server/label-counts")
    assert reason in coverage


@pytest.mark.thorough
def test_a_cell_that_fails_shows_its_error_and_ends_with_1(tmp_path, cli: Cli, monkeypatch):
    def crash(where, task):
        if where == "run":
            raise AttributeError("gone")

    with registered("crash", "spy"):
        run = fdaudit.run(spec(attacks=[{"name": "spy"}], adversaries=["server"]), tmp_path / "run")
        monkeypatch.setitem(HOOKS, "crash", crash)
        code, out, _ = cli("attack", tmp_path / "run", "--all", "--json")
    assert code == 1
    failed = {c["id"]: c["reason"] for c in json.loads(out) if c["status"] == "failed"}
    assert failed["server+client/0/crash"].startswith("AttributeError: gone (")
    assert any(c["attack"] == "spy" and c["status"] != "failed" for c in json.loads(out))
    assert "AttributeError: gone" in fdaudit.report(run).read_text("utf-8")


def test_the_time_of_a_cell_is_that_of_its_last_run(tmp_path):
    note_time(tmp_path, "federation", 1.0)
    note_time(tmp_path, "federation", 2.0)
    note_time(tmp_path, "server/x", 5.0, anew=True)
    note_time(tmp_path, "server/x", 2.0, anew=True)
    assert json.loads((tmp_path / "timings.json").read_text()) == {"federation": 3.0, "server/x": 2.0}


# -- input that an attack cannot use ------------------------------------------------------------------------------


def test_a_budget_of_nothing_is_refused_by_the_spec():
    refused(lambda: fdaudit.load_spec(spec(queries=0)), "queries", 0)


@pytest.mark.thorough
def test_an_oracle_that_may_not_be_asked_is_a_reason(tmp_path):
    run = fdaudit.run(spec(attacks=[{"name": "loss-threshold"}], adversaries=["world"]), tmp_path / "run")
    stage = Stage(run.opened)
    (attack,) = (a for a in run.case.attacks if a.name == "loss-threshold")
    issued = stage.challenges("world")
    task = AttackTask(targets=stage.victims("world"), challenges=issued, oracle=Oracle("soft", budget=0))
    with stage.adversary("world") as given:
        found = run_attack(attack, given.view, Trial(knowledge=stage.knowledge(given), task=task, seed=0))
    assert isinstance(found, str)
    assert found.endswith("allows 0")


@pytest.mark.parametrize(
    ("x", "y", "pair"), [((4, 8, 8), (4,), (4,)), ((4, 1, 8, 8), (3,), (4,)), ((4, 1, 8, 8), (4,), (4, 1))]
)
def test_candidates_of_the_wrong_shape_are_refused(x, y, pair):
    with pytest.raises(ValueError, match="Challenge of client/0"):
        Challenge(target="client/0", x=torch.zeros(x), y=torch.zeros(y), pair=torch.zeros(pair))
