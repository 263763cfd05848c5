"""Votes: ballots, their count and what is learnt from it; FedKD with votes, and what its ledger says."""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from fdaudit.protocols import REGISTRY
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn import functional as F

from fdaudit.accounting.ledger import Books
from fdaudit.events import Gaussian
from fdaudit.federation.public_answers import ballot, count, targets
from fdaudit.federation.rehearsal import parties_of
from fdaudit.planning.simulated import simulated_case
from fdaudit.rng import child
from fdaudit.spec.schema import Spec, load_spec
from fdaudit.storage.files import encode
from fdaudit.testing.federation import CLASSES, initial, public, records
from fdaudit.testing.running import ProtocolRun
from fdaudit.transcript.messages import DATA
from fdaudit.transcript.wire import Outage

from ..helpers.by_hand import close, descended, module_of
from ..helpers.by_hand import tensors as tensors_of
from ..helpers.defence_cases import defence
from ..helpers.protocol_cases import FAST, configured, run
from ..helpers.refusals import refused
from ..helpers.run_cases import known

VOTES: dict[str, Any] = {"ensemble": "votes", **FAST}
PATE = ("vote_counts", "aggregator")


def pate(name: str = "gnmax", **params: Any) -> Any:
    return defence(name, **{"public_index": True, **params})


def tensors(ran: ProtocolRun, kind: str, sender: str) -> dict[str, torch.Tensor]:
    (found,) = tensors_of(ran, kind, sender)
    return found


def books(ran: ProtocolRun) -> Books:
    return Books(ran.messages, ran.parties)


# -- ballots and counts ---------------------------------------------------------------------------------------------


def test_a_ballot_names_a_class_or_abstains_and_is_as_long_whatever_is_accepted() -> None:
    z = torch.tensor([[0.0, 2.0, 1.0], [3.0, 0.0, 1.0], [0.0, 1.0, 5.0]])
    assert ballot(z).tolist() == [1, 0, 2]
    assert ballot(z, torch.tensor([True, False, True])).tolist() == [1, -1, 2]
    wide = torch.zeros(1, 200).index_fill(1, torch.tensor([150]), 1.0)
    assert ballot(wide).tolist() == [150]


@settings(deadline=None, max_examples=60)
@given(clients=st.integers(0, 5), n=st.integers(0, 7), classes=st.integers(1, 4), seed=st.integers(0, 999))
def test_a_count_is_what_counting_one_by_one_gives(clients: int, n: int, classes: int, seed: int) -> None:
    """Ballots in any order, with repeated, unknown and unasked samples and classes that do not exist."""
    draw = child(seed, "ballots")
    asked = torch.randperm(9, generator=draw)[:n]
    cast = []
    for _ in range(clients):
        index = torch.randint(-2, 12, (11,), generator=draw)
        cast.append({"index": index, "values": torch.randint(-2, classes + 2, (11,), generator=draw)})
    wanted = np.zeros((n, classes), dtype=int)
    for one in cast:
        heard: set[int] = set()
        for i, v in zip(one["index"].tolist(), one["values"].tolist(), strict=True):
            if i in asked.tolist() and i not in heard:
                heard.add(i)
                if 0 <= v < classes:
                    wanted[asked.tolist().index(i), v] += 1
    got = count(cast, asked, classes)
    assert got.dtype == torch.int64
    assert got.numpy().tolist() == wanted.tolist()


@settings(deadline=None, max_examples=60)
@given(seed=st.integers(0, 999), K=st.integers(1, 6), n=st.integers(1, 6))
def test_one_client_s_other_ballot_moves_each_row_by_what_pate_assumes(seed: int, K: int, n: int) -> None:
    """√2 in ℓ2 at most and 1 in the largest count, whatever the client sends: the sensitivities of GNMax."""
    draw, asked = child(seed, "moved"), torch.arange(n)
    cast = [{"index": asked, "values": torch.randint(-1, 3, (n,), generator=draw)} for _ in range(K)]
    other = {
        "index": torch.randint(-1, n + 1, (20,), generator=draw),
        "values": torch.randint(-1, 5, (20,), generator=draw),
    }
    a, b = count(cast, asked, 3).double(), count([other, *cast[1:]], asked, 3).double()
    assert float((a - b).norm(dim=1).max()) <= math.sqrt(2) + 1e-12
    assert float((a.amax(1) - b.amax(1)).abs().max()) <= 1


def test_shares_of_votes_are_learnt_from_and_rows_without_votes_left_out() -> None:
    counts = torch.tensor([[1, 3, 0], [0, 0, 0], [2, 0, 0], [-5, 1, 0]])
    made = targets({"index": torch.tensor([4, 1, 9, 0]), "counts": counts}, 5, 3)
    assert made["index"].tolist() == [4, 0]
    assert made["values"].tolist() == [[0.25, 0.75, 0.0], [0.0, 1.0, 0.0]]


def test_labels_are_learnt_from_as_one_hot_where_sample_and_class_exist() -> None:
    sent = {"index": torch.tensor([3, 0, 7, 2]), "values": torch.tensor([2, 5, 1, 0])}
    made = targets(sent, 5, 3)
    assert made["index"].tolist() == [3, 2]
    assert made["values"].tolist() == [[0.0, 0.0, 1.0], [1.0, 0.0, 0.0]]


# -- FedKD ----------------------------------------------------------------------------------------------------------


def test_clients_vote_by_their_models_and_the_server_gets_the_counts_alone(tmp_path) -> None:
    ran = run(tmp_path / "a", "fedkd", VOTES)
    assert [m.kind for m in ran.messages] == ["hard_labels"] * 3 + ["vote_counts", "model_parameters"]
    wanted = torch.zeros(len(public()), CLASSES, dtype=torch.int64)
    for k in records():
        votes = module_of(ran.rounds[0].models[k])(public()).argmax(1)
        assert tensors(ran, "hard_labels", k)["values"].tolist() == votes.tolist()
        wanted += F.one_hot(votes, CLASSES)
    got = tensors(ran, "vote_counts", "aggregator")
    assert got.keys() == {"counts"}, "all samples in order need no index"
    assert torch.equal(got["counts"], wanted)
    assert {m.kind for m in ran.messages if "server" in m.receivers} == {"vote_counts"}
    assert [m.inputs for m in ran.messages] == [(DATA,)] * 3 + [(0, 1, 2), (3,)]


@pytest.mark.parametrize("temperature", [None, 2.0])
def test_the_central_model_learns_the_shares_by_cross_entropy_or_at_a_temperature(
    temperature: float | None, tmp_path
) -> None:
    """Full batches, so that no order matters; without noise, and with PATE from one-hot labels."""
    params = {"distill_rounds": 1, "distill_steps": 4, "distill_batch_size": 99, "distill_lr": 0.1}
    params |= {**VOTES, "temperature": temperature, "distill_optimizer": "sgd"}
    for number, defenses in enumerate(({}, {PATE: [pate(sigma=1.0)]})):
        ran = run(tmp_path / str(number), "fedkd", params, defenses=defenses)
        if defenses:
            p = F.one_hot(tensors(ran, "hard_labels", "aggregator")["values"].long(), CLASSES).float()
        else:
            counts = tensors(ran, "vote_counts", "aggregator")["counts"].float()
            p = counts / counts.sum(1, keepdim=True)
        tau = temperature or 1.0

        def loss(module: Any, p: torch.Tensor = p, tau: float = tau) -> torch.Tensor:
            # Cross-entropy and KL differ by a constant; a finite τ scales the gradient by τ².
            return -(tau**2) * (p * F.log_softmax(module(public()) / tau, 1)).sum(1).mean()

        close(ran.protocol.released(), descended(initial(), loss, 4, 0.1))


@pytest.mark.thorough
def test_pate_answers_what_it_will_and_the_server_learns_from_that_alone(tmp_path) -> None:
    """Confident-GNMax with hardly any noise: the samples on which three of five clients at least agree."""
    made = pate("confident-gnmax", threshold=2.5, sigma_threshold=1e-6, sigma=1e-6)
    params = {**VOTES, "local_steps": 200, "lr": 0.5}
    five = records((9, 6, 12, 8, 7))
    plain = run(tmp_path / "a", "fedkd", params, clients=five, seed=6)  # clients that do not all vote alike
    bare = tensors(plain, "vote_counts", "aggregator")["counts"]
    ran = run(tmp_path / "b", "fedkd", params, clients=five, seed=6, defenses={PATE: [made]})
    got = tensors(ran, "hard_labels", "aggregator")
    agreed = bare.amax(1) >= 3
    assert 0 < int(agreed.sum()) < len(bare), "the threshold must be seen to act"
    assert got["index"].tolist() == agreed.nonzero().flatten().tolist()
    assert got["values"].tolist() == bare.argmax(1)[agreed].tolist()
    assert ran.protocol.state["server/z/index"].tolist() == got["index"].tolist()


def test_when_nothing_is_answered_the_central_model_stays_as_it_was(tmp_path) -> None:
    made = pate("confident-gnmax", threshold=99.0, sigma_threshold=1e-6, sigma=1.0)
    ran = run(tmp_path / "a", "fedkd", VOTES, defenses={PATE: [made]})
    assert encode(ran.protocol.released()) == encode(initial())
    assert ran.messages[-1].inputs == (3,), "that nothing was answered follows from votes all the same"
    silent = [Outage(party=k, first=1, last=1) for k in records()]
    ran = run(tmp_path / "b", "fedkd", VOTES, outages=silent)
    assert encode(ran.protocol.released()) == encode(initial())
    assert ran.messages[-1].inputs == ()


def test_the_count_does_without_a_client_that_is_silent(tmp_path) -> None:
    ran = run(tmp_path / "a", "fedkd", VOTES, outages=[Outage(party="client/1", first=1, last=1)])
    assert tensors(ran, "vote_counts", "aggregator")["counts"].sum(1).tolist() == [2] * len(public())


# -- what is claimed ------------------------------------------------------------------------------------------------


def test_with_pate_the_server_and_the_world_pay_for_gnmax_and_the_aggregator_gets_no_figure(tmp_path) -> None:
    """n Gaussian releases of sensitivity √2: zCDP of ρ = n/σ², within its bound ρ + 2 √(ρ log 1/δ)."""
    found = books(run(tmp_path / "a", "fedkd", VOTES, defenses={PATE: [pate(sigma=20.0)]}))
    rho = len(public()) / 20.0**2
    for view in ("server", "world"):
        entry = found.ledger(view, pld=False)
        assert 0.1 < entry.epsilon < rho + 2 * math.sqrt(rho * math.log(1e5))
        assert [(c.kind, c.sender, c.charges) for c in entry.contributions] == [
            ("hard_labels", "aggregator", len(public()))
        ]
        assert found.ledger(view, unit="client", pld=False).epsilon == pytest.approx(entry.epsilon)
    same = Gaussian(
        sensitivity=math.sqrt(2),
        scale=20.0,
        count=len(public()),
        unit="client",
        relation="replace-one",
        covers=("each-client",),
    )
    (label,) = [m for m in run(tmp_path / "b", "fedkd", VOTES, defenses={PATE: [pate(sigma=20.0)]}).messages
                if m.event is not None]  # fmt: skip
    assert label.event == same
    aggregator = found.ledger("aggregator")
    assert (aggregator.epsilon, aggregator.kind) == (math.inf, "hard_labels")
    assert "client/0" in aggregator.cause


def test_without_pate_the_votes_have_no_figure_however_they_are_counted(tmp_path) -> None:
    found = books(run(tmp_path / "a", "fedkd", VOTES))
    for view in ("server", "world", "aggregator"):
        assert found.ledger(view).epsilon == math.inf
    assert found.ledger("client/0").epsilon == 0.0, "a client receives nothing"


def test_an_index_that_is_not_said_to_be_public_takes_the_claim_away(tmp_path) -> None:
    found = books(
        run(tmp_path / "a", "fedkd", VOTES, defenses={PATE: [pate(sigma=20.0, public_index=False)]})
    )
    assert found.ledger("server").epsilon == math.inf


# -- what is refused ------------------------------------------------------------------------------------------------


def spec(**changes: Any) -> Spec:
    return load_spec(
        {
            "dataset": {"name": "digits", "limit": 300},
            "splits": {"proxy": 0.3},
            "attacks": [],
            "protocol": {"name": "fedkd", "params": {"ensemble": "votes"}},
            **changes,
        }
    )


def attached(kind: str, sender: str, name: str, **params: Any) -> dict[str, Any]:
    return {"kind": kind, "sender": sender, "name": name, "params": params}


def test_pate_is_attached_to_the_counts_and_to_nothing_else() -> None:
    made = attached("vote_counts", "aggregator", "gnmax", sigma=1.0)
    assert list(simulated_case(spec(defenses=[made]), known(0)).defenses) == [PATE]
    for wrong, protocol, remedy in (
        (attached("hard_labels", "client", "gnmax", sigma=1.0), {}, "treats: vote_counts"),
        # Labels that only a defence makes pass no other defence on their way.
        (attached("hard_labels", "aggregator", "gaussian-noise", sigma=1.0), {}, "names: vote_counts"),
        (attached("logits", "client", "gaussian-noise", sigma=1.0), {}, "names: hard_labels"),
        (made, {"protocol": {"name": "fedkd"}}, "names: ensemble_labels"),
    ):
        changed = spec(defenses=[wrong], **protocol)
        refused(partial(simulated_case, changed, known(0)), "defenses.0.kind", wrong["kind"], [remedy])


def test_votes_on_several_labels_are_refused_before_anything_runs() -> None:
    several = spec(dataset={"name": "digits-multilabel", "limit": 300})
    refused(lambda: simulated_case(several, known(0)), "protocol.params.ensemble", "votes", ["'logits'"])


def test_who_takes_part_does_not_depend_on_how_the_ensemble_is_made() -> None:
    cls = REGISTRY.load("fedkd")
    logits, votes = (parties_of(cls, configured("fedkd", p), 2) for p in ({}, VOTES))
    assert logits == votes == ("server", "aggregator", "client/0", "client/1", "world")
