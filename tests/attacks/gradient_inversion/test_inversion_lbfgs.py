"""The vectorised L-BFGS against textbook recursions, scipy, torch and known minima."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from fdaudit.attacks.gradient_inversion import lbfgs
from fdaudit.attacks.gradient_inversion.lbfgs import inverse_hessian_product, minimise
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import minimize, rosen, rosen_der
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode


def _two_loop(S: list[Tensor], Y: list[Tensor], g: Tensor) -> Tensor:
    """Nocedal & Wright 2006, algorithm 7.4, for one problem."""
    q, alphas = g.clone(), []
    for s, y in zip(reversed(S), reversed(Y), strict=True):
        alphas.append((s @ q) / (y @ s))
        q = q - alphas[-1] * y
    r = q * ((S[-1] @ Y[-1]) / (Y[-1] @ Y[-1])) if S else q
    for s, y, a in zip(S, Y, reversed(alphas), strict=True):
        r = r + s * (a - (y @ r) / (y @ s))
    return r


@given(seed=st.integers(0, 2**31), used=st.lists(st.integers(0, 5), min_size=1, max_size=4))
@settings(max_examples=50, deadline=None)
def test_compact_product_equals_the_two_loop_recursion(seed: int, used: list[int]) -> None:
    g = torch.Generator().manual_seed(seed)
    n, m = 8, 5
    A = torch.randn(n, n, generator=g, dtype=torch.float64)
    H = A @ A.T + torch.eye(n, dtype=torch.float64)
    S = torch.zeros(len(used), m, n, dtype=torch.float64)
    for r, k in enumerate(used):
        S[r, m - k :] = torch.randn(k, n, generator=g, dtype=torch.float64)
    Y = S @ H
    v = torch.randn(len(used), n, generator=g, dtype=torch.float64)
    product = inverse_hessian_product(S, Y, v)
    for r, k in enumerate(used):
        torch.testing.assert_close(product[r], _two_loop(list(S[r, m - k :]), list(Y[r, m - k :]), v[r]))


def _quadratics(R: int, n: int, seed: int) -> tuple[Tensor, Tensor]:
    g = torch.Generator().manual_seed(seed)
    A = torch.randn(R, n, n, generator=g, dtype=torch.float64)
    return A @ A.mT / n + 0.1 * torch.eye(n, dtype=torch.float64), torch.randn(
        R, n, generator=g, dtype=torch.float64
    )


def test_quadratics_reach_the_solution_of_their_linear_systems() -> None:
    H, b = _quadratics(6, 20, 0)

    def objective(x: Tensor, rows: Tensor) -> tuple[Tensor, Tensor]:
        Hx = (H[rows] @ x[:, :, None])[:, :, 0]
        return 0.5 * (x * Hx).sum(1) - (x * b[rows]).sum(1), Hx - b[rows]

    found = minimise(
        objective, torch.zeros(6, 20, dtype=torch.float64), evaluations=200, gradient_tolerance=1e-6
    )
    assert found.converged.all()
    torch.testing.assert_close(found.x, torch.linalg.solve(H, b), rtol=1e-4, atol=1e-4)


def _rosenbrock(x: Tensor, rows: Tensor) -> tuple[Tensor, Tensor]:
    points = x.numpy()
    values = np.array([rosen(p) for p in points])
    return torch.from_numpy(values), torch.from_numpy(np.stack([rosen_der(p) for p in points]))


def test_rosenbrock_needs_about_as_many_evaluations_as_scipy() -> None:
    g = torch.Generator().manual_seed(1)
    x = 1 + torch.randn(8, 3, generator=g, dtype=torch.float64)
    found = minimise(_rosenbrock, x, evaluations=500, history=10, tolerance=1e-12)
    assert found.converged.all()
    references = [
        minimize(rosen, p.numpy(), jac=rosen_der, method="L-BFGS-B", options={"ftol": 0, "gtol": 1e-8})
        for p in x
    ]
    ours, theirs = found.evaluations.double().mean(), np.mean([r.nfev for r in references])
    assert ours < 2 * theirs
    torch.testing.assert_close(found.x, torch.ones_like(x), rtol=0, atol=1e-4)
    assert max(r.fun for r in references) < 1e-10


def test_rosenbrock_agrees_with_torchs_strong_wolfe_lbfgs() -> None:
    start = torch.tensor([-1.2, 1.0], dtype=torch.float64)
    mine = minimise(_rosenbrock, start[None], evaluations=200, tolerance=1e-16)
    theirs = start.clone().requires_grad_()
    optimiser = torch.optim.LBFGS([theirs], max_iter=200, line_search_fn="strong_wolfe", tolerance_change=0)

    def closure() -> Tensor:
        optimiser.zero_grad()
        loss = (1 - theirs[0]) ** 2 + 100 * (theirs[1] - theirs[0] ** 2) ** 2
        loss.backward()
        return loss

    optimiser.step(closure)
    torch.testing.assert_close(mine.x[0], theirs.detach(), rtol=0, atol=1e-5)


def test_a_row_does_not_depend_on_the_others() -> None:
    g = torch.Generator().manual_seed(2)
    x = torch.randn(5, 4, generator=g, dtype=torch.float64)
    together = minimise(_rosenbrock, x, evaluations=60)
    for r in range(5):
        alone = minimise(_rosenbrock, x[r : r + 1], evaluations=60)
        torch.testing.assert_close(together.x[r], alone.x[0], rtol=1e-6, atol=1e-8)
        assert together.evaluations[r] == alone.evaluations[0]


def test_values_never_increase_and_the_budget_is_kept() -> None:
    g = torch.Generator().manual_seed(3)
    x = torch.randn(4, 6, generator=g, dtype=torch.float64)
    previous = torch.full((4,), torch.inf, dtype=torch.float64)
    calls: list[int] = []

    def counted(p: Tensor, rows: Tensor) -> tuple[Tensor, Tensor]:
        calls.extend(rows.tolist())
        return _rosenbrock(p, rows)

    for budget in (1, 2, 5, 10, 20, 40):
        calls.clear()
        found = minimise(counted, x, evaluations=budget)
        assert (found.value <= previous).all()
        assert [calls.count(r) for r in range(4)] == found.evaluations.tolist()
        assert (found.evaluations <= budget).all()
        previous = found.value


def test_a_row_that_is_not_finite_stops_and_leaves_the_others_alone() -> None:
    def objective(x: Tensor, rows: Tensor) -> tuple[Tensor, Tensor]:
        value = x.square().sum(1)
        value[rows == 1] = torch.nan
        return value, 2 * x

    found = minimise(objective, torch.ones(3, 2), evaluations=50, tolerance=1e-12)
    assert found.evaluations[1] == 1
    assert found.converged.tolist() == [True, False, True]


@pytest.mark.parametrize("scale", [1e-6, 1.0, 1e6])
def test_steps_back_from_regions_where_the_objective_is_infinite(scale: float) -> None:
    def objective(x: Tensor, rows: Tensor) -> tuple[Tensor, Tensor]:
        inside = x[:, 0] > 0
        safe = torch.where(inside, x[:, 0], 1.0)
        value = torch.where(inside, scale * (safe - safe.log()), torch.inf)
        return value, (scale * (1 - 1 / safe))[:, None]

    found = minimise(objective, torch.tensor([[0.01], [50.0]], dtype=torch.float64), evaluations=100)
    torch.testing.assert_close(found.x, torch.ones(2, 1, dtype=torch.float64), rtol=1e-3, atol=1e-3)


class _Waits(TorchDispatchMode):
    """Counts the operations for which a host waits for a device, outside `_positions`, and the calls of that."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        super().__init__()
        self.inside, self.positions, self.others = False, 0, list[str]()
        positions = lbfgs._positions

        def counted(*masks: Tensor) -> list[Tensor]:
            self.positions += 1
            self.inside = True
            try:
                return positions(*masks)
            finally:
                self.inside = False

        monkeypatch.setattr(lbfgs, "_positions", counted)

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = function.overloadpacket.__name__
        by_mask = name.startswith("index") and any(
            isinstance(index, Tensor) and index.dtype == torch.bool
            for places in args
            if isinstance(places, (list, tuple))
            for index in places
        )
        if not self.inside and (by_mask or name in ("_local_scalar_dense", "nonzero", "masked_select")):
            self.others.append(name)
        return function(*args, **(kwargs or {}))


def test_a_host_waits_for_its_device_twice_an_iteration(monkeypatch: pytest.MonkeyPatch) -> None:
    """On the CPU the same operations are called, and cost nothing."""
    calls = 0

    def objective(x: Tensor, rows: Tensor) -> tuple[Tensor, Tensor]:
        nonlocal calls
        calls += 1
        return 1 - 1 / (1 + x.square().sum(1)), 2 * x / (1 + x.square().sum(1))[:, None] ** 2

    g = torch.Generator().manual_seed(4)
    starts = torch.randn(6, 5, generator=g, dtype=torch.float64)
    with _Waits(monkeypatch) as waits:
        minimise(objective, starts, evaluations=40, tolerance=1e-14)
    assert calls > 5
    assert waits.others == []
    assert waits.positions <= 2 * calls
