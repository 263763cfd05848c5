"""Agreement of a copy with a model: against scipy's exact test, and by laws."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import binomtest

from fdaudit.errors import UsageError
from fdaudit.metrics import score_extraction

CLASSES = st.lists(st.integers(0, 3), min_size=12, max_size=60)


def test_a_perfect_copy_agrees_everywhere_and_a_baseline_in_its_own_share():
    model = np.arange(200) % 10
    baseline = np.where(np.arange(200) < 150, model, (model + 1) % 10)
    found = score_extraction(model, model, baseline, model)
    assert found["agreement"].value == found["accuracy"].value == found["accuracy_model"].value == 1.0
    assert found["agreement_baseline"].value == 0.75
    assert found["agreement_gain"].value == pytest.approx(0.25)
    assert found["agreement_gain"].p == pytest.approx(0.5**50)
    assert 0 < found["agreement_gain"].low < found["agreement_gain"].high <= 0.25


def test_of_two_baselines_the_stronger_counts():
    model = np.where(np.arange(100) < 90, 0, 1)
    found = score_extraction(model, model, np.full(100, 5), model)
    assert found["agreement_baseline"].value == 0.9
    assert found["agreement_baseline"].note == "of the most frequent class"


@settings(max_examples=60, deadline=None)
@given(data=st.data(), model=CLASSES)
def test_the_p_value_is_that_of_mcnemars_exact_test_and_the_interval_holds_the_gain(data, model):
    model = np.array(model)
    some = st.lists(st.integers(0, 3), min_size=len(model), max_size=len(model))
    copied, baseline = np.array(data.draw(some)), np.array(data.draw(some))
    found = score_extraction(copied, model, baseline, model)
    constant = np.full(len(model), np.bincount(model).argmax())
    other = baseline if (baseline == model).sum() >= (constant == model).sum() else constant
    better = int(((copied == model) & (other != model)).sum())
    worse = int(((copied != model) & (other == model)).sum())
    gain = found["agreement_gain"]
    assert gain.value == pytest.approx((better - worse) / len(model))
    assert gain.low <= gain.value <= gain.high
    expected = binomtest(better, better + worse, alternative="greater").pvalue if better + worse else 1.0
    assert gain.p == pytest.approx(expected)


def test_a_copy_that_knows_nothing_is_seldom_called_better():
    rng = np.random.default_rng(0)
    below = 0
    for _ in range(400):
        model, copied, baseline = rng.integers(10, size=(3, 120))
        below += score_extraction(copied, model, baseline, model)["agreement_gain"].p <= 0.05
    assert below <= 33  # 99.9 % of Binomial(400, 0.05)


@pytest.mark.parametrize(
    ("values", "field"),
    [(([0, 1], [0, 1, 2], [0, 1, 2], [0, 1, 2]), "copied"), (([0], [0], [0], []), "true")],
)
def test_bad_input_is_one_error(values, field):
    with pytest.raises(UsageError) as caught:
        score_extraction(*values)
    assert caught.value.field == field
