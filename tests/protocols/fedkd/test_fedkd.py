"""FedKD: Eq. 1 and 2 by hand, each phase against independent arithmetic, its limits, and what it refuses."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from fdaudit.defenses.quantization import uniform_quantize
from fdaudit.protocols import REGISTRY
from fdaudit.protocols.fedkd.protocol import class_weights, ensemble
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn import functional as F

from fdaudit.config import validate
from fdaudit.events import Laplace, NoGuarantee
from fdaudit.rng import child
from fdaudit.storage.files import encode
from fdaudit.testing.federation import CLASSES, initial, public, records
from fdaudit.transcript.encoding import readable
from fdaudit.transcript.wire import Outage

from ...helpers.by_hand import by_sender, close, descended, module_of
from ...helpers.protocol_cases import run
from ...helpers.run_cases import finished

CONFIG = REGISTRY.load("fedkd").Config
BARE = {"gamma": None, "levels": None}
"""Neither noise nor quantisation."""


def told(ran, kind):
    """The tensors of the messages of a kind, as they are read, by sender."""
    return {k: readable(t) for k, t in by_sender(ran, kind).items()}


def logits_of(parameters, x):
    with torch.no_grad():
        return module_of(parameters)(x)


def counted():
    return {k: torch.bincount(d.y, minlength=CLASSES) for k, d in records().items()}


# -- Eq. 1 and 2 --------------------------------------------------------------------------------------------------


def test_weights_worked_out_by_hand():
    counts = torch.tensor([[3, 0, 5, 0], [1, 4, 5, 0]])
    wanted = [[0.75, 0.0, 0.5, 0.5], [0.25, 1.0, 0.5, 0.5]]
    assert class_weights(counts).tolist() == wanted  # nobody has the last class


@settings(deadline=None, max_examples=60)
@given(st.integers(1, 8), st.integers(1, 6), st.integers(0, 9999))
def test_the_weights_of_each_class_sum_to_one_over_the_clients(clients, classes, seed):
    counts = torch.randint(0, 4, (clients, classes), generator=child(seed, "counts"))
    weights = class_weights(counts)
    torch.testing.assert_close(weights.sum(0), torch.ones(classes, dtype=torch.float64))
    assert bool((weights >= 0).all())
    torch.testing.assert_close(class_weights(7 * counts), weights)


def test_counts_that_noise_has_pushed_below_nought_count_as_none():
    assert class_weights(torch.tensor([[-3, -1], [6, 0]])).tolist() == [[0.0, 0.5], [1.0, 0.5]]


def test_the_ensemble_is_the_sum_over_clients_by_class():
    z = torch.randn(4, 30, 5, generator=child(0, "z"))
    weights = class_weights(torch.randint(1, 9, (4, 5), generator=child(0, "n")))
    wanted = np.einsum("knc,kc->nc", z.numpy().astype(np.float64), weights.numpy())
    np.testing.assert_allclose(ensemble(list(z), weights).numpy(), wanted, rtol=1e-6, atol=1e-6)


def test_one_clients_ensemble_is_its_own_logits():
    z = torch.randn(9, 3, generator=child(0, "z"))
    assert torch.equal(ensemble([z], class_weights(torch.tensor([[2, 0, 5]]))), z)


# -- the phases ---------------------------------------------------------------------------------------------------


def test_without_noise_and_quantisation_the_ensemble_is_that_of_the_clients_models(tmp_path):
    ran = run(tmp_path / "a", "fedkd", BARE)
    models = ran.rounds[0].models
    assert {m.kind for m in ran.messages} == {"class_counts", "logits", "ensemble_labels", "model_parameters"}
    z = torch.stack([logits_of(models[k], public()) for k in records()])
    N = torch.stack(list(counted().values())).double()
    wanted = torch.einsum("knc,kc->nc", z.double(), N / N.sum(0))
    (got,) = told(ran, "ensemble_labels").values()
    torch.testing.assert_close(got["values"], wanted.float(), rtol=1e-5, atol=1e-6)
    assert got["values"].shape == (7, CLASSES)


@pytest.mark.parametrize("grid", ["eq3", "eq4"])
def test_clients_agree_on_the_largest_logit_and_quantise_to_it(grid, tmp_path):
    ran = run(tmp_path / "a", "fedkd", {"levels": 6, "grid": grid, "gamma": None})
    models = ran.rounds[0].models
    z = {k: logits_of(models[k], public()) for k in records()}
    ranges = told(ran, "logit_range")
    for k in records():
        torch.testing.assert_close(ranges[k]["max_abs"], z[k].abs().max())
    z_max = max(float(z_k.abs().max()) for z_k in z.values())
    assert float(ranges["aggregator"]["max_abs"]) == pytest.approx(z_max)
    for k, tensors in told(ran, "logits").items():
        assert tensors.keys() == {"values"}, "z_max is not sent a second time, and all samples need no index"
        # A logit at the very edge of two steps may round either way in another order of summation.
        wanted = uniform_quantize(z[k], 6, z_max, grid)
        assert ((tensors["values"] - wanted).abs() < 1e-4).float().mean() > 0.9
        again = uniform_quantize(tensors["values"], 6, ranges["aggregator"]["max_abs"], grid)
        assert torch.equal(again, tensors["values"])


def test_with_a_public_bound_nobody_says_how_large_its_logits_are(tmp_path):
    ran = run(tmp_path / "a", "fedkd", {"z_max": 0.25})
    assert "logit_range" not in {m.kind for m in ran.messages}
    values = torch.stack([t["values"] for t in told(ran, "logits").values()])
    assert float(values.abs().max()) == 0.25


def test_the_central_model_is_distilled_by_the_paper_loss(tmp_path):
    """Full batches, so that no order matters: Adam on the squared ℓ2 distance, written out."""
    params = {**BARE, "distill_rounds": 1, "distill_steps": 5, "distill_batch_size": 99, "distill_lr": 0.01}
    ran = run(tmp_path / "a", "fedkd", params)
    (target,) = told(ran, "ensemble_labels").values()
    module = module_of(initial())
    optimizer = torch.optim.Adam(module.parameters(), lr=0.01)
    for _ in range(5):
        loss = (module(public()) - target["values"]).square().sum(1).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    close(ran.protocol.released(), module.state_dict())


def test_at_a_finite_temperature_it_is_kl_between_softened_outputs(tmp_path):
    params = {**BARE, "distill_rounds": 1, "distill_steps": 4, "distill_batch_size": 99, "temperature": 3.0}
    ran = run(tmp_path / "a", "fedkd", {**params, "distill_optimizer": "sgd", "distill_lr": 0.1})
    (target,) = told(ran, "ensemble_labels").values()
    p = F.softmax(target["values"] / 3, 1)

    def loss(module):  # Eq. 5 and 6, times τ² to keep the gradient's scale
        q = F.softmax(module(public()) / 3, 1)
        return 9 * (p * (p / q).log()).sum(1).mean()

    close(ran.protocol.released(), descended(initial(), loss, 4, 0.1))


@pytest.mark.parametrize("optimizer", ["adam", "sgd"])
def test_a_distillation_split_into_rounds_is_the_same_distillation(optimizer, tmp_path):
    shared = {**BARE, "distill_batch_size": 99, "distill_optimizer": optimizer, "distill_lr": 0.01}
    whole = run(tmp_path / "1", "fedkd", {**shared, "distill_rounds": 1, "distill_steps": 12})
    split = run(tmp_path / "4", "fedkd", {**shared, "distill_rounds": 4, "distill_steps": 3})
    assert len(split.rounds) == 6
    close(split.protocol.released(), whole.protocol.released())


def test_clients_train_as_the_reference_line_does(tmp_path):
    """The reference's settings are the clients' own: on full batches the models are the same."""
    params = {
        "batch_size": 99,
        "local_epochs": 3,
        "lr": 0.2,
        "momentum": 0.5,
        "weight_decay": 0.01,
        "final_lr": 0.05,
    }
    ran = run(tmp_path / "a", "fedkd", params)
    alone = validate(CONFIG, params).alone()
    validate(REGISTRY.load("standalone").Config, alone)
    reference = run(tmp_path / "b", "standalone", alone)
    assert len(reference.rounds) == 1
    for k, model in reference.rounds[0].models.items():
        close(ran.rounds[0].models[k], model, atol=1e-6)


def test_clients_of_unlike_networks_are_measured_beside_both_reference_lines(tmp_path):
    unlike = [{"name": "mlp", "params": {"widths": [n]}} for n in (3, 5)]
    params = {"distill_rounds": 1, "distill_steps": 2, "local_epochs": 1}
    done = finished(
        tmp_path / "run",
        splits__proxy=0.2,
        client_models=unlike,
        references=["standalone", "centralized"],
        protocol={"name": "fedkd", "params": params},
    )
    rows = [line.split(",")[:3] for line in (done / "utility.csv").read_text().splitlines()[1:]]
    clients = ["client/0", "client/1"]
    wanted = [("fedkd", "0", k) for k in clients] + [("fedkd", r, "server") for r in "12"]
    wanted += [("fedkd", "2", k) for k in clients] + [("standalone", "0", k) for k in clients]
    assert [tuple(row) for row in rows] == [*wanted, ("centralized", "0", "client/0")]


# -- who is left out ----------------------------------------------------------------------------------------------


def test_the_ensemble_does_without_a_client_whose_logits_do_not_arrive(tmp_path):
    """It has sent its counts and its range; neither may weigh anything."""
    gone = Outage(party="client/1", first=1, last=1, after=2)
    ran = run(tmp_path / "a", "fedkd", {"gamma": None}, outages=[gone])
    z, counts = told(ran, "logits"), told(ran, "class_counts")
    assert z.keys() == {"client/0", "client/2"}
    assert counts.keys() == {"client/0", "client/1", "client/2"}
    N = torch.stack([counts[k]["counts"] for k in z])
    wanted = torch.einsum(
        "knc,kc->nc", torch.stack([t["values"] for t in z.values()]), (N / N.sum(0)).float()
    )
    (got,) = told(ran, "ensemble_labels").values()
    torch.testing.assert_close(got["values"], wanted, rtol=1e-5, atol=1e-5)
    (label,) = [m for m in ran.messages if m.kind == "ensemble_labels"]
    assert {ran.messages[i].sender for i in label.inputs} == {"client/0", "client/2"}


@pytest.mark.parametrize("how", ["withheld", "uniform"])
def test_without_counts_clients_weigh_alike(how, tmp_path):
    params = {"gamma": None, "weights": "uniform" if how == "uniform" else "class-counts"}
    ran = run(tmp_path / "a", "fedkd", params, withheld=("class_counts",) if how == "withheld" else ())
    assert not told(ran, "class_counts")
    values = torch.stack([t["values"] for t in told(ran, "logits").values()])
    (got,) = told(ran, "ensemble_labels").values()
    torch.testing.assert_close(got["values"], values.mean(0), rtol=1e-5, atol=1e-5)


def test_when_nobody_answers_the_central_model_stays_as_it_was(tmp_path):
    silent = [Outage(party=k, first=1, last=1) for k in records()]
    ran = run(tmp_path / "a", "fedkd", outages=silent)
    assert encode(ran.protocol.released()) == encode(initial())
    assert {m.kind for m in ran.messages} == {"silence", "model_parameters"}


# -- noise --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("where", ["aggregator", "client", "none"])
def test_noise_is_added_where_the_settings_say(where, tmp_path):
    ran = run(tmp_path / "a", "fedkd", {"noise_at": where, "clip": 2.0})
    for message in ran.messages:
        names = [d["name"] for d in message.defenses]
        assert ("laplace-noise" in names) == (
            (message.kind, where) in {("ensemble_labels", "aggregator"), ("logits", "client")}
        )
        assert ("uniform-quantization" in names) == (message.kind == "logits")
        if names:
            claims = Laplace if names[-1] == "laplace-noise" else NoGuarantee
            assert isinstance(message.event, claims)


def test_the_papers_own_mechanism_claims_nothing(tmp_path):
    ran = run(tmp_path / "a", "fedkd")
    events = {m.kind: m.event for m in ran.messages if m.defenses}
    assert events.keys() == {"logits", "ensemble_labels"}
    assert all(isinstance(event, NoGuarantee) for event in events.values())


def test_the_aggregator_and_nobody_else_gets_what_clients_send(tmp_path):
    ran = run(tmp_path / "a", "fedkd")
    for message in ran.messages:
        if message.sender.startswith("client/"):
            assert message.receivers == ("aggregator",)
    assert {m.kind for m in ran.messages if "server" in m.receivers} == {"ensemble_labels"}


# -- what is refused ----------------------------------------------------------------------------------------------
