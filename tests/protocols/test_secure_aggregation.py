"""FedAvg with secure aggregation: what the server gets, that it is the same model, and how honest noise adds up."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from fdaudit.attacks.gradient_inversion.uploads import Upload, find_upload
from fdaudit.protocols import REGISTRY

from fdaudit.accounting.ledger import Books
from fdaudit.adversary.view import view_of
from fdaudit.cli.explain import sections
from fdaudit.errors import SpecError
from fdaudit.events import Gaussian
from fdaudit.federation.rehearsal import parties_of
from fdaudit.planning.simulated import simulated_case
from fdaudit.spec.schema import load_spec
from fdaudit.storage.files import encode
from fdaudit.testing.federation import SIZES, initial, records
from fdaudit.testing.running import ProtocolRun
from fdaudit.transcript.messages import SUM
from fdaudit.transcript.wire import Outage

from ..helpers.by_hand import by_sender, close, sent
from ..helpers.defence_cases import defence
from ..helpers.ledger_cases import Log
from ..helpers.protocol_cases import configured, run
from ..helpers.run_cases import known

SECURE: dict[str, Any] = {"aggregation": "secure", "weighting": "uniform", "local_steps": 2, "lr": 0.3}
ROUNDS, K = 3, len(SIZES)
C, SIGMA = 0.5, 30.0


def dp_fedavg(shares: int = K, sigma: float = SIGMA) -> dict[tuple[str, str], list[Any]]:
    return {("model_update", "client"): [defence("dp-fedavg", clip=C, sigma=sigma, shares=shares)]}


def books(ran: ProtocolRun) -> Books:
    return Books(ran.messages, ran.parties)


def gaussians(rounds: int, scale: float) -> float:
    """ε of so many Gaussian releases of sensitivity 2C, from a transcript in which nothing else happens."""
    log = Log()
    for _ in range(rounds):
        event = Gaussian(
            sensitivity=2 * C, scale=scale, unit="client", relation="replace-one", covers=("data", "messages")
        )
        log.add("client/0", "server", "model_update", ["data"], event)
    return Books(log, ("server", "client/0", "world")).ledger("server").epsilon


# -- the protocol ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("weighting", ["uniform", "public"])
@pytest.mark.parametrize("more", [{}, {"fraction": 0.67}, {"server_momentum": 0.5}], ids=str)
def test_without_noise_the_model_is_that_of_plain_aggregation(
    weighting: str, more: dict[str, Any], tmp_path
) -> None:
    params = {**SECURE, "weighting": weighting, **more}
    secure = run(tmp_path / "a", "fedavg", params)
    plain = run(tmp_path / "b", "fedavg", {**params, "aggregation": "plain"})
    close(secure.protocol.released(), plain.protocol.released(), rtol=1e-5, atol=1e-6)


def test_the_server_gets_one_message_a_round_the_sum_of_what_arrived(tmp_path) -> None:
    ran = run(tmp_path / "a", "fedavg", {**SECURE, "weighting": "public", "weights": SIZES})
    sums = [m for m in ran.messages if "server" in m.receivers]
    assert [(m.kind, m.sender, m.round) for m in sums] == [
        ("model_update", "aggregator", t) for t in range(ROUNDS)
    ]
    for message in sums:
        own = sent(ran, sender="client", round=message.round)
        assert all((m.kind, m.receivers) == ("model_update", ("aggregator",)) for m in own)
        assert message.inputs == tuple(m.seq for m in own)
        assert message.fields == {SUM: True, "weight": pytest.approx(1.0), "clients": [m.sender for m in own]}
        for name, value in ran.tensors(message).items():
            wanted = sum(ran.tensors(m)[name].double() for m in own)
            torch.testing.assert_close(value, wanted.float(), rtol=1e-6, atol=1e-7)


def test_the_sum_of_a_sampled_round_says_who_is_in_it(tmp_path) -> None:
    ran = run(tmp_path / "a", "fedavg", {**SECURE, "weighting": "uniform", "fraction": 0.67})
    broadcasts = [m for m in ran.messages if m.kind == "model_parameters" and "world" not in m.receivers]
    sums = [m for m in ran.messages if m.sender == "aggregator"]
    assert [m.fields["clients"] for m in sums] == [[*m.receivers] for m in broadcasts]
    assert {len(m.fields["clients"]) for m in sums} == {2}


def test_updates_are_weighted_before_they_are_sent(tmp_path) -> None:
    secure, plain = (
        run(tmp_path / a, "fedavg", {**SECURE, "weighting": "public", "aggregation": a}, rounds=1)
        for a in ("secure", "plain")
    )
    updates = [by_sender(ran, "model_update", "client") for ran in (secure, plain)]
    for k, n in zip(records(), SIZES, strict=True):
        for name, delta in updates[1][k].items():
            torch.testing.assert_close(updates[0][k][name], n / sum(SIZES) * delta)


@pytest.mark.parametrize("weighting", ["uniform", "public"])
def test_of_a_client_that_is_silent_neither_update_nor_weight_is_in_the_sum(weighting: str, tmp_path) -> None:
    gone = [Outage(party="client/1", first=1, last=1)]
    params = {**SECURE, "weighting": weighting}
    secure = run(tmp_path / "a", "fedavg", params, outages=gone)
    plain = run(tmp_path / "b", "fedavg", {**params, "aggregation": "plain"}, outages=gone)
    sums = [m for m in secure.messages if m.sender == "aggregator"]
    left = 2 / 3 if weighting == "uniform" else 1 - SIZES[1] / sum(SIZES)
    assert [m.fields["weight"] for m in sums] == pytest.approx([1.0, left, 1.0])
    assert [m.fields["clients"] for m in sums] == [[*records()], ["client/0", "client/2"], [*records()]]
    close(secure.protocol.released(), plain.protocol.released(), rtol=1e-5, atol=1e-6)
    everybody = [Outage(party=k, first=0, last=ROUNDS - 1) for k in records()]
    nobody = run(tmp_path / "c", "fedavg", params, outages=everybody)
    assert encode(nobody.protocol.released()) == encode(initial())
    assert not [m for m in nobody.messages if m.sender == "aggregator"]


def test_where_the_promise_is_broken_an_attack_gets_the_update_that_a_plain_run_sends(tmp_path) -> None:
    """Server and aggregator together undo the weight, which is public; the server alone has nothing to invert."""
    found = []
    for aggregation, adversary in (("secure", "server+aggregator"), ("plain", "server")):
        params = {**SECURE, "weighting": "public", "aggregation": aggregation}
        ran = run(tmp_path / aggregation, "fedavg", params)
        hyperparameters = configured("fedavg", params).model_dump(mode="json")
        view = view_of(ran.folder, adversary, parties=ran.parties, hyperparameters=hyperparameters)
        found.append(find_upload(view, "client/1", 0, 99))
        if aggregation == "secure":
            alone = view_of(ran.folder, "server", parties=ran.parties, hyperparameters=hyperparameters)
            assert "in view" in str(find_upload(alone, "client/1", 0, 99))
    for upload in found:
        assert isinstance(upload, Upload)
        assert upload.update is not None
    close(found[0].update, found[1].update, rtol=1e-5, atol=1e-7)


# -- the ledger -----------------------------------------------------------------------------------------------------


def test_the_shares_of_noise_add_up_for_whoever_sees_the_sum_alone(tmp_path) -> None:
    """Each client adds N(0, σ²C²/K): the sum is a Gaussian release of sensitivity 2C and scale σC a round."""
    found = books(run(tmp_path / "a", "fedavg", SECURE, defenses=dp_fedavg()))
    whole = gaussians(ROUNDS, SIGMA * C)
    for view in ("server", "world", "client/0"):
        # Of the noise that a member adds itself nothing hides the others from it.
        honest = (K - 1) / K if view.startswith("client") else 1.0
        wanted = gaussians(ROUNDS, SIGMA * C * math.sqrt(honest))
        assert found.ledger(view).epsilon == pytest.approx(wanted)
        assert found.ledger(view, unit="client").epsilon == pytest.approx(wanted)
    coalition = found.ledger("server+client/1").epsilon
    assert coalition == pytest.approx(gaussians(ROUNDS, SIGMA * C * math.sqrt((K - 1) / K)))
    aggregator = found.ledger("aggregator").epsilon
    assert aggregator == pytest.approx(gaussians(ROUNDS, SIGMA * C / math.sqrt(K)))
    assert whole < coalition < aggregator < math.inf
    assert found.ledger("eavesdropper").epsilon == pytest.approx(aggregator), "where the transport is plain"


def test_a_silent_client_s_share_of_the_noise_is_not_counted(tmp_path) -> None:
    gone = [Outage(party="client/1", first=0, last=ROUNDS - 1)]
    found = books(run(tmp_path / "a", "fedavg", SECURE, defenses=dp_fedavg(), outages=gone))
    wanted = gaussians(ROUNDS, SIGMA * C * math.sqrt((K - 1) / K))
    assert found.ledger("server").epsilon == pytest.approx(wanted)


def test_an_exact_sum_without_noise_has_no_figure(tmp_path) -> None:
    found = books(run(tmp_path / "a", "fedavg", SECURE))
    for view in ("server", "world", "aggregator", "client/0"):
        assert found.ledger(view).epsilon == math.inf


def test_noise_on_the_sum_alone_protects_from_everybody_but_the_aggregator(tmp_path) -> None:
    made = defence("dp-fedavg", clip=C, sigma=SIGMA)
    found = books(run(tmp_path / "a", "fedavg", SECURE, defenses={("model_update", "aggregator"): [made]}))
    assert found.ledger("server").epsilon == pytest.approx(gaussians(ROUNDS, SIGMA * C))
    assert found.ledger("aggregator").epsilon == math.inf


def test_in_plain_aggregation_the_server_sees_each_share_by_itself(tmp_path) -> None:
    found = books(run(tmp_path / "a", "fedavg", {**SECURE, "aggregation": "plain"}, defenses=dp_fedavg()))
    assert found.ledger("server").epsilon == pytest.approx(gaussians(ROUNDS, SIGMA * C / math.sqrt(K)))


# -- who takes part, and what is refused ----------------------------------------------------------------------------


def test_there_is_no_aggregator_in_a_plain_run(tmp_path) -> None:
    cls = REGISTRY.load("fedavg")
    clients = [f"client/{k}" for k in range(K)]
    assert parties_of(cls, configured("fedavg", {}), K) == ("server", *clients, "world")
    assert parties_of(cls, configured("fedavg", SECURE), K) == ("server", "aggregator", *clients, "world")
    assert run(tmp_path / "a", "fedavg").parties == ("server", *clients, "world")
    roles = {s.title: s.items for s in sections(REGISTRY.describe("fedavg"))}["Roles"]
    server, aggregator, client = roles
    assert (server, client) == ("server", "client")
    assert 'aggregation: "secure"' in aggregator


def spec(**params: Any) -> Any:
    return load_spec(
        {
            "dataset": {"name": "digits", "limit": 200},
            "attacks": [],
            "adversaries": ["server", "aggregator"],
            "protocol": {"name": "fedavg", "params": params},
        }
    )


def test_the_aggregator_is_an_adversary_where_there_is_one() -> None:
    assert "aggregator" in simulated_case(spec(aggregation="secure", weighting="uniform"), known(0)).parties
    with pytest.raises(SpecError, match="aggregator") as caught:
        simulated_case(spec(), known(0))
    assert "adversaries" in caught.value.field
