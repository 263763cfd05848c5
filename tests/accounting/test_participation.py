"""Correlated noise: its sensitivity against every permitted pattern of small matrices, and its price."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.special import comb

from fdaudit.accounting.calibration import Shape, noise_for
from fdaudit.accounting.charges import converted
from fdaudit.accounting.costs import epsilon
from fdaudit.accounting.ledger import Books
from fdaudit.accounting.losses.participation import sensitivity, toeplitz_sensitivity
from fdaudit.errors import IntegrityError
from fdaudit.events import CorrelatedGaussian, Gaussian, event_from_json, event_to_json

from ..helpers.ledger_cases import RECORD, Log

Matrix = NDArray[np.float64]


def patterns(n: int, separation: int, participations: int) -> Iterator[tuple[int, ...]]:
    """Every set of steps that the rule permits."""
    for size in range(1, participations + 1):
        for steps in itertools.combinations(range(n), size):
            if all(b - a >= separation for a, b in itertools.pairwise(steps)):
                yield steps


def brute_force(C: Matrix, separation: int, participations: int) -> float:
    """The largest ||C u|| over permitted patterns and numbers of -1 and 1."""
    best = 0.0
    for steps in patterns(len(C), separation, participations):
        for signs in itertools.product((-1.0, 1.0), repeat=len(steps)):
            best = max(best, float(np.linalg.norm(C[:, steps] @ np.array(signs))))
    return best


def toeplitz(bands: tuple[float, ...], n: int) -> Matrix:
    C = np.zeros((n, n))
    for offset, c in enumerate(bands[:n]):
        C += c * np.eye(n, k=-offset)
    return C


SHAPES = [(separation, k) for separation in (1, 2, 3, 5, 8) for k in (1, 2, 3, 8)]


@pytest.mark.parametrize(("separation", "participations"), SHAPES)
@pytest.mark.parametrize("signed", [False, True])
def test_no_pattern_moves_a_release_further(separation: int, participations: int, signed: bool) -> None:
    g = np.random.default_rng(separation * 10 + participations)
    for bands in (1, 2, 4, 8):
        C = np.tril(g.uniform(-1.0 if signed else 0.0, 1.0, (8, 8)))
        C *= np.tri(8) - np.tri(8, k=-bands)
        found, least = sensitivity(C, separation, participations), brute_force(C, separation, participations)
        assert found >= least * (1 - 1e-12)
        exact = bands <= separation or participations <= 2 or (not signed and bands <= 2 * separation)
        if exact:
            assert found == pytest.approx(least, rel=1e-8)
        assert found <= 1.5 * least


def test_a_toeplitz_matrix_has_the_sensitivity_of_its_entries() -> None:
    for bands in ((1.0,), (1.0, 0.5), (1.0, -0.5, 0.3), (1.0, 0.9, 0.8, 0.7, 0.6)):
        for separation, participations in SHAPES:
            whole = sensitivity(toeplitz(bands, 9), separation, participations)
            assert toeplitz_sensitivity(bands, 9, separation, participations) == pytest.approx(
                whole, rel=1e-12
            )


def test_the_square_root_of_the_prefix_sums_has_its_published_norm() -> None:
    """Fichtenberger, Henzinger & Upadhyay 2023: coefficients C(2j, j) / 4^j, at most 1 + (γ + log n) / π squared."""
    n = 256
    bands = tuple(float(comb(2 * j, j, exact=True) / 4**j) for j in range(n))
    found = toeplitz_sensitivity(bands, n, n, 1) ** 2
    assert found == pytest.approx(sum(c * c for c in bands), rel=1e-8)
    assert 1 + math.log(n) / math.pi < found < 1 + (np.euler_gamma + math.log(n)) / math.pi


def test_falling_coefficients_are_worst_for_the_earliest_steps() -> None:
    """Kalinin & Lampert 2024, Theorem 2: steps 0, s, 2s, ... for coefficients that fall and are not negative."""
    bands = tuple(0.8**j for j in range(6))
    C = toeplitz(bands, 40)
    for separation in (3, 4, 6, 10):
        worst = C[:, 0 : 4 * separation : separation].sum(1)
        found = toeplitz_sensitivity(bands, 40, separation, 4)
        assert found == pytest.approx(float(np.linalg.norm(worst)), rel=1e-8)


def event(**changes: Any) -> CorrelatedGaussian:
    stated = {"sensitivity": 1.0, "scale": 4.0, "bands": (1.0, 0.5, 0.25), "steps": 40, "separation": 20}
    return CorrelatedGaussian(**{**stated, "participations": 2, **RECORD, **changes})


def test_a_training_costs_what_one_gaussian_of_its_sensitivity_costs() -> None:
    log = Log()
    log.add("client/0", "server", "model_update", ["data"], event())
    found = Books(log, ("server", "client/0")).ledger("server")
    moved = math.sqrt(2 * (1 + 0.25 + 0.0625))
    one = Gaussian(sensitivity=moved, scale=4.0, **RECORD)
    assert found.epsilon == pytest.approx(epsilon({one: 1}, 1e-5).value, rel=1e-6)
    assert found.gdp == pytest.approx(moved / 4)
    replaced = Books(log, ("server", "client/0")).ledger("server", relation="replace-one")
    assert replaced.gdp == pytest.approx(2 * moved / 4)


def test_two_epochs_within_the_band_are_not_taken_for_orthogonal() -> None:
    """Steps that share rows of C move the release further than the root of the sum of squares says."""
    near = event(bands=(1.0, 0.9, 0.8, 0.7), separation=2, steps=8)
    made = converted(near, "record", "add-or-remove")
    assert isinstance(made, Gaussian)
    orthogonal = math.sqrt(2 * sum(c * c for c in near.bands))
    truth = brute_force(toeplitz(near.bands, 8), 2, 2)
    assert made.sensitivity == pytest.approx(truth, rel=1e-8)
    assert made.sensitivity > 1.1 * orthogonal


def test_more_participations_or_less_room_between_them_never_cost_less() -> None:
    figures = [
        toeplitz_sensitivity((1.0, 0.7, 0.5, 0.3), 30, separation, k)
        for separation, k in ((30, 1), (10, 2), (10, 3), (2, 3), (1, 3), (1, 30))
    ]
    assert figures == sorted(figures)


def test_an_event_is_read_back_and_an_oversized_one_refused() -> None:
    assert event_from_json(event_to_json(event())) == event()
    huge = {**event_to_json(event()), "steps": 10**8}
    with pytest.raises(IntegrityError, match="too many"):
        event_from_json(huge)
    with pytest.raises(IntegrityError, match="bands"):
        event_from_json({**event_to_json(event()), "bands": [0.0, 1.0]})


def test_calibration_finds_the_noise_of_a_banded_training() -> None:
    shape = Shape(bands=(1.0, 0.5), steps=100, separation=50, participations=2)
    noise, reached = noise_for("dp-ftrl", shape, 2.0, 1e-5)
    single, _ = noise_for("gaussian-noise", Shape(sensitivity=math.sqrt(2.5)), 2.0, 1e-5)
    assert noise == pytest.approx(single, rel=1e-4)
    assert reached <= 2.0


@pytest.mark.parametrize(
    "matrix", [np.ones((2, 2)), np.ones((2, 3)), np.zeros((0, 0)), np.full((2, 2), np.nan)]
)
def test_what_is_no_lower_triangular_matrix_is_refused(matrix: Matrix) -> None:
    with pytest.raises(ValueError, match="lower-triangular"):
        sensitivity(matrix, 1, 1)
