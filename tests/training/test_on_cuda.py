"""Training and gradient inversion on a CUDA device, beside the CPU; `benchmarks/accelerator.py` measures more."""

from __future__ import annotations

import warnings

import pytest
import torch
from fdaudit.attacks.gradient_inversion.engine import match_adam, match_lbfgs
from fdaudit.attacks.gradient_inversion.gradients import GradientMap

from fdaudit.rng import child
from fdaudit.training.trainer import Trainer

from .training_cases import CLASSES, FITS, NETWORKS, SHAPE, execution, jobs

pytestmark = pytest.mark.cuda

_SAID = "called a synchronizing CUDA operation"
"""PyTorch's warning if the host waits."""


def waits(work):
    """Return how often the host waits for the device while `work` runs, after one run that loads libraries."""
    work()
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        torch.cuda.set_sync_debug_mode("warn")
        try:
            work()
        finally:
            torch.cuda.set_sync_debug_mode("default")
    return sum(_SAID in str(warning.message) for warning in said)


@pytest.mark.parametrize("strategy", ["loop", "stacked"])
@pytest.mark.parametrize("fit", ["momentum", "adam"])
def test_training_takes_the_steps_of_the_cpu_and_the_same_bits_twice(strategy, fit):
    network, fit = NETWORKS["cnn"], FITS[fit]
    work = jobs(network)
    execution(strategy, device="cuda").begin()
    expected = Trainer(network, execution()).fit(work, fit)
    trainer = Trainer(network, execution(strategy, device="cuda"))
    first, again = trainer.fit(work, fit), trainer.fit(work, fit)
    for job, one, two, three in zip(work, expected, first, again, strict=True):
        for name, start in job.parameters.items():
            apart = (two.parameters[name].cpu() - one.parameters[name]).norm()
            assert apart <= 0.05 * (one.parameters[name] - start).norm()
            assert torch.equal(two.parameters[name], three.parameters[name])


@pytest.mark.parametrize("strategy", ["loop", "stacked"])
def test_the_host_waits_no_more_often_in_a_longer_training(strategy):
    network = NETWORKS["cnn"]
    trainer = Trainer(network, execution(strategy, device="cuda"))
    few, many = jobs(network), jobs(network)
    few = [type(job)(**{**vars(job), "batches": job.batches[:2]}) for job in few]
    assert waits(lambda: trainer.fit(few, FITS["momentum"])) == waits(
        lambda: trainer.fit(many, FITS["momentum"])
    )


@pytest.mark.parametrize("match", ["adam", "lbfgs"])
def test_inversion_comes_as_close_as_on_the_cpu(match):
    draws = child(1, "inversion")
    x, sent = torch.rand(3, 1, *SHAPE, generator=draws), torch.rand(3, 1, *SHAPE, generator=draws)
    y = torch.randint(CLASSES, (3, 1), generator=draws)

    def reached(device):
        module = NETWORKS["cnn"].build(child(1, "network")).to(device)
        simulate = GradientMap(module, dict(module.named_parameters()))
        target = simulate(sent.to(device), y.to(device)).detach()
        if match == "adam":
            return match_adam(simulate, target, x.to(device), y.to(device), iterations=20, lr=0.1, tv=1e-3)
        return match_lbfgs(simulate, target, x.to(device), y.to(device), evaluations=20)

    apart = reached("cuda").objective.cpu() - reached("cpu").objective
    assert apart.abs().max() <= 0.05
