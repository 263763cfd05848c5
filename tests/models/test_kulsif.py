"""The density ratio against Eq. 1 itself, a brute-force minimiser, NumPy written out, and its limits."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from fdaudit.protocols.selective_fd import KuLSIF, NystromKuLSIF
from numpy.typing import NDArray
from scipy.optimize import minimize

Array = NDArray[Any]
SIGMA, BETA = 0.8, 0.05


def samples(n: int = 12, m: int = 9, d: int = 3, seed: int = 0) -> tuple[Array, Array, Array]:
    rng = np.random.default_rng(seed)
    return rng.normal(0.4, 0.3, (n, d)), rng.uniform(-1, 2, (m, d)), rng.uniform(-1, 2, (20, d))


def kernel(x: Array, y: Array, sigma: float = SIGMA) -> Array:
    """exp(-‖x - y‖² / 2σ²), one pair at a time."""
    return np.array([[np.exp(-sum((a - b) ** 2) / (2 * sigma**2)) for b in y] for a in x])


def eq1(c: Array, z: Array, known: Array, auxiliary: Array, beta: float = BETA) -> float:
    """Eq. 1 of Shao et al. at w = Σ c_i k(·, z_i); ‖w‖² = cᵀ K c."""
    on_u, on_x = kernel(auxiliary, z) @ c, kernel(known, z) @ c
    return float((on_u**2).sum() / (2 * len(auxiliary)) - on_x.mean() + beta / 2 * c @ kernel(z, z) @ c)


def naive(known: Array, auxiliary: Array, x: Array, beta: float = BETA) -> Array:
    """The closed form with explicit inverse, as in Kanamori et al. 2012."""
    n_k, n_u = len(known), len(auxiliary)
    left = np.linalg.inv(kernel(auxiliary, auxiliary) / n_u + beta * np.eye(n_u))
    a = left @ (-kernel(auxiliary, known) @ np.ones(n_k) / (n_u * n_k * beta))
    return kernel(x, auxiliary) @ a + kernel(x, known).sum(1) / (n_k * beta)


def test_it_is_the_closed_form_and_the_exact_estimator_with_every_landmark() -> None:
    known, auxiliary, x = samples()
    found = KuLSIF(SIGMA, BETA).fit(known, auxiliary).ratio(x)
    np.testing.assert_allclose(found, naive(known, auxiliary, x), rtol=1e-10, atol=1e-12)
    known, auxiliary, x = samples(40, 30, 5)
    exact = KuLSIF(SIGMA, BETA).fit(known, auxiliary).ratio(x)
    found = NystromKuLSIF(SIGMA, BETA, landmarks=1000, seed=0).fit(known, auxiliary)
    assert len(found.centres) == 70
    np.testing.assert_allclose(found.ratio(x), exact, rtol=1e-5, atol=1e-7)
    known, auxiliary, x = samples()
    fitted = NystromKuLSIF(SIGMA, BETA, landmarks=5, seed=0).fit(known, auxiliary)
    z = fitted.centres.numpy()
    assert len(z) == 5
    found = minimize(eq1, np.zeros(5), (z, known, auxiliary), method="BFGS", options={"gtol": 1e-9})
    np.testing.assert_allclose(fitted.ratio(x), kernel(x, z) @ found.x, atol=1e-4)


@pytest.mark.parametrize("sigma", [SIGMA, 0.05])  # auxiliary samples within reach, and out of it
def test_the_ratio_is_the_mean_influence_of_the_known_samples(sigma: float) -> None:
    known, auxiliary, x = (torch.from_numpy(s) for s in samples())
    estimator = KuLSIF(sigma, BETA)
    found = estimator.influence(known, auxiliary, x)
    assert found.shape == (len(known), len(x))
    fitted = estimator.fit(known, auxiliary).ratio(x)
    torch.testing.assert_close(found.mean(0), fitted, rtol=1e-9, atol=1e-12)


def test_the_matrix_is_inverted_and_not_multiplied_by() -> None:
    """The authors' code multiplies; the two differ by far more than the tolerance of the tests."""
    known, auxiliary, x = samples()
    n_k, n_u = len(known), len(auxiliary)
    left = kernel(auxiliary, auxiliary) / n_u + BETA * np.eye(n_u)
    a = left @ (-kernel(auxiliary, known) @ np.ones(n_k) / (n_u * n_k * BETA))
    multiplied = kernel(x, auxiliary) @ a + kernel(x, known).sum(1) / (n_k * BETA)
    found = KuLSIF(SIGMA, BETA).fit(known, auxiliary).ratio(x)
    assert np.abs(found - multiplied).max() > 0.1


def test_the_gradient_of_eq1_vanishes_at_the_fit() -> None:
    """By central differences along every kernel function of a sample, and along some of others."""
    known, auxiliary, others = samples()
    fitted = KuLSIF(SIGMA, BETA).fit(known, auxiliary)
    z = np.concatenate([fitted.centres.numpy(), others[:5]])
    c = np.concatenate([fitted.coefficients.numpy(), np.zeros(5)])
    step, gradients, away = 1e-4, [], []
    for i in range(len(z)):
        e = np.zeros(len(z))
        e[i] = step
        gradients.append((eq1(c + e, z, known, auxiliary) - eq1(c - e, z, known, auxiliary)) / (2 * step))
        away.append(
            (eq1(1.01 * c + e, z, known, auxiliary) - eq1(1.01 * c - e, z, known, auxiliary)) / (2 * step)
        )
    assert np.abs(gradients).max() < 1e-8
    assert np.abs(away).max() > 1e-4, "the objective is too flat to tell the minimiser from its neighbours"


@pytest.mark.thorough
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_it_is_the_minimiser_that_brute_force_finds(seed: int) -> None:
    known, auxiliary, x = samples(5, 4, 2, seed)
    z = np.concatenate([auxiliary, known])
    found = minimize(eq1, np.zeros(len(z)), (z, known, auxiliary), method="BFGS", options={"gtol": 1e-9})
    fitted = KuLSIF(SIGMA, BETA).fit(known, auxiliary)
    assert eq1(fitted.coefficients.numpy(), z, known, auxiliary) == pytest.approx(found.fun, abs=1e-8)
    np.testing.assert_allclose(fitted.ratio(x), kernel(x, z) @ found.x, atol=1e-4)


# -- limits -----------------------------------------------------------------------------------------------------


def test_ratios_at_the_limits_are_those_of_kernel_densities() -> None:
    known, auxiliary, x = samples()
    found = KuLSIF(SIGMA, 1e6).fit(known, auxiliary).ratio(x)
    np.testing.assert_allclose(found * 1e6, kernel(x, known).mean(1), rtol=1e-5)
    known, auxiliary, _ = samples()
    far = np.full((1, 3), 1e3)
    assert KuLSIF(SIGMA, BETA).fit(known, auxiliary).ratio(far) == pytest.approx(0, abs=1e-30)
    rng = np.random.default_rng(4)
    both = rng.uniform(0, 1, (600, 2))
    found = KuLSIF(0.5, 1e-4).fit(both, both).ratio(both)
    np.testing.assert_allclose(found, 1, atol=0.05)


def test_between_two_gaussians_it_nears_the_true_ratio() -> None:
    """Known N(0, 1), auxiliary uniform on [-4, 4]: the ratio is 8 φ(x)."""
    rng = np.random.default_rng(3)
    known, auxiliary = rng.normal(size=(4000, 1)), rng.uniform(-4, 4, (2000, 1))
    x = np.linspace(-2.5, 2.5, 21)[:, None]
    true = 8 * np.exp(-(x[:, 0] ** 2) / 2) / np.sqrt(2 * np.pi)
    found = KuLSIF(0.8, 1e-3).fit(known, auxiliary).ratio(x)
    assert np.abs(found - true).max() < 0.35
    assert np.corrcoef(found, true)[0, 1] > 0.99


# -- how it is computed -----------------------------------------------------------------------------------------


def test_blocks_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    known, auxiliary, x = samples()
    for estimator in (KuLSIF(SIGMA, BETA), NystromKuLSIF(SIGMA, BETA, landmarks=7, seed=1)):
        whole = estimator.fit(known, auxiliary).ratio(x)
        with monkeypatch.context() as patched:
            patched.setattr("fdaudit.models.density_ratio._BLOCK", 20)
            parts = estimator.fit(known, auxiliary).ratio(x)
        np.testing.assert_allclose(parts, whole, rtol=1e-11)


def test_arrays_and_tensors_of_either_precision_agree() -> None:
    known, auxiliary, x = samples()
    exact = KuLSIF(SIGMA, BETA).fit(known, auxiliary).ratio(x)
    tensors = [torch.from_numpy(s) for s in (known, auxiliary, x)]
    found = KuLSIF(SIGMA, BETA).fit(*tensors[:2]).ratio(tensors[2])
    assert isinstance(exact, np.ndarray)
    assert isinstance(found, torch.Tensor)
    assert found.dtype == torch.float64
    np.testing.assert_array_equal(found.numpy(), exact)
    single = KuLSIF(SIGMA, BETA).fit(*(t.float() for t in tensors[:2])).ratio(tensors[2].float())
    np.testing.assert_allclose(single.numpy(), exact, rtol=1e-4, atol=1e-5)


def test_distances_survive_a_common_offset() -> None:
    """‖x‖² + ‖y‖² - 2 x·y about the origin would have lost every digit of them."""
    known, auxiliary, x = samples()
    near = KuLSIF(SIGMA, BETA).fit(known, auxiliary).ratio(x)
    far = KuLSIF(SIGMA, BETA).fit(known + 1e6, auxiliary + 1e6).ratio(x + 1e6)
    np.testing.assert_allclose(far, near, rtol=1e-6)


def test_global_random_state_is_neither_used_nor_moved() -> None:
    known, auxiliary, x = samples()
    torch.default_generator.manual_seed(1)
    before = torch.random.get_rng_state()
    first = NystromKuLSIF(SIGMA, BETA, landmarks=6, seed=2).fit(known, auxiliary).ratio(x)
    assert torch.equal(torch.random.get_rng_state(), before)
    torch.default_generator.manual_seed(2)
    again = NystromKuLSIF(SIGMA, BETA, landmarks=6, seed=2).fit(known, auxiliary).ratio(x)
    np.testing.assert_array_equal(first, again)
    other = NystromKuLSIF(SIGMA, BETA, landmarks=6, seed=3).fit(known, auxiliary).ratio(x)
    assert not np.array_equal(first, other)


# -- Nyström ----------------------------------------------------------------------------------------------------


def test_it_nears_the_exact_estimator_with_more_landmarks() -> None:
    known, auxiliary, x = samples(300, 300, 2)
    exact = KuLSIF(SIGMA, BETA).fit(known, auxiliary).ratio(x)
    errors = [
        np.abs(NystromKuLSIF(SIGMA, BETA, landmarks=m, seed=0).fit(known, auxiliary).ratio(x) - exact).max()
        for m in (4, 16, 64)
    ]
    assert errors[0] > errors[1] > errors[2]
    assert errors[2] < 1e-3 * np.abs(exact).max()


def test_single_precision_and_twins_among_the_landmarks_do_it_no_harm() -> None:
    known, auxiliary, x = samples(60, 60, 2)
    twins = np.concatenate([known, known])
    exact = KuLSIF(SIGMA, BETA).fit(known, auxiliary).ratio(x)
    fitted = NystromKuLSIF(SIGMA, BETA, landmarks=180, seed=0).fit(
        twins.astype(np.float32), auxiliary.astype(np.float32)
    )
    np.testing.assert_allclose(fitted.ratio(x.astype(np.float32)), exact, rtol=1e-2, atol=2e-3)


# -- bad input --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("made", "says"),
    [
        (lambda: KuLSIF(0.0, 0.1), "bandwidth = 0.0"),
        (lambda: KuLSIF(1.0, -1.0), "beta = -1.0"),
        (lambda: KuLSIF(float("nan"), 0.1), "bandwidth = nan"),
        (lambda: NystromKuLSIF(1.0, 0.1, landmarks=0, seed=0), "landmarks = 0"),
        (lambda: KuLSIF(1.0, 0.1).fit(np.zeros((0, 2)), np.zeros((3, 2))), "known: holds no sample"),
        (lambda: KuLSIF(1.0, 0.1).fit(np.zeros((3, 2)), np.zeros((0, 2))), "auxiliary: holds no sample"),
        (lambda: KuLSIF(1.0, 0.1).fit(np.zeros((3, 2)), np.zeros((3, 4))), "auxiliary: has 4 dimensions"),
        (lambda: KuLSIF(1.0, 0.1).fit(np.zeros((3, 2, 2)), np.zeros((3, 4))), "shape"),
        (lambda: KuLSIF(1.0, 0.1).fit(np.full((3, 2), np.nan), np.zeros((3, 2))), "NaN"),
        (
            lambda: KuLSIF(1.0, 0.1).fit(np.eye(2), np.eye(2)).ratio(np.zeros((1, 3))),
            "x: has 3 dimensions",
        ),
        (lambda: KuLSIF(1.0, 1e-300).fit(np.ones((3, 2)), np.ones((3, 2))), "beta = 1e-300"),
    ],
)
def test_bad_input_is_named(made: Any, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        made()
