"""The allotment of a budget to attacks, from made-up costs: pure, so no test depends on the machine's speed."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fdaudit import attacks
from fdaudit.config import validate
from fdaudit.errors import RunError, UsageError
from fdaudit.evaluation.budget import (
    Cost,
    ReducibleSetting,
    allot,
    for_attacks,
    least_of,
    quick,
    reduced,
    seconds_of,
    total,
)
from fdaudit.evaluation.clock import Clock, Deadline, forget_budget, kept_budget
from fdaudit.evaluation.estimate import _reducible
from fdaudit.evaluation.steps import Work
from fdaudit.planning.attacks import plan_attacks
from fdaudit.result import Budget, in_words
from fdaudit.spec.schema import load_spec
from fdaudit.storage.vault import Vault

from ..helpers.refusals import refused
from ..helpers.report_cases import figures_in

SHARED = {
    name: Cost(attack=name, seconds=seconds)
    for name, seconds in {"model": 20.0, "classes": 200.0, "none": 0.0}.items()
}


def cost(attack: str, seconds: float, *shared: str, **changes: Any) -> Cost:
    made = Cost(
        attack=attack,
        adversaries=("server", "world"),
        seconds=seconds,
        shared=shared or ("none",),
        settings={
            "shadows": ReducibleSetting(asked=200, least=50),
            "steps": ReducibleSetting(asked=2000, least=100),
        },
    )
    return replace(made, **changes)


def one(name: str, asked: int, least: int, work: Any = "multiplies") -> dict[str, ReducibleSetting]:
    return {name: ReducibleSetting(asked=asked, least=least, work=work)}


def numbers(budget: Budget, attack: str) -> dict[str, int]:
    return {allotted.setting: allotted.number for allotted in budget.settings if allotted.attack == attack}


COSTS = st.lists(
    st.tuples(st.floats(0.01, 1e6), st.sampled_from(sorted(SHARED)), st.integers(1, 200)),
    min_size=1,
    max_size=8,
)


@settings(max_examples=200)
@given(rows=COSTS, seconds=st.floats(1, 1e7), training=st.floats(0, 1e6), processes=st.integers(1, 8))
def test_the_estimate_fits_and_no_setting_leaves_its_bounds(
    rows: list[tuple[float, str, int]], seconds: float, training: float, processes: int
) -> None:
    costs = [
        cost(f"attack-{k}", cheap, name, settings=one("shadows", 200, least) | one("steps", 2000, 10 * least))
        for k, (cheap, name, least) in enumerate(rows)
    ]
    budget = allot(seconds, costs, shared=SHARED, processes=processes, training=training)
    assert budget == allot(seconds, costs, shared=SHARED, processes=processes, training=training)
    assert budget.estimated <= budget.attacks
    assert budget.attacks == for_attacks(seconds, training)
    by_name = {c.attack: c for c in costs}
    for allotted in budget.settings:
        setting = by_name[allotted.attack].settings[allotted.setting]
        assert allotted.asked == setting.asked
        assert setting.least <= allotted.number < setting.asked
    assert {*budget.order, *(left.attack for left in budget.left_out)} == by_name.keys()
    assert len(budget.order) + len(budget.left_out) == len(costs)


def test_costs_are_shared_and_reduced_by_one_factor() -> None:
    costs = [cost("a", 100), cost("b", 1000)]
    budget = allot(2000, costs, shared=SHARED, processes=1)
    assert budget.settings == ()
    assert budget.left_out == ()
    assert figures_in(budget.words) == ["33.3"]
    costs = [cost("a", 1000), cost("b", 5000)]
    budget = allot(1500, costs, shared=SHARED, processes=1)
    a, b = numbers(budget, "a"), numbers(budget, "b")
    assert a == b
    assert a["shadows"] / 200 == pytest.approx(a["steps"] / 2000, abs=0.01)
    assert 0.95 * 0.9 * 1500 < budget.estimated <= 0.9 * 1500
    alike = [cost(name, 1000, settings=one("steps", 1000, 10)) for name in "abcd"]
    alone, shared_out = (allot(1000, alike, shared=SHARED, processes=n) for n in (1, 2))
    assert numbers(shared_out, "a")["steps"] == pytest.approx(2 * numbers(alone, "a")["steps"], abs=2)
    only = [cost("a", 4000, settings=one("steps", 1000, 10))]
    assert numbers(allot(1000, only, shared=SHARED, processes=2), "a")["steps"] == 225


def test_the_dearest_are_left_out_and_say_what_they_need() -> None:
    costs = [cost("dear", 1e6), cost("cheap", 100), cost("middle", 5000)]
    budget = allot(600, costs, shared=SHARED, processes=1)
    assert budget.order == ("cheap", "middle")
    (left,) = budget.left_out
    assert (left.attack, left.adversaries) == ("dear", ("server", "world"))
    assert left.needed is not None
    enough = allot(left.needed * 1.001, costs, shared=SHARED, processes=1)
    assert enough.left_out == ()
    assert allot(left.needed * 0.99, costs, shared=SHARED, processes=1).left_out == budget.left_out
    assert budget.words.endswith("left out: dear")


def test_attacks_are_kept_by_order_and_controls_cost_only_their_own() -> None:
    costs = [cost("dear", 8000), cost("cheap", 100), cost("middle", 300)]
    assert allot(113, costs, shared=SHARED, processes=1).order == ("cheap", "middle")
    budget = allot(113, costs, shared=SHARED, processes=1, first=["dear"])
    assert budget.order == ("dear", "cheap")
    assert [left.attack for left in budget.left_out] == ["middle"]
    costs = [cost("x", 1, "classes"), cost("y", 1, "classes"), cost("z", 90, "model")]
    budget = allot(150, costs, shared=SHARED, processes=1)
    assert budget.order == ("z",)
    assert {left.attack for left in budget.left_out} == {"x", "y"}
    costs = [cost("x", 1, "classes"), cost("y", 2, "classes")]
    assert total(costs, SHARED, 1, 1.0) == 203
    assert allot(230, costs, shared=SHARED, processes=1).order == ("x", "y")
    fixed = cost("fixed", 300, settings={})
    budget = allot(1000, [fixed, cost("other", 2000)], shared=SHARED, processes=1)
    assert numbers(budget, "fixed") == {}
    assert budget.estimated > 800
    assert allot(200, [fixed], shared=SHARED, processes=1).left_out[0].attack == "fixed"


@pytest.mark.parametrize("asked", ["all", [{"name": "gap"}, {"name": "rmia"}]])
def test_an_attack_that_comes_first_must_be_asked_for(asked: Any) -> None:
    plan_attacks(load_spec({"attacks": asked, "limits": {"first": ["rmia"]}}))
    spec = load_spec({"attacks": asked, "limits": {"first": ["rmia", "gab"]}})
    refused(lambda: plan_attacks(spec), "limits.first.1", "gab", ["gap"])


def test_the_quick_and_least_settings_are_what_they_say() -> None:
    costs = [cost("c", 4.0), cost("a", 2.0), cost("dear", 60.0, "model"), cost("b", 4.0)]
    assert quick(costs, SHARED, processes=1) == ["a", "b"]
    assert quick(costs, SHARED, processes=2) == ["a", "b", "c"]
    assert quick(costs[2:3], SHARED, processes=2) == []
    assert [least_of(n) for n in (1, 4, 8, 16, 192, 300)] == [1, 4, 4, 4, 48, 75]
    over = Deadline(until=0.0, budget=600)
    assert over.left < 0
    assert figures_in(over.before_its_turn) == ["10"]


def test_work_is_reduced_with_its_settings() -> None:
    assert for_attacks(600, 100) == 500
    assert for_attacks(600, 580) == 120
    assert for_attacks(600, 10_000) == 120
    shared = {"shadows": Cost(attack="shadows", seconds=1000, settings=one("n", 200, 50))}
    both = [cost(name, 1, "shadows", settings=one("n", 200, 50, "elsewhere")) for name in ("a", "b")]
    budget = allot(600, both, shared=shared, processes=1)
    assert numbers(budget, "a") == numbers(budget, "b") == {"n": 107}
    assert budget.estimated == pytest.approx(1000 * 107 / 200 + 2)
    led = cost("a", 100, settings=one("x", 100, 10, "leads") | one("y", 40, 20, "leads"))
    assert led.at(1.0) == pytest.approx(100)
    assert led.at(0.5) == pytest.approx(50)
    assert led.at(0.0) == pytest.approx(10)
    spec = load_spec({"attacks": [{"name": "rmia", "params": {"shadows": 64}}]})
    (attack,) = (a for a in plan_attacks(spec) if a.name == "rmia")
    work = Work.of(attack.card)
    assert work is not None
    settings = _reducible(attack, work, spec)
    assert "shadows" not in settings
    assert "most_steps" in settings


@pytest.mark.parametrize("profile", ["quick", "standard", "full"])
def test_every_attack_accepts_its_least_settings(profile: str) -> None:
    spec = load_spec({"profile": profile})
    for attack in plan_attacks(spec):
        work = Work.of(attack.card)
        assert work is not None
        settings = _reducible(attack, work, spec)
        assert {*work.grows, *filter(None, [work.victims])} <= settings.keys()
        least = {name: setting.least for name, setting in settings.items()}
        assert attack.params is not None
        cls = attacks.REGISTRY.load(attack.name, "attack")
        validate(cls.Config, {**attack.params, **least}, attack.name)
        for setting in settings.values():
            assert 1 <= setting.least <= setting.asked


# -- durations --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "seconds"), [("90s", 90), ("10m", 600), ("2h", 7200), ("1.5h", 5400), ("1s", 1)]
)
def test_durations_are_read(text: str, seconds: float) -> None:
    assert seconds_of(text) == seconds


@pytest.mark.parametrize(
    "text", ["", "10", "m", "10 m", "-5m", "10d", "1h30m", "0s", "0.5s", "nan", "1e3s", "99999h", "９m\n"]
)
def test_other_durations_are_refused_in_one_line(text: str) -> None:
    with pytest.raises(UsageError) as caught:
        seconds_of(text)
    assert caught.value.exit_code == 2
    assert (caught.value.field, caught.value.value) == ("budget", text)
    assert "10m" in caught.value.remedy


@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        (1, "1 second"),
        (90, "90 seconds"),
        (60, "1 minute"),
        (600, "10 minutes"),
        (3600, "1 hour"),
        (9000, "2.5 hours"),
    ],
)
def test_durations_are_said_in_words(seconds: float, words: str) -> None:
    assert in_words(seconds) == words


# -- statements -------------------------------------------------------------------------------------------------


def test_words_name_each_setting_and_the_dearest() -> None:
    same = [cost(name, 2000, settings=one("shadows", 192, 48)) for name in ("a", "b")]
    words = allot(1200, same, shared=SHARED, processes=1).words
    assert (figures_in(words), words[-6:]) == (["20", "51", "192"], "(a, b)")
    costs = [cost(str(k), 1000 * k, settings=one(f"s{k}", 1000, 10)) for k in range(1, 8)]
    short = allot(10_000, costs, shared=SHARED, processes=1).short
    first, last = figures_in(short)[:4], figures_in(short)[-1]
    assert (first, last) == (["2.8", "321", "1,000", "7"], "3")  # hours, 321 of s7; 3 more settings


# -- what is kept -----------------------------------------------------------------------------------------------


def test_the_vault_keeps_the_budget_and_the_time_spent(tmp_path: Path) -> None:
    (tmp_path / "vault").mkdir()
    vault = Vault(tmp_path / "vault")
    assert kept_budget(vault) is None
    budget = allot(600, [cost("a", 5000), cost("b", 1e6)], shared=SHARED, processes=1)
    Clock(vault, budget, spent=100.0).note()
    again = kept_budget(vault)
    assert again is not None
    assert again.budget == budget
    assert again.spent >= 100
    assert again.deadline.until < Clock(vault, budget).deadline.until - 90
    forget_budget(vault)
    assert kept_budget(vault) is None


def test_a_damaged_budget_is_refused(tmp_path: Path) -> None:
    (tmp_path / "vault").mkdir()
    (tmp_path / "vault" / "budget.json").write_text('{"budget": {"seconds": -1}, "spent": 0}')
    with pytest.raises(RunError, match="holds no budget"):
        kept_budget(Vault(tmp_path / "vault"))


def test_left_out_attacks_say_what_they_need() -> None:
    from fdaudit.adversary.attack_plan import AttackPlan

    plan = AttackPlan(
        name="dear",
        card=attacks.REGISTRY.describe("rmia"),
        target="",
        own=True,
        params={"shadows": 64},
        adversaries=("server", "client/0"),
    )
    budget = allot(600, [cost("dear", 1e6), cost("cheap", 1)], shared=SHARED, processes=1)
    (found,) = reduced((plan,), budget)
    assert found.left_out.keys() == {"server", "world"}
    assert figures_in(found.left_out["server"])[0] == "10"
    (kept,) = reduced((replace(plan, name="cheap"),), budget)
    assert kept.left_out == {}
