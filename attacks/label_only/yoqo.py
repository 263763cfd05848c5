"""YOQO: membership by one query a candidate, crafted so that models trained on the candidate answer differently."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn import functional as F

from fdaudit.registry import AttackCard
from fdaudit.storage.cache import digest_of, remembered
from fdaudit.training.optimizers import adam
from fdaudit.types import Challenge

from .._reading import reads_forms
from .._shadows import Shadows, shadows
from .base import Given, LabelOnly, LabelOnlyConfig, Voter

if TYPE_CHECKING:
    from fdaudit.adversary.knowledge import Knowledge

__all__ = ["YOQO", "YOQOConfig", "craft_queries"]

_CHUNK = 256
"""Candidates whose queries are optimised at a time, against all shadow models."""


class YOQOConfig(LabelOnlyConfig):
    """Settings of YOQO."""

    shadows: int = Field(16, ge=2)
    """Shadow models; each holds a random half of all candidates and auxiliary records."""
    fitting: Literal["until-fitted", "as-target"] = "until-fitted"
    """Train shadow models by Adam until every record is classified right, or with the target's public settings."""
    shadow_steps: int = Field(2000, ge=1)
    """Training steps of one shadow model at most."""
    iterations: int = Field(20, ge=1)
    """Adam steps on the queries."""
    lr: float = Field(0.0025, gt=0)
    """Size of those steps, in units of pixel intensity. Far from the candidate shadow models and the target agree
    less."""
    alpha: float = Field(1.0, ge=0)
    """α: weight of the shadow models that do not hold the candidate against those that do."""


@reads_forms
class YOQO(LabelOnly):
    """Queries one sample near each candidate, and calls the candidate a member if the answer is its label.

    The sample is optimised on shadow models. Models trained on the candidate shall classify it correctly, the others
    wrongly. Shadow models are trained on halves of one pool of all victims' candidates and the adversary's own records
    (without its records that are candidates themselves). Half of them thus hold any candidate: the paper's online
    attack with one set of shadow models for all. The loss on the models that do not hold the candidate is -log(1 -
    p_y). Scores are 0 and 1.
    """

    card = AttackCard(
        name="yoqo",
        work={"once": 6500, "each": 400, "grows": ("shadows",)},
        goal="membership",
        needs=("oracle (hard labels)", "model_parameters"),
        assumes=("architecture", "auxiliary", "training core"),
        oracle="hard",
        source="Wu, Qiu, Guo, Li & Zhang 2024",
        tasks=("single-label",),
        profiles={
            "quick": {"shadows": 6, "shadow_steps": 150, "iterations": 10, "lr": 0.005},
            "standard": {"shadows": 16},
            "full": {"shadows": 64},
        },
    )
    Config: ClassVar[type[YOQOConfig]] = YOQOConfig

    def missing(self, knowledge: Knowledge) -> str:
        """Return a reason if no network is known to train shadow models."""
        if knowledge.architecture is None or knowledge.train is None:
            return "shadow models need the architecture and a training core, which are not known"
        return ""

    def score(self, ask: Voter, challenge: Challenge, questions: int, given: Given) -> tuple[Tensor, str]:
        """Return 1 if the one answer is the candidate's label, else 0 (n,)."""
        # The shadow models' pool: every victim's candidates in order, then own records.
        x = torch.cat([c.x for c in given.task.challenges.values()])
        y = torch.cat([c.y for c in given.task.challenges.values()])
        if given.knowledge.auxiliary is not None:
            candidates = {row.numpy().tobytes() for row in x}
            own_x, own_y = given.knowledge.auxiliary
            new = torch.tensor([row.numpy().tobytes() not in candidates for row in own_x], dtype=torch.bool)
            x = torch.cat([x, own_x[new]])
            y = torch.cat([y, own_y[new]])
        public = given.view.hyperparameters if self.config.fitting == "as-target" else {}
        models = shadows(
            given.knowledge,
            x,
            y,
            self.config.shadows,
            hyperparameters=public,
            most_steps=self.config.shadow_steps,
        )
        first = 0  # the candidate's place in the pool of all victims' candidates
        for other in given.task.challenges.values():
            if other is challenge:
                break
            first += len(other.y)
        inside = models.inside[:, first : first + len(challenge.y)]
        scores = torch.zeros(len(challenge.y), dtype=torch.float64)
        for rows in torch.arange(len(challenge.y)).split(_CHUNK):
            queries = self._crafted(
                models, inside[:, rows], challenge.x[rows], challenge.y[rows], given.knowledge
            )
            scores[rows] = (ask(queries) == challenge.y[rows]).double()
        return scores, ""

    def _crafted(self, models: Shadows, inside: Tensor, x: Tensor, y: Tensor, knowledge: Knowledge) -> Tensor:
        """Return `craft_queries`, cached for adversaries with the same shadow models and candidates."""
        train, config = knowledge.train, self.config
        if train is None:
            raise ValueError("yoqo: no training core. Ask `applicable` first.")

        def craft() -> dict[str, Tensor]:
            networks = [train.network(p).eval().requires_grad_(False) for p in models.parameters]
            queries = craft_queries(
                networks, inside, x, y, iterations=config.iterations, lr=config.lr, alpha=config.alpha
            )
            return {"queries": queries}

        card = {
            "what": "yoqo: queries",
            "settings": config.model_dump(mode="json", include={"iterations", "lr", "alpha"}),
            "network": None if knowledge.architecture is None else knowledge.architecture.described,
            "execution": train.execution.described,
        }
        return remembered(digest_of(card, x, y, inside, *models.parameters), craft)["queries"]


def craft_queries(
    networks: Sequence[nn.Module],
    inside: Tensor,
    x: Tensor,
    y: Tensor,
    *,
    iterations: int,
    lr: float,
    alpha: float,
) -> Tensor:
    """Return samples (n, c, h, w) near x that models holding a candidate classify correctly, and the others wrongly.

    Adam on L(x') = mean over models in of -log p_y(x') + α · mean over models out of -log(1 - p_y(x')), all candidates
    together, from x' = x and within [0, 1].

    Args:
        networks: shadow models, in evaluation mode.
        inside: (models, n) whether a model holds a candidate.
        x: (n, c, h, w) candidates.
        y: (n,) their labels.
        iterations: steps.
        lr: of Adam.
        alpha: α.
    """
    device = next(networks[0].parameters()).device
    queries = x.detach().clone().to(device).requires_grad_()
    labels = y.to(device)
    mask = inside.to(device)
    share_in = mask / mask.sum(0).clamp_min(1)
    share_out = alpha * ~mask / (~mask).sum(0).clamp_min(1)
    optimizer = adam([queries], lr)
    for _ in range(iterations):
        optimizer.zero_grad(set_to_none=True)
        for network, a, b in zip(networks, share_in, share_out, strict=True):
            log_p = F.log_softmax(network(queries), 1)
            right = log_p.gather(1, labels[:, None]).squeeze(1)
            # Summed over the other classes: 1 - p_y itself would round to 0, gradient and all, on an overfit model.
            wrong = log_p.scatter(1, labels[:, None], -torch.inf).logsumexp(1)
            (-(a * right) - b * wrong).sum().backward()
        optimizer.step()
        with torch.no_grad():
            queries.clamp_(0, 1)
    return queries.detach().cpu()
