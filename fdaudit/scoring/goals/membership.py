"""Score membership guesses against the coins that decided who is a member."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace
from functools import partial
from typing import Annotated, ClassVar

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from fdaudit.goals.membership import GOAL, Membership
from fdaudit.handout.auxiliary import Assumption
from fdaudit.metrics import MembershipScore, auc_figure, mean_and_worst, score_generated, score_membership
from fdaudit.result import Roc, Target, noted
from fdaudit.scoring.goals.scorer import CheckedTask, GoalScorer, Scores
from fdaudit.scoring.goals.submission import Reader, Submission, Text
from fdaudit.tasks import labels_of
from fdaudit.types import Figure

__all__ = ["NO_COINS", "MembershipGuess", "MembershipScorer"]

NO_COINS = (
    "Observational: no coins decided who is a member. Members may differ from the others by more than their training, "
    "so the AUC stands beside that of a blind baseline, which sees the candidates and no message. No p-value and no ε "
    "follow from it."
)
"""What stands beside every figure of members that were not drawn by coins."""
_FOLDS = 5
"""Parts of the candidates that the blind baseline predicts in turn."""


class MembershipGuess(Submission):
    """Membership scores for one victim's challenge."""

    explained: ClassVar[str] = "Give this, or one of the next three."

    target: Text
    """The victim, for example `client/0`."""
    challenge: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
    """SHA-256 of the file with the candidates, from the card."""
    scores: tuple[float, ...] = Field(min_length=1)
    """One score per candidate, in the file's order; higher means member."""

    def guess(self, read: Reader, field: str, shape: tuple[int, ...]) -> Membership:
        """Return the scores, float64."""
        return Membership(target=self.target, scores=torch.tensor(self.scores, dtype=torch.float64))


class MembershipScorer(GoalScorer[Membership]):
    """Scores membership guesses."""

    goal = GOAL
    submission = MembershipGuess

    @classmethod
    def due(cls, asked: CheckedTask) -> Collection[str]:
        """Return the challenged victims: each needs scores."""
        return asked.candidates

    @classmethod
    def check(cls, guesses: Sequence[Membership], asked: CheckedTask) -> None:
        """Refuse other than one finite score for each candidate, and generated samples that are no finite images."""
        for guess in guesses:
            n = asked.candidates[guess.target]
            if guess.scores.shape != (n,) or not bool(torch.isfinite(guess.scores).all()):
                got = tuple(guess.scores.shape)
                raise ValueError(
                    f"{guess.target}: needs one finite score for each of {n} candidates, got {got}"
                )
            images = guess.generated
            if images is None:
                continue
            if images.ndim != 4 or not len(images) or not bool(torch.isfinite(images).all()):
                got = tuple(images.shape)
                raise ValueError(f"{guess.target}: needs finite generated images (k, c, h, w), got {got}")

    def score(self, cell: str, guesses: Sequence[Membership], assumed: Sequence[Assumption] = ()) -> Scores:
        """Return the figures over all victims' candidates, and each victim's own with its ROC."""
        whole = self._pooled(guesses)
        scores: dict[str, MembershipScore] = {}
        targets = []
        for guess in guesses:
            score = scores[guess.target] = self._pooled([guess])
            figures = [noted(figure, guess.note) for figure in score.figures.values()]
            figures += _rehearsed([guess])
            figures += self._blind([guess])
            figures += self._generated([guess])
            roc = Roc(fpr=tuple(score.roc.fpr.tolist()), tpr=tuple(score.roc.tpr.tolist()))
            targets.append(Target(target=guess.target, figures=tuple(figures), roc=roc))
        figures = list(whole.figures.values())
        for figure in whole.figures.values():
            by_victim = {victim: score.figures[figure.name] for victim, score in scores.items()}
            _, worst = mean_and_worst(by_victim, self.scores.draws(figure.name, guesses))
            figures.append(worst)
        figures += _rehearsed(guesses)
        figures += self._blind(guesses)
        figures += self._generated(guesses)
        return tuple(figures), tuple(targets)

    def _pooled(self, guesses: Sequence[Membership]) -> MembershipScore:
        """Score membership guesses against the coins, with the candidates of all victims pooled."""
        return self.scores.once("membership", guesses, partial(self._score_pooled, guesses))

    def _score_pooled(self, guesses: Sequence[Membership], generator: np.random.Generator) -> MembershipScore:
        scores, members, pairs, offset = [], [], [], 0
        for guess in guesses:
            challenge, member = self.truth.challenge(guess.target)
            scores.append(guess.scores)
            members.append(member)
            pairs.append(challenge.pair + offset)
            offset += len(member) // 2
        score = partial(score_membership, torch.cat(scores), torch.cat(members), generator=generator)
        if self.case.design != "observational":
            return score(pair=torch.cat(pairs))
        without_coins = score(pair=None)
        figures = {}
        for name, figure in without_coins.figures.items():
            figures[name] = noted(replace(figure, p=None), NO_COINS)
        return replace(without_coins, figures=figures)

    def _blind(self, guesses: Sequence[Membership]) -> tuple[Figure, ...]:
        """Return the AUC of a classifier that sees the candidates and no message; none if coins decided.

        It is logistic regression on pixels and labels. Each part of the candidates is predicted from the others.
        """
        if self.case.design != "observational":
            return ()
        from sklearn.linear_model import LogisticRegression
        from sklearn.preprocessing import StandardScaler

        values, members = [], []
        for guess in guesses:
            challenge, member = self.truth.challenge(guess.target)
            generator = self.scores.draws("blind", [guess])
            y = labels_of(challenge.y).as_numbers(challenge.y)
            inputs = StandardScaler().fit_transform(torch.cat([challenge.x.flatten(1), y.float()], 1).numpy())
            truth, scores = member.numpy(), np.zeros(len(member))
            part = np.empty(len(truth), dtype=np.int64)
            for group in (truth, ~truth):  # members and others in equal shares of every part
                rows = generator.permutation(np.flatnonzero(group))
                part[rows] = np.arange(len(rows)) % _FOLDS
            for fold in range(_FOLDS):
                rest = part != fold
                if len(set(truth[rest])) == 2 and not rest.all():
                    model = LogisticRegression(C=0.01, max_iter=1000).fit(inputs[rest], truth[rest])
                    scores[~rest] = model.decision_function(inputs[~rest])
            values.append(torch.from_numpy(scores))
            members.append(member)
        figure = auc_figure(torch.cat(values), torch.cat(members), self.scores.draws("auc_blind", guesses))
        return (noted(replace(figure, name="auc_blind", p=None), NO_COINS),)

    def _generated(self, guesses: Sequence[Membership]) -> tuple[Figure, ...]:
        """Measure how much nearer generated samples are to members than to non-members; pool victims that have samples.

        The result is empty if no guess uses generated samples. Samples that several victims share count once.
        """
        with_samples = [g for g in guesses if g.generated is not None]
        if not with_samples or self.inputs.encode is None:
            return ()
        inside, outside = list[Tensor](), list[Tensor]()
        for guess in with_samples:
            challenge, member = self.truth.challenge(guess.target)
            order = challenge.pair.argsort(stable=True)  # both halves in the order of their pairs
            x, member = challenge.x[order], member[order]
            inside.append(x[member])
            outside.append(x[~member])
        generated = list[Tensor]()
        for guess in with_samples:
            samples = guess.generated
            if samples is not None and not any(torch.equal(samples, earlier) for earlier in generated):
                generated.append(samples)
        return score_generated(
            torch.cat(generated),
            torch.cat(inside),
            torch.cat(outside),
            self.inputs.encode,
            self.scores.draws("generated", with_samples),
        )


def _rehearsed(guesses: Sequence[Membership]) -> list[Figure]:
    """Return the mean share of coins told right in rehearsed federations; empty if the attack rehearsed none."""
    shares = [guess.rehearsed for guess in guesses if guess.rehearsed is not None]
    if not shares:
        return []
    value = sum(shares) / len(shares)
    note = "of known coins in rehearsed federations or left-out shadows; the attack's own figure"
    return [Figure(name="pair_accuracy_rehearsed", value=value, unit="fraction", note=note)]
