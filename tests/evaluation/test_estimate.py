"""The estimate of time and memory before the first cell: what it counts, and what it grows with."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

import fdaudit
from fdaudit import attacks
from fdaudit.adversary.attack_plan import AttackPlan
from fdaudit.evaluation import estimate as estimates
from fdaudit.evaluation.budget import Cost
from fdaudit.evaluation.controls.rehearsals import most_of
from fdaudit.evaluation.estimate import Estimate, costs_of, estimate
from fdaudit.evaluation.runner import attack_cells
from fdaudit.evaluation.steps import Unit, Work
from fdaudit.planning.attacks import plan_attack
from fdaudit.planning.simulated import simulated_case
from fdaudit.progress import progress
from fdaudit.spec.schema import load_spec
from fdaudit.storage.vault import Secrets

from . import stage_cases

pytestmark = pytest.mark.thorough

SPEC = {**stage_cases.SPEC, "threads": 1}


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> fdaudit.Run:
    return fdaudit.run(SPEC, tmp_path_factory.mktemp("estimate") / "run")


@pytest.fixture
def unit(monkeypatch: pytest.MonkeyPatch) -> Unit:
    """A step of one millisecond, so that estimates do not depend on the machine."""
    found = Unit(seconds=0.001, parameters=1000, kept=500)
    monkeypatch.setattr(Unit, "measured", lambda case: found)
    return found


def planned(run: fdaudit.Run, name: str, **params: Any) -> AttackPlan:
    return plan_attack(name, params, run.case.spec, "attack", ("server",))


def of(run: fdaudit.Run, cells: Mapping[AttackPlan, tuple[str, ...]], processes: int = 1) -> Estimate:
    costs = costs_of(run.opened, cells)
    assert costs is not None
    return estimate(run.opened, costs, processes)


def seconds(found: Estimate) -> float:
    return found.seconds


def slow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Unit, "measured", lambda case: Unit(seconds=1.0, parameters=1000, kept=500))


def test_it_is_said_before_the_first_cell(run: fdaudit.Run, monkeypatch: pytest.MonkeyPatch) -> None:
    slow(monkeypatch)
    said = list[tuple[str, int, int]]()
    attack_cells(run.opened, again=True, tick=lambda *told: said.append(told))
    assert said[0][1:] == (0, 0)
    assert said[0][0].startswith("attacks  4 cells")
    assert "8 x 8" in said[0][0]
    assert all(total for _, _, total in said[1:])


def test_a_stage_of_less_than_half_a_minute_is_not_announced(run: fdaudit.Run, unit: Unit) -> None:
    said = list[tuple[str, int, int]]()
    attack_cells(run.opened, again=True, tick=lambda *told: said.append(told))
    assert said
    assert all(total for _, _, total in said)


def test_with_nothing_to_run_nothing_is_said(run: fdaudit.Run, monkeypatch: pytest.MonkeyPatch) -> None:
    slow(monkeypatch)
    said = list[str]()
    attack_cells(run.opened, tick=lambda *told: said.append(told[0]))
    assert said == []


@pytest.mark.parametrize(
    ("name", "settings", "times"),
    [
        ("rmia", {"shadows": 80}, 10),
        ("rmia", {"shadows": 16, "most_steps": 600}, 4),
        ("noise-robustness", {"queries": 310}, 10),
        ("inverting-gradients", {"iterations": 3000}, 10),
    ],
)
def test_time_grows_with_the_settings_that_set_the_work(
    name: str, settings: dict[str, Any], times: float, run: fdaudit.Run, unit: Unit
) -> None:
    quick, more = planned(run, name), planned(run, name, **settings)
    work = Work.of(quick.card)
    assert work is not None
    assert work.growth(quick) == 1
    assert work.growth(more) == pytest.approx(times)
    assert seconds(of(run, {more: ("server",)})) > seconds(of(run, {quick: ("server",)}))


@pytest.mark.parametrize(
    ("name", "rounds", "clients", "share"),
    [("label-updates", 12, 8, 0.125), ("label-updates", 2, 3, 1.0), ("label-presence", 40, 8, 0.25)],
)
def test_a_control_on_class_shares_costs_its_part_of_the_runs_own_federation(
    name: str, rounds: int, clients: int, share: float, run: fdaudit.Run
) -> None:
    case, attack = run.opened.case, planned(run, name)
    longer = replace(
        case,
        settings={**case.settings, "rounds": rounds},
        spec=case.spec.model_copy(update={"clients": clients}),
    )
    unit, rehearsal = Unit(seconds=1.0, parameters=1000, kept=500), Cost(attack="rehearsal", seconds=600.0)
    work = Work.of(attack.card)
    assert work is not None
    _, (control, *_) = estimates._cost(attack, work, ("server",), longer, unit, rehearsal)
    assert control.attack == f"control: labels of {name}"
    assert control.seconds == pytest.approx(share * 600.0)


def test_a_control_of_counts_trains_as_little_as_it_can(run: fdaudit.Run) -> None:
    """A long federation makes the control of an attack that reads counts no dearer."""
    attack, unit = planned(run, "label-counts"), Unit(seconds=0.01, parameters=1000, kept=500)
    work = Work.of(attack.card)
    assert work is not None
    found = []
    for federation in (1.0, 6e4, 6e5):
        rehearsal = Cost(attack="rehearsal", seconds=federation)
        _, (control, *_) = estimates._cost(attack, work, ("server",), run.opened.case, unit, rehearsal)
        assert control.attack == "control: labels of label-counts"
        found.append(control.seconds)
    assert found[0] <= 1.0
    assert found[1] == found[2] < 60
    assert most_of(attack) == {"rounds": 3, **dict.fromkeys(most_of(attack).keys() - {"rounds"}, 1)}
    assert most_of(planned(run, "label-answers")) == {"rounds": 3}


def test_time_is_shared_by_processes_but_no_attack_is_split(run: fdaudit.Run, unit: Unit) -> None:
    cells = {planned(run, name): ("server", "world") for name in ("lira-online", "rmia", "augmentation")}
    one, two, many = (seconds(of(run, cells, processes)) for processes in (1, 2, 100))
    alone = max(seconds(of(run, {attack: names})) for attack, names in cells.items())
    assert two == pytest.approx(max(one / 2, alone))
    assert many == pytest.approx(alone)


def test_time_follows_the_measured_step(run: fdaudit.Run, monkeypatch: pytest.MonkeyPatch) -> None:
    cells = {planned(run, "inverting-gradients"): ("server",)}
    found = []
    for step in (0.001, 0.05):
        monkeypatch.setattr(
            Unit, "measured", lambda case, step=step: Unit(seconds=step, parameters=1, kept=1)
        )
        found.append(seconds(of(run, cells)))
    assert found[1] == pytest.approx(50 * found[0])


def test_memory_grows_with_pixels_and_with_processes(run: fdaudit.Run) -> None:
    units, cases = [], []
    for size in (8, 32):
        spec = load_spec(
            {**SPEC, "dataset": {**SPEC["dataset"], "image_size": size}, "model": {"name": "cnn-strided"}}
        )
        cases.append(simulated_case(spec, Secrets.draw(1)))
        units.append(Unit.measured(cases[-1]))
    small, large = units
    assert large.kept > 8 * small.kept
    assert large.parameters > small.parameters
    assert all(u.seconds > 0 for u in units)
    (one, two), (more, most) = (
        [estimates._gigabytes(p, u, n) for n in (1, 2)] for p, u in zip(cases, units, strict=True)
    )
    assert one < two < most
    assert one < more < most


def test_a_cell_whose_adversary_sees_nothing_for_it_is_not_counted(run: fdaudit.Run, unit: Unit) -> None:
    inverting, counts = planned(run, "inverting-gradients"), planned(run, "label-counts")
    assert of(run, {inverting: ("server", "world"), counts: ("server",)}).cells == 1
    assert costs_of(run.opened, {inverting: ("world",)}) is None


@pytest.mark.parametrize("work", [None, {"once": "long"}, {"hours": 3}, {"each": -1}, {"grows": "shadows"}])
def test_an_attack_that_states_no_usable_work_is_named(
    work: Any, run: fdaudit.Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    gap = planned(run, "gap")
    stated = planned(run, "loss-threshold")
    silent = replace(stated, card=replace(stated.card, work=work))
    slow(monkeypatch)
    found = of(run, {gap: ("server",), silent: ("server",)})
    assert found.cells == 2
    assert found.unstated == ("loss-threshold",)
    assert found.line().endswith("counted: loss-threshold")


@pytest.mark.parametrize("name", attacks.REGISTRY.names())
def test_every_attack_states_its_work(name: str) -> None:
    card = attacks.REGISTRY.describe(name)
    work = Work.of(card)
    assert work is not None
    assert work.once + work.each > 0
    assert set(work.grows) <= card.profiles["quick"].keys()


@pytest.mark.parametrize(
    ("time", "words"),
    [(10, ""), (44, "40 s"), (600, "10 minutes"), (9000, "2.5 hours")],
)
def test_times_are_round(time: float, words: str) -> None:
    found = Estimate(cells=1, processes=1, seconds=time, gigabytes=1, longest="gap", shape=(1, 8, 8))
    assert (f"about {words} on" if words else "") in found.line()
    assert bool(found.line()) is bool(words)


@pytest.mark.parametrize("quiet", [False, True])
def test_the_line_is_printed_at_once_unless_quiet(quiet: bool, capsys: pytest.CaptureFixture[str]) -> None:
    with progress(quiet) as tick:
        tick("4 cells", 0, 0)
    assert capsys.readouterr().err == ("" if quiet else "fdaudit: 4 cells\n")
