"""Adam in one operation: PyTorch's own numbers, however gradients lie in memory, and gone on with where it stopped."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch
from torch import Tensor

from fdaudit.training.optimizers import adam, lbfgs, moments_of, restore_moments, sgd

SHAPES = ((4, 3, 5, 5), (7,), (2, 3))


def steps(optimizer: torch.optim.Optimizer, parameters: list[Tensor], gradients: list[list[Tensor]]) -> None:
    for row in gradients:
        for parameter, gradient in zip(parameters, row, strict=True):
            parameter.grad = gradient.clone()
        optimizer.step()


def drawn(count: int) -> list[list[Tensor]]:
    generator = torch.Generator().manual_seed(1)
    return [[torch.randn(shape, generator=generator) for shape in SHAPES] for _ in range(count)]


@pytest.mark.parametrize("decoupled", [False, True])
@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
def test_it_steps_as_pytorch_s_own_whatever_the_layout(decoupled: bool, layout: torch.memory_format) -> None:
    (start,) = drawn(1)
    ours, theirs = ([t.clone().requires_grad_() for t in start] for _ in range(2))
    kind = torch.optim.AdamW if decoupled else torch.optim.Adam
    gradients = drawn(5)
    laid = [[g.contiguous(memory_format=layout) if g.dim() == 4 else g for g in row] for row in gradients]
    settings = {"betas": (0.5, 0.9), "weight_decay": 0.1}
    steps(adam(ours, 0.05, decoupled=decoupled, **settings), ours, laid)
    steps(kind(theirs, lr=0.05, foreach=False, fused=False, **settings), theirs, gradients)
    for a, b, before in zip(ours, theirs, start, strict=True):
        torch.testing.assert_close(a, b)
        assert (a - before).abs().mean() > 0.01


def test_it_goes_on_where_it_stopped_bit_for_bit() -> None:
    (start,), gradients = drawn(1), drawn(6)
    whole = [t.clone().requires_grad_() for t in start]
    steps(adam(whole, 0.05), whole, gradients)
    parted = [t.clone().requires_grad_() for t in start]
    first = adam(parted, 0.05)
    steps(first, parted, gradients[:3])
    named = dict(zip("abc", parted, strict=True))
    second = adam(parted, 0.05)
    restore_moments(second, named, moments_of(first, named))
    steps(second, parted, gradients[3:])
    for a, b in zip(whole, parted, strict=True):
        assert torch.equal(a, b)


def test_sgd_and_lbfgs_step_as_pytorch_s_own_bit_for_bit() -> None:
    (start,) = drawn(1)
    gradients = drawn(5)
    ours, theirs = ([t.clone().requires_grad_() for t in start] for _ in range(2))
    steps(sgd(ours, 0.1, momentum=0.9, weight_decay=0.1), ours, gradients)
    steps(torch.optim.SGD(theirs, lr=0.1, momentum=0.9, weight_decay=0.1), theirs, gradients)
    assert all(map(torch.equal, ours, theirs))
    found = []
    points = [start[1].clone().requires_grad_() for _ in range(2)]
    theirs_of = torch.optim.LBFGS([points[1]], max_iter=7, line_search_fn="strong_wolfe")
    for point, optimizer in zip(points, (lbfgs([points[0]], 7), theirs_of), strict=True):

        def loss(point: Tensor = point, optimizer: torch.optim.Optimizer = optimizer) -> Tensor:
            optimizer.zero_grad()
            value = (point - torch.arange(7.0)).pow(4).sum()
            value.backward()
            return value

        optimizer.step(loss)
        found.append(point.detach())
    assert torch.equal(*found)
    assert not torch.equal(found[0], start[1])


@pytest.mark.thorough
def test_no_optimiser_loads_the_compiler() -> None:
    program = """
import sys, torch
from fdaudit.training.optimizers import adam, lbfgs, sgd
point = torch.zeros(3, requires_grad=True)
for optimizer in (sgd([point], 0.1), adam([point], 0.1), adam([point], 0.1, decoupled=True), lbfgs([point], 20)):
    def loss():
        optimizer.zero_grad()
        value = (point - 1).square().sum()
        value.backward()
        return value
    loss()
    optimizer.step(loss)
print(bool(point.abs().sum()), "torch._dynamo" in sys.modules)
torch.optim.SGD([point], lr=0.1)
print("torch._dynamo" in sys.modules)
"""
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert run.stdout.split() == ["True", "False", "True"]
