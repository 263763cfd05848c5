"""Labels of several classes for each record: y is (n, C) of 1 (occurs), 0 (does not) and -1 (unknown)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from fdaudit.tasks.labels import Divergence, LabelRange, Labels, Shape, Supervised, Unshared

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from fdaudit.rng import SecretStream

__all__ = ["LabelSets"]


@dataclass(frozen=True)
class LabelSets(Labels):
    """A yes or no for each class of each record; each class has an answer of its own."""

    ndim: ClassVar[int] = 2
    objective: ClassVar[Supervised] = "binary-cross-entropy"
    divergence: ClassVar[Divergence] = "binary-kl"
    figure: ClassVar[str] = "mean_auc"
    measure: ClassVar[str] = "mAUC"
    needed: ClassVar[str] = "the attack needs records of one class each, not multi-label"
    unshared: ClassVar[Unshared | None] = Unshared(
        rules=("by-class",),
        problem="cannot share out multi-label records: each belongs to several classes",
        remedy="Use 'iid' or 'dirichlet'.",
    )

    def shape(self, classes: int, input_shape: Shape) -> Shape:
        """Return (C,)."""
        return (classes,)

    def answer_shape(self, classes: int, input_shape: Shape) -> Shape:
        """Return (C,)."""
        return (classes,)

    def bounds(self, classes: int) -> LabelRange:
        """Return -1 to 1."""
        return LabelRange(-1, 1, "Give -1, 0 or 1 for each class.")

    def probabilities(self, z: Tensor) -> Tensor:
        """Return the probability (n, C) of each class by itself."""
        return z.sigmoid()

    def predicted(self, z: Tensor) -> Tensor:
        """Return 1 for each class (n, C) with a positive logit, else 0."""
        return (z > 0).long()

    def fitted(self, z: Tensor, y: Tensor) -> Tensor:
        """Return whether (n,) logits (n, C) predict every known answer."""
        return ((self.predicted(z) == y) | (y < 0)).all(1)

    def log_likelihood(self, p: Tensor, y: Tensor, floor: float) -> Tensor:
        """Return the sum (n,) over the known classes."""
        right = p.where(y == 1, 1 - p).clamp_min(floor).log()
        return (right * (y >= 0)).sum(1)

    def confidence(self, p: Tensor, y: Tensor, floor: float) -> Tensor:
        """Return the confidence (n,) that all known answers together are right."""
        right = p.where(y == 1, 1 - p).clamp(floor, 1 - floor)
        total = (right.log() * (y >= 0)).sum(1).clamp_max(math.log1p(-floor))
        return total - (-total.expm1()).log()

    def counts(self, y: Tensor, classes: int) -> Tensor:
        """Return the number of records (C,) in which each class occurs; an unknown label counts for nothing."""
        return (y == 1).sum(0)

    def groups(self, y: Tensor) -> Tensor:
        """Return a number (n,) for each set of labels."""
        numbers: Tensor = y.unique(dim=0, return_inverse=True)[1]
        return numbers

    def main_class(self, y: Tensor, draws: SecretStream) -> Tensor:
        """Return one of each record's own classes (n,), drawn uniformly, or C if it has none."""
        import torch

        present = y == 1
        choice = torch.from_numpy(draws.uniform(*y.shape)).masked_fill(~present, -1.0).argmax(1)
        return torch.where(present.any(1), choice, y.shape[1])

    def home(self, y: Tensor, clients: int) -> Tensor:
        """Return the client (n,) of the first class that occurs: class c goes to client c mod K."""
        return (y == 1).long().argmax(1) % clients

    def as_numbers(self, y: Tensor) -> Tensor:
        """Return the labels (n, C)."""
        return y

    def random(self, n: int, classes: int, input_shape: Shape, generator: torch.Generator) -> Tensor:
        """Return a fair coin (n, C) for each class."""
        import torch

        return torch.randint(2, (n, classes), generator=generator)

    def stand_ins(self, n: int, classes: int, input_shape: Shape, generator: torch.Generator) -> Tensor:
        """Return a fair coin (n, C) for each class."""
        return self.random(n, classes, input_shape, generator)

    def canaries(self, n: int, classes: int, draws: SecretStream) -> Tensor:
        """Return a fair coin (n, C) for each class."""
        import torch

        return torch.from_numpy(draws.integers(2, n, classes))

    def other(self, y: Tensor, classes: int, draws: SecretStream) -> Tensor:
        """Return the opposite (n, C) of each known label."""
        return (1 - y).where(y >= 0, y)

    def unmeasurable(self, y: Tensor) -> str:
        """Return why there is no area under the ROC curve: it needs a class that both occurs and is absent."""
        if bool(((y == 1).any(0) & (y == 0).any(0)).any()):
            return ""
        return f"gives {len(y)} test records in which no class both occurs and is absent"

    def about_pairs(self, members: Tensor, others: Tensor) -> str:
        """Return how many pairs join records of one label set."""
        alike = int((members == others).all(1).sum())
        return (
            f"Of these {len(members)} pairs {alike} join records of one label set; the others, paired at random, "
            "tell members from non-members no less fairly, but with more noise."
        )
