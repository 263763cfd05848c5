"""FedKD on several labels a record: each phase by arithmetic written out, the ensemble from the record alone."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from fdaudit.protocols.fedkd.protocol import class_weights

import fdaudit
from fdaudit.tasks import MULTI_LABEL
from fdaudit.testing.federation import initial, public, records, several

from ...helpers.by_hand import by_sender, close, descended, module_of
from ...helpers.docs_pages import ROOT
from ...helpers.protocol_cases import run
from ...helpers.record_reader import read
from ...helpers.run_cases import finished
from .test_replay_fedkd import CLIENTS, only, replay, worth

BARE = {"gamma": None, "levels": None}


# -- the phases -----------------------------------------------------------------------------------------------


def test_clients_learn_from_the_labels_that_are_known(tmp_path):
    clients = several(records())
    params = {**BARE, "batch_size": 99, "local_steps": 4, "lr": 0.3}
    ran = run(tmp_path / "a", "fedkd", params, clients=clients, task=MULTI_LABEL)
    for k, data in clients.items():

        def loss(module, data=data):
            q = module(data.x).sigmoid()
            return -((data.y == 1) * q.log() + (data.y == 0) * (1 - q).log()).mean()

        close(ran.rounds[0].models[k], descended(initial(k), loss, 4, 0.3))


def test_counts_are_of_positives_and_weigh_the_ensemble_class_by_class(tmp_path):
    clients = several(records())
    clients["client/0"].y[:, 1] = -1  # of what it does not know, and of what it never saw, it has no record
    clients["client/1"].y[:, 1] = 0
    ran = run(tmp_path / "a", "fedkd", BARE, clients=clients, task=MULTI_LABEL)
    counts = {k: t["counts"].tolist() for k, t in by_sender(ran, "class_counts").items()}
    for k, data in clients.items():
        assert counts[k] == [sum(int(v) == 1 for v in column) for column in data.y.T]
    assert counts["client/0"][1] == counts["client/1"][1] == 0
    N = np.array([counts[k] for k in clients], dtype=float)
    z = np.stack([module_of(ran.rounds[0].models[k])(public()).detach().numpy() for k in clients])
    (label,) = by_sender(ran, "ensemble_labels").values()
    np.testing.assert_allclose(
        label["values"].numpy(), np.einsum("knc,kc->nc", z, N / N.sum(0)), rtol=1e-4, atol=1e-5
    )
    np.testing.assert_allclose(label["values"].numpy()[:, 1], z[2][:, 1], rtol=1e-4, atol=1e-5)
    assert torch.equal(class_weights(torch.tensor(N))[:, 1], torch.tensor([0.0, 0.0, 1.0]).double())


def test_at_a_finite_temperature_each_class_is_distilled_by_itself(tmp_path):
    params = {**BARE, "distill_rounds": 1, "distill_steps": 4, "distill_batch_size": 99, "temperature": 3.0}
    params |= {"distill_optimizer": "sgd", "distill_lr": 0.1}
    ran = run(tmp_path / "a", "fedkd", params, clients=several(records()), task=MULTI_LABEL)
    (label,) = by_sender(ran, "ensemble_labels").values()
    p = (label["values"] / 3).sigmoid()

    def loss(module):
        q = (module(public()) / 3).sigmoid()
        return 9 * (p * (p / q).log() + (1 - p) * ((1 - p) / (1 - q)).log()).sum(1).mean()

    close(ran.protocol.released(), descended(initial(), loss, 4, 0.1))


def test_at_an_infinite_one_logits_are_matched_as_ever(tmp_path):
    params = {**BARE, "distill_rounds": 1, "distill_steps": 3, "distill_batch_size": 99}
    params |= {"distill_optimizer": "sgd", "distill_lr": 0.02}
    ran = run(tmp_path / "a", "fedkd", params, clients=several(records()), task=MULTI_LABEL)
    (label,) = by_sender(ran, "ensemble_labels").values()

    def loss(module):
        return (module(public()) - label["values"]).square().sum(1).mean()

    close(ran.protocol.released(), descended(initial(), loss, 3, 0.02))


# -- a run, from its record -----------------------------------------------------------------------------------


@pytest.mark.parametrize("levels", [200, None])
def test_the_ensemble_follows_from_logits_and_counts_of_positives(levels, tmp_path):
    settings = {"levels": levels, "grid": "eq4", "weights": "class-counts", "gamma": None}
    directory = finished(
        tmp_path / "run",
        clients=CLIENTS,
        dataset={"name": "digits-multilabel", "limit": 400},
        partition={"name": "dirichlet", "alpha": 0.3},
        splits={"test": 0.2, "proxy": 0.3, "auxiliary": 0.1, "candidates": 1},
        protocol={
            "name": "fedkd",
            "params": {"local_epochs": 5, "distill_rounds": 1, "distill_steps": 2, **settings},
        },
    )
    residual = replay(directory / "transcript", settings, CLIENTS)
    assert residual.shape == (120, 10)
    assert np.abs(residual).max() <= worth(directory)
    table = fdaudit.load(directory).result.plain()["class_table"]
    counts = [only(read(directory / "transcript"), "class_counts", f"client/{k}")[1] for k in range(CLIENTS)]
    assert [c["counts"].tolist() for c in counts] == table


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_the_central_model_learns_what_no_client_knows_alone(seed, tmp_path):
    """The example without its attacks; measured gaps: see docs/results/fedkd-multilabel.csv."""
    spec = fdaudit.spec.schema.load_spec(ROOT / "examples" / "fedkd-multilabel.yaml")
    spec = spec.model_copy(update={"seed": seed, "attacks": (), "threads": 1})
    table = fdaudit.run(spec, tmp_path / "run").utility
    final = table[table["round"] == table.groupby("line")["round"].transform("max")]
    central = float(final[(final.line == "fedkd") & (final.party == "server")].mean_auc.iloc[0])
    alone = float(final[final.line == "standalone"].mean_auc.mean())
    print(f"seed {seed}: central {central:.3f}, standalone {alone:.3f}")
    assert central >= alone + 0.05
