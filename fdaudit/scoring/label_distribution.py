"""Score guessed class shares against those of each victim's training records."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from fdaudit.data import class_counts
from fdaudit.handout.auxiliary import others
from fdaudit.metrics import kl_divergence, mean_and_worst, score_label_distribution
from fdaudit.result import Shares, Target
from fdaudit.rng import child_numpy
from fdaudit.scoring.ground_truth import Truth, class_shares
from fdaudit.types import Figure, LabelDistribution

__all__ = ["score_labels"]


def score_labels(
    truth: Truth, cell: str, guesses: Sequence[LabelDistribution]
) -> tuple[tuple[Figure, ...], tuple[Target, ...]]:
    """Return the figures over all victims, and each victim's own with its shares.

    Args:
        truth: the auditor's side.
        cell: the cell's id; names its random draws.
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
        generator = child_numpy(truth.plan.seed, "score", cell, figure)
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
    C = truth.plan.dataset.classes
    uniform = torch.full((C,), 1 / C, dtype=torch.float64)
    priors = {"uniform prior": uniform}
    held = others(truth.plan).records
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
