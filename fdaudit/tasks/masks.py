"""Labels of a class for each pixel: y is (n, h, w) with 0 for the background, and a model answers (n, C, h, w)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from fdaudit.tasks.labels import Distance, Labels, Shape, Supervised, Unshared

if TYPE_CHECKING:
    import torch
    from torch import Tensor

__all__ = ["Masks"]

_FITTED = 0.9
"""Share of the pixels of a mask that is learnt by heart."""


@dataclass(frozen=True)
class Masks(Labels):
    """A class for each pixel of an image."""

    ndim: ClassVar[int] = 3
    dense: ClassVar[bool] = True
    objective: ClassVar[Supervised] = "cross-entropy-dice"
    distance: ClassVar[Distance] = "dice"
    figure: ClassVar[str] = "dice"
    measure: ClassVar[str] = "Dice"
    needed: ClassVar[str] = "the attack needs one answer for each record, not one for each pixel"
    by_picture: ClassVar[bool] = True
    unshared: ClassVar[Unshared | None] = Unshared(
        rules=("by-class", "dirichlet"),
        problem="cannot share out masks: each has pixels of several classes",
        remedy="Use 'iid' or 'by-site'.",
    )
    no_canaries: ClassVar[str] = "its labels are masks"
    most_by_heart: ClassVar[int | None] = 64  # a network takes long to learn a mask by heart

    def shape(self, classes: int, input_shape: Shape) -> Shape:
        """Return (h, w)."""
        return input_shape[1:]

    def answer_shape(self, classes: int, input_shape: Shape) -> Shape:
        """Return (C, h, w)."""
        return (classes, *input_shape[1:])

    def fitted(self, z: Tensor, y: Tensor) -> Tensor:
        """Return whether (n,) logits (n, C, h, w) predict nearly all pixels of a mask."""
        return (self.predicted(z) == y).flatten(1).double().mean(1) >= _FITTED

    def log_likelihood(self, p: Tensor, y: Tensor, floor: float) -> Tensor:
        """Return the mean (n,) over pixels."""
        return p.gather(1, y[:, None]).clamp_min(floor).log().mean((1, 2, 3))

    def counts(self, y: Tensor, classes: int) -> Tensor:
        """Return the number of pixels of each class (C,) (Gong 2022, Eq. 1 as extended to segmentation)."""
        return y.flatten().bincount(minlength=classes)

    def groups(self, y: Tensor) -> Tensor:
        """Return one group (n,) for all: masks hardly ever equal each other."""
        return y.new_zeros(len(y))

    def home(self, y: Tensor, clients: int) -> Tensor:
        """Return the client (n,) by share of background: the lowest go to client 0."""
        rank = (y == 0).flatten(1).double().mean(1).argsort().argsort()
        return rank * clients // max(len(y), 1)

    def as_numbers(self, y: Tensor) -> Tensor:
        """Return the classes of all pixels (n, h w C) as ones and zeros."""
        import torch

        return torch.nn.functional.one_hot(y).flatten(1)

    def random(self, n: int, classes: int, input_shape: Shape, generator: torch.Generator) -> Tensor:
        """Return masks (n, h, w) of which each quarter has one random class."""
        import torch

        _, height, width = input_shape
        quarters = torch.randint(classes, (n, 2, 2), generator=generator)
        rows, columns = (torch.arange(side) * 2 // side for side in (height, width))
        return quarters[:, rows][:, :, columns]

    def stand_ins(self, n: int, classes: int, input_shape: Shape, generator: torch.Generator) -> Tensor:
        """Return masks (n, h, w) whose pixels are random."""
        import torch

        return torch.randint(classes, (n, *input_shape[1:]), generator=generator)

    def about_pairs(self, members: Tensor, others: Tensor) -> str:
        """Return how masks of a pair differ."""
        return "Pairs join pictures at random; their masks differ, which adds noise and no bias."
