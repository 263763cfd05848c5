"""FedAvg against independent references: plain SGD, hand-written averages and recursions, and its limits."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional as F

from fdaudit import defenses
from fdaudit.federation.networks import Networks
from fdaudit.testing.federation import SIZES, initial, records

from ..helpers.by_hand import by_sender, module_of, sent, tensors
from ..helpers.by_hand import close as nearly
from ..helpers.protocol_cases import run

LR = 0.3


def loss_gradient(parameters, x, y):
    """The gradient of the mean cross-entropy by plain autograd, on a module of its own."""
    module = module_of(parameters)
    F.cross_entropy(module(x), y).backward()
    return {n: p.grad for n, p in module.named_parameters()}


def union(clients):
    return torch.cat([d.x for d in clients.values()]), torch.cat([d.y for d in clients.values()])


def final(ran):
    return ran.protocol.released()


def distance(one, two):
    return float(sum((one[n] - two[n]).square().sum() for n in one).sqrt())


def close(one, two, rtol=1e-5, atol=1e-6):
    nearly(one, two, rtol, atol)


def broadcasts(ran):
    return tensors(ran, "model_parameters", "server")


def uploads(ran, round):
    return {k: t for k, t in by_sender(ran, sender="client", round=round).items() if t.keys() != {"n"}}


FULL = {"batch_size": max(SIZES), "lr": LR}


# -- one full-batch round is one step of SGD on the union -----------------------------------------------------------


@pytest.mark.parametrize("upload", ["gradient", "model_update", "model_parameters"])
def test_a_full_batch_round_with_all_clients_is_a_centralized_full_batch_step(upload, tmp_path):
    x, y = union(records())
    gradient = loss_gradient(initial(), x, y)
    stepped = {n: p - LR * gradient[n] for n, p in initial().items()}
    ran = run(tmp_path / "a", "fedavg", {**FULL, "upload": upload, "local_steps": 1}, rounds=1)
    close(final(ran), stepped)


def test_uploaded_gradients_are_those_of_plain_autograd(tmp_path):
    ran = run(tmp_path / "a", "fedavg", {**FULL, "upload": "gradient"}, rounds=1)
    for k, data in records().items():
        close(uploads(ran, 0)[k], loss_gradient(initial(), data.x, data.y))


def test_several_rounds_of_federated_sgd_are_gradient_descent_on_the_union(tmp_path):
    x, y = union(records())
    w = initial()
    for _ in range(4):
        w = {n: p - LR * g for (n, p), g in zip(w.items(), loss_gradient(w, x, y).values(), strict=True)}
    close(final(run(tmp_path / "a", "fedavg", {**FULL, "upload": "gradient"}, rounds=4)), w, rtol=1e-4)


# -- averaging ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("weighting", ["samples", "uniform"])
@pytest.mark.parametrize("upload", ["gradient", "model_update", "model_parameters"])
def test_the_average_is_weighted_as_asked(weighting, upload, tmp_path):
    ran = run(tmp_path / "a", "fedavg", {"upload": upload, "weighting": weighting, "lr": LR}, rounds=1)
    weights = [n / sum(SIZES) for n in SIZES] if weighting == "samples" else [1 / 3] * 3
    sent = uploads(ran, 0)
    mean = {n: sum(p * sent[k][n].double() for p, k in zip(weights, sent, strict=True)) for n in initial()}
    expected = {
        "gradient": lambda n: initial()[n].double() - LR * mean[n],
        "model_update": lambda n: initial()[n].double() + mean[n],
        "model_parameters": lambda n: mean[n],
    }[upload]
    close(final(ran), {n: expected(n).float() for n in initial()})
    assert ("sample_count" in {m.kind for m in ran.messages}) == (weighting == "samples")


def test_withheld_counts_weigh_everybody_alike(tmp_path):
    params = {"lr": LR, "upload": "model_parameters"}
    withheld = run(tmp_path / "a", "fedavg", params, withheld=("sample_count",))
    uniform = run(tmp_path / "b", "fedavg", {**params, "weighting": "uniform"})
    close(final(withheld), final(uniform), rtol=0, atol=0)


def test_updates_and_parameters_give_the_same_model(tmp_path):
    params = {"local_steps": 3, "lr": LR, "momentum": 0.5}
    found = [
        final(run(tmp_path / u, "fedavg", {**params, "upload": u}))
        for u in ("model_update", "model_parameters")
    ]
    close(*found)


@pytest.mark.parametrize(("fraction", "taking_part"), [(0.01, 1), (0.34, 1), (0.67, 2), (1.0, 3)])
def test_a_share_of_the_clients_takes_part_at_least_one(fraction, taking_part, tmp_path):
    ran = run(tmp_path / "a", "fedavg", {"fraction": fraction}, rounds=6)
    took = [set(uploads(ran, t)) for t in range(6)]
    assert {len(s) for s in took} == {taking_part}
    if taking_part < 3:
        assert len({frozenset(s) for s in took}) > 1  # not always the same
    for t, message in enumerate(sent(ran, "model_parameters", "server")[:6]):
        assert set(message.receivers) == took[t]


def test_the_average_is_over_those_that_took_part(tmp_path):
    ran = run(tmp_path / "a", "fedavg", {"fraction": 0.67, "upload": "model_parameters", "lr": LR}, rounds=1)
    sent = uploads(ran, 0)
    counts = {k: len(d) for k, d in records().items() if k in sent}
    total = sum(counts.values())
    expected = {n: sum(counts[k] / total * sent[k][n].double() for k in sent).float() for n in initial()}
    close(final(ran), expected)


# -- FedAvgM --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("upload", ["gradient", "model_update", "model_parameters"])
def test_server_momentum_follows_its_recursion(upload, tmp_path):
    beta = 0.8
    params = {"upload": upload, "server_momentum": beta, "weighting": "uniform", "lr": LR}
    ran = run(tmp_path / "a", "fedavg", params, rounds=4)
    w = {n: t.double() for n, t in initial().items()}
    v = {n: torch.zeros_like(t) for n, t in w.items()}
    for t in range(4):
        sent = list(uploads(ran, t).values())
        mean = {n: sum(u[n].double() for u in sent) / len(sent) for n in w}
        delta = {
            "gradient": lambda n, mean=mean: -LR * mean[n],
            "model_update": lambda n, mean=mean: mean[n],
            "model_parameters": lambda n, mean=mean, w=w: mean[n] - w[n],
        }[upload]
        v = {n: beta * v[n] + delta(n) for n in w}
        w = {n: w[n] + v[n] for n in w}
        close(broadcasts(ran)[t + 1], {n: t.float() for n, t in w.items()}, rtol=1e-4, atol=1e-5)


def test_a_momentum_that_vanishes_is_fedavg(tmp_path):
    plain = final(run(tmp_path / "a", "fedavg", {"lr": LR}))
    nearly = final(run(tmp_path / "b", "fedavg", {"lr": LR, "server_momentum": 1e-9}))
    close(plain, nearly)


# -- FedProx --------------------------------------------------------------------------------------------------------


def test_fedprox_without_its_term_is_fedavg_and_near_it_for_a_small_one(tmp_path):
    params = {"local_steps": 5, "lr": LR}
    plain, zero, small, large = (
        final(run(tmp_path / str(k), "fedavg", {**params, **p}, rounds=1))
        for k, p in enumerate(({}, {"mu": 0.0}, {"mu": 1e-6}, {"mu": 1.0}))
    )
    close(plain, zero, rtol=0, atol=0)
    close(plain, small)
    assert distance(plain, large) > 1e-3


def test_a_large_mu_keeps_the_model_near_the_one_sent(tmp_path):
    """With η = 1/μ a step lands at w_t - g/μ whatever came before: the distance falls as 1/μ."""
    base, gone = {"local_steps": 40, "weighting": "uniform"}, {}
    for mu in (100.0, 1000.0, 10000.0):
        w = final(run(tmp_path / str(mu), "fedavg", {**base, "mu": mu, "lr": 1 / mu}, rounds=1))
        free = final(run(tmp_path / f"free{mu}", "fedavg", {**base, "lr": 1 / mu}, rounds=1))
        gone[mu] = distance(w, initial())
        assert gone[mu] < distance(free, initial()) / 8
    assert gone[1000.0] == pytest.approx(gone[100.0] / 10, rel=0.3)
    assert gone[10000.0] == pytest.approx(gone[1000.0] / 10, rel=0.1)


# -- limits ---------------------------------------------------------------------------------------------------------


def test_one_client_on_full_batches_is_fedavg_standalone_and_centralized_alike(tmp_path, monkeypatch):
    """Batches hold the same records in another order, so sums round differently and nothing else does."""
    one = records((10,))
    params = {"batch_size": 10, "lr": LR}
    central = final(run(tmp_path / "b", "centralized", params, clients=one))
    start = initial(
        "client/0"
    )  # FedAvg broadcasts the server's initial weights, the others have the client's own
    monkeypatch.setattr(Networks, "initial", lambda self, parties, seed: dict.fromkeys(parties, start))
    federated = final(run(tmp_path / "a", "fedavg", {**params, "upload": "model_parameters"}, clients=one))
    alone = run(tmp_path / "c", "standalone", params, clients=one).rounds[-1].models["client/0"]
    close(federated, central)
    close(central, alone, rtol=0, atol=0)


def test_centralized_training_is_standalone_training_of_one_client_that_holds_the_union(tmp_path):
    from fdaudit.federation.protocol import PartyData

    whole = {"client/0": PartyData(*union(records()))}
    central = final(run(tmp_path / "a", "centralized", {"momentum": 0.9}))
    alone = run(tmp_path / "b", "standalone", {"momentum": 0.9}, clients=whole).rounds[-1].models["client/0"]
    close(central, alone, rtol=0, atol=0)


def test_clients_that_learn_alone_do_not_depend_on_each_other(tmp_path):
    everybody = run(tmp_path / "a", "standalone").rounds[-1].models
    for k in (0, 1, 2):
        few = {name: d for name, d in records().items() if name <= f"client/{k}"}
        found = run(tmp_path / f"b{k}", "standalone", clients=few).rounds[-1].models
        close(found[f"client/{k}"], everybody[f"client/{k}"], rtol=0, atol=0)


def test_a_federation_of_one_that_uploads_parameters_hands_them_on_unchanged(tmp_path):
    ran = run(tmp_path / "a", "fedavg", {"upload": "model_parameters"}, clients=records((7,)), rounds=1)
    close(final(ran), uploads(ran, 0)["client/0"], rtol=0, atol=0)


# -- what is sent is what counts --------------------------------------------------------------------------------------


@pytest.mark.parametrize("upload", ["gradient", "model_update"])
def test_the_server_goes_on_from_the_model_as_it_was_sent(upload, tmp_path):
    """Clients' changes are relative to the model that they were sent, which a defence may have noised."""
    made = defenses.REGISTRY.load("gaussian-noise")
    noise = {("model_parameters", "server"): [made(made.Config(sigma=0.5))]}
    params = {"upload": upload, "lr": 1e-9}
    ran = run(tmp_path / "a", "fedavg", params, rounds=1, defenses=noise)
    first, _ = broadcasts(ran)
    close(final(ran), first)
    assert distance(first, initial()) > 1


def test_clients_draw_batches_of_their_own_in_every_round(tmp_path):
    ran = run(tmp_path / "a", "fedavg", {"local_steps": 3}, clients=records((12, 12, 12)))
    drawn = [tuple(b.tolist()) for r in ran.rounds for b in r.batches.values()]
    assert len(drawn) == 9
    assert len(set(drawn)) == 9


def test_clients_that_hold_the_same_records_still_learn_apart(tmp_path):
    (data,) = records((12,)).values()
    models = run(tmp_path / "a", "standalone", clients={"client/0": data, "client/1": data}).rounds[-1].models
    assert distance(models["client/0"], models["client/1"]) > 0


# -- settings -------------------------------------------------------------------------------------------------------


def test_a_noised_count_of_nothing_or_less_counts_as_one_record(tmp_path):
    from fdaudit.events import NoGuarantee
    from fdaudit.transcript.wire import Released

    class Minus:
        def describe(self):
            return {"name": "minus"}

        def release(self, kind, tensors, noise):
            return Released(kind=kind, tensors={"n": -tensors["n"]}, event=NoGuarantee(reason="a test"))

    params = {"upload": "model_parameters", "lr": LR}
    minus = run(tmp_path / "a", "fedavg", params, defenses={("sample_count", "client"): [Minus()]})
    uniform = run(tmp_path / "b", "fedavg", {**params, "weighting": "uniform"})
    close(final(minus), final(uniform), rtol=0, atol=0)
