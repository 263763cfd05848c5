"""Whatever a network draws, by any function of any global generator, follows from the job's seed or from the secret."""

from __future__ import annotations

import random
from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fdaudit.errors import ProtocolError
from fdaudit.parallel.randomness import generator_states, seeded_randomness
from fdaudit.rng import child
from fdaudit.testing.federation import execution as plainest
from fdaudit.training.execution import Execution
from fdaudit.training.private_step import Guard, per_sample_gradients, unfit
from fdaudit.training.trainer import Fit, Job, Trainer, parameters_of

from ..helpers.dp_sgd_cases import rule, stream
from ..helpers.network_double import NetworkDouble

SHAPE, CLASSES = (1, 8, 8), 4
Change = Callable[[Tensor], Tensor]


def fractional(x: Tensor) -> Tensor:
    pooled = F.fractional_max_pool2d(x.unflatten(1, SHAPE), 2, output_size=5)
    return torch.cat([pooled.flatten(1), x[:, :39]], 1)


def by_row(x: Tensor) -> Tensor:
    """Stochastic depth: each record skips the layer by its own coin."""
    return x * torch.empty(len(x), 1, dtype=x.dtype).bernoulli_(0.5)


def alternative(x: Tensor) -> Tensor:
    """Draws only for bright images, which no trial on random inputs meets."""
    return F.dropout(x, 0.5) if float(x.detach().max()) > 5 else x


SECRET: dict[str, Change] = {
    "functional-dropout": lambda x: F.dropout(x, 0.5),
    "noise": lambda x: x + torch.randn_like(x),
    "bernoulli": lambda x: x * torch.bernoulli(torch.full_like(x, 0.5)),
    "fractional-pooling": fractional,
    "stochastic-depth": by_row,
}
"""Honest networks whose masks are the records' own."""
FOREIGN: dict[str, Change] = {
    "python": lambda x: x * random.random(),
    "numpy": lambda x: x * float(np.random.rand()),  # noqa: NPY002
    "late": lambda x: alternative(x * 10),
}


class Drawing(nn.Module):
    def __init__(self, change: Change) -> None:
        super().__init__()
        self.inner, self.outer, self.change = nn.Linear(64, 8), nn.Linear(8, CLASSES), change

    def forward(self, x: Tensor) -> Tensor:
        x = x.flatten(1)
        return self.outer(torch.tanh(self.inner(self.change(x) if self.training else x)))


def unsettle(seed: int) -> None:
    torch.default_generator.manual_seed(seed)
    random.seed(seed)
    np.random.seed(seed)  # noqa: NPY002


def weights(
    change: Change,
    around: int,
    seeds: tuple[int, ...] = (7,),
    guards: tuple[str, ...] = (),
    **execution: object,
) -> list[Tensor]:
    """Weights after three steps, in a process whose global generators were seeded by `around`."""
    network, x = NetworkDouble(lambda: Drawing(change)), torch.rand(20, *SHAPE, generator=child(1, "x"))
    jobs = [
        Job(
            party="c",
            parameters=parameters_of(network.build(child(2, "w"))),
            x=x,
            targets=torch.arange(20) % CLASSES,
            batches=[torch.arange(20)] * 3,
            guard=Guard(rule(), stream(path), 3) if path else None,
            seed=seed,
        )
        for seed, path in zip(seeds, guards or ("",) * len(seeds), strict=True)
    ]
    settings = {"device": "cpu", "threads": 1, "strategy": "loop", "memory_format": "contiguous", **execution}
    with seeded_randomness(0):
        unsettle(around)
        before = generator_states()
        fitted = Trainer(network, Execution(**settings)).fit(jobs, Fit(lr=0.5))
        assert generator_states() == before or change is FOREIGN["late"]
    return [f.parameters["inner.weight"] for f in fitted]


@pytest.mark.parametrize("how", SECRET | FOREIGN)
def test_under_a_guard_every_draw_comes_from_the_secret(how: str) -> None:
    change = {**SECRET, **FOREIGN}[how]
    (one,), (same,), (other,) = (
        weights(change, 1, guards=("m",)),
        weights(change, 2, seeds=(8,), guards=("m",)),
        weights(change, 1, guards=("n",)),
    )
    assert torch.equal(one, same)
    assert not torch.equal(one, other)


@pytest.mark.parametrize("how", SECRET | FOREIGN)
def test_without_a_guard_draws_come_from_the_jobs_seed(how: str) -> None:
    change = {**SECRET, **FOREIGN}[how]
    first, second, third = weights(change, 1, (7, 7, 8))
    assert torch.equal(first, second)
    assert not torch.equal(first, third)
    assert all(torch.equal(a, b) for a, b in zip(weights(change, 2, (7, 8)), [first, third], strict=True))
    for more in ({"threads": 2}, {"strategy": "stacked"}):
        if more == {"strategy": "stacked"} and how == "late":
            continue  # vmap cannot run a network that looks at its values
        again = weights(change, 3, (7, 7, 8), **more)
        assert all(torch.equal(a, b) for a, b in zip(again, [first, second, third], strict=True))


def test_a_step_under_a_guard_is_secret_whoever_asks_for_it() -> None:
    """Protocols with losses of their own call `Guard.step` directly."""
    x = torch.rand(20, *SHAPE, generator=child(1, "x"))

    def gradient(around: int, path: str) -> Tensor:
        module = NetworkDouble(lambda: Drawing(SECRET["noise"])).build(child(2, "w")).train()
        with seeded_randomness(0), per_sample_gradients(module):
            unsettle(around)
            step = Guard(rule(), stream(path)).step(
                module, 20, lambda drawn: module(x[drawn].requires_grad_()).square().sum()
            )
        return step.gradient["inner.weight"]

    assert torch.equal(gradient(1, "m"), gradient(2, "m"))
    assert not torch.equal(gradient(1, "m"), gradient(1, "n"))


def test_evaluation_draws_the_same_numbers_again() -> None:
    def always() -> nn.Module:
        module = Drawing(lambda x: x)
        module.register_forward_pre_hook(lambda _, args: (F.dropout(args[0], 0.5),))
        return module

    network = NetworkDouble(always)
    trainer = Trainer(network, plainest())
    parameters, x = parameters_of(network.build(child(2, "w"))), torch.rand(3, *SHAPE)
    with seeded_randomness(0):
        unsettle(1)
        one = trainer.predict(parameters, x)
        unsettle(2)
        assert torch.equal(one, trainer.predict(parameters, x))


@pytest.mark.parametrize("how", SECRET)
def test_records_with_draws_of_their_own_are_kept_apart(how: str) -> None:
    assert unfit(Drawing(SECRET[how]), SHAPE) is None


def own_generator(x: Tensor) -> Tensor:
    return x * torch.rand(x.shape, generator=torch.Generator(), dtype=x.dtype)


def reseeded(x: Tensor) -> Tensor:
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(3)
        return F.dropout(x, 0.5)


def drop_connect(x: Tensor) -> Tensor:
    return x @ F.dropout(torch.eye(64, dtype=x.dtype)[:60], 0.5).T @ torch.eye(64, dtype=x.dtype)[:60]


def centred_noise(x: Tensor) -> Tensor:
    noise = torch.randn_like(x)
    return x + noise - noise.mean(0)


def by_constants(x: Tensor) -> Tensor:
    return x + torch.as_tensor(np.random.default_rng(0).random((len(x), 1)), dtype=x.dtype)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (own_generator, "generator of its own"),
        (reseeded, "generator of its own"),
        (lambda x: x * torch.rand((), dtype=x.dtype), "share"),
        (lambda x: x * torch.bernoulli(torch.full((1, 64), 0.5, dtype=x.dtype)), "share"),
        (drop_connect, "share|drawn for another"),
        (centred_noise, "drawn for another"),
        (lambda x: x + torch.as_tensor(np.random.rand(len(x), 1), dtype=x.dtype), "NumPy"),  # noqa: NPY002
        (by_constants, "depends on"),
    ],
    ids=["own", "reseeded", "scalar", "mask", "drop-connect", "centred", "numpy", "constant"],
)
def test_draws_that_can_be_guessed_or_are_shared_are_refused(change: Change, says: str) -> None:
    """Removing a record would change the draws of others: more than one clipped gradient changes."""
    found = unfit(Drawing(change), SHAPE)
    assert found is not None
    assert any(word in found for word in says.split("|"))


def test_a_seed_set_during_training_ends_the_run() -> None:
    with pytest.raises(ProtocolError, match="seed"):
        weights(lambda x: reseeded_for_good(x * 10), 1, guards=("m",))


def reseeded_for_good(x: Tensor) -> Tensor:
    if float(x.detach().max()) > 5:
        torch.default_generator.manual_seed(3)
    return x
