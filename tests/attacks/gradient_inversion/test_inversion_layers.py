"""A layer's four passes: against derivatives of the layer itself, as PyTorch has them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import FunctionType

import pytest
import torch
import torch.nn.functional as F
from fdaudit.attacks.gradient_inversion.second_order.convolutions import Convolution, _FewPositions
from fdaudit.attacks.gradient_inversion.second_order.layers import (
    RELU,
    SIGMOID,
    TANH,
    Pass,
    WeightedPass,
    activated,
    linear,
    operated,
    reshaped,
)
from torch import Tensor, nn
from torch.autograd.functional import jvp, vjp
from torch.func import functional_call

LIMIT = "fdaudit.attacks.gradient_inversion.second_order.convolutions._PATCH_VALUES"
R = 3


def drawn(seed: int, *shapes: Sequence[int]) -> list[Tensor]:
    g = torch.Generator().manual_seed(seed)
    return [torch.randn(tuple(shape), generator=g, dtype=torch.float64) for shape in shapes]


def all_four(of: Pass, s: Tensor, t: Sequence[Tensor], r: Tensor) -> list[Tensor | None]:
    """Output, dL/d(inputs), R{output} and R{dL/d(inputs)}, one after the other."""
    out = of.forward()
    return [out, *of.backward(s), of.forward_along(t), *of.backward_along(r)]


def expected(
    f: Callable[..., Tensor], inputs: Sequence[Tensor], t: Sequence[Tensor], s: Tensor, r: Tensor
) -> list[Tensor]:
    """The same by autograd: the inputs move along t, and the loss's derivative s along r."""

    def backward(*a_and_s: Tensor) -> tuple[Tensor, ...]:
        *a, signal = a_and_s
        found = torch.autograd.grad(f(*a), a, signal, create_graph=True, allow_unused=True)
        return tuple(torch.zeros_like(i) if g is None else g for g, i in zip(found, a, strict=True))

    out, along = jvp(f, tuple(inputs), tuple(t))
    back, back_along = jvp(backward, (*inputs, s), (*t, r))
    return [out, *back, along, *back_along]


# -- without weights ----------------------------------------------------------------------------------------

WITHOUT_WEIGHTS: dict[str, tuple[Callable[[Tensor], Pass], Callable[[Tensor], Tensor]]] = {
    "relu": (lambda z: activated(RELU, z), torch.relu),
    "sigmoid": (lambda z: activated(SIGMOID, z), torch.sigmoid),
    "tanh": (lambda z: activated(TANH, z), torch.tanh),
    "flatten": (lambda z: reshaped(z, z.flatten(1)), lambda z: z.flatten(1)),
}
OPERATIONS: dict[str, Callable[..., Tensor]] = {
    "gelu": F.gelu,
    "pooled": lambda a: F.max_pool2d(a, 2),
    "averaged and squared": lambda a: F.avg_pool2d(a, 2).square(),
    "product": lambda a, b: a * b,
    "joined": lambda a, b: torch.cat([a.sin(), b], 1),
    "sum of one": lambda a, _: 2 * a,
    "flat almost everywhere": torch.sign,
    "flat in one": lambda a, b: a.sign() + b.exp(),
}


@pytest.mark.parametrize("name", WITHOUT_WEIGHTS)
def test_what_has_no_weights(name: str) -> None:
    passed, f = WITHOUT_WEIGHTS[name]
    z, t = drawn(0, (4, 3, 5, 2), (4, 3, 5, 2))
    s, r = drawn(1, f(z).shape, f(z).shape)
    torch.testing.assert_close(all_four(passed(z), s, [t], r), expected(f, [z], [t], s, r))


@pytest.mark.parametrize("name", OPERATIONS)
def test_any_other_operation_by_autograd(name: str) -> None:
    f = OPERATIONS[name]
    count = f.__code__.co_argcount if isinstance(f, FunctionType) else 1
    inputs, t = (drawn(seed, *[(4, 3, 6, 2)] * count) for seed in (0, 1))
    s, r = drawn(2, *[f(*inputs).shape] * 2)
    leaves = [a.clone().requires_grad_() for a in inputs]
    found = all_four(operated(leaves, f(*leaves)), s, t, r)
    theirs = expected(f, inputs, t, s, r)
    ours = [torch.zeros_like(e) if a is None else a for a, e in zip(found, theirs, strict=True)]
    torch.testing.assert_close(ours, theirs)


@pytest.mark.parametrize("name", [*WITHOUT_WEIGHTS, "gelu"])
def test_what_no_weights_precede_changes_with_the_signal_alone(name: str) -> None:
    (z,) = drawn(0, (4, 3, 5, 2))
    leaf = z.clone().requires_grad_()
    passed, f = WITHOUT_WEIGHTS.get(name, (lambda _: operated([leaf], F.gelu(leaf)), F.gelu))
    for seen in (False, True):
        of = passed(z)
        s, r = drawn(1, f(z).shape, f(z).shape)
        if seen:
            of.backward(s)
        assert of.forward_along([None]) is None
        (found,) = of.backward_along(r)
        torch.testing.assert_close(found, vjp(f, z, r)[1])
        assert of.backward_along(None)[0] is None


# -- with weights -------------------------------------------------------------------------------------------

LAYERS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "linear": (lambda: nn.Linear(6, 4), (6,)),
    "linear, no bias": (lambda: nn.Linear(6, 4, bias=False), (6,)),
    "linear, by position": (lambda: nn.Linear(6, 4), (5, 6)),
    "convolution": (lambda: nn.Conv2d(2, 3, (3, 2), (2, 1), (1, 2), (1, 2)), (2, 7, 6)),
    "convolution, no bias": (lambda: nn.Conv2d(2, 3, 3, bias=False), (2, 7, 6)),
    "convolution, strided": (lambda: nn.Conv2d(2, 3, (4, 3), (2, 3), (1, 2)), (2, 8, 6)),
    "convolution of colours": (lambda: nn.Conv2d(3, 8, 3, 2, 1), (3, 7, 6)),
    "few outputs": (lambda: nn.Conv2d(8, 24, 3, 2, 1), (8, 4, 3)),
    "few outputs, no bias": (lambda: nn.Conv2d(8, 24, 3, dilation=2, bias=False), (8, 6, 6)),
    "one output": (lambda: nn.Conv2d(8, 24, 3, padding=1), (8, 1, 1)),
}
WAYS = {name: [0, 1 << 30] if "convolution" in name else [0] for name in LAYERS}
CASES = [(name, limit, B) for name, limits in WAYS.items() for limit in limits for B in (1, 2)]


def test_convolutions_with_few_outputs_never_write_their_gradients_out() -> None:
    for name, (layer, shape) in LAYERS.items():
        if "convolution" not in name and "output" not in name:
            continue
        module = layer()
        assert isinstance(module, nn.Conv2d)
        of = Convolution(module, module.weight, module.bias)(torch.zeros(R, *shape), R)
        assert isinstance(of, _FewPositions) == ("output" in name), name


def made(name: str, B: int) -> tuple[nn.Module, Callable[[], WeightedPass], Tensor]:
    """A layer, what makes its pass of R batches of B, and these."""
    layer, shape = LAYERS[name][0]().double(), LAYERS[name][1]
    parameters = [nn.Parameter(p) for p in drawn(7, *[p.shape for p in layer.parameters()])]
    layer.weight = parameters[0]
    if layer.bias is not None:
        layer.bias = parameters[1]
    weight, bias = layer.weight.detach(), None if layer.bias is None else layer.bias.detach()
    (a,) = drawn(0, (R * B, *shape))
    if isinstance(layer, nn.Conv2d):
        return layer, lambda: Convolution(layer, weight, bias)(a, R), a
    return layer, lambda: linear(a, R, weight, bias), a


def one_by_one(layer: nn.Module, a: Tensor, s: Tensor) -> tuple[Tensor, Tensor]:
    """Each batch's gradients by autograd: weights (R, values), bias (R, outputs), zeros where there is none."""
    weights, biases = [], []
    for images, signals in zip(a.chunk(R), s.chunk(R), strict=True):
        found = torch.autograd.grad((layer(images) * signals).sum(), list(layer.parameters()))
        weights.append(found[0].flatten())
        biases.append(found[1] if len(found) > 1 else torch.zeros(layer.weight.shape[0]).double())
    return torch.stack(weights), torch.stack(biases)


@pytest.mark.parametrize(("name", "limit", "B"), CASES)
def test_each_batch_moves_along_a_direction_of_its_own(
    name: str, limit: int, B: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(LIMIT, limit)
    layer, passed, a = made(name, B)
    z = layer(a).detach()
    t, s, r = drawn(1, a.shape, z.shape, z.shape)
    directions = {k: drawn(3, (R, *p.shape))[0] for k, p in layer.named_parameters()}
    of = passed()
    torch.testing.assert_close(of.forward(), z)
    of.receive(s)
    of.move(directions["weight"].flatten(1), directions.get("bias"))
    found = all_four(of, s, [t], r)
    still = passed()
    still.receive(s)
    still.move(directions["weight"].flatten(1), directions.get("bias"))
    alone = [still.forward_along([None]), *still.backward_along(None)]
    values = [p.detach() for p in layer.parameters()]
    names = [name for name, _ in layer.named_parameters()]

    def f(images: Tensor, *weights: Tensor) -> Tensor:
        out: Tensor = functional_call(layer, dict(zip(names, weights, strict=True)), (images,))
        return out

    for k in range(R):
        rows, moves = slice(k * B, (k + 1) * B), [directions[n][k] for n in names]
        for ours, factor in ((found, 1), ([*found[:2], *alone], 0)):
            inputs, along = [a[rows], *values], [factor * t[rows], *moves]
            theirs = expected(f, inputs, along, s[rows], factor * r[rows])
            of_images = [theirs[0], theirs[1], *theirs[1 + len(inputs) : 3 + len(inputs)]]
            for mine, reference in zip(ours, of_images, strict=True):
                torch.testing.assert_close(mine[rows], reference)


@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize(("name", "limit", "B"), CASES)
def test_products_and_the_direction_that_follows_from_them(
    name: str, limit: int, B: int, shared: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(LIMIT, limit)
    layer, passed, a = made(name, B)
    (s, r) = drawn(1, *[layer(a).shape] * 2)
    (t,) = drawn(2, a.shape)
    G, G_bias = one_by_one(layer, a, s)
    T, T_bias, dot, square = drawn(3, G.shape, G_bias.shape, (R,), (R,))
    if shared:
        T, T_bias = T[:1].expand(R, -1), T_bias[:1].expand(R, -1)
    biased = layer.bias is not None
    of, explicit = passed(), passed()
    of.receive(s)
    explicit.receive(s)
    weights, biases = of.gradients()
    torch.testing.assert_close(weights, G)
    if biased:
        torch.testing.assert_close(biases, G_bias)
    products = of.products(T, T_bias if biased else None)
    both = [(G * T).sum(1), G.square().sum(1)]
    if biased:
        both = [both[0] + (G_bias * T_bias).sum(1), both[1] + G_bias.square().sum(1)]
    torch.testing.assert_close(list(products), both)
    of.move_by_products(dot, square)
    g, g_bias = (dot[:, None] * u + 2 * square[:, None] * v for u, v in ((T, G), (T_bias, G_bias)))
    explicit.move(g, g_bias if biased else None)
    for x in (of, explicit):
        x.forward()
    torch.testing.assert_close(of.forward_along([t]), explicit.forward_along([t]))
    torch.testing.assert_close(of.backward_along(r), explicit.backward_along(r))
