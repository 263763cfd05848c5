"""Membership scores against plain loops over one candidate at a time, and what must not change them."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from fdaudit.attacks.membership._statistics import calibrated, confidence, lira_offline, lira_online, rmia
from hypothesis import example, given
from hypothesis import strategies as st
from scipy.stats import norm
from sklearn.metrics import roc_auc_score

SEEDS = st.integers(0, 2**32 - 1)


def case(seed, models=6, candidates=9, population=11):
    """Log-likelihoods of shadow models and a target, with membership balanced for every candidate."""
    rng = np.random.default_rng(seed)
    inside = np.zeros((models, candidates), dtype=bool)
    for j in range(candidates):
        inside[rng.permutation(models)[: models // 2], j] = True
    held = rng.random((models, population)) < 0.5
    shadows = -rng.exponential(1, (models, candidates)) - (~inside) * 0.7
    z = -rng.exponential(1, (models, population))
    return {
        "target": -rng.exponential(1, candidates),
        "shadows": shadows,
        "inside": inside,
        "target_z": -rng.exponential(1, population),
        "shadows_z": z,
        "inside_z": held,
    }


def tensors(made):
    return {k: torch.from_numpy(v) for k, v in made.items()}


def few(made, *names):
    return tuple(tensors(made)[n] for n in names)


# -- independent references: plain loops ------------------------------------------------------------------------


def plain_confidence(p, y):
    out = []
    for row, label in zip(p.astype(np.float64), y, strict=True):
        others = sum(v for c, v in enumerate(row) if c != label)
        out.append(math.log(max(row[label], 1e-12)) - math.log(max(others, 1e-12)))
    return np.array(out)


def plain_online(made, fixed):
    inside, shadows, target = made["inside"], made["shadows"], made["target"]
    sides = [
        {side: shadows[inside[:, j] == side, j] for side in (True, False)} for j in range(inside.shape[1])
    ]
    if not fixed:
        scores = []
        for phi, of in zip(target, sides, strict=True):
            # Two shadow models may agree to many digits: a deviation has a floor.
            above, below = (
                norm.logpdf(phi, of[side].mean(), max(of[side].std(ddof=1), 1e-3)) for side in (True, False)
            )
            scores.append(above - below)
        return np.array(scores)
    squares = sum(((values - values.mean()) ** 2).sum() for of in sides for values in of.values())
    variance = squares / sum(len(values) - 1 for of in sides for values in of.values())
    gaps = np.array([of[True].mean() - of[False].mean() for of in sides])
    errors = np.array([variance / len(of[True]) + variance / len(of[False]) for of in sides])
    true = max(0.0, ((gaps - gaps.mean()) ** 2).mean() - errors.mean())
    found = []
    for phi, of, gap, error in zip(target, sides, gaps, errors, strict=True):
        kept = gaps.mean() + (gap - gaps.mean()) * true / (true + error)
        middle = (of[True].mean() + of[False].mean()) / 2
        # Two normal densities at a distance of `kept`, with `middle` between them.
        above, below = (norm.logpdf(phi, middle + sign * kept / 2, math.sqrt(variance)) for sign in (1, -1))
        found.append(above - below)
    return np.array(found)


def plain_rmia(made, gamma, a):
    def evidence(values, held):
        inside = [math.exp(v) for v, h in zip(values, held, strict=True) if h]
        outside = [math.exp(v) for v, h in zip(values, held, strict=True) if not h]
        if a is not None:
            out = np.mean(outside) if outside else np.mean(inside)
            return 0.5 * ((1 + a) * out + (1 - a))
        if not inside or not outside:
            return np.mean(inside or outside)
        return (np.mean(inside) + np.mean(outside)) / 2

    ratio_z = [
        math.exp(made["target_z"][k]) / evidence(made["shadows_z"][:, k], made["inside_z"][:, k])
        for k in range(len(made["target_z"]))
    ]
    found = []
    for j in range(len(made["target"])):
        ratio = math.exp(made["target"][j]) / evidence(made["shadows"][:, j], made["inside"][:, j])
        found.append(sum(ratio / other >= gamma for other in ratio_z) / len(ratio_z))
    return np.array(found)


@given(SEEDS)
def test_the_confidence_is_the_logit_of_the_right_class(seed):
    rng = np.random.default_rng(seed)
    z = torch.from_numpy(rng.normal(0, 8, (12, 5)).astype(np.float32))
    y = rng.integers(0, 5, 12)
    p = z.softmax(1)
    assert np.allclose(confidence(p, torch.from_numpy(y)), plain_confidence(p.numpy(), y), atol=1e-9)


def test_the_confidence_keeps_digits_that_a_difference_from_one_has_lost():
    """In float32 1 - p is 0 here; the other classes still say how sure the model is."""
    z = torch.tensor([[20.0, 0.0, 0.0], [21.0, 0.0, 0.0]])
    phi = confidence(z.softmax(1), torch.tensor([0, 0]))
    assert phi[1] - phi[0] == pytest.approx(1, abs=1e-5)


def test_of_several_labels_the_confidence_is_of_all_known_ones_together():
    p = torch.tensor([[0.9, 0.2, 0.4]])
    together = 0.9 * 0.8
    phi = confidence(p, torch.tensor([[1, 0, -1]]))
    assert phi.item() == pytest.approx(math.log(together / (1 - together)), abs=1e-5)


@example(114289, False)  # two shadow models agree to four digits
@given(SEEDS, st.booleans())
def test_online_lira_is_the_plain_loop(seed, fixed):
    made = case(seed)
    scores = lira_online(*few(made, "target", "shadows", "inside"), fixed_variance=fixed)
    assert np.allclose(scores, plain_online(made, fixed), rtol=1e-6, atol=1e-6)


@given(SEEDS)
def test_offline_lira_orders_candidates_by_the_normal_distribution_function(seed):
    made = case(seed)
    scores = lira_offline(*few(made, "target", "shadows", "inside"), fixed_variance=False).numpy()
    plain = []
    for j, phi in enumerate(made["target"]):
        values = made["shadows"][~made["inside"][:, j], j]
        plain.append(norm.cdf(phi, values.mean(), values.std(ddof=1)))
    assert np.allclose(norm.cdf(scores), plain, atol=1e-9)


@given(SEEDS)
def test_the_calibrated_loss_is_the_plain_loop(seed):
    made = case(seed)
    scores = calibrated(*few(made, "target", "shadows", "inside"))
    plain = [t - made["shadows"][~made["inside"][:, j], j].mean() for j, t in enumerate(made["target"])]
    assert np.allclose(scores, plain)


@given(SEEDS, st.floats(1, 3), st.one_of(st.none(), st.floats(0, 1)))
def test_rmia_is_the_plain_loop_up_to_how_ties_are_broken(seed, gamma, a):
    made = case(seed)
    scores = rmia(
        *few(made, "target", "shadows", "inside", "target_z", "shadows_z", "inside_z"), gamma=gamma, a=a
    ).numpy()
    plain = plain_rmia(made, gamma, a)
    step = 1 / len(made["target_z"])
    # The share, and less than half a step more: no tie-break may carry a candidate past another share.
    assert (scores - plain > 0).all()
    assert (scores - plain < 0.5 * step + 1e-12).all()


# -- laws ---------------------------------------------------------------------------------------------------------


def every_score(made):
    args = few(made, "target", "shadows", "inside")
    z = few(made, "target_z", "shadows_z", "inside_z")
    return {
        "calibrated": calibrated(*args),
        "online": lira_online(*args, fixed_variance=True),
        "offline": lira_offline(*args, fixed_variance=True),
        "rmia": rmia(*args, *z, gamma=1.0),
    }


@given(SEEDS)
def test_models_in_another_order_change_nothing(seed):
    made = case(seed)
    order = np.random.default_rng(seed).permutation(len(made["shadows"]))
    shuffled = made | {k: made[k][order] for k in ("shadows", "inside", "shadows_z", "inside_z")}
    for name, scores in every_score(made).items():
        assert torch.allclose(scores, every_score(shuffled)[name], atol=1e-9), name


@given(SEEDS)
def test_candidates_in_another_order_keep_their_scores(seed):
    made = case(seed)
    order = np.random.default_rng(seed).permutation(len(made["target"]))
    shuffled = made | {"target": made["target"][order]}
    shuffled |= {k: made[k][:, order] for k in ("shadows", "inside")}
    for name, scores in every_score(made).items():
        assert torch.allclose(scores[torch.from_numpy(order)], every_score(shuffled)[name], atol=1e-9), name


@given(SEEDS, st.floats(0.01, 3))
def test_a_target_that_is_surer_scores_higher(seed, more):
    """Of calibrated loss, offline LiRA and RMIA for every candidate; online LiRA peaks where its members lie."""
    made = case(seed)
    surer = made | {"target": made["target"] + more}
    before, after = every_score(made), every_score(surer)
    for name in ("calibrated", "offline", "rmia"):
        assert (after[name] > before[name]).all(), name


@given(SEEDS, st.floats(-5, 5))
def test_a_shift_of_every_model_alike_is_no_evidence(seed, shift):
    made = case(seed)
    moved = made | {"target": made["target"] + shift, "shadows": made["shadows"] + shift}
    for name in ("calibrated", "online", "offline"):
        assert torch.allclose(every_score(made)[name], every_score(moved)[name], atol=1e-6), name


@given(SEEDS, st.integers(0, 3))
def test_scores_are_finite_however_few_models_there_are(seed, inside):
    """All models on one side, or alike to the last digit: no division by nought."""
    made = case(seed, models=3)
    made["inside"][:] = np.arange(3)[:, None] < inside
    made["inside_z"][:] = np.arange(3)[:, None] < inside
    made["shadows"][:] = -1.0
    for name, scores in every_score(made).items():
        assert torch.isfinite(scores).all(), name


def test_a_candidate_with_models_on_one_side_only_gets_no_verdict_from_online_lira():
    made = case(3)
    made["inside"][:, 0] = False
    scores = lira_online(*few(made, "target", "shadows", "inside"), fixed_variance=True)
    assert scores[0] == 0


def test_few_shadows_do_not_turn_the_sign_of_a_candidate_s_effect():
    """The target is surer than all shadows; with four of these on a side a third of the effects has the wrong sign."""
    right = []
    for seed in range(20):
        draws = np.random.default_rng(seed)
        inside = draws.random((8, 200)).argsort(0) < 4
        shadows = 3 * draws.normal(size=(8, 200)) + inside
        member = draws.random(200) < 0.5
        target = 3 + draws.normal(size=200) + member
        args = (torch.from_numpy(target), torch.from_numpy(shadows), torch.from_numpy(inside))
        right.append(roc_auc_score(member, lira_online(*args, fixed_variance=True)))
    assert np.mean(right) > 0.58  # the plain ratio reaches 0.52


def test_the_width_of_a_cell_makes_a_likelihood_ratio_less_sure():
    made = case(5)
    args = few(made, "target", "shadows", "inside")
    sharp = lira_online(*args, fixed_variance=True)
    blurred = lira_online(*args, fixed_variance=True, blur=torch.full((9,), 25.0))
    assert blurred.abs().max() < sharp.abs().max()
