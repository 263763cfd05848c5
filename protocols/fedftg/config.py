"""FedFTG's settings."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from fdaudit.limits import MOST_INNER

from .._uploads import SampledTraining

__all__ = ["FedFTGConfig"]


class FedFTGConfig(SampledTraining):
    """FedFTG's settings; the defaults are those of the authors' code, except for the generator's size."""

    iterations: int = Field(10, ge=0)
    """I: times a round that generator and model take turns; 0 is FedAvg."""
    generator_steps: int = Field(1, ge=1)
    """I_g: times that the generator learns in a turn; each time takes one step for each client's model."""
    distill_steps: int = Field(5, ge=1)
    """I_d: SGD steps of the model in a turn, all on the turn's samples."""
    distill_batch_size: int = Field(50, ge=2)
    """Generated samples a turn."""
    distill_lr: float = Field(0.01, gt=0)
    """Learning rate of the model. The authors' 0.1 goes with a loss that is divided by the number of classes, 10."""
    generator_lr: float = Field(0.01, gt=0)
    """Adam's learning rate for the generator."""
    recognised: float = Field(1.0, ge=0)
    """λ_cls: weight of the clients' cross-entropy at generated samples in the generator's loss."""
    diversity: float = Field(1.0, ge=0)
    """λ_dis: weight of the similarity of generated samples in the generator's loss."""
    ensemble: Literal["classes", "uniform"] = "classes"
    """The clients' weights in both losses: their shares of a sample's class, or equal."""
    labels: Literal["classes", "uniform"] = "classes"
    """The classes of generated samples: as frequent as in the clients' records together, or all alike."""
    latent: int = Field(100, ge=1, le=MOST_INNER)
    """Length of the noise z."""
    generator_width: int = Field(128, ge=1, le=MOST_INNER)
    """Width of each of the generator's two embeddings."""
