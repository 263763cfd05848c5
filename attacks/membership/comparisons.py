"""Membership from gradients that compare generated images with a client's records, pixel by pixel."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

import torch
from pydantic import Field
from torch import Tensor

from fdaudit.config import Config
from fdaudit.goals.membership import Membership
from fdaudit.registry import AttackCard
from fdaudit.types import Applicability, AttackTask

from .._reading import reads_forms
from ..gradient_inversion.comparison import steps_of
from ._coins import against_its_pair

if TYPE_CHECKING:
    from fdaudit.adversary.knowledge import Knowledge
    from fdaudit.adversary.view import View

__all__ = ["PixelMatching", "PixelMatchingConfig", "agreement"]


class PixelMatchingConfig(Config):
    """Settings of pixel matching."""

    steps: int = Field(400, ge=1)
    """Most steps that are read, the last ones."""
    best: int = Field(16, ge=1)
    """Comparisons of each candidate that count, at most: those that agree most with it."""


def agreement(x: Tensor, images: Tensor, gradients: Tensor) -> Tensor:
    """Return how well records explain the signs of gradients (n, k): 1 if all agree, 0 on average if none is behind.

    Args:
        x: (n, d) records.
        images: (k, d) generated images.
        gradients: (k, d) at these, of an L1 loss between image and record, and of other losses.
    """
    signs = gradients.sign()
    shares = list[Tensor]()
    for record in x:
        shares.append(((images - record).sign() * signs).mean(1))
    return torch.stack(shares)


@reads_forms
class PixelMatching:
    """Scores a candidate by how well it explains the signs of gradients of an L1 loss.

    AsynDGAN's clients return the gradient of an L1 loss between a generated image and the record whose label the image
    was made from. Its sign says for each pixel which of the two is brighter. If a candidate is behind a gradient,
    nearly all signs agree with it. The gradients at images of the candidate's own label are compared with it, and the
    mean of the best ones is its score. No model is trained.
    """

    card = AttackCard(
        name="pixel-matching",
        work={"once": 500, "each": 100, "grows": ("steps",)},
        goal="membership",
        needs=("sample_gradients",),
        assumes=(),
        tasks=("single-label", "segmentation"),
        source="ours; the loss is that of Chang et al. 2020, Eq. 3",
        profiles={
            "quick": {"steps": 400},
            "standard": {"steps": 1000},
            "full": {"steps": 10000},
        },
        control={"on": "comparisons"},
    )
    Config: ClassVar[type[PixelMatchingConfig]] = PixelMatchingConfig

    def __init__(self, config: PixelMatchingConfig) -> None:
        self.config = config

    def applicable(self, view: View, knowledge: Knowledge, task: AttackTask) -> Applicability:
        """Check for a challenged victim's labels and gradients, and the images between them."""
        if not task.challenges:
            return Applicability(False, "no challenge was issued for the victims")
        if not view.hyperparameters.get("l1", 1):
            return Applicability(False, "the gradients compare no image with a record: l1 is 0")
        if any(steps_of(view, target) for target in task.challenges):
            return Applicability(True)
        return Applicability(False, "no gradients at images of a victim's own labels in view")

    def run(
        self, view: View, knowledge: Knowledge, task: AttackTask, generator: torch.Generator
    ) -> tuple[Membership, ...]:
        """Return one `Membership` for each victim with such gradients; the attack is deterministic."""
        guesses = []
        for name, challenge in task.challenges.items():
            steps = steps_of(view, name)[-self.config.steps :]
            if not steps:
                continue
            labels_by_step = list[Tensor]()
            images_by_step = list[Tensor]()
            gradients_by_step = list[Tensor]()
            for step in steps:
                labels_by_step.append(view.tensors(step[0])["values"].cpu())
                images_by_step.append(view.tensors(step[1])["samples"].cpu())
                gradients_by_step.append(view.tensors(step[2])["values"].cpu())
            labels = torch.cat(labels_by_step)
            images = torch.cat(images_by_step)
            gradients = torch.cat(gradients_by_step)
            # Each candidate's mean agreement with its best comparisons; -1 without one of its label.
            scores = torch.full((len(challenge.y),), -1.0, dtype=torch.float64)
            recorded_labels = labels.long().flatten(1) if labels.ndim > 1 else labels.long()[:, None]
            sought = challenge.y.long().flatten(1) if challenge.y.ndim > 1 else challenge.y.long()[:, None]
            for label in sought.unique(dim=0):
                rows = (recorded_labels == label).all(1)
                if not bool(rows.any()):
                    continue
                mine = (sought == label).all(1)
                agreements = agreement(
                    challenge.x[mine].flatten(1), images[rows].flatten(1), gradients[rows].flatten(1)
                )
                best = agreements.topk(min(self.config.best, agreements.shape[1]), dim=1).values
                scores[mine] = best.mean(1).double()
            guesses.append(Membership(target=name, scores=against_its_pair(scores, challenge)))
        return tuple(guesses)
