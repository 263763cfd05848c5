"""The price of choosing a setting by results on private data."""

from __future__ import annotations

import math
from typing import Any

import dp_accounting as dp
import numpy as np
import pytest
from dp_accounting.dp_event import RepeatAndSelectDpEvent
from dp_accounting.rdp import RdpAccountant

from fdaudit.accounting.charges import Selected
from fdaudit.accounting.costs import ORDERS, curve, epsilon
from fdaudit.accounting.ledger import Books
from fdaudit.accounting.profile import profile
from fdaudit.errors import SpecError
from fdaudit.spec.privacy import PrivacySpec, TuningSpec

from ..helpers.ledger_cases import Log, dp_sgd, gaussian

PARTIES = ("server", "client/0", "world")


def books(**privacy: Any) -> Books:
    log = Log()
    log.add("client/0", "server", "model_update", ["data"], dp_sgd(rate=0.02, count=100))
    return Books(log, PARTIES, choices=PrivacySpec(tuned_on="private", **privacy))


def test_a_fixed_number_of_runs_counts_in_full() -> None:
    one = {dp_sgd(rate=0.02, count=100): 1}
    found = books(tuning=TuningSpec(runs=5)).ledger("server")
    assert found.epsilon == pytest.approx(epsilon({dp_sgd(rate=0.02, count=100): 5}, 1e-5).value)
    assert found.epsilon > epsilon(one, 1e-5).value
    assert any("5 runs (fixed)" in line for line in found.assumptions)
    assert any("every other setting" in line for line in found.assumptions)


@pytest.mark.parametrize("mean", [2.0, 30.0])
def test_a_geometric_number_costs_what_the_library_says(mean: float) -> None:
    """Papernot & Steinke 2022, Theorem 2, as `dp_accounting` has it."""
    event = dp_sgd(rate=0.02, count=100)
    whole = (ORDERS % 1 == 0) & (ORDERS <= 256)
    accountant = RdpAccountant(list(ORDERS[whole]))
    run = dp.SelfComposedDpEvent(dp.PoissonSampledDpEvent(0.02, dp.GaussianDpEvent(1.0)), 100)
    accountant.compose(RepeatAndSelectDpEvent(run, mean, 1))
    ours = curve(Selected(charges=((event, 1),), mean=mean))[whole]
    library = np.asarray(accountant.rdp)
    assert ours[:30] == pytest.approx(library[:30], rel=0.05)  # ours has more orders to choose from
    found = books(tuning=TuningSpec(runs=mean, number="geometric"))
    assert found.ledger("server").epsilon == pytest.approx(accountant.get_epsilon(1e-5), rel=0.05)
    assert (
        found.ledger("server").epsilon < books(tuning=TuningSpec(runs=mean)).ledger("server").epsilon
        or mean < 9
    )
    assert math.isfinite(profile(found.accounts("server"), np.array([1e-5])).epsilons[0])


def test_a_choice_that_nobody_prices_has_no_epsilon() -> None:
    found = books().ledger("server")
    assert found.epsilon == math.inf
    assert "tuning" in found.cause


@pytest.mark.parametrize("runs", [0.5, 2.5])
def test_an_impossible_number_of_runs_is_refused(runs: float) -> None:
    with pytest.raises((SpecError, ValueError), match="runs"):
        TuningSpec(runs=runs)


def test_tuning_goes_with_a_choice_on_private_data_only() -> None:
    with pytest.raises(SpecError, match="tuned_on"):
        PrivacySpec(tuning=TuningSpec(runs=3))


def test_gaussians_of_a_fixed_number_of_runs_have_a_mu() -> None:
    log = Log()
    log.add("client/0", "server", "model_update", ["data"], gaussian(4.0))
    tuned = PrivacySpec(tuned_on="private", tuning=TuningSpec(runs=9))
    assert Books(log, PARTIES, choices=tuned).ledger("server").gdp == pytest.approx(3 / 4)
