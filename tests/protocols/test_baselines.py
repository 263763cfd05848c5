"""The baselines' aggregation rules on values worked out by hand, their limits, and who learns from what."""

from __future__ import annotations

import math

import pytest
import torch
from fdaudit.protocols._uploads import weighted_mean
from fdaudit.protocols.ds_fl import sharpen
from fdaudit.protocols.feddf import mean_logits
from torch.nn import functional as F

from fdaudit.federation.protocol import PartyData
from fdaudit.federation.public_answers import answer as made_answer
from fdaudit.federation.public_answers import average, draw_samples, existing
from fdaudit.testing.federation import CLASSES, public, records
from fdaudit.training.class_means import combine, known, mean_by_class, mixed_targets
from fdaudit.transcript.wire import Outage

from ..helpers.by_hand import by_sender, close, descended, equal, module_of, sent, tensors
from ..helpers.protocol_cases import configured, run


def answer(index, values):
    return {"index": torch.tensor(index), "values": torch.tensor(values)}


def of_one_class():
    """Strong non-IID: client k has records of class k only."""
    return {k: PartyData(d.x, torch.full_like(d.y, n)) for n, (k, d) in enumerate(records().items())}


# -- averages over public samples -----------------------------------------------------------------------------------


def test_the_average_of_soft_labels_is_over_those_who_answered_for_a_sample():
    one = answer([0, 2], [[1.0, 0.0], [0.6, 0.4]])
    two = answer([2, 3], [[0.0, 1.0], [0.5, 0.5]])
    found = average([one, two], samples=5, classes=2)
    assert found["index"].tolist() == [0, 2, 3]
    torch.testing.assert_close(found["values"], torch.tensor([[1.0, 0.0], [0.3, 0.7], [0.5, 0.5]]))


def test_the_average_of_predicted_classes_is_their_share_of_votes():
    votes = [answer([0, 1], [2, 0]), answer([0, 1], [2, 1]), answer([0, 1], [0, 1]), answer([1], [1])]
    found = average(votes, samples=2, classes=3)
    torch.testing.assert_close(found["values"], torch.tensor([[1 / 3, 0, 2 / 3], [0.25, 0.75, 0]]))


def test_a_sample_or_a_class_that_does_not_exist_is_no_answer():
    found = average([answer([-1, 1, 9], [0, 1, 1]), answer([0, 1], [5, 0])], samples=3, classes=2)
    assert found["index"].tolist() == [1]
    torch.testing.assert_close(found["values"], torch.tensor([[0.5, 0.5]]))
    assert existing(answer([-3, 0, 2, 3], [0, 0, 0, 0]), 3).tolist() == [0, 2]


def test_nobody_answering_gives_an_empty_average():
    found = average([], samples=3, classes=2)
    assert found["index"].shape == (0,)
    assert found["values"].shape == (0, 2)
    assert existing(None, 3).shape == (0,)


def test_what_is_shared_of_a_prediction():
    logits = torch.tensor([[math.log(3.0), 0.0], [-1.0, 4.0]])
    every = torch.arange(2)
    assert made_answer(every, logits, "logits", 2)["values"] is logits
    torch.testing.assert_close(
        made_answer(every, logits, "soft_labels", 2)["values"][0], torch.tensor([0.75, 0.25])
    )
    assert made_answer(every, logits, "hard_labels", 2)["values"].tolist() == [0, 1]


def test_samples_are_distinct_in_order_and_at_most_all():
    few = draw_samples(50, 10, torch.Generator().manual_seed(1))
    assert len(few) == len(set(few.tolist())) == 10
    assert few.tolist() == sorted(few.tolist())
    assert draw_samples(4, 10, torch.Generator().manual_seed(1)).tolist() == [0, 1, 2, 3]
    counts = torch.zeros(6)
    for seed in range(600):
        counts[draw_samples(6, 2, torch.Generator().manual_seed(seed))] += 1
    assert (counts - 200).abs().max() < 5 * math.sqrt(600 * (1 / 3) * (2 / 3))


# -- entropy reduction ----------------------------------------------------------------------------------------------


def entropy(p):
    return -(p * p.clamp(min=1e-30).log()).sum(1)


def test_sharpening_by_hand():
    found = sharpen(torch.tensor([[0.6, 0.4]]), 0.1)  # softmax(6, 4) = 1 / (1 + e^-2)
    torch.testing.assert_close(found, torch.tensor([[0.8807971, 0.1192029]]))


def test_sharpening_lowers_the_entropy_of_an_average_with_a_winner_and_keeps_the_order():
    """Half of the clients or more say one class, the others anything: what the rule is for."""
    g = torch.Generator().manual_seed(3)
    others = torch.rand(500, 10, generator=g)
    share = 0.5 + 0.4 * torch.rand(500, 1, generator=g)
    winner = F.one_hot(torch.randint(10, (500,), generator=g), 10)
    p = share * winner + (1 - share) * others / others.sum(1, keepdim=True)
    sharp = sharpen(p, 0.1)
    assert (entropy(sharp) < entropy(p)).all()
    assert torch.equal(sharp.argmax(1), winner.argmax(1))
    assert torch.equal(sharpen(others, 1.0).argsort(1), others.argsort(1))
    torch.testing.assert_close(sharp.sum(1), torch.ones(500))


def test_an_average_without_a_winner_is_not_sharpened_at_a_tenth():
    """A softmax never gives a zero: the seven classes that nobody named get 7.5 % between them."""
    p = torch.tensor([[0.3, 0.35, 0.35, *[0.0] * 7]])
    assert entropy(sharpen(p, 0.1)) > entropy(p)
    assert entropy(sharpen(p, 0.01)) < entropy(p)


def test_temperatures_limits_are_the_winner_and_the_uniform():
    p = torch.tensor([[0.5, 0.3, 0.2]])
    torch.testing.assert_close(sharpen(p, 1e-3), torch.tensor([[1.0, 0.0, 0.0]]))
    torch.testing.assert_close(sharpen(p, 1e6), torch.full((1, 3), 1 / 3))
    assert entropy(sharpen(p, 0.01)) < entropy(sharpen(p, 0.1)) < entropy(sharpen(p, 1.0))


# -- means by class -------------------------------------------------------------------------------------------------


def test_means_by_class_with_an_absent_class():
    p = torch.tensor([[0.9, 0.1, 0.0], [0.2, 0.2, 0.6], [0.5, 0.5, 0.0]])
    table = mean_by_class(p, torch.tensor([0, 2, 0]), 3)
    torch.testing.assert_close(table, torch.tensor([[0.7, 0.3, 0.0], [0.0, 0.0, 0.0], [0.2, 0.2, 0.6]]))
    assert known(table).tolist() == [True, False, True]
    assert not mean_by_class(torch.zeros(0, 3), torch.zeros(0, dtype=torch.int64), 3).any()


def test_tables_are_averaged_over_those_that_have_the_class():
    one = torch.tensor([[1.0, 0.0, 0.0], [0.0, 0.0, 0.0], [0.0, 0.0, 0.0]])
    two = torch.tensor([[0.5, 0.5, 0.0], [0.1, 0.9, 0.0], [0.0, 0.0, 0.0]])
    found = combine([one, two], 3)
    torch.testing.assert_close(found, torch.tensor([[0.75, 0.25, 0.0], [0.1, 0.9, 0.0], [0.0, 0.0, 0.0]]))
    assert not combine([], 3).any()


def test_the_mixed_target_is_the_sum_of_two_cross_entropies():
    g = torch.Generator().manual_seed(2)
    z = torch.randn(5, 3, generator=g, requires_grad=True)
    y, teacher = torch.tensor([0, 1, 2, 1, 0]), torch.rand(3, 3, generator=g).softmax(1)
    teacher[1] = 0  # nobody taught class 1
    gamma, q = 0.7, z.log_softmax(1)
    by_hand = sum(-q[i, y[i]] + (0 if y[i] == 1 else -gamma * (teacher[y[i]] * q[i]).sum()) for i in range(5))
    found = F.cross_entropy(z, mixed_targets(y, teacher, gamma))
    torch.testing.assert_close(found, by_hand / 5)
    torch.testing.assert_close(
        *(torch.autograd.grad(v, z, retain_graph=True)[0] for v in (found, by_hand / 5))
    )


def test_fkd_sends_each_client_the_mean_of_the_others(tmp_path):
    ran = run(tmp_path / "a", "fkd", rounds=2)
    for r in range(2):
        tables = {k: t["values"] for k, t in by_sender(ran, sender="client", round=r).items()}
        back = {m.receivers: ran.tensors(m)["values"] for m in sent(ran, sender="server", round=r)}
        assert set(back) == {(k,) for k in records()}
        for (k,), table in back.items():
            one, two = (tables[j] for j in tables if j != k)
            for c in range(CLASSES):
                rows = [t[c] for t in (one, two) if t[c].sum() > 0]
                expected = torch.stack(rows).mean(0) if rows else torch.zeros(CLASSES)
                torch.testing.assert_close(table[c], expected)


def test_fkd_with_one_class_a_client_is_training_alone(tmp_path):
    """Nobody else has a client's class, so nobody has anything to teach it: bit for bit."""
    taught, alone = (
        run(tmp_path / str(gamma), "fkd", {"gamma": gamma, "local_steps": 3}, clients=of_one_class())
        for gamma in (1.0, 0.0)
    )
    for k in records():
        close(taught.rounds[-1].models[k], alone.rounds[-1].models[k], rtol=0, atol=0)
    mixed, apart = (
        run(tmp_path / f"mixed{gamma}", "fkd", {"gamma": gamma, "local_steps": 3}) for gamma in (1.0, 0.0)
    )
    models = [ran.rounds[-1].models for ran in (mixed, apart)]
    assert not all(equal(models[0][k], models[1][k]) for k in records()), "a class in common teaches"


@pytest.mark.parametrize("name", ["fkd", "pls"])
def test_a_class_that_no_client_has_is_a_row_of_nothing(name, tmp_path):
    clients = {k: PartyData(d.x, d.y.clamp(max=1)) for k, d in records().items()}
    ran = run(tmp_path / "a", name, {"lr": 0.5}, clients=clients)
    for message in ran.messages:
        table = ran.tensors(message)["values"]
        assert torch.isfinite(table).all()
        assert not table[2].any()


def test_pls_takes_the_right_predictions_only_and_says_which(tmp_path):
    clients = records()
    ran = run(tmp_path / "a", "pls", {"lr": 0.5, "local_steps": 6}, clients=clients, rounds=2)
    for done in ran.rounds:
        for message in sent(ran, sender="client", round=done.index):
            data = clients[message.sender]
            with torch.no_grad():
                p = module_of(done.models[message.sender])(data.x).softmax(1)
            right = [i for i in range(len(data)) if int(p[i].argmax()) == int(data.y[i])]
            assert done.batches.get(message.seq, torch.zeros(0)).tolist() == right
            table = ran.tensors(message)["values"]
            for c in range(CLASSES):
                rows = [p[i] for i in right if data.y[i] == c]
                expected = torch.stack(rows).mean(0) if rows else torch.zeros(CLASSES)
                torch.testing.assert_close(table[c], expected)
        (back,) = sent(ran, sender="server", round=done.index)
        assert back.receivers == tuple(clients)


# -- who learns from what -------------------------------------------------------------------------------------------


def test_one_clients_own_scores_teach_it_nothing(tmp_path):
    """The consensus of one is what it says already: the digest's gradient is zero, and only the revisit is left."""
    one = {"client/0": records()["client/0"]}
    params = {"warm_up_steps": 2, "local_steps": 3}
    ran = run(tmp_path / "a", "fedmd", params, clients=one, rounds=1)
    still = run(tmp_path / "b", "fedmd", {**params, "distill_lr": 1e-30}, clients=one, rounds=1)
    close(ran.rounds[0].models["client/0"], still.rounds[0].models["client/0"], rtol=0, atol=1e-6)


def test_fedmds_digest_brings_clients_together_and_its_revisit_apart(tmp_path):
    """Clients of one class each: measured after the digest they agree, after the revisit they do not."""
    params = {"share": "soft_labels", "warm_up_steps": 20, "local_steps": 10, "distill_steps": 40, "lr": 0.3}
    spread = {}
    for order in ("digest-revisit", "revisit-digest"):
        ran = run(tmp_path / order, "fedmd", {**params, "order": order}, clients=of_one_class(), rounds=2)
        modules = [module_of(model) for model in ran.rounds[-1].models.values()]
        said = [module(public()).softmax(1).detach() for module in modules]
        spread[order] = float(torch.stack(said).std(0).mean())
    assert spread["revisit-digest"] < spread["digest-revisit"] / 3


def test_fededs_clients_go_on_from_the_central_model_every_round(tmp_path):
    """One full-batch step from what was broadcast, by plain autograd; nothing of their last round is left."""
    ran = run(tmp_path / "a", "feded", {"local_steps": 1, "batch_size": 99, "lr": 0.3}, rounds=2)
    for done, broadcast in zip(ran.rounds, tensors(ran, "model_parameters", "server"), strict=False):
        for k, data in records().items():

            def loss(module, data=data):
                return F.cross_entropy(module(data.x), data.y)

            close(done.models[k], descended(broadcast, loss, 1, 0.3), rtol=1e-5, atol=1e-6)


def test_ds_fls_server_learns_from_the_labels_alone(tmp_path):
    """Plain SGD from the public start on the recorded labels gives its model."""
    ran = run(tmp_path / "a", "ds-fl", {"distill_batch_size": None}, rounds=1)
    (labels,) = tensors(ran, "ensemble_labels", "server")

    def loss(module):  # of all samples, in order
        return F.cross_entropy(module(public()), labels["values"])

    expected = descended(ran.setting.initial["server"], loss, configured("ds-fl", {}).distill_steps, 0.1)
    close(ran.protocol.released(), expected, rtol=1e-5, atol=1e-6)


def test_era_and_sa_send_different_labels_of_the_same_answers(tmp_path):
    era, sa = (run(tmp_path / a, "ds-fl", {"aggregation": a}, rounds=1) for a in ("era", "sa"))
    (sharp,), (plain,) = (tensors(r, "ensemble_labels", "server") for r in (era, sa))
    torch.testing.assert_close(sharp["values"], sharpen(plain["values"], 0.1))


# -- fusion ---------------------------------------------------------------------------------------------------------


def test_the_weighted_mean_and_the_mean_of_logits_by_hand():
    models = [{"w": torch.tensor([1.0, 3.0])}, {"w": torch.tensor([5.0, -1.0])}]
    torch.testing.assert_close(weighted_mean(models, [3, 1])["w"], torch.tensor([2.0, 2.0]))
    logits = [torch.tensor([[2.0, 0.0]]), torch.tensor([[0.0, 4.0]])]
    torch.testing.assert_close(mean_logits(logits), torch.tensor([[1.0, 2.0]]))


def test_feddf_without_distillation_to_speak_of_is_federated_averaging(tmp_path):
    ran = run(tmp_path / "a", "feddf", {"distill_lr": 1e-12, "distill_final_lr": None, "lr": 0.3}, rounds=1)
    uploads = by_sender(ran, "model_parameters", "client")
    total = sum(len(d) for d in records().values())
    expected = {
        n: sum(len(records()[k]) / total * u[n] for k, u in uploads.items()) for n in ran.protocol.released()
    }
    close(ran.protocol.released(), expected, rtol=1e-5, atol=1e-6)


def test_feddf_keeps_one_model_for_each_network_and_teaches_each_the_ensemble_of_all(tmp_path):
    """Without client 1 (whose network is the server's) the server's model still learns, from the others' logits."""
    gone = [Outage(party="client/1", first=0, last=0)]
    ran = run(tmp_path / "a", "feddf", {"distill_lr": 0.01}, unlike=True, outages=gone, rounds=1)
    start = ran.setting.initial["server"]
    assert any(not torch.equal(t, start[n]) for n, t in ran.protocol.released().items())
    sizes = {m.receivers: ran.tensors(m) for m in ran.messages if m.sender == "server"}
    for receivers, model in sizes.items():
        wanted = ran.setting.initial[receivers[0]]
        assert {n: t.shape for n, t in model.items()} == {n: t.shape for n, t in wanted.items()}
