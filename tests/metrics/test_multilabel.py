"""mAUC and macro-F1 of several labels a record: against scikit-learn, by hand, and where they are refused."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from scipy.stats import norm
from sklearn.metrics import f1_score, roc_auc_score

from fdaudit.errors import UsageError
from fdaudit.metrics import mean_auc, mean_auc_figure, multilabel_macro_f1


def drawn(seed, n=40, classes=5, unknown=0.0):
    rng = np.random.default_rng(seed)
    truth = rng.integers(0, 2, (n, classes))
    # Scores on a coarse grid, so that there are ties.
    scores = np.round(truth + rng.normal(0, 1.5, (n, classes)), 0)
    return scores, np.where(rng.random((n, classes)) < unknown, -1, truth)


@settings(max_examples=50, deadline=None)
@given(seed=st.integers(0, 2**32), n=st.integers(4, 60))
def test_mean_auc_and_macro_f1_equal_scikit_learns_where_everything_is_known(seed, n):
    scores, truth = drawn(seed, n)
    assume(((truth == 1).any(0) & (truth == 0).any(0)).all())
    found = mean_auc(scores, truth)
    assert found.left_out == ()
    assert found.value == pytest.approx(roc_auc_score(truth, scores, average="macro"), abs=1e-12)
    guess = scores > 0
    assert multilabel_macro_f1(guess, truth) == pytest.approx(
        f1_score(truth, guess, average="macro"), abs=1e-12
    )


@settings(max_examples=50, deadline=None)
@given(seed=st.integers(0, 2**32))
def test_unknown_labels_take_no_part_and_one_sided_classes_are_counted_as_left_out(seed):
    scores, truth = drawn(seed, unknown=0.4)
    truth[:, 1] = np.where(truth[:, 1] == 0, -1, truth[:, 1])  # no negative is known
    truth[:, 3] = -1  # nothing is known
    reference = {}
    for c in (0, 2, 4):
        known = truth[:, c] >= 0
        reference[c] = roc_auc_score(truth[known, c], scores[known, c])
    found = mean_auc(torch.tensor(scores), torch.tensor(truth))
    assert found.left_out == (1, 3)
    assert found.by_class == pytest.approx(reference, abs=1e-12)
    assert found.value == pytest.approx(np.mean(list(reference.values())), abs=1e-12)
    # Whatever is scored where nobody knows changes nothing.
    assert mean_auc(np.where(truth < 0, 99.0, scores), truth) == found
    guess = (scores > 0).astype(int)
    altered = np.where(truth < 0, 1 - guess, guess)
    assert multilabel_macro_f1(altered, truth) == multilabel_macro_f1(guess, truth)


def test_by_hand():
    truth = np.array([[1, 0, 1], [0, 1, -1], [1, 1, 1], [0, -1, 1]])
    scores = np.array([[3.0, 1.0, 0.0], [2.0, 1.0, 0.0], [1.0, 2.0, 0.0], [0.0, 9.0, 0.0]])
    found = mean_auc(scores, truth)
    # Class 0: pairs 3>2, 3>0, 1<2, 1>0. Class 1: one tie, one win. Class 2 has no negative.
    assert found.by_class == {0: 0.75, 1: 0.75}
    assert found.left_out == (2,)
    # Class 0: 2 right, 2 said, 2 true -> 1/2 each way; class 1: all said, 2 true of 3 known; class 2: none said.
    guess = [[1, 1, 0], [1, 1, 0], [0, 1, 0], [0, 1, 0]]
    assert multilabel_macro_f1(guess, truth) == pytest.approx((2 * 1 / 4 + 2 * 2 / 5 + 0) / 3)


def test_the_figure_states_its_interval_and_how_many_classes_it_is_the_mean_of():
    scores, truth = drawn(0, n=200)
    figure = mean_auc_figure(scores, truth)
    assert figure.value == mean_auc(scores, truth).value
    assert 0 < figure.low < figure.value < figure.high < 1
    assert (figure.n, figure.note, figure.confidence) == (200, "", 0.95)
    wider = mean_auc_figure(scores, truth, confidence=0.99)
    assert wider.low < figure.low < figure.high < wider.high
    truth[:, 2] = 1
    assert "4 of 5" in mean_auc_figure(scores, truth).note


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 2**32), unknown=st.sampled_from([0.0, 0.3]))
def test_the_error_of_one_class_is_delongs(seed, unknown):
    """Against the components of DeLong 1988 written out pair by pair, on the logit scale."""
    scores, truth = drawn(seed, n=30, classes=1, unknown=unknown)
    s, y = scores[:, 0], truth[:, 0]
    assume(min((y == 1).sum(), (y == 0).sum()) >= 2)
    wins = (s[y == 1][:, None] > s[y == 0]) + 0.5 * (s[y == 1][:, None] == s[y == 0])
    area = wins.mean()
    variance = wins.mean(1).var(ddof=1) / (y == 1).sum() + wins.mean(0).var(ddof=1) / (y == 0).sum()
    figure = mean_auc_figure(scores, truth)
    if variance < 1e-12 or area in (0, 1):
        assert figure.low is None
        return
    reach = norm.ppf(0.975) * np.sqrt(variance) / (area * (1 - area))
    expected = 1 / (1 + np.exp(-(np.log(area / (1 - area)) + np.array([-reach, reach]))))
    np.testing.assert_allclose([figure.low, figure.high], expected, rtol=1e-9)


def test_classes_that_hang_together_narrow_the_interval_less():
    """Ten copies of one class say no more than one does; ten classes of their own say more."""
    scores, truth = drawn(1, n=150, classes=10)
    one = mean_auc_figure(scores[:, :1], truth[:, :1])
    copies = mean_auc_figure(np.repeat(scores[:, :1], 10, 1), np.repeat(truth[:, :1], 10, 1))
    assert (copies.low, copies.high) == pytest.approx((one.low, one.high), rel=1e-9)
    several = mean_auc_figure(scores, truth)
    assert several.high - several.low < 0.5 * (one.high - one.low)


@pytest.mark.thorough
@pytest.mark.parametrize(("classes", "n"), [(1, 120), (2, 120), (5, 40)])
def test_the_interval_covers_what_records_drawn_anew_would_show(classes, n):
    """Normal scores one apart: the AUC of each class is Φ(1/√2), here with errors shared between classes."""
    truth_auc, covered = norm.cdf(1 / np.sqrt(2)), 0
    for seed in range(400):
        rng = np.random.default_rng(seed)
        truth = rng.integers(0, 2, (n, classes))
        shared = rng.normal(size=(n, 1))
        scores = truth + np.sqrt(0.5) * shared + np.sqrt(0.5) * rng.normal(size=truth.shape)
        figure = mean_auc_figure(scores, truth)
        covered += figure.low <= truth_auc <= figure.high
    assert 0.92 <= covered / 400 <= 0.98


def test_where_nothing_varies_there_is_no_interval():
    truth = np.array([[1, 0], [0, 1], [1, 1], [0, 0]])
    assert mean_auc_figure(truth, truth).value == 1
    assert mean_auc_figure(truth, truth).low is None
    flat = mean_auc_figure(np.zeros((4, 2)), truth)
    assert (flat.value, flat.low, flat.method) == (0.5, None, "")


@pytest.mark.parametrize(
    ("scores", "truth", "words"),
    [
        ([[0.0, 1.0]], [[1, 0]], "no class with both"),
        ([[0.0], [1.0]], [[1], [2]], "other than -1, 0 and 1"),
        ([[0.0], [1.0]], [[1, 0], [0, 1]], "does not match"),
        ([[np.nan], [1.0]], [[1], [0]], "NaN"),
        ([0.0, 1.0], [1, 0], "not a non-empty table"),
    ],
)
def test_what_cannot_be_measured_is_refused(scores, truth, words):
    with pytest.raises(UsageError, match=words):
        mean_auc(scores, truth)
