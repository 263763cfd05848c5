"""Losses of segmentation: against NumPy, and as means over records, which training relies on."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from fdaudit.rng import child
from fdaudit.training.objectives import loss_function

Z = 2 * torch.randn(3, 4, 6, 5, generator=child(0, "z"), dtype=torch.float64)
P = torch.randn(3, 4, 6, 5, generator=child(0, "p"), dtype=torch.float64).softmax(1)
Y = torch.randint(4, (3, 6, 5), generator=child(0, "y"))


def soft_dice(q, p):
    """Return Eq. 10 of Gong 2022 without its sign, for one record (C, h, w), in loops."""
    values = []
    for c in range(1, len(q)):
        overlap = sum(a * b for a, b in zip(q[c].ravel(), p[c].ravel(), strict=True))
        values.append(2 * overlap / ((q[c] ** 2).sum() + (p[c] ** 2).sum() + 1e-6))
    return np.mean(values)


def test_dice_distillation_is_equation_10():
    q, p = Z.softmax(1).numpy(), P.numpy()
    expected = -np.mean([soft_dice(q[k], p[k]) for k in range(3)])
    assert float(loss_function("dice", 1.0)(Z, P)) == pytest.approx(expected)


def test_dice_is_least_where_a_confident_answer_agrees():
    sure = torch.nn.functional.one_hot(Y, 4).movedim(-1, 1).double()
    dice = loss_function("dice", 1.0)
    assert float(dice(50 * sure, sure)) == pytest.approx(-1, abs=1e-6)
    assert float(dice(50 * sure.roll(1, 1), sure)) == pytest.approx(0, abs=1e-6)


def test_local_training_adds_cross_entropy_and_dice():
    q, log = Z.softmax(1).numpy(), Z.log_softmax(1).numpy()
    hot = np.eye(4)[Y.numpy()].transpose(0, 3, 1, 2)
    cross_entropy = -(log * hot).sum(1).mean()
    overlap = np.mean([soft_dice(q[k], hot[k]) for k in range(3)])
    assert float(loss_function("cross-entropy-dice", 1.0)(Z, Y)) == pytest.approx(cross_entropy + 1 - overlap)


def test_kl_and_l2_are_means_over_pixels():
    log, p = (Z / 2).log_softmax(1).numpy(), P.numpy()
    kl = (p * (np.log(p) - log)).sum(1).mean() * 4
    assert float(loss_function("kl", 2.0)(Z, P)) == pytest.approx(kl)
    squared = ((Z - P) ** 2).sum(1).mean()
    assert float(loss_function("l2", 1.0)(Z, P)) == pytest.approx(float(squared))


@pytest.mark.parametrize(
    ("objective", "target"), [("dice", P), ("cross-entropy-dice", Y), ("kl", P), ("l2", P)]
)
def test_a_batchs_loss_is_the_mean_of_its_records(objective, target):
    loss = loss_function(objective, 1.0)
    alone = [float(loss(Z[k : k + 1], target[k : k + 1])) for k in range(3)]
    assert float(loss(Z, target)) == pytest.approx(np.mean(alone))


@pytest.mark.parametrize(("objective", "target"), [("dice", P), ("cross-entropy-dice", Y)])
def test_gradients_are_right_and_run_under_vmap(objective, target):
    loss = loss_function(objective, 1.0)
    assert torch.autograd.gradcheck(lambda z: loss(z, target), (Z.clone().requires_grad_(),))
    together = torch.vmap(loss)(Z[:, None], target[:, None])
    assert float(together.mean()) == pytest.approx(float(loss(Z, target)))


def test_a_record_without_objects_has_a_finite_gradient():
    z, nothing = torch.zeros(1, 2, 4, 4, requires_grad=True), torch.zeros(1, 4, 4, dtype=torch.int64)
    loss_function("cross-entropy-dice", 1.0)(z, nothing).backward()
    assert z.grad is not None
    assert torch.isfinite(z.grad).all()
