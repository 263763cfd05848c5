"""Score guessed class shares against those of each victim's training records."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar

import torch
from pydantic import Field
from torch import Tensor

from fdaudit.data import class_counts
from fdaudit.goals.label_distribution import GOAL, LabelDistribution
from fdaudit.handout.auxiliary import Assumption, others
from fdaudit.metrics import kl_divergence, mean_and_worst, score_label_distribution
from fdaudit.result import Shares, Target
from fdaudit.scoring.evidence import draws_of
from fdaudit.scoring.goals.scorer import CheckedTask, GoalScorer, Scores
from fdaudit.scoring.goals.submission import Reader, Submission
from fdaudit.scoring.ground_truth import Truth, class_shares
from fdaudit.types import Figure

__all__ = ["LabelGuess", "LabelScorer", "score_labels"]

_SUM_TOLERANCE = 1e-4
"""Tolerance for guessed shares' sum of 1: float32 rounding over thousands of classes."""


class LabelGuess(Submission):
    """Class shares of one victim's records."""

    explained: ClassVar[str] = "One for each victim."

    distribution: tuple[float, ...] = Field(min_length=1)
    """One share per class, with sum 1."""

    def guess(self, read: Reader, field: str, shape: tuple[int, ...]) -> LabelDistribution:
        """Return the shares, float64."""
        shares = torch.tensor(self.distribution, dtype=torch.float64)
        return LabelDistribution(target=self.target, distribution=shares)

    @classmethod
    def entry(cls, guess: LabelDistribution) -> tuple[dict[str, Any], dict[str, Tensor]]:
        """Return the shares; no tensor is needed."""
        return {"target": guess.target, "distribution": guess.distribution.double().tolist()}, {}


class LabelScorer(GoalScorer[LabelDistribution]):
    """Scores guessed class shares."""

    goal = GOAL
    submission = LabelGuess

    @classmethod
    def due(cls, asked: CheckedTask) -> Collection[str]:
        """Return the victims: each needs shares."""
        return asked.victims

    @classmethod
    def check(cls, guesses: Sequence[LabelDistribution], asked: CheckedTask) -> None:
        """Refuse shares that are no distribution over the classes."""
        for guess in guesses:
            shares = guess.distribution
            if shares.shape != (asked.classes,) or not bool(torch.isfinite(shares).all()):
                got = tuple(shares.shape)
                raise ValueError(
                    f"{guess.target}: needs one finite share for each of {asked.classes} classes, got {got}"
                )
            if bool((shares < 0).any()) or abs(float(shares.double().sum()) - 1) > _SUM_TOLERANCE:
                raise ValueError(f"{guess.target}: its shares are negative or do not sum to 1")

    def score(
        self, cell: str, guesses: Sequence[LabelDistribution], assumed: Sequence[Assumption] = ()
    ) -> Scores:
        """Return the distances of shares, and each victim's own with its shares."""
        return score_labels(self.truth, guesses)


def score_labels(truth: Truth, guesses: Sequence[LabelDistribution]) -> Scores:
    """Return the figures over all victims, and each victim's own with its shares.

    Args:
        truth: the auditor's side.
        guesses: one a victim.
    """
    name, prior = _prior(truth, [g.target for g in guesses])
    scores = {g.target: _distances(truth, g, name, prior) for g in guesses}
    targets = tuple(
        Target(
            target=g.target,
            figures=tuple(scores[g.target].values()),
            shares=Shares(
                truth=tuple(truth.label_shares(g.target).tolist()),
                guess=tuple(g.distribution.double().tolist()),
                prior=tuple(prior.tolist()),
            ),
        )
        for g in guesses
    )
    figures = []
    for figure in scores[guesses[0].target]:
        generator = draws_of(truth.case.seed, figure, list(scores))
        by_client = {t: s[figure] for t, s in scores.items()}
        mean, worst = mean_and_worst(by_client, generator, higher_is_worse=False)
        # The client nearest to the prior is no victim of anything: of the prior the mean alone says something.
        figures += [mean] if figure.endswith("_prior") else [mean, worst]
    return tuple(figures), targets


def _prior(truth: Truth, clients: Sequence[str]) -> tuple[str, Tensor]:
    """Return the better guess without a view, by mean KL divergence: equal shares or the auxiliary records' shares.

    The attack thus gets no credit for what auxiliary data reveals.

    Returns:
        Its name, and the shares (C,).
    """
    C = truth.case.dataset.classes
    uniform = torch.full((C,), 1 / C, dtype=torch.float64)
    priors = {"uniform prior": uniform}
    held = others(truth.case).records
    y = None if held is None else held[1]
    if y is not None and int(class_counts(y, C).sum()):
        priors["prior: class shares of auxiliary records"] = class_shares(y, C, "auxiliary")
    truths = [truth.label_shares(k) for k in clients]
    name = min(priors, key=lambda p: sum(kl_divergence(t, priors[p]) for t in truths))
    return name, priors[name]


def _distances(truth: Truth, guess: LabelDistribution, name: str, prior: Tensor) -> Mapping[str, Figure]:
    """Return the distances of one guess from the client's class shares, each with the prior's distance."""
    figures = score_label_distribution(truth.label_shares(guess.target), guess.distribution, prior)
    return {n: replace(f, note=f.note.replace("prior as given", name)) for n, f in figures.items()}
