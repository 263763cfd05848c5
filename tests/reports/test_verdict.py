"""The verdict: each rule by example, and laws that hold whatever the figures say."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from typing import Any, get_args

import pytest
from fdaudit.reports.goals import RULES
from fdaudit.reports.goals.rule import framed
from fdaudit.reports.judgement.inheritance import private_kinds
from fdaudit.reports.judgement.verdict import LEVELS, Level, judge, judge_all, strongest
from fdaudit.reports.run.summary import summarise
from fdaudit.reports.text import corrected, detectable, p_value, party
from hypothesis import given
from hypothesis import strategies as st

from fdaudit.goals import GOALS
from fdaudit.result import Cell, Control, Controls, Image, Result, Shares, Target
from fdaudit.types import Figure

from ..helpers.report_cases import figures_in, load, minimal

PASSED = Controls(
    positive=Control(what="bare gradient", passed=True), negative=Control(what="noise", passed=True)
)


def figure(
    name: str,
    value: float | None,
    low: float | None = None,
    high: float | None = None,
    p: float | None = None,
) -> Figure:
    unit, missing = "dB" if name.startswith("psnr") else "", "" if value is not None else "none"
    return Figure(name=name, value=value, low=low, high=high, unit=unit, unavailable=missing, p=p)


def cell(goal: str, *figures: Figure, controls: Controls | None = PASSED, **rest: Any) -> Cell:
    return Cell(
        id="server/a",
        protocol="fedavg",
        adversary="server",
        attack="a",
        goal=goal,
        status="run",
        figures=figures,
        controls=controls,
        **rest,
    )


WITHHELD = (
    figure("psnr_gain", 0.2, -0.3, 0.7),
    figure("evaluator_prior", 0.3),
    figure("evaluator_chance", 0.2),
)
"""Of classes that an adversary lacked: nothing by likeness, and what prior and chance give an evaluator."""
NO_GAIN = (figure("psnr_gain", None), figure("evaluator_chance", 0.2))
CHANCE = figure("auc", 0.5, 0.4, 0.6)


@pytest.mark.parametrize(
    ("goal", "figures", "level"),
    [
        ("reconstruction", [figure("psnr_gain", 9, 8, 10), figure("psnr", 25)], "leak"),
        ("reconstruction", [figure("psnr_gain", 9, 8, 10), figure("psnr", 19.9)], "partial"),
        ("reconstruction", [figure("psnr_gain", 9, -0.1, 20), figure("psnr", 25)], "none-seen"),
        ("reconstruction", [figure("psnr_gain", 0.9, 0.5, 1.3), figure("psnr", 25)], "none-seen"),
        ("reconstruction", [figure("psnr_gain", 1.0, 0.5, 1.5), figure("psnr", 15)], "partial"),
        ("reconstruction", [figure("psnr_gain", 9), figure("psnr", 25)], "inconclusive"),
        ("reconstruction", [figure("psnr_gain", None), figure("psnr", 25)], "inconclusive"),
        ("reconstruction", [*WITHHELD, figure("evaluator_accuracy", 0.8, 0.4, 0.97, p=1e-4)], "partial"),
        ("reconstruction", [*WITHHELD, figure("evaluator_accuracy", 0.8, 0.4, 0.97, p=0.2)], "none-seen"),
        ("reconstruction", [*WITHHELD, figure("evaluator_accuracy", 0.25, 0.1, 0.97, p=1e-4)], "none-seen"),
        ("reconstruction", [*WITHHELD, figure("evaluator_accuracy", 0.8, 0.4, 0.97)], "none-seen"),
        ("reconstruction", [*NO_GAIN, figure("evaluator_accuracy", 0.1, 0.01, 0.4, p=0.9)], "none-seen"),
        ("membership", [figure("auc", 0.8, 0.7, 0.9)], "leak"),
        ("membership", [figure("auc", 0.6, 0.51, 0.7)], "partial"),
        ("membership", [figure("auc_mean", 0.6, 0.51, 0.7)], "partial"),
        ("membership", [figure("auc", 0.6, 0.5, 0.7)], "none-seen"),
        ("membership", [figure("auc", 0.9)], "inconclusive"),
        ("membership", [figure("auc", 0.5, 0.4, 0.6), figure("tpr_at_1fpr", 0.2, 0.1, 0.3)], "leak"),
        ("membership", [CHANCE, figure("tpr_at_0.1fpr", 0.004, 0.0021, 0.1)], "partial"),
        ("membership", [CHANCE, figure("tpr_at_0.1fpr", 0.004, 0.0019, 0.1)], "none-seen"),
        ("membership", [CHANCE, figure("tpr_at_10fpr", 0.2, 0.09, 0.3)], "none-seen"),
        ("label-distribution", [figure("label_tv", 0.05), figure("label_tv_prior", 0.4)], "leak"),
        ("label-distribution", [figure("label_tv", 0.2), figure("label_tv_prior", 0.4)], "partial"),
        ("label-distribution", [figure("label_tv", 0.3), figure("label_tv_prior", 0.4)], "none-seen"),
        ("label-distribution", [figure("label_tv", 0.05)], "inconclusive"),
        ("something-new", [figure("auc", 0.9, 0.8, 1.0)], "inconclusive"),
    ],
)
def test_rules_by_example(goal: str, figures: list[Figure], level: str) -> None:
    assert judge(cell(goal, *figures)).level == level


def test_a_single_clear_image_is_a_leak_though_the_mean_is_below_the_prior() -> None:
    images = tuple(Image(truth="t", guess="g", psnr=p, prior_psnr=11.0) for p in (31.0, 5.0, 4.0))
    victim = Target(target="client/0", figures=(figure("psnr_gain", 2.3, -7, 12),), images=images)
    found = judge(cell("reconstruction", figure("psnr_gain", 2.3, -7, 12), targets=(victim,)))
    assert found.level == "leak"
    assert "1 of 3" in found.because
    faint = tuple(Image(truth="t", guess="g", psnr=21.0, prior_psnr=p) for p in (15.5, 16.0))
    victim = victim.model_copy(update={"images": faint})
    blurred = cell("reconstruction", figure("psnr_gain", 5, -1, 9), targets=(victim,))
    assert judge(blurred).level == "none-seen"


@pytest.mark.parametrize("positive", [None, False])
def test_nothing_found_without_a_passed_positive_control_shows_nothing(positive: bool | None) -> None:
    control = None if positive is None else Control(what="overfit", passed=positive)
    quiet = cell("membership", figure("auc", 0.5, 0.4, 0.6), controls=Controls(positive=control))
    assert judge(quiet).level == "inconclusive"
    loud = cell("membership", figure("auc", 0.9, 0.8, 1.0), controls=Controls(positive=control))
    found = judge(loud)
    assert found.level == "leak"
    assert any("positive control" in caution for caution in found.cautions)


def test_p_values_and_aucs_keep_their_side_when_rounded() -> None:
    assert p_value(3e-5, 0.05) == "p < 0.0001"
    assert p_value(1e-4, 0.05) == "p = 0.0001"
    assert p_value(0.0331, 0.05) == "p = 0.033"
    assert "under 0.05" in p_value(0.04999, 0.05)
    assert p_value(0.05, 0.05) == "p = 0.05"
    assert "over 0.05" in p_value(0.05001, 0.05)
    assert figures_in(corrected(0.0331, 0.05, 1496)) == ["0.033", "1,496", "0.05"]
    assert figures_in(corrected(0.0331, 0.05, 1)) == ["0.033", "0.05"]
    assert figures_in(detectable(0.7, 0.99)) == ["0.70", "0.99"]
    assert figures_in(detectable(0.7, 0.9906)) == ["0.70"]


def test_a_headline_says_what_was_shown_where_only_classes_were() -> None:
    shown = (figure("evaluator_accuracy", 0.9, 0.6, 1.0, 1e-4), figure("evaluator_chance", 0.2))
    victims = tuple(Target(target=f"client/{k}", figures=shown) for k in range(2))
    classes = cell("reconstruction", *shown, targets=victims)
    said = _summary(minimal() | {"cells": [json.loads(classes.model_dump_json())]}).headline
    assert RULES["reconstruction"].shown in said
    assert RULES["reconstruction"].leaked not in said


def test_controls_that_fail_outweigh_figures_but_hide_no_leak() -> None:
    controls = Controls(positive=Control(what="overfit", passed=False), negative=PASSED.negative)
    loud = cell("membership", figure("auc", 0.9, 0.8, 1.0, 1e-6), controls=controls)
    assert judge(loud.model_copy(update={"status": "inconclusive"})).level == "leak"
    quiet = cell("membership", figure("auc", 0.5, 0.4, 0.6, 0.5), controls=controls)
    assert judge(quiet.model_copy(update={"status": "inconclusive"})).level == "inconclusive"
    controls = Controls(positive=PASSED.positive, negative=Control(what="noise", passed=False))
    assert judge(cell("membership", figure("auc", 1.0, 0.99, 1.0), controls=controls)).level == "inconclusive"


def test_one_victim_out_of_many_is_reported_with_the_caution_it_needs() -> None:
    targets = tuple(
        Target(target=f"client/{k}", figures=(figure("auc", a, a - 0.05, a + 0.05),))
        for k, a in enumerate((0.5, 0.58, 0.52))
    )
    found = judge(cell("membership", figure("auc", 0.53, 0.49, 0.57), targets=targets))
    assert found.level == "partial"
    assert found.worst is not None
    assert found.worst.target == "client/1"
    assert any("Only client/1" in caution for caution in found.cautions)
    assert found.affected == ("client/1",)
    assert "client/1" in found.measured


def test_distances_are_told_by_their_smallest_and_against_guessing() -> None:
    targets = tuple(
        Target(target=f"client/{k}", figures=(figure("label_tv", v), figure("label_tv_prior", 0.5)))
        for k, v in enumerate((0.4, 0.05, 0.2))
    )
    found = judge(cell("label-distribution", figure("label_tv", 0.22), targets=targets))
    assert found.worst is targets[1]
    gain = replace(figure("psnr_gain", -6.0, -8.0, -4.0), unit="dB")
    said = framed(RULES["reconstruction"], gain)
    assert (figures_in(said), "farther" in said) == (["6.0", "4.0", "8.0"], True)
    shares = RULES["label-distribution"]
    assert framed(shares, figure("label_tv", 0.0)) == shares.exact
    assert framed(shares, figure("label_tv", 0.08)) == shares.frame.format("0.080")


def test_every_goal_has_a_rule_and_nothing_is_no_strongest() -> None:
    assert list(GOALS) == list(RULES)
    assert set(get_args(Level)) == set(LEVELS)
    assert strongest([]) is None


bounded = st.tuples(st.floats(0, 1), st.floats(0, 1), st.floats(0, 1)).map(sorted)
controls = st.builds(
    Controls,
    positive=st.none() | st.builds(Control, what=st.just("p"), passed=st.booleans()),
    negative=st.none() | st.builds(Control, what=st.just("n"), passed=st.booleans()),
)


@given(st.lists(bounded, min_size=1, max_size=4), controls)
def test_laws_of_the_membership_verdict(aucs: list[list[float]], tried: Controls) -> None:
    targets = tuple(
        Target(target=f"client/{k}", figures=(figure("auc", mid, low, high),))
        for k, (low, mid, high) in enumerate(aucs)
    )
    found = judge(cell("membership", targets=targets, controls=tried))
    crossing = any(low > 0.5 for low, _, _ in aucs)
    if tried.negative is not None and not tried.negative.passed:
        assert found.level == "inconclusive"
    elif crossing:
        assert found.level in ("leak", "partial")
    else:
        proven = tried.positive is not None and tried.positive.passed
        assert found.level == ("none-seen" if proven else "inconclusive")
    assert found.worst is not None
    assert found.worst_key is not None
    assert found.worst_key.value == max(mid for _, mid, _ in aucs)


def _summary(raw: dict[str, Any]) -> Any:
    result = Result.model_validate_json(json.dumps(raw))
    return summarise(result)


def test_the_summary_of_the_fixture_names_who_and_what() -> None:
    summary = _summary(load())
    assert summary.level == "leak"
    assert summary.headline.startswith(f"The server {RULES['reconstruction'].leaked} (all 2 ")
    assert len(summary.reasons) == 3
    assert summary.reasons[0].number == 1
    by_adversary = {row.adversary: [e.level for e in row.entries] for row in summary.matrix}
    assert by_adversary["server"] == ["leak", "partial"], "what the world can do, the server can"
    assert by_adversary["client/1"] == ["not-tested", "partial"], "and so can a client"
    world = next(row for row in summary.matrix if row.adversary == "world").entries[1]
    assert (world.conclusive, world.tried) == (2, 4)


def test_no_verdict_says_safe() -> None:
    raw = load()
    raw["cells"] = [c for c in raw["cells"] if c["id"] == "world/gap"]
    summary = _summary(raw)
    assert summary.level == "none-seen"
    assert "not evidence" in summary.headline
    assert "gate" in summary.headline
    raw["gates"] = []
    assert "not evidence" in _summary(raw).headline
    assert "gate" not in _summary(raw).headline
    raw["cells"] = []
    summary = _summary(raw)
    assert summary.level == "inconclusive"
    assert "No leak" not in summary.headline
    raw["cells"] = [c for c in load()["cells"] if c["status"] != "run"]
    assert _summary(raw).level == "inconclusive"


def test_failed_gates_come_first_among_the_actions() -> None:
    raw = load()
    assert "gate" in _summary(raw).actions[0].do
    raw["gates"] = []
    assert "gate" not in " ".join(a.do for a in _summary(raw).actions)


def test_coalitions_see_what_members_see_and_collude() -> None:
    raw = load()
    result = Result.model_validate_json(json.dumps(raw))
    both = dict(private_kinds(result, "server+client/3"))
    assert set(both) == set(dict(private_kinds(result, "server"))) | set(
        dict(private_kinds(result, "client/3"))
    )
    raw["exposure"][0]["private"] = False
    result = Result.model_validate_json(json.dumps(raw))
    assert "gradient" not in dict(private_kinds(result, "server"))
    assert "server and client/0" in party("server+client/0")
    assert party("server") == "the server"


@pytest.mark.parametrize(
    ("p", "others", "level"), [(0.01, 1, "partial"), (0.01, 9, "possible"), (1e-4, 9, "partial")]
)
def test_an_auc_that_stands_out_among_many_counts_only_where_chance_would_hardly_do_it(
    p: float, others: int, level: Level
) -> None:
    one = cell("membership", figure("auc", 0.65, 0.51, 0.8, p=p))
    rest = [cell("membership", figure("auc", 0.5, 0.4, 0.6, p=0.5)) for _ in range(others)]
    idle = cell("membership", figure("auc", 0.5, 0.4, 0.6, p=0.5)).model_copy(update={"status": "failed"})
    result = Result.model_validate_json(json.dumps(minimal())).model_copy(
        update={"cells": (one, *rest, *[idle] * 20)}
    )
    found = judge_all(result)
    assert found[0].level == level
    assert all(f.level == "none-seen" for f in found[1 : 1 + others])
    assert ("above 0.5; p" in found[0].because) == (level == "partial")
    assert found[0].because.startswith("Not significant") == (level == "possible")


def test_recognised_classes_share_the_level_among_their_cells() -> None:
    def cells(number: int, p: float) -> Result:
        shown = [*WITHHELD, figure("evaluator_accuracy", 0.8, 0.4, 0.97, p=p)]
        made = [
            cell("reconstruction", *shown).model_copy(update={"id": f"server/{k}"}) for k in range(number)
        ]
        return Result.model_validate_json(json.dumps(minimal())).model_copy(update={"cells": tuple(made)})

    assert {f.level for f in judge_all(cells(10, 0.004))} == {"partial"}
    assert {f.level for f in judge_all(cells(20, 0.004))} == {"possible"}
    assert "given no record" in judge_all(cells(1, 0.01))[0].because


def of_one_run(*cells: Cell, warnings: tuple[str, ...] = ()) -> Result:
    made = Result.model_validate_json(json.dumps(minimal()))
    return made.model_copy(
        update={"cells": cells, "utility": made.utility.model_copy(update={"warnings": warnings})}
    )


QUIET = cell("membership", figure("auc", 0.5, 0.4, 0.6, p=0.5))


@pytest.mark.parametrize(("gain", "level"), [(0.2, "possible"), (0.0, "possible"), (-0.8, "none-seen")])
def test_pictures_farther_from_the_truth_than_guessing_are_no_possible_leak(
    gain: float, level: Level
) -> None:
    """Records picked out of galleries stand out in their own test alone, by chance or not."""
    chance = figure("identification_chance", 0.1)
    near = cell(
        "reconstruction",
        figure("psnr_gain", gain, gain - 1, gain + 1),
        figure("identification", 0.3, 0.1, 0.5, p=0.02),
        chance,
    )
    found = judge_all(of_one_run(near, *[QUIET] * 9))
    assert found[0].level == level
    assert found[0].because.startswith("Not significant") == (level == "possible")


@pytest.mark.parametrize("warnings", [(), ("The model of server ends near chance.",)])
def test_a_model_at_chance_supports_no_possible_leak(warnings: tuple[str, ...]) -> None:
    one = cell("membership", figure("auc", 0.65, 0.51, 0.8, p=0.01))
    found = judge_all(of_one_run(one, *[QUIET] * 9, warnings=warnings))
    assert found[0].level == ("inconclusive" if warnings else "possible")
    assert ("near chance" in found[0].because) == bool(warnings)
    grave = cell("membership", figure("auc", 0.9, 0.8, 1.0, p=1e-9))
    assert judge_all(of_one_run(grave, *[QUIET] * 9, warnings=warnings))[0].level == "leak"


# -- plain words ---------------------------------------------------------------------------------------------------


def test_what_decided_is_said_where_images_are_farther_than_the_prior_and_still_name_their_record():
    gain = figure("psnr_gain", -1.8, -4.7, 1.5)
    named = replace(figure("identification", 0.75, 0.19, 0.99, p=5e-5), n=4)
    chance = figure("identification_chance", 0.07)
    found = judge(cell("reconstruction", gain, figure("psnr", 25), named, chance))
    assert found.level in ("leak", "partial")
    (told,) = found.decided_by.values()
    assert told.startswith("decided by identification")
    assert figures_in(told)[:2] == ["75.0", "4"]
    closer = judge(cell("reconstruction", figure("psnr_gain", 9, 8, 10), figure("psnr", 25), named, chance))
    assert not closer.decided_by


def test_a_victim_closer_than_the_prior_is_not_counted_with_all_that_are_farther():
    """One sentence said "3 dB farther from the truth than guessing; worst: 0.8 dB", which read as farther too."""
    worst = Target(target="client/1", figures=(figure("psnr_gain", 0.8, 0.5, 1.1), figure("psnr", 25)))
    other = Target(target="client/0", figures=(figure("psnr_gain", -7, -8, -6), figure("psnr", 15)))
    found = judge(
        cell("reconstruction", figure("psnr_gain", -3, -4, -2), figure("psnr", 20), targets=(other, worst))
    )
    assert re.search(r"\b3\.0.*farther.*\b0\.8.*closer", found.measured)


# -- class sets ----------------------------------------------------------------------------------------------------


def _named(guess: tuple[float, ...], clients: int = 3, cells: int = 1) -> Level:
    """The verdict on guessed shares of clients that hold five of ten classes unevenly: no distance is halved."""
    truth = (0.6, 0.1, 0.1, 0.1, 0.1, 0, 0, 0, 0, 0)
    figures = (figure("label_tv", 0.4), figure("label_tv_prior", 0.5))
    shares = Shares(truth=truth, guess=guess, prior=(0.1,) * 10)
    targets = tuple(Target(target=f"client/{k}", figures=figures, shares=shares) for k in range(clients))
    made = cell("label-distribution", *figures, targets=targets)
    return judge_all(of_one_run(made, *[QUIET] * cells))[0].level


def test_class_sets_that_are_named_exactly_are_a_partial_leak() -> None:
    right = (0.2,) * 5 + (0.0,) * 5
    assert _named(right) == "partial"
    assert _named(right, clients=1, cells=1) == "partial"  # one set of 252
    assert _named(right, clients=1, cells=40) == "none-seen"
    assert _named((0.2,) * 4 + (0.0, 0.2) + (0.0,) * 4) == "none-seen"
    assert _named((0.1,) * 10) == "none-seen"
