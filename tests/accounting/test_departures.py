"""What a claim rests on: each case has its answer worked out by hand."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from fdaudit.protocols import REGISTRY as PROTOCOLS

import fdaudit
from fdaudit.accounting.charging import SUM
from fdaudit.accounting.costs import epsilon
from fdaudit.accounting.departures import departed
from fdaudit.accounting.ledger import Books, OracleAnswers
from fdaudit.cli.explain import sections
from fdaudit.errors import IntegrityError
from fdaudit.events import Composed, Gaussian, NoGuarantee, SampledGaussian, event_from_json, event_to_json
from fdaudit.result import AgainstActive
from fdaudit.testing.specs import small_spec
from fdaudit.transcript.messages import DEVIATION, DRAWN

from ..helpers.ledger_cases import CLIENT, Log, dp_sgd, gaussian

PARTIES = ("server", "aggregator", "client/0", "client/1", "client/2", "world")
CLIENTS = PARTIES[2:5]
EACH = {"covers": ("each-client",)}


def left(log: Log, view: str, parties: tuple[str, ...] = PARTIES, **more: Any) -> dict[str, AgainstActive]:
    """What is left of a view's ε, by who departs."""
    books = Books(log, parties, **more)
    return {case.who: case for case in books.against(books.ledger(view, relation="replace-one"))}


def one_gaussian(scale: float) -> float:
    return epsilon({gaussian(scale): 1}, 1e-5).value


def local_training(rounds: int = 2) -> Log:
    """FedAvg of clients that train by DP-SGD."""
    log, model = Log(), list[int]()
    for t in range(rounds):
        sent = log.add("server", " ".join(CLIENTS), "model_parameters", model, round=t)
        model = []
        for k in CLIENTS:
            release = log.add(k, "", "release", ["data", sent], dp_sgd(), round=t)
            model.append(log.add(k, "server", "model_update", [release, sent], round=t))
    log.add("server", "world", "model_parameters", model, round=rounds)
    return log


def noised_updates(rounds: int = 2) -> Log:
    """FedAvg of clients that add noise to what they send, and none to their training."""
    log, model = Log(), list[int]()
    for t in range(rounds):
        sent = log.add("server", " ".join(CLIENTS), "model_parameters", model, round=t)
        model = [
            log.add(k, "server", "model_update", ["data", sent], gaussian(4.0), round=t) for k in CLIENTS
        ]
    return log


def votes() -> Log:
    """An aggregator counts votes on public samples and adds noise."""
    log = Log()
    ballots = [log.add(k, "aggregator", "hard_labels", ["data"]) for k in CLIENTS]
    log.add("aggregator", "server", "hard_labels", ballots, gaussian(4.0, **EACH))
    return log


def secure_sum() -> Log:
    """Each client adds a share of the noise to what the aggregator sums."""
    log = Log()
    shares = [log.add(k, "aggregator", "model_update", ["data"], gaussian(2.0)) for k in CLIENTS]
    log.add("aggregator", "server", "model_update", shares, **{SUM: True})
    return log


def noise_of_the_server(rounds: int = 20) -> Log:
    """DP-FedAvg of clients that take part by the server's secret coins, one of ten in a round."""
    log, basis = Log(), list[int]()
    event = SampledGaussian(sensitivity=1.0, scale=4.0, sample_rate=0.1, **{**CLIENT, **EACH})
    for t in range(rounds):
        k = f"client/{t % 10}"
        sent = log.add("server", k, "model_parameters", basis, round=t)
        upload = log.add(k, "server", "model_update", ["data", sent], round=t)
        basis = [log.add("server", "", "release", [sent, upload], event, round=t)]
        log.change(-1, defenses=({"sampling": "Poisson at rate 0.1, secret coins"},))
    log.add("server", "world", "model_parameters", basis, round=rounds)
    return log


TEN = ("server", *(f"client/{k}" for k in range(10)), "world")


@pytest.mark.parametrize("view", ["server", "world"])
def test_training_under_noise_of_its_own_needs_nobody(view: str) -> None:
    cases = left(local_training(), view)
    assert set(cases) == {"the server", "all other clients"}
    assert all(case.holds and case.epsilon for case in cases.values())


def test_noise_on_a_message_does_not_hide_a_training_that_fails_on_what_it_is_sent() -> None:
    cases = left(noised_updates(), "server")
    assert set(cases) == {"the server", "one other client"}
    assert all(not case.holds and case.epsilon is None for case in cases.values())
    assert "message 1" in cases["the server"].why
    assert "training fail" in cases["the server"].why


def test_noise_on_a_message_holds_if_nothing_came_before_it() -> None:
    log = Log()
    for k in CLIENTS:
        log.add(k, "server", "model_update", ["data"], gaussian(4.0))
    cases = left(log, "server")
    assert all(case.holds for case in cases.values())
    assert cases["the server"].epsilon == pytest.approx(one_gaussian(4.0))


def test_noise_that_an_aggregator_adds_needs_the_aggregator_and_nobody_else() -> None:
    cases = left(votes(), "server")
    assert cases["the server"].holds
    assert cases["all other clients"].holds
    assert cases["the aggregator"].epsilon is None
    assert "hard_labels of client/0" in cases["the aggregator"].why
    assert "one other client" not in cases


def test_of_noise_in_shares_only_the_honest_ones_count() -> None:
    """Variances add up: three shares of 2² make √12, two √8; an aggregator that departs may send each by itself."""
    cases = left(secure_sum(), "server")
    assert cases["the server"].holds
    assert cases["the server"].epsilon == pytest.approx(one_gaussian(math.sqrt(12)))
    for who, variance in (("one other client", 8), ("all other clients", 4), ("the aggregator", 4)):
        assert not cases[who].holds
        assert cases[who].epsilon == pytest.approx(one_gaussian(math.sqrt(variance)))


def test_noise_that_the_server_adds_needs_the_server_for_every_view() -> None:
    cases = left(noise_of_the_server(), "client/1", TEN)
    assert cases["the server"].epsilon is None
    assert cases["all other clients"].holds


def test_secret_coins_of_the_server_count_only_while_every_client_follows_the_protocol() -> None:
    log = noise_of_the_server()
    cases = left(log, "world", TEN)
    assert cases["the server"].epsilon is None
    told = Books(log, TEN).ledger("client/1", relation="replace-one").epsilon
    assert cases["one other client"].epsilon == pytest.approx(told)
    assert Books(log, TEN).ledger("world", relation="replace-one").epsilon < told / 2


def test_a_departing_server_hands_on_what_it_holds_to_others() -> None:
    """The world is sent a model of the first round; the server also holds the second round's."""
    log = local_training(2)
    first = [m.seq for m in log if m.kind == "model_update" and m.round == 0]
    log.change(-1, inputs=tuple(first))
    case = left(log, "world")["the server"]
    assert not case.holds
    assert case.epsilon == Books(log, PARTIES).ledger("server", relation="replace-one").epsilon


def test_a_client_that_was_not_asked_every_time_could_have_been() -> None:
    log = local_training()
    log[:] = [m for m in log if not (m.sender == "client/2" and m.round == 1)]
    numbers = {m.seq: at for at, m in enumerate(log)}
    for at, m in enumerate(log):
        inputs = tuple(i if i == "data" else numbers[i] for i in m.inputs if i == "data" or i in numbers)
        log[at] = replace(m, seq=at, inputs=inputs)
    case = left(log, "server")["the server"]
    assert case.epsilon is None
    assert "client/2" in case.why
    assert "release in round 1" in case.why
    assert left(log, "server")["all other clients"].holds
    silent = replace(log[-1], sender="client/2", receivers=("server",), kind="silence", inputs=(), round=1)
    log.append(replace(silent, seq=len(log)))
    assert left(log, "server")["the server"].holds


def test_a_deviation_on_record_takes_a_claim_that_needs_its_sender_away() -> None:
    log = noised_updates()
    assert Books(log, PARTIES).ledger("server", relation="replace-one").finite
    log.change(4, fields={DEVIATION: "crafted"})
    assert log[4].sender == "server"
    found = Books(log, PARTIES).ledger("server", relation="replace-one")
    assert not found.finite
    assert "training fail" in found.cause
    trained = local_training()
    honest = Books(trained, PARTIES).ledger("server", relation="replace-one")
    trained.change(0, fields={DEVIATION: "crafted"})
    assert Books(trained, PARTIES).ledger("server", relation="replace-one").epsilon == honest.epsilon


def test_a_draw_of_a_departing_party_counts_for_nothing() -> None:
    request = Log()
    request.add("server", "client/0", "generated_samples", [], **{DRAWN: 3})
    (asked,) = departed(request, ["server"])
    assert DRAWN not in asked.fields
    assert asked.inputs == "all"


def test_answers_of_oracles_reach_whom_a_departing_party_tells() -> None:
    log = local_training(1)
    answer = Log(log)
    answer.add("client/0", "", "oracle_answer", ["data"], gaussian(1.0))
    server = frozenset({"server"})
    asked = OracleAnswers(message=answer[-1], asked_by=server, heard_by=server, queries=5)
    books = Books(log, PARTIES, oracles=[asked])
    case = left(log, "world", oracles=[asked])["the server"]
    assert not case.holds
    assert case.epsilon == books.ledger("server", relation="replace-one").epsilon


def test_an_encrypted_size_is_fixed_only_by_an_honest_sender() -> None:
    log = Log()
    ballots = [log.add(k, "aggregator", "hard_labels", ["data"]) for k in CLIENTS]
    noisy = log.add("aggregator", "server", "hard_labels", ballots, gaussian(4.0, **EACH))
    log.add("server", "client/0", "class_counts", [noisy])
    terms: dict[str, Any] = {
        "transport": "encrypted",
        "fixed_sizes": [("hard_labels", "client"), ("hard_labels", "aggregator")],
    }
    assert left(log, "eavesdropper", **terms)["the aggregator"].epsilon is None


@pytest.mark.parametrize("view", ["server", "world"])
def test_a_view_without_an_epsilon_to_claim_or_without_noise_has_nothing_to_say(view: str) -> None:
    log = Log()
    log.add("client/0", "server", "model_update", ["data"])
    assert left(log, view) == {}


# -- what an event trusts --------------------------------------------------------------------------------------------


def trusting(*roles: str) -> Gaussian:
    return Gaussian(sensitivity=1.0, scale=4.0, **{**CLIENT, "trusts": roles})


def test_an_event_that_trusts_the_server_gives_nothing_against_it() -> None:
    log = Log()
    log.add("client/0", "server", "model_update", ["data"], trusting("server"))
    log.add("client/1", "server", "model_update", ["data"], trusting("server"))
    cases = left(log, "server")
    assert "only if server" in cases["the server"].why
    assert cases["all other clients"].holds


def test_whom_an_event_trusts_is_on_record_only_if_there_is_somebody() -> None:
    assert "trusts" not in event_to_json(trusting())
    told = event_to_json(trusting("server"))
    assert event_from_json(told) == trusting("server")
    assert Composed(parts=(trusting(), trusting("server"), trusting("client", "server"))).trusts == (
        "server",
        "client",
    )
    with pytest.raises(IntegrityError, match="trusts"):
        event_from_json({**told, "trusts": ["client/1"]})


def test_a_message_without_a_guarantee_stays_as_it_is() -> None:
    log = Log()
    log.add("client/0", "server", "model_update", ["data"], NoGuarantee(reason="none"))
    assert list(departed(log, ["server"])) == log


# -- defences of whole clients, as they run ----------------------------------------------------------------------------

VOTING = {"kind": "vote_counts", "sender": "aggregator", "name": "gnmax"}
NEEDS: dict[str, tuple[dict[str, Any], dict[str, Any], set[str]]] = {
    "fedavg": (
        {"rounds": 2, "local_epochs": 1, "weighting": "uniform", "aggregation": "secure"},
        {"kind": "model_update", "name": "dp-fedavg", "params": {"clip": 1.0, "sigma": 20.0, "shares": 3}},
        {"server", "aggregator", "client"},
    ),
    "fedkd": (
        {"local_epochs": 1, "distill_rounds": 1, "distill_steps": 2, "weights": "uniform", "ensemble": "votes"},
        {**VOTING, "params": {"sigma": 100.0, "public_index": True}},
        {"aggregator"},
    ),
    "selective-fd": (
        {"rounds": 2, "local_steps": 1, "warm_up_steps": 2, "distill_steps": 1, "ensemble": "votes",
         "aggregator": "secure", "labels": "hard", "selector": "none"},
        {**VOTING, "params": {"sigma": 100.0, "public_index": True}},
        {"aggregator"},
    ),
}  # fmt: skip
"""By protocol: settings, a defence of whole clients, and the roles that must be honest for the server's ε."""


@pytest.mark.thorough
@pytest.mark.parametrize("protocol", NEEDS)
def test_a_defence_of_clients_needs_who_adds_its_noise(protocol: str, tmp_path: Path) -> None:
    params, defence, needs = NEEDS[protocol]
    spec = small_spec(
        clients=3,
        protocol={"name": protocol, "params": params},
        defenses=[defence],
        attacks=[],
        references=[],
        adversaries=["server"],
        privacy={"unit": "client"},
        **({"splits__proxy": 0.1} if protocol != "fedavg" else {}),
    )
    run = fdaudit.run(spec, tmp_path / "run")
    ledger = run.ledger("server")
    assert ledger.finite
    assert {case.departs for case in ledger.against if not case.holds} == needs
    entry = next(e for e in run.result.ledger or () if e.adversary == "server")
    assert entry.against == ledger.against
    said = {section.title: section.items for section in sections(PROTOCOLS.describe(protocol))}
    line = said["What holds if a party departs from it"][1]
    assert ("the aggregator does" in line) == (needs == {"aggregator"})
    assert ("no ε" in line) == ("client" in needs)
