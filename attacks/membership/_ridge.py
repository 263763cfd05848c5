"""Ridge regression from shadow models' answers to the coins that decided membership."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

__all__ = ["Regressed", "regressed", "regressed_sum"]

_RIDGES = 10.0 ** torch.arange(-5, 2.01, 0.25, dtype=torch.float64)
"""λ over the mean squared length of centred answers."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Regressed:
    """One client's coins, predicted by ridge regression.

    Attributes:
        coins: (k,) of the victim.
        left_out: (m, k) of each shadow, predicted by the others.
        error: mean squared error of those, noise included.
        right: share of the shadows' coins with correctly predicted sign, noise included.
    """

    coins: Tensor
    left_out: Tensor
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
        margin = summed * truth.double()
        deviation = spread[columns].sqrt().clamp_min(1e-12)
        found.append(
            Regressed(
                coins=coins[columns],
                left_out=summed,
                error=float((truth.double() - summed).square().mean() + spread[columns].mean()),
                right=float(0.5 * torch.erfc(-margin / (math.sqrt(2) * deviation)).mean()),
            )
        )
    return found
