"""A budget: never below what the ledger finds afterwards, and a run that ends before it is passed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import fdaudit
from fdaudit.accounting.budget import BudgetMeter, departing_groups
from fdaudit.accounting.ledger import Books
from fdaudit.errors import SpecError
from fdaudit.events import SampledGaussian

from ..helpers.ledger_cases import Log, dp_sgd
from .test_ledger import PARTIES, graphs
from .test_ledger_run import spec

ROLES = ("server", "aggregator", "client")
DP_SGD = {
    "name": "dp-sgd",
    "at": "training",
    "params": {"noise_multiplier": 4.0, "clip": 1.0, "sample_rate": 0.1},
}


def passed(log: Log, meter: BudgetMeter) -> Log:
    """Return the messages up to the first that the meter refuses."""
    sent = Log()
    for message in log:
        try:
            meter.admit(message)
        except SpecError:
            break
        sent.append(message)
    return sent


@pytest.mark.thorough
@settings(max_examples=150, deadline=None)
@given(log=graphs(), view=st.sampled_from(["server", "world", "client/1", "server+client/1"]))
def test_whatever_a_filter_lets_pass_stays_within_its_budget(log: Log, view: str) -> None:
    for budget in (1.0, 6.0, 40.0):
        sent = passed(log, BudgetMeter(view, budget, 1e-5, "record", "add-or-remove", PARTIES))
        found = Books(sent, PARTIES).ledger(view, relation="add-or-remove", pld=False)
        assert found.epsilon <= budget * (1 + 1e-9)


@pytest.mark.thorough
@settings(max_examples=150, deadline=None)
@given(
    log=graphs(), view=st.sampled_from(["server", "world", "server+client/1"]), name=st.sampled_from(ROLES)
)
def test_what_a_filter_lets_pass_stays_within_its_budget_if_parties_depart(
    log: Log, view: str, name: str
) -> None:
    for group in departing_groups([name], view, PARTIES):
        for budget in (1.0, 6.0, 40.0):
            meter = BudgetMeter(view, budget, 1e-5, "record", "add-or-remove", PARTIES, departing=group)
            remaining = Books(passed(log, meter), PARTIES).if_departed(group)
            found = remaining.ledger(view, relation="add-or-remove", pld=False)
            assert found.epsilon <= budget * (1 + 1e-9) or "could be asked" in found.cause


def noisy(sigma: float, rounds: int, **privacy: object) -> dict[str, object]:
    made = spec(privacy=privacy)
    made["protocol"] = {"name": "fedavg", "params": {**made["protocol"]["params"], "rounds": rounds}}
    params = {"sigma": sigma, "clip": 1.0}
    made["defenses"] = [
        {"kind": "model_update", "sender": "client", "name": "gaussian-noise", "params": params}
    ]
    return made


@pytest.mark.thorough
def test_a_run_ends_before_the_round_that_would_pass(tmp_path: Path) -> None:
    """Noise of six times the sensitivity: rounds add up slowly, and ε = 3 is passed within 30 of them."""
    run = fdaudit.run(noisy(12.0, 30, budget={"epsilon": 3.0}), tmp_path / "run")
    rounds = run.result.plain()["run"]["rounds"]
    assert 1 < rounds < 30
    spent = run.ledger("server").epsilon
    assert spent <= 3.0
    one = fdaudit.run(noisy(12.0, 1), tmp_path / "one").ledger("server").epsilon
    assert spent > one, "it went on as long as it could"
    more = fdaudit.run(noisy(12.0, rounds + 1), tmp_path / "more").ledger("server")
    assert more.epsilon > 3.0, "one round more would have passed it"
    (said,) = [line for line in run.result.plain()["limits"] if "budget" in line]
    assert f"after {rounds} of 30 rounds" in said
    assert run.verify() == []
    before = (run.directory / "transcript" / "messages.jsonl").read_bytes()
    fdaudit.run(None, run.directory, resume=True)
    assert (run.directory / "transcript" / "messages.jsonl").read_bytes() == before


def test_a_stopped_run_resumes_to_the_same_end(tmp_path: Path) -> None:
    """Killed before its manifest was written, it goes on where it was and adds no round."""
    run = fdaudit.run(noisy(12.0, 30, budget={"epsilon": 3.0}), tmp_path / "run")
    (run.directory / "manifest.json").rename(tmp_path / "manifest.json")
    again = fdaudit.run(None, run.directory, resume=True)
    ends = [
        json.loads(path.read_bytes())
        for path in (tmp_path / "manifest.json", again.directory / "manifest.json")
    ]
    assert ends[0]["head"] == ends[1]["head"]


def test_a_budget_that_is_never_reached_changes_nothing(tmp_path: Path) -> None:
    run = fdaudit.run(noisy(40.0, 2, budget={"epsilon": 3.0}), tmp_path / "run")
    assert run.result.plain()["run"]["rounds"] == 2
    assert not [line for line in run.result.plain()["limits"] if "budget" in line]


def drawing_clients() -> dict[str, object]:
    made = noisy(12.0, 2, budget={"epsilon": 30.0, "against": ["server"]})
    made["protocol"]["params"]["fraction"] = 0.5
    return {**made, "defenses": [DP_SGD]}


# A server that sends another model in round 0 makes later noise on messages worth nothing, as in the ledger.
IMPRINT = [{"party": "server", "name": "imprint", "params": {"rounds": [0]}}]
DEPARTED = r"make its training fail.*Train by DP-SGD"
REFUSED = {
    "too little noise": (noisy(0.1, 2, budget={"epsilon": 3.0}), "is passed in round 0 by model_update"),
    "no noise": (spec(privacy={"budget": {"epsilon": 3.0}}), "without a guarantee"),
    "noise on messages, the server departs": (
        noisy(12.0, 2, budget={"epsilon": 30.0, "against": ["server"]}),
        DEPARTED,
    ),
    "noise on messages, a client departs": (
        noisy(12.0, 2, budget={"epsilon": 30.0, "against": ["client"]}),
        DEPARTED,
    ),
    "a server that draws clients": (drawing_clients(), r"was not asked for .*Have every client take part"),
    "a role that nobody has": (
        noisy(12.0, 2, budget={"epsilon": 3.0, "against": ["aggregator"]}),
        "nobody in this run who could depart",
    ),
    "a server that deviates": (
        noisy(12.0, 2, budget={"epsilon": 30.0}) | {"deviations": IMPRINT},
        "make its training fail",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_budget_that_cannot_be_kept_is_refused_at_the_message(name: str, tmp_path: Path) -> None:
    made, said = REFUSED[name]
    with pytest.raises(SpecError, match=said) as caught:
        fdaudit.run(made, tmp_path / "run")
    field = "against" if name == "a role that nobody has" else "epsilon"
    assert caught.value.field == f"privacy.budget.{field}"
    assert not (tmp_path / "run" / "manifest.json").exists()


@pytest.mark.parametrize("against", [[], ["server"], ["server", "client"]])
def test_a_budget_against_parties_that_depart_is_spent_by_dp_sgd_as_before(
    against: list[str], tmp_path: Path
) -> None:
    made = noisy(12.0, 30, budget={"epsilon": 0.5, "against": against})
    run = fdaudit.run({**made, "defenses": [DP_SGD]}, tmp_path / "run")
    ledger = run.ledger("server")
    assert 1 < run.result.run.rounds < 30
    assert ledger.epsilon <= 0.5
    assert all(case.holds for case in ledger.against)


@pytest.mark.parametrize("missing", [None, 0, 1, 2])
def test_a_budget_refuses_a_server_that_could_have_asked_more_often(missing: int | None) -> None:
    """Two clients of three answer in a round; if the server departs, it may ask the third as well."""
    event = dp_sgd(scale=20.0)
    meter = BudgetMeter("server", 3.0, 1e-5, "record", "add-or-remove", PARTIES, departing=["server"])
    log = Log()
    for t in range(3):
        for client in PARTIES[2:5]:
            log.add("server", client, "model_parameters", [], round=t)
        for client in PARTIES[2:5]:
            if (t, client) != (missing, "client/2"):
                log.add(client, "server", "model_update", ["data"], event, round=t)

    def metered() -> None:
        for message in log:
            meter.admit(message)
        assert meter.allows_another()

    if missing is None:
        metered()
    else:
        with pytest.raises(
            SpecError, match=rf"^privacy\.budget\.epsilon: 3\.0 .*client/2 .* round {missing},"
        ):
            metered()


def steps_of_dp_sgd(meter: BudgetMeter, rate: float, most: int) -> int:
    """How many releases of one step of DP-SGD a budget lets pass."""
    event = SampledGaussian(
        sensitivity=1.0,
        scale=1.0,
        sample_rate=rate,
        unit="record",
        relation="add-or-remove",
        covers=("data",),
    )
    log = Log()
    for done in range(most):
        log.add("client/0", "server", "model_update", ("data",), event)
        try:
            meter.admit(log[-1])
        except SpecError:
            return done
    return most


@pytest.mark.thorough
@pytest.mark.parametrize(("rate", "epsilon", "by_order"), [(0.1, 9.9713, 160), (0.05, 4.767, 145)])
def test_a_budget_lets_pass_what_the_ledger_allows(rate: float, epsilon: float, by_order: int) -> None:
    """ε of 200 steps by the ledger. At one order, the best for the step, fewer fit."""
    shape = ("server", epsilon, 1e-5, "record", "add-or-remove", PARTIES)
    assert steps_of_dp_sgd(BudgetMeter(*shape, fixed=True), rate, 250) == 200
    assert by_order <= steps_of_dp_sgd(BudgetMeter(*shape), rate, 250) < 200
