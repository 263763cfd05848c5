"""Membership by distance to the decision boundary: models keep it further away from training records."""

from __future__ import annotations

from typing import ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor

from fdaudit.registry import AttackCard
from fdaudit.types import Challenge

from .._reading import reads_forms
from .base import Given, LabelOnly, LabelOnlyConfig, Voter
from .hopskipjump import Boundary, Schedule, boundary_distances

__all__ = ["BoundaryDistance", "BoundaryDistanceConfig", "note_on", "scores_of"]

_LEAST = 24
"""Smallest number of queries a candidate for a useful HopSkipJump iteration."""


class BoundaryDistanceConfig(LabelOnlyConfig):
    """Settings of the boundary-distance attack."""

    queries: int = Field(2500, ge=24)
    """Largest number of queries a candidate; fewer if the budget, divided equally, allows no more."""
    directions: int = Field(100, ge=4)
    """Samples of the first estimate of the gradient; the t-th has √t times as many."""
    halvings: int = Field(8, ge=1)
    """Step sizes tried in one iteration."""
    starts: int = Field(100, ge=1)
    """Possible starting points queried for each victim, shared by its candidates."""
    start: Literal["records", "noise"] = "records"
    """Starting points: auxiliary records and uniform noise, half each (only noise if the adversary has no records), or
    only uniform noise as in the paper."""


@reads_forms
class BoundaryDistance(LabelOnly):
    """Scores a candidate by its ℓ2 distance to the decision boundary, found by HopSkipJump from hard labels.

    A misclassified candidate has distance 0. A candidate without a starting point of another class scores above all
    others, because no boundary was found; the figure's note gives their number. All candidates of a victim advance
    together, and each has the same number of queries. In `quick` that number is small, in runs and controls.
    """

    card = AttackCard(
        name="boundary-distance",
        work={"once": 700, "each": 850, "grows": ("queries",)},
        goal="membership",
        needs=("oracle (hard labels)", "model_parameters"),
        assumes=("auxiliary",),
        oracle="hard",
        source=(
            "Choquette-Choo, Tramèr, Carlini & Papernot 2021; Li & Zhang 2021; HopSkipJump: Chen, Jordan & Wainwright "
            "2020"
        ),
        tasks=("single-label",),
        profiles={
            "quick": {"queries": 60, "directions": 12, "halvings": 3, "starts": 40},
            "standard": {"queries": 1000, "directions": 50},
            "full": {"queries": 10000, "directions": 100},
        },
    )
    Config: ClassVar[type[BoundaryDistanceConfig]] = BoundaryDistanceConfig

    def least(self) -> int:
        """Return the queries for the candidate, an initial search, one iteration, and the share of starting points."""
        return _LEAST

    def most(self) -> int:
        """Return the number in the settings."""
        return int(self.config.queries)

    def score(self, ask: Voter, challenge: Challenge, questions: int, given: Given) -> tuple[Tensor, str]:
        """Return distances (n,), and a note on candidates without a measured distance."""
        n = len(challenge.y)
        count = min(self.config.starts, max(1, n * questions // 10))
        if self.config.start == "noise" or given.knowledge.auxiliary is None:
            starts = torch.rand(count, *challenge.x.shape[1:], generator=given.generator)
        else:
            records = given.knowledge.auxiliary[0]
            own = min(len(records), count // 2)
            noise = torch.rand(count - own, *challenge.x.shape[1:], generator=given.generator)
            chosen = torch.randperm(len(records), generator=given.generator)[:own]
            starts = torch.cat([records[chosen].to(noise), noise])
        schedule = Schedule(
            queries=(n * questions - len(starts)) // n,
            directions=self.config.directions,
            halvings=self.config.halvings,
            chunk=ask.chunk,
        )
        boundary = boundary_distances(
            ask, challenge.x, challenge.y, starts, ask(starts), schedule, given.generator
        )
        return scores_of(boundary), note_on(boundary)


def scores_of(boundary: Boundary) -> Tensor:
    """Return distances (n,); candidates without a boundary score above all others."""
    finite = boundary.distance[boundary.distance.isfinite()]
    above = 1.0
    if len(finite):
        above += float(finite.max())
    return boundary.distance.nan_to_num(posinf=above)


def note_on(boundary: Boundary) -> str:
    """Describe the candidates without a measured distance; empty if there are none."""
    wrong = int((~boundary.right).sum())
    lost = int((boundary.right & ~boundary.started).sum())
    n = len(boundary.right)
    parts = []
    if wrong:
        parts.append(f"{wrong} of {n} candidates are classified wrong: distance 0")
    if lost:
        parts.append(f"no starting point was found for {lost} of {n}, which score as most distant")
    return "; ".join(parts)
