"""DaFKD's settings."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from fdaudit.federation.local_settings import LocalTraining
from fdaudit.limits import MOST_INNER

__all__ = ["DaFKDConfig"]


class DaFKDConfig(LocalTraining):
    """DaFKD's settings; symbols follow Wang et al. 2023. Local SGD trains classifier and discriminator together."""

    fraction: float = Field(1.0, gt=0, le=1)
    """r: share of the clients that take part in a round, at least one."""
    weighting: Literal["samples", "uniform"] = "uniform"
    """The average's weights for classifiers and generators: equal, as in the paper, or by `sample_count`."""
    weights: Literal["eq7", "uniform"] = "eq7"
    """The ensemble's weights for clients: by their discriminators (Eq. 7), or equal ("no correlation")."""
    share_extractor: bool = True
    """The discriminator shares the classifier's extractor, trained by Eq. 9; otherwise it has one of its own (Table 3,
    "no sharing")."""
    upload_discriminator: bool = True
    """Clients send their discriminators; otherwise scores and weighted soft labels (Appendix B)."""
    adversarial: float = Field(1.0, ge=0)
    """Weight of L_adv in Eq. 9; 1 is the paper's plain sum."""
    recognised: float = Field(0.2, ge=0)
    """Weight of the classifier's cross-entropy at pseudo-samples in the generator's loss, added to Eq. 3."""
    diversity: float = Field(0.2, ge=0)
    """Weight of the similarity of two samples of one class in the generator's loss, added to Eq. 3."""
    generator_lr: float = Field(2e-3, gt=0)
    """Adam's learning rate for the generator."""
    latent: int = Field(64, ge=1, le=MOST_INNER)
    """d: length of the noise z."""
    generator_width: int = Field(128, ge=1, le=MOST_INNER)
    """Width of each of the generator's two embeddings."""
    pseudo_samples: int = Field(1024, ge=1)
    """Size of the pseudo dataset that the server distils on."""
    distill_steps: int = Field(50, ge=0)
    """SGD steps of distillation a round; 0 keeps the plain average."""
    distill_batch_size: int = Field(64, ge=1)
    """Pseudo-samples a step."""
    distill_lr: float = Field(0.05, gt=0)
    """Learning rate of distillation."""
    temperature: float = Field(1.0, gt=0)
    """τ of the soft predictions; the paper uses 1."""
