"""What mechanisms cost: against closed forms, `dp_accounting` used directly, Opacus; and laws of any accountant."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import reduce

import dp_accounting as dp
import numpy as np
import pytest
from dp_accounting.pld import PLDAccountant
from dp_accounting.pld.privacy_loss_distribution import from_gaussian_mechanism
from dp_accounting.rdp import RdpAccountant
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from mpmath import mp, mpf, quad
from scipy.stats import binom, norm

from fdaudit.accounting import costs
from fdaudit.accounting.charges import Drawn, Grouped, converted, grouped
from fdaudit.accounting.costs import ORDERS, curve, epsilon
from fdaudit.accounting.losses.composition import _factors, epsilon_by_losses
from fdaudit.events import (
    Composed,
    DiscreteGaussian,
    DiscreteLaplace,
    Gaussian,
    Laplace,
    Mechanism,
    NoGuarantee,
    PureDP,
    SampledGaussian,
)

from ..helpers.ledger_cases import CLIENT, RECORD
from .mechanism_cases import gaussian_epsilon

DELTA = 1e-5


@pytest.mark.parametrize("scale", [0.5, 1.0, 4.0, 20.0])
def test_one_gaussian_costs_its_exact_epsilon_whatever_the_relation_it_is_stated_for(scale: float) -> None:
    for stated in (RECORD, CLIENT):
        event = Gaussian(sensitivity=3.0, scale=3.0 * scale, **stated)
        assert epsilon({event: 1}, DELTA).value == pytest.approx(gaussian_epsilon(1 / scale, DELTA), rel=3e-6)


def gaussian_delta(ratio: float, eps: float) -> mpf:
    """The least δ at an ε of a Gaussian release of that sensitivity over noise, to sixty digits (Theorem 8)."""
    mp.dps = 60
    half, far = mpf(ratio) / 2, mpf(eps) / mpf(ratio)
    above, below = (mp.erfc(-x / mp.sqrt(2)) / 2 for x in (half - far, -half - far))
    return above - mp.exp(eps) * below


@settings(max_examples=150, deadline=None)
@given(decades=st.floats(-7, 3), below=st.floats(1, 30))
def test_gaussian_epsilon_is_never_too_small_and_at_most_three_millionths_too_large(
    decades: float, below: float
) -> None:
    ratio, delta = 10.0**decades, 10.0**-below
    found = epsilon({Gaussian(sensitivity=ratio, scale=1.0, **RECORD): 1}, delta).value
    assert gaussian_delta(ratio, found) <= delta
    assert found == 0 or gaussian_delta(ratio, found * (1 - 3e-6)) > delta


@pytest.mark.parametrize("ratio", [1e-200, 1e-9, 1e140, 1e200, 1e308])
def test_gaussian_noise_far_from_what_it_hides_costs_nothing_or_too_much(ratio: float) -> None:
    found = epsilon({Gaussian(sensitivity=ratio, scale=1.0, **RECORD): 3}, DELTA).value
    assert found == 0 if ratio < 1 else found > 1e279


def test_the_library_would_double_a_sensitivity_that_is_doubled_already() -> None:
    """Under replace-one its loss distributions double, its Rényi curves do not; so neither is told of the relation."""
    replaced = dp.NeighboringRelation.REPLACE_ONE
    losses = PLDAccountant(replaced).compose(dp.GaussianDpEvent(4.0)).get_epsilon(DELTA)
    orders = RdpAccountant(None, replaced).compose(dp.GaussianDpEvent(4.0)).get_epsilon(DELTA)
    assert losses > 1.5 * orders
    assert losses == pytest.approx(gaussian_epsilon(1 / 2, DELTA), rel=1e-3)
    ours = epsilon({Gaussian(sensitivity=1.0, scale=4.0, **CLIENT): 1}, DELTA)
    assert ours.value == pytest.approx(gaussian_epsilon(1 / 4, DELTA), rel=1e-3)


def test_gaussians_add_up_to_one_louder_gaussian() -> None:
    many = epsilon(
        {
            Gaussian(sensitivity=1.0, scale=10.0, **RECORD): 40,
            Gaussian(sensitivity=2.0, scale=20.0, count=60, **RECORD): 1,
        },
        DELTA,
    )
    assert many.value == pytest.approx(gaussian_epsilon(1.0, DELTA), rel=3e-6)


@pytest.mark.thorough
@pytest.mark.parametrize("scales", [(1.0, 3.0), (2.0, 2.0, 2.5), (5.0, 0.7)])
def test_gaussians_that_add_up_cost_what_their_convolved_loss_distributions_say(
    scales: tuple[float, ...],
) -> None:
    """Convolved one by one on a fine grid; and less than their Rényi curves say."""
    losses = [from_gaussian_mechanism(scale) for scale in scales]
    convolved = reduce(lambda a, b: a.compose(b), losses).get_epsilon_for_delta(DELTA)
    found = epsilon(
        {Gaussian(sensitivity=1.0, scale=s, **RECORD): scales.count(s) for s in scales}, DELTA
    ).value
    assert convolved == pytest.approx(found, rel=3e-6)
    orders = RdpAccountant()
    for scale in scales:
        orders.compose(dp.GaussianDpEvent(scale))
    assert found < orders.get_epsilon(DELTA)


@pytest.mark.parametrize("eps", [0.01, 0.5, 3.0])
def test_laplace_curve_is_the_divergence_itself(eps: float) -> None:
    """Against numerical integration of two Laplace densities at a distance of ε scales."""
    mp.dps = 30
    found = curve(Laplace(sensitivity=eps, scale=1.0, **RECORD))
    for alpha in (1.5, 4.0, 32.0):
        a = mpf(alpha)

        def ratio(x: mpf, a: mpf = a) -> mpf:
            return mp.e ** (-a * abs(x) - (1 - a) * abs(x - eps)) / 2

        want = mp.log(quad(ratio, [-mp.inf, 0, mpf(eps), mp.inf])) / (a - 1)
        at = int(np.argmin(np.abs(ORDERS - alpha)))
        assert found[at] == pytest.approx(float(want), rel=1e-9)


def test_the_published_noise_of_eight_million_epsilon_is_finite_and_exact() -> None:
    """B = 86, 5,000 samples of 10 classes, scale 1: ε = 2 B C n."""
    event = Laplace(sensitivity=2 * 86 * 10 * 5000, scale=1.0, **CLIENT)
    found = epsilon({event: 1}, DELTA)
    assert found.value == 8_600_000
    assert found.accountant.startswith("pure")


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("rate", "scale", "steps"), [(0.01, 1.0, 1000), (0.1, 2.0, 200), (0.5, 4.0, 50), (1.0, 5.0, 20)]
)
def test_dp_sgd_against_the_library_and_opacus(rate: float, scale: float, steps: int) -> None:
    from opacus.accountants import PRVAccountant
    from opacus.accountants import RDPAccountant as OpacusRDP

    event = SampledGaussian(sensitivity=2.0, scale=2.0 * scale, sample_rate=rate, count=steps, **RECORD)
    direct = dp.SelfComposedDpEvent(dp.PoissonSampledDpEvent(rate, dp.GaussianDpEvent(scale)), steps)
    by_orders, best = epsilon({event: 1}, DELTA, pld=False).value, epsilon({event: 1}, DELTA).value
    assert by_orders == pytest.approx(RdpAccountant().compose(direct).get_epsilon(DELTA), rel=1e-6)
    assert best == pytest.approx(PLDAccountant().compose(direct).get_epsilon(DELTA), rel=1e-3)
    opacus, prv = OpacusRDP(), PRVAccountant()
    opacus.history = prv.history = [
        (scale, min(rate, 1 - 1e-9), steps)
    ]  # of a rate of 1 PRV takes a logarithm of 0
    assert by_orders == pytest.approx(opacus.get_epsilon(DELTA), rel=0.02), "its list of orders is another"
    assert best == pytest.approx(prv.get_epsilon(DELTA, eps_error=0.001), rel=0.005, abs=0.002)


@pytest.mark.thorough
def test_unlike_mechanisms_compose_as_the_library_composes_them() -> None:
    ours = {
        Gaussian(sensitivity=1.0, scale=3.0, **RECORD): 2,
        Laplace(sensitivity=1.0, scale=5.0, **RECORD): 3,
        SampledGaussian(sensitivity=1.0, scale=1.5, sample_rate=0.05, count=100, **RECORD): 1,
    }
    direct = dp.ComposedDpEvent(
        [
            dp.SelfComposedDpEvent(dp.GaussianDpEvent(3.0), 2),
            dp.SelfComposedDpEvent(dp.LaplaceDpEvent(5.0), 3),
            dp.SelfComposedDpEvent(dp.PoissonSampledDpEvent(0.05, dp.GaussianDpEvent(1.5)), 100),
        ]
    )
    want = RdpAccountant(list(ORDERS[ORDERS <= 1024])).compose(direct).get_epsilon(DELTA)
    assert epsilon(ours, DELTA, pld=False).value == pytest.approx(want, rel=1e-9)
    best = epsilon(ours, DELTA).value
    assert PLDAccountant().compose(direct).get_epsilon(DELTA) <= best + 1e-3 <= want


def test_randomised_response_is_the_worst_of_its_epsilon() -> None:
    """The library's curve of randomised response on two values; and where its loss accountant forgets the count."""
    for eps in (0.1, 1.0, 4.0):
        rr = dp.RandomizedResponseDpEvent(2 / (1 + math.exp(eps)), 2)
        direct = RdpAccountant(list(ORDERS), dp.NeighboringRelation.REPLACE_ONE).compose(rr)
        usable = ORDERS >= 1.1
        found = curve(PureDP(epsilon=eps, **RECORD))[usable]
        np.testing.assert_allclose(found, np.asarray(direct.rdp)[usable], rtol=1e-7)
    once, often = (
        PLDAccountant(dp.NeighboringRelation.REPLACE_ONE)
        .compose(dp.RandomizedResponseDpEvent(0.95, 2), n)
        .get_epsilon(1e-5)
        for n in (1, 100)
    )
    assert once == often, "a run of a hundred is taken for one"
    one, hundred = (epsilon({PureDP(epsilon=0.1, count=n, **RECORD): 1}, DELTA).value for n in (1, 100))
    assert hundred > 10 * one


def test_a_discrete_laplace_is_as_loud_as_its_pure_epsilon() -> None:
    event = DiscreteLaplace(sensitivity=4.0, scale=10.0, **RECORD)
    assert epsilon({event: 1}, 1e-12).value == pytest.approx(0.4, rel=1e-3)


def test_a_discrete_gaussian_is_never_louder_than_the_gaussian() -> None:
    """Its exact divergence by summation (Canonne et al. 2020, Corollary 7) against the curve."""
    scale, shift = 1.3, 2
    x = np.arange(-60, 61)
    log_p = -(x**2) / (2 * scale**2)
    log_p = log_p - np.logaddexp.reduce(log_p)
    log_q = -((x - shift) ** 2) / (2 * scale**2)
    log_q = log_q - np.logaddexp.reduce(log_q)
    found = curve(DiscreteGaussian(sensitivity=shift, scale=scale, **RECORD))
    for alpha in (1.5, 2, 5, 10):
        exact = float(np.logaddexp.reduce(alpha * log_p + (1 - alpha) * log_q)) / (alpha - 1)
        at = int(np.argmin(np.abs(ORDERS - alpha)))
        assert exact <= found[at] * (1 + 1e-9)
        assert found[at] == pytest.approx(exact, rel=0.02)


def test_a_drawn_client_is_hidden_by_the_draw() -> None:
    """One of 50 clients: less than always the same one, more than if each had noise of 50 times the scale."""
    one = Gaussian(sensitivity=2.0, scale=8.0, count=4, drawn_from=50, **CLIENT)
    drawn = epsilon({Drawn(gaussian=one, clients=50, steps=500): 1}, DELTA).value
    always = epsilon({one: 500}, DELTA).value
    quiet = epsilon({replace(one, scale=8.0 * 50): 500}, DELTA).value
    assert quiet < drawn < always / 4


# -- laws ---------------------------------------------------------------------------------------------------------

SCALES = st.floats(0.3, 30)
MECHANISMS = st.one_of(
    st.builds(lambda s: Gaussian(sensitivity=1.0, scale=s, **RECORD), SCALES),
    st.builds(lambda s: Laplace(sensitivity=1.0, scale=s, **RECORD), SCALES),
    st.builds(lambda s: DiscreteGaussian(sensitivity=1.0, scale=s, **RECORD), SCALES),
    st.builds(lambda s: DiscreteLaplace(sensitivity=1.0, scale=s, **RECORD), SCALES),
    st.builds(lambda s: PureDP(epsilon=1 / s, **RECORD), SCALES),
    st.builds(lambda s: SampledGaussian(sensitivity=1.0, scale=s, sample_rate=0.05, **RECORD), SCALES),
)


def louder(event: Mechanism, factor: float) -> Mechanism:
    if isinstance(event, PureDP):
        return replace(event, epsilon=event.epsilon * factor)
    return replace(event, sensitivity=event.sensitivity * factor)


@pytest.mark.thorough
@settings(max_examples=60, deadline=None)
@given(event=MECHANISMS, factor=st.floats(1.0, 5.0))
def test_less_noise_or_a_wider_clip_never_costs_less(event: Mechanism, factor: float) -> None:
    quiet, loud = curve(event), curve(louder(event, factor))
    whole = ORDERS.round() == ORDERS  # at others the library may give up on a sum, and the order is left out
    assert np.all(loud[whole] >= quiet[whole] * (1 - 1e-9))
    if not isinstance(event, SampledGaussian):
        cheap, dear = (epsilon({e: 1}, DELTA, pld=False).value for e in (event, louder(event, factor)))
        assert dear >= cheap * (1 - 1e-9)


@pytest.mark.thorough
def test_sampled_noise_costs_less_the_more_of_it_there_is_and_the_rarer_a_record_takes_part() -> None:
    event = SampledGaussian(sensitivity=1.0, scale=0.8, sample_rate=0.1, count=30, **RECORD)
    figures = [
        epsilon({e: 1}, DELTA).value
        for e in (event, replace(event, scale=1.6), replace(event, scale=1.6, sample_rate=0.03))
    ]
    assert figures == sorted(figures, reverse=True)
    assert figures[0] > 2 * figures[1] > 3 * figures[2]


@pytest.mark.thorough
@settings(max_examples=60, deadline=None)
@given(event=MECHANISMS, n=st.integers(1, 50))
def test_n_runs_are_n_times_one_run_whether_counted_or_listed(event: Mechanism, n: int) -> None:
    counted, listed = (
        epsilon({replace(event, count=n): 1}, DELTA, pld=False),
        epsilon({event: n}, DELTA, pld=False),
    )
    assert counted.value == pytest.approx(listed.value, rel=1e-12)
    finite = np.isfinite(curve(event))
    np.testing.assert_allclose(curve(replace(event, count=n))[finite], n * curve(event)[finite], rtol=1e-12)
    assert listed.value >= epsilon({event: 1}, DELTA, pld=False).value * (1 - 1e-12)


@pytest.mark.parametrize("n", [2, 7])
def test_losses_of_n_runs_do_not_depend_on_how_they_are_counted(n: int) -> None:
    for event in (
        Gaussian(sensitivity=1.0, scale=4.0, **RECORD),
        PureDP(epsilon=0.2, **RECORD),
        Laplace(sensitivity=1.0, scale=6.0, **RECORD),
        SampledGaussian(sensitivity=1.0, scale=1.5, sample_rate=0.1, **RECORD),
    ):
        counted, listed = epsilon({replace(event, count=n): 1}, DELTA), epsilon({event: n}, DELTA)
        assert counted == listed


@settings(max_examples=40, deadline=None)
@given(events=st.lists(MECHANISMS, min_size=1, max_size=4), delta=st.floats(1e-9, 1e-2))
def test_epsilon_falls_with_delta_and_rises_with_company(events: list[Mechanism], delta: float) -> None:
    charges = {e: events.count(e) for e in events}
    alone = epsilon({events[0]: 1}, delta, pld=False).value
    together = epsilon(charges, delta, pld=False).value
    assert together >= alone * (1 - 1e-9)
    assert epsilon(charges, delta / 10, pld=False).value >= together * (1 - 1e-9)


@settings(max_examples=40, deadline=None)
@given(event=MECHANISMS)
def test_conversions_never_cheapen(event: Mechanism) -> None:
    swapped = converted(event, "record", "replace-one")
    assume(not isinstance(swapped, NoGuarantee | Composed))
    summed = np.isfinite(curve(event))
    assert np.all(curve(swapped)[summed] >= curve(event)[summed] * (1 - 1e-9))  # type: ignore[arg-type]


def test_a_composed_event_converts_part_by_part_or_not_at_all() -> None:
    both = Composed(parts=(Gaussian(sensitivity=1.0, scale=1.0, **RECORD), PureDP(epsilon=1.0, **RECORD)))
    made = converted(both, "record", "replace-one")
    assert isinstance(made, Composed)
    assert made.parts[1].epsilon == 2.0  # type: ignore[union-attr]
    sampled = SampledGaussian(sensitivity=1.0, scale=1.0, sample_rate=0.1, **RECORD)
    made = converted(Composed(parts=(*both.parts, sampled)), "record", "replace-one")
    assert isinstance(made, Composed)
    assert made.parts[2] == replace(sampled, relation="replace-one")
    assert isinstance(converted(Composed(parts=(sampled,)), "client", "replace-one"), NoGuarantee)


# -- figures of the library, each to half a per cent -----------------------------------------------------------------

SAMPLED = SampledGaussian(sensitivity=1.0, scale=1.0, sample_rate=0.01, count=1000, **RECORD)


def by_library(event: dp.DpEvent, count: int, relation: dp.NeighboringRelation, delta: float) -> float:
    accountant = PLDAccountant(relation)
    accountant.compose(event, count)
    return float(accountant.get_epsilon(delta))


@pytest.mark.parametrize(
    ("rate", "steps", "figure"),
    [pytest.param(0.01, 1000, 2.843, marks=pytest.mark.thorough), (0.1, 100, 10.516)],
)
def test_a_replaced_record_of_a_sample_costs_what_the_librarys_pair_says(
    rate: float, steps: int, figure: float
) -> None:
    event = replace(SAMPLED, sample_rate=rate, count=steps, relation="replace-one")
    library = by_library(
        dp.PoissonSampledDpEvent(rate, dp.GaussianDpEvent(1.0)),
        steps,
        dp.NeighboringRelation.REPLACE_ONE,
        DELTA,
    )
    assert library == pytest.approx(figure, abs=1e-3)
    found = epsilon({event: 1}, DELTA)
    assert found.value == pytest.approx(library, rel=5e-3)
    assert found.value >= library * (1 - 1e-6)
    orders = epsilon({event: 1}, DELTA, pld=False).value
    assert found.value < orders < 4 * found.value


def test_a_tiny_delta_is_priced_by_losses() -> None:
    """The reference composes without a Fourier transform, so that no rounding error hides in the tail."""
    found = epsilon({SAMPLED: 1}, 1e-12)
    assert found.value == pytest.approx(3.916, rel=5e-3)
    assert "PLD" in found.accountant
    few = replace(SAMPLED, count=8)
    grid, ((one, _),) = _factors({few: 1}, 30.0)
    dense = one._pmf_remove.to_dense_pmf()
    single = np.asarray(dense._probs)
    total, infinity = np.ones(1), 1 - (1 - dense._infinity_mass) ** 8
    for _ in range(8):
        total = np.convolve(total, single)  # a direct sum of products is exact to the last digits of each
    losses = grid * (8 * dense._lower_loss + np.arange(len(total)))
    for delta in (1e-10, 1e-14, 1e-18):
        priced = epsilon_by_losses({few: 1}, delta, 30.0)
        above = losses > priced
        at = infinity + float(total[above] @ -np.expm1(priced - losses[above]))
        assert at == pytest.approx(delta, rel=1e-4)


@pytest.mark.parametrize(
    "delta", [*(pytest.param(d, marks=pytest.mark.thorough) for d in (1e-12, 1e-20)), 1e-40]
)
def test_a_tiny_delta_by_losses_is_the_closed_form_of_a_gaussian(delta: float) -> None:
    gaussian = Gaussian(sensitivity=1.0, scale=1.0, count=10, **RECORD)
    whole = epsilon({gaussian: 1}, delta).value
    if delta > 1e-20:  # the library cuts a Gaussian's loss where its tail has a probability of 1e-22
        assert epsilon_by_losses({gaussian: 1}, delta) == pytest.approx(whole, rel=1e-4)
    else:
        assert epsilon_by_losses({gaussian: 1}, delta) >= whole * (1 - 1e-6)


def test_a_discrete_gaussian_that_moves_by_one_is_priced_exactly() -> None:
    event = DiscreteGaussian(sensitivity=1.0, scale=1.0, **RECORD)
    found = epsilon({event: 10}, DELTA).value
    assert found == pytest.approx(17.87, rel=5e-3)
    whole = np.arange(-60, 61)
    chances = np.exp(-(whole**2) / 2)
    chances /= chances.sum()
    losses = (1 - 2 * whole) / 2  # log of N(k; 0) over N(k; 1)
    total, values = np.ones(1), np.zeros(1)
    for _ in range(10):
        total = np.convolve(total, chances[::-1])
        values = np.add.outer(values, losses[::-1]).ravel()[:1]
    at = values + np.arange(len(total))
    above = at > found
    assert float(total[above] @ -np.expm1(found - at[above])) == pytest.approx(DELTA, rel=1e-2)
    two = epsilon({DiscreteGaussian(sensitivity=math.sqrt(2), scale=1.0, **RECORD): 5}, DELTA).value
    assert two == pytest.approx(found, rel=1e-6)


# -- groups ---------------------------------------------------------------------------------------------------------


@pytest.mark.thorough
@pytest.mark.parametrize("size", [2, 5])
def test_a_group_costs_what_its_records_do_together(size: int) -> None:
    shifted = Gaussian(sensitivity=float(size), scale=3.0, **RECORD)
    assert grouped(Gaussian(sensitivity=1.0, scale=3.0, **RECORD), size) == shifted
    assert grouped(PureDP(epsilon=0.1, **RECORD), size) == PureDP(epsilon=0.1 * size, **RECORD)
    sampled = grouped(replace(SAMPLED, count=30), size)
    assert isinstance(sampled, Grouped)
    alone = epsilon({replace(SAMPLED, count=30): 1}, DELTA).value
    found, loudest = epsilon({sampled: 1}, DELTA).value, epsilon({sampled.loudest: 1}, DELTA).value
    never_sampled = epsilon(
        {Gaussian(sensitivity=float(size), scale=1.0, count=30, **RECORD): 1}, DELTA
    ).value
    assert alone < found <= loudest < never_sampled


def test_a_group_in_a_sample_is_a_mixture_of_gaussians() -> None:
    """δ of one step, worked out by quadrature: the sum moves by the number of the group's records that take part."""
    size, rate, noise = 3, 0.3, 1.5
    event = Grouped(event=replace(SAMPLED, scale=noise, sample_rate=rate, count=1), size=size)
    x = np.linspace(-15, 18, 400_001)
    without = norm.pdf(x, 0, noise)
    with_group = sum(binom.pmf(k, size, rate) * norm.pdf(x, k, noise) for k in range(size + 1))
    found = epsilon_by_losses({event: 1}, 1e-3)
    both = [
        float(np.trapezoid(np.maximum(p - math.exp(found) * q, 0.0), x))
        for p, q in ((with_group, without), (without, with_group))
    ]
    assert max(both) == pytest.approx(1e-3, rel=2e-2)


def test_a_replaced_group_in_a_sample_is_refused() -> None:
    assert isinstance(grouped(replace(SAMPLED, relation="replace-one"), 2), NoGuarantee)


def test_no_charge_costs_nothing() -> None:
    assert epsilon({}, DELTA).value == 0.0


def test_what_is_charged_alike_is_priced_once_and_to_the_bit_as_by_itself(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    priced, real = list[int](), costs._by_losses

    def by_losses(charges: costs.Charges, delta: float, above: float, coarser: int) -> costs.Epsilon:
        priced.append(len(charges))
        return real(charges, delta, above, coarser)

    monkeypatch.setattr(costs, "_by_losses", by_losses)
    costs._epsilon.cache_clear()
    one, other = Gaussian(sensitivity=1.0, scale=31.0, **RECORD), PureDP(epsilon=0.02, **RECORD)
    first = epsilon({one: 2, other: 3}, DELTA)
    assert epsilon({replace(one): 2, replace(other): 3}, DELTA) == first
    assert priced == [2]
    turned = epsilon({other: 3, one: 2}, DELTA)
    assert priced == [2, 2], "last digits may depend on the order"
    costs._epsilon.cache_clear()
    assert epsilon({other: 3, one: 2}, DELTA) == turned
    for changed in (epsilon({one: 3, other: 3}, DELTA), epsilon({one: 2, other: 3}, DELTA / 10)):
        assert changed.value > first.value
    assert epsilon({one: 2, other: 3}, DELTA, pld=False).accountant != first.accountant
