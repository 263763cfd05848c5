"""The empirical check of a claim: its bound, its error rate, and what it finds with few draws."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import binomtest

from fdaudit.refutation import Distinguisher, check_claim, choose, lower_bound
from fdaudit.rng import child_numpy

from .mechanism_cases import FAMILY, broken, cases, gaussian_epsilon

# -- the bound ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("above", "first"), [(True, True), (True, False), (False, True), (False, False)])
@pytest.mark.parametrize(("k", "n", "j", "m"), [(60, 100, 8, 120), (90, 90, 0, 50), (30, 70, 30, 70)])
def test_the_bound_is_that_of_two_exact_binomial_intervals(above, first, k, n, j, m):
    """Worked out apart, by SciPy's exact test; k of n draws lie in the set where it is likelier, j of m elsewhere."""

    def scores(hits, size):
        inside = np.arange(size) < hits
        return np.where(inside == above, 1.0, -1.0)

    likely, unlikely = scores(k, n), scores(j, m)
    found = Distinguisher(threshold=0.5, above=above, first=first)
    p, q = (likely, unlikely) if first else (unlikely, likely)
    low = binomtest(k, n).proportion_ci(1 - 0.02, method="exact").low
    high = binomtest(j, m).proportion_ci(1 - 0.02, method="exact").high
    wanted = max(0.0, math.log((low - 0.05) / high))
    assert lower_bound(found, p, q, delta=0.05, failure=0.02) == pytest.approx(wanted, rel=1e-9)


def test_what_delta_explains_shows_nothing():
    p, q = np.ones(1000), np.zeros(1000)
    found = Distinguisher(threshold=0.5, above=True, first=True)
    assert lower_bound(found, p, q, delta=0.999, failure=0.01) == 0
    assert lower_bound(found, p, q, delta=0.0, failure=0.01) > 4


@settings(deadline=None, max_examples=30)
@given(seed=st.integers(0, 10**6), gap=st.floats(-3, 3), delta=st.floats(0, 0.2))
def test_scores_matter_by_their_order_alone_and_more_delta_shows_less(seed, gap, delta):
    rng = child_numpy(seed, "scores")
    p, q = rng.normal(gap, 1, 300), rng.normal(0, 1, 300)
    found = choose(p, q, delta=delta, failure=0.05)
    bound = lower_bound(found, p, q, delta=delta, failure=0.05)
    same = choose(p**3, q**3, delta=delta, failure=0.05)
    assert lower_bound(same, p**3, q**3, delta=delta, failure=0.05) == pytest.approx(bound, abs=1e-12)
    swapped = choose(q, p, delta=delta, failure=0.05)
    assert lower_bound(swapped, q, p, delta=delta, failure=0.05) == pytest.approx(bound, abs=1e-12)
    assert lower_bound(found, p, q, delta=delta + 0.1, failure=0.05) <= bound
    assert lower_bound(found, p, q, delta=delta, failure=0.01) <= bound


# -- how often it errs --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("epsilon", [0.0, 1.0])
def test_a_true_claim_is_refuted_no_more_often_than_stated(epsilon):
    """Randomised response, which is exactly ε-private: 600 checks, each of which may fail once in ten."""
    keeps = math.exp(epsilon) / (1 + math.exp(epsilon))
    rng = child_numpy(5, "responses")
    refuted = 0
    for _ in range(600):
        found = check_claim(
            lambda n: (rng.random(n) < keeps) * 1.0,
            lambda n: (rng.random(n) < 1 - keeps) * 1.0,
            lambda y: y,
            epsilon=epsilon,
            delta=0.0,
            draws=400,
            failure=0.1,
        )
        refuted += found.refuted
    assert refuted <= 60 + 3 * math.sqrt(600 * 0.1 * 0.9)


def test_the_choice_and_the_bound_come_from_different_draws():
    """Scores that single out the choosing half's luck: taken from the same draws they would seem to show something."""
    rng = child_numpy(1, "luck")
    p, q = rng.normal(size=60), rng.normal(size=60)
    assert lower_bound(choose(p, q, delta=0, failure=0.999), p, q, delta=0, failure=0.999) > 0.1
    found = check_claim(
        lambda n: rng.normal(size=n),
        lambda n: rng.normal(size=n),
        lambda y: y,
        epsilon=0.0,
        delta=0.0,
        draws=20_000,
        failure=0.01,
    )
    assert found.bound == 0
    assert not found.refuted


# -- mechanisms, with few draws -----------------------------------------------------------------------------------


def test_the_gaussian_reference_is_the_textbooks():
    """At ε = 1 and μ = 1, δ is Φ(-1/2) - e Φ(-3/2) (Balle & Wang 2018), 0.1269."""
    assert gaussian_epsilon(1.0, 0.126936) == pytest.approx(1.0, abs=1e-4)


@pytest.mark.parametrize("name", cases())
def test_no_true_claim_is_refuted_by_few_draws(name):
    case = cases()[name]()
    found = case.check(20_000, FAMILY / len(cases()))
    assert not found.refuted
    assert case.tight / 3 < found.bound <= case.tight


@pytest.mark.parametrize("name", [n for n in broken() if "low bits" not in n])  # that takes a million
def test_what_is_broken_on_purpose_is_caught_by_few_draws(name):
    assert broken()[name]().check(40_000, FAMILY / len(cases())).refuted


# -- what is refused ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "word"),
    [
        ({"draws": 3}, "draws"),
        ({"delta": 1.0}, "delta"),
        ({"delta": -0.1}, "delta"),
        ({"failure": 0.0}, "failure"),
        ({"score": lambda y: y * math.nan}, "NaN"),
        ({"score": lambda y: y[:2]}, "one a draw"),
    ],
)
def test_impossible_checks_are_refused(changes, word):
    made = {"score": lambda y: y, "epsilon": 1.0, "delta": 0.0, "draws": 8, "failure": 0.05} | changes
    with pytest.raises(ValueError, match=word):
        check_claim(lambda n: np.arange(n) * 1.0, lambda n: np.arange(n) * 1.0, made.pop("score"), **made)
