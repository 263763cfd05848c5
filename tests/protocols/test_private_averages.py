"""DP-FedAvg: the server takes clients by secret coins or a secret draw, and adds noise to the sum of their updates."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import dp_accounting as dp
import numpy as np
import pytest
import torch
from dp_accounting.pld import PLDAccountant
from dp_accounting.rdp import RdpAccountant
from scipy.stats import norm

import fdaudit
from fdaudit.accounting.charges import Drawn
from fdaudit.accounting.costs import ORDERS, epsilon
from fdaudit.accounting.ledger import Books
from fdaudit.accounting.losses.composition import losses
from fdaudit.events import DrawnGaussian, Gaussian, SampledGaussian
from fdaudit.storage.files import decode
from fdaudit.testing.specs import small_spec
from fdaudit.transcript.messages import role
from fdaudit.transcript.payloads import read_payload
from fdaudit.transcript.transcript import read_messages

from ..helpers.ledger_cases import Log
from ..helpers.refusals import refused

CLIENT: dict[str, Any] = {"unit": "client", "relation": "add-or-remove", "covers": ("each-client",)}
CLIENTS, ROUNDS = 4, 6
RULE = {"clip": 0.05, "noise_multiplier": 4.0, "sample_rate": 0.3, "expected_batch": 2}


def spec(**changes: Any) -> dict[str, Any]:
    params = {"rounds": ROUNDS, "local_steps": 2, "batch_size": 8, "weighting": "uniform"}
    return small_spec(
        clients=CLIENTS,
        protocol={"name": "fedavg", "params": params},
        adversaries=["server", "client/0", "world"],
        defenses=[{"at": "training", "of": "updates", "name": "dp-sgd", "params": RULE}],
        **changes,
    )


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> fdaudit.Run:
    return fdaudit.run(spec(), tmp_path_factory.mktemp("averages") / "run")


def event(**changes: Any) -> SampledGaussian:
    stated = {"sensitivity": 0.05, "scale": 0.2, "sample_rate": 0.3, "count": 1, **CLIENT}
    return SampledGaussian(**{**stated, **changes})


def test_whoever_sees_only_the_model_may_count_the_coins(run: fdaudit.Run) -> None:
    replaced = event(unit="record", relation="replace-one")
    world = run.ledger("world")
    assert world.epsilon == pytest.approx(epsilon({replaced: ROUNDS}, 1e-5).value)
    assert "rate 0.3" in world.sampling
    removed = run.ledger("world", unit="client", relation="add-or-remove")
    assert removed.epsilon == pytest.approx(epsilon({event(): ROUNDS}, 1e-5).value)
    assert removed.epsilon < world.epsilon


@pytest.mark.parametrize("view", ["client/0", "world+client/0"])
def test_whoever_sees_who_takes_part_may_not(run: fdaudit.Run, view: str) -> None:
    """A client reads to whom the model was sent. The most that the other clients took part is what counts."""
    found = run.ledger(view)
    sent = [m.sender for m in read_messages(run.directory / "transcript") if m.kind == "model_update"]
    uploads = [k for k in sent if k != "client/0"]
    whole = Gaussian(sensitivity=0.1, scale=0.2, unit="record", relation="replace-one", covers=("data",))
    most = max(uploads.count(k) for k in set(uploads))
    assert found.epsilon <= epsilon({whole: most}, 1e-5).value * (1 + 1e-9)
    assert found.sampling == ""
    assert run.ledger("server").epsilon == math.inf


def test_a_round_is_what_the_record_says(run: fdaudit.Run) -> None:
    """Clipped updates of those that were drawn, and noise of the stated size, also where nobody was drawn."""
    messages = list(read_messages(run.directory / "transcript"))
    releases = [m for m in messages if m.kind == "release"]
    assert [m.round for m in releases] == list(range(ROUNDS))
    assert all(m.event == event() and m.sender == "server" for m in releases)
    drawn = {m.round: m.receivers for m in messages if m.kind == "model_parameters" and m.round < ROUNDS - 1}
    assert 0 < sum(len([p for p in to if role(p) == "client"]) for to in drawn.values()) < CLIENTS * ROUNDS
    models = {m.seq: m for m in messages if m.kind == "model_parameters"}
    earliest, last = models[min(models)], models[max(models)]
    first, final = (decode(read_payload(run.directory / "transcript", m)) for m in (earliest, last))
    change = torch.cat([(final[n] - first[n]).flatten().double() for n in final])
    # The model goes to those drawn alone, so the earliest one seen may be of a later round, after noise of its own.
    between = last.round - earliest.round + 1
    # Each of these rounds adds noise of deviation 0.2 / 2, next to updates of length at most 0.05 / 2 a client.
    assert float(change.std()) == pytest.approx(0.1 * math.sqrt(between), rel=0.3)


def test_a_silent_client_adds_nothing_and_shows_nothing(tmp_path: Path) -> None:
    gone = [{"client": k, "round": 0, "last": ROUNDS - 1} for k in range(CLIENTS)]
    run = fdaudit.run(spec(outages=gone), tmp_path / "run")
    messages = list(read_messages(run.directory / "transcript"))
    assert sum(m.kind == "release" for m in messages) == ROUNDS
    assert not any(m.kind == "model_update" for m in messages)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *(("weighting", "samples"), ("upload", "model_parameters"), ("fraction", 0.5)),
        *(("server_momentum", 0.5), ("aggregation", "secure")),
    ],
)
def test_settings_that_the_sum_does_not_cover_are_refused(name: str, value: Any, tmp_path: Path) -> None:
    changed = spec()
    changed["protocol"]["params"][name] = value
    refused(
        lambda: fdaudit.run(changed, tmp_path / "run"), f"protocol.params.{name}", value, said="a rule on"
    )


# -- a hundred rounds, in which a client takes part ten times ----------------------------------------------------------


def hundred(**stated: Any) -> Log:
    log, basis = Log(), list[int]()
    one = SampledGaussian(**{"sensitivity": 1.0, "scale": 1.0, "sample_rate": 0.1, **CLIENT, **stated})
    for t in range(100):
        w = log.add("server", f"client/{t % 10}", "model_parameters", basis, round=t)
        up = log.add(f"client/{t % 10}", "server", "model_update", ["data", w], round=t)
        basis = [log.add("server", "", "release", [w, up], one, round=t)]
        log.change(-1, defenses=({"sampling": "Poisson at rate 0.1, secret coins"},))
    log.add("server", "world", "model_parameters", basis, round=100)
    return log


PARTIES = ("server", *(f"client/{k}" for k in range(10)), "world")


def test_secret_participation_is_worth_what_the_library_says() -> None:
    world = Books(hundred(), PARTIES).ledger("world")
    assert world.epsilon == pytest.approx(10.516, rel=5e-3)
    assert Books(hundred(), PARTIES).ledger("client/1").epsilon == pytest.approx(46.21, rel=5e-3)
    assert Books(hundred(), PARTIES).ledger("server").epsilon == math.inf


@pytest.mark.parametrize("damage", ["unstated", "sent"])
def test_coins_that_the_record_does_not_show_count_for_nothing(damage: str) -> None:
    log = hundred()
    for seq, m in enumerate(log):
        if m.kind == "release":
            changes = {"defenses": ()} if damage == "unstated" else {"receivers": ("client/3",)}
            log.change(seq, **changes)
    assert Books(log, PARTIES).ledger("world").epsilon == pytest.approx(46.21, rel=5e-3)


def test_rounds_of_another_rate_count_although_the_client_took_no_part_in_them() -> None:
    log = hundred()
    for seq, m in enumerate(log):
        if m.kind == "release" and m.round % 10 == 3:  # client/3 is the only one that took part
            log.change(seq, event=event(sensitivity=1.0, scale=1.0, sample_rate=0.5))
    kept = {"sensitivity": 1.0, "scale": 1.0, "unit": "record", "relation": "replace-one"}
    charges = {event(**kept, sample_rate=0.1): 90, event(**kept, sample_rate=0.5): 10}
    for world in (Books(log, PARTIES).ledger("world"),):
        assert world.epsilon == pytest.approx(epsilon(charges, 1e-5).value)


def test_coins_count_for_nothing_if_a_client_remembers_its_own() -> None:
    """A client whose later answers depend on earlier ones may tell in which rounds it took part."""
    log = hundred()
    uploads = [m.seq for m in log if m.kind == "model_update" and m.sender == "client/1"]
    log[uploads[1]] = m = replace(log[uploads[1]], inputs=(*log[uploads[1]].inputs, uploads[0]))
    assert m.inputs[0] == "data"
    assert Books(log, PARTIES).ledger("world").epsilon == pytest.approx(46.21, rel=5e-3)
    log[uploads[1]] = replace(m, inputs="all")
    found = Books(log, PARTIES).ledger("world")
    assert found.epsilon == pytest.approx(46.21, rel=5e-3)
    assert "client/1 in round 11" in found.warnings[-1]


# -- a draw of a fixed number of clients -------------------------------------------------------------------------------

TWENTY = ("server", *(f"client/{k}" for k in range(20)), "world")
TWO_OF_TWENTY = DrawnGaussian(
    sensitivity=2.0,
    scale=1.0,
    drawn=2,
    clients=20,
    unit="client",
    relation="replace-one",
    covers=("each-client",),
)


def drawn_rounds(rounds: int = 100) -> Log:
    """Each round two of twenty clients; every client takes part in a tenth of the rounds."""
    log, basis = Log(), list[int]()
    stated = ({"sampling": "2 of 20 clients without replacement, secret draw"},)
    for t in range(rounds):
        asked = [t % 20, (t + 7) % 20]
        to = " ".join(f"client/{k}" for k in asked)
        w = log.add("server", to, "model_parameters", basis, round=t, drawn_from=20)
        up = [log.add(f"client/{k}", "server", "model_update", ["data", w], round=t) for k in asked]
        basis = [log.add("server", "", "release", [*basis, w, *up], TWO_OF_TWENTY, round=t)]
        log.change(-1, defenses=stated)
    log.add("server", "world", "model_parameters", basis, round=rounds)
    return log


@pytest.mark.thorough
def test_a_draw_of_a_fixed_size_costs_more_than_coins_and_less_than_no_draw() -> None:
    """Others may stand where the replaced client stood: then its absence shows twice as far as with coins.

    That pair is realised, so that the ε of coins (10.5) would be too small. Its own ε is a lower bound.
    """
    books = Books(drawn_rounds(), TWENTY)
    world = books.ledger("world", unit="client")
    step = dp.PoissonSampledDpEvent(0.1, dp.GaussianDpEvent(0.5))
    realised = PLDAccountant().compose(step, 100).get_epsilon(1e-5)
    assert realised == pytest.approx(31.37, abs=0.01)
    assert realised < world.epsilon == pytest.approx(34.17, rel=5e-3)
    assert "2 of 20" in world.sampling
    assert books.ledger("world").epsilon == world.epsilon
    assert books.ledger("world", unit="client", relation="add-or-remove").epsilon == math.inf


def test_a_draw_of_a_fixed_size_by_orders_costs_what_the_library_says() -> None:
    """Wang, Balle & Kasiviswanathan 2019, for replaced clients at two clips' distance."""
    one = Gaussian(sensitivity=2.0, scale=4.0, unit="client", relation="replace-one", covers=("data",))
    charges = {Drawn(gaussian=one, clients=1000, drawn=100, steps=1): 100}
    event = dp.SampledWithoutReplacementDpEvent(1000, 100, dp.GaussianDpEvent(2.0))
    accountant = RdpAccountant(list(ORDERS[ORDERS <= 1024]), dp.NeighboringRelation.REPLACE_ONE)
    library = accountant.compose(event, 100).get_epsilon(1e-5)
    assert epsilon(charges, 1e-5, pld=False).value == pytest.approx(library, rel=5e-3)


@pytest.mark.parametrize("noise", [1.0, 2.0])
def test_no_placement_of_others_tells_more_than_the_pair_of_a_draw(noise: float) -> None:
    """Two of four clients a step, updates of -1 or 1: divergences, integrated, for every placement of the others."""
    x = np.linspace(-2 - 9 * noise, 2 + 9 * noise, 4001)
    pair, coins = losses_of(noise, drawn=True), losses_of(noise, drawn=False)
    above_coins = 0.0
    for others in itertools.product((-1.0, 1.0), repeat=3):
        p, q = (drawn_density(x, others, own, noise) for own in (1.0, -1.0))
        for eps in (0.0, 0.3, 1.0, 2.0):
            for a, b in ((p, q), (q, p)):
                found = float(np.trapezoid(np.maximum(a - math.exp(eps) * b, 0.0), x))
                assert found <= pair.get_delta_for_epsilon(eps) + 1e-5
                above_coins = max(above_coins, found - coins.get_delta_for_epsilon(eps))
    assert above_coins > 1e-3, "the pair of coins is no bound for a draw"


def losses_of(noise: float, *, drawn: bool) -> Any:
    """The loss of one step: half of the clients by a draw, or each with probability 1/2 by its own coin."""
    if drawn:
        one = Gaussian(sensitivity=2.0, scale=noise, unit="client", relation="replace-one", covers=("data",))
        return losses({Drawn(gaussian=one, clients=4, drawn=2, steps=1): 1}, 10)
    return losses({event(sensitivity=1.0, scale=noise, sample_rate=0.5, relation="replace-one"): 1}, 10)


def drawn_density(x: Any, others: tuple[float, ...], own: float, noise: float) -> Any:
    sums = [sum(pair) for pair in itertools.combinations((*others, own), 2)]
    return np.mean([norm.pdf(x, mean, noise) for mean in sums], axis=0)


def of_more_clients(log: Log) -> None:
    for seq, m in enumerate(log):
        if isinstance(m.event, DrawnGaussian):
            log.change(seq, event=replace(m.event, clients=40))
        if m.fields:
            log.change(seq, fields={"drawn_from": 40})


def remembered(log: Log) -> None:
    """A drawn client's answer depends on the answer that it gave when it was drawn before."""
    later = next(m.seq for m in log if m.sender == "client/0" and m.seq > 1)
    log.change(later, inputs=(*log[later].inputs, 1))


DAMAGES: dict[str, Callable[[Log], object]] = {
    "unrequested": lambda log: log.change(0, fields={}),
    "of more clients": of_more_clients,
    "of fewer drawn": lambda log: log.change(3, event=replace(TWO_OF_TWENTY, drawn=1)),
    "one gives nothing to the sum": lambda log: log.change(3, inputs=(0, 1)),
    "another in the sum": lambda log: log.change(2, sender="client/3"),
    "silent elsewhere": lambda log: log.add("client/4", "server", "silence", [], round=101),
    "undescribed": lambda log: log.change(3, defenses=()),
    "sent away": lambda log: log.change(3, receivers=("client/3",)),
    "remembered": remembered,
    # The next request is computed from an answer, past the noise: then the model leaks it, and ε is infinite.
    "from an answer": lambda log: log.change(4, inputs=(1,)),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_draw_of_a_fixed_size_counts_only_if_the_record_shows_that_it_hid_who_answered(damage: str) -> None:
    log = drawn_rounds()
    credited = Books(log, TWENTY).ledger("world").epsilon
    DAMAGES[damage](log)
    found = Books(log, TWENTY).ledger("world")
    assert found.sampling == ""
    assert credited < found.epsilon
    assert math.isinf(found.epsilon) or any("is not counted" in line for line in found.warnings)


@pytest.mark.parametrize(
    "view", ["client/1", "world+client/1", "eavesdropper", "world+eavesdropper", "server"]
)
@pytest.mark.parametrize("transport", ["plain", "encrypted"])
def test_whoever_sees_who_is_asked_may_not_count_the_draw(view: str, transport: str) -> None:
    fixed = {("model_parameters", "server"), ("model_update", "client")}
    books = Books(drawn_rounds(), TWENTY, transport=transport, fixed_sizes=fixed)
    found, world = books.ledger(view), books.ledger("world")
    assert found.sampling == ""
    assert found.epsilon > world.epsilon or not found.contributions


def test_a_fraction_of_the_clients_is_a_secret_draw(tmp_path: Path) -> None:
    changed = spec()
    changed["protocol"]["params"]["fraction"] = 0.5
    changed["defenses"][0]["params"] = {**RULE, "sample_rate": 1.0}
    run = fdaudit.run(changed, tmp_path / "run")
    messages = list(read_messages(run.directory / "transcript"))
    requests = [m for m in messages if m.kind == "model_parameters" and m.round < ROUNDS - 1]
    assert {len(m.receivers) for m in requests} == {2}
    assert len({m.receivers for m in requests}) > 1
    one = Gaussian(sensitivity=0.1, scale=0.2, unit="record", relation="replace-one", covers=("each-client",))
    expected = {Drawn(gaussian=one, clients=CLIENTS, drawn=2, steps=1): ROUNDS}
    world = run.ledger("world")
    assert world.epsilon == pytest.approx(epsilon(expected, 1e-5).value)
    assert world.epsilon < run.ledger("client/0").epsilon


def test_a_silent_client_ends_the_credit_for_a_draw(tmp_path: Path) -> None:
    changed = spec(outages=[{"client": k, "round": 1} for k in range(CLIENTS)])
    changed["protocol"]["params"]["fraction"] = 0.5
    changed["defenses"][0]["params"] = {**RULE, "sample_rate": 1.0}
    world = fdaudit.run(changed, tmp_path / "run").ledger("world")
    assert world.sampling == ""
    assert "in round 1" in world.warnings[-1]
