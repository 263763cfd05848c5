"""AUC, TPR at FPR, balanced accuracy and pair choice against brute force, scikit-learn and laws."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn import metrics as sklearn_metrics

from fdaudit.errors import UsageError
from fdaudit.metrics import (
    auc,
    auc_figure,
    balanced_accuracy,
    balanced_accuracy_figure,
    pair_accuracy,
    pair_accuracy_figure,
    roc_curve,
    score_membership,
    tpr_at_fpr,
    tpr_at_fpr_figure,
)


@st.composite
def _scored(draw: st.DrawFn) -> tuple[np.ndarray, np.ndarray]:
    """Scores with many ties, members and non-members both there."""
    n = draw(st.integers(2, 40))
    scores = draw(st.lists(st.integers(-4, 4), min_size=n, max_size=n))
    member = draw(st.lists(st.booleans(), min_size=n, max_size=n).filter(lambda m: any(m) and not all(m)))
    return np.array(scores, dtype=float), np.array(member)


@settings(max_examples=100, deadline=None)
@given(_scored())
def test_auc_against_brute_force_and_scikit_learn(case: tuple[np.ndarray, np.ndarray]) -> None:
    scores, member = case
    a, b = scores[member][:, None], scores[~member][None]
    assert auc(scores, member) == pytest.approx(((a > b) + 0.5 * (a == b)).mean())
    assert auc(scores, member) == pytest.approx(sklearn_metrics.roc_auc_score(member, scores))


@settings(max_examples=50, deadline=None)
@given(_scored())
def test_increasing_maps_change_no_auc(case: tuple[np.ndarray, np.ndarray]) -> None:
    scores, member = case
    mapped = np.exp(scores / 2) - 7
    assert auc(mapped, member) == auc(scores, member)
    assert auc(-scores, member) == pytest.approx(1 - auc(scores, member))


@settings(max_examples=50, deadline=None)
@given(_scored())
def test_tpr_rises_with_fpr_and_meets_its_definition(case: tuple[np.ndarray, np.ndarray]) -> None:
    scores, member = case
    others = int((~member).sum())
    rates = [k / others for k in range(1, others + 1)]
    tprs = [tpr_at_fpr(scores, member, fpr) for fpr in rates]
    assert tprs == sorted(tprs)
    assert tprs[-1] == 1
    for fpr, tpr in zip(rates, tprs, strict=True):
        # Brute force: the best of every threshold "score > t" that keeps to the rate.
        allowed = [
            (scores[member] > t).mean()
            for t in [-np.inf, *scores]
            if (scores[~member] > t).mean() <= fpr + 1e-12
        ]
        assert tpr == pytest.approx(max(allowed))


def test_infinite_scores_count_and_ties_are_no_detections() -> None:
    member = np.repeat([True, False], 100)
    assert tpr_at_fpr(np.ones(200), member, 0.5) == 0
    assert auc(np.ones(200), member) == 0.5
    scores = np.concatenate([np.ones(100), np.zeros(98), np.ones(2)])
    assert tpr_at_fpr(scores, member, 0.01) == 0
    assert tpr_at_fpr(scores, member, 0.02) == 1
    scores, member = [np.inf, 3, -np.inf, -np.inf], [True, False, True, False]
    assert auc(scores, member) == pytest.approx((1 + 1 + 0 + 0.5) / 4)
    assert balanced_accuracy(scores, member, np.random.default_rng(0)) in (0, 0.25, 0.5, 0.75, 1)


def test_an_fpr_out_of_reach_is_refused() -> None:
    scores, member = np.arange(200.0), np.arange(200) >= 100
    assert tpr_at_fpr(scores, member, 0.01) == 1
    with pytest.raises(UsageError, match="100 non-members"):
        tpr_at_fpr(scores, member, 0.009)
    figure = tpr_at_fpr_figure(scores, member, 0.001)
    assert figure.value is None
    assert "1000 or more" in figure.unavailable
    for bad in (0, -0.1, 1.1, float("nan")):
        with pytest.raises(UsageError, match="not in"):
            tpr_at_fpr(scores, member, bad)
        with pytest.raises(UsageError, match="not in"):
            tpr_at_fpr_figure(scores, member, bad)


@pytest.mark.parametrize(("fpr", "others"), [(0.1, 10), (0.01, 100), (0.001, 1000), (0.29, 100)])
def test_rounding_of_the_rate_costs_no_negative(fpr: float, others: int) -> None:
    allowed = round(fpr * others)
    # The one member loses to exactly `allowed` non-members; 0.29 * 100 is a hair under 29 in floating point.
    scores = np.concatenate([[others - allowed - 0.5], np.arange(others)])
    member = np.arange(others + 1) == 0
    assert tpr_at_fpr(scores, member, fpr) == 1


@pytest.mark.parametrize("make", [list, torch.tensor, np.asarray])
def test_tensors_arrays_and_lists_are_accepted(make: object) -> None:
    assert auc(make([0.1, 0.9, 0.5]), make([False, True, False])) == 1  # type: ignore[operator]
    assert auc(make([0.1, 0.9, 0.5]), make([0, 1, 0])) == 1  # type: ignore[operator]


@pytest.mark.parametrize(
    ("scores", "member", "problem"),
    [
        ([0.0, np.nan], [True, False], "NaN"),
        ([0.0, 1.0], [True, True], "no non-members"),
        ([0.0, 1.0], [False, False], "no members"),
        ([0.0, 1.0], [True], "does not match 2 scores"),
        ([0.0, 1.0], [2, 0], "other than true and false"),
        ([[0.0], [1.0]], [True, False], "not a non-empty vector"),
    ],
)
def test_unfit_scores_are_refused(scores: list, member: list, problem: str) -> None:
    with pytest.raises(UsageError, match=problem):
        auc(scores, member)


@settings(max_examples=50, deadline=None)
@given(_scored())
def test_roc_curve_against_scikit_learn(case: tuple[np.ndarray, np.ndarray]) -> None:
    scores, member = case
    curve = roc_curve(scores, member)
    fpr, tpr, threshold = sklearn_metrics.roc_curve(member, scores, drop_intermediate=False)
    assert curve.fpr == pytest.approx(fpr)
    assert curve.tpr == pytest.approx(tpr)
    assert np.array_equal(curve.threshold, threshold)
    assert np.trapezoid(curve.tpr, curve.fpr) == pytest.approx(auc(scores, member))
    assert curve.resolution == 1 / (~member).sum()


def _pairs(rng: np.random.Generator, n: int, shift: float, shared: float = 0.0) -> tuple:
    """n pairs: member scores N(shift, 1), others N(0, 1), plus what the two of a pair share."""
    common = shared * rng.normal(size=n)
    scores = np.concatenate([shift + common + rng.normal(size=n), common + rng.normal(size=n)])
    order = rng.permutation(2 * n)
    return scores[order], (np.arange(2 * n) < n)[order], np.tile(np.arange(n), 2)[order]


def test_balanced_accuracy_of_noise_is_a_half_and_of_a_gap_is_one() -> None:
    rng = np.random.default_rng(0)
    noise = [balanced_accuracy(*_pairs(rng, 20, 0)[:2], rng) for _ in range(300)]
    # 300 runs of 40 decisions: standard error 0.005; a threshold fitted in sample would show about 0.6.
    assert np.mean(noise) == pytest.approx(0.5, abs=0.02)
    scores, member, pair = _pairs(rng, 20, 100)
    assert balanced_accuracy(scores, member, rng) == 1
    assert balanced_accuracy(scores, member, rng, pair=pair) == 1


@pytest.mark.thorough
def test_balanced_accuracy_nears_the_best_threshold() -> None:
    rng = np.random.default_rng(1)
    scores, member, pair = _pairs(rng, 4000, 2)
    # Two unit normals 2 apart: the best threshold gets Φ(1) of each right.
    assert balanced_accuracy(scores, member, rng, pair=pair) == pytest.approx(0.8413, abs=0.015)
    figure = balanced_accuracy_figure(scores, member, rng)
    assert figure.low < 0.8413 < figure.high


def test_pair_accuracy_tells_apart_within_pairs_as_defined() -> None:
    scores, member, pair = [3, 1, 5, 5, 0, 2], [1, 0, 1, 0, 1, 0], [7, 7, 8, 8, 2, 2]
    assert pair_accuracy(scores, member, pair) == pytest.approx((1 + 0.5 + 0) / 3)
    figure = pair_accuracy_figure(scores, member, pair)
    assert figure.low < 0.5 < figure.high
    assert "1 ties" in figure.note
    scores, member, pair = _pairs(np.random.default_rng(2), 500, 2, shared=10)
    assert pair_accuracy(scores, member, pair) > 0.85
    assert auc(scores, member) < 0.65


@pytest.mark.parametrize("pair", [[0, 0, 0, 1], [0, 1, 0, 1], [0, 1, 2, 3]])
def test_pairs_that_are_none_are_refused(pair: list[int]) -> None:
    with pytest.raises(UsageError, match="pair"):
        pair_accuracy([1, 2, 3, 4], [True, False, True, False], pair)


@pytest.mark.thorough
@pytest.mark.parametrize("paired", [True, False])
def test_auc_interval_covers_about_nominally(paired: bool) -> None:
    rng, runs, hits = np.random.default_rng(7), 200, 0
    for _ in range(runs):
        # AUC of unit normals 1 apart is Φ(1 / √2); shared parts widen both alike.
        scores, member, pair = _pairs(rng, 40, 1)
        figure = auc_figure(scores, member, rng, pair=pair if paired else None, confidence=0.9)
        hits += figure.low <= 0.7602 <= figure.high
    # Four standard errors of 200 runs around 0.9 are 0.085.
    assert 0.82 <= hits / runs <= 0.98


def test_resampling_pairs_uses_what_pairs_share() -> None:
    scores, member, pair = _pairs(np.random.default_rng(3), 200, 1, shared=3)
    with_pairs, without = (auc_figure(scores, member, np.random.default_rng(0), pair=p) for p in (pair, None))
    assert with_pairs.value == without.value
    assert (with_pairs.n, without.n) == (200, 400)
    # The shared part cancels within a pair, so resampling whole pairs shows less spread.
    assert with_pairs.high - with_pairs.low < 0.6 * (without.high - without.low)


@pytest.mark.parametrize("paired", [True, False])
def test_perfect_separation_is_not_certainty(paired: bool) -> None:
    scores, member, pair = _pairs(np.random.default_rng(0), 40, 100)
    figure = auc_figure(scores, member, np.random.default_rng(0), pair=pair if paired else None)
    assert (figure.value, figure.high) == (1, 1)
    # 40 successes of 40: the exact limit is 0.025^(1/40).
    assert figure.low == pytest.approx(0.025 ** (1 / 40))
    worst = auc_figure(-scores, member, np.random.default_rng(0))
    assert (worst.value, worst.low) == (0, 0)
    assert worst.high == pytest.approx(1 - 0.025 ** (1 / 40))


def test_the_whole_score() -> None:
    scores, member, pair = _pairs(np.random.default_rng(4), 50, 1)
    score = score_membership(scores, member, pair=pair, generator=np.random.default_rng(0))
    assert list(score.figures) == [
        "auc",
        "balanced_accuracy",
        "pair_accuracy",
        "tpr_at_10fpr",
        "tpr_at_1fpr",
        "tpr_at_0.1fpr",
    ]
    assert score.figures["auc"].value == auc(scores, member)
    assert score.figures["tpr_at_10fpr"].value == tpr_at_fpr(scores, member, 0.1)
    assert score.figures["tpr_at_1fpr"].value is None
    for name in ("auc", "balanced_accuracy", "pair_accuracy", "tpr_at_10fpr"):
        figure = score.figures[name]
        assert figure.low <= figure.value <= figure.high
    again = score_membership(scores, member, pair=pair, generator=np.random.default_rng(0))
    assert again.figures == score.figures
    alone = score_membership(scores, member, generator=np.random.default_rng(0))
    assert "pair_accuracy" not in alone.figures


def test_two_candidates_have_no_balanced_accuracy_and_say_so() -> None:
    score = score_membership([1.0, 0.0], [True, False], generator=np.random.default_rng(0))
    assert "two halves" in score.figures["balanced_accuracy"].unavailable
    assert score.figures["auc"].value == 1
