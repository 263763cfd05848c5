"""Privacy-loss distributions: reference figures, and pairs held to hockey-stick divergences that are integrated."""

from __future__ import annotations

import math
from itertools import product

import dp_accounting as dp
import numpy as np
import pytest
from dp_accounting import get_epsilon_gaussian
from dp_accounting.pld import PLDAccountant
from numpy.typing import NDArray

from fdaudit.accounting.charges import Drawn, converted
from fdaudit.accounting.costs import epsilon
from fdaudit.accounting.losses.composition import at_delta, losses
from fdaudit.events import DiscreteGaussian, Gaussian, Laplace, PureDP, SampledGaussian

from ..helpers.ledger_cases import CLIENT, RECORD

DELTA = 1e-5
Densities = NDArray[np.float64]


def dp_sgd(scale: float, rate: float, steps: int) -> SampledGaussian:
    return SampledGaussian(sensitivity=1.0, scale=scale, sample_rate=rate, count=steps, **RECORD)


@pytest.mark.parametrize(
    ("event", "expected"),
    [
        (dp_sgd(1.0, 0.01, 1000), 1.8282),
        (Gaussian(sensitivity=1.0, scale=10.0, count=100, **CLIENT), 4.3772),
        (Gaussian(sensitivity=1.0, scale=40.0, count=1000, **CLIENT), 3.3414),
        (Gaussian(sensitivity=math.sqrt(2), scale=40.0, count=1000, **CLIENT), 4.983),
    ],
    ids=["DP-SGD", "100 Gaussians", "1,000 Gaussians", "1,000 GNMax queries"],
)
def test_reference_figures(event: Gaussian | SampledGaussian, expected: float) -> None:
    assert epsilon({event: 1}, DELTA).value == pytest.approx(expected, abs=1e-3)


@pytest.mark.thorough
@pytest.mark.parametrize("scale", [0.3, 0.4, 0.5])
def test_loud_releases_cost_what_the_library_says_on_its_own_grid(scale: float) -> None:
    event = dp.SelfComposedDpEvent(dp.PoissonSampledDpEvent(0.1, dp.GaussianDpEvent(scale)), 200)
    expected = PLDAccountant(value_discretization_interval=1e-3).compose(event).get_epsilon(DELTA)
    assert epsilon({dp_sgd(scale, 0.1, 200): 1}, DELTA).value == pytest.approx(expected, rel=1e-4)


@pytest.mark.parametrize("delta", [1e-5, 1e-8, 1e-10])
def test_rounding_of_long_convolutions_never_lowers_epsilon(delta: float) -> None:
    from dp_accounting.pld.privacy_loss_distribution import from_gaussian_mechanism

    exact = get_epsilon_gaussian(3 / math.sqrt(1000), delta)
    convolved = from_gaussian_mechanism(3.0, value_discretization_interval=1e-3).self_compose(1000)
    assert exact <= at_delta(convolved, delta) <= exact * 1.01
    assert at_delta(convolved, 1e-11) == math.inf


def test_replacing_a_record_is_twice_removing_it_where_nothing_is_sampled() -> None:
    whole = converted(dp_sgd(4.0, 1.0, 20), "record", "replace-one")
    assert isinstance(whole, SampledGaussian)
    expected = get_epsilon_gaussian(4.0 / 2 / math.sqrt(20), DELTA)
    assert epsilon({whole: 1}, DELTA).value == pytest.approx(expected, rel=1e-3)


# -- one client of many -------------------------------------------------------------------------------------------

GRID = np.linspace(-9.0, 10.0, 4001)
STEP = GRID[1] - GRID[0]


def normal(mean: float, noise: float) -> Densities:
    found: Densities = np.exp(-(((GRID - mean) / noise) ** 2) / 2) / (noise * math.sqrt(2 * math.pi))
    return found


def stick(p: Densities, q: Densities, eps: float) -> float:
    return float(np.maximum(p - math.exp(eps) * q, 0).sum()) * STEP**p.ndim


@pytest.mark.thorough
@pytest.mark.parametrize("clients", [2, 3])
@pytest.mark.parametrize("noise", [0.5, 1.0])
def test_a_drawn_client_is_dominated_wherever_the_others_stand(clients: int, noise: float) -> None:
    """Means within one sensitivity of each other, on a line; ε of both signs, as a composition needs."""
    event = Gaussian(sensitivity=1.0, scale=noise, **CLIENT)
    claimed = losses({Drawn(gaussian=event, clients=clients, steps=1): 1})
    for others in product((0.0, 0.5, 1.0), repeat=clients - 1):
        rest = sum((normal(mean, noise) for mean in others), np.zeros_like(GRID))
        p, q = ((rest + normal(mean, noise)) / clients for mean in (0.0, 1.0))
        for eps in (-0.5, -0.1, 0.0, 0.1, 0.3, 0.8, 1.5):
            for one, other in ((p, q), (q, p)):
                assert stick(one, other, eps) <= claimed.get_delta_for_epsilon(eps) + 1e-6


@pytest.mark.thorough
def test_two_steps_with_the_others_placed_anew_are_dominated() -> None:
    """No proof covers this case for the pairs of Poisson sampling: the others stand beside either value in turn."""
    clients, noise = 2, 0.5
    grid = GRID[::5]
    event = Gaussian(sensitivity=1.0, scale=noise, **CLIENT)
    claimed = losses({Drawn(gaussian=event, clients=clients, steps=2): 1})
    low, high = normal(0.0, noise)[::5], normal(1.0, noise)[::5]
    mixed = (low + high) / 2
    p, q = np.multiply.outer(mixed, low), np.multiply.outer(high, mixed)
    width = (grid[1] - grid[0]) ** 2
    for eps in (0.0, 0.5, 1.0, 2.0):
        for one, other in ((p, q), (q, p)):
            found = float(np.maximum(one - math.exp(eps) * other, 0).sum()) * width
            assert found <= claimed.get_delta_for_epsilon(eps) + 1e-6


def test_a_draw_is_priced_by_its_losses() -> None:
    """Above the figure for Poisson sampling, and below the one by Rényi curves."""
    event = Gaussian(sensitivity=2.0, scale=8.0, **CLIENT)
    found = epsilon({Drawn(gaussian=event, clients=10, steps=100): 1}, DELTA).value
    assert epsilon({dp_sgd(4.0, 0.1, 100): 1}, DELTA).value < found == pytest.approx(1.0346, abs=1e-3)
    alone = epsilon({Drawn(gaussian=event, clients=1, steps=100): 1}, DELTA).value
    assert alone == pytest.approx(get_epsilon_gaussian(4.0 / 10, DELTA), rel=1e-3)


# -- whole numbers ------------------------------------------------------------------------------------------------


def whole_number_deltas(shifts: tuple[int, ...], scale: float, eps: NDArray[np.float64]) -> list[float]:
    """δ of discrete Gaussian noise on a vector that moves by so much, by summation."""
    reach = int(12 * scale) + max(shifts)
    x = np.arange(-reach, reach + 1)
    p, q = np.ones(()), np.ones(())
    for shift in shifts:
        one, other = (np.exp(-((x - s) ** 2) / (2 * scale**2)) for s in (0, shift))
        p, q = np.multiply.outer(p, one / one.sum()), np.multiply.outer(q, other / one.sum())
    return [float(np.maximum(p - math.exp(e) * q, 0).sum()) for e in eps]


@pytest.mark.thorough
@pytest.mark.parametrize("scale", [0.7, 1.5, 3.0, 8.0])
@pytest.mark.parametrize("shifts", [(1,), (3,), (1, 1), (2, 1)])
def test_discrete_gaussian_losses_are_never_below_the_sum(scale: float, shifts: tuple[int, ...]) -> None:
    event = DiscreteGaussian(sensitivity=math.hypot(*shifts), scale=scale, **CLIENT)
    eps = np.array([-2.0, -0.5, 0.0, 0.2, 0.5, 1.0, 2.0])
    claimed = [losses({event: 1}).get_delta_for_epsilon(e) for e in eps]
    assert all(a <= b + 1e-9 for a, b in zip(whole_number_deltas(shifts, scale, eps), claimed, strict=True))


def test_a_discrete_gaussian_leaves_the_figures_beside_it_fine() -> None:
    both = {dp_sgd(1.0, 0.01, 1000): 1, DiscreteGaussian(sensitivity=1.0, scale=10.0, **RECORD): 1}
    found = epsilon(both, DELTA)
    assert found.accountant.startswith("PLD")
    assert found.value < 1.872 < 2.13 < epsilon(both, DELTA, pld=False).value


def test_every_kind_of_charge_has_losses() -> None:
    gaussian = Gaussian(sensitivity=1.0, scale=4.0, **RECORD)
    charges = {
        gaussian: 1,
        dp_sgd(2.0, 0.1, 3): 1,
        Laplace(sensitivity=1.0, scale=9.0, **RECORD): 2,
        PureDP(epsilon=0.1, **RECORD): 1,
        DiscreteGaussian(sensitivity=1.0, scale=0.9, **RECORD): 1,
        Drawn(gaussian=gaussian, clients=4, steps=5): 1,
    }
    together = at_delta(losses(charges, 10), DELTA)
    assert math.isfinite(together)
    assert together > max(at_delta(losses({c: 1}, 10), DELTA) for c in charges)
