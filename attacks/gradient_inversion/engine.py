"""Matching: find images whose simulated gradient, or update, is the one that was sent.

Every optimising attack here is a choice of simulator (`GradientMap`, `UpdateMap`), of distance and of optimiser. R
problems advance together: restarts, and messages of equal shape from one model.

Guarantees:
  * a problem's result depends on no other problem, up to floating-point error;
  * evaluations are counted by image: one forward, backward and double-backward pass of one image;
  * all randomness comes from the given generator.

Sources: Zhu, Liu & Han 2019, algorithm 1 (squared ℓ2, L-BFGS); Geiping et al. 2020, eq. 4 (cosine, signed Adam).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from .gradients import Simulator
from .lbfgs import minimise

__all__ = [
    "Matched",
    "Penalty",
    "best_of",
    "cosine_distance",
    "match_adam",
    "match_lbfgs",
    "squared_l2",
    "total_variation",
]

_CHUNK = 1 << 17
"""Image values (pixels by channels) evaluated at once; more brings little speed and costs memory."""

_CHUNK_GRADIENTS = 1 << 25
"""Values of gradients at once, which bounds memory for large networks."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Matched:
    """The results of R problems.

    Attributes:
        images: (R, B, c, h, w).
        labels: (R, B).
        objective: (R,) matching loss, without regularisation; NaN becomes infinity.
        evaluations: (R,) image evaluations spent on each problem.
    """

    images: Tensor
    labels: Tensor
    objective: Tensor
    evaluations: Tensor


class Penalty(Protocol):
    """A term of the objective that depends on the images alone."""

    def __call__(self, x: Tensor, rows: slice) -> Tensor:
        """Return its values (R,) for images (R, B, c, h, w), which are these rows of all problems."""
        ...


def squared_l2(simulated: Tensor, target: Tensor) -> Tensor:
    """Return ‖simulated − target‖² for each row: (R, P), (R, P) to (R,)."""
    return (simulated - target).square().sum(1)


def cosine_distance(dot: Tensor, square: Tensor, target_square: Tensor) -> Tensor:
    """Return 1 − cos∠(simulated, target) of each problem, (R,), in [0, 2]; 1 if a gradient is zero.

    Args:
        dot: (R,) inner products of the simulated gradients and the target.
        square: (R,) squared norms of the simulated gradients.
        target_square: (R,) of the target.
    """
    return 1 - dot / (square * target_square).clamp_min(1e-30).sqrt()


def total_variation(x: Tensor) -> Tensor:
    """Return the mean absolute difference of neighbouring pixels, vertical plus horizontal: (R, B, c, h, w) to (R,).

    A side of one pixel has no neighbours and adds nothing.
    """
    out: Tensor = _TotalVariation.apply(x)
    return out


class _TotalVariation(torch.autograd.Function):
    """Total variation by its derivative, computed in one pass.

    It is linear while no two neighbours change their order, so the value is ⟨derivative, x⟩.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        slope = torch.zeros_like(x)
        for dim in (-2, -1):
            pairs = x.shape[dim] - 1
            rise = x.narrow(dim, 1, pairs).sub(x.narrow(dim, 0, pairs)).sign_()
            rise.div_(max(1, rise[0].numel()))
            slope.narrow(dim, 1, pairs).add_(rise)
            slope.narrow(dim, 0, pairs).sub_(rise)
        ctx.save_for_backward(slope)
        out: Tensor = (x * slope).flatten(1).sum(1)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, g: Tensor) -> Tensor:
        (slope,) = ctx.saved_tensors
        out: Tensor = slope * g.view(-1, 1, 1, 1, 1)
        return out


def match_lbfgs(
    simulate: Simulator,
    target: Tensor,
    x: Tensor,
    y: Tensor,
    *,
    evaluations: int,
    history: int = 20,
    tolerance: float = 0.0,
) -> Matched:
    """Run DLG: L-BFGS on the squared ℓ2 distance, divided by ‖target‖² so that tolerances are comparable.

    Args:
        simulate: the map to invert.
        target: (R, P) the sent values, one row for each problem.
        x: (R, B, c, h, w) starting images.
        y: (R, B) labels held fixed; or (R, B, C) starting label logits, optimised with the images.
        evaluations: most evaluations of each problem's objective.
        history: curvature pairs kept by L-BFGS.
        tolerance: relative squared distance at which a problem has converged.
    """
    shape, split = x.shape, x[0].numel()
    optimise_labels = y.dim() == 3
    start = torch.cat([x.flatten(1), y.flatten(1)], 1) if optimise_labels else x.flatten(1)
    scale = target.square().sum(1).clamp_min(1e-30)
    size = _at_once(split, target)

    def objective(points: Tensor, rows: Tensor) -> tuple[Tensor, Tensor]:
        values, gradients = [], []
        for part in _chunks(len(points), size):
            v, index = points[part].detach().requires_grad_(), rows[part]
            labels = v[:, split:].view(-1, *y.shape[1:]).softmax(2) if optimise_labels else y[index]
            simulated = simulate(v[:, :split].view(-1, *shape[1:]), labels)
            value = squared_l2(simulated, target[index]) / scale[index]
            gradients.append(torch.autograd.grad(value.sum(), v)[0])
            values.append(value.detach())
        return torch.cat(values), torch.cat(gradients)

    minimum = minimise(objective, start, evaluations=evaluations, history=history, tolerance=tolerance)
    labels = y
    if optimise_labels:
        labels = minimum.x[:, split:].view(y.shape).argmax(2)
    return Matched(
        images=minimum.x[:, :split].view(shape),
        labels=labels,
        objective=minimum.value.nan_to_num(torch.inf),
        evaluations=minimum.evaluations * shape[1],
    )


def match_adam(
    simulate: Simulator,
    target: Tensor,
    x: Tensor,
    y: Tensor,
    *,
    iterations: int,
    lr: float | Tensor,
    tv: float | Tensor,
    signed: bool = True,
    penalty: Penalty | None = None,
) -> Matched:
    """Run Inverting Gradients: cosine distance plus `tv` times total variation, Adam on the gradient's sign, in [0, 1].

    The step is multiplied by 0.1 after 3/8, 5/8 and 7/8 of the iterations. The result is the best point, not the last.

    Args:
        simulate: the map to invert.
        target: (R, P) the sent values, one row for each problem.
        x: (R, B, c, h, w) starting images in [0, 1].
        y: (R, B) labels, held fixed.
        iterations: evaluations of each problem's objective.
        lr: Adam's step at the start, in units of pixel intensity; one for all problems, or (R,).
        tv: weight of the total variation; one for all problems, or (R,).
        signed: replace the gradient by its sign.
        penalty: another term of the objective.
    """
    images, distances = [], []
    for part in _chunks(len(x), _at_once(x[0].numel(), target)):
        best, distance = _adam(
            simulate,
            target[part],
            x[part],
            y[part],
            iterations,
            lr[part] if isinstance(lr, Tensor) else lr,
            tv[part] if isinstance(tv, Tensor) else tv,
            signed,
            None if penalty is None else partial(penalty, rows=part),
        )
        images.append(best)
        distances.append(distance)
    return Matched(
        images=torch.cat(images),
        labels=y,
        objective=torch.cat(distances),
        evaluations=torch.full((len(x),), iterations * x.shape[1], device=x.device),
    )


def _adam(
    simulate: Simulator,
    target: Tensor,
    x: Tensor,
    y: Tensor,
    iterations: int,
    lr: float | Tensor,
    tv: float | Tensor,
    signed: bool,
    penalty: Callable[[Tensor], Tensor] | None,
) -> tuple[Tensor, Tensor]:
    """Return the best images and their cosine distances, for all rows of one chunk."""
    x = x.detach().clone()
    first, second = torch.zeros_like(x), torch.zeros_like(x)  # Adam's moments, β = (0.9, 0.999)
    best, best_total = x.clone(), x.new_full((len(x),), torch.inf)
    best_distance = best_total.clone()
    drops = [math.ceil(iterations * k / 8) for k in (3, 5, 7)]
    target_square = target.square().sum(1)
    smoothed = isinstance(tv, Tensor) or tv > 0
    for i in range(1, iterations + 1):
        v = x.requires_grad_()
        dot, square = simulate.products(v, y, target)
        distance = cosine_distance(dot, square, target_square)
        total = distance
        if smoothed:
            total = total + tv * total_variation(v)
        if penalty is not None:
            total = total + penalty(v)
        (g,) = torch.autograd.grad(total.sum(), v)
        x, total = x.detach(), total.detach()
        better = total < best_total
        best_total = torch.where(better, total, best_total)
        best_distance = torch.where(better, distance.detach(), best_distance)
        best = torch.where(better.view(-1, 1, 1, 1, 1), x, best)
        g = g.nan_to_num(0.0)
        if signed:
            g.sign_()
        first.lerp_(g, 0.1)
        second.lerp_(g.square_(), 0.001)
        # The step is lr m̂ / (√v̂ + ε); the moments' corrections for their start at zero are folded into both factors.
        share = 0.1 ** sum(i > d for d in drops) / (1 - 0.9**i)
        spread = (second / (1 - 0.999**i)).sqrt_().add_(1e-8)
        if isinstance(lr, Tensor):
            x = x.sub(lr.view(-1, 1, 1, 1, 1) * share * first / spread).clamp_(0, 1)
        else:
            x = x.addcdiv(first, spread, value=-lr * share).clamp_(0, 1)
    return best, best_distance


def _at_once(values: int, target: Tensor) -> int:
    """Return the number of problems to advance together, of `values` image values each, for gradients (R, P)."""
    return max(1, min(_CHUNK // values, _CHUNK_GRADIENTS // target.shape[1]))


def _chunks(rows: int, most: int) -> list[slice]:
    """Return slices of at most `most` rows, as even as possible, because small ones cost more for each row."""
    count = -(-rows // most)
    ends = [rows * i // count for i in range(count + 1)]
    return [slice(a, b) for a, b in itertools.pairwise(ends)]


def best_of(matched: Matched, restarts: int) -> Matched:
    """Return the best of every `restarts` consecutive problems, by objective; their evaluations add up."""
    objective = matched.objective.nan_to_num(torch.inf).view(-1, restarts)
    rows = objective.argmin(1) + restarts * torch.arange(len(objective), device=objective.device)
    return Matched(
        images=matched.images[rows],
        labels=matched.labels[rows],
        objective=matched.objective[rows],
        evaluations=matched.evaluations.view(-1, restarts).sum(1),
    )
