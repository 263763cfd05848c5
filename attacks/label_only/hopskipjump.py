"""Batched HopSkipJump: estimate many samples' distances to a model's decision boundary from its decisions alone.

Guarantees:
  * all candidates advance together: each query batch holds samples of as many candidates as possible;
  * a candidate never exceeds its query budget, and queries are counted;
  * memory does not grow with the number of gradient samples, and grows with candidates only by their own size;
  * a misclassified candidate has distance 0. A candidate without a starting point is marked, with infinite distance.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

__all__ = ["Boundary", "Schedule", "boundary_distances"]

Ask = Callable[[Tensor], Tensor]
"""Samples (n, c, h, w) to classes (n,)."""

_LEAST_DIRECTIONS = 4
"""Smallest number of gradient samples that justify an iteration's binary search."""


@dataclass(frozen=True, kw_only=True)
class Schedule:
    """The query budget of one candidate; symbols as in Chen, Jordan & Wainwright 2020.

    Attributes:
        queries: in total, with the query whether it is classified correctly.
        directions: B_0, gradient samples of the first iteration; the t-th has B_0 √t.
        halvings: step sizes tried in one iteration, each half of the one before.
        search: steps of a binary search; None: down to θ = d^(-3/2), with at most a fifth of `queries`.
        chunk: samples queried at a time.
    """

    queries: int
    directions: int = 100
    halvings: int = 8
    search: int | None = None
    chunk: int = 128

    def search_steps(self, dimensions: int) -> int:
        """Return the steps of one binary search over [0, 1] in this number of dimensions."""
        if self.search is not None:
            return self.search
        return max(4, min(math.ceil(1.5 * math.log2(max(dimensions, 2))), self.queries // 5))


@dataclass(frozen=True, eq=False)
class Boundary:
    """The result of HopSkipJump.

    Attributes:
        distance: (n,) ℓ2 distance to the boundary; 0 if misclassified, infinite without a starting point.
        right: (n,) whether the candidate itself is classified correctly.
        started: (n,) whether a starting point on the other side of the boundary was found.
        spent: (n,) queries of each candidate.
        points: (n, c, h, w) the point on the boundary; the candidate itself if there is none.
    """

    distance: Tensor
    right: Tensor
    started: Tensor
    spent: Tensor
    points: Tensor


def boundary_distances(
    ask: Ask,
    x: Tensor,
    y: Tensor,
    starts: Tensor,
    start_classes: Tensor,
    schedule: Schedule,
    generator: torch.Generator,
) -> Boundary:
    """Run untargeted ℓ2 HopSkipJump (Chen, Jordan & Wainwright 2020, Algorithm 2) on all candidates at once.

    It differs in two points. A sample's class does not depend on the candidate, so all candidates share one pool of
    starting points, and each takes the nearest one of another class. An iteration that increases the distance is
    undone.

    Args:
        ask: the model's decisions.
        x: (n, c, h, w) candidates in [0, 1].
        y: (n,) their labels.
        starts: (m, c, h, w) possible starting points.
        start_classes: (m,) their predicted classes.
        schedule: how to spend the queries.
        generator: draws directions.
    """
    n = len(x)
    distance = torch.zeros(n, dtype=torch.float64)
    right = torch.zeros(n, dtype=torch.bool)
    started = torch.zeros(n, dtype=torch.bool)
    queries = torch.ones(n, dtype=torch.int64)
    points = x.clone()
    for rows in torch.arange(n).split(schedule.chunk):
        if not len(rows):
            continue
        right[rows] = ask(x[rows]) == y[rows]
        here = rows[right[rows]]
        nearest, exists = _nearest_start(x[here], y[here], starts, start_classes)
        distance[here[~exists]] = math.inf
        here = here[exists]
        started[here] = True
        if not len(here):
            continue
        walk = _Walk(ask, x[here], y[here], starts[nearest[exists]], schedule, generator)
        walk.run()
        distance[here] = walk.distance.double()
        points[here] = walk.images
        queries[here] = walk.spent
    return Boundary(distance, right, started, queries, points)


def _nearest_start(x: Tensor, y: Tensor, starts: Tensor, classes: Tensor) -> tuple[Tensor, Tensor]:
    """Return each candidate's nearest starting point of another class (n,), and whether there is one (n,)."""
    if not len(x) or not len(starts):
        return torch.zeros(len(x), dtype=torch.int64), torch.zeros(len(x), dtype=torch.bool)
    apart = torch.cdist(x.flatten(1), starts.flatten(1))
    apart[classes[None] == y[:, None]] = math.inf
    least, which = apart.min(1)
    return which, least.isfinite()


class _Walk:
    """Candidates moving along the boundary: rows advance together while they have queries left.

    Rows (G, d) are flattened images; `b` is on the far side of the boundary, within the search's tolerance.
    """

    def __init__(
        self, ask: Ask, x: Tensor, y: Tensor, start: Tensor, schedule: Schedule, generator: torch.Generator
    ) -> None:
        self._ask, self._shape, self._y = ask, x.shape[1:], y
        self._x, self.b = x.flatten(1), start.flatten(1).clone()
        self._schedule, self._generator = schedule, generator
        self._search_steps = schedule.search_steps(self._x.shape[1])
        self.spent = torch.ones(len(x), dtype=torch.int64)
        self.distance = (self.b - self._x).norm(dim=1)

    @property
    def images(self) -> Tensor:
        return self.b.view(-1, *self._shape)

    @property
    def _left(self) -> Tensor:
        return self._schedule.queries - self.spent

    def run(self) -> None:
        everyone = torch.arange(len(self._x))
        self._move(everyone, self._search(everyone, self.b))
        t = 1
        overhead = self._search_steps + self._schedule.halvings
        while True:
            rows = (self._left >= overhead + _LEAST_DIRECTIONS).nonzero().squeeze(1)
            if not len(rows):
                return
            # A row uses up its queries if they are too few for another iteration.
            budget = self._left[rows] - overhead
            planned = round(self._schedule.directions * math.sqrt(t))
            directions = torch.full_like(budget, planned).minimum(budget)
            directions = torch.where(budget - directions < overhead + _LEAST_DIRECTIONS, budget, directions)
            v = self._gradient(rows, directions, t)
            # Step along v by distance/√t, halved until the point is beyond the boundary.
            size = self.distance[rows, None] / math.sqrt(t)
            b = self.b[rows]
            stepped = b.clone()
            moved = torch.zeros(len(rows), dtype=torch.bool)
            for _ in range(self._schedule.halvings):
                trying = (~moved).nonzero().squeeze(1)
                if not len(trying):
                    break
                points = (b[trying] + size[trying] * v[trying]).clamp(0, 1)
                beyond = self._beyond(rows[trying], points)
                stepped[trying[beyond]] = points[beyond]
                moved[trying[beyond]] = True
                size = size / 2
            self._move(rows[moved], self._search(rows[moved], stepped[moved]))
            t += 1

    # -- the moves ------------------------------------------------------------------------------------------

    def _search(self, rows: Tensor, far: Tensor) -> Tensor:
        """Run binary search (Algorithm 1) from candidates to points of another class; return points (r, d) beyond."""
        x = self._x[rows]
        low = x.new_zeros(len(rows))
        high = x.new_ones(len(rows))
        for _ in range(self._search_steps):
            middle = (low + high) / 2
            beyond = self._beyond(rows, torch.lerp(x, far, middle[:, None]))
            high = torch.where(beyond, middle, high)
            low = torch.where(beyond, low, middle)
        return torch.lerp(x, far, high[:, None])

    def _gradient(self, rows: Tensor, directions: Tensor, t: int) -> Tensor:
        """Return unit vectors (r, d) along the estimated gradient at the boundary (eq. 16, with the baseline).

        Only sums are kept, not samples: Σ φu, Σ φ and Σ u give the estimate with the mean of φ subtracted.
        """
        b = self.b[rows]
        d = self.b.shape[1]
        delta = self.distance[rows, None] / d
        if t == 1:
            delta = torch.full_like(delta, 0.1)
        signed = torch.zeros_like(b)
        plain = torch.zeros_like(b)
        total = b.new_zeros(len(rows), 1)
        count = 0
        block = max(1, round(self._schedule.chunk / len(rows)))
        while bool((directions > count).any()):
            samples = torch.randn(len(rows), block, d, generator=self._generator)
            samples = samples / samples.norm(dim=2, keepdim=True)
            going = directions[:, None] > count + torch.arange(block)
            points = (b[:, None] + delta[:, None] * samples).clamp(0, 1)
            which = going.nonzero()
            phi = torch.zeros_like(going, dtype=b.dtype)
            phi[going] = self._beyond(rows[which[:, 0]], points[going]).to(b.dtype) * 2 - 1
            u = (points - b[:, None]) * going[:, :, None]
            signed += (phi[:, :, None] * u).sum(1)
            plain += u.sum(1)
            total += phi.sum(1, keepdim=True)
            count += block
        mean = total / directions[:, None]
        # Where all samples lie on one side the baseline would leave nothing.
        v = torch.where(mean.abs() < 1, signed - mean * plain, signed)
        unit: Tensor = v / v.norm(dim=1, keepdim=True).clamp_min(1e-12)
        return unit

    def _move(self, rows: Tensor, b: Tensor) -> None:
        """Move rows to points (r, d) on the boundary that are nearer; the others stay."""
        distance = (b - self._x[rows]).norm(dim=1)
        nearer = distance <= self.distance[rows]
        self.b[rows[nearer]] = b[nearer]
        self.distance[rows[nearer]] = distance[nearer]

    def _beyond(self, rows: Tensor, points: Tensor) -> Tensor:
        """Return whether points (r, d), one a row, have another class than their candidates; one query each."""
        if not len(rows):
            return torch.zeros(0, dtype=torch.bool)
        self.spent += torch.bincount(rows, minlength=len(self.spent))
        return self._ask(points.view(-1, *self._shape)) != self._y[rows]
