"""The contract of a form of inputs (all of a record but its label), and the forms: images, texts and rows."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["Images", "Inputs", "Misfit", "Rows", "Texts"]


@dataclass(frozen=True)
class Misfit:
    """Why records are not of a form, as "has … ", and what to do."""

    problem: str
    remedy: str


@dataclass(frozen=True)
class Inputs(ABC):
    """A form of inputs x: one object for each, without state.

    Attributes:
        plural: the word for several records.
        fields: fields of the spec's `dataset` that such records alone have.
        shown: the records that a guess may show: `images`, `texts`, `rows`, or empty if none does.
        whole: whether the values of x are whole numbers.
        bounded: whether every value of x is in [0, 1].
        encoded: whether the encoder and the evaluator of fdaudit read them.
        shifted: whether they can be shifted, turned and blurred.
        compared_by_group: whether a guess is compared with records of its class, or with masks of its site.
        public_from_elsewhere: whether public samples may come from another dataset.
        no_canaries: why no canary can be made, as a clause; empty if canaries can.
        network: the network if the spec names none.
    """

    plural: ClassVar[str]
    fields: ClassVar[tuple[str, ...]] = ()
    shown: ClassVar[str] = ""
    whole: ClassVar[bool] = False
    bounded: ClassVar[bool] = False
    encoded: ClassVar[bool] = False
    shifted: ClassVar[bool] = False
    compared_by_group: ClassVar[bool] = False
    public_from_elsewhere: ClassVar[bool] = True
    no_canaries: ClassVar[str] = ""
    network: ClassVar[str] = "cnn-strided"

    @abstractmethod
    def fits(self, x: Tensor) -> bool:
        """Return whether records (n, ...) have the shape and the type of this form."""

    @abstractmethod
    def misfit(self, x: Tensor, words: int) -> Misfit | None:
        """Return why records are not of this form; None if they are.

        Args:
            x: the records.
            words: number of words of the vocabulary; 0 without one.
        """


@dataclass(frozen=True)
class Images(Inputs):
    """Images x (n, c, h, w), float32 in [0, 1]."""

    plural: ClassVar[str] = "images"
    fields: ClassVar[tuple[str, ...]] = ("image_size", "threshold")
    shown: ClassVar[str] = "images"
    bounded: ClassVar[bool] = True
    encoded: ClassVar[bool] = True
    shifted: ClassVar[bool] = True
    compared_by_group: ClassVar[bool] = True

    def fits(self, x: Tensor) -> bool:
        """Return whether x has four dimensions."""
        return x.ndim == 4

    def misfit(self, x: Tensor, words: int) -> Misfit | None:
        """Return why x is no (n, c, h, w) float32 in [0, 1]; None if it is."""
        import torch

        if x.ndim != 4 or x.dtype != torch.float32 or min(x.shape[1:]) < 1:
            problem = f"has images {x.dtype} {tuple(x.shape)}"
            return Misfit(problem, "Give float32 (n, c, h, w), h and w from 1 on.")
        if words:
            return Misfit(f"has {words} words and images {tuple(x.shape)}", "Give int64 (n, L), or no words.")
        if not len(x) or x.is_meta:  # of a recording, an auditor may hold no record, or no images
            return None
        if not torch.isfinite(x).all():
            return Misfit("holds NaN or infinite values", "Remove or repair those records.")
        low, high = x.aminmax()
        if low < 0.0 or high > 1.0:
            return Misfit(f"holds values in [{low:g}, {high:g}]", "Scale images to [0, 1].")
        return None


@dataclass(frozen=True)
class Texts(Inputs):
    """Token numbers x (n, L), int64, of a vocabulary."""

    plural: ClassVar[str] = "texts"
    fields: ClassVar[tuple[str, ...]] = ("length", "vocabulary", "wordpieces")
    shown: ClassVar[str] = "texts"
    whole: ClassVar[bool] = True
    public_from_elsewhere: ClassVar[bool] = False
    no_canaries: ClassVar[str] = "it holds texts"

    def fits(self, x: Tensor) -> bool:
        """Return whether x has two dimensions and whole numbers."""
        return x.ndim == 2 and not x.is_floating_point()

    def misfit(self, x: Tensor, words: int) -> Misfit | None:
        """Return why x is no (n, L) int64 of a vocabulary's numbers; None if it is."""
        import torch

        if x.ndim != 2 or x.dtype != torch.int64 or x.shape[1] < 1:
            return Misfit(f"has texts {x.dtype} {tuple(x.shape)}", "Give int64 (n, L), L from 1 on.")
        if len(x) and (int(x.min()) < 0 or int(x.max()) >= words):
            problem = f"holds tokens from {int(x.min())} to {int(x.max())} of {words} words"
            return Misfit(problem, "Number the words from 0.")
        return None


@dataclass(frozen=True)
class Rows(Inputs):
    """Rows of a table as vectors x (n, d), float32: scaled numbers and one-hot categories (`fdaudit.tasks.columns`)."""

    plural: ClassVar[str] = "rows of a table"
    fields: ClassVar[tuple[str, ...]] = ("label", "columns")
    shown: ClassVar[str] = "rows"
    compared_by_group: ClassVar[bool] = True
    public_from_elsewhere: ClassVar[bool] = False
    no_canaries: ClassVar[str] = "it holds rows of a table"
    network: ClassVar[str] = "mlp"

    def fits(self, x: Tensor) -> bool:
        """Return whether x has two dimensions and real numbers."""
        return x.ndim == 2 and x.is_floating_point()

    def misfit(self, x: Tensor, words: int) -> Misfit | None:
        """Return why x is no finite (n, d) float32, or float64 before it is scaled; None if it is."""
        import torch

        if x.ndim != 2 or x.dtype not in (torch.float32, torch.float64) or x.shape[1] < 1 or words:
            return Misfit(f"has rows {x.dtype} {tuple(x.shape)}", "Give float32 (n, d), d from 1 on.")
        if len(x) and not x.is_meta and not torch.isfinite(x).all():
            return Misfit("holds NaN or infinite values", "Fill or remove those rows.")
        return None
