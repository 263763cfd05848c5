"""Score membership guesses against the coins that decided who is a member."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from fdaudit.metrics import MembershipScore, mean_and_worst, score_generated, score_membership
from fdaudit.result import TargetResult, noted
from fdaudit.rng import child_numpy
from fdaudit.scoring.ground_truth import Truth
from fdaudit.types import Figure, Membership

__all__ = ["MembershipScorer"]


class MembershipScorer:
    """Scores membership guesses.

    Args:
        truth: the auditor's side of every challenge.
        encode: the task encoder, for distances between sets of images.
    """

    def __init__(self, truth: Truth, encode: Callable[[Tensor], Tensor]) -> None:
        self._truth, self._seed, self._encode = truth, truth.plan.seed, encode

    def score(
        self, cell: str, guesses: Sequence[Membership]
    ) -> tuple[tuple[Figure, ...], tuple[TargetResult, ...]]:
        """Return the figures over all victims' candidates, and each victim's own with its ROC."""
        whole = self._pooled(guesses, cell)
        scores = {g.target: self._pooled([g], cell) for g in guesses}
        targets = tuple(
            TargetResult(
                target=guess.target,
                figures=(
                    *(noted(f, guess.note) for f in scores[guess.target].figures.values()),
                    *self._generated([guess], cell),
                ),
                roc=_roc(scores[guess.target]),
            )
            for guess in guesses
        )
        figures = list(whole.figures.values())
        for name in figures[:]:
            generator = child_numpy(self._seed, "score", cell, name.name)
            figures.append(mean_and_worst({t: s.figures[name.name] for t, s in scores.items()}, generator)[1])
        return (*figures, *self._generated(guesses, cell)), targets

    def _pooled(self, guesses: Sequence[Membership], cell: str) -> MembershipScore:
        """Score membership guesses against the coins, with the candidates of all victims pooled."""
        members, pairs, offset = [], [], 0
        for guess in guesses:
            challenge, member = self._truth.challenge(guess.target)
            members.append(member)
            pairs.append(challenge.pair + offset)
            offset += len(member) // 2
        return score_membership(
            torch.cat([g.scores for g in guesses]),
            torch.cat(members),
            generator=child_numpy(self._seed, "score", cell, *(g.target for g in guesses)),
            pair=torch.cat(pairs),
        )

    def _generated(self, guesses: Sequence[Membership], cell: str) -> tuple[Figure, ...]:
        """Measure how much nearer generated samples are to members than to non-members; pool victims that have samples.

        The result is empty if no guess uses generated samples. Samples that several victims share count once.
        """
        with_samples = [g for g in guesses if g.generated is not None]
        if not with_samples:
            return ()
        inside, outside = list[Tensor](), list[Tensor]()
        for guess in with_samples:
            challenge, member = self._truth.challenge(guess.target)
            order = challenge.pair.argsort(stable=True)  # both halves in the order of their pairs
            x, member = challenge.x[order], member[order]
            inside.append(x[member])
            outside.append(x[~member])
        made = list[Tensor]()
        for guess in with_samples:
            if guess.generated is not None and not any(
                m.shape == guess.generated.shape and torch.equal(m, guess.generated) for m in made
            ):
                made.append(guess.generated)
        return score_generated(
            torch.cat(made),
            torch.cat(inside),
            torch.cat(outside),
            self._encode,
            child_numpy(self._seed, "score-generated", cell, *(g.target for g in with_samples)),
        )


def _roc(score: MembershipScore) -> dict[str, Any]:
    return {"fpr": score.roc.fpr.tolist(), "tpr": score.roc.tpr.tolist()}
