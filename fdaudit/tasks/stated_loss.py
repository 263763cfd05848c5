"""What people state of clients' loss and clipping, in a card or in the settings of a protocol."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from fdaudit.config import Config

__all__ = ["ClipFacts", "LossFacts"]


class LossFacts(Config):
    """The loss of local training: PyTorch's cross-entropy with these settings."""

    name: Literal["cross-entropy"] = "cross-entropy"
    """The loss."""
    label_smoothing: float = Field(0.0, ge=0, lt=1)
    """Share of the target that all classes divide."""
    class_weights: tuple[Annotated[float, Field(gt=0, lt=1e9)], ...] = ()
    """One weight for each class."""
    reduction: Literal["mean", "sum"] = "mean"
    """Whether a step's loss is the mean over its records, or their sum."""


class ClipFacts(Config):
    """Clipping of each step's gradient, as by `clip_grad_norm_` and `clip_grad_value_` of PyTorch."""

    norm: float | None = Field(None, gt=0)
    """Largest ℓ2 norm of the gradient."""
    value: float | None = Field(None, gt=0)
    """Largest absolute value of its entries."""
