"""FedIOD with votes in place of logits, and with one client asked for gradients a step."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest
import torch
from fdaudit.protocols.fediod.config import FedIODConfig
from fdaudit.protocols.fediod.losses import label_loss
from fdaudit.protocols.fediod.protocol import FedIOD
from fdaudit.protocols.fediod.votes import count_votes, shares_of
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn import functional as F

import fdaudit
from fdaudit.config import validate
from fdaudit.errors import SpecError
from fdaudit.federation.rehearsal import NoWire, setting_of
from fdaudit.planning.simulated import simulated_case
from fdaudit.rng import SecretStream, child
from fdaudit.spec.schema import load_spec
from fdaudit.storage.files import encode
from fdaudit.testing.federation import CLASSES, SHAPE, common, records
from fdaudit.testing.running import ProtocolRun
from fdaudit.testing.specs import small_spec
from fdaudit.transcript.messages import ALL, DATA
from fdaudit.transcript.samples import sample_index
from fdaudit.transcript.wire import Outage

from ...helpers.by_hand import sent
from ...helpers.defence_cases import defence
from ...helpers.protocol_cases import FAST, VOTES, configured, run
from ...helpers.run_cases import known, secrets_apart, three_clients

CLIENTS = tuple(records())
PARAMS = {**VOTES, **FAST}
CONFIDENT = {"threshold": 2.5, "sigma_threshold": 1.0, "sigma": 0.5, "public_index": True}


def made(params: dict[str, Any] | None = None) -> FedIOD:
    config = configured("fediod", {**PARAMS, **(params or {})})
    return FedIOD(config, setting_of(FedIOD, common(), records(), NoWire(), 5))


def at_the_aggregator(name: str, **params: Any) -> dict[tuple[str, str], list[Any]]:
    return {("vote_counts", "aggregator"): [defence(name, **params)]}


def in_step(ran: ProtocolRun, step: tuple[int, int], kind: str, sender: str | None = None) -> list[Any]:
    return [m for m in sent(ran, kind, sender, step[0]) if m.step == step[1]]


def steps_of(ran: ProtocolRun) -> list[tuple[int, int]]:
    return sorted({(m.round, m.step) for m in ran.messages if m.kind == "generated_samples"})


# -- settings -----------------------------------------------------------------------------------------------------


def test_clients_are_asked_for_gradients_wherever_these_say_something() -> None:
    assert FedIODConfig(gan=0.0).asks, "logits are pulled back through T_k all the same"
    assert validate(FedIODConfig, VOTES).asks
    assert not validate(FedIODConfig, {**VOTES, "gan": 0.0}).asks
    assert FedIODConfig().drawn_from(7) == 1
    assert FedIODConfig(gradients_from="one").drawn_from(7) == 7
    assert validate(FedIODConfig, {**VOTES, "gan": 0.0, "gradients_from": "one"}).drawn_from(7) == 1


def entry(kind: str, sender: str, name: str, **params: Any) -> dict[str, Any]:
    return {"kind": kind, "sender": sender, "name": name, "params": params}


GNMAX = entry("vote_counts", "aggregator", "gnmax", sigma=1.0, public_index=True)
PLANS: list[tuple[dict[str, Any], dict[str, Any], str]] = [
    ({}, GNMAX, r"defenses\.0\.kind.*vote_counts.*never sent by a aggregator"),
    (VOTES, {**GNMAX, "kind": "hard_labels"}, r"defenses\.0\.kind.*hard_labels.*never sent by a aggregator"),
    (VOTES, {**GNMAX, "kind": "hard_labels", "sender": "client"}, r"defenses\.0\.kind.*vote_counts"),
    (VOTES, entry("logits", "client", "rounding", decimals=1), r"defenses\.0\.kind.*never sent by a client"),
    (
        {**VOTES, "gan": 0.0},
        entry("sample_gradients", "client", "sanitized-gradients", clip=1.0, sigma=1.0),
        r"defenses\.0\.kind.*never sent by a client",
    ),
    (
        VOTES,
        entry("sample_gradients", "client", "sanitized-gradients", clip=1.0, sigma=1.0, drawn_from=2),
        r"defenses\.0\.params\.drawn_from: 2 .*every client is asked a step\. Set it to 1\.",
    ),
    (
        {"gradients_from": "one"},
        entry("sample_gradients", "client", "sanitized-gradients", clip=1.0, sigma=1.0, drawn_from=3),
        r"defenses\.0\.params\.drawn_from: 3 .*one of 2 clients is asked a step\. Set it to 2 or 1\.",
    ),
]


@pytest.mark.parametrize(("params", "defence", "said"), PLANS)
def test_a_defence_that_would_protect_nothing_or_claims_too_much_is_refused(
    params: dict[str, Any], defence: dict[str, Any], said: str
) -> None:
    spec = small_spec(protocol={"name": "fediod", "params": {"rounds": 2, **params}}, defenses=[defence])
    with pytest.raises(SpecError, match=said):
        simulated_case(load_spec(spec), known(7))


@pytest.mark.parametrize("claimed", [1, 2])
def test_a_defence_may_claim_the_draw_that_happens_or_none(claimed: int) -> None:
    sanitized = entry("sample_gradients", "client", "sanitized-gradients", clip=1.0, sigma=1.0)
    sanitized["params"]["drawn_from"] = claimed
    params = {"rounds": 2, "gradients_from": "one", **VOTES}
    spec = small_spec(protocol={"name": "fediod", "params": params}, defenses=[sanitized, GNMAX])
    case = simulated_case(load_spec(spec), known(7))
    assert set(case.defenses) == {("sample_gradients", "client"), ("vote_counts", "aggregator")}


# -- counting -----------------------------------------------------------------------------------------------------


@settings(deadline=None)
@given(st.data())
def test_a_client_casts_one_vote_a_sample_whatever_it_sends(data: st.DataObject) -> None:
    """So another ballot in place of one client's moves each row of counts by at most one up and one down."""
    numbers = st.integers(-2, 5)
    ballot = st.lists(st.tuples(numbers, numbers), max_size=12)
    ballots = data.draw(st.lists(ballot, min_size=1, max_size=4))

    def counted(cast: list[list[tuple[int, int]]]) -> torch.Tensor:
        tensors = [torch.tensor(b, dtype=torch.int64).reshape(-1, 2) for b in cast]
        return count_votes([{"index": t[:, 0], "values": t[:, 1]} for t in tensors], 4, 3)

    counts = counted(ballots)
    assert counts.dtype == torch.int64
    by_hand = [[0] * 3 for _ in range(4)]
    for b in ballots:
        for i, c in {i: c for i, c in b if 0 <= i < 4 and 0 <= c < 3}.items():
            by_hand[i][c] += 1
    assert counts.tolist() == by_hand
    moved = counted([data.draw(ballot), *ballots[1:]]) - counts
    assert moved.abs().sum(1).max() <= 2
    assert moved.abs().max() <= 1


def test_the_server_reads_counts_as_shares_and_labels_as_certain() -> None:
    counts = torch.tensor([[2, 0, 2], [0, 0, 0], [-1, 3, 0]])
    found = shares_of({"index": torch.arange(3), "counts": counts}, 3, 3)
    assert found.tolist() == [[0.5, 0, 0.5], [0, 0, 0], [0, 1, 0]]
    labels = {"index": torch.tensor([2, 0, 9, -1]), "values": torch.tensor([1, 5, 0, 0])}
    assert shares_of(labels, 3, 3).tolist() == [[0, 0, 0], [0, 0, 0], [0, 1, 0]]
    nothing = torch.zeros(0, dtype=torch.int64)
    assert not shares_of({"index": nothing, "values": nothing}, 2, 3).any()


def test_the_loss_of_labels_is_cross_entropy() -> None:
    z = torch.randn(5, CLASSES, generator=child(0, "z"), dtype=torch.float64)
    y = torch.tensor([0, 2, 1, 1, 0])
    p = np.exp(z.numpy()) / np.exp(z.numpy()).sum(1, keepdims=True)
    found = label_loss(z, F.one_hot(y, CLASSES).double())
    assert float(found) == pytest.approx(-np.log(p[np.arange(5), y.numpy()]).mean())
    split = label_loss(z, torch.full((5, CLASSES), 1 / CLASSES, dtype=torch.float64))
    assert float(split) == pytest.approx(-np.log(p).mean())


# -- a step -------------------------------------------------------------------------------------------------------


def test_no_logits_scores_or_counts_of_records_are_sent_and_votes_reach_the_aggregator_alone(
    tmp_path,
) -> None:
    ran = run(tmp_path / "a", "fediod", PARAMS)
    step = [m.kind for m in ran.messages if (m.round, m.step) == (1, 1)]
    after = ["vote_counts", *["logit_cotangents"] * 3, *["sample_gradients"] * 3]
    assert step == ["generated_samples", *["hard_labels"] * 3, *after]
    assert {m.receivers for m in ran.messages if m.kind == "hard_labels"} == {("aggregator",)}
    assert {(m.sender, m.receivers) for m in ran.messages if m.kind == "vote_counts"} == {
        ("aggregator", ("server",))
    }
    assert {*steps_of(ran)} == {(r, s) for r in (1, 2) for s in (0, 1)}


def test_every_message_says_what_it_was_computed_from_and_no_more(tmp_path) -> None:
    ran = run(tmp_path / "a", "fediod", PARAMS)
    for step in steps_of(ran):
        (x,) = in_step(ran, step, "generated_samples")
        votes = in_step(ran, step, "hard_labels")
        assert [m.inputs for m in votes] == [(DATA, x.seq)] * 3
        (counts,) = in_step(ran, step, "vote_counts")
        assert counts.inputs == tuple(m.seq for m in votes)
    assert {m.inputs for m in ran.messages if m.kind == "sample_gradients"} == {ALL}


def test_each_client_votes_for_the_class_that_its_model_predicts(tmp_path) -> None:
    ran = run(tmp_path / "a", "fediod", PARAMS)
    seen = set()
    for step in steps_of(ran):
        (x,) = in_step(ran, step, "generated_samples")
        samples, total = ran.tensors(x)["samples"], torch.zeros(4, CLASSES, dtype=torch.int64)
        for message in in_step(ran, step, "hard_labels"):
            model = ran.rounds[-1].models[message.sender]
            inner = samples.flatten(1) @ model["extractor.1.weight"].T + model["extractor.1.bias"]
            z = inner.clamp_min(0) @ model["head.0.weight"].T + model["head.0.bias"]
            assert torch.equal(ran.tensors(message)["values"], z.argmax(1))
            total += F.one_hot(z.argmax(1), CLASSES)
            seen |= set(z.argmax(1).tolist())
        (counts,) = in_step(ran, step, "vote_counts")
        assert torch.equal(ran.tensors(counts)["counts"], total)
    assert len(seen) > 1, "clients that all say the same would show little"


def test_a_client_adds_l_gans_gradient_and_nothing_of_its_task_model() -> None:
    client, x = made()._clients["client/1"], torch.rand(4, *SHAPE, generator=child(0, "samples"))
    x.requires_grad_()
    (expected,) = torch.autograd.grad(0.3 * F.softplus(-client._D.module(x)).mean(), x)
    client.answer(0, x.detach())
    torch.testing.assert_close(client.pull_back(gan_weight=torch.tensor(0.3)), expected)


@pytest.mark.thorough
@pytest.mark.parametrize("case", ["bare", "gnmax", "confident-gnmax"])
@pytest.mark.parametrize("params", [{}, {"replay": 0}, {"gan": 0.0, "mimic": 0.5}, {"gradients_from": "one"}])
def test_the_server_needs_nothing_but_what_it_was_sent(case, params, tmp_path) -> None:
    """A server of its own, fed from the record, says the same to the last bit and ends with the same student."""
    given = {"gnmax": {"sigma": 1.0, "public_index": True}, "confident-gnmax": CONFIDENT}
    defences = {} if case == "bare" else at_the_aggregator(case, **given[case])
    ran = run(tmp_path / "a", "fediod", {**PARAMS, **params}, defenses=defences)
    server = made(params)._server
    answered = []
    for t, step in enumerate(steps_of(ran)):
        x = server.generate(t)
        assert torch.equal(x, ran.tensors(in_step(ran, step, "generated_samples")[0])["samples"])
        kind = "vote_counts" if case == "bare" else "hard_labels"
        (message,) = in_step(ran, step, kind, "aggregator")
        told = ran.tensors(message)
        answered.append(len(sample_index(told)))
        wanted = server.hear_labels(t, x, shares_of(told, 4, CLASSES))
        for cotangents in in_step(ran, step, "logit_cotangents"):
            assert encode(wanted) == encode(ran.tensors(cotangents))
        back = in_step(ran, step, "sample_gradients")
        server.update(t, {m.sender: ran.tensors(m)["values"] for m in back})
    assert encode(server.student()) == encode(ran.protocol.released())
    assert (set(answered) == {4}) == (case != "confident-gnmax")


def test_the_student_comes_to_say_what_it_is_told_and_ignores_samples_without_a_label() -> None:
    protocol = made({"student_steps": 4, "adam_lr": 0.01, "steps_per_round": 60})
    target = torch.tensor([[0.0, 1, 0], [0, 0, 0], [0, 1, 0], [0, 0, 0]])
    losses = []
    for t in range(60):
        x = protocol._server.generate(t)
        protocol._server.hear_labels(t, x, target)
        losses.append(protocol._server.update(t, {}))
    assert losses[-1] < 0.05 * losses[0]
    kept = protocol._server._replay.state()
    assert kept["target"].sum(1).unique().tolist() == [1.0]


def test_a_step_in_which_no_sample_is_answered_still_moves_the_generator_by_the_clients_gradients() -> None:
    server = made()._server
    student, x = encode(server.student()), server.generate(0)
    server.hear_labels(0, x, torch.zeros(4, CLASSES))
    assert server.update(0, {k: torch.full((4, *SHAPE), 0.1) for k in CLIENTS}) is None
    assert encode(server.student()) == student
    assert not torch.equal(server.generate(0), x)


def test_the_generator_looks_for_samples_on_which_the_student_disagrees() -> None:
    """Of L_mimic alone: the student being held, its cross-entropy with the label rises."""
    server = made({"gan": 0.0, "mimic": 1.0, "adam_lr": 0.02, "steps_per_round": 100})._server
    target = F.one_hot(torch.zeros(4, dtype=torch.int64), CLASSES).float()

    def loss() -> float:
        with torch.no_grad():
            return float(label_loss(server._S.module(server.generate(0)), target))

    first = loss()
    held = server._S.parameters()
    for t in range(20):
        server.hear_labels(t, server.generate(0), target)
        server.update(t, {})
        server._S.load(held)
    assert loss() > first + 0.01


def test_a_run_whose_aggregator_drops_every_sample_ends_with_the_student_it_began_with(tmp_path) -> None:
    never = at_the_aggregator("confident-gnmax", **{**CONFIDENT, "threshold": 1e6})
    ran = run(tmp_path / "a", "fediod", PARAMS, defenses=never)
    assert encode(ran.rounds[0].models["server"]) == encode(ran.rounds[-1].models["server"])
    assert all("server" not in done.losses for done in ran.rounds[1:])
    first, last = (ran.tensors(in_step(ran, s, "generated_samples")[0])["samples"] for s in ((1, 0), (2, 1)))
    assert not torch.equal(first, last)


def test_the_aggregator_counts_those_who_voted_and_says_nothing_when_nobody_did(tmp_path) -> None:
    gone = [Outage(party="client/1", first=1, last=1), *(Outage(party=k, first=2, last=2) for k in CLIENTS)]
    ran = run(tmp_path / "a", "fediod", PARAMS, outages=gone)
    counted = [m for m in ran.messages if m.kind == "vote_counts"]
    assert {m.round for m in counted} == {1}
    assert all(int(ran.tensors(m)["counts"].sum()) == 8 for m in counted)


# -- one client a step --------------------------------------------------------------------------------------------


@pytest.mark.thorough
@pytest.mark.parametrize("params", [{}, PARAMS], ids=["logits", "votes"])
def test_one_client_a_step_is_told_what_is_wanted_and_sends_its_gradient(params, tmp_path) -> None:
    ran = run(tmp_path / "a", "fediod", {**params, "gradients_from": "one", "steps_per_round": 8})
    asked = []
    for step in steps_of(ran):
        (told,) = in_step(ran, step, "logit_cotangents")
        (back,) = in_step(ran, step, "sample_gradients")
        assert told.receivers == (back.sender,)
        asked.append(back.sender)
    assert set(asked) == set(CLIENTS)
    others = records(seed=4)
    params = {**params, "gradients_from": "one", "steps_per_round": 8}
    again = run(tmp_path / "b", "fediod", params, clients=others)
    assert asked == [m.sender for m in again.messages if m.kind == "sample_gradients"], "whatever the data"


@pytest.mark.thorough
def test_who_is_asked_follows_from_the_secret_and_not_from_the_seed(tmp_path, monkeypatch) -> None:
    """Whoever knew the seed could tell who was asked, and the chance that the ledger counts would be none."""
    params = {**FAST, "gradients_from": "one", "rounds": 2, "steps_per_round": 40}
    spec = three_clients(
        seed=4,
        dataset={"name": "digits", "limit": 120},
        model={"name": "mlp", "params": {"widths": [8]}},
        protocol={"name": "fediod", "params": params},
        adversaries=["server"],
    )
    secrets_apart(monkeypatch)
    asked = []
    for name in ("a", "b"):
        view = fdaudit.run(spec, tmp_path / name).view("server")
        asked.append([m.sender for m in view.select("sample_gradients")])
    assert len(asked[0]) == len(asked[1]) == 40
    assert asked[0] != asked[1]


def test_each_client_is_as_likely_to_be_asked_in_every_step() -> None:
    protocol = made({"gradients_from": "one"})
    draws = Counter((t % 2, protocol._drawn(SecretStream(b"sixteen bytes and more", t))) for t in range(3000))
    for half in (0, 1):
        found = [draws[half, k] for k in CLIENTS]
        assert sum((n - 500) ** 2 / 500 for n in found) < 13.8, "χ² of two degrees of freedom at 0.1 %"


def test_the_mean_over_who_is_asked_is_the_gradient_of_all() -> None:
    """What G descends, caught where it is handed over: the mean over K draws equals asking everybody."""
    gradients = {k: torch.randn(4, *SHAPE, generator=child(2, "g", k)) for k in CLIENTS}

    def descended(source: str, given: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        server = made({"gradients_from": source})._server
        x = server.generate(0)
        server.hear_labels(0, x, F.one_hot(torch.tensor([0, 1, 2, 0]), CLASSES).float())
        caught = {}

        def step(loss: torch.Tensor, rate: float) -> float:
            found = torch.autograd.grad(loss, list(server._G.module.parameters()))
            caught.update({str(n): g for n, g in enumerate(found)})
            return 0.0

        server._G.step = step  # type: ignore[method-assign, assignment]
        server.update(0, given)
        return caught

    whole = descended("all", gradients)
    each = [descended("one", {k: g}) for k, g in gradients.items()]
    for n, g in whole.items():
        torch.testing.assert_close(torch.stack([e[n] for e in each]).mean(0), g, rtol=1e-4, atol=1e-6)
    assert any(not torch.allclose(each[0][n], whole[n], rtol=1e-2) for n in whole)
