"""Networks with a forward pass of their own: recorded operation by operation, or left to plain autograd."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from fdaudit.attacks.gradient_inversion.gradients import GradientMap, choose_strategy
from torch import Tensor, nn

from fdaudit.errors import UsageError

from .gradient_inversion_cases import init_uniform, one_thread, tensors  # noqa: F401


class _Functional(nn.Module):
    """As most write them: functions for what has no weights, a size that is asked for."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.fc, self.last = nn.Conv2d(1, 4, 3), nn.Linear(4 * 9, 7), nn.Linear(7, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = F.max_pool2d(F.relu(self.conv(x)), 2)
        x = F.gelu(self.fc(x.view(x.size(0), -1)))
        out: Tensor = self.last(x)
        return out


class _Residual(nn.Module):
    """Branches that meet: a sum, a product with the input, channels side by side."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Conv2d(1, 3, 3, padding=1), nn.Conv2d(3, 3, 3, padding=1)
        self.fc = nn.Linear(7 * 64, 5)

    def forward(self, x: Tensor) -> Tensor:
        first = torch.tanh(self.a(x))
        second = torch.sigmoid(self.b(first)) + first * x
        out: Tensor = self.fc(torch.cat([first, second, x], 1).flatten(1))
        return out


class _Normalising(nn.Module):
    """Buffers, a constant, what precedes every weight, and a layer by position."""

    mean: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", torch.tensor(0.4))
        self.scale = torch.tensor(2.0)
        self.rows, self.fc = nn.Linear(8, 6, bias=False), nn.Linear(8 * 6, 5)
        self.drop = nn.Dropout(0.0)

    def forward(self, x: Tensor) -> Tensor:
        x = ((x - self.mean) * self.scale).square() + torch.ones(1, device=x.device)
        out: Tensor = self.fc(self.drop(F.softplus(self.rows(x.squeeze(1)))).flatten(1))
        return out


class _Unused(_Functional):
    """A call whose result nothing depends on is no second call."""

    def forward(self, x: Tensor) -> Tensor:
        _ = self.conv(x).sum()
        return super().forward(x)


@pytest.mark.parametrize("network", [_Functional, _Residual, _Normalising, _Unused])
@pytest.mark.parametrize("B", [1, 2])
@pytest.mark.parametrize("soft", [False, True])
def test_recorded_networks_have_the_gradients_of_plain_autograd(
    network: type[nn.Module], B: int, soft: bool
) -> None:
    g = torch.Generator().manual_seed(0)
    module = init_some(network(), g).double()
    x = torch.rand(3, B, 1, 8, 8, generator=g, dtype=torch.float64).requires_grad_()
    y = torch.randint(0, 5, (3, B), generator=g)
    if soft:
        y = torch.rand(3, B, 5, generator=g, dtype=torch.float64).requires_grad_()  # need not sum to one
    at = [x, y] if soft else [x]
    found = []
    for strategy in ("folded", "loop"):
        simulate = GradientMap(module, tensors(module), strategy)
        v = simulate(x, y)
        target = v.detach().flip(0).sin()
        dot, square = simulate.products(x, y, target)
        derived = [torch.autograd.grad(t.cos().sum(), at, retain_graph=True) for t in (v, dot, square)]
        again = torch.autograd.grad((dot / square).sum(), at)
        found.append([v, dot, square, *(t for d in (*derived, again) for t in d)])
    torch.testing.assert_close(*found)


def init_some(module: nn.Module, g: torch.Generator) -> nn.Module:
    for p in module.parameters():
        nn.init.normal_(p, std=0.3, generator=g)
    return module


def test_buffers_are_those_that_were_given() -> None:
    g = torch.Generator().manual_seed(0)
    module = init_some(_Normalising(), g)
    x, y = torch.rand(2, 1, 1, 8, 8, generator=g), torch.zeros(2, 1, dtype=torch.long)
    given = {**tensors(module), "mean": torch.tensor(0.7)}
    found = GradientMap(module, given, "folded")(x, y)
    torch.testing.assert_close(found, GradientMap(module, given, "loop")(x, y))
    assert not torch.allclose(found, GradientMap(module, tensors(module), "folded")(x, y))


class _CallsTwice(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(16, 16)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.layer(self.layer(x.flatten(1)))
        return out


class _Chooses(_CallsTwice):
    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.layer(x.flatten(1)) if len(x) < 100 else x
        return out


class _Splits(_CallsTwice):
    def forward(self, x: Tensor) -> Tensor:
        a, b = self.layer(x.flatten(1)).chunk(2, 1)
        return a * b


class _OverwritesByName(_CallsTwice):
    def forward(self, x: Tensor) -> Tensor:
        return F.elu(self.layer(x.flatten(1)), 1.0, True)


class _UsesWeights(_CallsTwice):
    def forward(self, x: Tensor) -> Tensor:
        return F.linear(self.layer(x.flatten(1)), self.layer.weight)


class _LeavesOut(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.used, self.spare = nn.Linear(16, 5), nn.Linear(16, 5)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.used(x.flatten(1))
        return out


class _Overwrites(_LeavesOut):
    def forward(self, x: Tensor) -> Tensor:
        return self.used(x.flatten(1)).add(self.spare(x.flatten(1)).relu_())


class _Detaches(_LeavesOut):
    def forward(self, x: Tensor) -> Tensor:
        return self.used(x.flatten(1)) + self.spare(x.flatten(1)).detach()


REFUSED: dict[type[nn.Module], str] = {
    _CallsTwice: "called twice",
    _Chooses: "cannot be traced",
    _Splits: "several tensors",
    _Overwrites: "in place",
    _OverwritesByName: "in place",
    _UsesWeights: "outside its layer",
    _LeavesOut: "left out",
    _Detaches: "does not pass the images on",
}


@pytest.mark.parametrize("network", REFUSED)
@pytest.mark.parametrize("R", [1, 2, 4])
def test_unless_asked_for_what_cannot_be_recorded_is_not_folded(network: type[nn.Module], R: int) -> None:
    g = torch.Generator().manual_seed(0)
    module = network()
    init_uniform(module, g)
    x, y = torch.rand(R, 2, 1, 4, 4, generator=g), torch.randint(0, 5, (R, 2), generator=g)
    assert choose_strategy(module, R, 2, (1, 4, 4)) == "folded"  # by its layers alone
    with pytest.raises(UsageError, match=REFUSED[network]):
        GradientMap(module, tensors(module), "folded")(x, y)
    torch.testing.assert_close(GradientMap(module, tensors(module))(x, y), one_by_one(module, x, y))


def one_by_one(module: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    """The gradients of plain autograd."""
    found = []
    for images, labels in zip(x, y, strict=True):
        loss = F.cross_entropy(module(images), labels)
        gradients = torch.autograd.grad(loss, list(module.parameters()), allow_unused=True)
        found.append(
            torch.cat(
                [
                    torch.zeros(p.numel()) if g is None else g.flatten()
                    for g, p in zip(gradients, module.parameters(), strict=True)
                ]
            )
        )
    return torch.stack(found)


class _Aliases(_CallsTwice):
    def forward(self, x: Tensor) -> Tensor:
        x = self.layer(x.flatten(1))
        same = x
        x *= 3  # which a trace takes for a new tensor
        return x + same


@pytest.mark.parametrize("R", [1, 4])
def test_what_a_trace_gets_wrong_is_found_out(R: int) -> None:
    g = torch.Generator().manual_seed(0)
    module = init_some(_Aliases(), g)
    x, y = torch.rand(R, 2, 1, 4, 4, generator=g), torch.randint(0, 5, (R, 2), generator=g)
    expected = one_by_one(module, x, y)
    assert not torch.allclose(GradientMap(module, tensors(module), "folded")(x, y), expected, rtol=0.1)
    torch.testing.assert_close(GradientMap(module, tensors(module))(x, y), expected)
