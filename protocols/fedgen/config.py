"""FedGEN's settings."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from fdaudit.federation.kit import LocalTraining

__all__ = ["FedGENConfig"]


class FedGENConfig(LocalTraining):
    """FedGEN's settings; the defaults are those of the authors' code for MNIST, except for the length of a run."""

    batch_size: int = Field(32, ge=1)
    """Records a step."""
    lr: float = Field(0.01, gt=0)
    """Learning rate of local SGD."""
    fraction: float = Field(1.0, gt=0, le=1)
    """Share of the clients that take part in a round, at least one."""
    share: Literal["all", "head"] = "all"
    """What clients send: the whole model, or the predictor θ^p alone. They then keep extractors of their own."""
    alpha: float = Field(10.0, ge=0)
    """α: weight of a client's cross-entropy at generated features, times the ratio of `generated` to `batch_size`."""
    beta: float = Field(10.0, ge=0)
    """β: weight of the divergence of a record's prediction from that of a generated feature of its class."""
    decay: float = Field(0.98, gt=0, le=1)
    """Factor of α and β from one round to the next."""
    generated: int = Field(32, ge=2)
    """Generated features a step, of a client and of the generator."""
    generator_steps: int = Field(50, ge=0)
    """Adam steps of the generator a round."""
    generator_lr: float = Field(3e-4, gt=0)
    """Adam's learning rate for the generator."""
    generator_weight_decay: float = Field(0.01, ge=0)
    """ℓ2 penalty of the generator."""
    diversity: float = Field(1.0, ge=0)
    """η: weight of the similarity of generated features in the generator's loss."""
    ensemble: Literal["classes", "logits"] = "classes"
    """The generator's teacher: the sum of the clients' cross-entropies, weighted by their shares of a class, or the
    cross-entropy of their mean logits (Eq. 4)."""
    labels: Literal["classes", "uniform"] = "uniform"
    """The classes that the generator learns: as frequent as in the clients' records, or all that occur alike."""
    weighting: Literal["samples", "uniform"] = "samples"
    """The weights of the clients' models in the average."""
    latent: int = Field(32, ge=1, le=4096)
    """Length of the noise ε."""
    generator_width: int = Field(256, ge=1, le=4096)
    """Width of the generator's hidden layer."""
