"""Gradients of many batches: every strategy against plain autograd on the module itself."""

from __future__ import annotations

import copy
import gc
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from fdaudit.attacks.gradient_inversion import engine
from fdaudit.attacks.gradient_inversion.engine import (
    best_of,
    cosine_distance,
    match_adam,
    match_lbfgs,
    squared_l2,
    total_variation,
)
from fdaudit.attacks.gradient_inversion.gradients import (
    GradientMap,
    Strategy,
    choose_strategy,
    flatten,
    unfolded_values,
)
from fdaudit.attacks.gradient_inversion.second_order.tracing import Trace
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from fdaudit.errors import UsageError

from .gradient_inversion_cases import (
    dlg_lenet,
    init_uniform,
    mlp,
    one_thread,  # noqa: F401
    pooling_cnn,
    strided_cnn,
    tensors,
    true_gradient,
)

LIMIT = "fdaudit.attacks.gradient_inversion.second_order.convolutions._PATCH_VALUES"
STRATEGIES: tuple[Strategy, ...] = ("loop", "vmap", "folded")
NETWORKS = {"lenet": dlg_lenet, "strided": strided_cnn, "pooling": pooling_cnn, "mlp": mlp}


def _case(network: str, R: int, B: int, c: int = 1) -> tuple[nn.Module, Tensor, Tensor]:
    g = torch.Generator().manual_seed(0)
    module = NETWORKS[network](16, g, c).double()
    x = torch.rand(R, B, c, 16, 16, generator=g, dtype=torch.float64)
    return module, x, torch.randint(0, 10, (R, B), generator=g)


@pytest.mark.parametrize("network", NETWORKS)
@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("B", [1, 3])
def test_gradients_and_their_derivatives_are_those_of_plain_autograd(
    network: str, strategy: Strategy, B: int
) -> None:
    module, x, y = _case(network, 3, B)
    simulate = GradientMap(module, tensors(module), strategy)
    target = flatten(true_gradient(module, x[0].flip(0), y[0]), simulate.names).expand(3, -1)
    v = x.clone().requires_grad_()
    found = simulate(v, y)
    dot, square = simulate.products(v, y, target)
    (derivative,) = torch.autograd.grad(squared_l2(found, target).sum() + (dot / square).sum(), v)
    for r in range(3):
        w = x[r].clone().requires_grad_()
        g = torch.autograd.grad(
            F.cross_entropy(module(w), y[r]), list(module.parameters()), create_graph=True
        )
        flat = torch.cat([t.flatten() for t in g])
        torch.testing.assert_close(found[r].detach(), flat.detach())
        total = (flat - target[r]).square().sum() + flat @ target[r] / flat.square().sum()
        torch.testing.assert_close(derivative[r], torch.autograd.grad(total, w)[0], rtol=1e-7, atol=1e-10)


@given(
    kernel=st.tuples(st.integers(1, 4), st.integers(1, 4)),
    stride=st.tuples(st.integers(1, 3), st.integers(1, 3)),
    padding=st.tuples(st.integers(0, 2), st.integers(0, 2)),
    dilation=st.tuples(st.integers(1, 2), st.integers(1, 2)),
    outputs=st.sampled_from([3, 8]),
    large=st.booleans(),
    bias=st.booleans(),
    soft=st.booleans(),
    seed=st.integers(0, 2**31),
)
@settings(max_examples=50, deadline=None)
def test_folded_convolutions_of_any_shape(
    kernel: tuple[int, int],
    stride: tuple[int, int],
    padding: tuple[int, int],
    dilation: tuple[int, int],
    outputs: int,
    large: bool,
    bias: bool,
    soft: bool,
    seed: int,
) -> None:
    g = torch.Generator().manual_seed(seed)
    conv = nn.Conv2d(2, outputs, kernel, stride, padding, dilation, bias=bias)
    x = torch.rand(2, 2, 2, 9, 8, generator=g, dtype=torch.float64)
    width = conv(torch.zeros(1, 2, 9, 8)).numel()
    module = nn.Sequential(conv, nn.Tanh(), nn.Flatten(), nn.Linear(width, 4, bias=bias)).double()
    for p in module.parameters():
        nn.init.normal_(p, generator=g)
    y = (
        torch.rand(2, 2, 4, generator=g, dtype=torch.float64).softmax(2)
        if soft
        else torch.tensor([[0, 3], [1, 1]])
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(LIMIT, 0 if large else 1 << 30)
        folded, loop = (GradientMap(module, tensors(module), s)(x, y) for s in ("folded", "loop"))
    torch.testing.assert_close(folded.detach(), loop.detach())


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("channels", [1, 3])
def test_convolutions_too_large_to_unfold_give_the_same(
    monkeypatch: pytest.MonkeyPatch, channels: int, dtype: torch.dtype
) -> None:
    """The gradients, their products with a target, and the derivatives of these in the images."""
    module, x, y = _case("strided", 3, 2, channels)
    module, x = module.to(dtype), x.to(dtype).requires_grad_()
    found = []
    for limit in (1 << 30, 0):
        monkeypatch.setattr(LIMIT, limit)
        simulate = GradientMap(module, tensors(module), "folded")
        v = simulate(x, y)
        dot, square = simulate.products(x, y, v.detach().flip(0))
        derived = (torch.autograd.grad(t.cos().sum(), x, retain_graph=True)[0] for t in (v, dot, square))
        found.append((v, dot, square, *derived))
    for small, large in zip(*found, strict=True):
        torch.testing.assert_close(small, large)


def test_the_rule_depends_on_shapes_and_layers_alone() -> None:
    g = torch.Generator().manual_seed(0)
    small = dlg_lenet(16, g)
    grouped = nn.Sequential(nn.Conv2d(2, 2, 3, groups=2), nn.Flatten(), nn.Linear(392, 10))
    assert unfolded_values(small, (1, 16, 16)) == 25 * 64 + 300 * 16 + 300 * 16 + 192
    for batches in (1, 2, 8):
        assert choose_strategy(small, batches, 1, (1, 16, 16)) == "folded"
        assert choose_strategy(small, batches, 350, (1, 16, 16)) == "folded"
        assert choose_strategy(small, batches, 360, (1, 16, 16)) == "loop"
    assert choose_strategy(grouped, 4, 1, (2, 16, 16)) == "vmap"
    assert choose_strategy(grouped, 3, 1, (2, 16, 16)) == "loop"


def test_layers_that_cannot_be_folded_fall_back_to_the_right_gradient() -> None:
    g = torch.Generator().manual_seed(0)
    inplace = nn.Sequential(nn.Flatten(), nn.Linear(16, 8), nn.ELU(inplace=True), nn.Linear(8, 10))
    grouped = nn.Sequential(nn.Conv2d(2, 4, 3, groups=2), nn.Flatten(), nn.Linear(4 * 2, 10))
    for module, shape in ((inplace, (1, 4, 4)), (grouped, (2, 4, 3))):
        init_uniform(module, g)
        x, y = torch.rand(4, 2, *shape, generator=g), torch.randint(0, 10, (4, 2), generator=g)
        assert choose_strategy(module, 4, 2, shape) == "vmap"
        found = GradientMap(module, tensors(module))(x, y)
        for r in range(4):
            expected = flatten(true_gradient(module, x[r], y[r]), list(tensors(module)))
            torch.testing.assert_close(found[r], expected)


def test_tied_weights_have_the_gradient_of_plain_autograd() -> None:
    shared = nn.Linear(4, 4)
    tied, halves = nn.Sequential(nn.Flatten(), shared, nn.ReLU(), shared), nn.Linear(4, 4)
    halves.weight = shared.weight
    own_bias = nn.Sequential(nn.Flatten(), shared, nn.Tanh(), halves)
    x, y = torch.rand(4, 2, 1, 2, 2), torch.randint(0, 4, (4, 2))
    for module in (tied, own_bias):
        named = dict(module.named_parameters())
        for count in (1, 4):  # one after another, and vectorised
            found = GradientMap(module, tensors(module))(x[:count], y[:count])
            for r in range(count):
                expected = flatten(true_gradient(module, x[r], y[r]), list(named))
                torch.testing.assert_close(found[r], expected)


def test_frozen_parameters_have_no_place_in_a_gradient() -> None:
    module = nn.Sequential(nn.Flatten(), nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 3))
    module[1].weight.requires_grad_(False)
    x, y = torch.rand(2, 2, 1, 2, 2), torch.randint(0, 3, (2, 2))
    simulate = GradientMap(module, tensors(module))
    assert simulate.names == ("1.bias", "3.weight", "3.bias")
    loss = F.cross_entropy(module(x[0]), y[0])
    expected = torch.autograd.grad(loss, [module[1].bias, module[3].weight, module[3].bias])
    torch.testing.assert_close(simulate(x, y)[0], torch.cat([g.flatten() for g in expected]))


def test_refuses_parameters_of_another_network() -> None:
    module = nn.Linear(4, 2)
    with pytest.raises(UsageError, match=r"parameters\.bias"):
        GradientMap(module, {"weight": module.weight})


class _BlockWithNorms(nn.Module):
    """A residual block as torchvision writes it: activations and sums in place, a norm in each place."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.second = nn.Conv2d(1, 6, 3, 2, 1, bias=False), nn.Conv2d(6, 6, 3, padding=1)
        self.batch, self.group, self.bare = (
            nn.BatchNorm2d(6),
            nn.GroupNorm(3, 6),
            nn.BatchNorm2d(6, affine=False),
        )
        self.layer, self.rows = nn.LayerNorm([6, 4, 4], bias=False), nn.BatchNorm1d(9)
        self.fc, self.last, self.relu = nn.Linear(96, 9), nn.Linear(9, 5), nn.ReLU(inplace=True)

    def forward(self, x: Tensor) -> Tensor:
        x = self.relu(self.batch(self.conv(x)))
        out = self.bare(self.group(self.second(x)))
        out += x
        out = self.relu(self.fc(self.layer(out).flatten(1)))
        logits: Tensor = self.last(self.rows(out))
        return logits


class _CentresBatches(nn.Module):
    """A home-made layer that mixes the images of a batch."""

    def forward(self, x: Tensor) -> Tensor:
        centred: Tensor = x - x.mean(0, keepdim=True)
        return centred


def _mixing() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 9), _CentresBatches(), nn.Tanh(), nn.Linear(9, 5))


@pytest.mark.parametrize("make", [_BlockWithNorms, _mixing])
@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("R", [2, 5])
def test_a_batch_is_normalised_by_its_own_statistics(
    make: Callable[[], nn.Module], training: bool, R: int
) -> None:
    g = torch.Generator().manual_seed(0)
    module = make().double().train(training)
    for tensor in (*module.parameters(), *(b for n, b in module.named_buffers() if n.endswith("_var"))):
        nn.init.uniform_(tensor, 0.2, 1.2, generator=g)
    before = {name: t.clone() for name, t in module.state_dict().items()}
    x = torch.rand(R, 3, 1, 8, 8, generator=g, dtype=torch.float64).requires_grad_()
    y = torch.randint(0, 5, (R, 3), generator=g)
    simulate = GradientMap(module, dict(module.state_dict()))
    found = simulate(x, y)
    target = found.detach().flip(0).sin()
    dot, square = simulate.products(x, y, target)
    (derivative,) = torch.autograd.grad((dot / square).sum() + found.cos().sum(), x)
    assert all(torch.equal(t, before[name]) for name, t in module.state_dict().items())
    for r in range(R):
        alone = x[r].detach().requires_grad_()
        own = copy.deepcopy(module)
        loss = F.cross_entropy(own(alone), y[r])
        gradient = torch.autograd.grad(loss, list(own.parameters()), create_graph=True)
        flat = torch.cat([t.flatten() for t in gradient])
        torch.testing.assert_close(found[r].detach(), flat.detach(), rtol=1e-8, atol=1e-10)
        total = flat @ target[r] / flat.square().sum() + flat.cos().sum()
        expected = torch.autograd.grad(total, alone)[0]
        torch.testing.assert_close(derivative[r], expected, rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("network", ["strided", "mlp"])
def test_a_map_at_another_model_gives_its_gradients_without_another_trace(
    network: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    module, x, y = _case(network, 2, 3)
    traces, tests = list[nn.Module](), list[int]()
    trace, records = Trace.of, GradientMap._records
    monkeypatch.setattr(Trace, "of", lambda m: traces.append(m) or trace(m))
    monkeypatch.setattr(GradientMap, "_records", lambda self, x: tests.append(1) or records(self, x))
    first = GradientMap(module, tensors(module))
    first(x, y)
    for scale in (0.5, 2.0):
        model = {name: scale * tensor for name, tensor in tensors(module).items()}
        expected = GradientMap(module, model, "loop")(x, y)
        torch.testing.assert_close(first.at(model)(x, y), expected)
    torch.testing.assert_close(first(x, y), GradientMap(module, tensors(module), "loop")(x, y))
    assert len(traces) == len(tests) == 1


def test_the_module_is_left_as_it_was() -> None:
    g = torch.Generator().manual_seed(0)
    module = dlg_lenet(16, g)
    before = {k: v.clone() for k, v in module.state_dict().items()}
    other = {k: v + 1 for k, v in tensors(module).items()}
    for strategy in STRATEGIES:
        simulate = GradientMap(module, other, strategy)
        x = torch.rand(2, 1, 1, 16, 16, generator=g).requires_grad_()
        torch.autograd.grad(simulate(x, torch.tensor([[1], [2]])).sum(), x)
    assert all(torch.equal(before[k], v) for k, v in module.state_dict().items())
    assert all(p.grad is None for p in module.parameters())


# -- the engine ---------------------------------------------------------------------------------------------


@pytest.mark.thorough
@pytest.mark.parametrize("network", NETWORKS)
def test_a_pass_leaves_no_memory_to_the_garbage_collector(network: str) -> None:
    # It runs once in dozens of passes: whatever is in a cycle is held that long.
    module, x, y = _case(network, 3, 1)
    simulate = GradientMap(module, tensors(module), "folded")
    target = simulate(x, y)[:1].detach().expand(3, -1)

    def passes() -> None:
        v = x.clone().requires_grad_()
        dot, square = simulate.products(v, y, target)
        torch.autograd.grad((dot + square).sum(), v)
        torch.autograd.grad(simulate(v, y).sum(), v)

    passes()
    gc.collect()
    gc.disable()
    try:
        passes()
        assert gc.collect() == 0
    finally:
        gc.enable()


@pytest.mark.thorough
def test_problems_advance_together_as_they_would_alone() -> None:
    module, x, y = _case("lenet", 6, 2)
    g = torch.Generator().manual_seed(9)
    simulate = GradientMap(module, tensors(module))
    target = torch.stack(
        [flatten(true_gradient(module, a, b), simulate.names) for a, b in zip(x, y, strict=True)]
    )
    start = torch.rand(x.shape, generator=g, dtype=torch.float64)
    adam = match_adam(simulate, target, start, y, iterations=30, lr=0.1, tv=1e-3)
    bfgs = match_lbfgs(simulate, target, start, y, evaluations=40)
    for r in range(6):
        one = slice(r, r + 1)
        alone = match_adam(simulate, target[one], start[one], y[one], iterations=30, lr=0.1, tv=1e-3)
        torch.testing.assert_close(adam.images[one], alone.images, rtol=0, atol=1e-9)
        alone = match_lbfgs(simulate, target[one], start[one], y[one], evaluations=40)
        torch.testing.assert_close(bfgs.images[one], alone.images, rtol=1e-5, atol=1e-6)
        assert bfgs.evaluations[r] == alone.evaluations[0]


@pytest.mark.parametrize(("rows", "sizes"), [(1, [1]), (4, [4]), (5, [2, 3]), (6, [3, 3]), (9, [3, 3, 3])])
def test_problems_that_are_too_many_advance_in_even_parts(
    rows: int, sizes: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    module, x, y = _case("lenet", 9, 2)
    x, y = x[:rows], y[:rows]
    seen, simulate = list[int](), GradientMap(module, tensors(module))
    target, real = simulate(x, y).detach(), simulate.products

    def products(*args: Tensor) -> tuple[Tensor, Tensor]:
        seen.append(len(args[0]))
        return real(*args)

    monkeypatch.setattr(simulate, "products", products)
    start = torch.rand(x.shape, generator=torch.Generator().manual_seed(9), dtype=x.dtype)
    whole = match_adam(simulate, target, start, y, iterations=2, lr=0.1, tv=0.0)
    assert set(seen) == {rows}
    seen.clear()
    monkeypatch.setattr(engine, "_CHUNK", 4 * x[0].numel() + 1)
    parts = match_adam(simulate, target, start, y, iterations=2, lr=0.1, tv=0.0)
    assert seen[::2] == sizes
    torch.testing.assert_close(parts.images, whole.images, rtol=0, atol=1e-9)
    torch.testing.assert_close(parts.objective, whole.objective)


def test_signed_adam_is_torchs_adam_on_the_sign() -> None:
    module, x, y = _case("mlp", 1, 1)
    simulate = GradientMap(module, tensors(module))
    target = flatten(true_gradient(module, x[0], y[0]), simulate.names)[None]
    start = torch.full_like(x, 0.5)
    found = match_adam(simulate, target, start, y, iterations=8, lr=0.01, tv=0.0)
    v = start.clone().requires_grad_()
    adam = torch.optim.Adam([v], lr=0.01)
    schedule = torch.optim.lr_scheduler.MultiStepLR(adam, [3, 5, 7], 0.1)
    values, points = [], []
    for _ in range(8):
        loss = cosine_distance(*simulate.products(v, y, target), target.square().sum(1)).sum()
        values.append(loss.item())
        points.append(v.detach().clone())
        adam.zero_grad()
        loss.backward()
        v.grad.sign_()
        adam.step()
        v.data.clamp_(0, 1)
        schedule.step()
    best = int(torch.tensor(values).argmin())
    torch.testing.assert_close(found.objective.item(), values[best])
    torch.testing.assert_close(found.images, points[best])


def test_evaluations_count_images() -> None:
    module, x, y = _case("lenet", 2, 3)
    simulate = GradientMap(module, tensors(module))
    target = torch.zeros(2, 1).expand(2, sum(p.numel() for p in module.parameters())).double() + 1
    adam = match_adam(simulate, target, x, y, iterations=5, lr=0.1, tv=0.0)
    assert adam.evaluations.tolist() == [15, 15]
    bfgs = match_lbfgs(simulate, target, x, y, evaluations=4)
    assert bfgs.evaluations.tolist() == [12, 12]
    best = best_of(adam, 2)
    assert best.evaluations.tolist() == [30]
    assert best.objective[0] == adam.objective.min()


def test_distances_and_total_variation_at_known_points() -> None:
    module, x, y = _case("mlp", 2, 1)
    simulate = GradientMap(module, tensors(module))
    own = simulate(x, y).detach()
    for factor, distance in ((3.0, 0.0), (-1.0, 2.0)):
        target = factor * own
        found = cosine_distance(*simulate.products(x, y, target), target.square().sum(1)).detach()
        torch.testing.assert_close(found, torch.full((2,), distance).double())
    steps = torch.tensor([[0.0, 1.0], [0.0, 1.0]]).view(1, 1, 1, 2, 2)
    assert total_variation(steps).item() == 1.0
    assert total_variation(torch.ones(1, 2, 3, 4, 4)).item() == 0.0


@pytest.mark.parametrize("size", [(5, 4), (1, 4), (5, 1), (1, 1)])
def test_total_variation_has_the_derivative_of_its_definition(size: tuple[int, int]) -> None:
    g = torch.Generator().manual_seed(0)
    x = torch.rand(3, 2, 1, *size, generator=g, dtype=torch.float64)
    x[0] = 0.5  # no direction is up
    weight = torch.tensor([1.0, -2.0, 3.0]).double()

    def plain(v: Tensor) -> Tensor:
        return sum(v.diff(dim=d).abs().flatten(1).sum(1) / max(1, v[0].diff(dim=d).numel()) for d in (-2, -1))

    found = []
    for f in (total_variation, plain):
        v = x.clone().requires_grad_()
        value = f(v)
        found.append((value, *torch.autograd.grad(value @ weight, v)))
    torch.testing.assert_close(*found)
