"""What DP-SGD claims, and of what: secret coins, a public number of steps, networks that keep records apart."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from scipy.stats import binomtest

from fdaudit.config import validate
from fdaudit.events import SampledGaussian
from fdaudit.models import architecture
from fdaudit.rng import child
from fdaudit.spec.schema import ModelSpec
from fdaudit.testing.federation import CLASSES, SHAPE, network, trainer
from fdaudit.training.private_step import Guard, per_sample_gradients, unfit
from fdaudit.training.trainer import Fit, draw_batches

from ..helpers.dp_sgd_cases import CLS, HUGE, LR, N, data, job, rule, stream

# -- draws ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("q", [0.01, 0.3, 0.9])
def test_every_record_is_drawn_by_a_coin_of_its_own_in_every_step(q):
    noise, made, steps, n = stream(), rule(q=q), 400, 40
    table = torch.zeros(steps, n)
    for step in range(steps):
        table[step, made.draw(n, noise)] = 1
    assert binomtest(int(table.sum()), steps * n, q).pvalue > 1e-3
    # Poisson, not fixed-size: batch sizes vary as binomials do, and records and steps know nothing of each other.
    assert float(table.sum(1).var()) == pytest.approx(n * q * (1 - q), rel=0.35)
    assert binomtest(int((table[:, ::2] * table[:, 1::2]).sum()), steps * n // 2, q * q).pvalue > 1e-3
    assert binomtest(int((table[::2] * table[1::2]).sum()), steps * n // 2, q * q).pvalue > 1e-3


def test_at_rate_one_everybody_is_drawn():
    assert torch.equal(rule(q=1.0).draw(1000, stream()), torch.arange(1000))


def test_the_batches_of_the_run_s_seed_are_not_used():
    made = job(rule(HUGE), 2)
    seeded = draw_batches(N, 3, steps=2, generator=child(0, "b"))
    (one,), (two,) = (
        trainer().fit([m], Fit(lr=LR)) for m in (made, replace(job(rule(HUGE), 2), batches=seeded))
    )
    assert all(torch.equal(one.parameters[n], two.parameters[n]) for n in one.parameters)
    assert [b.tolist() for b in two.batches] == [list(range(N))] * 2


LENGTHS = [
    ({"steps": 7, "epochs": None}, 0.3, 7),
    ({"steps": None, "epochs": 3}, 0.1, 30),
    ({"steps": None, "epochs": 1}, 0.3, 4),
    ({"epochs": 2}, 1.0, 2),
    ({"epochs": 1}, 1e-3, 1000),
]


@pytest.mark.parametrize(("length", "q", "steps"), LENGTHS)
def test_the_number_of_steps_is_a_public_constant(length, q, steps):
    assert rule(q=q).steps(length) == steps


# -- the claim ------------------------------------------------------------------------------------------------------


def test_the_event_is_a_subsampled_gaussian_of_all_steps():
    assert rule(0.5, noise=4.0, q=0.25).event(30) == SampledGaussian(
        sensitivity=0.5,
        scale=2.0,
        sample_rate=0.25,
        count=30,
        unit="record",
        relation="add-or-remove",
        covers=("data",),
    )


def test_it_describes_the_batch_size_that_it_divides_by():
    config = validate(CLS.Config, {"clip": 1.0, "noise_multiplier": 2.0, "sample_rate": 0.5})
    stated = {"name": "dp-sgd", "clip": 1.0, "noise_multiplier": 2.0, "sample_rate": 0.5, "expected_batch": 9}
    stated["sampling"] = "Poisson at rate 0.5, secret coins"
    assert CLS(config, 9).describe() == stated
    assert CLS(config.model_copy(update={"expected_batch": 5}), 9).expected_batch == 5


# -- networks that cannot be trained so -----------------------------------------------------------------------------


def test_a_layer_that_mixes_records_is_named():
    made = architecture(ModelSpec(name="resnet8", params={"norm": "batch"}), (1, 16, 16), CLASSES)
    found = unfit(made.build(child(0, "w")), (1, 16, 16))
    assert found is not None
    assert "extractor.1 is" in found
    assert "BatchNorm2d" in found


@pytest.mark.thorough
@pytest.mark.parametrize("name", ["mlp", "cnn-strided", "resnet8", "resnet18"])
def test_networks_without_such_layers_pass(name):
    made = architecture(ModelSpec(name=name), (1, 16, 16), CLASSES)
    assert unfit(made.build(child(0, "w")), (1, 16, 16)) is None


class _Twice(torch.nn.Module):
    """Changes the output of a layer in place, which hooks do not bear."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.outer = torch.nn.Linear(64, 4), torch.nn.Linear(4, CLASSES)

    def forward(self, x):
        z = self.inner(x.flatten(1))
        z += 1
        return self.outer(z)


def test_a_network_whose_records_gradients_cannot_be_had_is_refused():
    assert "inplace" in (unfit(_Twice(), SHAPE) or "")


def test_a_layer_with_buffers_of_its_own_is_named():
    class Running(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.w = torch.nn.Parameter(torch.zeros(64, CLASSES))
            self.register_buffer("mean", torch.zeros(64))

        def forward(self, x):
            return (x.flatten(1) - self.mean) @ self.w

    assert "mean" in (unfit(torch.nn.Sequential(Running()), SHAPE) or "")


def test_two_passes_before_one_step_are_refused():
    module, x = network().build(child(0, "w")), data()[0]
    with per_sample_gradients(module):
        module(x.clone().requires_grad_()).sum().backward()
        with pytest.raises(ValueError, match="twice"):
            Guard(rule(), stream()).step(module, N, lambda i: module(x[i].requires_grad_()).sum())
