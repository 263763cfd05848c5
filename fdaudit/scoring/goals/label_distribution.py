"""Score guessed class shares against those of each victim's training records."""

from __future__ import annotations

from collections.abc import Collection, Sequence
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
    name, prior = _prior(truth, [guess.target for guess in guesses])
    scores: dict[str, dict[str, Figure]] = {}
    targets = []
    for guess in guesses:
        client = guess.target
        scores[client] = {}
        # The distances of the guess from the client's class shares, each with the prior's distance.
        distances = score_label_distribution(truth.label_shares(client), guess.distribution, prior)
        for figure_name, figure in distances.items():
            note = figure.note.replace("prior as given", name)
            scores[client][figure_name] = replace(figure, note=note)
        shares = Shares(
            truth=tuple(truth.label_shares(client).tolist()),
            guess=tuple(guess.distribution.double().tolist()),
            prior=tuple(prior.tolist()),
        )
        targets.append(Target(target=client, figures=tuple(scores[client].values()), shares=shares))
    figures = []
    for figure_name in scores[guesses[0].target]:
        generator = draws_of(truth.case.seed, figure_name, list(scores))
        by_client = {client: of_client[figure_name] for client, of_client in scores.items()}
        mean, worst = mean_and_worst(by_client, generator, higher_is_worse=False)
        figures.append(mean)
        # The client nearest to the prior is no victim of anything: of the prior the mean alone says something.
        if not figure_name.endswith("_prior"):
            figures.append(worst)
    return tuple(figures), tuple(targets)


def _prior(truth: Truth, clients: Sequence[str]) -> tuple[str, Tensor]:
    """Return the better guess without a view, by mean KL divergence: equal shares or the auxiliary records' shares.

    The attack thus gets no credit for what auxiliary data reveals.

    Returns:
        Its name, and the shares (C,).
    """
    C = truth.case.dataset.classes
    uniform = torch.full((C,), 1 / C, dtype=torch.float64)
    priors = {"uniform prior": uniform}
    auxiliary = others(truth.case).records
    if auxiliary is not None:
        _, y = auxiliary
        if int(class_counts(y, C).sum()):
            priors["prior: class shares of auxiliary records"] = class_shares(y, C, "auxiliary")
    truths = [truth.label_shares(client) for client in clients]

    def divergence(name: str) -> float:
        return sum(kl_divergence(shares, priors[name]) for shares in truths)

    name = min(priors, key=divergence)
    return name, priors[name]
