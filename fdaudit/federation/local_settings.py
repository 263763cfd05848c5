"""Settings of local training, shared by protocols in which clients fit models on their own data."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Self

from pydantic import BeforeValidator, Field, model_validator

from fdaudit.federation.protocol import ProtocolConfig
from fdaudit.limits import MOST_ROUNDS
from fdaudit.tasks import SINGLE_LABEL, Task
from fdaudit.training.jobs import Augmentation, Fit
from fdaudit.training.optimizers import BETAS, OptimizerName, annealed
from fdaudit.training.stepwise import Optimizer
from fdaudit.types import Trained

__all__ = ["LocalSteps", "LocalTraining"]


_Decay = Annotated[float, Field(ge=0, lt=1)]


def _as_tuple(value: object) -> object:
    """Return a list as a tuple, for configurations whose values pass through another validator first."""
    return tuple(value) if isinstance(value, list) else value


class LocalSteps(ProtocolConfig):
    """Local training: steps or epochs a round, batch size and optimiser."""

    optimizer: OptimizerName = "sgd"
    """Optimiser of local training: SGD, Adam or AdamW. Its state starts from zero every round."""
    betas: Annotated[tuple[_Decay, _Decay], BeforeValidator(_as_tuple)] = BETAS
    """Decay rates of Adam's moments."""
    local_steps: int | None = Field(None, ge=1)
    """Steps a round; give this or `local_epochs`. Neither means one epoch."""
    local_epochs: int | None = Field(None, ge=1)
    """Passes over a client's data a round."""
    batch_size: int = Field(64, ge=1)
    """Records a step."""
    lr: float = Field(0.1, gt=0)
    """Learning rate of local training."""
    final_lr: float | None = Field(None, gt=0)
    """Final learning rate, on a half cosine over each round's local steps. Default: `lr` is constant."""
    momentum: float = Field(0.0, ge=0, lt=1)
    """Momentum of SGD."""
    weight_decay: float = Field(0.0, ge=0)
    """ℓ2 penalty of local training."""
    augmentation: Augmentation | None = None
    """How images are changed before each step of local training. Default: not at all."""

    @model_validator(mode="after")
    def _momentum_is_of_sgd(self) -> Self:
        if self.momentum and self.optimizer != "sgd":
            both = f"optimizer = {self.optimizer!r} has no part in momentum = {self.momentum}"
            raise ValueError(f"cannot be combined: {both}. Leave one of them out.")
        return self

    @model_validator(mode="after")
    def _one_length(self) -> Self:
        if self.local_steps is not None and self.local_epochs is not None:
            both = f"local_steps = {self.local_steps} with local_epochs = {self.local_epochs}"
            raise ValueError(f"cannot be combined: {both}. Give one of them.")
        return self

    def alone(self) -> dict[str, Any]:
        """Return settings for the same local training, once, without any exchange."""
        return {"rounds": 1, **{name: getattr(self, name) for name in LocalSteps.model_fields}}

    @property
    def steps(self) -> dict[str, int | None]:
        """Return `steps` and `epochs` for the training core."""
        epochs = self.local_epochs or (None if self.local_steps else 1)
        return {"steps": self.local_steps, "epochs": epochs}

    def smallest_batch(self, records: int) -> int:
        """Return the number of records in the smallest batch of a client that has so many."""
        full = min(self.batch_size, records)
        return full if self.steps["epochs"] is None else records % full or full

    def local_lr(self, step: int, steps: int) -> float:
        """Return the learning rate of step `step` of a round's `steps`, for a `Learner`."""
        return annealed(self.lr, self.final_lr, step, steps)

    @property
    def local_optimizer(self) -> Optimizer:
        """Return the optimiser of local training for a `Learner`."""
        decay = self.weight_decay
        return Optimizer(
            lr=self.lr, name=self.optimizer, momentum=self.momentum, betas=self.betas, weight_decay=decay
        )

    def fit(self, mu: float = 0.0, task: Task = SINGLE_LABEL) -> Fit:
        """Return the training core's settings for labels of a task."""
        return Fit(
            lr=self.lr,
            optimizer=self.optimizer,
            betas=self.betas,
            final_lr=self.final_lr,
            momentum=self.momentum,
            weight_decay=self.weight_decay,
            augmentation=self.augmentation,
            objective=task.labels.objective,
            mu=mu,
        )


class LocalTraining(LocalSteps):
    """Local training, round after round."""

    rounds: int = Field(20, ge=1, le=MOST_ROUNDS)
    """Communication rounds."""

    def alone(self) -> dict[str, Any]:
        """Return settings for the same local training, round by round, without any exchange."""
        return {**super().alone(), "rounds": self.rounds}

    def trainings(self, of: Trained = "model") -> tuple[Mapping[str, int | None], ...]:
        """Return one training a round."""
        return (self.steps,) * self.rounds if of == "model" else ()
