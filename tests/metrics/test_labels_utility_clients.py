"""Label distances, accuracy, macro-F1, bytes on the wire, means over clients."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from scipy.stats import binomtest
from sklearn.metrics import accuracy_score, f1_score

from fdaudit.errors import UsageError
from fdaudit.metrics import (
    SMOOTHING,
    Chance,
    accuracy,
    accuracy_figure,
    bytes_figure,
    bytes_on_wire,
    chebyshev,
    clopper_pearson,
    constant_accuracy,
    kl_divergence,
    label_overlap,
    label_recovery_figures,
    macro_f1,
    mean_and_worst,
    near_chance,
    score_extraction,
    score_label_distribution,
    total_variation,
)
from fdaudit.result import CurvePoint, FinalUtility
from fdaudit.transcript.messages import Message
from fdaudit.types import Figure

from ..helpers.refusals import refused

_WEIGHTS = st.lists(st.floats(0, 1), min_size=4, max_size=4).filter(lambda w: sum(w) > 0.1)
DISTRIBUTIONS = _WEIGHTS.map(lambda w: np.array(w) / sum(w))


@settings(max_examples=100, deadline=None)
@given(DISTRIBUTIONS, DISTRIBUTIONS)
def test_laws_of_the_label_distances(p: np.ndarray, q: np.ndarray) -> None:
    kl, tv, far = kl_divergence(p, q), total_variation(p, q), chebyshev(p, q)
    assert 0 <= far <= tv + 1e-12
    assert tv <= 1 + 1e-12
    assert 2 * (tv / (1 + 4 * SMOOTHING)) ** 2 <= kl + 1e-12
    assert kl_divergence(p, p) == total_variation(p, p) == chebyshev(p, p) == 0
    assert total_variation(q, p) == pytest.approx(tv)


@settings(max_examples=50, deadline=None)
@given(DISTRIBUTIONS, DISTRIBUTIONS)
def test_kl_against_scipy(p: np.ndarray, q: np.ndarray) -> None:
    reference = stats.entropy(p + SMOOTHING, q + SMOOTHING)
    assert kl_divergence(p, q) == pytest.approx(reference, abs=1e-9)


def test_rounded_numbers_count_as_the_distribution_that_they_round() -> None:
    exact = np.array([0.25, 0.75])
    for distance in (kl_divergence, total_variation, chebyshev):
        assert distance(exact * (1 + 5e-5), exact) == pytest.approx(0, abs=1e-12)


def test_distances_by_hand() -> None:
    p, q = [0.5, 0.5, 0.0], [0.25, 0.25, 0.5]
    assert total_variation(p, q) == pytest.approx(0.5)
    assert chebyshev(p, q) == pytest.approx(0.5)
    assert kl_divergence(p, q) == pytest.approx(math.log(2), abs=1e-4)
    assert kl_divergence([1, 0], [0, 1]) == pytest.approx(-math.log(SMOOTHING), abs=1e-4)


@pytest.mark.parametrize("bad", [[0.5, 0.6], [-0.5, 1.5], [np.inf, 0.0], [0.5, 0.25, 0.25]])
def test_what_is_no_distribution_is_refused(bad: list[float]) -> None:
    with pytest.raises(UsageError):
        total_variation([0.5, 0.5], bad)


def test_label_distributions_stand_beside_priors_or_are_unavailable() -> None:
    figures = score_label_distribution([1.0, 0.0], [0.9, 0.1])
    assert figures["label_tv"].value == pytest.approx(0.1)
    assert figures["label_tv_prior"].value == pytest.approx(0.5)
    assert "uniform" in figures["label_tv_prior"].note
    told = score_label_distribution([1.0, 0.0], [0.9, 0.1], prior=[1.0, 0.0])
    assert told["label_kl_prior"].value == 0
    assert told["label_kl"].unit == "nats"
    rng = np.random.default_rng(0)
    assert all(f.value is None for f in label_recovery_figures(None, [[1]], [1], rng))
    assert all("true labels" in f.unavailable for f in label_recovery_figures([[1]], None, [1], rng))
    right, prior = label_recovery_figures([[1]], [[1]], None, rng)
    assert (right.value, prior.value) == (1, None)


def test_labels_are_compared_as_multisets() -> None:
    assert label_overlap([3, 1, 1, 2], [1, 2, 3, 4]) == 3
    assert label_overlap([1, 1], [1]) == 1
    rng = np.random.default_rng(0)
    right, prior = label_recovery_figures([[1, 0], [1, 1]], [[0, 1], [1, 0]], [0, 1], rng)
    assert right.value == 0.75
    assert (right.low, right.high) == clopper_pearson(3, 4)[:2]
    # Two fair coins against {0, 1}: overlap 2 with chance 1/2, else 1: 0.75 on average.
    assert prior.value == pytest.approx(0.75, abs=0.05)


_PREDICTIONS = st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3)), min_size=1, max_size=40)


@settings(max_examples=100, deadline=None)
@given(_PREDICTIONS)
def test_accuracy_and_macro_f1_against_scikit_learn(pairs: list[tuple[int, int]]) -> None:
    predicted, true = (list(x) for x in zip(*pairs, strict=True))
    assert accuracy(predicted, true) == pytest.approx(accuracy_score(true, predicted))
    assert macro_f1(predicted, true) == pytest.approx(
        f1_score(true, predicted, average="macro", zero_division=0)
    )


def test_accuracy_carries_an_interval() -> None:
    rng = np.random.default_rng(0)
    true = rng.integers(0, 3, 200)
    predicted = np.where(rng.random(200) < 0.8, true, (true + 1) % 3)
    right = int((true == predicted).sum())
    figure = accuracy_figure(predicted, true)
    assert (figure.low, figure.high) == clopper_pearson(right, 200)[:2]


@pytest.mark.parametrize(("predicted", "true"), [([], []), ([1], [1, 2]), ([0.5], [1])])
def test_unfit_predictions_are_refused(predicted: list, true: list) -> None:
    with pytest.raises(UsageError):
        accuracy(predicted, true)


def _message(seq: int, sender: str, receivers: tuple[str, ...], kind: str, size: int) -> Message:
    return Message(
        seq=seq, round=0, step=0, sender=sender, receivers=receivers, kind=kind, bytes_on_wire=size
    )


def test_bytes_are_counted_once_for_each_receiver() -> None:
    messages = [
        _message(0, "server", ("client/0", "client/1", "client/2"), "model_parameters", 100),
        _message(1, "client/0", ("server",), "logits", 7),
        _message(2, "client/1", ("server",), "logits", 8),
        _message(3, "client/1", (), "release", 999),
        _message(4, "client/2", ("server",), "silence", 0),
    ]
    table = {(row.kind, row.sender_role): (row.messages, row.bytes) for row in bytes_on_wire(iter(messages))}
    assert table == {
        ("model_parameters", "server"): (1, 300),
        ("logits", "client"): (2, 15),
        ("release", "client"): (1, 0),
        ("silence", "client"): (1, 0),
    }
    assert bytes_figure(messages).value == 315
    assert bytes_on_wire([]) == ()


def test_the_mean_never_comes_without_the_worst() -> None:
    rng = np.random.default_rng(0)
    figures = {
        "client/0": Figure(name="auc", value=0.5, low=0.4, high=0.6, confidence=0.95, n=40),
        "client/1": Figure(name="auc", value=0.9, low=0.8, high=0.95, confidence=0.95, n=40),
        "client/2": Figure(name="auc", value=None, unavailable="no candidates"),
    }
    mean, worst = mean_and_worst(figures, rng)
    assert (mean.name, mean.value, mean.n) == ("auc_mean", pytest.approx(0.7), 2)
    assert (worst.name, worst.value, worst.low, worst.high) == ("auc_worst", 0.9, 0.8, 0.95)
    assert "client/1" in worst.note
    assert "client/2" in worst.note
    assert "client/2" in mean.note
    assert mean_and_worst(figures, rng, higher_is_worse=False)[1].value == 0.5
    none = mean_and_worst({"client/2": figures["client/2"]}, rng)
    assert all("no candidates" in f.unavailable for f in none)
    with pytest.raises(UsageError):
        mean_and_worst({}, rng)


# -- warnings about final models near chance -----------------------------------------------------------------------


CHANCE = constant_accuracy([0] * 30 + [1] * 50 + [2] * 20)  # always naming class 1 reaches 50 %


def row(party: str, right: int, line: str = "fedkd", n: int = 100) -> FinalUtility:
    interval = clopper_pearson(right, n)
    figure = Figure(name="accuracy", value=right / n, low=interval.low, high=interval.high)
    return FinalUtility(line=line, party=party, figure=figure)


def at(number: int, value: float, party: str = "server") -> CurvePoint:
    return CurvePoint(line="fedkd", round=number, party=party, accuracy=value)


@pytest.mark.parametrize(("right", "warned"), [(10, True), (50, True), (58, True), (62, False), (95, False)])
def test_a_model_is_near_chance_if_its_interval_reaches_a_constant_answer(right: int, warned: bool) -> None:
    assert bool(near_chance([row("server", right)], [], "fedkd", CHANCE)) == warned


def test_the_warning_names_model_level_and_cause_of_reference_lines_too() -> None:
    (said,) = near_chance([row("server", 40)], [at(0, 0.3), at(9, 0.4)], "fedkd", CHANCE)
    assert "server has 40.0%" in said
    assert "reaches 50.0%" in said
    assert "smaller learning rate" in said
    (said,) = near_chance([row("server", 10)], [at(3, 0.8), at(9, 0.1)], "fedkd", CHANCE)
    assert "80.0%" in said
    assert "round 3" in said
    rows = [row("server", 90), row("client/0", 10, "centralized")]
    (said,) = near_chance(rows, [at(3, 0.8)], "centralized", CHANCE)
    assert "client/0 has 10.0%" in said


def test_without_a_server_s_model_every_client_of_the_protocol_counts() -> None:
    rows = [row("client/0", 90), row("client/1", 20), row("client/2", 30)]
    (said,) = near_chance(rows, [], "fedkd", CHANCE)
    assert "2 of 3 models" in said
    assert "client/1 has 20.0%" in said
    assert not near_chance([row("server", 90), *rows], [], "fedkd", CHANCE)
    assert not near_chance([row("server", 90), row("client/0", 1, "standalone")], [], "fedkd", CHANCE)


@pytest.mark.parametrize(
    ("value", "low", "warned"), [(0.6, 0.48, True), (0.6, 0.52, False), (0.49, None, True)]
)
def test_of_several_labels_the_level_is_one_half(value: float, low: float | None, warned: bool) -> None:
    figure = Figure(name="mean_auc", value=value, low=low)
    rows = [FinalUtility(line="fedkd", party="server", figure=figure)]
    assert bool(near_chance(rows, [], "fedkd", Chance(0.5, "guessing"))) == warned


# -- agreement of a copy with a model ------------------------------------------------------------------------------


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


def test_the_stronger_baseline_counts_and_nothing_known_is_seldom_better() -> None:
    model = np.where(np.arange(100) < 90, 0, 1)
    found = score_extraction(model, model, np.full(100, 5), model)
    assert found["agreement_baseline"].value == 0.9
    assert "frequent class" in found["agreement_baseline"].note
    rng = np.random.default_rng(0)
    below = 0
    for _ in range(400):
        model, copied, baseline = rng.integers(10, size=(3, 120))
        below += score_extraction(copied, model, baseline, model)["agreement_gain"].p <= 0.05
    assert below <= 33  # 99.9 % of Binomial(400, 0.05)


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


@pytest.mark.parametrize(
    ("values", "field"),
    [(([0, 1], [0, 1, 2], [0, 1, 2], [0, 1, 2]), "copied"), (([0], [0], [0], []), "true")],
)
def test_bad_input_is_one_error(values, field):
    refused(lambda: score_extraction(*values), field, kind=UsageError)
