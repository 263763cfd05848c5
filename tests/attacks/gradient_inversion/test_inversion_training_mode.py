"""Networks that mix the images of a batch: the client's mode, its batch statistics, and what they show."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from fdaudit.attacks.gradient_inversion.dlg import DLG, DLGConfig
from fdaudit.attacks.gradient_inversion.inverting import InvertingGradients, InvertingGradientsConfig
from fdaudit.attacks.gradient_inversion.statistics import BatchStatistics, read_statistics
from fdaudit.attacks.gradient_inversion.training_mode import network, separable_network
from torch import Tensor, nn

from fdaudit.adversary.knowledge import Knowledge
from fdaudit.types import AttackTask

from .gradient_inversion_cases import (
    MemoryArchitecture,
    digits,
    init_uniform,
    one_thread,  # noqa: F401
    psnr,
    view_of_messages,
)


class _CentresBatches(nn.Module):
    """A home-made layer that mixes the images of a batch."""

    def forward(self, x: Tensor) -> Tensor:
        centred: Tensor = x - 0.5 * x.mean(0, keepdim=True)
        return centred


def _normed(hw: int, generator: torch.Generator) -> nn.Module:
    layers = [nn.Conv2d(1, 12, 5, 2, 2), nn.BatchNorm2d(12), nn.Sigmoid(), nn.Conv2d(12, 12, 5, 1, 2)]
    layers += [
        nn.BatchNorm2d(12),
        nn.Sigmoid(),
        nn.Dropout(0.2),
        nn.Flatten(),
        nn.Linear(12 * hw * hw // 4, 10),
    ]
    return init_uniform(nn.Sequential(*layers), generator)


def _home_made(hw: int, generator: torch.Generator) -> nn.Module:
    layers = [nn.Flatten(), nn.Linear(hw * hw, 32), _CentresBatches(), nn.Sigmoid(), nn.Linear(32, 10)]
    return init_uniform(nn.Sequential(*layers), generator)


def _plain(hw: int, generator: torch.Generator) -> nn.Module:
    layers = [nn.Flatten(), nn.Linear(hw * hw, 32), nn.Dropout(0.5), nn.Linear(32, 10)]
    return init_uniform(nn.Sequential(*layers), generator)


def _needs_two(hw: int, generator: torch.Generator) -> nn.Module:
    layers = [nn.Flatten(), nn.Linear(hw * hw, 8), nn.BatchNorm1d(8), nn.Sigmoid(), nn.Linear(8, 10)]
    return init_uniform(nn.Sequential(*layers), generator)


def _state(module: nn.Module) -> dict[str, Tensor]:
    return {name: t.detach().clone() for name, t in module.state_dict().items() if t.is_floating_point()}


def _sent(make: Any, n: int, statistics: bool = True) -> tuple[Any, Knowledge, Tensor, nn.Module]:
    """Return a view of one client's step of SGD in training mode, without dropout, and the records behind it."""
    x, y = digits()
    module = make(16, torch.Generator().manual_seed(3)).train()
    start = _state(module)
    for layer in module.modules():
        layer.training = not isinstance(layer, nn.Dropout)
    optimizer = torch.optim.SGD(module.parameters(), lr=0.5)
    F.cross_entropy(module(x[:n]), y[:n]).backward()
    optimizer.step()
    parameters = dict(module.named_parameters())
    update = {name: t - start[name] for name, t in _state(module).items() if statistics or name in parameters}
    messages = [
        ("client/0", ("server",), "sample_count", {"n": torch.tensor(n)}),
        ("server", ("client/0",), "model_parameters", start),
        ("client/0", ("server",), "model_update", update),
    ]
    view = view_of_messages(messages, lr=0.5, batch_size=n, local_steps=1, momentum=0.0)
    knowledge = Knowledge(architecture=MemoryArchitecture(make), auxiliary=(x[1000:1200], y[1000:1200]))
    return view, knowledge, x[:n], module


@pytest.mark.parametrize("n", [1, 3])
def test_an_update_shows_the_statistics_of_its_batch(n: int) -> None:
    view, knowledge, x, _ = _sent(_normed, n)
    module, start = network(knowledge), view.payloads[1]
    shown = read_statistics(module, start, view.payloads[2])
    assert shown.keys() == {"1", "4"}
    inputs = F.conv2d(x, start["0.weight"], start["0.bias"], 2, 2)
    variance, mean = torch.var_mean(inputs, (0, 2, 3))
    torch.testing.assert_close(shown["1"].mean[0], mean, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(shown["1"].variance[0], variance, rtol=1e-3, atol=1e-5)
    assert read_statistics(copy.deepcopy(module).eval(), start, view.payloads[2]) == {}
    without = {name: t for name, t in view.payloads[2].items() if "running" not in name}
    assert read_statistics(module, start, without) == {}


def test_statistics_of_a_batch_differ_from_none_but_its_own() -> None:
    view, knowledge, x, _ = _sent(_normed, 3)
    module, start = network(knowledge), view.payloads[1]
    before = _state(module)
    statistics = BatchStatistics(module, start, read_statistics(module, start, view.payloads[2]))
    others = torch.stack([x, x.flip(0), 1 - x]).requires_grad_()
    distances = statistics.repeated(3)(others)
    values = distances.tolist()
    assert max(values[:2]) < 1e-6 < 1e-2 < values[2]
    torch.testing.assert_close(distances[2], statistics(others[2:])[0])
    assert bool(torch.autograd.grad(distances.sum(), others)[0][2].any())
    own = BatchStatistics.of(module, start, others.detach(), ("1", "4"))
    torch.testing.assert_close(own(others), torch.zeros(3), rtol=0, atol=1e-6)
    assert all(torch.equal(t, before[name]) for name, t in _state(module).items())


@pytest.mark.parametrize("make", [_normed, _home_made])
def test_networks_that_mix_images_are_simulated_and_have_no_gradients_of_single_records(make: Any) -> None:
    knowledge = Knowledge(architecture=MemoryArchitecture(make))
    module = network(knowledge)
    assert isinstance(module, nn.Module)
    for layer in module.modules():
        assert layer.training == (not isinstance(layer, nn.Dropout))
    assert "mixes the records" in separable_network(knowledge)
    alone = separable_network(Knowledge(architecture=MemoryArchitecture(_plain)))
    assert not any(layer.training for layer in alone.modules())


@pytest.mark.parametrize("attack", [InvertingGradients(InvertingGradientsConfig()), DLG(DLGConfig())])
def test_a_step_on_one_record_that_no_pass_can_repeat_is_a_reason(attack: Any) -> None:
    for n, make in ((2, _needs_two), (1, _normed)):
        view, knowledge, _, _ = _sent(make, n)
        assert attack.applicable(view, knowledge, AttackTask(targets=("client/0",)))
    view, knowledge, _, _ = _sent(_needs_two, 2)
    view.payloads[0]["n"] = torch.tensor(1)
    verdict = attack.applicable(view, knowledge, AttackTask(targets=("client/0",)))
    assert not verdict
    assert "one record" in verdict.reason


@pytest.mark.thorough
@pytest.mark.parametrize("make", [_normed, _home_made])
def test_images_behind_a_step_in_training_are_found(make: Any) -> None:
    config = InvertingGradientsConfig(restarts=1, iterations=300, tune=False, tv=1e-4)
    scores = {}
    for statistics in (True, False):
        view, knowledge, x, _ = _sent(make, 2 if make is _home_made else 1, statistics)
        task = AttackTask(targets=("client/0",))
        cell = InvertingGradients(config)
        assert cell.applicable(view, knowledge, task)
        (guess,) = cell.run(view, knowledge, task, torch.Generator().manual_seed(0))
        images = guess.images if len(x) == 1 else guess.images[[0, 1]]
        scores[statistics] = max(float(psnr(images, x).mean()), float(psnr(images.flip(0), x).mean()))
    print(scores)
    assert scores[True] > 20
    if make is _normed:
        assert scores[True] > scores[False]
