"""DaFKD's settings."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from fdaudit.limits import MOST_INNER

from .._local import LocalTraining

__all__ = ["DaFKDConfig"]


class DaFKDConfig(LocalTraining):
    """DaFKD's settings; symbols follow Wang et al. 2023. Local SGD trains classifier and discriminator together."""

    fraction: float = Field(1.0, gt=0, le=1)
    """r: share of the clients that take part in a round, at least one."""
    weighting: Literal["samples", "uniform"] = "uniform"
    """Average classifiers and generators plainly as the paper does, or by `sample_count`."""
    weights: Literal["eq7", "uniform"] = "eq7"
    """How the ensemble weighs clients: by their discriminators (Eq. 7), or all alike ("no correlation")."""
    upload_discriminator: bool = True
    """Clients send their discriminators; otherwise scores and weighted soft labels (Appendix B)."""
    adversarial: float = Field(1.0, ge=0)
    """What L_adv counts in Eq. 9; 1 is the paper's plain sum."""
    recognised: float = Field(0.2, ge=0)
    """What the classifier's cross-entropy at pseudo-samples counts for the generator, beside Eq. 3."""
    diversity: float = Field(0.2, ge=0)
    """What it counts for the generator that two samples of one class are alike, beside Eq. 3."""
    generator_lr: float = Field(2e-3, gt=0)
    """Adam's learning rate for the generator."""
    latent: int = Field(64, ge=1, le=MOST_INNER)
    """d: length of the noise z."""
    generator_width: int = Field(128, ge=1, le=MOST_INNER)
    """Width of each of the generator's two embeddings."""
    pseudo_samples: int = Field(1024, ge=1)
    """Size of the pseudo dataset that the server distils on."""
    distill_steps: int = Field(50, ge=0)
    """SGD steps of distillation a round; 0 leaves the average as it is."""
    distill_batch_size: int = Field(64, ge=1)
    """Pseudo-samples a step."""
    distill_lr: float = Field(0.05, gt=0)
    """Learning rate of distillation."""
    temperature: float = Field(1.0, gt=0)
    """τ of the soft predictions; 1 is the paper."""
