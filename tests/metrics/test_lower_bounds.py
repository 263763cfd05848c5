"""ε from below: against an independent computation of the theorem, and on mechanisms whose ε is known."""

from __future__ import annotations

import math
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import beta, binom

from fdaudit.errors import UsageError
from fdaudit.metrics import epsilon_lower_bound, guesses_needed, most_contradictable, one_run_epsilon
from fdaudit.metrics.claims.lower_bounds import _p_value

from ..helpers.refusals import refused

SIMULATIONS = 1000
MOST_ABOVE = int(binom.ppf(0.999, SIMULATIONS, 0.05))
DELTA = 1e-5


def reference(correct: int, guesses: int, canaries: int, epsilon: float, delta: float) -> float:
    """Theorem 5.2 term by term, in plain Python."""
    q = math.exp(epsilon) / (1 + math.exp(epsilon))
    mass = [math.comb(guesses, k) * q**k * (1 - q) ** (guesses - k) for k in range(guesses + 1)]

    def tail(a: int) -> float:
        return math.fsum(mass[max(a, 0) :])

    steps = [(tail(correct - i) - tail(correct)) / i for i in range(1, canaries + 1)]
    return min(1.0, tail(correct) + 2 * canaries * delta * max(steps))


# -- the theorem ----------------------------------------------------------------------------------------------------


@settings(max_examples=80, deadline=None)
@given(data=st.data())
def test_the_p_value_is_the_theorems(data):
    guesses = data.draw(st.integers(1, 60))
    canaries = guesses + data.draw(st.integers(0, 40))
    correct = data.draw(st.integers(1, guesses))
    epsilon = data.draw(st.floats(0, 6))
    delta = data.draw(st.sampled_from([0.0, 1e-6, 1e-4, 1 / (2 * canaries)]))
    found = _p_value(correct, guesses, canaries, epsilon, delta)
    assert found == pytest.approx(reference(correct, guesses, canaries, epsilon, delta), rel=1e-9, abs=1e-12)


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_where_delta_is_large_the_p_value_is_no_smaller_and_never_falls(data):
    guesses = data.draw(st.integers(1, 40))
    canaries = guesses + data.draw(st.integers(0, 40))
    correct = data.draw(st.integers(1, guesses))
    delta = data.draw(st.floats(0, 0.2))
    values = [_p_value(correct, guesses, canaries, e, delta) for e in np.linspace(0, 6, 30)]
    assert all(a <= b + 1e-12 for a, b in pairwise(values))
    for epsilon, value in zip(np.linspace(0, 6, 30), values, strict=True):
        assert value >= reference(correct, guesses, canaries, epsilon, delta) - 1e-12


@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_the_bound_is_where_the_reference_passes_the_level(data):
    guesses = data.draw(st.integers(2, 60))
    canaries = guesses + data.draw(st.integers(0, 40))
    correct = data.draw(st.integers(1, guesses))
    delta = data.draw(st.sampled_from([0.0, 1e-6, 1e-4]))
    bound = one_run_epsilon(correct, guesses, canaries, delta)
    above = reference(correct, guesses, canaries, bound + 1e-6, delta)
    assert above > 0.05
    if bound > 0:
        assert reference(correct, guesses, canaries, bound, delta) <= 0.05
        for epsilon in np.linspace(0, bound, 7):
            assert reference(correct, guesses, canaries, epsilon, delta) <= 0.05 + 1e-12


def test_without_delta_it_is_clopper_and_pearsons_limit():
    for correct, guesses in ((94, 100), (100, 100), (700, 1000)):
        low = beta.ppf(0.05, correct, guesses - correct + 1)
        found = one_run_epsilon(correct, guesses, 2000, 0.0)
        assert found == pytest.approx(math.log(low / (1 - low)), abs=1e-6)


def test_more_right_guesses_show_more_and_delta_and_confidence_cost():
    bounds = [one_run_epsilon(v, 100, 500, DELTA) for v in range(101)]
    assert bounds == sorted(bounds)
    assert bounds[50] == 0.0 < bounds[70] < bounds[100]
    assert one_run_epsilon(95, 100, 500, 1e-4) < one_run_epsilon(95, 100, 500, 0.0)
    assert one_run_epsilon(95, 100, 1000, 1e-4) < one_run_epsilon(95, 100, 100, 1e-4)
    assert one_run_epsilon(95, 100, 500, DELTA, 0.99) < one_run_epsilon(95, 100, 500, DELTA)


def test_what_a_perfect_attack_could_show():
    """ε = 8 needs some 9,000 perfect guesses; 1,000 reach 5.8."""
    assert most_contradictable(1000, 0.0) == pytest.approx(5.81, abs=0.01)
    assert guesses_needed(8, 0.0) == math.ceil(math.log(0.05) / math.log(1 / (1 + math.exp(-8))))
    assert 8900 < guesses_needed(8, 0.0) < 9000
    for claim in (0.0, 0.5, 2.0, 6.0):
        needed = guesses_needed(claim, DELTA)
        assert most_contradictable(needed, DELTA) >= claim - 1e-6
        assert most_contradictable(needed - 1, DELTA) <= claim if needed > 1 else True
    assert guesses_needed(8, DELTA) > guesses_needed(8, 0.0)
    assert guesses_needed(8, 0.01) is None  # δ = 0.01 lets a mechanism publish one record in a hundred
    assert guesses_needed(60, 0.0) is None


# -- mechanisms whose ε is known ------------------------------------------------------------------------------------


def answered(coins, epsilon, delta, rng):
    """Randomised response to each coin, with a loudness that tells nothing; with probability δ the coin itself."""
    truthful = rng.random(len(coins)) < 1 / (1 + math.exp(-epsilon))
    heard = np.where(coins == truthful, 1.0, -1.0) * rng.random(len(coins))
    given_away = rng.random(len(coins)) < delta
    return np.where(given_away, np.where(coins, 2.0, -2.0), heard)


def by_coins(epsilon, delta, rng):
    member = rng.random(200) < 0.5
    return epsilon_lower_bound(answered(member, epsilon, delta, rng), member, delta)


def by_coins_few_tell(epsilon, delta, rng):
    """Most scores are noise, none is louder than those that tell, and many are equal."""
    member = rng.random(200) < 0.5
    scores = answered(member, epsilon, delta, rng).round(1)
    scores[50:] = (rng.random(150) - 0.5).round(1)
    return epsilon_lower_bound(scores, member, delta)


def by_fixed_guesses(epsilon, delta, rng):
    member = rng.random(200) < 0.5
    return epsilon_lower_bound(answered(member, epsilon, delta, rng), member, delta, guesses=40)


def by_pairs(epsilon, delta, rng, relation="replace-one"):
    first = rng.random(200) < 0.5
    heard = answered(first, epsilon, delta, rng)
    scores, member = np.concatenate([heard, -heard]), np.concatenate([first, ~first])
    pair, order = np.tile(np.arange(200), 2), rng.permutation(400)
    return epsilon_lower_bound(
        scores[order], member[order], delta, design="matched-pairs", relation=relation, pair=pair[order]
    )


def by_runs(epsilon, delta, rng):
    member = rng.random(400) < 0.5
    return epsilon_lower_bound(
        answered(member, epsilon, delta, rng), member, delta, design="independent-runs"
    )


@pytest.mark.thorough
@pytest.mark.parametrize("delta", [0.0, 5e-4])
@pytest.mark.parametrize("epsilon", [0, 1, 4])
@pytest.mark.parametrize(
    "path", [by_coins, by_coins_few_tell, by_fixed_guesses, by_pairs, by_runs], ids=lambda p: p.__name__
)
def test_randomised_response_is_seldom_charged_too_much(path, epsilon, delta):
    rng = np.random.default_rng([epsilon, int(1e4 * delta), len(path.__name__)])
    count = SIMULATIONS if path is not by_runs else 300
    bounds = np.array([path(epsilon, delta, rng) for _ in range(count)])
    assert (bounds > epsilon).sum() <= (MOST_ABOVE if count == SIMULATIONS else binom.ppf(0.999, count, 0.05))
    assert MOST_ABOVE == 73
    if epsilon and not delta and path is not by_coins_few_tell:
        assert np.median(bounds) > 0.25 * epsilon, "a bound that is always nothing would hold as well"


@pytest.mark.parametrize("epsilon", [1, 4])
def test_pairs_show_half_as_much_of_records_added_or_removed(epsilon):
    """Replacing costs at most twice what adding or removing does, so half is what the pairs show of the latter."""
    for seed in range(5):
        replaced, removed = (
            by_pairs(epsilon, 0.0, np.random.default_rng(seed), relation)
            for relation in ("replace-one", "add-or-remove")
        )
        assert removed == pytest.approx(replaced / 2, abs=1e-6)
        with_delta = by_pairs(epsilon, 1e-3, np.random.default_rng(seed), "add-or-remove")
        assert with_delta <= by_pairs(epsilon, 1e-3, np.random.default_rng(seed)) / 2 + 1e-6


def test_the_largest_of_a_grid_without_correction_would_fail_where_this_does_not():
    """What the correction is for: the best of all numbers of guesses, uncorrected, is positive far too often."""
    rng, naive, corrected = np.random.default_rng(3), 0, 0
    for _ in range(200):
        member, scores = rng.random(200) < 0.5, rng.random(200)
        ranked = member[np.argsort(-scores)].cumsum()
        naive += any(one_run_epsilon(int(ranked[r - 1]), r, 200, 0.0) > 0 for r in range(5, 201, 5))
        corrected += epsilon_lower_bound(scores, member, 0.0) > 0
    assert naive > 0.15 * 200
    assert corrected <= binom.ppf(0.999, 200, 0.05)


# -- scores ---------------------------------------------------------------------------------------------------------


@settings(max_examples=50, deadline=None)
@given(
    scores=st.lists(st.sampled_from([-math.inf, -1.0, 0.0, 0.5, math.inf]), min_size=2, max_size=40),
    seed=st.integers(0, 2**32),
)
def test_neither_order_nor_scale_matters_and_ties_help_nobody(scores, seed):
    rng = np.random.default_rng(seed)
    scores = np.array(scores)
    member = rng.random(len(scores)) < 0.5
    order = rng.permutation(len(scores))
    bound = epsilon_lower_bound(scores, member, DELTA)
    assert bound == epsilon_lower_bound(scores[order], member[order], DELTA)
    assert bound == epsilon_lower_bound(np.arctan(scores) * 3 + 1, member, DELTA)
    untied = scores.clip(-5, 5) + 1e-6 * rng.random(len(scores))
    assert bound <= epsilon_lower_bound(untied, member, DELTA)


def test_scores_that_are_all_equal_show_nothing_whatever_the_order():
    member = np.arange(100) < 50
    assert epsilon_lower_bound(np.zeros(100), member, DELTA) == 0.0
    pair = np.tile(np.arange(50), 2)
    assert (
        epsilon_lower_bound(
            np.zeros(100), member, DELTA, design="matched-pairs", relation="replace-one", pair=pair
        )
        == 0
    )


def test_infinite_scores_are_certain_and_one_kind_of_record_is_a_toss() -> None:
    member = np.arange(64) < 32
    scores = np.where(member, math.inf, -math.inf)
    pair = np.tile(np.arange(32), 2)
    found = epsilon_lower_bound(
        scores, member, 0.0, design="matched-pairs", relation="replace-one", pair=pair
    )
    assert found == pytest.approx(most_contradictable(32, 0.0, 1 - 0.05 / 6), abs=1e-6)
    assert epsilon_lower_bound([0.1, 0.2, 0.3], [True] * 3, 0.0) == 0.0


# -- bad input ------------------------------------------------------------------------------------------------------

SCORES, MEMBER = [0.1, 0.4, 0.2, 0.9], [False, True, False, True]


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"scores": [0.1, math.nan, 0.2, 0.9]}, "scores"),
        ({"scores": [[0.1, 0.4], [0.2, 0.9]]}, "scores"),
        ({"scores": []}, "scores"),
        ({"member": [True, False]}, "member"),
        ({"member": [0, 1, 2, 1]}, "member"),
        ({"delta": -1e-9}, "delta"),
        ({"delta": 1.0}, "delta"),
        ({"delta": math.nan}, "delta"),
        ({"confidence": 1.0}, "confidence"),
        ({"design": "random"}, "design"),
        ({"relation": "swap"}, "relation"),
        ({"relation": "replace-one"}, "relation"),
        ({"pair": [0, 0, 1, 1]}, "pair"),
        ({"design": "matched-pairs"}, "pair"),
        ({"design": "matched-pairs", "pair": [0, 1, 0, 1]}, "pair"),
        ({"guesses": 0}, "guesses"),
        ({"guesses": 5}, "guesses"),
        ({"design": "matched-pairs", "pair": [0, 0, 1, 1], "guesses": 3}, "guesses"),
        ({"design": "independent-runs", "guesses": 2}, "guesses"),
        ({"design": "independent-runs", "member": [True, True, True, False]}, "member"),
    ],
)
def test_bad_input_is_one_error(changes, field):
    given_ = {"scores": SCORES, "member": MEMBER, "delta": DELTA, **changes}
    refused(lambda: epsilon_lower_bound(**given_), field, kind=UsageError)


@pytest.mark.parametrize(
    ("call", "field"),
    [
        (lambda: one_run_epsilon(11, 10, 20, DELTA), "correct, guesses, canaries"),
        (lambda: one_run_epsilon(5, 10, 9, DELTA), "correct, guesses, canaries"),
        (lambda: one_run_epsilon(-1, 10, 20, DELTA), "correct, guesses, canaries"),
        (lambda: one_run_epsilon(0, 0, 20, DELTA), "correct, guesses, canaries"),
        (lambda: one_run_epsilon(5, 10, 20, 1.5), "delta"),
        (lambda: one_run_epsilon(5, 10, 20, DELTA, 0.0), "confidence"),
        (lambda: guesses_needed(-1, DELTA), "epsilon"),
        (lambda: guesses_needed(math.inf, DELTA), "epsilon"),
        (lambda: guesses_needed(1, 2), "delta"),
    ],
)
def test_numbers_out_of_range_are_one_error(call, field):
    refused(call, field, kind=UsageError)
