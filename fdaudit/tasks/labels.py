"""The contract of a form of labels: what a record is labelled with, and how models answer for it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from fdaudit.rng import SecretStream

__all__ = ["Distance", "Divergence", "LabelRange", "Labels", "Shape", "Supervised", "Unshared"]

Supervised = Literal["cross-entropy", "binary-cross-entropy", "cross-entropy-dice"]
"""Losses that fit a model to labels."""
Divergence = Literal["kl", "binary-kl"]
"""Losses that fit a model to another model's probabilities."""
Distance = Literal["l2", "dice"]
"""Losses that fit a model to another model's answers: `l2` to logits, `dice` to probabilities of pixels."""
Shape = tuple[int, ...]
"""The sizes of an image, a label or an answer."""


@dataclass(frozen=True)
class LabelRange:
    """The least and the largest label, and what to do about others."""

    least: int
    most: int
    remedy: str


@dataclass(frozen=True)
class Unshared:
    """The rules of `partition.name` by which such records cannot be shared out among clients, and why."""

    rules: tuple[str, ...]
    problem: str
    remedy: str


@dataclass(frozen=True)
class Labels(ABC):
    """A form of labels: one object for each, without state.

    Shapes: n records, C classes, images (c, h, w). Labels y are int64 (n, *shape), logits z and probabilities p float
    (n, *answer_shape).

    Attributes:
        ndim: number of dimensions of the labels y.
        one_class: whether each record has one class. Then a vote names it, and records can be drawn by class.
        dense: whether each pixel has a label.
        objective: the loss that fits models to these labels.
        divergence: the loss that fits models to probabilities.
        distance: the loss that fits models to another model's answers without a temperature.
        figure: the name of the utility's main figure; `fdaudit.audit.utility` computes it.
        measure: the same in words for people.
        needed: what an attack needs that has no use for such labels, as a sentence without its full stop.
        paired_alike: whether the two records of a matched pair must have equal labels.
        by_picture: whether records are set aside and paired by the picture that they were cut from.
        unshared: the partitions that do not exist for such labels; None: all exist.
        no_canaries: why canaries cannot have such labels; empty if they can.
        most_by_heart: the most records that a control's model learns by heart; None: as many as it is given.
    """

    ndim: ClassVar[int]
    one_class: ClassVar[bool] = False
    dense: ClassVar[bool] = False
    objective: ClassVar[Supervised]
    divergence: ClassVar[Divergence] = "kl"
    distance: ClassVar[Distance] = "l2"
    figure: ClassVar[str]
    measure: ClassVar[str]
    needed: ClassVar[str]
    paired_alike: ClassVar[bool] = False
    by_picture: ClassVar[bool] = False
    unshared: ClassVar[Unshared | None] = None
    no_canaries: ClassVar[str] = ""
    most_by_heart: ClassVar[int | None] = None

    # -- shapes and values ----------------------------------------------------------------------------------

    @abstractmethod
    def shape(self, classes: int, input_shape: Shape) -> Shape:
        """Return the shape of one record's label."""

    @abstractmethod
    def answer_shape(self, classes: int, input_shape: Shape) -> Shape:
        """Return the shape of a model's answer to one record."""

    def bounds(self, classes: int) -> LabelRange:
        """Return the values that labels may have."""
        return LabelRange(0, classes - 1, "Number the classes from 0.")

    # -- answers --------------------------------------------------------------------------------------------

    def probabilities(self, z: Tensor) -> Tensor:
        """Return the probabilities of logits, of the same shape."""
        return z.softmax(1)

    def predicted(self, z: Tensor) -> Tensor:
        """Return the labels (n, *shape) that logits or probabilities of one class each predict."""
        return z.argmax(1)

    @abstractmethod
    def fitted(self, z: Tensor, y: Tensor) -> Tensor:
        """Return whether (n,) logits show that each record's label was learnt by heart."""

    @abstractmethod
    def log_likelihood(self, p: Tensor, y: Tensor, floor: float) -> Tensor:
        """Return log p_y (n,) of probabilities: minus the cross-entropy, in nats.

        Args:
            p: probabilities, float64.
            y: labels.
            floor: smallest probability before a logarithm.
        """

    def confidence(self, p: Tensor, y: Tensor, floor: float) -> Tensor:
        """Return the logit-scaled confidence φ = log(p_y / (1 - p_y)) (n,) of probabilities (Carlini 2022, IV-C).

        Args:
            p: probabilities, float64.
            y: labels.
            floor: smallest probability before a logarithm.

        Raises:
            TypeError: such labels have no confidence.
        """
        raise TypeError(f"{self.figure}: no confidence is defined for such labels")

    # -- groups of records ----------------------------------------------------------------------------------

    @abstractmethod
    def counts(self, y: Tensor, classes: int) -> Tensor:
        """Return how often each class occurs (C,)."""

    @abstractmethod
    def groups(self, y: Tensor) -> Tensor:
        """Return a group number (n,) for each record; records of one group make good pairs."""

    def main_class(self, y: Tensor, draws: SecretStream) -> Tensor:
        """Return one class (n,) for each record, by which records are shared out; C for a record without any.

        Raises:
            TypeError: such records have no main class; `unshared` names the partitions that need one.
        """
        raise TypeError(f"{self.figure}: such labels have no main class")

    @abstractmethod
    def home(self, y: Tensor, clients: int) -> Tensor:
        """Return the client (n,) for each record such that clients' labels differ much."""

    @abstractmethod
    def as_numbers(self, y: Tensor) -> Tensor:
        """Return labels as rows of numbers (n, d), for a classifier that reads them."""

    # -- labels that are drawn ------------------------------------------------------------------------------

    @abstractmethod
    def random(self, n: int, classes: int, input_shape: Shape, generator: torch.Generator) -> Tensor:
        """Return random labels that a model can learn by heart."""

    @abstractmethod
    def stand_ins(self, n: int, classes: int, input_shape: Shape, generator: torch.Generator) -> Tensor:
        """Return labels that stand for a client's in a rehearsal; every class should occur."""

    def canaries(self, n: int, classes: int, draws: SecretStream) -> Tensor:
        """Return random labels for canaries.

        Raises:
            TypeError: canaries cannot have such labels, as `no_canaries` says.
        """
        raise TypeError(self.no_canaries)

    def other(self, y: Tensor, classes: int, draws: SecretStream) -> Tensor:
        """Return wrong labels in place of y, for mislabelled canaries.

        Raises:
            TypeError: canaries cannot have such labels, as `no_canaries` says.
        """
        raise TypeError(self.no_canaries)

    # -- words ----------------------------------------------------------------------------------------------

    def unmeasurable(self, y: Tensor) -> str:
        """Return why utility cannot be measured on test records, as "gives … "; empty if it can."""
        return ""

    def about_pairs(self, members: Tensor, others: Tensor) -> str:
        """Return a sentence on matched pairs with these labels; empty if there is nothing to say."""
        return ""
