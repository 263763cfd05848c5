"""Warnings about final models near chance: when there is one, and what it says."""

from __future__ import annotations

import pytest

from fdaudit.metrics import Chance, clopper_pearson, constant_accuracy, near_chance
from fdaudit.result import CurvePoint, FinalUtility
from fdaudit.types import Figure

CHANCE = constant_accuracy([0] * 30 + [1] * 50 + [2] * 20)  # always naming class 1 reaches 50 %


def row(party: str, right: int, line: str = "fedkd", n: int = 100) -> FinalUtility:
    interval = clopper_pearson(right, n)
    figure = Figure(name="accuracy", value=right / n, low=interval.low, high=interval.high)
    return FinalUtility(line=line, party=party, figure=figure)


def at(number: int, value: float, party: str = "server") -> CurvePoint:
    return CurvePoint(line="fedkd", round=number, party=party, accuracy=value)


@pytest.mark.parametrize(("right", "warned"), [(10, True), (50, True), (58, True), (62, False), (95, False)])
def test_a_model_is_near_chance_if_its_interval_reaches_a_constant_answer(right: int, warned: bool) -> None:
    assert bool(near_chance([row("server", right)], [], "fedkd", CHANCE)) == warned


def test_the_warning_names_model_level_and_cause() -> None:
    (said,) = near_chance([row("server", 40)], [at(0, 0.3), at(9, 0.4)], "fedkd", CHANCE)
    assert said.startswith("The model of server ends near chance: server has 40.0% on test records")
    assert "the most frequent class reaches 50.0%" in said
    assert "smaller learning rate" in said


def test_a_model_that_was_better_before_diverged() -> None:
    (said,) = near_chance([row("server", 10)], [at(3, 0.8), at(9, 0.1)], "fedkd", CHANCE)
    assert "It had 80.0% after round 3: training diverged" in said


def test_without_a_server_s_model_every_client_counts() -> None:
    rows = [row("client/0", 90), row("client/1", 20), row("client/2", 30)]
    (said,) = near_chance(rows, [], "fedkd", CHANCE)
    assert said.startswith("2 of 3 models end near chance: client/1 has 20.0%")
    assert not near_chance([row("server", 90), *rows], [], "fedkd", CHANCE)


def test_reference_lines_do_not_count() -> None:
    assert not near_chance([row("server", 90), row("client/0", 1, "standalone")], [], "fedkd", CHANCE)


@pytest.mark.parametrize(
    ("value", "low", "warned"), [(0.6, 0.48, True), (0.6, 0.52, False), (0.49, None, True)]
)
def test_of_several_labels_the_level_is_one_half(value: float, low: float | None, warned: bool) -> None:
    figure = Figure(name="mean_auc", value=value, low=low)
    rows = [FinalUtility(line="fedkd", party="server", figure=figure)]
    assert bool(near_chance(rows, [], "fedkd", Chance(0.5, "guessing"))) == warned


def test_a_reference_line_near_chance_is_told_of_too() -> None:
    rows = [row("server", 90), row("client/0", 10, "centralized")]
    (said,) = near_chance(rows, [at(3, 0.8)], "centralized", CHANCE)
    assert said.startswith("The model of client/0 ends near chance: client/0 has 10.0% on test records")
