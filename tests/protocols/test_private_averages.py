"""DP-FedAvg: the server draws clients by secret coins and averages clipped updates with noise on their sum."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch

import fdaudit
from fdaudit.accounting.costs import epsilon
from fdaudit.accounting.ledger import Books
from fdaudit.errors import SpecError
from fdaudit.events import Gaussian, SampledGaussian
from fdaudit.storage.files import decode
from fdaudit.transcript.messages import role
from fdaudit.transcript.payloads import read_payload
from fdaudit.transcript.transcript import read_messages

from ..helpers.ledger_cases import Log
from ..helpers.run_cases import tiny

CLIENT: dict[str, Any] = {"unit": "client", "relation": "add-or-remove", "covers": ("each-client",)}
CLIENTS, ROUNDS = 4, 6
RULE = {"clip": 0.05, "noise_multiplier": 4.0, "sample_rate": 0.3, "expected_batch": 2}


def spec(**changes: Any) -> dict[str, Any]:
    params = {"rounds": ROUNDS, "local_steps": 2, "batch_size": 8, "weighting": "uniform"}
    return tiny(
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
    assert "Poisson at rate 0.3" in world.sampling
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
    final = decode(read_payload(run.directory / "transcript", models[max(models)]))
    first = decode(read_payload(run.directory / "transcript", models[min(models)]))
    change = torch.cat([(final[n] - first[n]).flatten().double() for n in final])
    # Each of the rounds adds noise of deviation 0.2 / 2, next to updates of length at most 0.05 / 2 a client.
    assert float(change.std()) == pytest.approx(0.1 * math.sqrt(ROUNDS), rel=0.2)


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
    with pytest.raises(SpecError, match="rule on the clients' updates") as caught:
        fdaudit.run(changed, tmp_path / "run")
    assert caught.value.field == f"protocol.params.{name}"


# -- a hundred rounds, in which a client takes part ten times ----------------------------------------------------------


def hundred(**stated: Any) -> Log:
    log, basis = Log(), list[int]()
    one = SampledGaussian(**{"sensitivity": 1.0, "scale": 1.0, "sample_rate": 0.1, **CLIENT, **stated})
    for t in range(100):
        w = log.add("server", f"client/{t % 10}", "model_parameters", basis, round=t)
        up = log.add(f"client/{t % 10}", "server", "model_update", ["data", w], round=t)
        basis = [log.add("server", "", "release", [w, up], one, round=t)]
        log[-1] = log[-1].__class__(
            **{**vars(log[-1]), "defenses": ({"sampling": "Poisson at rate 0.1, secret coins"},)}
        )
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
            log[seq] = m.__class__(**{**vars(m), **changes})
    assert Books(log, PARTIES).ledger("world").epsilon == pytest.approx(46.21, rel=5e-3)


def test_rounds_of_another_rate_count_although_the_client_took_no_part_in_them() -> None:
    log = hundred()
    for seq, m in enumerate(log):
        if m.kind == "release" and m.round % 10 == 3:  # client/3 is the only one that took part
            log[seq] = m.__class__(**{**vars(m), "event": event(sensitivity=1.0, scale=1.0, sample_rate=0.5)})
    kept = {"sensitivity": 1.0, "scale": 1.0, "unit": "record", "relation": "replace-one"}
    charges = {event(**kept, sample_rate=0.1): 90, event(**kept, sample_rate=0.5): 10}
    for world in (Books(log, PARTIES).ledger("world"),):
        assert world.epsilon == pytest.approx(epsilon(charges, 1e-5).value)
