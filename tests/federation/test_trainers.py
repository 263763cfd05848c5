"""Who trains which network, and that parties with unlike networks are each served by their own."""

from __future__ import annotations

import traceback

import pytest
import torch

from fdaudit.federation.networks import Networks, Trainers
from fdaudit.models import architecture
from fdaudit.rng import child
from fdaudit.spec.schema import ModelSpec
from fdaudit.storage.files import encode
from fdaudit.testing.federation import execution as plainest
from fdaudit.training.trainer import Fit, Job, Trainer, draw_batches

from ..helpers.run_cases import finished

SHAPE, CLASSES = (1, 4, 4), 3
EXECUTION = plainest()


def mlp(width: int):
    return architecture(ModelSpec(name="mlp", params={"widths": [width]}), SHAPE, CLASSES)


@pytest.fixture
def networks():
    return Networks(mlp(3), (mlp(4), mlp(3), mlp(4)))


PARTIES = ("server", "client/0", "client/1", "client/2")


def test_a_client_has_its_own_network_and_everybody_else_the_shared_one(networks):
    widths = {p: networks.of(p).params["widths"] for p in (*PARTIES, "aggregator", "client/3", "client/7")}
    assert widths == {
        "server": [3],
        "aggregator": [3],
        "client/0": [4],
        "client/1": [3],
        "client/2": [4],
        "client/3": [4],  # one more than there are networks: from the first again
        "client/7": [3],
    }
    assert networks.distinct == (mlp(3), mlp(4))
    assert Networks(mlp(3)).distinct == (mlp(3),)


def test_every_party_starts_from_weights_of_its_own(networks):
    start = networks.initial(PARTIES, seed=1)
    assert len({encode(start[party]) for party in PARTIES}) == len(PARTIES)
    assert {n: t.shape for n, t in start["client/0"].items()} != {
        n: t.shape for n, t in start["server"].items()
    }
    again, other = networks.initial(PARTIES, seed=1), networks.initial(PARTIES, seed=2)
    assert encode(again["client/0"]) == encode(start["client/0"]) != encode(other["client/0"])
    alone = Networks(mlp(3)).initial(["server"], seed=1)
    assert encode(alone["server"]) == encode(start["server"])


def test_each_job_is_fitted_by_its_own_partys_core_in_the_jobs_order(networks):
    trainers, start = Trainers(networks, EXECUTION, PARTIES), networks.initial(PARTIES, seed=1)
    assert trainers["client/0"] is trainers["client/2"]
    assert trainers["client/0"] is not trainers["client/1"]
    jobs = []
    for k in ("client/2", "client/1", "client/0", "server"):
        x = torch.rand(8, *SHAPE, generator=child(0, "x", k))
        y = torch.randint(CLASSES, (8,), generator=child(0, "y", k))
        batches = draw_batches(8, 4, steps=3, generator=child(0, "b", k))
        jobs.append(Job(party=k, parameters=start[k], x=x, targets=y, batches=batches))
    fit = Fit(lr=0.1)
    for work in ("fit", "gradients"):
        together = getattr(trainers, work)(jobs, fit)
        for job, result in zip(jobs, together, strict=True):
            (alone,) = getattr(Trainer(networks.of(job.party), EXECUTION), work)([job], fit)
            assert encode(result.parameters) == encode(alone.parameters)
            assert torch.equal(result.losses, alone.losses)


def test_each_model_is_asked_by_its_own_partys_core(networks):
    trainers, start = Trainers(networks, EXECUTION, PARTIES), networks.initial(PARTIES, seed=1)
    x = torch.rand(5, *SHAPE, generator=child(0, "x"))
    found = trainers.predict({k: start[k] for k in ("client/1", "client/0")}, x)
    assert list(found) == ["client/1", "client/0"]
    for k, logits in found.items():
        assert torch.equal(logits, Trainer(networks.of(k), EXECUTION).predict(start[k], x))


def test_a_reader_follows_a_training_through_six_frames_at_most(tmp_path, monkeypatch):
    """From the protocol's call to the loop over batches."""
    depths, real = set(), Trainer._fit_one

    def counted(*given, **named):
        names = [frame.filename for frame in traceback.extract_stack()[:-1]]
        calling = max(n for n, name in enumerate(names) if "/protocols/" in name)
        depths.add(len(names) - calling)  # the frames after the protocol's, and that of `_fit_one`
        return real(*given, **named)

    monkeypatch.setattr(Trainer, "_fit_one", counted)
    finished(tmp_path / "run")
    assert depths
    assert max(depths) <= 6
