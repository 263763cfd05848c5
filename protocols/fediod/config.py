"""FedIOD's settings; symbols follow Gong et al. 2023."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, Self

from pydantic import Field, model_validator

from fdaudit.federation.local_settings import LocalSteps
from fdaudit.limits import MOST_INNER, MOST_ROUNDS
from fdaudit.training.optimizers import annealed
from fdaudit.types import Trained

__all__ = ["FedIODConfig"]


class FedIODConfig(LocalSteps):
    """FedIOD's settings; symbols follow Gong et al. 2023."""

    rounds: int = Field(11, ge=2, le=MOST_ROUNDS)
    """Round 0 is stage 1, local training; each later round is `steps_per_round` steps of stage 2."""
    local_steps: int | None = Field(None, ge=1)
    """SGD steps of stage 1; give this or `local_epochs`. Neither means 50 epochs."""
    local_epochs: int | None = Field(None, ge=1)
    """Passes over a client's data in stage 1."""
    batch_size: int = Field(16, ge=1)
    """Records a step of stage 1."""
    lr: float = Field(0.05, gt=0)
    """Learning rate of stage 1's SGD."""
    steps_per_round: int = Field(40, ge=1)
    """Distillation steps a round; each sends five kinds of messages."""
    samples: int = Field(32, ge=1)
    """Generated samples a step, and the real records that each discriminator sees with them."""
    adam_lr: float = Field(0.001, gt=0)
    """Adam's learning rate for G, D_k and S, annealed to 0 on a cosine."""
    student_optimizer: Literal["adam", "sgd"] = "adam"
    """Optimiser of S; SGD has a momentum of 0.9."""
    student_lr: float | None = Field(None, gt=0)
    """Learning rate of S, annealed likewise; default: `adam_lr`."""
    latent: int = Field(64, ge=1, le=MOST_INNER)
    """Length of the noise w."""
    generator_width: int = Field(16, ge=1, le=MOST_INNER)
    """Channels of the generator's last stage; earlier ones have up to eight times as many."""
    discriminator_width: int = Field(16, ge=1, le=MOST_INNER)
    """Channels of the discriminator's first convolution; the second has twice as many."""
    gan: float = Field(1.0, ge=0)
    """Weight of L_gan, which the generator minimises; 0 leaves it out. The paper adds all terms unweighted."""
    gan_total: Literal["mean", "sum"] = "mean"
    """The generator's L_gan: the clients' mean, weighted by `shares`, or their sum, which Algorithm 1 has. With equal
    shares the sum is K times the mean."""
    conf: float = Field(0.1, ge=0)
    """Weight of L_conf; 0 leaves it out."""
    unique: float = Field(0.1, ge=0)
    """Weight of L_unique; 0 leaves it out."""
    mimic: float = Field(0.01, ge=0)
    """Weight of L_mimic, which the generator maximises; 0 leaves it out. The student always minimises it."""
    balance: float = Field(0.0, ge=0)
    """Weight of a term that no equation has: minus the entropy of each client's mean prediction, in bits, by π_k. It
    keeps the samples from being of few classes."""
    temperature: float | None = Field(None, gt=0)
    """τ of L_mimic: KL at this temperature. None is τ → ∞, the squared distance of logits."""
    weights: Literal["eq8", "class-counts", "samples", "uniform"] = "eq8"
    """The ensemble's weights for clients: by class and sample (Eq. 8), by class alone, by their records, or equal."""
    shares: Literal["samples", "uniform"] = "samples"
    """π_k of Eq. 2-4: by the clients' numbers of records, or equal."""
    outputs: Literal["logits", "votes"] = "logits"
    """The clients' answers: logits to the server, or predicted classes to an aggregator that counts votes. Votes need
    uniform weights and shares; `conf`, `unique` and `temperature` then have no effect."""
    gradients_from: Literal["all", "one"] = "all"
    """The clients that the server asks for the gradient at its samples in each step: all, or one drawn at random."""
    student_steps: int = Field(5, ge=1)
    """Steps of the student for each step of the generator; all but the first use replayed samples, or fresh ones."""
    fresh: bool = False
    """Clients answer new samples for each step of the student; nothing is replayed. Needs logits, and weights other
    than `eq8`."""
    replay: int = Field(100, ge=0)
    """Number of batches kept for replay. With 0, further steps use the current batch again."""

    @model_validator(mode="after")
    def _generator_learns(self) -> Self:
        if not (self.gan or self.conf or self.unique or self.mimic):
            raise ValueError(
                "leaves the generator nothing to learn: gan, conf, unique and mimic are 0. Raise one."
            )
        if self.outputs == "votes" and not (self.gan or self.mimic):
            raise ValueError(
                "leaves the generator nothing to learn from votes: gan and mimic are 0. Raise one."
            )
        return self

    @model_validator(mode="after")
    def _fresh_answers_are_logits(self) -> Self:
        if self.fresh and (self.outputs != "logits" or self.weights == "eq8"):
            problem = f"outputs {self.outputs!r} and weights {self.weights!r}"
            raise ValueError(f"fresh samples are answered by logits alone, not for {problem}. Leave one out.")
        return self

    @model_validator(mode="after")
    def _votes_weigh_alike(self) -> Self:
        if self.outputs == "votes" and (self.weights, self.shares) != ("uniform", "uniform"):
            problem = (
                f"counts one vote a client: weights {self.weights!r} and shares {self.shares!r} would take"
            )
            raise ValueError(
                f"outputs 'votes' {problem} counts and scores, which are then not sent. Set both to 'uniform'."
            )
        return self

    @property
    def asks(self) -> bool:
        """Return whether clients are asked for gradients; with votes, only if L_gan has a weight."""
        return self.outputs == "logits" or self.gan > 0

    def drawn_from(self, clients: int) -> int:
        """Return the number of clients from which one is drawn for gradients in a step; 1 if none is drawn."""
        return clients if self.gradients_from == "one" and self.asks else 1

    @property
    def steps(self) -> dict[str, int | None]:
        """Return `steps` and `epochs` for the training core."""
        return {"steps": self.local_steps, "epochs": self.local_epochs or (None if self.local_steps else 50)}

    def trainings(self, of: Trained = "model") -> tuple[Mapping[str, int | None], ...]:
        """Return stage 1's training, and one discriminator step for each generator step."""
        if of == "discriminator":
            return ({"steps": 1},) * ((self.rounds - 1) * self.steps_per_round)
        return (self.steps,)

    @property
    def questions(self) -> int:
        """Return how often clients are sent samples for each step of the generator."""
        return self.student_steps if self.fresh else 1

    def rate(self, t: int) -> float:
        """Return Adam's learning rate at step t, annealed from `adam_lr` to 0 on a cosine."""
        return annealed(self.adam_lr, 0.0, t, (self.rounds - 1) * self.steps_per_round)

    def student_rate(self, t: int) -> float:
        """Return the student's learning rate at step t, annealed likewise."""
        return self.rate(t) * (1 if self.student_lr is None else self.student_lr / self.adam_lr)

    def alone(self) -> dict[str, Any]:
        """Return the settings of stage 1 alone."""
        length = {"local_steps": self.steps["steps"], "local_epochs": self.steps["epochs"]}
        return {**super().alone(), **length}
