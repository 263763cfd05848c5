"""Ridge regression from shadow models' answers to the coins that decided membership."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

__all__ = [
    "Own",
    "Regressed",
    "regressed",
    "regressed_in_parts",
    "regressed_rehearsed",
    "regressed_sum",
    "stacked",
    "unexplained",
]

_FLOOR = 1e-6
"""Smallest scale of an answer."""
_RIDGES = 10.0 ** torch.arange(-5, 2.01, 0.25, dtype=torch.float64)
"""λ over the mean squared length of centred answers."""
_OWN_SHARES = (0.3, 1.0, 3.0)
"""How much more than other answers those about a coin's own candidates may count."""
_RELATIVE = 1e-6
"""Eigenvalues below this share of the largest are rounding."""
_NOISES = 10.0 ** torch.arange(-7, 1.01, 0.25, dtype=torch.float64)
"""Variances of noise that are tried, over the largest of the shadows' own."""
_TINY = 1e-300
_FEW_RIDGES = 10.0 ** torch.arange(-3, 2.01, 0.5, dtype=torch.float64)


@dataclass(frozen=True, kw_only=True, eq=False)
class Regressed:
    """One client's coins, predicted by ridge regression.

    Attributes:
        coins: (k,) of the victim.
        left_out: (m, k) of each shadow, predicted by the others.
        spread: (k,) variance that the noise of a defence adds to each prediction.
        error: mean squared error of those, noise included.
        right: share of the shadows' coins with correctly predicted sign, noise included.
    """

    coins: Tensor
    left_out: Tensor
    spread: Tensor
    error: float
    right: float


@dataclass(frozen=True, kw_only=True, eq=False)
class Own:
    """Answers about each coin's own candidates, which tell more of it than other answers do.

    Attributes:
        theirs: (m, k, e) of the shadows.
        mine: (k, e) of the victim.
        noise: variance of a defence's noise on each of the victim's.
    """

    theirs: Tensor
    mine: Tensor
    noise: float = 0.0


def regressed(answers: Tensor, coins: Tensor, victim: Tensor, noise: float = 0.0) -> Regressed:
    """Predict a client's coins from its answers.

    Args:
        answers: (m, d) of its shadows.
        coins: (m, k) ±1.
        victim: (d,) its own answers.
        noise: variance of the noise that a defence put on each of the victim's answers.
    """
    return regressed_sum([(answers, coins)], victim, noise)[0]


def regressed_in_parts(
    parts: Sequence[tuple[Tensor, Tensor, float]],
    coins: Tensor,
    *,
    stack: bool,
    own: Sequence[Own] = (),
) -> Regressed:
    """Predict a client's coins from several of its answers, each scaled by how much shadows differ in it.

    One regression joins all answers. With `stack` each has a regression of its own as well, and these are stacked:
    those predictions count that have the smaller error on left-out shadows. With `own` each coin has a regression of
    its own, in which the answers about its candidates count more: a ridge prior by feature.

    Args:
        parts: of each answer, shadows' values (m, d), the victim's (d,), and the variance of a defence's noise.
        coins: (m, k) ±1 of the shadows.
        stack: whether regressions of one answer each are tried too.
        own: what is known about each coin's candidates.
    """
    scaled = [_scaled(*part) for part in parts]
    every = torch.cat([one[0] for one in scaled], 1)
    victim = torch.cat([one[1] for one in scaled])
    noise = sum(noise * len(mine) for _, mine, noise in scaled) / len(victim)
    joined = regressed(every, coins, victim, noise)
    if own:
        return min(joined, _by_coin((every, victim, noise), own, coins), key=lambda one: one.error)
    if not stack or len(scaled) == 1:
        return joined
    alone = [regressed(theirs, coins, mine, noise) for theirs, mine, noise in scaled]
    return min(joined, stacked(alone, coins), key=lambda one: one.error)


def _scaled(theirs: Tensor, mine: Tensor, noise: float) -> tuple[Tensor, Tensor, float]:
    """Divide answers (m, d) and (d,) by the root of the shadows' mean squared distance from their mean, and noise."""
    spread = (theirs - theirs.mean(0)).square().sum(1).mean() + noise * len(mine)
    scale = spread.sqrt().clamp_min(_FLOOR)
    return theirs / scale, mine / scale, noise / float(scale) ** 2


def _by_coin(shared: tuple[Tensor, Tensor, float], own: Sequence[Own], coins: Tensor) -> Regressed:
    """Predict each coin from the shared answers (m, d) and those about its own candidates, with one λ and one share.

    The kernel of coin j is K + α Σ K_j over its own answers, which is ridge regression with a wider prior on these.
    """
    kernel, toward = _kernel(*shared[:2])
    scaled = list(map(_scaled_by_coin, own))
    kernels = [_kernel(theirs, mine) for theirs, mine, _ in scaled]
    near, near_toward = map(sum, zip(*kernels, strict=True))
    truth = coins.double()
    best: Regressed | None = None
    for share in _OWN_SHARES:
        values, basis = torch.linalg.eigh(kernel + share * near)  # (k, m), (k, m, m)
        values = values.clamp_min(0)
        projected = (basis.mT @ truth.T[..., None]).squeeze(2)  # (k, m)
        square = basis.square()
        mean = values.mean(1, keepdim=True)
        for ridge in (_FEW_RIDGES[:, None, None] * mean).unbind():
            shrinkage = values / (values + ridge)
            fitted = (basis @ (shrinkage * projected)[..., None]).squeeze(2)
            # Left-out residuals in closed form: residual / (1 - leverage) (Golub, Heath & Wahba 1979).
            slack = (1 - (square @ shrinkage[..., None]).squeeze(2)).clamp_min(1e-9)
            left_out = truth.T - (truth.T - fitted) / slack
            dual = (basis @ (projected / (values + ridge))[..., None]).squeeze(2)  # (k, m)
            spread = shared[2] * torch.einsum("km,mn,kn->k", dual, kernel, dual)
            for (one, _), (_, _, noise) in zip(kernels, scaled, strict=True):
                spread = spread + share**2 * noise * torch.einsum("km,kmn,kn->k", dual, one, dual)
            candidate = _judged(
                ((toward + share * near_toward) * dual).sum(1), left_out.T, spread.clamp_min(0), truth
            )
            if best is None or candidate.error < best.error:
                best = candidate
    if best is None:
        raise ValueError("regressed_in_parts: no coin.")
    return best


def _kernel(theirs: Tensor, mine: Tensor) -> tuple[Tensor, Tensor]:
    """Return products (..., m, m) of centred answers (..., m, d), and their products (..., m) with the victim's."""
    centre = theirs.double().mean(-2, keepdim=True)
    answers = theirs.double() - centre
    return answers @ answers.mT, (answers @ (mine.double() - centre.squeeze(-2))[..., None]).squeeze(-1)


def _scaled_by_coin(own: Own) -> tuple[Tensor, Tensor, Tensor]:
    """Return answers (k, m, e) and (k, e) of each coin, scaled as `_scaled` does, and the variance of noise (k,)."""
    theirs = own.theirs.double().movedim(1, 0)
    scale = (theirs - theirs.mean(1, keepdim=True)).square().sum(2).mean(1).sqrt().clamp_min(_FLOOR)
    return theirs / scale[:, None, None], own.mine.double() / scale[:, None], own.noise / scale.square()


def stacked(regressions: Sequence[Regressed], coins: Tensor) -> Regressed:
    """Join several predictions of the same coins into their best linear combination on shadows that are left out.

    Source: Wolpert, "Stacked generalization", Neural Networks 5 (1992); Breiman, "Stacked regressions", Machine
    Learning 24 (1996).

    Args:
        regressions: predictions from different answers of the same shadows; their noise is independent.
        coins: (m, k) ±1 of these shadows.
    """
    left_out = torch.stack([one.left_out.flatten() for one in regressions])
    noise = torch.stack([one.spread.sum() * len(coins) for one in regressions])
    square = left_out @ left_out.T + torch.diag(noise)
    weights = torch.linalg.pinv(square, hermitian=True) @ (left_out @ coins.double().flatten())
    return _judged(
        torch.einsum("r,rk->k", weights, torch.stack([one.coins for one in regressions])),
        torch.einsum("r,rmk->mk", weights, torch.stack([one.left_out for one in regressions])),
        torch.einsum("r,rk->k", weights.square(), torch.stack([one.spread for one in regressions])),
        coins.double(),
    )


def regressed_sum(
    clients: Sequence[tuple[Tensor, Tensor]], seen: Tensor, noise: float = 0.0
) -> list[Regressed]:
    """Predict the coins of several clients from the sum of their answers.

    The best linear prediction needs the covariance of the sum, which is the sum of the clients' covariances. Each
    client's shadows therefore count separately, and no federation has to be simulated. λ covers a defence's noise and
    the uncertainty from few shadows. It is chosen by the error on left-out shadows, each added to one shadow of every
    other client and to noise.

    Source: Hoerl and Kennard, "Ridge regression", Technometrics 12 (1970); the closed form of left-out predictions is
    that of Golub, Heath and Wahba, Technometrics 21 (1979).

    Args:
        clients: answers (m, d) and coins (m, k) ±1 of each client's shadows; the same m for all.
        seen: (d,) the sum.
        noise: variance of the noise on each value of the sum.

    Raises:
        ValueError: clients have different numbers of shadows.
    """
    m = len(clients[0][0])
    if any(len(answers) != m or len(coins) != m for answers, coins in clients):
        raise ValueError("regressed_sum: every client needs the same number of shadows.")
    means = [answers.double().mean(0) for answers, _ in clients]
    x = torch.cat([answers.double() - mean for (answers, _), mean in zip(clients, means, strict=True)])
    other = seen.double() - torch.stack(means).sum(0)
    target = torch.block_diag(*(coins.double() for _, coins in clients))
    scale = (x.square().sum() / m).clamp_min(1e-300)
    values, basis = torch.linalg.eigh(x @ x.T / scale)
    values = values.clamp_min(0)
    projected = basis.T @ target
    square = basis.square()
    toward = basis.T @ (x @ other) / scale
    best: list[Regressed] = []
    least = math.inf
    for ridge in _RIDGES.tolist():
        shrinkage = values / (values + ridge)
        fitted = basis @ (shrinkage[:, None] * projected)
        slack = (1 - square @ shrinkage)[:, None].clamp_min(1e-9)
        left_out = target - (target - fitted) / slack
        # Noise of variance s² on every value adds s² ‖weights‖² to a prediction.
        spread = noise * ((shrinkage / (values + ridge))[:, None] * projected.square()).sum(0) / scale
        coins_ = toward @ (projected / (values + ridge)[:, None])
        predictions = _by_client(clients, left_out, spread, coins_)
        error = sum(one.error for one in predictions)
        if not best or error < least:
            best = predictions
            least = error
    return best


def _by_client(
    clients: Sequence[tuple[Tensor, Tensor]], left_out: Tensor, spread: Tensor, coins: Tensor
) -> list[Regressed]:
    """Split predictions (clients · m, all coins) by client, with each one's shadow added to one of every other's."""
    predictions, first = [], 0
    m = len(clients[0][0])
    for _, truth in clients:
        columns = slice(first, first + truth.shape[1])
        first = columns.stop
        summed = left_out[:, columns].reshape(len(clients), m, -1).sum(0)
        predictions.append(_judged(coins[columns], summed, spread[columns], truth.double()))
    return predictions


def regressed_rehearsed(
    clients: Sequence[tuple[Tensor, Tensor]], seen: Tensor, residual: Tensor, rehearsed: Tensor
) -> list[Regressed]:
    """Predict the coins of several clients from values that are the sum of their answers and a residual.

    As `regressed_sum`, with the residual as one more client, which has no coins. λ is chosen by the error on rehearsed
    federations, each of which is left out with the shadows that hold the same records.

    Args:
        clients: answers (m, d) and coins (m, k) ±1 of each client's shadows; the same m for all.
        seen: (d,) the values.
        residual: (r, d) what each rehearsed federation's values hold besides its clients' answers; r at most m.
        rehearsed: (r, d) these values; in federation i each client holds the records of its shadow i.
    """
    m = len(clients[0][0])
    r = len(residual)
    sizes = [m] * len(clients) + [r]
    rows = torch.cat([*(answers for answers, _ in clients), residual, rehearsed, seen[None]]).double()
    products = rows @ rows.T
    target = torch.block_diag(*(coins.double() for _, coins in clients))
    target = torch.cat([target, target.new_zeros(r, target.shape[1])])
    truth = torch.cat([coins[:r] for _, coins in clients], 1).double()
    left_out = torch.stack(
        [_solved(products, sizes, target, sum(sizes) + number, leave=number) for number in range(r)], 1
    )  # (λ, r, all coins)
    chosen = int((left_out - truth).square().mean((1, 2)).argmin())
    coins = _solved(products, sizes, target, len(rows) - 1)[chosen]
    widths = [coins_.shape[1] for _, coins_ in clients]
    parts = zip(coins.split(widths), left_out[chosen].split(widths, 1), truth.split(widths, 1), strict=True)
    return [_judged(mine, theirs, torch.zeros_like(mine), true) for mine, theirs, true in parts]


def _solved(
    products: Tensor, sizes: Sequence[int], target: Tensor, row: int, leave: int | None = None
) -> Tensor:
    """Return the coins (λ, k) that one row predicts, at every λ.

    Args:
        products: (n, n) inner products of all rows.
        sizes: rows of each client and of the residual; the rows that follow belong to none.
        target: coins (Σ sizes, k) of these.
        row: the row.
        leave: the row of every client, and of the residual, that is left out.
    """
    rows = list[int]()
    centring = list[Tensor]()
    mean = products.new_zeros(len(products))
    first = 0
    for size in sizes:
        of = list(range(first, first + size))
        if leave is not None:
            of.remove(first + leave)
        average = products.new_zeros(len(products))
        average[of] = 1 / len(of)
        each = -average.repeat(len(of), 1)
        each[torch.arange(len(of)), of] += 1
        # The covariance of each counts alike, however many draws there are of it.
        centring.append(each * math.sqrt(sizes[0] / max(len(of), 1)))
        rows = rows + of
        mean = mean + average
        first = first + size
    apart = -mean
    apart[row] += 1
    spread = torch.cat(centring)
    kernel = spread @ products @ spread.T
    scale = (kernel.diagonal().sum() / sizes[0]).clamp_min(1e-300)
    values, basis = torch.linalg.eigh(kernel / scale)
    projected = basis.T @ target[rows]
    toward = ((apart @ products @ spread.T) / scale) @ basis
    ridges = _FEW_RIDGES[:, None]
    coins: Tensor = (toward / (values.clamp_min(0) + ridges)) @ projected
    return coins


def unexplained(parts: Sequence[Tensor], seen: Tensor) -> float:
    """Return the variance of noise on all values under which a sum of shadows' parts (m, d) is likeliest.

    The sum is Gaussian with the covariance of its parts, in the span of all shadows.
    """
    rows = torch.cat([part - part.mean(0) for part in parts])
    away = seen - torch.stack([part.mean(0) for part in parts]).sum(0)
    values, basis = torch.linalg.eigh((rows @ rows.T).double())
    spanned = values > _RELATIVE * values.max().clamp_min(_TINY)
    if not bool(spanned.any()):
        return 0.0
    energy = (basis.T @ (rows @ away).double())[spanned].square() / values[spanned]
    variance = values[spanned] / len(parts[0])
    noise = (_NOISES * variance.max())[:, None]
    # Twice the log density of a Gaussian, up to a constant, at every candidate for the noise's variance.
    likelihood = -(energy / (variance + noise) + (variance + noise).log()).sum(1)
    return float(noise[likelihood.argmax()])


def _judged(coins: Tensor, left_out: Tensor, spread: Tensor, truth: Tensor) -> Regressed:
    """Say how well predictions (m, k) of left-out shadows tell their true coins."""
    deviation = spread.sqrt().clamp_min(1e-12)
    # The sign is right with probability Φ(left_out · truth / deviation), because a defence's noise is Gaussian.
    return Regressed(
        coins=coins,
        left_out=left_out,
        spread=spread,
        error=float((truth - left_out).square().mean() + spread.mean()),
        right=float(0.5 * torch.erfc(-left_out * truth / (math.sqrt(2) * deviation)).mean()),
    )
