"""Dropout under both strategies: it follows from the job's seed, and leaves nothing behind."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from fdaudit.rng import child
from fdaudit.training.execution import Execution
from fdaudit.training.private_step import Guard
from fdaudit.training.trainer import Fit, Job, Trainer, parameters_of

from ..helpers.dp_sgd_cases import rule, stream
from ..helpers.network_double import NetworkDouble

SHAPE, CLASSES = (1, 8, 8), 4


def dropping():
    """A network with dropout: the one layer that can only draw from the global generator."""
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 16), nn.Dropout(0.5), nn.Linear(16, CLASSES))


def dropped(seeds, strategy="loop"):
    network = NetworkDouble(dropping)
    work = []
    for k, seed in enumerate(seeds):
        x = torch.rand(20, *SHAPE, generator=child(1, "x"))
        work.append(
            Job(
                party=f"client/{k}",
                parameters=parameters_of(network.build(child(2, "w"))),
                x=x,
                targets=torch.arange(20) % CLASSES,
                batches=[torch.arange(20)] * 3,
                seed=seed,
            )
        )
    execution = Execution(device="cpu", threads=1, strategy=strategy, memory_format="contiguous")
    return [f.parameters["1.weight"] for f in Trainer(network, execution).fit(work, Fit(lr=0.5))]


@pytest.mark.parametrize("strategy", ["loop", "stacked"])
def test_dropout_draws_from_the_jobs_seed_alone_and_leaves_no_trace(strategy):
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(1)
        before = torch.get_rng_state()
        a, b, c = dropped([7, 7, 8], strategy)
        assert torch.equal(torch.get_rng_state(), before)
        torch.default_generator.manual_seed(2)
        (alone,) = dropped([8], strategy)
    assert torch.equal(a, b)
    assert not torch.equal(a, c)
    assert torch.equal(c, alone)  # neither the global state nor the jobs before it matter


def test_dropout_does_not_touch_accelerators_that_take_no_part(monkeypatch):
    touched = []
    monkeypatch.setattr(torch, "manual_seed", lambda seed: touched.append(seed))
    monkeypatch.setattr(torch.cuda, "manual_seed", lambda seed: touched.append(seed))
    monkeypatch.setattr(torch.cuda, "manual_seed_all", lambda seed: touched.append(seed))
    dropped([3])
    assert touched == []


def test_seeds_of_64_bits_are_accepted():
    (one,), (two,) = dropped([2**64 - 1]), dropped([2**63])
    assert not torch.equal(one, two)


def guarded(seed, path):
    """Weights after steps under a rule without noise that draws every record: masks are the one chance left."""
    network = NetworkDouble(dropping)
    x = torch.rand(20, *SHAPE, generator=child(1, "x"))
    work = Job(
        party="c",
        parameters=parameters_of(network.build(child(2, "w"))),
        x=x,
        targets=torch.arange(20) % CLASSES,
        batches=(),
        guard=Guard(rule(), stream(path), 3),
        seed=seed,
    )
    execution = Execution(device="cpu", threads=1, strategy="loop", memory_format="contiguous")
    trainer = Trainer(network, execution)
    (fitted,), (gradient,) = trainer.fit([work], Fit(lr=0.5)), trainer.gradients([work], Fit(lr=0.5))
    return fitted.parameters["1.weight"], gradient.parameters["1.weight"]


def test_under_a_guard_masks_come_from_the_secret_and_not_from_a_seed():
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(1)
        before = torch.get_rng_state()
        one, other_seed, other_secret = guarded(7, "m"), guarded(8, "m"), guarded(7, "n")
        assert torch.equal(torch.get_rng_state(), before)
    assert not torch.equal(one[0], other_secret[0])
    assert not torch.equal(one[1], other_secret[1])
    assert torch.equal(one[0], other_seed[0])
    assert torch.equal(one[1], other_seed[1])
