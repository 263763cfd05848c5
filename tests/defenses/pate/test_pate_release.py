"""A data-dependent ε: private as computed, and public with noise scaled to its smooth sensitivity."""

from __future__ import annotations

import itertools
import math

import mpmath as mp
import numpy as np
import pytest
from fdaudit.defenses.pate import (
    DataDependentEpsilon,
    SmoothRelease,
    gnmax_epsilon,
    gnmax_independent_rdp,
    gnmax_rdp,
    gnmax_smooth_sensitivity,
    release_gnmax_epsilon,
)
from hypothesis import given, settings
from hypothesis import strategies as st

from fdaudit.rng import SecretStream

from ...helpers.refusals import refused
from .pate_exact import neighbours

SECRET = b"a secret of sixteen bytes or more"
VOTES = np.array([[60, 3, 2]] * 40 + [[30, 25, 10]] * 10)


def epsilon_of(rdp, order, delta):
    """Canonne, Kamath & Steinke 2020, Proposition 12, as printed."""
    return rdp + math.log((order - 1) / order) - (math.log(delta) + math.log(order)) / (order - 1)


# -- the auditor's figure -----------------------------------------------------------------------------------------


def test_the_figure_is_the_best_order_of_the_sum_and_the_auditors_own():
    orders = [1.5, 4.0, 16.0, 64.0]
    total = gnmax_rdp(VOTES, 8.0, orders).sum(0)
    each = [epsilon_of(rdp, order, 1e-5) for rdp, order in zip(total, orders, strict=True)]
    found = gnmax_epsilon(VOTES, 8.0, orders, 1e-5)
    assert found.epsilon == pytest.approx(min(each))
    assert found.order == orders[int(np.argmin(each))]
    assert found.auditor_only
    assert DataDependentEpsilon(epsilon=1.0, delta=1e-5, order=2.0).auditor_only, (
        "private unless said otherwise"
    )


# -- sensitivity --------------------------------------------------------------------------------------------------


@settings(deadline=None, max_examples=60)
@given(
    votes=st.lists(st.lists(st.integers(0, 30), min_size=3, max_size=3), min_size=1, max_size=4),
    sigma=st.floats(0.4, 25),
    order=st.floats(1.2, 30),
    share=st.floats(0.05, 0.9),
    data=st.data(),
)
def test_no_neighbour_moves_the_figure_by_more_than_s_nor_its_logarithm_by_more_than_beta(
    votes, sigma, order, share, data
):
    """A client changes its vote in every query at once; both sides of the inequality from either side."""
    beta = share * 0.5 * math.log1p(1 / (order - 1))
    near = [data.draw(st.sampled_from([tuple(row), *neighbours(row)])) for row in votes]
    value, smooth = gnmax_smooth_sensitivity(votes, sigma, order, beta)
    other, other_smooth = gnmax_smooth_sensitivity(near, sigma, order, beta)
    assert abs(value - other) <= min(smooth, other_smooth) * (1 + 1e-9)
    assert abs(math.log(smooth / other_smooth)) <= beta + 1e-9


def test_sensitivity_holds_over_every_histogram_of_a_few_clients():
    """All histograms of ten clients, abstentions included, and all their neighbours."""
    rows = [r for r in itertools.product(range(11), repeat=3) if sum(r) <= 10 and max(r) == r[0]]
    for sigma, order in ((0.8, 3.0), (1.2, 2.0)):
        figures = {}
        for row in rows:
            for votes in [row, *neighbours(row)]:
                figures[votes] = figures.get(votes) or gnmax_smooth_sensitivity([votes], sigma, order, 0.15)
        moved = 0.0
        for row in rows:
            value, smooth = figures[row]
            for near in neighbours(row):
                assert abs(value - figures[near][0]) <= smooth * (1 + 1e-9)
                assert figures[near][1] <= smooth * math.exp(0.15) * (1 + 1e-9)
                moved = max(moved, abs(value - figures[near][0]))
        assert moved > 0.01 * order / sigma**2, "nothing moved: the test would show nothing"


@settings(deadline=None, max_examples=60)
@given(
    votes=st.lists(st.lists(st.integers(0, 90), min_size=3, max_size=3), min_size=1, max_size=5),
    sigma=st.floats(0.4, 60),
    order=st.floats(1.2, 60),
)
def test_the_tabled_figure_is_at_least_the_bound_and_at_most_the_data_independent_one(votes, sigma, order):
    value, smooth = gnmax_smooth_sensitivity(votes, sigma, order, 0.001)
    bound, independent = gnmax_rdp(votes, sigma, [order]).sum(), len(votes) * order / sigma**2
    assert bound * (1 - 1e-9) <= value <= independent * (1 + 1e-9)
    assert smooth > 0


def test_the_table_costs_little():
    """Cells are narrow beside σ: the figure is larger than the bound by a few parts in a hundred."""
    votes, bound = [[150, 60, 40]] * 100, gnmax_rdp([[150, 60, 40]] * 100, 20.0, [12.0]).sum()
    value, _ = gnmax_smooth_sensitivity(votes, 20.0, 12.0, 0.01)
    assert 1 <= value / bound < 1.1
    assert value < 0.1 * gnmax_independent_rdp(20.0, [12.0])[0] * 100


def test_far_from_where_the_figure_moves_smooth_sensitivity_fades_with_distance():
    found = [gnmax_smooth_sensitivity([[lead, 0]], 5.0, 8.0, 0.02)[1] for lead in (40, 50)]
    fade = math.exp(-0.02 * 10 / 2)
    assert found[1] == pytest.approx(found[0] * fade, rel=0.01), "ten votes are five steps of two"


# -- the release --------------------------------------------------------------------------------------------------


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("order", "beta", "scale"), [(2.0, 0.1, 1.0), (8.0, 0.02, 4.0), (20.0, 0.01, 7.0), (4.0, 0.09375, 1.0)]
)
def test_the_noisy_figure_costs_what_its_worst_pair_of_gaussians_diverges_by(order, beta, scale):
    """By integration, for means one S apart and smooth sensitivities that differ by up to e^β either way."""
    release = SmoothRelease(order=order, beta=beta, scale=scale)

    def diverges(s, t):
        apart, reach = min(s, t) / scale, 60 * max(s, t)
        total = mp.quad(
            lambda x: mp.npdf(x, 0, s) ** order * mp.npdf(x, apart, t) ** (1 - order),
            [reach * k / 10 for k in range(-10, 11)],
        )
        return float(mp.log(total) / (order - 1))

    worst = max(diverges(1.0, math.exp(beta * k)) for k in (-1, -0.5, 0, 0.5, 1))
    assert release.value_rdp == pytest.approx(worst, rel=1e-9)
    assert release.rdp == pytest.approx(release.value_rdp + order / (2 * 10.0**2))


def theorem_23(order, beta, scale):
    """The bound of Papernot et al. 2018, as their code has it."""
    rest = beta * order - 0.5 * math.log(1 - 2 * order * beta)
    return order * math.exp(2 * beta) / scale**2 + rest / (order - 1)


@settings(deadline=None, max_examples=100)
@given(order=st.floats(1.1, 200), share=st.floats(0.01, 0.4), scale=st.floats(0.5, 100))
def test_the_cost_is_below_theorem_23s_for_small_beta(order, share, scale):
    beta = share / (2 * order)
    assert 0 < SmoothRelease(order=order, beta=beta, scale=scale).value_rdp <= theorem_23(order, beta, scale)


def test_the_cost_is_above_theorem_23s_where_beta_is_large():
    """The last case of the integration above: that bound is too small there."""
    assert SmoothRelease(order=4.0, beta=0.09375, scale=1.0).value_rdp > 1.02 * theorem_23(4.0, 0.09375, 1.0)


def test_what_is_released_may_leave_and_is_as_private_as_it_says():
    release = SmoothRelease(order=12.0, beta=0.01, scale=10.0)
    found = release_gnmax_epsilon(VOTES, 8.0, 1e-5, release, SecretStream(SECRET, "release"))
    assert not found.auditor_only
    assert (found.order, found.delta, found.failure) == (12.0, 1e-5, 1e-6)
    value, _ = gnmax_smooth_sensitivity(VOTES, 8.0, 12.0, 0.01)
    exact = epsilon_of(value + release.rdp, 12.0, 1e-5)
    independent = epsilon_of(len(VOTES) * 12.0 / 64 + release.rdp, 12.0, 1e-5)
    assert exact <= found.epsilon <= independent
    again = release_gnmax_epsilon(VOTES, 8.0, 1e-5, release, SecretStream(SECRET, "release"))
    assert again == found, "the noise follows from the secret"


def test_the_released_figure_is_too_small_no_oftener_than_it_says():
    """With a failure of 0.2 and 500 draws: not never, since the bound is not that loose, and not oftener."""
    release = SmoothRelease(order=4.0, beta=0.001, scale=1.0, log_scale=1.0, failure=0.2)
    votes = np.array([[40, 0, 0]] * 50 + [[24, 10, 6]] * 10)
    value, _ = gnmax_smooth_sensitivity(votes, 4.0, 4.0, 0.001)
    exact = epsilon_of(value + release.rdp, 4.0, 1e-5)
    low = [
        release_gnmax_epsilon(votes, 4.0, 1e-5, release, SecretStream(SECRET, "draw", n)).epsilon < exact
        for n in range(500)
    ]
    assert 0 < np.mean(low) < 0.2


def test_a_release_can_be_worth_its_noise():
    """Many queries on which clients agree: released, the ε is well below the data-independent one."""
    votes = np.array([[2000, 50, 10]] * 2000)
    release = SmoothRelease(order=8.0, beta=0.04, scale=20.0)
    found = release_gnmax_epsilon(votes, 100.0, 1e-5, release, SecretStream(SECRET, "worth"))
    independent = epsilon_of(len(votes) * 8.0 / 100**2, 8.0, 1e-5)
    assert independent > 2
    assert found.epsilon - epsilon_of(0.0, 8.0, 1e-5) < 0.5 * (independent - epsilon_of(0.0, 8.0, 1e-5))


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"order": 1.0}, "orders"),
        ({"beta": 0.0}, "beta"),
        ({"beta": 0.06}, "beta"),
        ({"scale": -1.0}, "scale"),
        ({"log_scale": 0.0}, "log_scale"),
        ({"failure": 0.0}, "failure"),
        ({"failure": 1.0}, "failure"),
    ],
)
def test_impossible_parameters_are_refused(change, field):
    refused(lambda: SmoothRelease(**{"order": 10.0, "beta": 0.01, "scale": 2.0} | change), field)


def test_impossible_figures_are_refused():
    for field, call in (
        ("delta", lambda: gnmax_epsilon(VOTES, 8.0, [2.0], 0.0)),
        ("delta", lambda: gnmax_epsilon(VOTES, 8.0, [2.0], 1.0)),
        ("votes", lambda: gnmax_smooth_sensitivity(np.zeros((0, 3)), 8.0, 2.0, 0.1)),
        ("votes", lambda: gnmax_smooth_sensitivity([[3]], 8.0, 2.0, 0.1)),
        ("sigma", lambda: gnmax_smooth_sensitivity([[3, 1]], 1e9, 2.0, 0.1)),
        ("beta", lambda: gnmax_smooth_sensitivity([[3, 1]], 1.0, 2.0, 0.0)),
    ):
        refused(call, field)
