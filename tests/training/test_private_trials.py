"""A network under DP-SGD is trained rightly or refused in one line that names the layer, whatever its layers are."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fdaudit.training.private_step import per_sample_gradients, unfit

SHAPE, VALUES, CLASSES = (1, 6, 6), 36, 4


class Around(nn.Module):
    """A first and a last linear layer with a function between them."""

    def __init__(self, between: Callable[[Around, Tensor], Tensor]) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(VALUES, VALUES), nn.Linear(VALUES, CLASSES)
        self._between = between

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self._between(self, torch.tanh(self.first(x.flatten(1)))))


class Free(nn.Module):
    """Holds a parameter in no layer."""

    def __init__(self) -> None:
        super().__init__()
        self.free, self.last = nn.Parameter(torch.eye(VALUES)), nn.Linear(VALUES, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(torch.tanh(x.flatten(1) @ self.free))


class OfRows(nn.Module):
    """Treats the rows of an image as a sequence."""

    def __init__(self, layer: nn.Module, width: int, answer: Callable[[nn.Module, Tensor], Tensor]) -> None:
        super().__init__()
        self.up, self.layer, self.last = nn.Linear(6, 8), layer, nn.Linear(width, CLASSES)
        self._answer = answer

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self._answer(self.layer, self.up(x[:, 0])).mean(1))


class Centred(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x - x.mean(0, keepdim=True)


def flat(*layers: nn.Module) -> nn.Module:
    return nn.Sequential(nn.Flatten(), *layers, nn.Linear(VALUES, CLASSES))


def attended(_: nn.Module, x: Tensor) -> Tensor:
    return F.scaled_dot_product_attention(x, x, x)


PARTIAL = {
    "a tied weight": lambda self, h: F.linear(h, self.first.weight),
    "its transpose": lambda self, h: h @ self.first.weight,
    "a penalty of the weight": lambda self, h: h * self.first.weight.mean(),
    "a bias that is added twice": lambda self, h: h + self.first.bias,
}


@pytest.mark.parametrize("how", PARTIAL)
def test_a_weight_that_a_function_uses_as_well_is_refused(how: str) -> None:
    found = unfit(Around(PARTIAL[how]), SHAPE)
    assert found is not None
    assert found.startswith("its first.")
    assert "its gradient only" in found


MIXING = {
    "BatchNorm1d": lambda: flat(nn.BatchNorm1d(VALUES)),
    "BatchNorm2d": lambda: nn.Sequential(nn.BatchNorm2d(1).requires_grad_(False), flat()),
    "Centred": lambda: flat(nn.ReLU(), Centred()),
}


@pytest.mark.parametrize("kind", MIXING)
def test_a_layer_that_mixes_records_is_found_by_trial(kind: str) -> None:
    found = unfit(MIXING[kind](), SHAPE)
    assert found is not None
    assert f"{kind}, which mixes" in found


UNKNOWN = {
    "LSTM": lambda: OfRows(nn.LSTM(8, 5, batch_first=True), 5, lambda layer, x: layer(x)[0]),
    "GRU": lambda: OfRows(nn.GRU(8, 5, batch_first=True), 5, lambda layer, x: layer(x)[0]),
    "MultiheadAttention": lambda: OfRows(
        nn.MultiheadAttention(8, 2, batch_first=True), 8, lambda layer, x: layer(x, x, x)[0]
    ),
}


@pytest.mark.parametrize("kind", UNKNOWN)
def test_a_layer_without_gradients_of_single_records_is_named(kind: str) -> None:
    found = unfit(UNKNOWN[kind](), SHAPE)
    assert found is not None
    assert f"its layer layer, {kind}," in found
    assert "single records" in found
    assert "\n" not in found


TRAINED = {
    "attention by a function": lambda: OfRows(nn.Identity(), 8, attended),
    "a layer that is called twice": lambda: Around(lambda self, h: torch.tanh(self.first(h))),
    "a free parameter": Free,
    "a norm of single records": lambda: flat(nn.LayerNorm(VALUES)),
}


@pytest.mark.parametrize("how", TRAINED)
def test_gradients_of_single_records_are_those_of_batches_of_one(how: str) -> None:
    assert unfit(TRAINED[how](), SHAPE) is None
    module = TRAINED[how]().train()
    x, y = torch.rand(3, *SHAPE, generator=torch.Generator().manual_seed(1)), torch.tensor([0, 1, 2])
    with per_sample_gradients(module):
        F.cross_entropy(module(x.clone().requires_grad_()), y, reduction="sum").backward()
        single = {n: p.grad_sample for n, p in module.named_parameters() if p.grad_sample is not None}
    names = list(single)
    for i in range(len(x)):
        loss = F.cross_entropy(module(x[i : i + 1]), y[i : i + 1])
        alone = torch.autograd.grad(loss, [module.get_parameter(name) for name in names])
        for name, gradient in zip(names, alone, strict=True):
            torch.testing.assert_close(single[name][i], gradient, rtol=1e-4, atol=1e-6)
