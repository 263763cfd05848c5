"""A run with a budget: what is allotted, kept, resumed and said. Costs are made up, and budgets last for days."""

from __future__ import annotations

import json
import shutil
from collections import Counter
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from fdaudit.reports.judgement.judgement import findings_of, standings_of
from fdaudit.reports.run.security import render_report, report_json
from fdaudit.reports.run.summary import summarise

import fdaudit
from fdaudit.api import attack_all
from fdaudit.cli.verdicts import outcome, verdicts
from fdaudit.errors import UsageError
from fdaudit.evaluation import runner
from fdaudit.evaluation.clock import Deadline, kept_budget
from fdaudit.evaluation.runner import attack_cells, budgeted
from fdaudit.evaluation.steps import Unit
from fdaudit.evaluation.workers import WorkUnit

from ..helpers.command import Cli
from ..helpers.refusals import refused
from .test_estimate import SPEC as COSTED

pytestmark = pytest.mark.thorough

SPEC: dict[str, Any] = {
    **COSTED,
    "model": {"name": "mlp", "params": {"widths": [8]}},
    "attacks": [
        {"name": "rmia", "params": {"most_steps": 300}},
        {"name": "lira-offline"},
        {"name": "loss-threshold"},
        {"name": "inverting-gradients"},
    ],
}
BUDGET = "130h"
"""A step of 60 seconds makes the attacks on membership cost 260 hours, and gradient inversion 100 at the least."""


@pytest.fixture(autouse=True)
def slow_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Unit, "measured", lambda case: Unit(seconds=60.0, parameters=1000, kept=500))


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> tuple[fdaudit.Run, list[str]]:
    said = list[str]()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Unit, "measured", lambda case: Unit(seconds=60.0, parameters=1000, kept=500))
        place = tmp_path_factory.mktemp("budget") / "run"
        run = fdaudit.run(
            SPEC,
            place,
            budget=BUDGET,
            tick=lambda what, done, total: said.append(what) if not total else None,
        )
    return run, said


def cells_of(run: fdaudit.Run) -> dict[str, Any]:
    return {cell.id: cell for cell in run.result.cells}


def test_dear_attacks_are_left_out_and_the_others_reduced(ran: tuple[fdaudit.Run, list[str]]) -> None:
    cells, budget = cells_of(ran[0]), ran[0].result.budget
    assert budget is not None
    assert [(one.attack, one.adversaries) for one in budget.left_out] == [
        ("inverting-gradients", ("server",))
    ]
    left = cells["server/inverting-gradients"]
    assert left.status == "not-tested"
    assert left.reason.startswith("not run: ")
    assert "budget of 130" in left.reason
    assert left.figures == ()
    # It could see nothing to attack, and so the budget is not the reason.
    assert cells["world/inverting-gradients"].status == "not-applicable"
    for adversary in ("server", "world"):
        assert cells[f"{adversary}/loss-threshold"].status in ("run", "inconclusive")
        assert 4 <= cells[f"{adversary}/lira-offline"].params["shadows"] < 8


def test_what_the_user_set_stays(ran: tuple[fdaudit.Run, list[str]]) -> None:
    params = cells_of(ran[0])["server/rmia"].params
    assert params["most_steps"] == 300
    assert 4 <= params["shadows"] < 8


def test_cost_and_allotment_are_said_before_the_stage(ran: tuple[fdaudit.Run, list[str]]) -> None:
    run, said = ran
    lines = [line for line in said if line.startswith("attacks  ")]
    assert len(lines) == 2
    assert all(words in lines[0] for words in ("hours on 1", "GB of memory", "GB on disk"))
    assert run.result.budget is not None
    assert lines[1] == f"attacks  {run.result.budget.short}"
    assert lines[1].endswith("left out: inverting-gradients")


def test_it_reads_not_tested_and_never_no_leak(ran: tuple[fdaudit.Run, list[str]]) -> None:
    result = ran[0].result
    findings = findings_of(result)
    levels = {(s.adversary, s.goal): s for s in standings_of(result, findings)}
    assert levels["server", "reconstruction"].level == "not-tested"
    assert "left out inverting-gradients" in levels["server", "reconstruction"].inherited
    page = summarise(result)
    assert any("found no time" in line for line in page.front.untested)
    assert any("--budget" in action.do for action in page.actions)
    assert any("inverting-gradients: not tested:" in line for line in verdicts(result))
    assert next(iter(outcome(result))) == result.budget.short if result.budget else False


def test_the_report_states_what_the_budget_bought(ran: tuple[fdaudit.Run, list[str]]) -> None:
    run = ran[0]
    budget = run.result.budget
    assert budget is not None
    html = render_report(run.result, run.directory, run.timings)
    assert budget.words in html
    for page in (
        render_report(run.result, run.directory, run.timings, public=True),
        report_json(run.result, run.timings, public=True),
    ):
        assert "of 8 shadows" not in page
        assert "no time was" in page


def test_a_resumed_run_has_the_same_settings(ran: tuple[fdaudit.Run, list[str]]) -> None:
    run = ran[0]
    before = cells_of(run)
    for cell in ("server-lira-offline", "server-inverting-gradients"):
        (run.directory / "attacks" / f"{cell}.json").unlink()
    again = fdaudit.run(None, run.directory, resume=True)
    after = cells_of(again)
    assert {k: (c.status, c.params) for k, c in after.items()} == {
        k: (c.status, c.params) for k, c in before.items()
    }
    assert again.result.budget == run.result.budget


def test_another_budget_is_refused_when_a_run_goes_on(ran: tuple[fdaudit.Run, list[str]]) -> None:
    act = partial(fdaudit.run, None, ran[0].directory, resume=True, budget="200h")
    refused(act, "budget", "200 hours", said="130 hours", kind=UsageError)


def test_cheap_attacks_run_first(ran: tuple[fdaudit.Run, list[str]], monkeypatch: pytest.MonkeyPatch) -> None:
    order = list[str]()

    def outcomes(run: Any, pieces: Any, *rest: Any) -> Any:
        order.extend(piece.attack.name for piece in pieces)
        assert all(piece.deadline is not None for piece in pieces)
        yield from ()

    monkeypatch.setattr(runner, "outcomes", outcomes)
    directory, clock = budgeted(ran[0].opened, None)
    attack_cells(directory, again=True, clock=clock)
    # First those that see nothing to attack.
    assert order == ["inverting-gradients", "loss-threshold", "lira-offline", "rmia"]


def test_cells_whose_turn_comes_too_late_are_not_tested(
    ran: tuple[fdaudit.Run, list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Deadline, "left", property(lambda deadline: -1.0))
    directory, clock = budgeted(ran[0].opened, None)
    cells = attack_cells(directory, again=True, clock=clock)
    late = [c for c in cells if c.attack == "loss-threshold"]
    assert clock is not None
    assert {c.reason for c in late} == {clock.deadline.before_its_turn}
    assert Counter(c.status for c in late) == {"not-tested": 2}


def test_a_cell_that_the_deadline_stops_is_not_tested(
    ran: tuple[fdaudit.Run, list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    left = iter([5.0, 1e-9, *[-1.0] * 100])
    monkeypatch.setattr(Deadline, "left", property(lambda deadline: next(left)))
    directory, clock = budgeted(ran[0].opened, None)
    (cell,) = attack_cells(
        directory,
        only=lambda adversary, attack: (adversary, attack) == ("server", "lira-offline"),
        again=True,
        clock=clock,
    )
    assert clock is not None
    assert (cell.status, cell.reason) == ("not-tested", clock.deadline.before_its_end)


class _Lost:
    """Workers that end with a cell in hand and others waiting, as a pool does when the time is up."""

    size = 2

    def work(self, pieces: Any) -> Any:
        yield 0, {"tick": ["training", 1, 2]}
        yield 1, None


def test_cells_that_processes_did_not_report_in_time_are_not_tested(
    ran: tuple[fdaudit.Run, list[str]],
) -> None:
    directory, clock = budgeted(ran[0].opened, None)
    assert clock is not None
    late = replace(clock, spent=clock.budget.attacks + 1)
    cells = attack_cells(
        directory,
        only=lambda adversary, attack: attack in ("loss-threshold", "lira-offline"),
        again=True,
        clock=late,
        workers=_Lost(),
    )
    assert {c.status for c in cells} == {"not-tested"}
    assert {c.reason for c in cells} == {late.deadline.not_in_time, late.deadline.before_its_end}


def test_only_attacks_that_say_they_apply_are_in_the_allotment(ran: tuple[fdaudit.Run, list[str]]) -> None:
    """Inverting gradients reads messages that the world sees, and yet says that it does not apply."""
    opened = ran[0].opened
    cells = {attack: ["server", "world"] for attack in opened.case.attacks if attack.params is not None}
    able = {attack.name: names for attack, names in runner._applicable(opened, cells).items()}
    assert able["inverting-gradients"] == ["server"]
    assert able["loss-threshold"] == ["server", "world"]


def test_a_piece_keeps_its_deadline_on_its_way_to_a_process(ran: tuple[fdaudit.Run, list[str]]) -> None:
    directory, clock = budgeted(ran[0].opened, None)
    assert clock is not None
    attack = next(a for a in directory.case.attacks if a.name == "lira-offline")
    piece = WorkUnit(directory.path, attack, ("server",), (), clock.deadline)
    again = WorkUnit.from_json(json.loads(json.dumps(piece.to_json())), directory.case)
    assert again.deadline == clock.deadline
    assert again.attack.params == attack.params


@pytest.fixture
def copied(ran: tuple[fdaudit.Run, list[str]], tmp_path: Path) -> fdaudit.Run:
    shutil.copytree(ran[0].directory, tmp_path / "run")
    return fdaudit.load(tmp_path / "run")


def test_all_attacks_again_without_a_budget_forget_it(
    copied: fdaudit.Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runner, "outcomes", lambda *given: (given for _ in ()))
    attack_all_of(copied, None)
    assert kept_budget(copied.opened.vault) is None


def test_all_attacks_again_with_another_budget_decide_anew(
    copied: fdaudit.Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runner, "outcomes", lambda *given: (given for _ in ()))
    attack_all_of(copied, "10h")
    clock = kept_budget(copied.opened.vault)
    assert clock is not None
    assert clock.budget.seconds == 36_000
    assert len(clock.budget.left_out) > 1


def attack_all_of(run: fdaudit.Run, budget: str | None) -> None:
    with suppress(KeyError):  # of a cell that this test did not run
        attack_all(run, budget=budget)


def test_one_attack_run_again_is_no_longer_part_of_the_budget(copied: fdaudit.Run) -> None:
    assert copied.result.budget is not None
    assert "lira-offline" in {one.attack for one in copied.result.budget.settings}
    for adversary in ("server", "world"):
        fdaudit.attack("lira-offline", copied, adversary, shadows=8, most_steps=10)
    budget = fdaudit.load(copied.directory).result.budget
    assert budget is not None
    assert "lira-offline" not in {one.attack for one in budget.settings}
    assert [one.attack for one in budget.left_out] == ["inverting-gradients"]


@pytest.mark.parametrize("command", [["run"], ["attack", "--all"]])
def test_a_bad_duration_is_one_line_and_ends_with_2(
    command: list[str],
    ran: tuple[fdaudit.Run, list[str]],
    tmp_path: Path,
    cli: Cli,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    spec = tmp_path / "spec.json"
    spec.write_text(json.dumps(SPEC))
    place = spec if command == ["run"] else ran[0].directory
    code, out, err = cli(*command, place, "--budget", "5weeks")
    assert (code, out) == (2, "")
    assert err.startswith("fdaudit: budget: '5weeks'")
    assert len(err.splitlines()) == 1
    assert not (tmp_path / "runs").exists()


def test_a_budget_for_one_attack_is_refused(ran: tuple[fdaudit.Run, list[str]], cli: Cli) -> None:
    code, _, err = cli("attack", ran[0].directory, "gap", "--budget", "5m")
    assert code == 2
    assert "Give --all" in err
