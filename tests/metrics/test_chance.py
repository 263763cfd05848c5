"""P-values of membership scores: against a count of all coins, and never too small where nothing is known."""

from __future__ import annotations

import math
from itertools import combinations, product

import numpy as np
import pytest
import scipy.stats
from hypothesis import given, settings
from hypothesis import strategies as st

from fdaudit.errors import UsageError
from fdaudit.metrics import chance
from fdaudit.metrics.chance import auc_p_value, tpr_p_value
from fdaudit.metrics.ranking import auc, doubled_ranks


def by_all_coins(scores, member, pair):
    """The share of all throws of the pairs' coins with an AUC as high as the one found."""
    scores, member, pair = np.asarray(scores, float), np.asarray(member), np.asarray(pair)
    found, hits, throws = auc(scores, member), 0, 0
    for coins in product([False, True], repeat=int(pair.max()) + 1):
        swapped = member ^ np.asarray(coins)[pair]
        hits += auc(scores, swapped) >= found - 1e-12
        throws += 1
    return hits / throws


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.integers(-3, 3), st.integers(-3, 3)), min_size=1, max_size=7))
def test_it_is_the_share_of_coins_that_do_as_well_ties_included(rows):
    scores = [s for row in rows for s in row]
    member = np.array([True, False] * len(rows))
    pair = np.arange(len(rows)).repeat(2)
    assert auc_p_value(scores, member, pair=pair) == pytest.approx(
        by_all_coins(scores, member, pair), abs=1e-12
    )


@pytest.mark.thorough
def test_scores_that_know_nothing_are_rarely_called_significant():
    generator = np.random.default_rng(0)
    pair = np.arange(40).repeat(2)
    found = []
    for _ in range(2000):
        coins = generator.integers(2, size=40).astype(bool)
        member = np.stack([coins, ~coins], 1).ravel()
        found.append(auc_p_value(generator.normal(size=80), member, pair=pair))
    for level in (0.5, 0.1, 0.02):
        assert np.mean(np.asarray(found) <= level) <= level + 4 * np.sqrt(level * (1 - level) / 2000)
    assert np.mean(np.asarray(found) <= 0.1) >= 0.07, "nor is it needlessly large"


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 2**32 - 1), st.floats(0, 1.5))
def test_the_bound_for_many_pairs_lies_above_the_exact_value(seed, shift):
    generator = np.random.default_rng(seed)
    steps = generator.integers(1, 60, size=50)
    reached = int(shift * np.sqrt((steps**2).sum()) * 2)
    exact, bound = chance._exact(steps, reached), chance._chernoff(steps, reached)
    assert exact <= bound * (1 + 1e-9)
    assert bound <= max(60 * exact, 1e-9)


def test_many_pairs_are_bounded(monkeypatch):
    generator = np.random.default_rng(1)
    scores = generator.normal(size=200) + np.tile([0.9, 0.0], 100)
    member, pair = np.tile([True, False], 100), np.arange(100).repeat(2)
    exact = auc_p_value(scores, member, pair=pair)
    monkeypatch.setattr(chance, "_EXACT_PAIRS", 10)
    assert exact <= auc_p_value(scores, member, pair=pair) <= 30 * exact
    assert auc_p_value(-scores, member, pair=pair) == 1.0


def test_without_pairs_it_is_the_share_of_choices_and_no_pairs_are_refused() -> None:
    scores, members = np.array([5.0, 4.0, 3.5, 2.0, 1.0, 0.5, 0.2]), 3
    member = np.array([True, True, False, True, False, False, False])
    found = auc(scores, member)
    every = list(combinations(range(7), members))
    hits = sum(auc(scores, np.isin(np.arange(7), c)) >= found - 1e-12 for c in every)
    assert auc_p_value(scores, member) == pytest.approx(hits / len(every))
    assert auc_p_value(np.ones(7), member) == 1.0
    with pytest.raises(UsageError, match="pair"):
        auc_p_value([1.0, 2.0], [True, False], pair=[0, 1])


def test_the_tail_of_a_true_positive_rate_is_that_of_a_random_order():
    generator = np.random.default_rng(2)
    members, others, wrong, found = 6, 5, 1, 4
    hits = 0
    for _ in range(20_000):
        order = generator.permutation(np.array([True] * members + [False] * others))
        threshold = np.flatnonzero(~order)[wrong]
        hits += order[:threshold].sum() >= found
    assert tpr_p_value(found, members, wrong, others) == pytest.approx(hits / 20_000, abs=0.012)
    assert tpr_p_value(0, members, 0, others) == 1.0


@given(st.integers(1, 300), st.integers(1, 300), st.floats(0, 1), st.floats(0, 1))
def test_the_tail_of_a_true_positive_rate_is_hypergeometric(members, others, detected, passed):
    found, wrong = round(detected * members), round(passed * others)
    expected = scipy.stats.hypergeom.cdf(wrong, members + others, others, found + wrong)
    assert tpr_p_value(found, members, wrong, others) == pytest.approx(expected, rel=1e-12)


@given(st.lists(st.integers(0, 9), min_size=1, max_size=40))
def test_ties_share_their_mean_rank(values):
    doubled = doubled_ranks(np.asarray([*values, math.inf], float))
    assert doubled.tolist() == (2 * scipy.stats.rankdata([*values, math.inf])).tolist()
