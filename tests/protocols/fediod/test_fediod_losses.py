"""FedIOD's losses against closed forms, laws and a second formulation in NumPy."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from fdaudit.protocols.fediod import losses
from scipy.spatial.distance import jensenshannon
from scipy.stats import entropy

from fdaudit.models.generative import build_generator
from fdaudit.rng import child

K, N, C = 4, 5, 3
EVEN = torch.full((2,), 0.5, dtype=torch.float64)


def drawn(*shape, name="z", scale=3.0):
    return scale * torch.randn(*shape, generator=child(0, name), dtype=torch.float64)


def shares(k=K):
    return torch.arange(1.0, k + 1, dtype=torch.float64) / (k * (k + 1) / 2)


def softmax(z):
    e = np.exp(z - z.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


# -- Eq. 3: confidence --------------------------------------------------------------------------------------------


def test_uniform_predictions_have_the_logarithm_of_the_classes_as_entropy():
    assert losses.confidence_loss(torch.zeros(K, N, C).double(), shares()).item() == pytest.approx(
        math.log(C), abs=1e-12
    )


def test_certain_predictions_have_no_entropy_and_no_nan():
    z = torch.zeros(K, N, C).double()
    z[..., 1] = 1e4
    z.requires_grad_()
    loss = losses.confidence_loss(z, shares())
    (g,) = torch.autograd.grad(loss, z)
    assert loss.item() == pytest.approx(0, abs=1e-12)
    assert torch.isfinite(g).all()


def test_confidence_of_two_classes_is_the_binary_entropy_by_shares():
    p = torch.tensor([0.1, 0.35], dtype=torch.float64)
    z = torch.stack([torch.zeros(2, dtype=torch.float64), (p / (1 - p)).log()], -1)[:, None]
    h = -(p * p.log() + (1 - p) * (1 - p).log())
    pi = torch.tensor([0.8, 0.2], dtype=torch.float64)
    assert losses.confidence_loss(z, pi).item() == pytest.approx((0.8 * h[0] + 0.2 * h[1]).item(), abs=1e-12)


def test_confidence_is_scipys_entropy_at_any_temperature():
    z = drawn(K, N, C)
    for tau in (0.5, 1.0, 4.0):
        h = entropy(softmax(z.numpy() / tau), axis=-1)
        expected = (shares().numpy()[:, None] * h).sum(0).mean()
        assert losses.confidence_loss(z, shares(), tau).item() == pytest.approx(expected, abs=1e-12)


# -- Eq. 4 and 5: divergence --------------------------------------------------------------------------------------


def test_clients_who_agree_do_not_diverge():
    z = drawn(1, N, C).expand(K, N, C)
    torch.testing.assert_close(losses.divergence(z, shares()), torch.zeros(N).double(), atol=1e-12, rtol=0)


def test_clients_certain_of_different_classes_diverge_by_the_entropy_of_their_shares():
    z = torch.full((3, N, 3), -1e4, dtype=torch.float64)
    z[torch.arange(3), :, torch.arange(3)] = 1e4
    pi = shares(3)
    expected = torch.full((N,), entropy(pi.numpy()), dtype=torch.float64)
    torch.testing.assert_close(losses.divergence(z, pi), expected, atol=1e-12, rtol=0)


def test_two_clients_have_scipys_jensen_shannon_distance_squared():
    z = drawn(2, N, C)
    q = softmax(z.numpy())
    expected = jensenshannon(q[0], q[1], axis=-1) ** 2
    np.testing.assert_allclose(losses.divergence(z, EVEN).numpy(), expected, atol=1e-12)


def test_divergence_lies_between_nothing_and_the_entropy_of_the_shares():
    found = losses.divergence(drawn(K, 200, C, scale=20), shares())
    assert (found >= -1e-12).all()
    assert (found <= entropy(shares().numpy()) + 1e-12).all()


def test_a_client_without_records_has_no_say():
    z, pi = drawn(3, N, C), torch.tensor([0.5, 0.5, 0.0], dtype=torch.float64)
    torch.testing.assert_close(losses.divergence(z, pi), losses.divergence(z[:2], EVEN))
    z.requires_grad_()
    (g,) = torch.autograd.grad(losses.unique_loss(z, pi) + losses.confidence_loss(z, pi), z)
    assert torch.isfinite(g).all()
    assert not g[2].any()


def test_unique_is_the_mean_divergence_with_its_sign_turned():
    z = drawn(K, N, C)
    assert losses.unique_loss(z, shares()).item() == pytest.approx(
        -losses.divergence(z, shares()).mean().item()
    )


# -- Eq. 8 and 9: weights -----------------------------------------------------------------------------------------


def counts():
    return torch.tensor([[4, 0, 2], [1, 0, 0], [0, 3, 9], [5, 0, 1]], dtype=torch.float64)


def ratios():
    return torch.rand(K, N, generator=child(1, "r"), dtype=torch.float64) + 0.1


def test_weights_sum_to_one_over_the_clients_for_each_sample_and_class():
    w = losses.importance(counts(), ratios())
    assert w.shape == (K, N, C)
    torch.testing.assert_close(w.sum(0), torch.ones(N, C).double())
    assert (w >= 0).all()


def test_weights_are_eq_8_worked_out_one_by_one():
    n, r = counts().numpy(), ratios().numpy()
    w = losses.importance(counts(), ratios())
    for c in range(C):
        for i in range(N):
            raw = [n[k, c] / n[:, c].mean() * r[k, i] for k in range(K)]  # Eq. 8, denominator and all
            for k in range(K):
                assert w[k, i, c].item() == pytest.approx(raw[k] / sum(raw), abs=1e-12)


def test_who_never_saw_a_class_has_no_weight_for_it_and_its_only_holder_has_all():
    w = losses.importance(counts(), ratios())
    assert not w[1, :, 1:].any()
    assert (w[2, :, 1] == 1).all()


@pytest.mark.parametrize(
    ("known", "seen"),
    [(torch.zeros(K, C), torch.ones(K, N)), (torch.ones(K, C), torch.zeros(K, N))],
    ids=["class-nobody-has", "nothing-real"],
)
def test_what_tells_nobody_apart_weighs_all_the_same(known, seen):
    assert (losses.importance(known, seen) == 1 / K).all()


def test_unknown_factors_are_left_out():
    w = losses.importance(counts(), torch.ones(K, N).double())
    torch.testing.assert_close(w[:, 0], counts() / counts().sum(0))
    w = losses.importance(torch.ones(K, C).double(), ratios())
    torch.testing.assert_close(w[..., 0], ratios() / ratios().sum(0))


def test_the_scale_of_a_discriminators_ratio_is_all_clients_alike_irrelevant():
    torch.testing.assert_close(
        losses.importance(7 * counts(), 0.3 * ratios()), losses.importance(counts(), ratios())
    )


def test_the_aggregate_of_equal_logits_is_those_logits():
    z = drawn(1, N, C)
    w = losses.importance(counts(), ratios())
    torch.testing.assert_close(losses.aggregate(z.expand(K, N, C), w), z[0])


def test_the_aggregate_is_the_weighted_sum():
    z, w = drawn(K, N, C), losses.importance(counts(), ratios())
    np.testing.assert_allclose(
        losses.aggregate(z, w).numpy(), np.einsum("knc,knc->nc", w.numpy(), z.numpy()), atol=1e-12
    )


# -- Eq. 6 and 10: mimicry ----------------------------------------------------------------------------------------


def test_mimicry_at_infinite_temperature_is_the_mean_squared_distance_of_rows():
    a, b = torch.tensor([[1.0, 2.0], [0.0, 0.0]]), torch.tensor([[1.0, 0.0], [3.0, 4.0]])
    assert losses.mimic_loss(a, b).item() == pytest.approx((4 + 25) / 2)


def test_mimicry_at_finite_temperature_is_scipys_relative_entropy_of_the_teacher_to_the_student():
    student, target = drawn(N, C, name="s"), drawn(N, C, name="t")
    for tau in (1.0, 3.0):
        p, q = softmax(target.numpy() / tau), softmax(student.numpy() / tau)
        expected = tau**2 * entropy(p, q, axis=-1).mean()
        assert losses.mimic_loss(student, target, tau).item() == pytest.approx(expected, abs=1e-12)


def test_hot_mimicry_of_centred_logits_nears_their_squared_distance():
    """Hinton 2015: τ² KL tends to |ẑ - z|² / 2C for logits whose rows sum to zero."""
    student, target = drawn(N, C, name="s"), drawn(N, C, name="t")
    student, target = student - student.mean(1, keepdim=True), target - target.mean(1, keepdim=True)
    hot = losses.mimic_loss(student, target, 1e3).item()
    assert hot == pytest.approx(losses.mimic_loss(student, target).item() / (2 * C), rel=1e-2)


# -- gradients ----------------------------------------------------------------------------------------------------


def objective(z, student, weights, pi):
    return (
        losses.confidence_loss(z, pi)
        + losses.unique_loss(z, pi)
        - losses.mimic_loss(student, losses.aggregate(z, weights))
    )


def test_cotangents_agree_with_finite_differences():
    z, s = drawn(K, N, C).requires_grad_(), drawn(N, C, name="s").requires_grad_()
    w, pi = losses.importance(counts(), ratios()), shares()
    assert torch.autograd.gradcheck(lambda z, s: objective(z, s, w, pi), (z, s))


def test_entropys_cotangent_is_its_closed_form():
    """dH/dz_c = -q_c (log q_c + H)."""
    z = drawn(1, 1, C).requires_grad_()
    (g,) = torch.autograd.grad(losses.confidence_loss(z, torch.ones(1).double()), z)
    q = torch.softmax(z.detach(), -1)
    expected = -q * (q.log() - (q * q.log()).sum(-1, keepdim=True))
    torch.testing.assert_close(g, expected)


def test_gradients_sent_back_and_forth_are_those_of_the_joined_graph():
    """G and S at the server, T_k at the clients: the pieces joined by cotangents against one autograd graph."""
    generator = build_generator(child(0, "g"), 3, 2, (1, 8, 8)).double()
    tasks = [torch.nn.Linear(64, C).double() for _ in range(K)]
    student = torch.nn.Sequential(torch.nn.Linear(64, 6), torch.nn.Tanh(), torch.nn.Linear(6, C)).double()
    noise, pi = drawn(N, 3, name="w"), shares()
    w = losses.importance(counts(), ratios())

    x = generator(noise)
    joined = objective(torch.stack([t(x.flatten(1)) for t in tasks]), student(x.flatten(1)), w, pi)
    expected = torch.autograd.grad(joined, list(generator.parameters()))

    x = generator(noise)
    sent = x.detach()
    received = [sent.clone().requires_grad_() for _ in tasks]
    answers = [t(r.flatten(1)) for t, r in zip(tasks, received, strict=True)]
    z, own = torch.stack([a.detach() for a in answers]).requires_grad_(), sent.clone().requires_grad_()
    cotangents, at_server = torch.autograd.grad(objective(z, student(own.flatten(1)), w, pi), [z, own])
    back = [torch.autograd.grad(a, r, c)[0] for a, r, c in zip(answers, received, cotangents, strict=True)]
    found = torch.autograd.grad(x, list(generator.parameters()), at_server + torch.stack(back).sum(0))
    for f, e in zip(found, expected, strict=True):
        torch.testing.assert_close(f, e, rtol=1e-9, atol=1e-12)


def test_balance_is_least_where_all_classes_are_predicted_equally_often():
    even = torch.eye(4).repeat(2, 1, 1) * 50
    one = torch.zeros(2, 4, 4)
    one[..., 0] = 50.0
    shares = torch.tensor([0.3, 0.7])
    torch.testing.assert_close(losses.balance_loss(even, shares), torch.tensor(-2.0))
    torch.testing.assert_close(losses.balance_loss(one, shares), torch.tensor(0.0))
