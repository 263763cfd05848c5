"""Selective-FD with votes: ballots that say nothing by their index, who sees what, and what the ledger says of it."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from fdaudit.defenses import REGISTRY as DEFENSES
from fdaudit.protocols import REGISTRY
from torch.nn import functional as F

from fdaudit.accounting.ledger import Books
from fdaudit.config import validate
from fdaudit.errors import SpecError
from fdaudit.federation.rehearsal import parties_of
from fdaudit.planning.simulated import simulated_case
from fdaudit.spec.schema import load_spec
from fdaudit.testing.federation import CLASSES, SIZES, public, records
from fdaudit.testing.running import ProtocolRun
from fdaudit.transcript.messages import ALL, role

from ...helpers.by_hand import close, descended
from ...helpers.defence_cases import defence
from ...helpers.protocol_cases import configured, run
from ...helpers.run_cases import known

ROUNDS, B = 2, 5
VOTES: dict[str, Any] = {
    "ensemble": "votes",
    "public_batch": B,
    "selector": "density-ratio",
    "tau_client": 0.9,
}
SECURE = {**VOTES, "aggregator": "secure"}
SIGMA = 20.0


def pate(sender: str, name: str = "gnmax", **params: Any) -> dict[tuple[str, str], list[Any]]:
    params = {"sigma": SIGMA, "public_index": True, **params}
    return {("vote_counts", sender): [defence(name, **params)]}


def went(folder: Any, params: dict[str, Any], **kwargs: Any) -> ProtocolRun:
    return run(folder, "selective-fd", params, rounds=ROUNDS, **kwargs)


def epsilon(ran: ProtocolRun, view: str) -> float:
    return Books(ran.messages, ran.parties).ledger(view, pld=False).epsilon


# -- the rounds -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("params", [VOTES, SECURE], ids=["server", "secure"])
def test_every_ballot_is_on_all_that_was_asked_and_the_counts_are_of_the_ballots(
    params: Any, tmp_path
) -> None:
    ran, counter = went(tmp_path / "a", params), "aggregator" if params is SECURE else "server"
    for t in range(ROUNDS):
        asked, *ballots, result = [m for m in ran.messages if m.round == t]
        index = ran.tensors(asked)["index"]
        wanted = torch.zeros(B, CLASSES, dtype=torch.int64)
        for message in ballots:
            assert (message.kind, message.receivers) == ("hard_labels", (counter,))
            cast = ran.tensors(message)
            assert torch.equal(cast["index"], index)
            votes = cast["values"].long()
            wanted += F.one_hot(votes.clamp_min(0), CLASSES) * (votes >= 0)[:, None]
        assert (result.kind, result.sender, result.inputs) == (
            "vote_counts",
            counter,
            (asked.seq, *(m.seq for m in ballots)),
        )
        got = ran.tensors(result)
        assert torch.equal(got["index"], index)
        assert torch.equal(got["counts"], wanted)


def test_a_ballot_declines_what_an_answer_leaves_out(tmp_path) -> None:
    """In the first round the models are the same: the ballots hold the answers of the mean, and -1 for the rest."""
    votes, mean = went(tmp_path / "a", VOTES), went(tmp_path / "b", {**VOTES, "ensemble": "mean"})
    declined = 0
    for k in records():
        (cast,), (answer,) = (
            [ran.tensors(m) for m in ran.messages if (m.round, m.sender) == (0, k)] for ran in (votes, mean)
        )
        given = dict(zip(answer["index"].tolist(), answer["values"].tolist(), strict=True))
        for i, v in zip(cast["index"].tolist(), cast["values"].tolist(), strict=True):
            assert v == given.get(i, -1)
        declined += B - len(given)
    assert 0 < declined < B * len(SIZES), "something must be declined, and something answered"


def test_clients_distil_from_noisy_labels_of_one_hot_and_without_noise_from_the_shares(tmp_path) -> None:
    params = {**VOTES, "selector": "none", "local_steps": 0, "distill_steps": 3, "lr": 0.5}
    for number, defenses in enumerate(({}, pate("server", sigma=2.0))):
        ran = went(tmp_path / str(number), params, defenses=defenses)
        (message,) = [
            m for m in ran.messages if m.sender == "server" and m.round == 1 and m.kind != "proxy_indices"
        ]
        sent = ran.tensors(message)
        assert message.kind == ("hard_labels" if defenses else "vote_counts")
        p = (
            F.one_hot(sent["values"].long(), CLASSES).float()
            if defenses
            else sent["counts"] / sent["counts"].sum(1, True)
        )

        x = public()[sent["index"].long()]

        def loss(module: Any, p: torch.Tensor = p, x: torch.Tensor = x) -> Any:
            return -(p * F.log_softmax(module(x), 1)).sum(1).mean()

        for k in records():
            close(ran.rounds[1].models[k], descended(ran.rounds[0].models[k], loss, 3, 0.5))


def test_where_nothing_is_answered_nobody_learns_but_that_it_was_is_declared(tmp_path) -> None:
    params = {**VOTES, "selector": "none", "local_steps": 0, "warm_up_steps": 0}
    dp = DEFENSES.load("dp-sgd")
    rule = dp(validate(dp.Config, {"clip": 1.0, "noise_multiplier": 1.0, "sample_rate": 0.5}), 4)
    made = pate("server", "confident-gnmax", threshold=99.0, sigma_threshold=1e-6)
    ran = went(tmp_path / "a", params, defenses=made, training={"model": rule})
    labels = [m for m in ran.messages if m.kind == "hard_labels" and m.sender == "server"]
    assert all(not len(ran.tensors(m)["index"]) for m in labels)
    for k in records():
        assert all(torch.equal(t, ran.rounds[0].models[k][n]) for n, t in ran.rounds[1].models[k].items())
    for message in ran.messages:
        if role(message.sender) == "client" and message.round == 1:
            assert message.inputs != ALL
            assert labels[0].seq in message.inputs


def test_with_secure_aggregation_the_server_receives_the_result_alone(tmp_path) -> None:
    ran = went(tmp_path / "a", SECURE, defenses=pate("aggregator"))
    received = [(m.kind, m.sender) for m in ran.messages if "server" in m.receivers]
    assert received == [("hard_labels", "aggregator")] * ROUNDS
    for message in ran.messages:
        if role(message.sender) == "client":
            assert message.receivers == ("aggregator",)


# -- the ledger -----------------------------------------------------------------------------------------------------


def test_with_pate_at_the_server_clients_are_finite_and_the_server_is_not(tmp_path) -> None:
    ran = went(tmp_path / "a", VOTES, defenses=pate("server"))
    rho = ROUNDS * B / SIGMA**2  # sensitivity √2, every sample of every round
    for view in ("client/0", "client/2", "client/0+client/1"):
        assert 0.1 < epsilon(ran, view) < rho + 2 * math.sqrt(rho * math.log(1e5))
    found = Books(ran.messages, ran.parties).ledger("client/0", pld=False)
    assert [(c.kind, c.sender, c.charges) for c in found.contributions] == [
        ("hard_labels", "server", ROUNDS * B)
    ]
    server = Books(ran.messages, ran.parties).ledger("server")
    assert (server.epsilon, server.kind) == (math.inf, "hard_labels")
    assert epsilon(ran, "eavesdropper") == math.inf


def test_with_noise_inside_the_secure_aggregation_the_server_is_finite_too(tmp_path) -> None:
    ran = went(tmp_path / "a", SECURE, defenses=pate("aggregator"))
    assert epsilon(ran, "server") == pytest.approx(epsilon(ran, "client/0"))
    assert epsilon(ran, "server+client/1") == pytest.approx(epsilon(ran, "server"))
    assert 0 < epsilon(ran, "server") < math.inf
    assert epsilon(ran, "aggregator") == math.inf


def test_an_exact_secure_count_has_no_figure(tmp_path) -> None:
    ran = went(tmp_path / "a", SECURE)
    for view in ("server", "client/0", "aggregator"):
        assert epsilon(ran, view) == math.inf


@pytest.mark.parametrize("selector", ["density-ratio", "confidence", "energy", "none"])
def test_the_figure_is_the_same_whatever_decides_what_is_declined(selector: str, tmp_path) -> None:
    ran = went(tmp_path / "a", {**VOTES, "selector": selector}, defenses=pate("server"))
    rho = ROUNDS * B / SIGMA**2
    assert 0.1 < epsilon(ran, "client/1") < rho + 2 * math.sqrt(rho * math.log(1e5))


# -- who takes part, and what is refused ----------------------------------------------------------------------------


def test_there_is_an_aggregator_with_secure_aggregation_only() -> None:
    cls = REGISTRY.load("selective-fd")
    for params, others in (({}, ("server",)), (VOTES, ("server",)), (SECURE, ("server", "aggregator"))):
        assert parties_of(cls, configured("selective-fd", params), 1) == (*others, "client/0", "world")


def planned(params: dict[str, Any], *defenses: tuple[str, str, str]) -> Any:
    attached = [
        {"kind": kind, "sender": sender, "name": name, "params": {"sigma": 1.0} if name == "gnmax" else {}}
        for kind, sender, name in defenses
    ]
    wanted = {
        "dataset": {"name": "digits", "limit": 300},
        "splits": {"proxy": 0.3},
        "attacks": [],
        "protocol": {"name": "selective-fd", "params": params},
        "defenses": attached,
    }
    return simulated_case(load_spec(wanted), known(0))


def test_pate_is_attached_where_votes_are_counted() -> None:
    gnmax = [("vote_counts", s, "gnmax") for s in ("server", "aggregator")]
    assert list(planned({"ensemble": "votes"}, gnmax[0]).defenses) == [("vote_counts", "server")]
    secure = {"ensemble": "votes", "aggregator": "secure"}
    assert list(planned(secure, gnmax[1]).defenses) == [("vote_counts", "aggregator")]
    for params, wrong in (({"ensemble": "votes"}, gnmax[1]), (secure, gnmax[0]), ({}, gnmax[0])):
        with pytest.raises(SpecError, match="vote_counts"):
            planned(params, wrong)
    assert planned({"labels": "soft"}, ("soft_labels", "client", "hard-label")).defenses
