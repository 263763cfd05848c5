"""Known facts about the coins that decided membership."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from torch import Tensor

    from fdaudit.types import Challenge

__all__ = ["against_its_pair", "pairs_of", "scores_of"]


def pairs_of(challenge: Challenge) -> Tensor | None:
    """Return (k, 2) candidates of each matched pair, of which exactly one is a member; None for separate coins."""
    if challenge.design != "matched-pairs":
        return None
    order = challenge.pair.argsort(stable=True)
    return order.reshape(-1, 2)


def against_its_pair(scores: Tensor, challenge: Challenge) -> Tensor:
    """Return scores (n,) minus those of the other candidate of each pair, if candidates come in pairs."""
    pairs = pairs_of(challenge)
    if pairs is None:
        return scores
    other = torch.empty_like(challenge.pair)
    other[pairs[:, 0]], other[pairs[:, 1]] = pairs[:, 1], pairs[:, 0]
    return scores - scores[other]


def scores_of(coins: Tensor, challenge: Challenge, *, paired: bool) -> Tensor:
    """Return scores (n,) of candidates from their predicted coins (k,)."""
    pairs = pairs_of(challenge) if paired else None
    if pairs is None:
        return coins
    scores = coins.new_zeros(len(challenge.y))
    scores[pairs[:, 0]], scores[pairs[:, 1]] = coins, -coins
    return scores
