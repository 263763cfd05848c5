"""Gradient inversion needs a second derivative: a network without one is refused in one line that names the layer."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from fdaudit.models import architecture
from fdaudit.spec.schema import ModelSpec
from fdaudit.training.trials.double_backward import double_backward_problem

SHAPE, VALUES, CLASSES = (1, 6, 6), 36, 4


class _Once(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x.tanh()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, g: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        return g * (1 - x.tanh() ** 2)


class Once(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return _Once.apply(x)


class Cut(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.detach()


class Numpy(nn.Module):
    """Computes outside PyTorch."""

    def forward(self, x: Tensor) -> Tensor:
        return torch.from_numpy(x.detach().numpy().copy())


class Attention(nn.Module):
    """Attention by PyTorch's function, between rows."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.last = nn.Linear(6, 24), nn.Linear(8, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(x[:, 0]).chunk(3, -1)
        return self.last(F.scaled_dot_product_attention(q, k, v).mean(1))


class OfRows(nn.Module):
    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer, self.last = layer, nn.Linear(8, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.layer(x[:, 0])[0][:, -1])


def flat(*layers: nn.Module) -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(VALUES, VALUES), *layers, nn.Linear(VALUES, CLASSES))


@dataclass(frozen=True)
class Built:
    name: str
    make: Callable[[], nn.Module]
    source: str = ""

    @property
    def described(self) -> dict[str, object]:
        return {"name": self.name}

    def build(self, generator: torch.Generator) -> nn.Module:
        return self.make()

    def random_inputs(self, n: int, generator: torch.Generator) -> Tensor:
        return torch.rand(n, *SHAPE, generator=generator)


REFUSED = {
    "Once": lambda: flat(Once()),
    "Cut": lambda: nn.Sequential(Cut(), flat()),
    "Numpy": lambda: nn.Sequential(Numpy(), flat()),
}


@pytest.mark.parametrize("kind", REFUSED)
def test_a_layer_that_is_differentiated_once_is_named(kind: str) -> None:
    found = double_backward_problem(Built(f"refused {kind}", REFUSED[kind]))
    assert "in its images" in found
    assert f", {kind}: " in found
    assert "\n" not in found


INVERTED = {
    "attention": Attention,
    "LSTM": lambda: OfRows(nn.LSTM(6, 8, batch_first=True)),
    "GRU": lambda: OfRows(nn.GRU(6, 8, batch_first=True)),
    "encoder": lambda: nn.Sequential(
        nn.Flatten(1, 2),
        nn.TransformerEncoderLayer(6, 2, 8, dropout=0.0, batch_first=True),
        nn.Flatten(),
        nn.Linear(VALUES, CLASSES),
    ),
    "hardsigmoid": lambda: flat(nn.Hardsigmoid()),
    "hardsigmoid in place": lambda: flat(nn.Hardsigmoid(inplace=True)),
    "BatchNorm": lambda: flat(nn.BatchNorm1d(VALUES), nn.ReLU()),
    "linear": lambda: nn.Sequential(nn.Flatten(), nn.Linear(VALUES, CLASSES)),
}


@pytest.mark.parametrize("how", INVERTED)
def test_networks_with_second_derivatives_are_inverted(how: str) -> None:
    assert double_backward_problem(Built(f"inverted {how}", INVERTED[how])) == ""


@pytest.mark.parametrize("name", ["mlp-1024-1024", "cnn-strided", "lenet-dlg", "resnet8", "cnn-5-5"])
def test_the_zoo_has_second_derivatives(name: str) -> None:
    assert double_backward_problem(architecture(ModelSpec(name=name), (3, 32, 32), 4)) == ""
