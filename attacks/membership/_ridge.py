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
_ROUNDING = 1e-13
"""Eigenvalues in float64 below this share of the largest are rounding."""
_FEW_RIDGES = 10.0 ** torch.arange(-3, 2.01, 0.5, dtype=torch.float64)


@dataclass(frozen=True, kw_only=True, eq=False)
class Regressed:
    """One client's coins, predicted by ridge regression.

    Attributes:
        coins: (k,) of the victim.
        left_out: (m, k) of each shadow, predicted by the others.
        spread: (k,) variance that the noise of a defence adds to each prediction.
        error: mean squared error of those, noise included.
        right_by_shadow: (m,) share of each shadow's coins with correctly predicted sign, noise included.
    """

    coins: Tensor
    left_out: Tensor
    spread: Tensor
    error: float
    right_by_shadow: Tensor

    @property
    def right(self) -> float:
        """The share of all shadows' coins with correctly predicted sign."""
        return float(self.right_by_shadow.mean())


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
    those predictions count that have the smaller error on left-out shadows. With `own` the answers about all candidates
    are joined as well, and each coin has a regression of its own, in which those about its candidates count more: a
    ridge prior by feature.

    Args:
        parts: of each answer, shadows' values (m, d), the victim's (d,), and the variance of a defence's noise.
        coins: (m, k) ±1 of the shadows.
        stack: whether regressions of one answer each are tried too.
        own: what is known about each coin's candidates.
    """
    about_candidates = list[tuple[Tensor, Tensor, float]]()
    for about in own:
        about_candidates.append((about.theirs.flatten(1), about.mine.flatten(), about.noise))
    # Divide by the root of the shadows' mean squared distance from their mean, and noise.
    scaled = []
    for theirs, mine, noise in (*parts, *about_candidates):
        spread = (theirs - theirs.mean(0)).square().sum(1).mean() + noise * len(mine)
        scale = spread.sqrt().clamp_min(_FLOOR)
        scaled.append((theirs / scale, mine / scale, noise / float(scale) ** 2))
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
    """Return answers (k, m, e) and (k, e), scaled by how much shadows differ, and the variance of noise (k,)."""
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
    scale = (x.square().sum() / m).clamp_min(_TINY)
    values, basis = _spectrum(x, scale)
    by_client = basis.reshape(len(clients), m, -1)
    projected = [own.T @ coins.double() for own, (_, coins) in zip(by_client, clients, strict=True)]
    square = basis.square()
    toward = basis.T @ (x @ other) / scale
    best: list[Regressed] = []
    least = math.inf
    for ridge in _RIDGES.tolist():
        shrinkage = values / (values + ridge)
        slack = (1 - square @ shrinkage).clamp_min(1e-9).reshape(len(clients), m, 1)
        # A shadow that is left out of each client: their residuals add up, in closed form: residual / (1 - leverage).
        joined = (by_client / slack).sum(0) * shrinkage
        predictions = []
        for client, (_, coins) in enumerate(clients):
            truth = coins.double()
            # Noise of variance s² on every value adds s² ‖weights‖² to a prediction.
            spread = noise * (shrinkage / (values + ridge)) @ projected[client].square() / scale
            left_out = truth - truth / slack[client] + joined @ projected[client]
            predictions.append(
                _judged((toward / (values + ridge)) @ projected[client], left_out, spread, truth)
            )
        error = sum(one.error for one in predictions)
        if not best or error < least:
            best = predictions
            least = error
    return best


def _spectrum(x: Tensor, scale: Tensor) -> tuple[Tensor, Tensor]:
    """Return the eigenvalues (q,) of x xᵀ / scale and their vectors (n, q), from rows x (n, d); q is at most d.

    From the smaller one of x xᵀ and xᵀ x, so that time grows with the square of the smaller side.
    """
    n, d = x.shape
    if n <= d:
        values, basis = torch.linalg.eigh(x @ x.T / scale)
        return values.clamp_min(0), basis
    values, right = torch.linalg.eigh(x.T @ x / scale)
    kept = values > values.max() * _ROUNDING
    return values[kept], x @ right[:, kept] / (values[kept] * scale).sqrt()


def regressed_rehearsed(
    clients: Sequence[tuple[Tensor, Tensor]], seen: Tensor, residual: Tensor, rehearsed: Tensor
) -> list[Regressed]:
    """Predict the coins of several clients from values that are the sum of their answers and a residual.

    As `regressed_sum`, with the residual as one more client, which has no coins. λ is chosen by the error on rehearsed
    federations, each of which is left out with the shadows that hold the same records.

    Args:
        clients: answers (m, d) and coins (m, k) ±1 of each client's shadows; the same m for all.
        seen: (d,) the values.
        residual: (r, d) what each rehearsed federation's values hold in addition to its clients' answers; r at most m.
        rehearsed: (r, d) these values; in federation i each client holds the records of its shadow i.
    """
    r = len(residual)
    groups = list[Tensor]()
    coins = list[Tensor]()
    for answers, their_coins in clients:
        groups.append(answers.double())
        coins.append(their_coins.double())
    groups.append(residual.double())
    predictions = list[Tensor]()
    for i in range(r):
        other_groups = [_without(g, i) for g in groups]
        other_coins = [_without(c, i) for c in coins]
        predictions.append(_solved(other_groups, other_coins, rehearsed[i].double()))
    left_out = torch.stack(predictions, 1)  # (λ, r, all coins)
    truth = torch.cat([each[:r] for each in coins], 1)
    chosen = int((left_out - truth).square().mean((1, 2)).argmin())
    found = _solved(groups, coins, seen.double())[chosen]
    widths = [each.shape[1] for each in coins]
    parts = zip(found.split(widths), left_out[chosen].split(widths, 1), truth.split(widths, 1), strict=True)
    return [_judged(mine, theirs, torch.zeros_like(mine), true) for mine, theirs, true in parts]


def _without(rows: Tensor, index: int) -> Tensor:
    return torch.cat([rows[:index], rows[index + 1 :]])


def _solved(groups: Sequence[Tensor], coins: Sequence[Tensor], values: Tensor) -> Tensor:
    """Return all clients' coins (λ, k) that values (d,) predict, at every λ.

    Args:
        groups: answers (m, d) of each client's shadows, then the residuals (r, d).
        coins: (m, ·) of each client's shadows.
        values: the sum of one row of each group.
    """
    m = len(groups[0])
    means = list[Tensor]()
    rows = list[Tensor]()
    sizes = list[int]()
    for group in groups:
        means.append(group.mean(0))
        # The covariance of each group counts alike, however many draws there are of it.
        rows.append((group - means[-1]) * math.sqrt(m / max(len(group), 1)))
        sizes.append(len(group))
    x = torch.cat(rows)
    away = values - torch.stack(means).sum(0)
    scale = (x.square().sum() / m).clamp_min(_TINY)
    wide = len(x) <= x.shape[1]
    gram = (x @ x.T if wide else x.T @ x) / scale
    toward = x @ away if wide else away
    inverse = torch.linalg.cholesky(
        gram + _FEW_RIDGES[:, None, None] * torch.eye(len(gram), dtype=gram.dtype)
    )
    solved = torch.cholesky_solve(toward[None, :, None].expand(len(inverse), -1, -1), inverse).squeeze(2)
    weights = (solved if wide else solved @ x.T) / scale  # (λ, rows)
    predictions = list[Tensor]()
    for share, theirs in zip(weights.split(sizes, 1)[: len(coins)], coins, strict=True):
        predictions.append(share @ theirs)
    return torch.cat(predictions, 1)


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
        right_by_shadow=0.5 * torch.erfc(-left_out * truth / (math.sqrt(2) * deviation)).mean(1),
    )
