"""A network with its optimiser: steps as PyTorch takes them, and a state that loses nothing."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from fdaudit.errors import TrainingDivergedError
from fdaudit.rng import child
from fdaudit.storage.files import decode, encode
from fdaudit.training.stepwise import Learner, Optimizer

SETTINGS = [
    Optimizer(lr=0.05),
    Optimizer(lr=0.05, betas=(0.5, 0.9), weight_decay=0.1),
    Optimizer(lr=0.05, name="sgd"),
    Optimizer(lr=0.05, name="sgd", momentum=0.9),
]
every_setting = pytest.mark.parametrize(
    "optimizer", SETTINGS, ids=lambda o: f"{o.name}-{o.momentum}-{o.betas[0]}"
)


def network(seed: int = 0) -> nn.Module:
    made = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Tanh(), nn.Linear(4, 1))
    with torch.no_grad():
        for n, p in made.named_parameters():
            p.copy_(torch.randn(p.shape, generator=child(seed, n)))
    return made


def batch(step: int) -> torch.Tensor:
    return torch.randn(6, 3, generator=child(1, "batch", step))


def learner(optimizer: Optimizer, seed: int = 0) -> Learner:
    return Learner("client/0", network(seed), optimizer)


def advance(one: Learner, steps: range) -> list[float]:
    return [one.step(one.module(batch(s)).square().mean()) for s in steps]


@every_setting
def test_steps_are_those_of_the_optimiser_itself(optimizer):
    ours, module = learner(optimizer), network()
    theirs = optimizer.build(list(module.parameters()))
    losses = advance(ours, range(4))
    for s in range(4):
        loss = module(batch(s)).square().mean()
        assert losses[s] == loss.item()
        theirs.zero_grad()
        loss.backward()
        theirs.step()
    assert encode(ours.parameters()) == encode(
        {n: t for n, t in module.state_dict().items() if t.is_floating_point()}
    )
    assert ours.steps == 4


@every_setting
def test_a_restored_learner_goes_on_bit_for_bit(optimizer):
    whole, first, second = (learner(optimizer, seed) for seed in (0, 0, 7))
    advance(whole, range(6))
    advance(first, range(3))
    advance(second, range(2))  # moments of its own, which must go
    second.restore(decode(encode(first.state())))
    assert second.steps == 3
    advance(second, range(3, 6))
    assert encode(second.state()) == encode(whole.state())


@every_setting
def test_a_learner_that_never_stepped_is_restored_too(optimizer):
    fresh, other = learner(optimizer), learner(optimizer, seed=7)
    advance(other, range(2))
    other.restore(decode(encode(fresh.state())))
    assert advance(other, range(3)) == advance(fresh, range(3))


def test_the_state_shares_no_memory_with_the_network():
    one = learner(Optimizer(lr=0.05))
    advance(one, range(1))
    kept = one.state()
    before = encode(kept)
    advance(one, range(1, 3))
    assert encode(kept) == before


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_loss_that_is_not_finite_stops_and_names_party_step_and_value(value):
    one = learner(Optimizer(lr=0.05))
    advance(one, range(2))
    before = encode(one.state())
    with pytest.raises(TrainingDivergedError, match=rf"client/0.*step 2 is {value}"):
        one.step(one.module[0].weight.square().sum() * value)
    assert encode(one.state()) == before


# -- schedules, samples, memory formats ---------------------------------------------------------------------------


@every_setting
def test_a_steps_own_rate_holds_for_that_step_only(optimizer):
    one, other = learner(optimizer), learner(optimizer)
    one.step(one.module(batch(0)).square().mean(), 0.0)
    assert encode({n: t for n, t in one.parameters().items() if "running" not in n}) == encode(
        {n: t for n, t in other.parameters().items() if "running" not in n}
    )
    halved, plain = optimizer.model_copy(update={"lr": optimizer.lr / 2}), learner(optimizer)
    fresh = learner(halved)
    assert fresh.step(fresh.module(batch(0)).square().mean()) == plain.step(
        plain.module(batch(0)).square().mean(), optimizer.lr / 2
    )
    assert encode(fresh.parameters()) == encode(plain.parameters())
    before = plain.parameters()
    plain.step(plain.module(batch(1)).square().mean())
    other.restore(fresh.state())
    other.step(other.module(batch(1)).square().mean())  # with the optimiser's own rate again
    assert encode(plain.parameters()) == encode(other.parameters()) != encode(before)


def test_samples_that_a_loss_was_taken_at_collect_no_gradient():
    one, x = learner(Optimizer(lr=0.05)), batch(0).requires_grad_()
    one.step(one.module(x).square().mean())
    assert x.grad is None


def test_a_restored_learner_goes_on_bit_for_bit_in_channels_last():
    def convolutions() -> Learner:
        made = nn.Sequential(nn.Conv2d(3, 16, 3), nn.LeakyReLU(0.2), nn.Conv2d(16, 8, 3))
        with torch.no_grad():
            for n, p in made.named_parameters():
                p.copy_(torch.randn(p.shape, generator=child(0, n)))
        return Learner("client/0", made.to(memory_format=torch.channels_last), Optimizer(lr=0.01))

    def advance(one: Learner, steps: range) -> None:
        for s in steps:
            x = torch.randn(4, 3, 9, 9, generator=child(2, "x", s))
            one.step(one.module(x).square().mean())

    whole, first, second = convolutions(), convolutions(), convolutions()
    advance(whole, range(6))
    advance(first, range(3))
    second.restore(decode(encode(first.state())))
    advance(second, range(3, 6))
    assert encode(second.state()) == encode(whole.state())
    (weight, *_) = second.module.parameters()
    assert second._optimizer.state[weight]["exp_avg"].stride() == weight.stride()
