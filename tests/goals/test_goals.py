"""Every goal has one object, one scorer and one rule, and its guesses cross by their annotations alone."""

from __future__ import annotations

import subprocess
import sys
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
from fdaudit.kinds import ANSWERS, KINDS, MODELS, UNDECLARED, WAYS, TensorForm, is_kind
from fdaudit.planning.ladder import BRING
from fdaudit.result import Cell, Target, check_gates
from fdaudit.scoring.goals import SCORERS
from fdaudit.spec.schema import GateSpec
from fdaudit.types import Figure


def test_every_goal_has_a_scorer_a_rule_and_an_attack() -> None:
    assert list(SCORERS) == list(RULES) == list(GOALS)
    for name, goal in GOALS.items():
        assert SCORERS[name].goal is RULES[name].goal is goal
    goals = set()
    for name in attacks.REGISTRY.names():
        card = attacks.REGISTRY.describe(name)
        goals |= {card.goal, *card.goals.values()}
    assert goals == set(GOALS)
    assert [name for name in GOALS if challenged(name)] == ["membership"]
    assert not challenged("acme/another")
    assert not challenged(None)


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
    with pytest.raises(TypeError, match="no goal"):
        packed_guesses(made, Tensors())


def test_an_attack_that_sends_another_type_learns_which_field(another_goal: Goal) -> None:
    wrong: Any = _Count(target="client/0", records=7)
    object.__setattr__(wrong, "records", 7.5)
    with pytest.raises(TypeError, match=r"guesses\.0\.records: .*float .* int"):
        packed_guesses([wrong], Tensors())


def test_a_card_may_say_that_no_control_fits() -> None:
    nothing: Any = None
    assert CONTROLS["nothing"](nothing, nothing) == {}
    cards = [attacks.REGISTRY.describe(name) for name in attacks.REGISTRY.names()]
    assert all(card.control["on"] != "nothing" for card in cards), "ours are all tried"


# -- the vocabulary of message kinds -------------------------------------------------------------------------------


TABLE = TensorForm(name="values", shapes=("n C",))


# -- one tensor -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("shapes", "shape", "sizes"),
    [
        (("n C",), (5, 3), {"n": 5, "C": 3}),
        (("n C",), (5,), None),
        (("n C",), (5, 3, 1), None),
        (("C C",), (3, 3), {"C": 3}),
        (("C C",), (3, 4), None),
        (("n C", "n"), (5,), {"n": 5}),
        (("n c h w",), (5, 1, 8, 9), {"n": 5, "c": 1, "h": 8, "w": 9}),
        (("",), (), {}),
        (("",), (1,), {}),
        (("",), (2,), None),
    ],
)
def test_a_letter_stands_for_one_size(shapes, shape, sizes):
    assert TensorForm(name="x", shapes=shapes).sizes(shape) == sizes


def test_kinds_have_names_groups_and_sizes() -> None:
    assert TABLE.text == "values (n, C)"
    form = TensorForm(name="a", shapes=("n", ""), when="where asked", meaning="what it is")
    assert form.text == "a (n,) or () where asked: what it is"
    shapes = {"samples": (5, 1, 8, 8)}
    assert KINDS["generated_samples"].misfit(shapes, {"c": 1, "h": 8, "w": 8}) == ""
    assert KINDS["generated_samples"].misfit(shapes, {"c": 3, "h": 8, "w": 8})
    assert KINDS["logits"].misfit({"values": (5, 3)}, {"C": 4})
    assert KINDS["ensemble_labels"].misfit({"values": (5,)}, {"C": 4}) == ""
    assert KINDS["vote_counts"].sizes({"counts": (5, 3), "index": None}) == {"n": 5, "C": 3}
    assert KINDS["model_update"].sizes({"head.weight": (3, 4)}) == {}
    assert WAYS["updates"] == (*MODELS, "optimizer_state")
    assert set(ANSWERS) < set(WAYS["answers"])
    assert set(UNDECLARED) == {"release", "silence"}
    assert all(WAYS.values())
    assert is_kind("logits")
    assert is_kind("acme/prototype-bank")
    assert not is_kind("prototype-bank")
    assert not is_kind("Acme/bank")


# -- one kind -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "shapes", "problem"),
    [
        ("logits", {"values": (5, 3)}, ""),
        ("logits", {"values": (5, 3), "index": (5,)}, ""),
        ("logits", {"values": (5, 3), "z_max": ()}, ""),
        ("logits", {"values": None, "index": (5,)}, ""),
        ("logits", {"values": (5, 3), "index": (4,)}, "it has values (5, 3)"),
        ("logits", {"values": (5,)}, "it has values (5,)"),
        ("logits", {"index": (5,)}, "it has no tensor values"),
        ("class_counts", {"counts": (3,)}, ""),
        ("class_counts", {"counts": (3,), "more": (1,)}, "it has a tensor more"),
        ("class_prototypes", {"values": (3, 3)}, ""),
        ("class_prototypes", {"values": (3, 4)}, "it has values (3, 4)"),
        ("logit_cotangents", {}, ""),
        ("logit_cotangents", {"values": (5, 3), "gan_weight": ()}, ""),
        ("logit_cotangents", {"values": (5, 3, 8, 8)}, ""),
        ("private_labels", {"values": (5, 8, 8)}, ""),
        ("silence", {}, ""),
        ("silence", {"v": ()}, "it has a tensor v"),
        ("gradient", {"head.weight": (3, 4)}, ""),
    ],
)
def test_a_misfit_is_told_with_the_words_of_the_kind(kind, shapes, problem):
    found = KINDS[kind].misfit(shapes)
    assert found.startswith(problem)
    assert bool(found) == bool(problem)
    assert not found or KINDS[kind].text in found


# -- the vocabulary -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", KINDS)
def test_every_kind_has_words_one_description_and_no_fixed_size_if_it_lists_samples(name: str) -> None:
    kind = KINDS[name]
    assert kind.name == name
    assert kind.text
    assert bool(kind.about) != bool(kind.tensors)
    assert len({tensor.name for tensor in kind.tensors}) == len(kind.tensors)
    assert not (kind.fixed_size and any(tensor.name == "index" for tensor in kind.tensors))


def test_reading_the_vocabulary_imports_nothing_else() -> None:
    code = (
        "import sys\n"
        "import fdaudit.kinds\n"
        "ours = {m for m in sys.modules if m.startswith('fdaudit.') and not m.startswith('fdaudit.kinds')}\n"
        "assert not ours | ({'torch', 'numpy', 'pydantic'} & set(sys.modules)), ours\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=600)
