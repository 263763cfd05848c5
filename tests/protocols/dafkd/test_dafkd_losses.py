"""DaFKD's weights and losses against closed forms, NumPy and SciPy; guarantees of the functions."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from fdaudit.protocols.dafkd.losses import (
    adversarial_loss,
    ensemble,
    generator_loss,
    importance,
    joint_loss,
    sameness,
)
from scipy.special import expit, log_softmax, rel_entr, softmax

from fdaudit.rng import child
from fdaudit.training.objectives import loss_function

K, N, C = 4, 6, 3


def drawn(name: str, *shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=child(0, name), dtype=torch.float64)


# -- Eq. 7 --------------------------------------------------------------------------------------------------------


def test_importance_is_each_clients_share_of_the_scores():
    scores = torch.tensor([[0.1, 0.5], [0.3, 0.5], [0.4, 0.0]], dtype=torch.float64)
    expected = torch.tensor([[1 / 8, 1 / 2], [3 / 8, 1 / 2], [4 / 8, 0]], dtype=torch.float64)
    torch.testing.assert_close(importance(scores), expected)


@pytest.mark.parametrize("scale", [1.0, 1e-30, 1e-44])
def test_importance_sums_to_one_over_clients_for_each_sample(scale):
    scores = drawn("scores", K, N).sigmoid().float() * scale
    weights = importance(scores)
    assert (weights >= 0).all()
    torch.testing.assert_close(weights.sum(0), torch.ones(N), rtol=1e-5, atol=0)


def test_importance_is_even_where_nobody_has_any():
    scores = torch.tensor([[0.0, 0.2], [0.0, 0.6]])
    torch.testing.assert_close(importance(scores), torch.tensor([[0.5, 0.25], [0.5, 0.75]]))


def test_importance_ignores_the_scale_of_the_scores_and_follows_the_clients():
    scores = drawn("scores", K, N).sigmoid()
    order = torch.tensor([2, 0, 3, 1])
    torch.testing.assert_close(importance(7 * scores), importance(scores))
    torch.testing.assert_close(importance(scores[order]), importance(scores)[order])


def test_at_the_optimum_of_theorem_1_the_weights_are_at_most_k_plus_1_over_k_shares_of_the_density():
    """Eq. 19's bound: with f = p_k / (p_k + p), α̂_k <= (K + 1) / K · p_k / p."""
    p_k = drawn("densities", K, N).exp()
    p = p_k.mean(0)
    weights = importance(p_k / (p_k + p))
    assert (weights <= (K + 1) / K * p_k / p + 1e-12).all()


# -- Eq. 8 --------------------------------------------------------------------------------------------------------


def test_the_ensemble_is_the_weighted_sum_worked_out_by_loops():
    weights = importance(drawn("scores", K, N).sigmoid())
    soft = drawn("z", K, N, C).softmax(-1)
    made = ensemble(weights, soft)
    for i in range(N):
        for c in range(C):
            assert float(made[i, c]) == pytest.approx(
                sum(float(weights[k, i] * soft[k, i, c]) for k in range(K))
            )
    torch.testing.assert_close(made.sum(1), torch.ones(N, dtype=torch.float64))


def test_one_client_alone_is_its_own_ensemble():
    soft = drawn("z", 1, N, C).softmax(-1)
    torch.testing.assert_close(ensemble(importance(torch.rand(1, N, dtype=torch.float64)), soft), soft[0])


@pytest.mark.parametrize("tau", [1.0, 2.5])
def test_what_distillation_descends_is_eq_8(tau):
    """KL of the ensemble from the student in this order, mean over samples, times τ² as distillation has it."""
    target, z = drawn("p", N, C).softmax(1), drawn("student", N, C)
    expected = rel_entr(target.numpy(), softmax(z.numpy() / tau, 1)).sum(1).mean() * tau**2
    assert float(loss_function("kl", tau)(z, target)) == pytest.approx(expected)
    assert float(loss_function("kl", tau)(tau * target.log(), target)) == pytest.approx(0, abs=1e-12)


# -- Eq. 2, 3 and 9 -----------------------------------------------------------------------------------------------


def test_the_adversarial_loss_is_eq_2_with_its_minus_sign():
    real, pseudo = drawn("real", 5), drawn("pseudo", 3)
    expected = -(np.log(expit(real.numpy())).sum() + np.log(1 - expit(pseudo.numpy())).sum()) / 8
    assert float(adversarial_loss(real, pseudo)) == pytest.approx(float(expected))


def test_descending_it_makes_records_real_and_pseudo_samples_not():
    real, pseudo = drawn("real", 5).requires_grad_(), drawn("pseudo", 3).requires_grad_()
    by_real, by_pseudo = torch.autograd.grad(adversarial_loss(real, pseudo), [real, pseudo])
    assert (by_real < 0).all()
    assert (by_pseudo > 0).all()
    torch.testing.assert_close(by_real, (real.sigmoid() - 1) / 8)
    torch.testing.assert_close(by_pseudo, pseudo.sigmoid() / 8)


def test_its_minimum_over_one_logit_is_theorem_1s_ratio_of_densities():
    """One point of density p_k = 3 among records and p = 1 among pseudo-samples: f* = 3 / 4."""
    logit = torch.zeros((), dtype=torch.float64, requires_grad=True)
    for _ in range(2000):
        (slope,) = torch.autograd.grad(adversarial_loss(logit.expand(3), logit.expand(1)), logit)
        logit = (logit - slope).detach().requires_grad_()
    assert float(logit.detach().sigmoid()) == pytest.approx(0.75)


def test_the_joint_loss_is_eq_9():
    z, y = drawn("z", 5, C), torch.tensor([0, 2, 1, 1, 0])
    real, pseudo = drawn("real", 5), drawn("pseudo", 5)
    L = -log_softmax(z.numpy(), 1)[np.arange(5), y.numpy()].mean()
    L_adv = -(np.log(expit(real.numpy())).sum() + np.log(1 - expit(pseudo.numpy())).sum()) / 10
    assert float(joint_loss(z, y, real, pseudo)) == pytest.approx(float(L + L_adv))
    assert float(joint_loss(z, y, real, pseudo, 0.3)) == pytest.approx(float(L + 0.3 * L_adv))
    assert float(joint_loss(z, y, real, pseudo, 0.0)) == pytest.approx(float(L))


def test_the_generator_climbs_the_discriminators_logit_and_does_not_saturate():
    far = torch.tensor([-30.0], requires_grad=True)
    (slope,) = torch.autograd.grad(generator_loss(far), far)
    assert float(slope) == pytest.approx(-1)
    assert float(generator_loss(torch.zeros(4))) == pytest.approx(math.log(2))


def test_sameness_falls_as_images_part_and_pulls_even_where_they_do_not():
    one = torch.zeros(2, 1, 2, 2)
    assert float(sameness(one, one + 0.249)) == pytest.approx(math.log(4))
    assert float(sameness(one, one)) == pytest.approx(math.log(1000))
    near = torch.full((2, 1, 2, 2), 1e-6, requires_grad=True)
    (slope,) = torch.autograd.grad(sameness(near, one), near)
    assert (slope < -100).all()


def test_losses_of_extreme_logits_are_finite():
    huge = torch.tensor([1e4, -1e4])
    for value in (adversarial_loss(huge, huge), generator_loss(huge)):
        assert torch.isfinite(value)
