"""Membership from recorded answers: the coins that decided about records, by regression on answers of shadows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from pydantic import Field
from torch import Tensor

from fdaudit.config import Config
from fdaudit.types import Applicability, AttackTask, Membership

from ._answers import Recorded, recorded
from ._coins import pairs_of
from ._matched import Matched, matched
from ._references import missing

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from fdaudit.knowledge import Knowledge
    from fdaudit.types import Challenge
    from fdaudit.view import View

__all__ = ["CoinRegression", "CoinRegressionConfig", "Regressed", "regressed"]

_RIDGES = 10.0 ** torch.arange(-5, 2.01, 0.25, dtype=torch.float64)
"""λ over the mean squared length of centred answers."""
_FLOOR = 1e-6
"""Smallest probability before a logarithm."""


class CoinRegressionConfig(Config):
    """Settings of coin regression."""

    shadows: int = Field(200, ge=8)
    """Shadow models of each victim."""
    most_steps: int = Field(2000, ge=1)
    """Training steps of one shadow model, at most."""
    samples: int = Field(1000, ge=1)
    """Samples whose answers are looked at, at most."""
    paired: bool = True
    """Whether it is used that one candidate of each matched pair is a member."""
    seed: int = Field(0, ge=0, lt=2**63)
    """Of coins, records besides the candidates and batches."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Regressed:
    """Coins as a ridge regression predicts them.

    Attributes:
        coins: (k,) of the victim.
        left_out: (m, k) of each shadow, by the others.
        error: mean squared error of those.
    """

    coins: Tensor
    left_out: Tensor
    error: float


def regressed(answers: Tensor, coins: Tensor, victim: Tensor) -> Regressed:
    """Ridge regression of coins on answers, λ by leave-one-out error over all coins together.

    Source: Golub, Heath and Wahba, "Generalized cross-validation as a method for choosing a good ridge parameter",
    Technometrics 21 (1979), Eq. 1.3 with the closed form of the left-out residual.

    Args:
        answers: (m, d) of the shadows.
        coins: (m, k) ±1.
        victim: (d,).
    """
    mean = answers.double().mean(0)
    x, other, target = answers.double() - mean, victim.double() - mean, coins.double()
    scale = x.square().sum(1).mean().clamp_min(1e-300)
    values, basis = torch.linalg.eigh(x @ x.T / scale)
    values, seen = values.clamp_min(0), basis.T @ target
    best: Regressed | None = None
    for ridge in _RIDGES.tolist():
        hat = (basis * (values / (values + ridge))) @ basis.T
        left_out = target - (target - hat @ target) / (1 - hat.diagonal())[:, None].clamp_min(1e-9)
        error = float((target - left_out).square().mean())
        if best is None or error < best.error:
            weights = basis @ (seen / (values + ridge)[:, None])
            best = Regressed(coins=(x @ other / scale) @ weights, left_out=left_out, error=error)
    if best is None:
        raise ValueError("regressed: no ridge to choose from")
    return best


class CoinRegression:
    """Learns from shadow models how each candidate moves a client's answers, and reads the coins off its real ones.

    Shadows have the victim's number of records and classes, train as it does, and start from the public initial
    weights. Of a matched pair one candidate is in each. What they answer to the samples that the victim answered
    is regressed on. Left-out shadows say beforehand how well that will do.
    """

    name: ClassVar[str] = "coin-regression"
    goal: ClassVar[str] = "membership"
    needs: ClassVar[tuple[str, ...]] = ("logits", "soft_labels")
    assumes: ClassVar[tuple[str, ...]] = ("architecture", "auxiliary", "initial", "public")
    source: ClassVar[str] = "Hoerl & Kennard 1970 on shadow models (Shokri et al. 2017)"
    control: ClassVar[dict[str, str]] = {"on": "federation"}
    profiles: ClassVar[dict[str, dict[str, Any]]] = {
        "quick": {"shadows": 200},
        "standard": {"shadows": 800},
        "full": {"shadows": 2000},
    }
    Config: ClassVar[type[CoinRegressionConfig]] = CoinRegressionConfig

    def __init__(self, config: CoinRegressionConfig) -> None:
        self.config = config

    def applicable(self, view: View, knowledge: Knowledge, task: AttackTask) -> Applicability:
        """Yes with recorded answers of a victim, and what shadow models need."""
        if not (lacking := missing(knowledge, task)):
            return lacking
        if not set(recorded(view, knowledge, 1)) & set(task.challenges):
            return Applicability(
                False, "no logits or soft_labels of a victim in view, on samples that are known"
            )
        return Applicability(True)

    def run(
        self, view: View, knowledge: Knowledge, task: AttackTask, generator: torch.Generator
    ) -> tuple[Membership, ...]:
        """One `Membership` for each victim whose answers are in view; what is random is `seed`'s."""
        told = recorded(view, knowledge, self.config.samples, first=True)
        return tuple(
            self._guess(view, knowledge, challenge, told[name])
            for name, challenge in task.challenges.items()
            if name in told
        )

    def _guess(self, view: View, knowledge: Knowledge, challenge: Challenge, heard: Recorded) -> Membership:
        made = matched(
            view,
            knowledge,
            challenge,
            self.config.shadows,
            training=_before_answers(view.hyperparameters),
            paired=self.config.paired,
            most_steps=self.config.most_steps,
            seed=self.config.seed,
        )
        theirs = _answers(knowledge, made, heard)
        found = min(
            (
                regressed(read(theirs).flatten(1), made.coins, read(heard.values).flatten())
                for read in _readings(heard)
            ),
            key=lambda one: one.error,
        )
        right = float((found.left_out.sign() == made.coins).double().mean())
        return Membership(
            target=challenge.target,
            scores=_scores(found.coins, challenge, self.config.paired),
            note=f"left-out shadows: {right:.0%} of coins right",
        )


def _answers(knowledge: Knowledge, made: Matched, heard: Recorded) -> Tensor:
    """What shadows answer (m, s, C): logits less their mean, or probabilities, as the victim's answers are."""
    if knowledge.train is None:
        raise ValueError("coin-regression: no training core to ask shadows with.")
    z = torch.stack([knowledge.train.predict(model, heard.x) for model in made.models])
    return z - z.mean(2, keepdim=True) if heard.kind == "logits" else z.softmax(2)


def _readings(heard: Recorded) -> list[Callable[[Tensor], Tensor]]:
    """How answers may be read: probabilities also as the logits that they stand for."""
    if heard.kind == "logits":
        return [lambda told: told]
    floor = max(heard.treatment.floor, _FLOOR)

    def logits(told: Tensor) -> Tensor:
        found = told.clamp_min(floor).log()
        return found - found.mean(-1, keepdim=True)

    return [logits, lambda told: told]


def _scores(coins: Tensor, challenge: Challenge, paired: bool) -> Tensor:
    """Scores (n,) of candidates from the coins."""
    pairs = pairs_of(challenge) if paired else None
    if pairs is None:
        return coins
    scores = coins.new_zeros(len(challenge.y))
    scores[pairs[:, 0]], scores[pairs[:, 1]] = coins, -coins
    return scores


def _before_answers(public: Mapping[str, Any]) -> dict[str, Any]:
    """The configuration of what a client has trained before its first answers: one round at most."""
    found = {**public, "rounds": 1}
    if public.get("order") == "predict-first" and public.get("local_steps") is not None:
        found["local_steps"] = 0
    return found
