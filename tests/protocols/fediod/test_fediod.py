"""FedIOD's parties by themselves: what they answer, what they hold, and how a step goes on without some of them."""

from __future__ import annotations

import pytest
import torch
from fdaudit.protocols.fediod.protocol import FedIOD, FedIODConfig
from fdaudit.protocols.fediod.server import Replay
from torch.nn import functional as F

from fdaudit.config import validate
from fdaudit.errors import ProtocolError, SpecError
from fdaudit.federation.networks import Networks
from fdaudit.federation.protocol import Common, PartyData
from fdaudit.federation.rehearsal import NoWire, setting_of
from fdaudit.models import architecture
from fdaudit.rng import child
from fdaudit.spec.schema import ModelSpec, load_spec
from fdaudit.storage.files import encode
from fdaudit.testing import federation
from fdaudit.testing.federation import CLASSES, SHAPE, SIZES, common, records
from fdaudit.training.execution import Execution
from fdaudit.transcript.wire import Outage

from ...helpers.by_hand import by_sender, equal, sent
from ...helpers.docs_pages import ROOT
from ...helpers.protocol_cases import configured, run

CLIENTS = tuple(records())


def made(params=None, clients=None, unlike=False):
    config = configured("fediod", params or {})
    return FedIOD(config, setting_of(FedIOD, common(unlike), clients or records(), NoWire(), 5))


def samples(n=4, seed=0):
    return torch.rand(n, *SHAPE, generator=child(seed, "samples"))


# -- settings -----------------------------------------------------------------------------------------------------


def test_the_learning_rate_falls_from_its_start_to_nothing_along_a_cosine():
    config = FedIODConfig(rounds=3, steps_per_round=5, adam_lr=0.2)
    assert config.rate(0) == 0.2
    assert config.rate(5) == pytest.approx(0.1)
    assert 0 < config.rate(9) < 0.01
    assert config.rate(10) == pytest.approx(0)


def test_images_too_small_to_generate_are_refused():
    shape = (1, 3, 3)
    tiny = architecture(ModelSpec(name="mlp", params={"widths": [2]}), shape, CLASSES)
    held = Common(networks=Networks(tiny), execution=federation.execution(), public=torch.zeros(0, *shape))
    data = {"client/0": PartyData(torch.zeros(2, *shape), torch.zeros(2, dtype=torch.int64))}
    with pytest.raises(SpecError, match=r"image_size.*3x3.*8 or more"):
        FedIOD(configured("fediod", {}), setting_of(FedIOD, held, data, NoWire(), 5))


@pytest.mark.parametrize(
    "path", sorted((ROOT / "examples" / "paper").glob("fediod*.yaml")), ids=lambda p: p.stem
)
def test_example_specs_are_valid(path):
    spec = load_spec(path)
    assert spec.protocol.name == "fediod"
    config = validate(FedIODConfig, spec.protocol.params, "protocol.params")
    if not path.stem.endswith("-small"):
        assert (config.gan, config.conf, config.unique, config.mimic, config.student_steps) == (1, 1, 1, 1, 1)
        assert config.gan_total == "sum"
        assert (config.latent, config.samples, config.adam_lr, spec.clients) == (100, 64, 0.001, 20)


# -- a client -----------------------------------------------------------------------------------------------------


def test_what_a_client_sends_back_is_the_gradient_of_the_joined_graph():
    """Its T_k and D_k against one autograd graph that has both, at D_k as it was before its step."""
    protocol = made()
    client, x = protocol._clients["client/1"], samples().requires_grad_()
    cotangents = torch.randn(4, CLASSES, generator=child(1, "c"))
    joined = (cotangents * client._task(x)).sum() + 0.3 * F.softplus(-client._D.module(x)).mean()
    (expected,) = torch.autograd.grad(joined, x)
    client.answer(0, x.detach())
    found = client.pull_back(cotangents, torch.tensor(0.3))
    torch.testing.assert_close(found, expected)
    assert x.grad is None


def test_a_client_answers_by_its_own_models_and_says_which_records_it_looked_at():
    protocol = made()
    client, x = protocol._clients["client/1"], samples()
    D, data = client._D.module, records()["client/1"]
    with torch.no_grad():
        on_x, z_k = D(x).sigmoid().mean((1, 2)), client._task(x)
    before = encode(client._D.parameters())
    answer = client.answer(0, x)
    torch.testing.assert_close(answer.logits, z_k)
    assert encode(client._D.parameters()) != before
    fresh = made()._clients["client/1"]
    with torch.no_grad():
        on_real = fresh._D.module(data.x[answer.batch]).sigmoid().mean()
    torch.testing.assert_close(answer.scores, on_x / on_real)


def test_a_discriminator_learns_to_tell_real_from_generated():
    protocol = made({"adam_lr": 0.01, "samples": 8, "steps_per_round": 100})
    client = protocol._clients["client/2"]
    bright = 1 - 0.2 * samples(8)  # the records are uniform noise
    losses = [client.answer(t, bright).loss for t in range(60)]
    assert losses[-1] < 0.5 * losses[0]
    with torch.no_grad():
        assert client._D.module(records()["client/2"].x).mean() > 0 > client._D.module(bright).mean()


def test_cotangents_of_samples_never_answered_to_are_refused():
    client = made()._clients["client/0"]
    client.answer(0, samples())
    client.pull_back(torch.zeros(4, CLASSES), torch.tensor(1.0))
    with pytest.raises(ProtocolError, match="client/0"):
        client.pull_back(torch.zeros(4, CLASSES), torch.tensor(1.0))


def test_the_task_model_is_frozen_after_stage_1(tmp_path):
    ran = run(tmp_path / "a", "fediod")
    for k in CLIENTS:
        first, last = ran.rounds[0].models[k], ran.rounds[-1].models[k]
        assert encode(first) == encode(last)


# -- the server ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("params", [{}, {"weights": "uniform", "replay": 0}], ids=["default", "uniform"])
def test_the_server_needs_nothing_but_what_it_was_sent(params, tmp_path):
    """A server of its own, fed from the record, says the same to the last bit and ends with the same student."""
    ran = run(tmp_path / "a", "fediod", params)
    server = made(params)._server
    recorded = {}
    for message in ran.messages:
        who = message.receivers[0] if message.kind == "logit_cotangents" else message.sender
        recorded.setdefault((message.round, message.step, message.kind), {})[who] = ran.tensors(message)
    for k, tensors in recorded.get((0, 0, "class_counts"), {}).items():
        server.hear_counts(k, tensors["counts"])
    for t, (r, s) in enumerate((r, s) for r in (1, 2) for s in (0, 1)):
        x = server.generate(t)
        assert torch.equal(x, recorded[r, s, "generated_samples"]["server"]["samples"])
        told = {
            kind: {k: v["values"] for k, v in recorded.get((r, s, kind), {}).items()}
            for kind in ("logits", "discriminator_scores", "sample_gradients")
        }
        judged = server.judge(t, x, told["logits"], told["discriminator_scores"])
        for k, tensors in judged.items():
            assert encode(tensors) == encode(recorded[r, s, "logit_cotangents"][k])
        server.update(t, told["sample_gradients"])
    assert encode(server.student()) == encode(ran.protocol.released())


def test_the_generator_learns_from_the_gradients_that_came_back(tmp_path):
    """Another gradient in the first step, and the next samples are others; none at all, and they stay."""

    def next_samples(change):
        server = made()._server
        for k, n in zip(CLIENTS, SIZES, strict=True):
            server.hear_counts(k, torch.full((CLASSES,), n))
        x = server.generate(0)
        server.judge(0, x, {k: torch.zeros(4, CLASSES) for k in CLIENTS}, {})
        server.update(0, change({k: torch.full((4, *SHAPE), 0.1) for k in CLIENTS}))
        return server.generate(1)

    same, again = next_samples(lambda g: g), next_samples(lambda g: g)
    assert torch.equal(same, again)
    assert not torch.equal(same, next_samples(lambda g: {**g, "client/1": -3 * g["client/1"]}))
    stays = made()._server
    assert torch.equal(next_samples(lambda g: {}), stays.generate(1))


def test_the_generator_goes_down_the_gradient_at_its_samples():
    """Gradients that ask for darker images, and nothing else in the loss: the images get darker."""
    only = {"conf": 0.0, "unique": 0.0, "mimic": 0.0, "adam_lr": 0.01, "steps_per_round": 40}
    server = made(only)._server
    first = server.generate(0).mean()
    for t in range(30):
        x = server.generate(t)
        server.judge(t, x, {"client/0": torch.zeros(4, CLASSES)}, {})
        server.update(t, {"client/0": torch.ones_like(x)})
    assert server.generate(0).mean() < 0.5 * first


@pytest.mark.parametrize("total", ["mean", "sum"])
def test_the_generator_descends_the_terms_of_algorithm_1(total):
    """The gradient that reaches the samples against one autograd graph of the box's objective, written out here."""
    unweighted = {"gan": 1.0, "conf": 1.0, "unique": 1.0, "mimic": 1.0, "weights": "uniform"}
    protocol = made({**unweighted, "shares": "samples", "gan_total": total})
    server, clients = protocol._server, protocol._clients
    for k, n in zip(CLIENTS, SIZES, strict=True):
        server.hear_counts(k, torch.tensor([n, 0, 0]))
    x = server.generate(0)

    alone = x.clone().requires_grad_()
    q = torch.stack([c._task(alone) for c in clients.values()]).softmax(-1)
    pi = torch.tensor(SIZES) / sum(SIZES)
    H = -(q * q.log()).sum(-1)
    mixed = (pi[:, None, None] * q).sum(0)
    L_conf = (pi[:, None] * H).sum(0).mean()
    L_unique = -(-(mixed * mixed.log()).sum(-1) - (pi[:, None] * H).sum(0)).mean()
    z = torch.stack([c._task(alone) for c in clients.values()])
    L_mimic = ((server._S.module(alone) - z.mean(0)) ** 2).sum(1).mean()
    L_gan = torch.stack([-c._D.module(alone).sigmoid().log().mean() for c in clients.values()])
    box = L_gan.sum() if total == "sum" else (pi * L_gan).sum()
    (expected,) = torch.autograd.grad(L_conf + L_unique - L_mimic + box, alone)

    logits = {k: c.answer(0, x).logits for k, c in clients.items()}
    wanted = server.judge(0, x, logits, {})
    found = server._own + sum(c.pull_back(**wanted[k]) for k, c in clients.items())
    torch.testing.assert_close(found, expected)


def test_equal_shares_make_the_sum_of_algorithm_1_k_times_the_mean():
    def asked(total, params):
        server = made({"shares": "uniform", "weights": "uniform", "gan_total": total, **params})._server
        x = server.generate(0)
        if params:
            return [float(server.hear_labels(0, x, torch.full((4, CLASSES), 1 / CLASSES))["gan_weight"])]
        told = server.judge(0, x, {k: torch.zeros(4, CLASSES) for k in CLIENTS}, {})
        return [float(told[k]["gan_weight"]) for k in CLIENTS]

    for params in ({}, {"outputs": "votes"}):
        assert asked("sum", params) == pytest.approx([len(CLIENTS) * w for w in asked("mean", params)])
        assert set(asked("sum", params)) == {1.0}


@pytest.mark.parametrize("replay", [0, 3])
def test_the_student_comes_to_say_what_the_clients_say(replay):
    wanted = torch.tensor([3.0, -1.0, 0.5]).expand(4, CLASSES)
    protocol = made({"replay": replay, "student_steps": 4, "adam_lr": 0.01, "steps_per_round": 60})
    losses = []
    for t in range(100):
        x = protocol._server.generate(t)
        protocol._server.judge(t, x, dict.fromkeys(CLIENTS, wanted), {})
        losses.append(protocol._server.update(t, {}))
    assert losses[-1] < 0.01 * losses[0]


def test_further_student_steps_are_on_what_was_kept():
    kept = Replay(3, 2, SHAPE, (CLASSES,), torch.device("cpu"))
    for b in range(5):
        kept.keep(torch.full((2, *SHAPE), float(b)), torch.full((2, CLASSES), 10.0 * b))
        x, target = kept.draw(child(0, "draw", b))
        oldest = max(b - 2, 0)
        assert set(x.unique().tolist()) <= set(range(oldest, b + 1))
        assert torch.equal(target[:, 0], 10 * x[:, 0, 0, 0])
    found = torch.cat([kept.draw(child(1, "draw", s))[0] for s in range(30)])
    assert set(found.unique().tolist()) == {2.0, 3.0, 4.0}
    other = Replay(3, 2, SHAPE, (CLASSES,), torch.device("cpu"))
    other.restore(kept.state())
    pairs = zip(kept.draw(child(2, "draw")), other.draw(child(2, "draw")), strict=True)
    assert all(torch.equal(a, b) for a, b in pairs)


# -- a step without some of its messages --------------------------------------------------------------------------


def test_a_step_is_five_kinds_of_messages(tmp_path):
    ran = run(tmp_path / "a", "fediod")
    step = [m.kind for m in ran.messages if (m.round, m.step) == (1, 1)]
    each = ["logits", "discriminator_scores"] * 3 + ["logit_cotangents"] * 3 + ["sample_gradients"] * 3
    assert step == ["generated_samples", *each]
    assert sent(ran, "generated_samples")[0].receivers == CLIENTS
    assert ran.messages[-1].receivers == (*CLIENTS, "world")


@pytest.mark.parametrize(
    ("params", "kinds"),
    [
        ({"weights": "samples"}, {"class_counts"}),
        ({"weights": "uniform"}, {"class_counts"}),
        ({"weights": "uniform", "shares": "uniform"}, set()),
        ({"shares": "uniform"}, {"class_counts", "discriminator_scores"}),
    ],
)
def test_counts_and_scores_are_sent_only_where_they_are_needed(params, kinds, tmp_path):
    kinds_sent = {m.kind for m in run(tmp_path / "a", "fediod", params).messages}
    assert kinds_sent & {"class_counts", "discriminator_scores"} == kinds


def test_class_counts_are_those_of_the_clients_records(tmp_path):
    ran = run(tmp_path / "a", "fediod")
    for k, data in records().items():
        assert by_sender(ran, "class_counts")[k]["counts"].tolist() == [
            int((data.y == c).sum()) for c in range(CLASSES)
        ]


def test_the_shares_are_of_those_who_answered(tmp_path):
    gone = Outage(party="client/1", first=2, last=2)
    ran = run(tmp_path / "a", "fediod", {"gan": 0.5}, outages=[gone])
    weights = {}
    for m in sent(ran, "logit_cotangents"):
        weights.setdefault(m.round, {})[m.receivers[0]] = float(ran.tensors(m)["gan_weight"])
    for there, found in zip((CLIENTS, ("client/0", "client/2")), (weights[1], weights[2]), strict=True):
        sizes = dict(zip(CLIENTS, SIZES, strict=True))
        total = sum(sizes[k] for k in there)
        assert found == pytest.approx({k: 0.5 * sizes[k] / total for k in there})


def test_a_client_whose_counts_did_not_arrive_counts_as_the_mean_of_the_others(tmp_path):
    gone = Outage(party="client/1", first=0, last=0)
    ran = run(tmp_path / "a", "fediod", outages=[gone])
    assert by_sender(ran, "class_counts").keys() == {"client/0", "client/2"}
    found = {m.receivers[0]: float(ran.tensors(m)["gan_weight"]) for m in sent(ran, "logit_cotangents")}
    total = 9 + 12 + 10.5
    assert found == pytest.approx({"client/0": 9 / total, "client/1": 10.5 / total, "client/2": 12 / total})


def test_a_client_silent_after_its_logits_still_counts_in_the_ensemble(tmp_path):
    gone = Outage(party="client/1", first=1, last=1, after=1)
    ran = run(tmp_path / "a", "fediod", outages=[gone])
    first = [m for m in ran.messages if (m.round, m.step) == (1, 0)]
    assert [m.sender for m in first if m.kind == "logits"] == list(CLIENTS)
    assert [m.receivers[0] for m in first if m.kind == "logit_cotangents"] == list(CLIENTS)
    for kind in ("discriminator_scores", "sample_gradients"):
        assert [m.sender for m in first if m.kind == kind] == ["client/0", "client/2"]


def test_when_nobody_answers_nothing_changes(tmp_path):
    everybody = [Outage(party=k, first=1, last=2) for k in CLIENTS]
    ran = run(tmp_path / "a", "fediod", outages=everybody)
    assert encode(ran.rounds[0].models["server"]) == encode(ran.rounds[-1].models["server"])
    assert not sent(ran, "logit_cotangents")


# -- guarantees ---------------------------------------------------------------------------------------------------


def test_a_run_resumes_bit_for_bit_in_channels_last(tmp_path, monkeypatch):
    last = Execution(device="cpu", threads=1, strategy="loop", memory_format="channels_last")
    monkeypatch.setattr(federation, "execution", lambda *_: last)
    wide = {"generator_width": 8, "discriminator_width": 8}
    whole = run(tmp_path / "a", "fediod", wide)
    part = run(tmp_path / "b", "fediod", wide, stop_after=1)
    rest = run(tmp_path / "b", "fediod", wide, resume=(2, part.states[-1], part.positions[-1]))
    assert (rest.log, rest.states[-1]) == (whole.log, whole.states[-1])


def test_parties_hold_neither_each_other_nor_each_others_records():
    """Everything that a client's or the server's own attributes lead to."""
    protocol = made()
    client, server = protocol._clients["client/0"], protocol._server

    def reach(thing, seen):
        if id(thing) in seen or isinstance(thing, (type, str, int, float)):
            return
        seen[id(thing)] = thing
        inner = list(vars(thing).values()) if hasattr(thing, "__dict__") else []
        inner += list(thing.values()) if isinstance(thing, dict) else []
        inner += list(thing) if isinstance(thing, (list, tuple)) else []
        for below in inner:
            reach(below, seen)

    for party, own in ((client, "client/0"), (server, None)):
        seen = {}
        reach(party, seen)
        assert [t for t in seen.values() if type(t).__name__ in ("FedIODClient", "FedIODServer")] == [party]
        data = [t for t in seen.values() if isinstance(t, PartyData)]
        assert len(data) == (own is not None)
        assert all(torch.equal(d.x, records()[own].x) for d in data)


# -- what its authors' code settles -------------------------------------------------------------------------------


def test_a_fresh_student_learns_from_new_answers_in_each_of_its_steps(tmp_path):
    params = {"weights": "class-counts", "fresh": True, "student_steps": 3, "steps_per_round": 2}
    ran = run(tmp_path / "a", "fediod", params, rounds=2)
    shown = [ran.tensors(m)["samples"] for m in sent(ran, "generated_samples")]
    assert [(m.round, m.step) for m in sent(ran, "generated_samples")] == [(1, s) for s in range(6)]
    assert len({x.numpy().tobytes() for x in shown}) == 6
    assert len(sent(ran, "logits")) == 6 * len(CLIENTS)
    assert len(sent(ran, "sample_gradients")) == 2 * len(CLIENTS)
    assert not sent(ran, "discriminator_scores")


def test_weights_by_class_are_eq_8_without_its_second_factor(tmp_path):
    silent = run(tmp_path / "a", "fediod", {}, withheld=["discriminator_scores"], rounds=2)
    plain = run(tmp_path / "b", "fediod", {"weights": "class-counts"}, rounds=2)
    assert equal(silent.protocol.released(), plain.protocol.released())
