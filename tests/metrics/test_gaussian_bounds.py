"""μ from below: against a linear programme, exact enumeration, closed forms, and mechanisms whose μ is known."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from scipy.optimize import linprog
from scipy.stats import binom, norm

from fdaudit.errors import UsageError
from fdaudit.metrics import (
    epsilon_lower_bound,
    epsilon_p_value,
    gdp_epsilon,
    mu_lower_bound,
    mu_p_value,
    one_run_mu,
)
from fdaudit.metrics.claims.gaussian_bounds import _refuted

from ..helpers.refusals import refused

RUNS = 1000
MOST_ABOVE = int(binom.ppf(0.999, RUNS, 0.05))
DELTA = 1e-5


# -- the recursion --------------------------------------------------------------------------------------------------


def most_likely_success(correct: int, guesses: int, canaries: int, mu: float) -> float:
    """The largest probability of so many right guesses that the theorem allows, by a linear programme.

    The variables are the probabilities p_0 … p_{c'} of each number of right guesses. For each tail T = {j, …} the
    theorem demands Σ_T (i/m) p_i <= 1 - f(Σ_T ((c' - i + 1)/m) p_{i-1}). A tangent of the concave right side is a
    linear constraint, and many tangents come close to it from above.
    """
    rows, limits = [], []
    for j in range(1, guesses + 1):
        right = np.array([i / canaries if i >= j else 0.0 for i in range(guesses + 1)])
        wrong = np.array([(guesses - i) / canaries if i >= j - 1 else 0.0 for i in range(guesses + 1)])
        for z in np.linspace(-5, 3, 400):
            a = norm.cdf(z)
            slope = norm.pdf(z + mu) / norm.pdf(z)
            rows.append(right - slope * wrong)
            limits.append(norm.cdf(z + mu) - slope * a)
    success = -(np.arange(guesses + 1) >= correct).astype(float)
    found = linprog(
        success, A_ub=np.array(rows), b_ub=limits, A_eq=np.ones((1, guesses + 1)), b_eq=[1.0], bounds=(0, 1)
    )
    assert found.success
    return -float(found.fun)


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("correct", "guesses", "canaries", "mu"),
    [(3, 3, 3, 0.5), (5, 6, 6, 1.0), (6, 6, 6, 0.3), (7, 8, 12, 0.7), (4, 5, 8, 0.4), (9, 10, 10, 0.2)],
)
def test_the_recursion_finds_the_largest_probability_of_a_linear_programme(correct, guesses, canaries, mu):
    largest = most_likely_success(correct, guesses, canaries, mu)
    assert 0 < largest < 1
    assert _refuted(correct, guesses, canaries, mu, largest + 2e-3)
    assert not _refuted(correct, guesses, canaries, mu, largest - 2e-3)


@pytest.mark.parametrize("mu", [0.0, 0.4, 1.0, 2.5])
def test_no_probability_of_randomised_response_is_refuted(mu):
    """Randomised response that tells the truth with Φ(μ/2) is μ-GDP; every answer to every coin is enumerated."""
    coins, truthful = 8, float(norm.cdf(mu / 2))
    likely = np.zeros(coins + 1)
    for told in itertools.product([False, True], repeat=coins):
        likely[sum(told)] += math.prod(truthful if right else 1 - truthful for right in told)
    for correct in range(1, coins + 1):
        exact = float(likely[correct:].sum())
        assert not _refuted(correct, coins, coins, mu, exact - 1e-9)
        assert one_run_mu(correct, coins, coins, 1 - exact + 1e-9) <= mu


def test_chance_and_loud_minorities_are_never_refuted() -> None:
    mu, m = 1.2, 6
    right = float(norm.cdf(mu / 2))
    for correct in (1, 2):
        exact = float(binom.sf(correct - 1, 2, right))
        assert one_run_mu(correct, 2, m, 1 - exact + 1e-9) <= mu
    for guesses in (1, 7, 40, 300):
        for correct in range(guesses + 1):
            if binom.sf(correct - 1, guesses, 0.5) > 0.05:
                assert one_run_mu(correct, guesses, guesses) == 0.0


def test_more_right_guesses_show_more_and_confidence_and_abstentions_cost():
    bounds = [one_run_mu(c, 100, 500) for c in range(101)]
    assert bounds == sorted(bounds)
    assert bounds[50] == 0.0 < bounds[80] < bounds[100]
    assert one_run_mu(95, 100, 500, 0.99) < one_run_mu(95, 100, 500) < one_run_mu(95, 100, 100)
    perfect = [one_run_mu(n, n, n) for n in (10, 100, 1000, 10_000)]
    assert perfect == sorted(set(perfect))
    assert one_run_mu(0, 5, 5) == 0.0


# -- ε of a μ -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("delta", [1e-10, 1e-5, 1e-2, 0.3])
@pytest.mark.parametrize("mu", [0.01, 0.5, 1.0, 3.0, 12.0])
def test_epsilon_of_mu_is_where_the_two_gaussians_differ_by_delta(mu, delta):
    """δ is the integral of (p - e^ε q)+ over the line, here by a sum."""
    epsilon = gdp_epsilon(mu, delta)
    x = np.linspace(-12, mu + 12, 400_001)
    excess = norm.pdf(x, mu) - np.exp(epsilon) * norm.pdf(x)
    found = float(np.clip(excess, 0, None).sum() * (x[1] - x[0]))
    assert found == pytest.approx(delta, rel=1e-3) if epsilon else found <= delta


def test_epsilon_of_mu_rises_with_mu_and_falls_with_delta():
    values = [gdp_epsilon(mu, DELTA) for mu in np.linspace(0, 8, 40)]
    assert values == sorted(values)
    assert values[0] == 0.0
    assert gdp_epsilon(1.0, 1e-3) < gdp_epsilon(1.0, 1e-6) < gdp_epsilon(1.0, 0.0) == math.inf
    assert gdp_epsilon(0.0, 0.0) == 0.0


# -- mechanisms whose μ is known ------------------------------------------------------------------------------------


def by_coins(mu, n, rng, **asked):
    member = rng.random(n) < 0.5
    return mu_lower_bound(rng.normal(size=n) + mu * member, member, **asked)


def by_pairs(mu, n, rng, relation="replace-one"):
    """One coin a pair decides between N(0, 1) and N(μ, 1), which the two scores of the pair tell with a sign each."""
    first = rng.random(n) < 0.5
    heard = rng.normal(size=n) + mu * first - mu / 2
    scores, member = np.concatenate([heard, -heard]), np.concatenate([first, ~first])
    return mu_lower_bound(
        scores, member, design="matched-pairs", relation=relation, pair=np.tile(np.arange(n), 2)
    )


def by_fixed_guesses(mu, n, rng):
    return by_coins(mu, n, rng, guesses=n // 3)


@pytest.mark.thorough
@pytest.mark.parametrize("mu", [0.0, 0.5, 1.5])
@pytest.mark.parametrize("path", [by_coins, by_pairs, by_fixed_guesses], ids=lambda p: p.__name__)
def test_a_gaussian_mechanism_is_seldom_charged_too_much(path, mu):
    rng = np.random.default_rng([int(10 * mu), len(path.__name__)])
    bounds = np.array([path(mu, 120, rng) for _ in range(RUNS)])
    assert (bounds > mu).sum() <= MOST_ABOVE == 73
    if mu == 1.5:
        assert np.median(bounds) > 0.25 * mu, "a bound that is always nothing would hold as well"


def test_a_separation_of_three_among_a_thousand_coins_shows_epsilon_above_5():
    for seed in range(10):
        rng = np.random.default_rng(seed)
        member = rng.random(1000) < 0.5
        scores = rng.normal(size=1000) + 3.0 * member
        shown = gdp_epsilon(mu_lower_bound(scores, member), DELTA)
        assert 5 < shown < gdp_epsilon(3.0, DELTA)
        assert shown > epsilon_lower_bound(scores, member, DELTA)


def test_what_pairs_show_of_added_records_is_half_of_what_they_show_of_replaced_ones():
    replaced, added = (
        by_pairs(2.0, 300, np.random.default_rng(5), relation)
        for relation in ("replace-one", "add-or-remove")
    )
    assert 0 < added == replaced / 2


def test_equal_scores_show_nothing_and_the_order_of_candidates_does_not_matter():
    member = np.arange(200) % 2 == 0
    assert mu_lower_bound(np.zeros(200), member) == 0.0
    rng = np.random.default_rng(0)
    scores, order = rng.normal(size=200) + 3 * member, rng.permutation(200)
    assert mu_lower_bound(scores, member) == mu_lower_bound(scores[order], member[order]) > 0
    assert mu_lower_bound([0.3, 0.1], [True, False]) == 0.0


# -- p-values -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("design", ["coin-flips", "matched-pairs"])
def test_a_claim_has_a_p_value_below_the_level_exactly_where_the_bound_lies_above_it(design):
    """Both tests, on scores of all strengths: p <= 1 - confidence if and only if the bound exceeds the claim."""
    checked = 0
    for seed in range(12):
        rng = np.random.default_rng(seed)
        member = rng.random(150) < 0.5
        scores = rng.normal(size=150) + (seed / 4) * member
        coin = {"design": design}
        if design == "matched-pairs":
            scores, member = np.concatenate([scores, -scores]), np.concatenate([member, ~member])
            coin["pair"] = np.tile(np.arange(150), 2)
        for claim in (0.1, 0.4, 1.0, 2.5):
            for level in (0.05, 1e-3):
                bound = epsilon_lower_bound(scores, member, DELTA, 1 - level, **coin)
                p = epsilon_p_value(scores, member, claim, DELTA, **coin)
                assert (p <= level) == (bound > claim)
                mu = mu_lower_bound(scores, member, 1 - level, **coin)
                if abs(mu - claim) > 1e-4:
                    p_mu = mu_p_value(scores, member, claim, **coin)
                    assert (p_mu <= level) == (mu > claim)
                    checked += p_mu <= level
    assert checked > 5


def test_the_p_value_of_mu_is_the_largest_probability_of_the_linear_programme():
    member = np.ones(9, dtype=bool)
    scores = np.arange(9.0)
    found = mu_p_value(scores, member, 0.4, guesses=1)
    assert found == pytest.approx(min(1.0, most_likely_success(1, 1, 9, 0.4)), abs=2e-3)


@pytest.mark.thorough
@pytest.mark.parametrize("mu", [0.0, 0.8])
def test_p_values_of_claims_that_hold_are_seldom_small(mu):
    rng = np.random.default_rng(8)
    small = [0, 0]
    for _ in range(500):
        member = rng.random(100) < 0.5
        scores = rng.normal(size=100) + mu * member
        small[0] += mu_p_value(scores, member, mu) <= 0.05
        small[1] += epsilon_p_value(scores, member, gdp_epsilon(mu, DELTA), DELTA) <= 0.05
    assert max(small) <= binom.ppf(0.999, 500, 0.05)


# -- bad input ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("call", "field"),
    [
        (lambda: one_run_mu(11, 10, 20), "correct, guesses, canaries"),
        (lambda: one_run_mu(5, 10, 20, 1.0), "confidence"),
        (lambda: gdp_epsilon(-1.0, DELTA), "mu"),
        (lambda: gdp_epsilon(math.inf, DELTA), "mu"),
        (lambda: gdp_epsilon(1.0, 1.0), "delta"),
        (lambda: mu_p_value([0.1, 0.2], [True, False], -1.0), "mu"),
        (lambda: epsilon_p_value([0.1, 0.2], [True, False], math.inf, DELTA), "epsilon"),
        (lambda: epsilon_p_value([0.1, 0.2], [True, False], 1.0, 2.0), "delta"),
        (lambda: mu_lower_bound([0.1, math.nan], [True, False]), "scores"),
        (lambda: mu_lower_bound([0.1, 0.2], [True, False], design="independent-runs"), "design"),
        (lambda: mu_lower_bound([0.1, 0.2], [True, False], relation="replace-one"), "relation"),
        (lambda: mu_lower_bound([0.1, 0.2], [True, False], guesses=3), "guesses"),
        (lambda: mu_lower_bound([0.1, 0.2], [True, False], pair=[0, 0]), "pair"),
    ],
)
def test_bad_input_is_one_error(call, field):
    refused(call, field, kind=UsageError)
