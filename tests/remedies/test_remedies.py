"""Remedies that are tried: which, with which settings, on which records, and what is said of them."""

from __future__ import annotations

import json
import math
import re
import time
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from fdaudit.reports.goals import RULES
from fdaudit.reports.judgement.tried import effect, effect_words, outcome
from fdaudit.reports.public import public
from fdaudit.reports.run.findings import found_by
from fdaudit.reports.run.security import render_report

from fdaudit import api
from fdaudit.audit.run import Run
from fdaudit.cli.verdicts import tried_remedies
from fdaudit.errors import RunError, SpecError, UsageError
from fdaudit.planning.simulated import simulated_case
from fdaudit.remedies import try_remedies, tuning
from fdaudit.remedies.trials import TOGETHER, TRIALS
from fdaudit.remedies.tuning import StandIn, tune
from fdaudit.result import Effect, Remedy, TriedRemedy, read
from fdaudit.spec.schema import load_spec
from fdaudit.storage.timings import note_time
from fdaudit.testing.specs import small_spec
from fdaudit.types import Figure

from ..helpers.command import Cli
from ..helpers.refusals import refused
from ..helpers.report_cases import FIXTURES, figures_in, load
from ..helpers.run_cases import known

GRADIENTS = small_spec(
    protocol={"name": "fedavg", "params": {"rounds": 2, "batch_size": 2, "upload": "gradient"}},
    model={"name": "mlp", "params": {"widths": [16]}},
    splits={"test": 0.2, "proxy": 0.0, "auxiliary": 0.2, "candidates": 4},
    adversaries=["server", "eavesdropper"],
    attacks=[{"name": "analytic"}],
)
"""Gradients of two records each, which `analytic` reads."""


def quiet(what: str, done: int, total: int) -> None:
    pass


@pytest.fixture(scope="module")
def remedied(tmp_path_factory: pytest.TempPathFactory) -> tuple[Run, Path]:
    folder = tmp_path_factory.mktemp("remedies")
    run = api.run(GRADIENTS, folder / "run")
    try_remedies(run, folder / "tried", epsilon=8.0)
    return run, folder / "tried"


# -- which remedies ----------------------------------------------------------------------------------------------


def test_every_remedy_that_a_rule_names_can_be_tried() -> None:
    named = {
        name
        for rule in RULES.values()
        for one in (*rule.remedies.values(), rule.general)
        for name in one.tries
    }
    assert named <= set(TRIALS)
    assert set(TOGETHER) <= set(TRIALS)


def test_each_finding_gets_its_remedies_and_others_do_not_run(remedied: tuple[Run, Path]) -> None:
    run, _ = remedied
    wanted = {name for f in found_by(run.result) for name in f.remedy.tries}
    assert wanted
    assert {one.name for one in run.result.remedies} - {"together"} == wanted


def test_encryption_ends_what_an_eavesdropper_can_do_and_costs_nothing(remedied: tuple[Run, Path]) -> None:
    (one,) = [one for one in remedied[0].result.remedies if one.name == "encrypted"]
    assert one.state == "run"
    assert {on.adversary for on in one.effects} == {"eavesdropper"}
    assert {on.level for on in one.effects} == {"not-applicable"}
    assert one.utility is not None
    assert one.utility_before is not None
    assert one.utility.value == one.utility_before.value


def test_a_remedied_run_has_the_same_records_and_candidates(remedied: tuple[Run, Path]) -> None:
    run, tried = remedied
    for one in run.result.remedies:
        if one.state == "run":
            again = api.load(tried / one.name).case
            assert torch.equal(again.dataset.x, run.case.dataset.x)
            assert str(again.splits.to_dict()) == str(run.case.splits.to_dict())


def test_clients_alone_train_by_the_runs_own_settings(remedied: tuple[Run, Path], tmp_path: Path) -> None:
    """They are the run's line `standalone`, whatever the settings of the remedies are."""
    run, _ = remedied
    told = {one.alone or 0.0 for one in run.result.remedies if one.state == "run"}
    with_line = api.run(GRADIENTS | {"references": ["standalone"], "attacks": []}, tmp_path / "line")
    final = with_line.result.utility.final
    line = [f.figure.value or 0.0 for f in final if f.line == "standalone"]
    assert sorted(told) == pytest.approx([sum(line) / len(line)])


def test_noise_keeps_to_the_epsilon_that_was_asked_for(remedied: tuple[Run, Path]) -> None:
    tried = {one.name: one for one in remedied[0].result.remedies}
    assert tried["client-noise"].state == "run"
    shown = [on.epsilon for on in tried["client-noise"].effects if on.epsilon is not None]
    assert shown
    assert max(shown) <= 8.0
    assert {on.unit for on in tried["client-noise"].effects} == {"client"}


def test_the_printed_command_makes_the_same_figures(remedied: tuple[Run, Path], tmp_path: Path) -> None:
    run, _ = remedied
    (one,) = [one for one in run.result.remedies if one.name == "client-noise"]
    words = one.command.split()
    assert words[:2] == ["fdaudit", "run"]
    again = api.run(Path(words[2]), tmp_path / "again", seed_from=Path(words[4]))
    first = api.load(Path(words[2]).parent).result
    assert again.result.run.head == first.run.head
    assert again.result.cells == first.cells


def test_the_command_prints_and_reports_what_changed(tmp_path: Path, cli: Cli) -> None:
    run = api.run(GRADIENTS | {"adversaries": ["eavesdropper"]}, tmp_path / "run")
    code, words, _ = cli("remedy", run.directory, "--budget", "10m")
    assert code == 0
    (one,) = api.load(run.directory).result.remedies
    assert f"{one.words}: Accuracy" in words
    page = (tmp_path / "run" / "report" / "index.html").read_text(encoding="utf-8")
    assert one.effects
    for said in map(effect_words, one.effects):
        assert said.replace("\xa0", " ") in words
        assert said in page
    assert (tmp_path / "run-remedies" / "encrypted" / "result.json").is_file()


# -- their settings ----------------------------------------------------------------------------------------------


def test_the_settings_are_those_that_do_best(monkeypatch: pytest.MonkeyPatch) -> None:
    """With a rate 16 times the run's, half the rounds and a third of the clip utility is highest."""
    case = simulated_case(load_spec(small_spec(protocol__params__rounds=8)), known(7))
    lr = case.protocol_config.lr  # type: ignore[attr-defined]
    seen = []

    def utility(self: object, settings: Any) -> float:
        seen.append(settings)
        off = abs(math.log(settings.params["lr"] / (16 * lr))) + abs(settings.params["rounds"] - 4)
        return -off - abs(math.log(settings.clip / 0.3))

    monkeypatch.setattr(StandIn, "utility", utility)
    as_it_is: Any = lambda settings: settings  # noqa: E731
    best = tune(case, as_it_is, 1.0, math.inf, quiet)
    assert (best.settings.params["lr"], best.settings.params["rounds"], best.settings.clip) == (
        16 * lr,
        4,
        0.3,
    )
    assert best.tried == len(seen) == len(set(seen))
    once = tune(case, as_it_is, 1.0, time.monotonic() - 1, quiet)
    assert once.tried == 1
    assert once.settings.params["rounds"] == 1


def test_no_setting_is_begun_that_would_end_too_late(monkeypatch: pytest.MonkeyPatch) -> None:
    case, clock = simulated_case(load_spec(small_spec(protocol__params__rounds=8)), known(7)), [0.0]

    def utility(self: object, settings: Any) -> float:
        clock[0] += 10.0
        return 0.5

    monkeypatch.setattr(tuning, "time", SimpleNamespace(monotonic=lambda: clock[0]))
    monkeypatch.setattr(StandIn, "utility", utility)
    as_it_is: Any = lambda settings: settings  # noqa: E731
    assert tune(case, as_it_is, 1.0, 25.0, quiet).tried == 2
    assert clock[0] == 20.0


def test_a_remedy_that_there_is_no_time_to_tune_is_not_run(tmp_path: Path) -> None:
    """Untuned noise destroys a model, which would say nothing of the remedy."""
    run = api.run(GRADIENTS, tmp_path / "run")
    states = []
    for seconds, budget in ((100.0, "20m"), (1000.0, "2h")):
        note_time(run.directory, "federation", seconds)
        tried = try_remedies(run, tmp_path / budget, budget=budget, epsilon=8.0)
        states.append(
            {one.name: (one.state, one.reason) for one in tried if TRIALS[one.name].clip is not None}
        )
    assert states[0]
    assert {state for state, _ in states[0].values()} == {"run"}
    assert {state for state, _ in states[1].values()} == {"no-time"}
    assert all("tune" in reason for _, reason in states[1].values())


def test_settings_that_are_refused_are_passed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    case = simulated_case(load_spec(small_spec(protocol__params__rounds=8)), known(7))

    def at_least_two(settings: Any) -> Any:
        if settings.params["rounds"] < 2:
            raise SpecError("rounds", settings.params["rounds"], "is too few", "Give more.")
        return settings

    monkeypatch.setattr(StandIn, "utility", lambda self, settings: 1 / settings.params["rounds"])
    best = tune(case, at_least_two, 1.0, math.inf, quiet)
    assert best.settings.params["rounds"] == 2

    def never(settings: Any) -> Any:
        raise SpecError("model", "m", "does not fit", "Take another.")

    with pytest.raises(SpecError, match="does not fit"):
        tune(case, never, 1.0, math.inf, quiet)


def test_settings_are_chosen_on_auxiliary_records_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    case = simulated_case(load_spec(small_spec(splits__auxiliary=0.3)), known(7))
    private = torch.cat([client.train for client in case.splits.clients])
    scrambled = replace(case.dataset, x=case.dataset.x.clone(), y=case.dataset.y)
    scrambled.x[private] = torch.rand_like(scrambled.x[private])
    values = [StandIn.of(one).utility(one) for one in (case, replace(case, dataset=scrambled))]
    assert values[0] == values[1]
    assert values[0] > 0


def test_a_stand_in_repeats_auxiliary_records_to_the_clients_sizes() -> None:
    case = simulated_case(load_spec(small_spec()), known(7))
    stand_in = StandIn.of(case)
    sizes = [len(client.train) for client in case.splits.clients]
    assert stand_in.records == round(sum(sizes) / len(sizes))
    for data, (held_out, _) in stand_in.folds:
        assert {len(y) for _, y in data} == {stand_in.records}
        trained = {bytes(x.numpy()) for xs, _ in data for x in xs}
        assert trained.isdisjoint({bytes(x.numpy()) for x in held_out})


# -- what is refused, and what is left out --------------------------------------------------------------------------


def test_without_time_a_remedy_is_listed_and_not_run(tmp_path: Path) -> None:
    run = api.run(GRADIENTS, tmp_path / "run")
    tried = try_remedies(run, tmp_path / "tried", budget="1s")
    assert {one.state for one in tried} == {"no-time"}
    assert all(one.reason for one in tried)
    assert not (tmp_path / "tried").exists()
    (said, *_) = [f.effect for f in found_by(run.result)]
    assert said == f"Not tried: {tried[0].reason}."


def test_an_occupied_directory_is_refused(remedied: tuple[Run, Path]) -> None:
    run, tried = remedied
    for out in (tried, run.directory / "remedies"):
        refused(lambda out=out: try_remedies(run, out), "out", str(out), kind=RunError)
    for epsilon in (0.0, -1.0, math.inf, math.nan):
        act = partial(try_remedies, run, tried.with_name("other"), epsilon=epsilon)
        refused(act, "epsilon", kind=UsageError)


# -- what is said ----------------------------------------------------------------------------------------------


def figure(name: str, value: float) -> Figure:
    return Figure(name=name, value=value)


def remedy_tried(name: str, utility: float, auc: float, level: str) -> TriedRemedy:
    on = Effect(
        adversary="server",
        goal="membership",
        attack="a",
        before=figure("auc", 0.865),
        attack_after="a",
        after=figure("auc", auc),
        level=level,
        epsilon=8.0,
        unit="record",
    )
    return TriedRemedy(
        name=name,
        words=name,
        utility_before=Figure(name="accuracy", value=0.84, unit="fraction"),
        utility=Figure(name="accuracy", value=utility, unit="fraction"),
        alone=0.41,
        effects=(on,),
    )


def said(*tried: TriedRemedy, tries: tuple[str, ...] = ()) -> str:
    result = read(load())
    what = Remedy(do="", why="", tries=tries or tuple(one.name for one in tried))
    return effect(result.model_copy(update={"remedies": tried}), what, ["server"], ["membership"])


def test_the_remedy_that_leaves_least_and_keeps_utility_is_named() -> None:
    words = said(
        remedy_tried("weak", 0.84, 0.8, "leak"),
        remedy_tried("good", 0.812, 0.53, "none-seen"),
        remedy_tried("unanswered", 0.84, 0.5, "not-tested"),
        remedy_tried("ruin", 0.2, 0.5, "none-seen"),
    )
    good, ruin = words.split("; ", maxsplit=1)
    assert good.startswith("Tried: good ")
    assert figures_in(good) == ["84.0", "81.2", "8", "0.865", "0.530"]  # accuracy, ε and AUC
    assert ruin.startswith("ruin leaves no")
    assert figures_in(ruin) == ["84.0", "20.0", "41.0"]  # before, after, and clients alone


def test_if_none_keeps_utility_above_clients_alone_this_is_said() -> None:
    words = said(remedy_tried("ruin", 0.2, 0.5, "none-seen"))
    assert words.startswith("No remedy")
    assert figures_in(words) == ["84.0", "20.0", "41.0"]
    assert "AUC" not in words


def test_if_a_leak_stays_what_ends_it_at_any_cost_is_named_too() -> None:
    words = said(remedy_tried("weak", 0.84, 0.8, "leak"), remedy_tried("ruin", 0.2, 0.5, "none-seen"))
    assert words.startswith("Tried: weak (")
    assert "; ruin (" in words
    assert "clients alone (41.0" in words


def after(**changes: Any) -> Effect:
    """The effect of a remedy after which another attack is the gravest."""
    return (
        remedy_tried("x", 0.8, 0.477, "inconclusive")
        .effects[0]
        .model_copy(update={"attack_after": "b", "epsilon": None, **changes})
    )


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        (
            {"again": "not-tested", "needed": 136.0},
            "not known: a,.*0.865.* no time .*3 minutes.*; b reaches 0.477",
        ),
        ({"again": "not-tested", "level": "not-tested"}, "not known: a,.*0.865.* no time; b reaches 0.477"),
        ({"again": "not-tested", "level": "leak"}, "leak stays: b reaches 0.477.*; a,.*0.865.* no time"),
        ({}, "not known: a,.*0.865.*not run again; b reaches 0.477"),
        ({"again": "not-applicable", "level": "leak"}, r"a .*0.865.*no longer.*; b reaches 0.477 \(leak\)"),
        (
            {"again": "not-applicable", "level": "not-tested", "after": None},
            "a .*0.865.*no longer.*not tested",
        ),
        (
            {"again": "run", "again_figure": figure("auc", 0.51), "level": "partial"},
            r"0.865 to 0.510 by a; b reaches 0.477 \(partial leak\)",
        ),
        ({"attack_after": "a", "level": "not-tested"}, "0.865 to 0.477 .*no time.*"),
        ({"level": "not-applicable", "after": None}, "0.865 before.*no attack applies.*"),
    ],
)
def test_figures_before_and_after_stand_together_only_if_one_attack_gave_both(
    changes: dict[str, Any], expected: str
) -> None:
    assert re.search(f"{expected}$", effect_words(after(**changes)))


def test_a_remedy_that_was_tried_for_one_goal_of_a_finding_was_not_tried_for_the_finding() -> None:
    result = read(load()).model_copy(update={"remedies": (remedy_tried("good", 0.8, 0.5, "none-seen"),)})
    what = Remedy(do="", why="", tries=("good",))
    both = ["membership", "model-extraction"]
    assert effect(result, what, ["server"], both) == "Not tried."
    assert outcome(result, what, ["server"], both) == "untried"


def test_of_equal_effects_that_on_the_adversary_named_first_is_told() -> None:
    tried = remedy_tried("good", 0.8, 0.7, "leak")
    (own,) = [on for on in tried.effects if on.adversary == "server"]
    other = own.model_copy(update={"adversary": "server+client/0", "before": figure("auc", 0.61)})
    result = read(load())
    what = Remedy(do="", why="", tries=("good",))
    for effects in ((own, other), (other, own)):
        made = result.model_copy(update={"remedies": (tried.model_copy(update={"effects": effects}),)})
        assert "0.610" not in effect(made, what, ["server", "server+client/0"], ["membership"])
        assert "0.610" in effect(made, what, ["server+client/0", "server"], ["membership"])
    closed = own.model_copy(update={"level": "none-seen"})
    made = result.model_copy(update={"remedies": (tried.model_copy(update={"effects": (closed, other)}),)})
    said = effect(made, what, ["server", "server+client/0"], ["membership"])
    assert re.search("server and client/0.*0.610", said)


def test_attacks_that_a_budget_left_out_are_listed() -> None:
    tried = remedy_tried("good", 0.8, 0.5, "none-seen").model_copy(update={"left_out": ("rmia", "yoqo")})
    result = read(load()).model_copy(update={"remedies": (tried,)})
    assert "rmia and yoqo" in render_report(result, FIXTURES, {})
    assert [line for line in tried_remedies(result) if line.endswith(": rmia, yoqo")]


def came_of(*tried: TriedRemedy) -> str:
    result = read(load()).model_copy(update={"remedies": tried})
    what = Remedy(do="", why="", tries=tuple(one.name for one in tried))
    return outcome(result, what, ["server"], ["membership"])


def test_a_remedy_worked_only_if_the_attack_that_found_the_leak_says_so() -> None:
    good = remedy_tried("good", 0.8, 0.5, "none-seen")
    weaker = good.model_copy(update={"effects": (after(level="none-seen", again="not-tested"),)})
    assert came_of(good) == "worked"
    assert came_of(weaker) == "stays"
    assert came_of(remedy_tried("weak", 0.8, 0.8, "leak")) == "stays"
    assert came_of(remedy_tried("ruin", 0.2, 0.5, "none-seen")) == "useless"
    assert came_of(remedy_tried("ruin", 0.2, 0.5, "none-seen"), good) == "worked"
    assert came_of() == "untried"


def test_the_attacks_that_found_the_leaks_come_first_in_a_budget(remedied: tuple[Run, Path]) -> None:
    _, folder = remedied
    for spec in sorted(folder.glob("*/spec.yaml")):
        assert load_spec(spec).limits.first == ("analytic",)
    again = {on.again for one in remedied[0].result.remedies for on in one.effects}
    assert "" not in again


def test_untried_remedies_say_so_and_a_public_page_names_none() -> None:
    assert said() == ""
    assert said(remedy_tried("good", 0.8, 0.5, "none-seen"), tries=("other",)) == "Not tried."
    result = read(load())
    tried = result.model_copy(update={"remedies": (remedy_tried("good", 0.8, 0.5, "none-seen"),)})
    assert "good" not in json.dumps(public(tried).plain())
