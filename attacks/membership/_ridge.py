"""Ridge regression from shadow models' answers to the coins that decided membership."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

__all__ = ["Regressed", "regressed", "regressed_in_parts", "regressed_sum", "stacked"]

_FLOOR = 1e-6
"""Smallest scale of an answer."""
_RIDGES = 10.0 ** torch.arange(-5, 2.01, 0.25, dtype=torch.float64)
"""λ over the mean squared length of centred answers."""


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
    parts: Sequence[tuple[Tensor, Tensor, float]], coins: Tensor, *, stack: bool
) -> Regressed:
    """Predict a client's coins from several of its answers, each scaled by how much shadows differ in it.

    One regression joins all answers. With `stack` each has a regression of its own as well, and these are stacked:
    those predictions count that have the smaller error on left-out shadows.

    Args:
        parts: of each answer, shadows' values (m, d), the victim's (d,), and the variance of a defence's noise.
        coins: (m, k) ±1 of the shadows.
        stack: whether regressions of one answer each are tried too.
    """
    scaled = []
    for theirs, mine, noise in parts:
        scale = (theirs - theirs.mean(0)).square().sum(1).mean().sqrt().clamp_min(_FLOOR)
        scaled.append((theirs / scale, mine / scale, noise / float(scale) ** 2))
    every, seen = torch.cat([one[0] for one in scaled], 1), torch.cat([one[1] for one in scaled])
    noise = sum(noise * len(mine) for _, mine, noise in scaled) / len(seen)
    joined = regressed(every, coins, seen, noise)
    if not stack or len(scaled) == 1:
        return joined
    alone = [regressed(theirs, coins, mine, noise) for theirs, mine, noise in scaled]
    return min(joined, stacked(alone, coins), key=lambda one: one.error)


def stacked(found: Sequence[Regressed], coins: Tensor) -> Regressed:
    """Join several predictions of the same coins into their best linear combination on shadows that are left out.

    Source: Wolpert, "Stacked generalization", Neural Networks 5 (1992); Breiman, "Stacked regressions", Machine
    Learning 24 (1996).

    Args:
        found: predictions from different answers of the same shadows; their noise is independent.
        coins: (m, k) ±1 of these shadows.
    """
    left_out = torch.stack([one.left_out.flatten() for one in found])
    noise = torch.stack([one.spread.sum() * len(coins) for one in found])
    square = left_out @ left_out.T + torch.diag(noise)
    weights = torch.linalg.pinv(square, hermitian=True) @ (left_out @ coins.double().flatten())
    return _judged(
        torch.einsum("r,rk->k", weights, torch.stack([one.coins for one in found])),
        torch.einsum("r,rmk->mk", weights, torch.stack([one.left_out for one in found])),
        torch.einsum("r,rk->k", weights.square(), torch.stack([one.spread for one in found])),
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
    scale = (x.square().sum() / m).clamp_min(1e-300)
    target = torch.block_diag(*(coins.double() for _, coins in clients))
    values, basis = torch.linalg.eigh(x @ x.T / scale)
    values, known = values.clamp_min(0), basis.T @ target
    square, toward = basis.square(), basis.T @ (x @ other) / scale
    best: list[Regressed] = []
    for ridge in _RIDGES.tolist():
        kept = values / (values + ridge)
        fitted = basis @ (kept[:, None] * known)
        left_out = target - (target - fitted) / (1 - square @ kept)[:, None].clamp_min(1e-9)
        spread = noise * ((kept / (values + ridge))[:, None] * known.square()).sum(0) / scale
        coins_ = toward @ (known / (values + ridge)[:, None])
        found = _by_client(clients, left_out, spread, coins_)
        if not best or sum(f.error for f in found) < sum(f.error for f in best):
            best = found
    return best


def _by_client(
    clients: Sequence[tuple[Tensor, Tensor]], left_out: Tensor, spread: Tensor, coins: Tensor
) -> list[Regressed]:
    """Split predictions (clients · m, all coins) by client, with each one's shadow added to one of every other's."""
    found, first = [], 0
    m = len(clients[0][0])
    for _, truth in clients:
        columns = slice(first, first + truth.shape[1])
        first = columns.stop
        summed = left_out[:, columns].reshape(len(clients), m, -1).sum(0)
        found.append(_judged(coins[columns], summed, spread[columns], truth.double()))
    return found


def _judged(coins: Tensor, left_out: Tensor, spread: Tensor, truth: Tensor) -> Regressed:
    """Say how well predictions (m, k) of left-out shadows tell their true coins."""
    deviation = spread.sqrt().clamp_min(1e-12)
    return Regressed(
        coins=coins,
        left_out=left_out,
        spread=spread,
        error=float((truth - left_out).square().mean() + spread.mean()),
        right=float(0.5 * torch.erfc(-left_out * truth / (math.sqrt(2) * deviation)).mean()),
    )
