"""DaFKD's settings."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import Field, model_validator

from fdaudit.federation.local_settings import LocalTraining
from fdaudit.limits import MOST_INNER

__all__ = ["DaFKDConfig"]


class DaFKDConfig(LocalTraining):
    """DaFKD's settings; symbols follow Wang et al. 2023. Local training is of classifier and discriminator together."""

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
    discriminator_rounds: int | None = Field(None, ge=0)
    """First rounds in which L_adv is in Eq. 9; default: all."""
    generator_rounds: int | None = Field(None, ge=0)
    """First rounds in which generators learn; default: all."""
    adversarial_epochs: int | None = Field(None, ge=1)
    """First local epochs of such a round in which L_adv counts and generators learn; default: all."""
    interleaved: bool = False
    """A generator's step follows each step of the discriminator; otherwise all follow its last one (Algorithm 1)."""
    gradient_penalty: float = Field(0.0, ge=0)
    """Weight of the discriminator's gradient penalty between records and pseudo-samples, added to Eq. 2."""
    conditional: bool = True
    """The generator is given a class. Without, it is only given noise; `recognised` has to be 0."""
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
    distill_from: int = Field(0, ge=0)
    """First round, from 0, that ends with distillation."""
    distill_optimizer: Literal["sgd", "adam"] = "sgd"
    """Optimiser of distillation."""
    distill_steps: int = Field(50, ge=0)
    """Steps of distillation a round; 0 keeps the plain average."""
    distill_batch_size: int = Field(64, ge=1)
    """Pseudo-samples a step."""
    distill_lr: float = Field(0.05, gt=0)
    """Learning rate of distillation."""
    temperature: float = Field(1.0, gt=0)
    """τ of the soft predictions; the paper uses 1."""
    ensemble: Literal["soft_labels", "logits"] = "soft_labels"
    """What Eq. 8 sums over clients: soft predictions, or class scores of which the softmax at τ is the target."""

    @model_validator(mode="after")
    def _possible(self) -> Self:
        if self.ensemble == "logits" and not self.upload_discriminator:
            raise ValueError(
                "ensemble = 'logits' needs upload_discriminator = true: Appendix B sends soft labels."
            )
        if not self.conditional and self.recognised:
            raise ValueError(
                f"conditional = false has no classes to recognise: recognised = {self.recognised}. Set it to 0."
            )
        return self

    def learns(self, part: Literal["discriminator", "generator"], round: int, epoch: int) -> bool:
        """Return whether L_adv counts, or generators learn, in a local epoch of a round, both from 0."""
        rounds = self.discriminator_rounds if part == "discriminator" else self.generator_rounds
        early = self.adversarial_epochs is None or epoch < self.adversarial_epochs
        return early and (rounds is None or round < rounds)
