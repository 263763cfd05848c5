"""Every goal has one object, one scorer and one rule, and its guesses cross by their annotations alone."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar

import pytest
import torch
from fdaudit.reports.goals import RULES

from fdaudit import attacks
from fdaudit.evaluation.controls import CONTROLS
from fdaudit.goals import GOALS, Goal, Guess, challenged, goal_of
from fdaudit.goals.guess import Real
from fdaudit.isolation.frames import MalformedError, Tensors
from fdaudit.isolation.schema import guesses_of, packed_guesses
from fdaudit.kinds import WAYS
from fdaudit.planning.ladder import BRING
from fdaudit.result import Cell, Target, check_gates
from fdaudit.scoring.goals import SCORERS
from fdaudit.spec.schema import GateSpec
from fdaudit.types import Figure


def test_every_goal_has_a_scorer_and_a_rule() -> None:
    assert list(SCORERS) == list(RULES) == list(GOALS)
    for name, goal in GOALS.items():
        assert SCORERS[name].goal is RULES[name].goal is goal


def test_every_goal_is_the_goal_of_an_attack() -> None:
    goals = set()
    for name in attacks.REGISTRY.names():
        card = attacks.REGISTRY.describe(name)
        goals |= {card.goal, *card.goals.values()}
    assert goals == set(GOALS)


@pytest.mark.parametrize("goal", GOALS.values(), ids=lambda goal: goal.name)
def test_a_goal_names_its_figures_its_parts_and_its_harm(goal: Goal) -> None:
    rule = RULES[goal.name]
    assert {rule.figure, rule.tabled or rule.figure} <= {*goal.figures, "psnr_gain"}
    assert {*goal.scored_with, *goal.classes_scored_with} <= BRING.keys()
    assert 1 <= goal.impact <= 4
    assert rule.remedies.keys() <= {*WAYS, "model", "model to clients", "oracle"}


def test_the_gates_of_a_spec_are_those_of_the_goals() -> None:
    named = [name for goal in GOALS.values() for name in goal.gates]
    assert list(GateSpec.model_fields)[: len(named)] == named
    for goal in GOALS.values():
        for name, gate in goal.gates.items():
            figure = Figure(name=gate.figure, value=0.5)
            cell = Cell(
                protocol="fedavg",
                adversary="server",
                attack="mine",
                goal=goal.name,
                source="here",
                status="run",
                targets=(Target(target="client/0", figures=(figure,)),),
            )
            (row,) = check_gates({name: 0.5}, [cell])
            assert (row.value, row.passed) == (0.5, True)


def test_membership_alone_is_about_candidates() -> None:
    assert [name for name in GOALS if challenged(name)] == ["membership"]
    assert not challenged("acme/another")
    assert not challenged(None)


@dataclass(frozen=True, kw_only=True, eq=False)
class _Count(Guess):
    """A guess of a goal that no other code knows."""

    records: int
    by_class: Real | None = None
    weights: tuple[float, ...] = ()


@pytest.fixture
def another_goal(monkeypatch: pytest.MonkeyPatch) -> Goal:
    goal = replace(GOALS["label-distribution"], name="count", guess=_Count, gates={})
    monkeypatch.setattr("fdaudit.goals.GOALS", {**GOALS, "count": goal})
    monkeypatch.setattr("fdaudit.isolation.schema.GOALS", {**GOALS, "count": goal})
    return goal


def test_a_guess_of_a_new_goal_crosses_without_code_of_its_own(another_goal: Goal) -> None:
    tensors = Tensors()
    sent = _Count(target="client/0", records=7, by_class=torch.tensor([3, 4]), weights=(0.5, 1.0))
    (back,) = guesses_of(packed_guesses([sent], tensors), tensors.named, 1)
    assert isinstance(back, _Count)
    assert goal_of(back) is another_goal
    assert (back.target, back.records, back.weights) == ("client/0", 7, (0.5, 1.0))
    assert back.by_class is not None
    assert back.by_class.dtype == torch.float64


@pytest.mark.parametrize(
    ("changes", "place"),
    [
        ({"records": "7"}, "guesses.0.records: a str is no int"),
        ({"records": True}, "guesses.0.records: a bool is no int"),
        ({"records": 7.0}, "guesses.0.records: a float is no int"),
        ({"weights": [0.5, "1"]}, "guesses.0.weights.1: a str is no float"),
        ({"by_class": "t9"}, "guesses.0.by_class: there is no tensor 't9'"),
        ({"by_class": 3}, "guesses.0.by_class: a int is no str"),
        ({"more": 1}, "guesses.0.more: is unknown"),
        ({"kind": ["count"]}, "guesses.0.kind"),
    ],
    ids=str,
)
def test_a_malformed_guess_is_refused_by_the_name_of_its_field(
    another_goal: Goal, changes: dict[str, Any], place: str
) -> None:
    row = {"kind": "count", "target": "client/0", "records": 7, "by_class": None, "weights": []}
    assert guesses_of([row], {}, 1)
    with pytest.raises(MalformedError, match=place):
        guesses_of([{**row, **changes}], {}, 1)


@pytest.mark.parametrize("name", ["target", "records", "by_class", "weights"])
def test_a_missing_field_is_named(another_goal: Goal, name: str) -> None:
    row = {"kind": "count", "target": "client/0", "records": 7, "by_class": None, "weights": []}
    with pytest.raises(MalformedError, match=f"guesses.0.{name}: is missing"):
        guesses_of([{key: value for key, value in row.items() if key != name}], {}, 1)


class _Broken:
    goal: ClassVar[str] = "none"


@pytest.mark.parametrize("made", [[_Broken()], [None], ["client/0"]])
def test_what_is_no_guess_is_not_sent(made: list[Any]) -> None:
    with pytest.raises(TypeError, match="a guess of no goal"):
        packed_guesses(made, Tensors())


def test_an_attack_that_sends_another_type_learns_which_field(another_goal: Goal) -> None:
    wrong: Any = _Count(target="client/0", records=7)
    object.__setattr__(wrong, "records", 7.5)
    with pytest.raises(TypeError, match=r"guesses.0.records: a float is no int"):
        packed_guesses([wrong], Tensors())


def test_a_card_may_say_that_no_control_fits() -> None:
    nothing: Any = None
    assert CONTROLS["nothing"](nothing, nothing) == {}
    cards = [attacks.REGISTRY.describe(name) for name in attacks.REGISTRY.names()]
    assert all(card.control["on"] != "nothing" for card in cards), "ours are all tried"
