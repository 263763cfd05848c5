"""Privacy profiles: ε at many δ, loss distributions and trade-off functions against closed forms and the ledger."""

from __future__ import annotations

import csv
import json
import math
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import dp_accounting as dp
import numpy as np
import pytest
from dp_accounting.pld import PLDAccountant
from hypothesis import given, settings
from hypothesis import strategies as st
from opacus.accountants import RDPAccountant
from scipy.stats import norm

from fdaudit.accounting.accounts import Accounts, gdp, rounded_up, worst_gdp, worst_zcdp, zcdp
from fdaudit.accounting.charges import Charge, Grouped
from fdaudit.accounting.costs import epsilon
from fdaudit.accounting.ledger import Books
from fdaudit.accounting.losses.composition import ROUNDING, TINY, losses
from fdaudit.accounting.losses.distributions import composed, exported
from fdaudit.accounting.profile import ALPHAS, DELTAS, profile, trade_off, with_delta
from fdaudit.audit.ledger_files import write_profiles
from fdaudit.errors import RunError, SpecError
from fdaudit.events import DiscreteGaussian

from ..helpers.docs_pages import blocks
from ..helpers.ledger_cases import RECORD, Log, dp_sgd, gaussian, laplace

PARTIES = ("server", "client/0", "client/1", "world")
FEW = np.array([1e-9, 1e-5, 1e-2, 0.3])


def accounts(charges: dict[str, tuple[dict[Charge, int], ...]], **causes: str) -> Accounts:
    return Accounts(view="server", unit="record", relation="add-or-remove", charges=charges, causes=causes)


def gaussian_delta(mu: float, eps: float) -> float:
    """Balle & Wang 2018, Theorem 8."""
    return float(norm.cdf(mu / 2 - eps / mu) - math.exp(eps) * norm.cdf(-mu / 2 - eps / mu))


def test_gaussian_profiles_follow_the_closed_form_at_every_delta() -> None:
    found = profile(accounts({"client/0": ({gaussian(2.0): 3, gaussian(1.5): 1},)}))
    mu = math.sqrt(3 / 4 + 1 / 2.25)
    assert found.gdp == pytest.approx(mu)
    assert found.zcdp == pytest.approx(mu**2 / 2)
    for delta, eps in zip(found.deltas, found.epsilons, strict=True):
        assert eps == 0 or gaussian_delta(mu, eps) == pytest.approx(delta, rel=1e-3)
        assert gaussian_delta(mu, eps) <= delta * (1 + 1e-9)


def test_the_worst_client_is_chosen_at_each_delta() -> None:
    """Gaussian noise is louder at a small δ, a pure ε at a large one."""
    clients = {"client/0": ({laplace(0.4): 1},), "client/1": ({gaussian(1.0): 1},)}
    found = profile(accounts(clients), FEW)
    assert set(found.clients) == {"client/0", "client/1"}
    for k, delta in enumerate(FEW):
        alone = {name: epsilon(ways[0], float(delta)).value for name, ways in clients.items()}
        assert found.epsilons[k] == pytest.approx(max(alone.values()), rel=1e-5)
        assert found.clients[k] == max(alone, key=lambda name: alone[name])
    assert {d.client for d in found.distributions} == {"client/0", "client/1"}


def test_the_cheaper_of_two_ways_counts_at_each_delta() -> None:
    ways = ({laplace(0.4): 1}, {gaussian(1.0): 1})
    found = profile(accounts({"client/0": ways}), FEW)
    for k, delta in enumerate(FEW):
        assert found.epsilons[k] == pytest.approx(min(epsilon(w, float(delta)).value for w in ways), rel=1e-5)


def test_arrays_of_a_distribution_give_the_library_s_epsilon() -> None:
    charges = {dp_sgd(rate=0.05, count=30): 1, laplace(2.0): 2}
    library, ours = losses(charges), composed("client/0", charges)
    for delta in FEW:
        assert ours.epsilons(np.array([delta]))[0] == pytest.approx(
            library.get_epsilon_for_delta(float(delta)), rel=1e-9
        )
    assert ours.remove is not ours.add
    assert ours.epsilons(np.array([0.0]))[0] == math.inf


@pytest.mark.thorough
def test_a_profile_is_the_ledger_at_the_ledger_s_delta() -> None:
    log = Log()
    log.add("client/0", "server", "model_update", ["data"], dp_sgd(rate=0.05, count=30))
    log.add("client/1", "server", "model_update", ["data"], dp_sgd(rate=0.1, count=30))
    books = Books(log, PARTIES)
    for delta in (1e-5, 3.3e-4):
        found = profile(books.accounts("server"), with_delta(delta))
        at = int(np.flatnonzero(found.deltas == delta)[0])
        ledger = books.ledger("server", delta=delta)
        assert found.epsilons[at] == pytest.approx(ledger.epsilon, rel=1e-6)
        assert found.clients[at] == ledger.victim
    assert (ledger.gdp, ledger.zcdp) == (None, None)


def test_a_leak_makes_the_whole_profile_infinite() -> None:
    log = Log()
    log.add("client/0", "server", "model_update", ["data"], gaussian())
    log.add("client/1", "server", "model_update", ["data"])
    books = Books(log, PARTIES)
    found = profile(books.accounts("server"))
    assert np.all(np.isinf(found.epsilons))
    assert found.cause == books.ledger("server").cause
    assert np.all(found.trade_off() == 0)
    assert found.gdp is None
    assert not found.distributions
    assert np.all(profile(books.accounts("server+client/0+client/1")).epsilons == 0)


def test_exact_figures_need_plain_gaussians() -> None:
    discrete = DiscreteGaussian(sensitivity=1.0, scale=2.0, count=8, **RECORD)
    assert gdp({gaussian(2.0): 4}) == pytest.approx(1.0)
    assert zcdp({gaussian(2.0): 4, discrete: 1}) == pytest.approx(0.5 + 1.0)
    for other in (discrete, dp_sgd(), laplace()):
        assert gdp({gaussian(): 1, other: 1}) is None
    assert zcdp({gaussian(): 1, dp_sgd(): 1}) is None
    clients = [({gaussian(2.0): 1},), ({laplace(): 1}, {gaussian(1.0): 1})]
    assert worst_gdp(clients) == pytest.approx(1.0)
    assert worst_gdp([*clients, ({laplace(): 1},)]) is None
    assert worst_zcdp([]) is None


def test_the_ledger_states_exact_figures_of_the_worst_client() -> None:
    log = Log()
    log.add("client/0", "server", "model_update", ["data"], gaussian(4.0))
    log.add("client/1", "server", "model_update", ["data"], gaussian(2.0))
    found = Books(log, PARTIES).ledger("server")
    assert found.gdp == pytest.approx(0.5)
    assert found.entry.zcdp == pytest.approx(0.125)


@pytest.mark.thorough
@given(st.floats(0.02, 6))
@settings(deadline=None, max_examples=12)
def test_pairs_bound_the_gaussian_trade_off_from_below_and_closely(mu: float) -> None:
    eps = np.array([epsilon({gaussian(1 / mu): 1}, float(d)).value for d in DELTAS])
    bound = trade_off(eps, DELTAS, ALPHAS)
    exact = norm.cdf(-norm.ppf(ALPHAS) - mu)
    assert np.all(bound <= exact + 1e-12)
    assert np.max(exact - bound) < 0.02


@given(st.lists(st.tuples(st.floats(0, 30), st.floats(1e-9, 0.9)), min_size=1, max_size=6))
@settings(deadline=None, max_examples=60)
def test_a_trade_off_function_is_convex_falling_and_its_own_inverse(pairs: list[tuple[float, float]]) -> None:
    eps, deltas = (np.array(v) for v in zip(*pairs, strict=True))
    grid = np.linspace(0, 1, 101)
    found = trade_off(eps, deltas, grid)
    assert np.all(np.diff(found) <= 1e-12)
    assert np.all(np.diff(found, 2) >= -1e-9)
    assert np.all(found <= 1 - grid + 1e-12)
    inside = found > 1e-6
    assert np.all(trade_off(eps, deltas, found[inside]) <= grid[inside] + 1e-6)


def test_an_exact_trade_off_is_the_gaussian_s() -> None:
    found = profile(accounts({"client/0": ({gaussian(1.0): 1},)}), FEW)
    exact = norm.cdf(-norm.ppf(ALPHAS) - 1.0)
    assert found.trade_off() == pytest.approx(exact, rel=1e-8, abs=1e-15)
    assert np.all(found.trade_off() <= exact)


@given(st.floats(1e-12, 1e9))
@settings(deadline=None)
def test_shown_figures_are_rounded_up(value: float) -> None:
    assert value * (1 - 1e-11) <= float(rounded_up(value)) <= value * 1.0011
    assert rounded_up(math.inf) == "∞"


# -- files ----------------------------------------------------------------------------------------------------------


@cache
def two_profiles() -> list[Any]:
    clients = {"client/0": ({dp_sgd(rate=0.05, count=30): 1},), "client/1": ({laplace(3.0): 1},)}
    leak = {"client/1": "a leak"}
    other = Accounts(view="client/0", unit="record", relation="add-or-remove", charges={}, causes=leak)
    return [profile(accounts(clients)), profile(other)]


@pytest.mark.thorough
def test_the_reader_on_the_page_recomputes_epsilon_from_the_file(tmp_path: Path) -> None:
    found = two_profiles()
    write_profiles(found, tmp_path / "curve", delta=1e-5)
    (reader,) = [block for block in blocks("docs/ledger.md", "python") if "safe_open" in block]
    scope: dict[str, Any] = {}
    exec(compile(reader, "reader", "exec"), scope)
    path = tmp_path / "curve" / "losses-server-add-or-remove.safetensors"
    lines = (tmp_path / "curve/epsilon.csv").read_text("utf-8").splitlines()
    rows = [row for row in csv.DictReader(lines) if row["adversary"] == "server"]
    assert len(rows) == len(DELTAS)
    for row in rows:
        delta, eps = float(row["delta"]), float(row["epsilon"])
        kept_back = ROUNDING if delta > TINY else 0.0  # of tails, only a millionth
        close = 1e-6 if delta > TINY else 1e-2  # a reader's plain sums have rounding errors
        if eps > 0 and "PLD" in row["accountant"]:
            assert scope["delta"](path, eps) == pytest.approx(delta - kept_back, rel=close)
        assert eps == 0 or scope["delta"](path, eps) >= (delta - kept_back) * (1 - close)


@pytest.mark.thorough
def test_files_say_what_is_infinite_and_why(tmp_path: Path) -> None:
    made = write_profiles(two_profiles(), tmp_path / "curve", delta=1e-5)
    index = json.loads(made[-1].read_text("utf-8"))
    assert {p.name for p in (tmp_path / "curve").iterdir()} == {*index["files"], "profile.json"}
    finite, infinite = index["profiles"]
    assert (infinite["epsilon"], infinite["cause"], infinite["losses"]) == (None, "a leak", None)
    assert finite["losses"] == "losses-server-add-or-remove.safetensors"
    assert "client/0,record,add-or-remove,1e-05,inf,client/1," in (tmp_path / "curve/epsilon.csv").read_text()


@pytest.mark.thorough
def test_the_same_profiles_give_the_same_bytes_and_no_earlier_file_stays(tmp_path: Path) -> None:
    both = two_profiles()
    first = {p.name: p.read_bytes() for p in write_profiles(both, tmp_path / "curve", delta=1e-5)}
    second = {p.name: p.read_bytes() for p in write_profiles(both, tmp_path / "curve", delta=1e-5)}
    assert first == second
    write_profiles(both[1:], tmp_path / "curve", delta=1e-5)
    assert not list((tmp_path / "curve").glob("*.safetensors"))


def test_a_directory_with_other_content_is_refused(tmp_path: Path) -> None:
    for name, text in (("notes.txt", "mine"), ("profile.json", "{}"), ("profile.json", "[")):
        (tmp_path / name).write_text(text)
        with pytest.raises(RunError, match="holds something else"):
            write_profiles([], tmp_path, delta=1e-5)
        (tmp_path / name).unlink()
    (tmp_path / "file").write_text("mine")
    with pytest.raises(RunError, match="holds something else"):
        write_profiles([], tmp_path / "file", delta=1e-5)
    assert (tmp_path / "file").read_text() == "mine"


def test_a_delta_that_is_no_probability_is_refused() -> None:
    with pytest.raises(SpecError, match="delta"):
        with_delta(1.0)


# -- for other accountants --------------------------------------------------------------------------------------------


def rebuilt(value: Any) -> Any:
    """A reader's own way from JSON to the library's event."""
    if isinstance(value, list):
        return [rebuilt(one) for one in value]
    if not isinstance(value, dict):
        return value
    cls = getattr(dp.dp_event, value["dp_event"])
    return cls(**{name: rebuilt(one) for name, one in value.items() if name != "dp_event"})


REPLACED = {replace(dp_sgd(rate=0.05, count=30), relation="replace-one"): 1, gaussian(3.0): 4}
GROUPED = {Grouped(event=dp_sgd(2.0, rate=0.1, count=5), size=2): 1}


@pytest.mark.parametrize(
    ("charges", "step"),
    [
        ({dp_sgd(rate=0.05, count=30): 2, gaussian(3.0): 4}, 1e-4),
        pytest.param(REPLACED, 1e-4, marks=pytest.mark.thorough),
        ({gaussian(2.0): 3}, 1e-4),
        pytest.param(GROUPED, 1e-3, marks=pytest.mark.thorough),
    ],
    ids=["sampled", "replaced", "gaussian", "grouped"],
)
def test_an_exported_event_costs_elsewhere_what_it_costs_here(charges: Any, step: float) -> None:
    """The library's privacy losses lie `step` apart."""
    found = exported("client/0", charges)
    accountant = PLDAccountant(dp.NeighboringRelation[found.relation], value_discretization_interval=step)
    accountant.compose(rebuilt(json.loads(json.dumps(found.event))))
    assert accountant.get_epsilon(1e-5) == pytest.approx(epsilon(charges, 1e-5).value, rel=10 * step)


def test_a_history_is_for_opacus_and_for_its_relation_only() -> None:
    found = exported("client/0", {dp_sgd(2.0, rate=0.05, count=30): 2, gaussian(3.0): 4})
    assert found.history == ((2.0, 0.05, 60), (3.0, 1.0, 4))
    opacus = RDPAccountant()
    opacus.history = list(found.history)
    ours = epsilon({dp_sgd(2.0, rate=0.05, count=30): 2, gaussian(3.0): 4}, 1e-5, pld=False)
    assert opacus.get_epsilon(1e-5) == pytest.approx(ours.value, rel=1e-2)
    assert exported("c", {replace(dp_sgd(), relation="replace-one"): 1}).history is None
    assert exported("c", {laplace(): 1}).history is None
    assert exported("c", GROUPED).history is None


def test_what_no_event_prices_alike_is_left_out_with_a_reason() -> None:
    found = exported("c", {DiscreteGaussian(sensitivity=1.0, scale=2.0, **RECORD): 1})
    assert (found.event, found.history) == (None, None)
    assert "DiscreteGaussian" in found.missing


def test_profiles_on_disk_have_events(tmp_path: Path) -> None:
    log = Log()
    log.add("client/0", "server", "model_update", ["data"], dp_sgd(rate=0.05, count=30))
    found = profile(Books(log, PARTIES).accounts("server"), np.array([1e-5]))
    write_profiles([found], tmp_path / "curve", delta=1e-5)
    (entry,) = json.loads((tmp_path / "curve" / "profile.json").read_text())["profiles"]
    (event,) = entry["events"]
    assert event["history"] == [[1.0, 0.05, 30]]
    assert event["event"]["dp_event"] == "ComposedDpEvent"
