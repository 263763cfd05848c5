"""DaFKD's own promises: what goes missing, Appendix B against the default, who keeps what, threads, bad input."""

from __future__ import annotations

import pytest
import torch
from fdaudit.protocols.dafkd.losses import gradient_penalty
from torch import nn

from fdaudit.federation.networks import Networks
from fdaudit.federation.protocol import Common
from fdaudit.models import architecture
from fdaudit.spec.schema import ModelSpec
from fdaudit.testing import federation
from fdaudit.testing.federation import SHAPE, common, network, records
from fdaudit.training.execution import Execution
from fdaudit.training.trainer import Trainer
from fdaudit.transcript.wire import Outage

from ...helpers import protocol_cases
from ...helpers.by_hand import close as nearly
from ...helpers.by_hand import equal, sent, tensors
from ...helpers.network_double import NetworkDouble
from ...helpers.protocol_cases import run

BACK = {"upload_discriminator": False}


def close(one, other):
    """Whether two runs' classifiers agree after every round."""
    for a, b in zip(one.rounds, other.rounds, strict=True):
        nearly(a.models["server"], b.models["server"])
    return True


def uploads(ran, kind, round):
    return tensors(ran, kind, "client", round)


def same(one, other):
    return all(equal(a, b) for a, b in zip(one, other, strict=True))


def unlike(one, other):
    return any(
        (t - other.protocol.released()[n]).abs().max() > 1e-5 for n, t in one.protocol.released().items()
    )


# -- variants -----------------------------------------------------------------------------------------------------


def test_appendix_b_distils_the_same_ensemble(tmp_path):
    """Scores and weighted predictions come from the clients there, from the server here: the sum is one."""
    strong = {"distill_lr": 0.5, "distill_steps": 5}
    default = run(tmp_path / "a", "dafkd", strong)
    assert close(run(tmp_path / "b", "dafkd", {**strong, **BACK}), default)
    assert unlike(run(tmp_path / "c", "dafkd", {**strong, "weights": "uniform"}), default)


def test_appendix_b_with_uniform_weights_is_the_default_with_uniform_weights(tmp_path):
    strong = {"distill_lr": 0.5, "distill_steps": 5, "weights": "uniform"}
    assert close(run(tmp_path / "b", "dafkd", {**strong, **BACK}), run(tmp_path / "a", "dafkd", strong))


def test_scores_that_are_withheld_change_nothing_since_the_products_tell_them(tmp_path):
    told = run(tmp_path / "a", "dafkd", BACK)
    assert close(run(tmp_path / "b", "dafkd", BACK, withheld=["discriminator_scores"]), told)


def test_without_discriminators_all_clients_are_weighed_alike(tmp_path):
    uniform = run(tmp_path / "a", "dafkd", {"weights": "uniform"})
    assert close(run(tmp_path / "b", "dafkd", withheld=["discriminator_parameters"]), uniform)


def test_without_distillation_the_classifier_is_the_average(tmp_path):
    ran = run(tmp_path / "a", "dafkd", {"distill_steps": 0})
    for done in ran.rounds:
        found = uploads(ran, "model_parameters", done.index)
        for name, tensor in done.models["server"].items():
            torch.testing.assert_close(tensor, torch.stack([u[name] for u in found]).mean(0))


# -- what its authors' code settles ------------------------------------------------------------------------------


def test_generators_and_discriminators_learn_in_the_first_rounds_alone(tmp_path):
    ran = run(tmp_path / "a", "dafkd", {"discriminator_rounds": 1, "generator_rounds": 2}, rounds=3)
    broadcasts = tensors(ran, "generator_parameters", "server")
    for round in range(3):
        learnt = not same(uploads(ran, "generator_parameters", round), [broadcasts[round]] * 3)
        assert learnt == (round < 2)
    first, second, third = (uploads(ran, "discriminator_parameters", t) for t in range(3))
    assert same(second, first)
    assert same(third, second)


def test_later_epochs_can_do_without_l_adv(tmp_path):
    """One epoch of two counts: otherwise the same as two, with all its steps of the classifier."""
    params = {"local_steps": None, "local_epochs": 2}
    some, every = (
        run(tmp_path / str(n), "dafkd", {**params, "adversarial_epochs": n}, rounds=1) for n in (1, 2)
    )
    assert not same(*(uploads(one, "discriminator_parameters", 0) for one in (some, every)))
    assert len(uploads(some, "model_parameters", 0)) == 3


def test_distillation_can_begin_late_and_by_adam_from_logits(tmp_path):
    strong = {"distill_lr": 0.01, "distill_steps": 5, "distill_optimizer": "adam"}
    late = run(tmp_path / "a", "dafkd", {**strong, "distill_from": 1}, rounds=2)
    plain = run(tmp_path / "b", "dafkd", {"distill_steps": 0}, rounds=2)
    models = [[done.models["server"] for done in ran.rounds] for ran in (late, plain)]
    assert same([models[0][0]], [models[1][0]])
    assert not same([models[0][1]], [models[1][1]])
    assert unlike(run(tmp_path / "c", "dafkd", {**strong, "ensemble": "logits"}, rounds=2), late)


def test_the_penalty_is_of_slopes_that_are_not_one():
    real, pseudo = torch.rand(2, 5, 1, 4, 4).unbind()
    share = torch.rand(5)
    assert gradient_penalty(lambda x: x.flatten(1).sum(1) / 4, real, pseudo, share) < 1e-10
    torch.testing.assert_close(
        gradient_penalty(lambda x: x.flatten(1).sum(1), real, pseudo, share), torch.tensor(9.0)
    )


# -- a discriminator that shares nothing --------------------------------------------------------------------------

APART = {"share_extractor": False}


def test_a_discriminator_apart_is_sent_whole_and_keeps_its_own_extractor(tmp_path):
    ran = run(tmp_path / "a", "dafkd", APART, rounds=2)
    models = {(m.round, m.sender): ran.tensors(m) for m in sent(ran, "model_parameters")}
    discriminators = sent(ran, "discriminator_parameters")
    assert len(discriminators) == 6
    for message in discriminators:
        D, w = ran.tensors(message), models[message.round, message.sender]
        own = {n: t for n, t in D.items() if n.startswith("extractor.")}
        assert D.keys() - own == {"head.weight", "head.bias"}
        assert own.keys() == {n for n in w if n.startswith("extractor.")}
        assert any(not torch.equal(t, w[n]) for n, t in own.items())


def test_a_discriminator_apart_leaves_the_classifier_alone(tmp_path):
    """Its weight in the joint loss cannot reach a classifier that shares nothing; a shared extractor feels it."""

    def first(params):
        return uploads(run(tmp_path / str(params), "dafkd", params, rounds=1), "model_parameters", 0)

    for apart, alike in ((APART, True), ({}, False)):
        without, much = (first({**apart, "adversarial": weight}) for weight in (0.0, 5.0))
        assert same(without, much) == alike


def test_the_server_weighs_by_discriminators_apart_as_their_owners_do(tmp_path):
    strong = {"distill_lr": 0.5, "distill_steps": 5, **APART}
    default = run(tmp_path / "a", "dafkd", strong)
    assert close(run(tmp_path / "b", "dafkd", {**strong, **BACK}), default)
    assert unlike(run(tmp_path / "c", "dafkd", {**strong, "weights": "uniform"}), default)


# -- who keeps what -----------------------------------------------------------------------------------------------


def test_no_two_discriminators_start_alike_and_none_comes_from_the_server(tmp_path):
    ran = run(tmp_path / "a", "dafkd", rounds=1)
    assert not [m for m in ran.messages if m.sender == "server" and "discriminator" in m.kind]
    weights = [t["weight"] for t in tensors(ran, "discriminator_parameters")]
    assert len(weights) == 3
    assert not any(torch.equal(a, b) for i, a in enumerate(weights) for b in weights[:i])


def test_the_active_ratio_is_the_share_of_clients_asked(tmp_path):
    ran = run(tmp_path / "a", "dafkd", {"fraction": 0.67})
    asked = [m.receivers for m in ran.messages if m.sender == "server" and m.kind == "generator_parameters"]
    assert [len(r) for r in asked] == [2, 2, 2]
    assert len({k for r in asked for k in r}) == 3


# -- what does not arrive -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(("after", "kinds"), [(1, {"model_parameters"}), (2, {"discriminator_parameters"})])
def test_what_arrived_of_a_client_that_goes_silent_is_used(after, kinds, tmp_path):
    gone = Outage(party="client/1", first=0, last=0, after=after)
    ran = run(tmp_path / "a", "dafkd", {"distill_steps": 0}, rounds=2, outages=[gone])
    arrived = {m.kind for m in ran.messages if m.sender == "client/1" and m.round == 0}
    assert kinds <= arrived
    assert "generator_parameters" not in arrived
    models = uploads(ran, "model_parameters", 0)
    assert len(models) == 3
    for name, tensor in ran.rounds[0].models["server"].items():
        torch.testing.assert_close(tensor, torch.stack([m[name] for m in models]).mean(0))
    one, two = uploads(ran, "generator_parameters", 0)
    (after_it,) = tensors(ran, "generator_parameters", "server", 1)
    close_to = {name: (one[name] + two[name]) / 2 for name in one}
    nearly(after_it, close_to)


def test_nobody_answering_leaves_both_global_models_as_they_are(tmp_path):
    everybody = [Outage(party=k, first=1, last=2) for k in records()]
    ran = run(tmp_path / "a", "dafkd", outages=everybody)
    first, *later = (done.models["server"] for done in ran.rounds)
    assert all(equal(first, model) for model in later)
    generators = [ran.payload(m) for m in sent(ran, "generator_parameters", "server")]
    assert generators[1] == generators[2] != generators[0]


# -- threads and networks -----------------------------------------------------------------------------------------


def test_work_of_ones_own_comes_back_in_order_and_dropout_takes_turns():
    two = Execution(device="cpu", threads=2, strategy="loop", memory_format="contiguous")
    assert Trainer(network(), two).apart(lambda n: n * n, range(7)) == [n * n for n in range(7)]

    dropping = NetworkDouble(lambda: nn.Sequential(nn.Flatten(), nn.Dropout(), nn.Linear(64, 3)))
    running, most = [], []

    def work(n):
        running.append(n)
        most.append(len(running))
        running.remove(n)
        return n

    assert Trainer(dropping, two).apart(work, range(50)) == list(range(50))
    assert max(most) == 1


def test_networks_with_batchnorm_and_dropout_train_and_stay_finite(tmp_path, monkeypatch):
    resnet = architecture(ModelSpec(name="resnet8"), SHAPE, 3)
    made = Common(networks=Networks(resnet), execution=federation.execution(), public=common().public)
    monkeypatch.setattr(protocol_cases, "common", lambda *_: made)
    ran = run(tmp_path / "a", "dafkd", {"local_steps": 2}, rounds=1)
    assert all(torch.isfinite(t).all() for m in ran.rounds[0].models.values() for t in m.values())


# -- bad input ----------------------------------------------------------------------------------------------------
