"""Membership by augmentation: test whether a model still recognises a candidate that is slightly turned or shifted."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, ClassVar, Literal

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor

from fdaudit.registry import AttackCard
from fdaudit.storage.cache import digest_of, remembered
from fdaudit.types import Challenge

from .._reading import reads_forms
from .._shadows import shadows
from .base import Given, LabelOnly, LabelOnlyConfig, Voter

if TYPE_CHECKING:
    from fdaudit.training.trainer import Parameters, Trainer

__all__ = ["AugmentationConfig", "AugmentedCopies", "augmentations", "best_weights"]

Transform = Callable[[Tensor], Tensor]

_WAYS = ("logistic regression", "count", "the sample as it is")


class AugmentationConfig(LabelOnlyConfig):
    """Settings of the augmentation attack."""

    rotation: float = Field(4.0, ge=0, le=180)
    """r: candidates are also turned by +r and -r degrees; 0 leaves rotations out."""
    translation: int = Field(1, ge=0)
    """d: candidates are also shifted by all (i, j) with |i| + |j| from 1 to d pixels; 0 leaves translations out."""
    scorer: Literal["classifier", "count"] = "classifier"
    """The score: from a classifier trained on shadow models of the adversary's own records, if it has records, an
    architecture and a training core; or the count of correct answers."""
    shadows: int = Field(8, ge=2)
    """Shadow models."""
    shadow_steps: int = Field(2000, ge=1)
    """Largest number of training steps of one shadow model."""


@reads_forms
class AugmentedCopies(LabelOnly):
    """Scores a candidate by which of its turned and shifted copies are classified correctly.

    The copies are rotated by ±r degrees and translated by at most d pixels, as in the paper. A logistic regression
    judges the vector of correct and wrong answers (the paper uses a small neural network). It is trained on shadow
    models, whose members the adversary knows. A plain count, or the unchanged sample alone, is used if it does better
    on held-out shadow models. Without records of its own the adversary counts the correct answers. Shadow models are
    fitted with the target's public rate and batch size, if available.
    """

    card = AttackCard(
        name="augmentation",
        work={"once": 3500, "each": 350, "grows": ("shadows", "shadow_steps")},
        goal="membership",
        needs=("oracle (hard labels)", "model_parameters"),
        assumes=("architecture", "auxiliary", "training core"),
        oracle="hard",
        source="Choquette-Choo, Tramèr, Carlini & Papernot 2021",
        tasks=("single-label",),
        profiles={
            "quick": {"shadows": 6, "shadow_steps": 200},
            "standard": {"translation": 2, "shadows": 8},
            "full": {"translation": 3, "shadows": 32},
        },
    )
    Config: ClassVar[type[AugmentationConfig]] = AugmentationConfig

    def least(self) -> int:
        """Return the number of augmentations: each is queried once."""
        return len(augmentations(self.config.rotation, self.config.translation))

    def score(self, ask: Voter, challenge: Challenge, questions: int, given: Given) -> tuple[Tensor, str]:
        """Return the classifier's log-odds (n,), or the share of correct answers."""
        vectors = self._right(ask, challenge.x, challenge.y, ask.chunk)
        if self.config.scorer == "count":
            return vectors.mean(1), ""
        learnt = self._learnt(given)
        if learnt is None:
            return vectors.mean(1), "right answers counted: no records to train shadow models on"
        weights, way = learnt
        return vectors @ weights, f"scored by what did best on shadow models: {way}"

    def _right(self, ask: Callable[[Tensor], Tensor], x: Tensor, y: Tensor, chunk: int) -> Tensor:
        """Return which augmentations of each candidate are classified correctly: (n, augmentations) of 0 and 1."""
        transforms = augmentations(self.config.rotation, self.config.translation)
        right = torch.zeros(len(y), len(transforms), dtype=torch.float64)
        for rows in torch.arange(len(y)).split(chunk):
            for column, transform in enumerate(transforms):
                right[rows, column] = (ask(transform(x[rows])) == y[rows]).double()
        return right

    def _learnt(self, given: Given) -> tuple[Tensor, str] | None:
        """Return each correct answer's weight in the score (augmentations,) and the method's name, by shadow models."""
        knowledge = given.knowledge
        if knowledge.auxiliary is None or knowledge.architecture is None or knowledge.train is None:
            return None
        x, y = knowledge.auxiliary
        if len(y) < 4:
            return None
        models = shadows(
            knowledge,
            x,
            y,
            self.config.shadows,
            hyperparameters=given.view.hyperparameters,
            most_steps=self.config.shadow_steps,
        )
        train = knowledge.train

        def learn() -> dict[str, Tensor]:
            vectors = []
            for parameters in models.parameters:
                classify = partial(_predicted, train, parameters)
                vectors.append(self._right(classify, x, y, 1024))
            weights, way = best_weights(torch.stack(vectors), models.inside)
            return {"weights": weights, "way": torch.tensor(_WAYS.index(way))}

        card = {
            "what": "augmentation: weights of right answers",
            "rotation": self.config.rotation,
            "translation": self.config.translation,
            "network": knowledge.architecture.described,
            "execution": train.execution.described,
        }
        best = remembered(digest_of(card, x, y, models.inside, *models.parameters), learn)
        return best["weights"], _WAYS[int(best["way"])]


def best_weights(vectors: Tensor, inside: Tensor) -> tuple[Tensor, str]:
    """Return the scoring of answer vectors that ranks members best on held-out shadow models.

    The candidates are a logistic regression, a plain count, and the answer to the unchanged sample. They are compared
    by mean AUC over shadow models; the regression is fitted to all other models each time.

    Args:
        vectors: (models, m, augmentations) of 0 and 1, the unchanged sample first.
        inside: (models, m) whether a model was trained on a record.

    Returns:
        Each correct answer's weight in the score (augmentations,), and the method's name.
    """
    from sklearn.metrics import roc_auc_score  # loads in seconds

    count = torch.full((vectors.shape[2],), 1 / vectors.shape[2], dtype=torch.float64)
    plain = torch.zeros_like(count)
    plain[0] = 1.0
    every = torch.arange(len(vectors))
    total_areas = dict.fromkeys(_WAYS, 0.0)
    for k in every:
        rest = every != k
        if len(inside[k].unique()) < 2 or len(inside[rest].unique()) < 2:
            continue  # with very few records one model may hold all of them, which leaves nothing to compare
        learnt = _regression(vectors[rest], inside[rest])
        for way, weights in zip(_WAYS, (learnt, count, plain), strict=True):
            scores = vectors[k] @ weights
            total_areas[way] += float(roc_auc_score(inside[k].numpy(), scores.numpy()))
    best = max(_WAYS, key=total_areas.__getitem__)
    if best == _WAYS[0]:
        return _regression(vectors, inside), best
    return count if best == _WAYS[1] else plain, best


def _predicted(train: Trainer, parameters: Parameters, x: Tensor) -> Tensor:
    """Return the classes (n,) that a model of the adversary's own predicts for samples (n, c, h, w)."""
    return train.predict(parameters, x).argmax(1)


def _regression(vectors: Tensor, inside: Tensor) -> Tensor:
    """Return coefficients (augmentations,) of the log-odds that a record is inside."""
    from sklearn.linear_model import LogisticRegression  # loads in seconds

    fitted = LogisticRegression().fit(vectors.flatten(0, 1).numpy(), inside.flatten().numpy())
    return torch.from_numpy(fitted.coef_[0]).double()


def augmentations(rotation: float, translation: int) -> list[Transform]:
    """Return the sample itself, rotations by ±`rotation`, and shifts by (i, j) with 1 <= |i| + |j| <= `translation`."""
    transforms: list[Transform] = [lambda x: x]
    if rotation:
        transforms += [_moved(angle, 0, 0) for angle in (rotation, -rotation)]
    shifts = range(-translation, translation + 1)
    for i in shifts:
        for j in shifts:
            if 1 <= abs(i) + abs(j) <= translation:
                transforms.append(_moved(0.0, i, j))
    return transforms


def _moved(angle: float, i: int, j: int) -> Transform:
    """Return a rotation by `angle` degrees clockwise, then a shift by i columns and j rows; bilinear, black outside."""
    c = math.cos(math.radians(angle))
    s = math.sin(math.radians(angle))

    def move(x: Tensor) -> Tensor:
        h, w = x.shape[-2:]
        # Where in the sample a pixel is looked up, in halves of its sides: the inverse of the move.
        across = [c, s * h / w, -2 * (c * i + s * j) / w]
        down = [-s * w / h, c, 2 * (s * i - c * j) / h]
        inverse = x.new_tensor([across, down]).expand(len(x), 2, 3)
        grid = F.affine_grid(inverse, list(x.shape), align_corners=False)
        return F.grid_sample(x, grid, align_corners=False)

    return move
