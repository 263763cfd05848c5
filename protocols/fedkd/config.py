"""FedKD's settings: choices that Gong et al. 2022 leave open, and the kind of ensemble."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, Self

from pydantic import Field, model_validator

from fdaudit.federation.local_settings import LocalSteps
from fdaudit.limits import MOST_ROUNDS
from fdaudit.tasks import SINGLE_LABEL, Task
from fdaudit.training.jobs import Augmentation, Fit
from fdaudit.training.objectives import Objective
from fdaudit.types import DefenseSpec, Trained

__all__ = ["FedKDConfig"]

_BALLOTS: dict[str, Any] = {
    "weights": "uniform",
    "levels": None,
    "z_max": None,
    "noise_at": "none",
    "gamma": None,
    "clip": None,
}
"""Values of the settings of averaged logits if votes are counted."""


class FedKDConfig(LocalSteps):
    """FedKD's settings; symbols follow Gong et al. 2022."""

    local_epochs: int | None = Field(50, ge=1)
    """Passes over a client's data before anything is sent; or give `local_steps`."""
    ensemble: Literal["logits", "votes"] = "logits"
    """The clients' answers: logits, which are averaged (Eq. 2), or predicted classes. The aggregator counts one vote a
    client, as in PATE. With votes, `weights` is uniform, and `levels`, `z_max`, `gamma` and `clip` are null."""
    weights: Literal["class-counts", "uniform"] = "class-counts"
    """ω: each client's share of a class's records (Eq. 1), or 1/K, which needs no counts."""
    levels: int | None = Field(200, ge=2, le=2**16 - 1)
    """S: quantisation levels of the logits; null sends them unquantised."""
    grid: Literal["eq3", "eq4"] = "eq4"
    """The quantiser's grid: that of Eq. 4, or the different one that Eq. 3 describes."""
    z_max: float | None = Field(None, gt=0)
    """A public bound to which logits are clipped. None: the largest absolute logit of all clients (Eq. 3), which they
    agree on through the aggregator."""
    noise_at: Literal["aggregator", "client", "none"] = "aggregator"
    """The party that adds the Laplace noise: the aggregator, once, to the ensemble (Eq. 2), or each client to its own
    logits."""
    gamma: float | None = Field(1.0, gt=0)
    """γ: the noise has scale 1/γ, in logits; null adds none."""
    clip: float | None = Field(None, gt=0)
    """B: a public bound to which values are clipped before noise is added. The paper has none, and so claims no ε.
    Before a plain average the aggregator clips each client's logits, so one client moves it by at most its share."""
    distance: Literal["squared", "absolute"] = "squared"
    """The distance of logits that the central model minimises at τ = ∞ (Eq. 7): squared, or the mean absolute one."""
    temperature: float | None = Field(None, gt=0)
    """τ of the distillation (Eq. 5 and 6); null is the paper's τ = ∞: squared error on logits (Eq. 7). Shares of votes
    are already probabilities: null is then cross-entropy, and a finite τ softens only the central model's answers. For
    masks null is soft Dice (Eq. 10), and a finite τ the divergence of each pixel."""
    distill_rounds: int = Field(5, ge=1, le=MOST_ROUNDS)
    """Number of rounds of the distillation; the model is evaluated and can be resumed after each."""
    distill_steps: int = Field(200, ge=1)
    """Distillation steps a round; the total T is `distill_rounds` times as many."""
    distill_batch_size: int = Field(512, ge=1)
    """B: public samples a distillation step."""
    distill_lr: float = Field(1e-3, gt=0)
    """Learning rate of the distillation."""
    distill_optimizer: Literal["adam", "sgd"] = "adam"
    """Optimiser of the distillation."""
    distill_augmentation: Augmentation | None = None
    """How public samples are changed before each step of the distillation; the ensemble answered the plain ones."""

    @model_validator(mode="before")
    @classmethod
    def _what_follows_from_other_settings(cls, values: Any) -> Any:
        if not isinstance(values, dict):
            return values
        implied: dict[str, Any] = {} if values.get("local_steps") is None else {"local_epochs": None}
        if values.get("ensemble") == "votes":
            implied |= _BALLOTS
        return implied | values

    @model_validator(mode="after")
    def _votes_are_counted(self) -> Self:
        if self.ensemble == "votes":
            for name, only in _BALLOTS.items():
                if (value := getattr(self, name)) != only:
                    raise ValueError(
                        f"ensemble = 'votes' counts one vote a client; {name} = {value!r} would not apply. "
                        f"Leave {name} out, or set ensemble to 'logits'."
                    )
        return self

    @property
    def rounds(self) -> int:
        """Return the number of phases: local training, the ensemble, and the parts of the distillation."""
        return 2 + self.distill_rounds

    def trainings(self, of: Trained = "model") -> tuple[Mapping[str, int | None], ...]:
        """Return one training, before anything is sent."""
        return (self.steps,) if of == "model" else ()

    @property
    def ranged(self) -> bool:
        """Return whether clients have to agree on z_max."""
        return self.levels is not None and self.z_max is None

    @property
    def bounded(self) -> float | None:
        """Return B, to which the aggregator clips each client's logits, or None.

        With B, one client moves the ensemble by at most its share.
        """
        return self.clip if self.noise_at == "aggregator" else None

    def defenses(self) -> tuple[DefenseSpec, ...]:
        """Return Eq. 2's defences: Q(z; S) on each client's logits, and Lap(1/γ) if requested."""
        specs = []
        if self.levels is not None:
            params: dict[str, Any] = {"levels": self.levels, "grid": self.grid, "z_max": self.z_max}
            name = "uniform-quantization"
            specs.append(DefenseSpec(kind="logits", sender="client", name=name, params=params))
        if self.gamma is not None and self.noise_at != "none":
            kind = "logits" if self.noise_at == "client" else "ensemble_labels"
            # Every public sample is answered, for any data.
            params = {"gamma": self.gamma, "clip": self.clip, "public_index": True}
            specs.append(DefenseSpec(kind=kind, sender=self.noise_at, name="laplace-noise", params=params))
        return tuple(specs)

    def distillation(self, task: Task = SINGLE_LABEL) -> Fit:
        """Return the training core's settings for the central model."""
        tau = self.temperature
        labels = task.labels
        at_once: Objective = "cross-entropy" if self.ensemble == "votes" else labels.distance
        if at_once == "l2" and self.distance == "absolute":
            at_once = "l1"
        return Fit(
            lr=self.distill_lr,
            optimizer=self.distill_optimizer,
            objective=at_once if tau is None else labels.divergence,
            temperature=tau or 1.0,
            augmentation=self.distill_augmentation,
        )
