"""Composed privacy-loss distributions as plain arrays, for files.

Guarantees:
  * a distribution is the ledger's own, in both directions, without rounding;
  * ε at any δ from the arrays equals that of the library that made them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fdaudit.accounting.costs import Charges, losses

__all__ = ["Distribution", "Losses", "composed"]

Values = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True, eq=False)
class Losses:
    """A privacy loss on a grid, rounded up: `probabilities[i]` is that of the loss grid * (lower + i).

    Attributes:
        grid: distance between two losses.
        lower: the first loss, as a multiple of the grid.
        infinity: the probability of an infinite loss.
        probabilities: (n,) of the losses from the first on.
    """

    grid: float
    lower: int
    infinity: float
    probabilities: Values

    def epsilons(self, deltas: Values) -> Values:
        """Return the least ε >= 0 at each δ; infinite if the infinite loss by itself is as likely as δ.

        δ(ε) = infinity + Σ p (1 - e^(ε - loss)) over losses above ε (Sommer, Meiser & Mohammadi 2019, Lemma 5).
        """
        first = max(0, 1 - self.lower)
        values = self.grid * (self.lower + np.arange(first, len(self.probabilities)))
        weights = self.probabilities[first:]
        mass = self.infinity + np.cumsum(weights[::-1])[::-1]
        scaled = np.cumsum((weights * np.exp(-values))[::-1])[::-1]
        with np.errstate(over="ignore", invalid="ignore"):  # losses so large that the term vanishes
            at = mass - np.exp(values) * scaled
        found = np.zeros(len(deltas))
        for i, delta in enumerate(deltas):
            fits = np.flatnonzero(at <= delta)
            if delta <= self.infinity:
                found[i] = np.inf
            elif len(fits):
                k = fits[0]
                ratio = (mass[k] - delta) / scaled[k] if scaled[k] > 0 else 1.0
                found[i] = min(np.log(max(ratio, 1.0)), values[k])
            elif len(values):
                found[i] = values[-1]
        return found


@dataclass(frozen=True, kw_only=True, eq=False)
class Distribution:
    """The composed privacy-loss distribution of one client's charges.

    Attributes:
        client: the client with these charges.
        remove: the loss of data with the unit against data without it, or with a replacement.
        add: the loss in the opposite direction.
    """

    client: str
    remove: Losses
    add: Losses

    def epsilons(self, deltas: Values) -> Values:
        """Return ε at each δ, the larger of both directions."""
        return np.maximum(self.remove.epsilons(deltas), self.add.epsilons(deltas))


def composed(client: str, charges: Charges) -> Distribution:
    """Return the composed distribution of all charges; takes about a second."""
    found = losses(charges)
    remove = _plain(found._pmf_remove)
    return Distribution(
        client=client, remove=remove, add=remove if found._symmetric else _plain(found._pmf_add)
    )


def _plain(pmf: Any) -> Losses:
    dense = pmf.to_dense_pmf()
    return Losses(
        grid=float(dense._discretization),
        lower=int(dense._lower_loss),
        infinity=float(dense._infinity_mass),
        probabilities=np.asarray(dense._probs, dtype=np.float64),
    )
