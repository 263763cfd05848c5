"""What the ledger finds of FedIOD: raw logits leave nothing to claim, votes noised before the server do, at a price."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest

import fdaudit
from fdaudit.accounting.charges import Drawn
from fdaudit.accounting.costs import epsilon
from fdaudit.events import Gaussian

from ..helpers.run_cases import three_clients

VOTES = {"outputs": "votes", "weights": "uniform", "shares": "uniform"}
PLAIN = {"weights": "uniform", "shares": "uniform"}
CLIP, SIGMA, VOTE_SIGMA = 0.5, 40.0, 60.0
ROUNDS, STEPS, SAMPLES = 3, 3, 4
QUERIES = (ROUNDS - 1) * STEPS * SAMPLES
ONE: dict[str, Any] = {"unit": "record", "relation": "replace-one", "covers": ("data",)}


def gradients(drawn_from: int = 1) -> dict[str, Any]:
    params = {"clip": CLIP, "sigma": SIGMA, "drawn_from": drawn_from}
    return {"kind": "sample_gradients", "sender": "client", "name": "sanitized-gradients", "params": params}


def votes(sigma: float = VOTE_SIGMA, public_index: bool = True) -> dict[str, Any]:
    params = {"sigma": sigma, "public_index": public_index}
    return {"kind": "vote_counts", "sender": "aggregator", "name": "gnmax", "params": params}


def ran(folder: Path, params: dict[str, Any], defenses: list[dict[str, Any]], **more: Any) -> fdaudit.Run:
    small = {
        "rounds": ROUNDS,
        "steps_per_round": STEPS,
        "samples": SAMPLES,
        "latent": 3,
        "generator_width": 2,
        "discriminator_width": 2,
        "local_steps": 5,
        "batch_size": 8,
    }
    spec = three_clients(
        model={"name": "mlp", "params": {"widths": [8]}},
        protocol={"name": "fediod", "params": {**small, **params}},
        adversaries=["server"],
        defenses=defenses,
    )
    return fdaudit.run({**spec, **more}, folder / "run")


@pytest.fixture(scope="module")
def noised(tmp_path_factory: pytest.TempPathFactory) -> fdaudit.Run:
    return ran(tmp_path_factory.mktemp("noised"), VOTES, [gradients(), votes()])


@pytest.fixture(scope="module")
def of_one(tmp_path_factory: pytest.TempPathFactory) -> fdaudit.Run:
    """Next to nothing by the votes, so that the gradients' draw shows."""
    params = {**VOTES, "gradients_from": "one", "steps_per_round": 12}
    return ran(tmp_path_factory.mktemp("one"), params, [gradients(8), votes(4000.0)], clients=8)


def test_sanitised_gradients_leave_nothing_to_claim_where_logits_are_raw(tmp_path: Path) -> None:
    found = ran(tmp_path, PLAIN, [gradients()]).ledger("server")
    assert (found.epsilon, found.kind) == (math.inf, "logits")
    assert "raw data" in found.cause


def test_counts_of_records_come_first_where_they_are_sent(tmp_path: Path) -> None:
    found = ran(tmp_path, {}, [gradients()]).ledger("server")
    assert (found.epsilon, found.kind) == (math.inf, "class_counts")


def test_votes_noised_before_the_server_and_sanitised_gradients_are_all_that_it_costs(
    noised: fdaudit.Run,
) -> None:
    """A client's vote moves two counts, its clipped gradients move by 2C each: once for every sample of every step."""
    found = noised.ledger("server")
    assert [(c.kind, c.sender, c.mechanism, c.charges) for c in found.contributions] == [
        ("hard_labels", "aggregator", "Gaussian", QUERIES),
        ("sample_gradients", "client", "Gaussian", QUERIES),
    ]
    expected = epsilon(
        {
            Gaussian(sensitivity=math.sqrt(2), scale=VOTE_SIGMA, **ONE): QUERIES,
            Gaussian(sensitivity=2 * CLIP, scale=SIGMA * CLIP, **ONE): QUERIES,
        },
        1e-5,
    )
    assert found.epsilon == pytest.approx(expected.value, rel=1e-6)
    rho = QUERIES * (1 / VOTE_SIGMA**2 + 2 / SIGMA**2)
    assert 0.5 * found.epsilon < rho + 2 * math.sqrt(rho * math.log(1e5)) < 1.5 * found.epsilon
    assert noised.ledger("server", unit="client").epsilon == pytest.approx(found.epsilon)


@pytest.mark.parametrize("view", ["world", "client/0", "server+client/0"])
def test_whoever_sees_what_the_server_made_of_it_is_charged_no_more(noised: fdaudit.Run, view: str) -> None:
    assert noised.ledger(view).epsilon == pytest.approx(noised.ledger("server").epsilon)


@pytest.mark.parametrize("view", ["aggregator", "eavesdropper", "server+aggregator"])
def test_whoever_sees_the_votes_themselves_can_be_promised_nothing(noised: fdaudit.Run, view: str) -> None:
    found = noised.ledger(view)
    assert (found.epsilon, found.kind) == (math.inf, "hard_labels")
    assert "hard_labels of client/" in found.cause


@pytest.mark.parametrize(
    "defences",
    [[gradients()], [votes()], [gradients(), votes(public_index=False)]],
    ids=["votes bare", "gradients bare", "index not public"],
)
def test_half_of_it_is_worth_nothing(defences: list[dict[str, Any]], tmp_path: Path) -> None:
    """A bare gradient may have been made of all that its client holds, which has its votes as first cause."""
    found = ran(tmp_path, {**VOTES, "rounds": 2}, defences).ledger("server")
    assert (found.epsilon, found.kind) == (math.inf, "hard_labels")
    assert "through" in found.cause


def test_without_gradients_the_votes_are_all(tmp_path: Path) -> None:
    found = ran(tmp_path, {**VOTES, "gan": 0.0}, [votes()]).ledger("server")
    assert [(c.kind, c.charges) for c in found.contributions] == [("hard_labels", QUERIES)]
    expected = epsilon({Gaussian(sensitivity=math.sqrt(2), scale=VOTE_SIGMA, **ONE): QUERIES}, 1e-5)
    assert found.epsilon == pytest.approx(expected.value, rel=1e-6)


@pytest.mark.thorough
def test_only_who_cannot_tell_which_client_was_asked_may_count_the_draw(of_one: fdaudit.Run) -> None:
    server, world = of_one.ledger("server"), of_one.ledger("world")
    assert 0 < world.epsilon < 0.8 * server.epsilon
    assert "8 clients" in world.sampling
    assert server.sampling == ""
    view = of_one.view("server")
    asked = [m.sender for m in view.select(kind="sample_gradients")]
    assert len(asked) == 24
    most = max(asked.count(k) for k in set(asked))
    seen = {c.kind: c.charges for c in server.contributions}
    assert seen["sample_gradients"] == SAMPLES * most, "the client that was asked most often"


def test_the_draw_is_worth_what_its_losses_say(of_one: fdaudit.Run) -> None:
    event = Gaussian(sensitivity=2 * CLIP, scale=SIGMA * CLIP, count=SAMPLES, drawn_from=8, **ONE)
    queries = Gaussian(sensitivity=math.sqrt(2), scale=4000.0, **ONE)
    charges = {Drawn(gaussian=event, clients=8, steps=24): 1, queries: 24 * SAMPLES}
    assert of_one.ledger("world").epsilon == pytest.approx(epsilon(charges, 1e-5).value)


@pytest.mark.parametrize("view", ["world+client/0", "client/0", "server+world"])
def test_a_member_that_knows_who_was_asked_leaves_nothing_to_count(of_one: fdaudit.Run, view: str) -> None:
    found = of_one.ledger(view)
    assert found.sampling == ""
    others = [m.sender for m in of_one.view("server").select(kind="sample_gradients")]
    hidden = {p for p in view.split("+") if p.startswith("client/")}
    most = max(others.count(k) for k in set(others) - hidden)
    seen = {c.kind: c.charges for c in found.contributions}
    assert seen["sample_gradients"] == SAMPLES * most


@pytest.mark.thorough
def test_a_silent_client_ends_the_credit_for_draws(tmp_path: Path) -> None:
    params = {**VOTES, "gradients_from": "one", "steps_per_round": 6}
    gone = [{"client": 2, "round": 2}]
    run = ran(tmp_path, params, [gradients(3), votes(4000.0)], outages=gone)
    world = run.ledger("world")
    assert world.sampling == ""
    assert "client/2" in world.warnings[-1]
    assert "round 2" in world.warnings[-1]
    assert world.epsilon == pytest.approx(run.ledger("server").epsilon)
