"""Calibration: never too little noise, hardly ever too much, and an honest refusal."""

from __future__ import annotations

import json

import dp_accounting as dp
import pytest
from dp_accounting.pld import PLDAccountant
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from fdaudit.accounting.calibration import SHAPES, Shape, calibrate, noise_for, written
from fdaudit.accounting.costs import epsilon
from fdaudit.cli.app import app
from fdaudit.errors import SpecError, UsageError

DELTA = 1e-5
SHAPE = Shape(releases=40, steps=60, samples=8, sample_rate=0.1, sensitivity=3.0, answered=10)


@pytest.mark.thorough
@pytest.mark.parametrize("defence", SHAPES)
def test_the_noise_keeps_to_its_target_and_a_hundredth_less_does_not(defence: str) -> None:
    noise, reached = noise_for(defence, SHAPE, 4.0, DELTA)
    charges = SHAPES[defence][1]
    assert reached == epsilon(charges(SHAPE, noise), DELTA).value <= 4.0
    assert epsilon(charges(SHAPE, noise * 0.98), DELTA).value > 4.0


@pytest.mark.slow
@pytest.mark.parametrize(
    ("defence", "shape"),
    [
        ("dp-sgd", Shape(sample_rate=0.1, steps=200)),
        ("dp-sgd", Shape(sample_rate=0.01, steps=5000)),
        ("dp-sgd", Shape(sample_rate=0.5, steps=10)),
        ("confident-gnmax", Shape(releases=1000, answered=100)),
        ("laplace-noise", Shape(releases=100)),
    ],
)
def test_noise_lands_within_half_a_percent_below_each_target_and_falls_with_it(
    defence: str, shape: Shape
) -> None:
    targets = (0.5, 1.0, 2.0, 8.0, 20.0, 40.0, 60.0, 100.0)
    found = [noise_for(defence, shape, target, DELTA) for target in targets]
    for target, (_, reached) in zip(targets, found, strict=True):
        assert 0.995 * target <= reached <= target
    noises = [noise for noise, _ in found]
    assert noises == sorted(set(noises), reverse=True)


@pytest.mark.thorough
@pytest.mark.parametrize("target", [40.0, 60.0])
def test_noise_lands_below_a_target_where_renyi_curves_are_loose(target: float) -> None:
    noise, reached = noise_for("dp-sgd", Shape(sample_rate=0.1, steps=200), target, DELTA)
    assert 0.995 * target <= reached <= target
    assert noise == pytest.approx({40.0: 0.5268, 60.0: 0.4463}[target], rel=1e-3)


def test_calibrated_gaussian_noise_says_which_clip_it_is_for() -> None:
    asked = ["calibrate", "gaussian-noise", "--epsilon", "4", "--sensitivity", "3"]
    assert "clip = 1.5" in CliRunner().invoke(app, asked).stdout
    value = json.loads(CliRunner().invoke(app, [*asked, "--json"]).stdout)
    assert (value["clip"], value["sensitivity"]) == (1.5, 3.0)


@settings(max_examples=50)
@given(wanted=st.floats(0.01, 1e5), power=st.floats(0.3, 3))
def test_the_least_noise_of_any_falling_cost_is_found(wanted: float, power: float) -> None:
    found = calibrate(lambda noise: (wanted / noise) ** power, 1.0)
    assert wanted * (1 - 1e-12) <= found <= wanted * 1.001001


@given(noise=st.floats(1e-3, 1e7))
def test_five_digits_are_never_less(noise: float) -> None:
    assert noise <= written(noise) * (1 + 1e-15)
    assert written(noise) <= noise * 1.0001001


@pytest.mark.thorough
def test_a_small_target_of_many_quiet_steps_is_reached() -> None:
    """Rényi orders alone do not go below 0.137 here, and wide cells would nearly double ε."""
    noise, reached = noise_for("dp-sgd", Shape(steps=10_000, sample_rate=0.1), 0.1, 1e-6)
    accountant = PLDAccountant(value_discretization_interval=1e-5)
    accountant.compose(dp.PoissonSampledDpEvent(0.1, dp.GaussianDpEvent(noise)), 10_000)
    assert accountant.get_epsilon(1e-6) <= reached <= 0.1
    assert reached == pytest.approx(0.1, rel=1e-3)


@pytest.mark.thorough
def test_noise_falls_with_its_target_from_digit_to_digit() -> None:
    targets = (7.99, 7.9999, 8.0, 8.001)
    found = [noise_for("dp-sgd", Shape(steps=1000, sample_rate=0.01), t, 1e-5) for t in targets]
    assert [n for n, _ in found] == sorted((n for n, _ in found), reverse=True)
    assert [e for _, e in found] == sorted(e for _, e in found)
    assert all(e <= t for (_, e), t in zip(found, targets, strict=True))


def test_a_target_out_of_reach_says_what_can_be_reached() -> None:
    with pytest.raises(SpecError, match=r"^epsilon: 1\.0 .* 1e\+07 .* 2\.5"):
        calibrate(lambda noise: 2.5 + 1e-9 / noise, 1.0)
    for target in (0.0, -1.0, float("inf"), float("nan")):
        with pytest.raises(SpecError, match="is no budget"):
            calibrate(lambda noise: 1 / noise, target)


@pytest.mark.thorough
def test_one_client_in_many_needs_less_noise_where_nobody_sees_which() -> None:
    always, hidden = (
        noise_for("sanitized-gradients", Shape(steps=200, samples=4, drawn_from=n), 4.0, DELTA)[0]
        for n in (1, 50)
    )
    assert hidden < always / 3


@pytest.mark.thorough
def test_the_command_says_the_setting_and_what_it_comes_to() -> None:
    asked = ["calibrate", "dp-sgd", "--epsilon", "8", "--steps", "60", "--sample-rate", "0.1"]
    shown = CliRunner().invoke(app, asked)
    assert shown.stdout.startswith("dp-sgd: noise_multiplier = ")
    value = json.loads(CliRunner().invoke(app, [*asked, "--json"]).stdout)
    assert value["epsilon"] <= 8
    assert f"{value['value']:.5g}" in shown.stdout
    gamma = CliRunner().invoke(app, ["calibrate", "lnmax", "--epsilon", "4", "--releases", "40"]).stdout
    assert "gamma = 0." in gamma


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        (["dp-sdg", "--epsilon", "1"], "none that can be calibrated"),
        (["dp-sgd", "--epsilon", "1", "--delta", "1"], "no probability"),
        (["dp-sgd", "--epsilon", "1", "--sample-rate", "2"], "sample_rate"),
        (["dp-sgd", "--epsilon", "-1"], "no budget"),
    ],
)
def test_a_mistake_is_one_line(asked: list[str], said: str) -> None:
    with pytest.raises(UsageError, match=said) as caught:
        CliRunner().invoke(app, ["calibrate", *asked], catch_exceptions=False)
    assert "\n" not in str(caught.value)
