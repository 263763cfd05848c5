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
from ._uploads import after, uploads_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from fdaudit.knowledge import Knowledge
    from fdaudit.training import Parameters
    from fdaudit.types import Challenge
    from fdaudit.view import View

__all__ = ["CoinRegression", "CoinRegressionConfig", "Regressed", "regressed"]

_RIDGES = 10.0 ** torch.arange(-5, 2.01, 0.25, dtype=torch.float64)
"""λ over the mean squared length of centred answers."""
_MODELS = ("model_update", "model_parameters")
_MOST_PARAMETERS = 100_000
_FLOOR = 1e-6
"""Smallest probability before a logarithm."""


class CoinRegressionConfig(Config):
    """Settings of coin regression."""

    shadows: int = Field(200, ge=8)
    """Shadow models of each victim."""
    most_steps: int = Field(2000, ge=1)
    """Training steps of one shadow model, at most."""
    uploads: int = Field(4, ge=1)
    """Models of a victim that are looked at, at most: spread over all that it sent."""
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


@dataclass(frozen=True, kw_only=True, eq=False)
class _Told:
    """What one upload or one round of answers tells of a client's model.

    Attributes:
        values: (s, C) answers of the client's model, or (P,) what training has changed in it.
        kind: `logits`, `soft_labels` or `change`.
        x: (s, c, h, w) the samples that are answered.
        floor: smallest probability before a logarithm.
        start: what the model was trained from, in place of the public initial weights.
    """

    values: Tensor
    kind: str
    x: Tensor | None = None
    floor: float = _FLOOR
    start: Parameters | None = None


class CoinRegression:
    """Learns from shadow models how each candidate moves a client's answers, and reads the coins off its real ones.

    Shadows have the victim's number of records and classes, and train as it does. Of a matched pair one candidate is
    in each. Regressed on is what they answer to the samples that the victim answered, trained from the public initial
    weights; or, where the victim sent its model, what training changes in the model that it had received. Left-out
    shadows say beforehand how well that will do.
    """

    name: ClassVar[str] = "coin-regression"
    goal: ClassVar[str] = "membership"
    needs: ClassVar[tuple[str, ...]] = ("logits", "soft_labels", "model_update", "model_parameters")
    assumes: ClassVar[tuple[str, ...]] = ("architecture", "auxiliary", "initial", "public")
    source: ClassVar[str] = "Hoerl & Kennard 1970 on shadow models (Shokri et al. 2017)"
    control: ClassVar[dict[str, str]] = {"on": "federation"}
    profiles: ClassVar[dict[str, dict[str, Any]]] = {
        "quick": {"shadows": 200, "uploads": 4},
        "standard": {"shadows": 800, "uploads": 10},
        "full": {"shadows": 2000, "uploads": 100},
    }
    Config: ClassVar[type[CoinRegressionConfig]] = CoinRegressionConfig

    def __init__(self, config: CoinRegressionConfig) -> None:
        self.config = config

    def applicable(self, view: View, knowledge: Knowledge, task: AttackTask) -> Applicability:
        """Yes with answers or models of a victim in view, and what shadow models need."""
        if not (lacking := missing(knowledge, task)):
            return lacking
        if set(recorded(view, knowledge, 1)) & set(task.challenges):
            return Applicability(True)
        if any(uploads_of(view, name, _MODELS) for name in task.challenges):
            return Applicability(True)
        return Applicability(
            False,
            "neither a victim's answers on known samples nor its model, with the one before it, in view",
        )

    def run(
        self, view: View, knowledge: Knowledge, task: AttackTask, generator: torch.Generator
    ) -> tuple[Membership, ...]:
        """One `Membership` for each victim of whose model the view tells; what is random is `seed`'s."""
        answers = recorded(view, knowledge, self.config.samples, first=True)
        found = []
        for name, challenge in task.challenges.items():
            told = [*_answered(answers.get(name)), *self._uploaded(view, name)]
            if told:
                found.append(self._guess(view, knowledge, challenge, told))
        return tuple(found)

    def _uploaded(self, view: View, target: str) -> list[_Told]:
        """What a client's uploads changed in the models that it had received, spread over all that it sent."""
        sent = uploads_of(view, target, _MODELS)
        chosen = torch.linspace(0, len(sent) - 1, min(self.config.uploads, len(sent))).round().long().tolist()
        found = []
        for message, origin in (sent[k] for k in chosen):
            start = view.tensors(origin)
            changed = _change(after(view, message, start), start)
            found.append(_Told(values=changed, kind="change", start=start))
        return found

    def _guess(self, view: View, knowledge: Knowledge, challenge: Challenge, told: list[_Told]) -> Membership:
        theirs, mine = list[Tensor](), list[Tensor]()
        for one in told:
            made = matched(
                view,
                knowledge,
                challenge,
                self.config.shadows,
                training=_before_answers(view.hyperparameters, from_upload=one.start is not None),
                start=one.start,
                paired=self.config.paired,
                most_steps=self.config.most_steps,
                seed=self.config.seed,
            )
            shadow, victim = _read(_answers(knowledge, made, one), made.coins, one)
            scale = (shadow - shadow.mean(0)).square().sum(1).mean().sqrt().clamp_min(_FLOOR)
            theirs.append(shadow / scale)
            mine.append(victim / scale)
        found = regressed(torch.cat(theirs, 1), made.coins, torch.cat(mine))
        right = float((found.left_out.sign() == made.coins).double().mean())
        return Membership(
            target=challenge.target,
            scores=_scores(found.coins, challenge, self.config.paired),
            note=f"left-out shadows: {right:.0%} of coins right",
        )


def _answered(heard: Recorded | None) -> list[_Told]:
    if heard is None:
        return []
    floor = max(heard.treatment.floor, _FLOOR)
    return [_Told(x=heard.x, values=heard.values, kind=heard.kind, floor=floor)]


def _answers(knowledge: Knowledge, made: Matched, told: _Told) -> Tensor:
    """What the victim's values are, of shadows: (m, s, C) or (m, P)."""
    if knowledge.train is None:
        raise ValueError("coin-regression: no training core to ask shadows with.")
    if told.x is None:
        return torch.stack([_change(model, told.start or {}) for model in made.models])
    z = torch.stack([knowledge.train.predict(model, told.x) for model in made.models])
    return z - z.mean(2, keepdim=True) if told.kind == "logits" else z.softmax(2)


def _change(model: Parameters, start: Parameters) -> Tensor:
    """What training has changed (P,), in float32; of a large network every so many parameters are looked at."""
    found = torch.cat([(model[name] - start[name]).flatten().float() for name in sorted(start)])
    return found[:: -(-len(found) // _MOST_PARAMETERS)]


def _read(theirs: Tensor, coins: Tensor, told: _Told) -> tuple[Tensor, Tensor]:
    """Answers of shadows (m, d) and of the victim (d,); probabilities as logits, where these say more."""
    plain = theirs.flatten(1), told.values.flatten()
    if told.kind != "soft_labels":
        return plain

    def logits(answers: Tensor) -> Tensor:
        found = answers.clamp_min(told.floor).log()
        return found - found.mean(-1, keepdim=True)

    undone = logits(theirs).flatten(1), logits(told.values).flatten()
    return min((undone, plain), key=lambda pair: regressed(pair[0], coins, pair[1]).error)


def _scores(coins: Tensor, challenge: Challenge, paired: bool) -> Tensor:
    """Scores (n,) of candidates from the coins."""
    pairs = pairs_of(challenge) if paired else None
    if pairs is None:
        return coins
    scores = coins.new_zeros(len(challenge.y))
    scores[pairs[:, 0]], scores[pairs[:, 1]] = coins, -coins
    return scores


def _before_answers(public: Mapping[str, Any], from_upload: bool = False) -> dict[str, Any]:
    """The configuration of what a client trains before its first answers, or for an upload: one round at most."""
    found = {**public, "rounds": 1}
    if from_upload:
        found["warm_up_steps"] = 0
    elif public.get("order") == "predict-first" and public.get("local_steps") is not None:
        found["local_steps"] = 0
    return found
