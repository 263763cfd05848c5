"""Labels of one class for each record: y is (n,), and a model answers with C logits."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from fdaudit.tasks.labels import Labels, Shape, Supervised

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from fdaudit.rng import SecretStream

__all__ = ["OneClass"]


@dataclass(frozen=True)
class OneClass(Labels):
    """One class for each record."""

    ndim: ClassVar[int] = 1
    one_class: ClassVar[bool] = True
    objective: ClassVar[Supervised] = "cross-entropy"
    figure: ClassVar[str] = "accuracy"
    measure: ClassVar[str] = "accuracy"
    needed: ClassVar[str] = "the attack needs other labels than one class for each record"
    paired_alike: ClassVar[bool] = True

    def shape(self, classes: int, input_shape: Shape) -> Shape:
        """Return (): a label is one number."""
        return ()

    def answer_shape(self, classes: int, input_shape: Shape) -> Shape:
        """Return (C,)."""
        return (classes,)

    def fitted(self, z: Tensor, y: Tensor) -> Tensor:
        """Return whether (n,) logits (n, C) predict the class."""
        return self.predicted(z) == y

    def log_likelihood(self, p: Tensor, y: Tensor, floor: float) -> Tensor:
        """Return the logarithm (n,) of the class's probability."""
        return p.gather(1, y[:, None]).squeeze(1).clamp_min(floor).log()

    def confidence(self, p: Tensor, y: Tensor, floor: float) -> Tensor:
        """Return log(p_y / (1 - p_y)) (n,).

        1 - p_y is summed from the other classes, because in float32 a difference from 1 has lost its digits (Carlini
        2022, section IV-C).
        """
        import torch

        mine = torch.nn.functional.one_hot(y, p.shape[1]).bool()
        others = p.masked_fill(mine, 0).sum(1).clamp_min(floor)
        return self.log_likelihood(p, y, floor) - others.log()

    def counts(self, y: Tensor, classes: int) -> Tensor:
        """Return the number of records of each class (C,)."""
        return y.bincount(minlength=classes)

    def groups(self, y: Tensor) -> Tensor:
        """Return the classes (n,)."""
        return y

    def main_class(self, y: Tensor, draws: SecretStream) -> Tensor:
        """Return the classes (n,)."""
        return y

    def home(self, y: Tensor, clients: int) -> Tensor:
        """Return the client (n,): class c goes to client c mod K."""
        return y % clients

    def as_numbers(self, y: Tensor) -> Tensor:
        """Return the classes as rows (n, C) of a one and zeros."""
        import torch

        return torch.nn.functional.one_hot(y)

    def random(self, n: int, classes: int, input_shape: Shape, generator: torch.Generator) -> Tensor:
        """Return classes (n,), all equally likely."""
        import torch

        return torch.randint(classes, (n,), generator=generator)

    def stand_ins(self, n: int, classes: int, input_shape: Shape, generator: torch.Generator) -> Tensor:
        """Return the classes (n,) in turn."""
        import torch

        return torch.arange(n) % classes

    def canaries(self, n: int, classes: int, draws: SecretStream) -> Tensor:
        """Return classes (n,), all equally likely."""
        import torch

        return torch.from_numpy(draws.integers(classes, n))

    def other(self, y: Tensor, classes: int, draws: SecretStream) -> Tensor:
        """Return another class (n,) than each record's own, all others equally likely."""
        import torch

        step = torch.from_numpy(draws.integers(max(classes - 1, 1), len(y)))
        return (y + 1 + step) % classes
