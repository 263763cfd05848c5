"""Limited-memory BFGS for many independent problems at once.

`torch.optim.LBFGS` treats all its tensors as one problem, with one line search and one curvature history. Restarts of
an attack are separate problems. Here every row of x has its own history, bracket and step. One call of the objective
evaluates all rows, each at its own stage of its line search.

Guarantees:
  * a row's path depends on no other row (up to floating-point error in the objective itself);
  * the value of a row never increases;
  * a row is evaluated at most `evaluations` times, and not again once it has converged or is stuck;
  * on an accelerator the host waits for the device twice in an iteration, whatever the rows do.

Source: Liu & Nocedal 1989; the product with the inverse Hessian in the compact form of Byrd, Nocedal &
Schnabel 1994 (theorem 2.2), equal to the two-loop recursion; weak-Wolfe bracketing of Lewis & Overton 2013,
which also suits networks with kinks (ReLU).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

__all__ = ["Minimum", "Objective", "inverse_hessian_product", "minimise"]

Objective = Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]
"""Maps points (k, n) and the rows (k,) they belong to, to values (k,) and gradients (k, n)."""

_ARMIJO, _CURVATURE = 1e-4, 0.9  # c1, c2 of Nocedal & Wright 2006, section 3.1
_TRIALS = 20  # evaluations in one line search before the history is dropped


@dataclass(frozen=True, kw_only=True, eq=False)
class Minimum:
    """The result of each row.

    Attributes:
        x: (R, n) best points.
        value: (R,) objective there.
        gradient: (R, n) gradient there.
        evaluations: (R,) evaluations spent, int64.
        converged: (R,) whether the gradient's or value's tolerance was met (else: budget spent or stuck).
    """

    x: Tensor
    value: Tensor
    gradient: Tensor
    evaluations: Tensor
    converged: Tensor


def inverse_hessian_product(S: Tensor, Y: Tensor, g: Tensor) -> Tensor:
    """Return the L-BFGS approximation of H⁻¹g for each row.

    Args:
        S: (R, m, n) steps, oldest first; unused places hold zeros and come first.
        Y: (R, m, n) differences of gradients, in the same order; sᵀy > 0 in used places.
        g: (R, n) vectors to multiply.

    Returns:
        (R, n) products; g itself for a row without history. The initial H⁻¹ is (sᵀy / yᵀy) I of the newest pair.
    """
    # Theorem 2.2, with R the upper triangle of SᵀY, D its diagonal, p = Sᵀg, q = Yᵀg and u = R⁻¹p:
    # H⁻¹g = γ g + S v - γ Y u, where v = R⁻ᵀ (D u + γ (YᵀY u - q)).
    # The small systems are solved in double precision: they are what loses digits near the minimum.
    SY = torch.bmm(S, Y.mT).double()
    YY = torch.bmm(Y, Y.mT).double()
    p = torch.bmm(S, g[:, :, None]).double()
    q = torch.bmm(Y, g[:, :, None]).double()
    D = torch.diagonal(SY, dim1=1, dim2=2)
    used = D > 0
    gamma = torch.where(used[:, -1], D[:, -1] / YY[:, -1, -1].clamp_min(1e-300), 1.0)[:, None, None]
    upper = torch.triu(SY) + torch.diag_embed((~used).double())  # unused places solve to zero
    u = torch.linalg.solve_triangular(upper, p, upper=True)
    right = D[:, :, None] * u + gamma * (YY @ u - q)
    v = torch.linalg.solve_triangular(upper.mT, right, upper=False).to(g.dtype)
    w = (gamma * u).to(g.dtype)
    correction = (S.mT @ v - Y.mT @ w)[:, :, 0]
    product: Tensor = gamma[:, :, 0].to(g.dtype) * g + correction
    return product


def minimise(
    objective: Objective,
    x: Tensor,
    *,
    evaluations: int = 300,
    history: int = 20,
    tolerance: float = -math.inf,
    gradient_tolerance: float = 0.0,
) -> Minimum:
    """Minimise each row of x (R, n) separately.

    Args:
        objective: values and gradients; called with fewer rows as rows finish.
        x: starting points.
        evaluations: most evaluations of each row.
        history: pairs (s, y) kept by row.
        tolerance: a row has converged when its value is at most this.
        gradient_tolerance: a row has converged when the largest entry of its gradient is at most this.
    """
    search = _Search(x.detach().clone(), history)
    rows = torch.arange(len(x), device=x.device)
    search.start(*objective(search.x, rows))
    for _ in range(evaluations - 1):
        small = search.g.abs().amax(1) <= gradient_tolerance
        search.converged = (search.f <= tolerance) | small
        active, dropped = _positions(~(search.converged | search.stuck), search.dropped)
        if not len(active):
            break
        if len(dropped):
            search.restart(dropped)
        trial = search.x[active] + search.t[active, None] * search.d[active]
        search.advance(active, trial, *objective(trial, active))
    small = search.g.abs().amax(1) <= gradient_tolerance
    return Minimum(
        x=search.x,
        value=search.f,
        gradient=search.g,
        evaluations=search.spent,
        converged=(search.f <= tolerance) | small,
    )


def _positions(*masks: Tensor) -> list[Tensor]:
    """Return the positions where each mask (R,) is true. The host waits for the device once."""
    table = torch.stack(masks).cpu()
    positions = []
    for row in table:
        hits = row.nonzero()[:, 0]
        positions.append(hits.to(masks[0].device, non_blocking=True))
    return positions


class _Search:
    """The state of R line searches: x, value f, gradient g, direction d, step t within (low, high).

    Rows that are `dropped` lose their history before their next step; those without one are stuck.
    """

    def __init__(self, x: Tensor, history: int) -> None:
        R, n = x.shape
        self.x = x
        self.S = x.new_zeros(R, history, n)
        self.Y = x.new_zeros(R, history, n)
        self.low = x.new_zeros(R)
        self.high = x.new_full((R,), torch.inf)
        self.trials = torch.zeros(R, dtype=torch.int64, device=x.device)
        self.spent = torch.zeros_like(self.trials)
        self.stuck = torch.zeros(R, dtype=torch.bool, device=x.device)
        self.converged = self.stuck.clone()
        self.dropped = self.stuck.clone()

    def start(self, f: Tensor, g: Tensor) -> None:
        """Store the first evaluation; a row whose value is not finite is stuck."""
        self.f, self.g, self.d = f.clone(), g.clone(), -g
        self.stuck = ~(torch.isfinite(f) & torch.isfinite(g).all(1))
        self.t = self._first_step(g)
        self.spent += 1

    @staticmethod
    def _first_step(g: Tensor) -> Tensor:
        return (1 / g.abs().sum(1).clamp_min(1e-30)).clamp_max(1.0)

    def advance(self, rows: Tensor, trial: Tensor, f: Tensor, g: Tensor) -> None:
        """Process one evaluation of `rows`: each accepts its trial point or narrows its bracket."""
        self.spent[rows] += 1
        self.trials[rows] += 1
        t = self.t[rows]
        slope = (self.g[rows] * self.d[rows]).sum(1)
        # The weak Wolfe conditions: the value falls enough (Armijo), and the slope flattens enough (curvature).
        finite = torch.isfinite(f) & torch.isfinite(g).all(1)
        falls = finite & (f <= self.f[rows] + _ARMIJO * t * slope)
        flattens = (g * self.d[rows]).sum(1) >= _CURVATURE * slope
        late = self.trials[rows] >= _TRIALS
        accepts = falls & (flattens | late)
        self._narrow(rows, t, f, slope, falls, finite)
        self.dropped[rows] = late & ~accepts
        # A step of positive curvature becomes a pair, in the place of the oldest one.
        s = trial - self.x[rows]
        y = g - self.g[rows]
        curves = (s * y).sum(1) > 1e-10 * s.norm(dim=1) * y.norm(dim=1)
        accepted, curved = _positions(accepts, accepts & curves)
        if len(curved):
            at = rows[curved]
            self.S[at] = torch.cat([self.S[at, 1:], s[curved][:, None]], 1)
            self.Y[at] = torch.cat([self.Y[at, 1:], y[curved][:, None]], 1)
        if len(accepted):
            at, g = rows[accepted], g[accepted]
            self.x[at] = trial[accepted]
            self.f[at] = f[accepted]
            self.g[at] = g
            d = -inverse_hessian_product(self.S[at], self.Y[at], g)
            # A row whose next direction does not descend is dropped.
            self.dropped[at] = ~(torch.isfinite(d).all(1) & ((d * g).sum(1) < 0))
            self._search_along(at, d, 1.0)
        self.stuck |= self.dropped & (self.S[:, -1] == 0).all(1)

    def _narrow(
        self, rows: Tensor, t: Tensor, f: Tensor, slope: Tensor, falls: Tensor, finite: Tensor
    ) -> None:
        low = torch.where(falls, t, self.low[rows])
        high = torch.where(falls, self.high[rows], t)
        # Too long a step: the minimum of the parabola through f, slope and the trial's value, kept inside the
        # bracket. Too short a step: double it, or halve the bracket.
        rise = 2 * (f - self.f[rows] - t * slope)
        parabola = torch.where(finite & (rise > 0), -slope * t * t / rise, 0.1 * t)
        width = high - low
        shorter = torch.minimum(torch.maximum(parabola, low + 0.1 * width), low + 0.5 * width)
        longer = torch.where(torch.isinf(high), 2 * low, low + 0.5 * width)
        self.low[rows], self.high[rows] = low, high
        self.t[rows] = torch.where(falls, longer, shorter)

    def restart(self, rows: Tensor) -> None:
        """Drop the history of rows, and try steepest descent."""
        self.S[rows] = 0
        self.Y[rows] = 0
        self.dropped[rows] = False
        g = self.g[rows]
        self._search_along(rows, -g, self._first_step(g))

    def _search_along(self, rows: Tensor, d: Tensor, t: Tensor | float) -> None:
        self.d[rows] = d
        self.t[rows] = t
        self.low[rows] = 0
        self.high[rows] = torch.inf
        self.trials[rows] = 0
