"""What PATE's queries cost: against laws integrated in 40 digits, the papers' formulas, and laws of their own."""

from __future__ import annotations

import itertools
import math

import mpmath as mp
import numpy as np
import pytest
from fdaudit.defenses.pate import (
    confident_gnmax_capped_rdp,
    confident_gnmax_independent_rdp,
    confident_gnmax_rdp,
    gnmax_independent_rdp,
    gnmax_log_q,
    gnmax_rdp,
    lnmax_independent_rdp,
    lnmax_log_q,
    lnmax_rdp,
    threshold_rdp,
)
from hypothesis import given, settings
from hypothesis import strategies as st

from fdaudit.errors import SpecError

from ...helpers.refusals import refused
from .pate_exact import ORDERS, THRESHOLD, divergence, gaussian, law, neighbours
from .pate_figures import EXACT

RANGE = [1 + 1e-12, 1.001, 1.5, 2.0, 3.0, 10.0, 64.0, 1e3, 1e8]


def cases(mechanism):
    found = [case[1:] for case in EXACT if case[0] == mechanism]
    return pytest.mark.parametrize(("votes", "scale", "q", "exact"), found, ids=[str(c[0]) for c in found])


def histograms(most=60, classes=5):
    return st.lists(st.integers(0, most), min_size=2, max_size=classes)


SIGMAS = st.floats(0.3, 60)
ALPHAS = st.floats(1.01, 200)


# -- against integration ------------------------------------------------------------------------------------------


@cases("gnmax")
def test_gnmax_lies_between_the_exact_divergence_and_the_data_independent_one(votes, scale, q, exact):
    (found,) = gnmax_rdp([votes], scale, ORDERS)
    assert (found >= np.array(exact) * (1 - 1e-12)).all()
    assert (found <= np.array(ORDERS) / scale**2).all()
    assert gnmax_log_q([votes], scale)[0] >= math.log(q) - 1e-12


@cases("lnmax")
def test_lnmax_lies_between_the_exact_divergence_and_the_data_independent_one(votes, scale, q, exact):
    (found,) = lnmax_rdp([votes], scale, ORDERS)
    assert (found >= np.array(exact) * (1 - 1e-12)).all()
    assert (found <= np.minimum(2 * scale, 2 * scale**2 * np.array(ORDERS))).all()
    assert lnmax_log_q([votes], scale)[0] >= math.log(q) - 1e-12


@cases("threshold")
def test_the_threshold_step_costs_what_its_bit_diverges_by(votes, scale, q, exact):
    (found,) = threshold_rdp([votes], THRESHOLD, scale, ORDERS)
    assert mp.ncdf((max(votes) - THRESHOLD) / scale) == pytest.approx(q, rel=1e-12)
    np.testing.assert_allclose(found, exact, rtol=1e-10)
    assert (found >= np.array(exact) * (1 - 1e-14)).all()
    assert (found <= np.array(ORDERS) / (2 * scale**2)).all()


def test_the_bound_tells_consensus_from_a_tie():
    """Where clients agree the figure is a small part of the data-independent one; at a tie it is that."""
    agreed, tied = gnmax_rdp([(60, 0, 0), (20, 20, 20)], 8.0, [10.0])[:, 0]
    assert agreed < 0.02 * 10 / 64
    assert tied == 10 / 64


def test_the_figure_speaks_of_one_direction_as_the_paper_defines_it():
    """From the neighbour with the shorter lead the divergence is larger: that one's own figure bounds it."""

    def outcome(lead):
        return mp.ncdf(lead / (mp.sqrt(2) * 2)), mp.ncdf(-lead / (mp.sqrt(2) * 2))

    with mp.workdps(60):
        to, back = (float(divergence(outcome(a), outcome(b), 4)) for a, b in ((30, 28), (28, 30)))
    here, there = gnmax_rdp([(30, 0), (29, 1)], 2.0, [4.0])[:, 0]
    assert to <= here < back <= there


def test_of_two_classes_and_of_equal_rivals_the_first_probability_is_known_in_closed_form():
    """Two classes: Φ(-lead / √2σ), exactly; a rival of LNMax: (2 + γ lead) / 4e^{γ lead}."""
    for lead, sigma in ((1, 4.0), (20, 5.0), (300, 7.0)):
        wanted = float(mp.log(mp.ncdf(-lead / (mp.sqrt(2) * sigma))))
        assert gnmax_log_q([(lead, 0)], sigma)[0] == pytest.approx(wanted, rel=1e-12)
        gamma = 1 / sigma
        wanted = math.log(2 + gamma * lead) - math.log(4) - gamma * lead
        assert lnmax_log_q([(lead, 0)], gamma)[0] == pytest.approx(wanted, rel=1e-12)


@settings(deadline=None, max_examples=25)
@given(votes=st.lists(st.integers(0, 12), min_size=2, max_size=2), sigma=st.floats(0.5, 8), order=ALPHAS)
def test_no_neighbour_of_two_classes_diverges_by_more(votes, sigma, order):
    """The law of two classes in closed form, in digits enough for its tail."""

    def outcome(a, b):
        lead = (a - b) / (mp.sqrt(2) * sigma)
        return mp.ncdf(lead), mp.ncdf(-lead)

    with mp.workdps(200):
        exact = max(divergence(outcome(*votes), outcome(*near), order) for near in neighbours(votes))
        bit = [
            [(mp.ncdf((max(v) - 5) / sigma), mp.ncdf((5 - max(v)) / sigma)) for v in (votes, near)]
            for near in neighbours(votes)
        ]
        step = max(divergence(*pair, order) for pair in bit)
    assert gnmax_rdp([votes], sigma, [order])[0, 0] >= float(exact) * (1 - 1e-12)
    assert threshold_rdp([votes], 5, sigma, [order])[0, 0] >= float(step) * (1 - 1e-12)


def test_the_integration_agrees_with_the_closed_form():
    """The reference itself: two classes by integration."""
    with mp.workdps(20):
        assert law((5, 3), gaussian(2.0))[0] == pytest.approx(mp.ncdf(1 / mp.sqrt(2)), rel=1e-12)


# -- against the papers' formulas ---------------------------------------------------------------------------------


def theorem_6(votes, sigma, order):
    """Papernot et al. 2018: Theorem 6 with Propositions 7 and 10, as printed, or None where it does not apply."""
    first, *rest = sorted(map(mp.mpf, votes), reverse=True)
    q = mp.fsum(mp.erfc((first - n) / (2 * sigma)) for n in rest) / 2
    q = min(q, 1 - mp.mpf(1) / len(votes))
    mu2 = sigma * mp.sqrt(mp.log(1 / q))
    mu1 = mu2 + 1
    eps1, eps2 = mu1 / sigma**2, mu2 / sigma**2
    if order > mu1 or mu2 <= 1:
        return None
    if q > mp.exp((mu2 - 1) * eps2) / (mu1 / (mu1 - 1) * mu2 / (mu2 - 1)) ** mu2:
        return None
    a = (1 - q) / (1 - (q * mp.exp(eps2)) ** ((mu2 - 1) / mu2))
    b = mp.exp(eps1) / q ** (1 / (mu1 - 1))
    return mp.log((1 - q) * a ** (order - 1) + q * b ** (order - 1)) / (order - 1)


def theorem_3(votes, gamma, order):
    """Papernot et al. 2017: Theorem 3 with Lemma 4, as printed, or None where it does not apply."""
    first, *rest = sorted(map(mp.mpf, votes), reverse=True)
    q = mp.fsum((2 + gamma * (first - n)) / (4 * mp.exp(gamma * (first - n))) for n in rest)
    if q >= (mp.exp(2 * gamma) - 1) / (mp.exp(4 * gamma) - 1):
        return None
    moment = mp.mpf(order) - 1
    share = (1 - q) * ((1 - q) / (1 - mp.exp(2 * gamma) * q)) ** moment
    return mp.log(share + q * mp.exp(2 * gamma * moment)) / moment


@settings(deadline=None, max_examples=60)
@given(votes=histograms(200), sigma=SIGMAS, order=ALPHAS)
def test_gnmax_is_theorem_6_where_it_applies_and_helps(votes, sigma, order):
    with mp.workdps(400):
        bound = theorem_6(votes, mp.mpf(sigma), mp.mpf(order))
    independent = order / sigma**2
    wanted = independent if bound is None else min(float(bound), independent)
    assert gnmax_rdp([votes], sigma, [order])[0, 0] == pytest.approx(wanted, rel=1e-8, abs=1e-300)


@settings(deadline=None, max_examples=60)
@given(votes=histograms(200), gamma=st.floats(0.01, 3), order=ALPHAS)
def test_lnmax_is_theorem_3_where_it_applies_and_helps(votes, gamma, order):
    with mp.workdps(400):
        bound = theorem_3(votes, mp.mpf(gamma), mp.mpf(order))
    independent = lnmax_independent_rdp(gamma, [order])[0]
    wanted = independent if bound is None else min(float(bound), independent)
    assert lnmax_rdp([votes], gamma, [order])[0, 0] == pytest.approx(wanted, rel=1e-8, abs=1e-300)


@settings(deadline=None, max_examples=60)
@given(gamma=st.floats(1e-6, 400), order=st.floats(1.001, 1e4))
def test_what_lnmax_costs_whatever_the_votes_is_what_randomised_response_costs(gamma, order):
    found = lnmax_independent_rdp(gamma, [order])[0]
    with mp.workdps(400):
        p = 1 / (1 + mp.exp(-2 * mp.mpf(gamma)))
        wanted = divergence((p, 1 - p), (1 - p, p), order)
    assert found == pytest.approx(float(wanted), rel=1e-10)
    assert found <= min(2 * gamma, 2 * gamma**2 * order) * (1 + 1e-12), "pure, and Theorem 2's moments"


def test_what_gnmax_costs_whatever_the_votes_is_a_gaussian_of_sensitivity_root_two():
    for sigma in (0.5, 4.0, 100.0):
        wanted = [a * math.sqrt(2) ** 2 / (2 * sigma**2) for a in RANGE]
        np.testing.assert_allclose(gnmax_independent_rdp(sigma, RANGE), wanted)
        step = [a / (2 * 9.0) for a in RANGE]
        each = confident_gnmax_independent_rdp(3.0, sigma, RANGE, queries=7, cap=2)
        np.testing.assert_allclose(each, 7 * np.array(step) + 2 * np.array(wanted))


# -- laws ---------------------------------------------------------------------------------------------------------


@settings(deadline=None, max_examples=80)
@given(votes=histograms(), scale=st.floats(0.02, 60))
def test_a_longer_lead_never_costs_more(votes, scale):
    lengths = [np.array(votes) + step * np.eye(len(votes), dtype=int)[np.argmax(votes)] for step in range(40)]
    for rdp, log_q in ((gnmax_rdp, gnmax_log_q), (lnmax_rdp, lnmax_log_q)):
        assert (np.diff(log_q(lengths, scale)) <= 1e-12).all()
        found = rdp(lengths, scale, RANGE[:7])
        assert (np.diff(found, axis=0) <= 1e-9 * found[:-1] + 1e-15).all()


@settings(deadline=None, max_examples=40)
@given(votes=histograms(), sigma=SIGMAS, factor=st.floats(1, 20), order=ALPHAS)
def test_more_noise_costs_less_whatever_the_votes_and_hides_the_plurality(votes, sigma, factor, order):
    """A data-dependent figure does not fall with σ where clients agree: little noise leaves one outcome alone."""
    assert gnmax_independent_rdp(sigma * factor, [order]) <= gnmax_independent_rdp(sigma, [order])
    assert lnmax_independent_rdp(1 / (sigma * factor), [order]) <= lnmax_independent_rdp(1 / sigma, [order])
    assert gnmax_log_q([votes], sigma * factor)[0] >= gnmax_log_q([votes], sigma)[0] - 1e-12
    assert lnmax_log_q([votes], 1 / (sigma * factor))[0] >= lnmax_log_q([votes], 1 / sigma)[0] - 1e-12
    assert (gnmax_rdp([votes], sigma, [order]) <= gnmax_independent_rdp(sigma, [order])).all()
    tied = [[max(votes)] * len(votes)]
    assert gnmax_rdp(tied, sigma * factor, [order]) <= gnmax_rdp(tied, sigma, [order])


@settings(deadline=None, max_examples=40)
@given(
    rows=st.lists(histograms(), min_size=1, max_size=6), scale=st.floats(0.1, 30), shift=st.integers(0, 50)
)
def test_a_row_depends_on_its_own_leads_and_on_nothing_else(rows, scale, shift):
    padded = np.zeros((len(rows), 5), dtype=int)
    for row, votes in zip(padded, rows, strict=True):
        row[: len(votes)] = votes
    for rdp in (gnmax_rdp, lnmax_rdp):
        found = rdp(padded, scale, RANGE)
        for number, row in enumerate(padded):
            np.testing.assert_allclose(rdp([row[::-1] + shift], scale, RANGE)[0], found[number], rtol=1e-9)


def test_many_rows_and_orders_come_out_as_one_by_one():
    """More than a block of both."""
    votes = np.stack([np.arange(3000) % 71, np.arange(3000) % 7, np.zeros(3000, dtype=int)], 1)
    orders = np.linspace(1.5, 90, 300)
    for rdp in (
        lambda v, a: gnmax_rdp(v, 6.0, a),
        lambda v, a: lnmax_rdp(v, 0.2, a),
        lambda v, a: confident_gnmax_rdp(v, 30, 9.0, 6.0, a),
    ):
        found = rdp(votes, orders)
        for row, column in ((0, 0), (1747, 299), (1748, 1), (2999, 150)):
            assert found[row, column] == rdp(votes[row : row + 1], orders[column : column + 1])[0, 0]


@pytest.mark.parametrize("scale", [1e-50, 1e-3, 1.0, 1e3, 1e50])
@pytest.mark.parametrize("votes", [[[2**53, 0]], [[5]], np.zeros((0, 3)), [[0, 0, 0]], [[1, 1], [1000, 0]]])
def test_at_extremes_figures_stay_finite_and_silent(votes, scale):
    orders = [1 + 1e-15, 2.0, 1e50]
    for found in (
        gnmax_rdp(votes, scale, orders),
        lnmax_rdp(votes, scale, orders),
        confident_gnmax_rdp(votes, 2**53, scale, scale, orders),
        confident_gnmax_rdp(votes, -1, scale, scale, orders),
    ):
        assert found.shape == (len(votes), 3)
        assert np.isfinite(found).all()
        assert (found >= 0).all()


# -- Confident-GNMax ----------------------------------------------------------------------------------------------

VOTES = np.array([[30, 10, 8], [12, 11, 0], [40, 0, 0], [3, 2, 1], [0, 0, 0]])


def test_every_query_pays_the_threshold_and_those_answered_pay_gnmax_in_full():
    step, answer = threshold_rdp(VOTES, 20, 6.0, ORDERS), gnmax_rdp(VOTES, 4.0, ORDERS)
    mask = np.array([True, False, True, False, False])
    found = confident_gnmax_rdp(VOTES, 20, 6.0, 4.0, ORDERS, mask)
    np.testing.assert_allclose(found[mask], (step + answer)[mask], rtol=1e-14)
    np.testing.assert_array_equal(found[~mask], step[~mask])
    np.testing.assert_allclose(confident_gnmax_rdp(VOTES, 20, 6.0, 4.0, ORDERS), step + answer, rtol=1e-14)
    independent = confident_gnmax_independent_rdp(6.0, 4.0, ORDERS, queries=5)
    assert (confident_gnmax_rdp(VOTES, 20, 6.0, 4.0, ORDERS).sum(0) <= independent).all()


@pytest.mark.parametrize("cap", range(7))
def test_under_a_cap_the_total_is_that_of_the_costliest_answers(cap):
    """Against every set of answers that the cap allows."""
    allowed = [m for m in itertools.product([False, True], repeat=5) if sum(m) <= cap]
    totals = [confident_gnmax_rdp(VOTES, 20, 6.0, 4.0, ORDERS, np.array(m)).sum(0) for m in allowed]
    found = confident_gnmax_capped_rdp(VOTES, 20, 6.0, 4.0, ORDERS, cap)
    np.testing.assert_allclose(found, np.max(totals, axis=0), rtol=1e-12)
    assert (found <= confident_gnmax_independent_rdp(6.0, 4.0, ORDERS, queries=5, cap=cap)).all()


@settings(deadline=None, max_examples=40)
@given(largest=st.integers(0, 300), sigma=st.floats(0.5, 1e9), threshold=st.floats(-50, 400), order=ALPHAS)
def test_the_threshold_step_is_capped_and_never_rounded_below_its_divergence(
    largest, sigma, threshold, order
):
    """Also where the two bits are so alike that their difference is lost in rounding."""
    found = threshold_rdp([[largest, 0]], threshold, sigma, [order])[0, 0]
    with mp.workdps(320):
        bits = [
            (mp.ncdf((mp.mpf(v) - threshold) / sigma), mp.ncdf((threshold - mp.mpf(v)) / sigma))
            for v in (largest, largest + 1, max(largest - 1, 0))
        ]
        exact = max(divergence(bits[0], near, order) for near in bits[1:])
    independent = order / (2 * sigma**2)
    assert float(exact) * (1 - 1e-9) - 1e-290 <= found <= independent
    assert found <= float(exact) * (1 + 1e-6) + 1e-12


# -- refusals -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "votes", [[[1.5, 0]], [[-1, 3]], [[math.nan, 1]], [[math.inf, 1]], [1, 2], [[]], "x"]
)
def test_what_is_no_vote_count_is_refused(votes):
    for call in (
        lambda: gnmax_rdp(votes, 1.0, [2.0]),
        lambda: lnmax_rdp(votes, 1.0, [2.0]),
        lambda: confident_gnmax_rdp(votes, 1.0, 1.0, 1.0, [2.0]),
    ):
        refused(call, "votes")


@pytest.mark.parametrize("orders", [[], [1.0], [0.5, 2], [math.nan], [math.inf], 2.0])
def test_what_is_no_order_is_refused(orders):
    for call in (gnmax_rdp, lnmax_rdp):
        with pytest.raises(SpecError, match=r"^orders"):
            call([[1, 2]], 1.0, orders)


@pytest.mark.parametrize("value", [0.0, -1.0, math.nan, math.inf])
def test_what_is_no_noise_or_mask_or_cap_is_refused(value):
    for field, call in (
        ("sigma", lambda: gnmax_rdp([[1, 2]], value, [2.0])),
        ("gamma", lambda: lnmax_rdp([[1, 2]], value, [2.0])),
        ("sigma_threshold", lambda: confident_gnmax_rdp([[1, 2]], 1.0, value, 1.0, [2.0])),
        ("answered", lambda: confident_gnmax_rdp([[1, 2]], 1.0, 1.0, 1.0, [2.0], [1])),
        ("answered", lambda: confident_gnmax_rdp([[1, 2]], 1.0, 1.0, 1.0, [2.0], [True, True])),
        ("cap", lambda: confident_gnmax_capped_rdp([[1, 2]], 1.0, 1.0, 1.0, [2.0], -1)),
        ("threshold", lambda: confident_gnmax_rdp([[1, 2]], math.nan, 1.0, 1.0, [2.0])),
    ):
        refused(call, field)
