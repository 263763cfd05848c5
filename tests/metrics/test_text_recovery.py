"""Overlap of texts by hand, and figures of recovered texts against priors and other texts."""

from __future__ import annotations

import numpy as np
import pytest

from fdaudit.metrics.texts import recovery
from fdaudit.metrics.texts.overlap import bag, bag_scores, matched, positions_right, rouge, rouge_l, spoken
from fdaudit.metrics.texts.recovery import Recovered, score_texts


def rows(*texts):
    return np.array(texts)


def test_bags_and_positions_count_named_words_alone() -> None:
    assert bag(rows([3, 1, 0], [3, 4, 1])) == {3, 4}
    assert spoken(np.array([5, 1, 3, 0])) == [5, 3]
    assert positions_right(np.array([2, 9, 9, 0]), np.array([2, 3, 1, 0])) == 1 / 2
    assert positions_right(np.array([2]), np.array([1])) == 0


@pytest.mark.parametrize(
    ("guess", "truth", "expected"),
    [
        ({2, 3}, {3, 4, 5}, (1 / 2, 1 / 3, 2 / 5)),
        (set(), {3}, (0, 0, 0)),
        ({3}, {3}, (1, 1, 1)),
        ({2}, {3}, (0, 0, 0)),
    ],
)
def test_bag_scores_are_those_worked_out_by_hand(guess, truth, expected):
    assert bag_scores(frozenset(guess), frozenset(truth)) == pytest.approx(expected)


def test_rouge_by_hand() -> None:
    # the cat the cat / the cat sat: bigrams {the cat: 2, cat the: 1} and {the cat: 1, cat sat: 1}
    assert rouge([2, 3, 2, 3], [2, 3, 4], 1) == pytest.approx(2 * 2 / 7)
    assert rouge([2, 3, 2, 3], [2, 3, 4], 2) == pytest.approx(2 * 1 / 5)
    assert rouge([2], [2], 2) == 1
    assert rouge([2], [3], 2) == 0
    assert rouge_l([2, 5, 3, 4], [2, 3, 4]) == pytest.approx(2 * 3 / 7)
    assert rouge_l([4, 3, 2], [2, 3, 4]) == pytest.approx(2 * 1 / 6)
    assert rouge_l([], [2]) == 0


def test_order_changes_neither_the_bag_nor_rouge_1():
    rng = np.random.default_rng(0)
    for _ in range(50):
        truth = rng.integers(2, 9, 8)
        guess = rng.permutation(truth)
        assert rouge(spoken(guess), spoken(truth), 1) == 1
        assert rouge_l(spoken(guess), spoken(truth)) <= 1
        assert bag(guess) == bag(truth)


def test_texts_are_matched_one_to_one():
    truth = rows([2, 3, 4], [5, 6, 7], [8, 9, 2])
    assert matched(rows([5, 6, 2], [2, 3, 9]), truth).tolist() == [1, 0, -1]
    assert matched(truth[::-1], truth).tolist() == [2, 1, 0]


# -- figures --------------------------------------------------------------------------------------------------------


def drawn(n, seed=0, length=6, words=60):
    rng = np.random.default_rng(seed)
    return rng.integers(2, words, (n, length)), rng.integers(0, 2, n)


def scored(found, auxiliary=None, others=None, seed=0):
    held = drawn(40, 1)[0] if auxiliary is None else auxiliary
    return score_texts(found, held, others or drawn(200, 2), np.random.default_rng(seed))


def guess_of(words, truth, labels, texts=None):
    return Recovered(words=frozenset(words), texts=texts, truth=truth, labels=labels)


def test_the_texts_themselves_have_every_figure_at_one():
    truth, labels = drawn(3)
    found = scored([guess_of(bag(truth), truth, labels, truth[::-1])])
    for name in (
        "token_f1",
        "token_precision",
        "token_recall",
        "rouge_1",
        "rouge_2",
        "rouge_l",
        "positions_right",
    ):
        assert found[name].value == 1, name
    assert found["token_gain"].p == pytest.approx(1 / 5000)
    gain, prior = found["token_gain"].value, found["token_f1_prior"].value
    assert 0.5 < gain <= 1 - prior  # above the prior, and above what the guess is worth on other texts
    assert found["rouge_l_prior"].value < 0.5


def test_words_of_other_texts_gain_nothing():
    truth, labels = drawn(3)
    found = scored([guess_of(bag(drawn(3, 9)[0]), truth, labels)])
    assert found["token_gain"].p > 0.05
    assert "rouge_1" not in found


def test_p_values_of_guesses_that_know_nothing_are_not_too_small(monkeypatch):
    """A guess independent of the true texts: p of at most 0.1 in a tenth of the cases, give or take."""
    monkeypatch.setattr(recovery, "_DRAWS", 199)
    others, small = drawn(300, 4), 0
    for k in range(60):
        rng = np.random.default_rng(100 + k)
        picked = rng.permutation(300)
        truth, labels = others[0][picked[:2]], others[1][picked[:2]]
        rest = others[0][picked[2:]], others[1][picked[2:]]
        guess = rng.choice(np.arange(2, 60), 12, replace=False).tolist()
        found = score_texts([guess_of(guess, truth, labels)], rest[0][:30], rest, rng)
        small += found["token_gain"].p <= 0.1
    assert small <= 15  # of 60, at a tenth each: more has a probability below 1e-3


def test_without_guesses_or_other_texts_there_is_nothing() -> None:
    truth, labels = drawn(4)
    found = scored([guess_of(bag(truth), truth, labels)], others=drawn(5, 2))
    assert found["token_gain"].p is None
    assert "nothing bounds chance" in found["token_gain"].note
    truth, labels = drawn(2)
    found = scored([guess_of((), truth, labels)])
    assert found["token_f1"].value == 0
    assert found["token_gain"].value < 0
    assert found["token_gain"].p == 1
    truth, labels = drawn(2)
    found = scored([guess_of(bag(truth), truth, labels, truth)], auxiliary=np.zeros((0, 6), dtype=int))
    assert found["token_f1_prior"].value == 0
    assert "rouge_1_prior" not in found


def test_the_prior_is_the_most_frequent_words_of_auxiliary_texts():
    auxiliary = rows(*[[2, 3, 4 + k] for k in range(20)])
    truth = rows([2, 3, 50])
    found = scored([guess_of((2,), truth, np.array([0]))], auxiliary=auxiliary)
    assert found["token_f1_prior"].value >= 2 / 3
