"""Selective-FD's settings, with those of its selectors."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Literal, Self

from pydantic import Field, model_validator

from fdaudit.limits import MOST_ROUNDS
from fdaudit.training.trainer import Fit
from fdaudit.types import Trained

from .selectors import Selection

__all__ = ["SelectiveFDConfig"]


class SelectiveFDConfig(Selection):
    """Selective-FD's settings; the defaults are the paper's for non-IID MNIST, if stated."""

    rounds: int = Field(150, ge=1, le=MOST_ROUNDS)
    """T: communication rounds."""
    warm_up_steps: int = Field(200, ge=0)
    """SGD steps of a client on its own records before the first round."""
    local_steps: int = Field(1, ge=0)
    """SGD steps on its own records a round (the paper: 1, and 5 if IID)."""
    distill_steps: int = Field(10, ge=1)
    """SGD steps on the round's ensemble predictions (the paper: 10, and 6 if IID)."""
    batch_size: int = Field(64, ge=1)
    """Records a local step."""
    public_batch: int = Field(512, ge=1)
    """Proxy samples that the server asks about in a round; every distillation step uses all that came back."""
    lr: float = Field(0.1, gt=0)
    """Learning rate of SGD."""
    distill_lr: float | None = Field(None, gt=0)
    """Learning rate of distillation; default: `lr`. With `lr` divided by the number of clients the steps are those of
    the authors' early code, which divides its targets by that number."""
    order: Literal["local-first", "predict-first"] = "predict-first"
    """Order of a round: predictions before local steps (Algorithm 1), or after them (the authors' code)."""
    labels: Literal["hard", "soft"] = "hard"
    """A client's answer: its predicted class, or its class probabilities."""
    ensemble: Literal["mean", "votes"] = "mean"
    """The ensemble: the mean of the answers, or a count of hard labels, one vote a client. With votes a client answers
    for every requested sample, with -1 if it declines, so its index reveals nothing."""
    aggregator: Literal["server", "secure"] = "server"
    """The party that counts votes: the server, which then sees every ballot, or a secure aggregation, of which all
    parties see only the result."""
    tau_server: float = Field(2.0, gt=0, le=2)
    """τ_server: the largest ℓ1 distance of an ensemble prediction from its one-hot prediction. 2, the largest distance
    that there is, keeps them all: the server-side selector is off, as in all our published runs."""

    @model_validator(mode="after")
    def _votes_are_hard_labels_of_every_sample(self) -> Self:
        if self.ensemble == "mean" and self.aggregator == "secure":
            raise ValueError(
                "aggregator = 'secure' counts votes, and ensemble = 'mean' has none. "
                "Set ensemble to 'votes', or aggregator to 'server'."
            )
        if self.ensemble == "votes" and self.labels != "hard":
            raise ValueError(
                f"ensemble = 'votes' counts hard labels; labels = {self.labels!r} are none. Set labels to 'hard'."
            )
        if self.ensemble == "votes" and self.tau_server != 2:
            raise ValueError(
                f"ensemble = 'votes' drops no sample for its votes; tau_server = {self.tau_server} would not apply. "
                "Leave tau_server out; the threshold of confident-gnmax takes its place."
            )
        return self

    @property
    def counter(self) -> str:
        """Return the party that receives the clients' answers."""
        return "aggregator" if self.aggregator == "secure" else "server"

    @property
    def form(self) -> Literal["hard", "soft", "votes"]:
        """Return the form of an answer: classes or probabilities of accepted samples, or a ballot on all requests."""
        return "votes" if self.ensemble == "votes" else self.labels

    @property
    def distillation(self) -> Fit:
        """Return the training core's settings for distillation."""
        return Fit(lr=self.distill_lr or self.lr)

    def assumptions(self) -> tuple[str, ...]:
        """Return what an ε assumes of the encoder in feature space."""
        if self.selector != "density-ratio" or self.space == "input":
            return ()
        encoder = (
            "The encoder of `space: features` is trained on labelled auxiliary records, which are taken for public. "
            "Every client holds it before the first message; no message carries it and no count of bytes includes it."
        )
        return (encoder,)

    def trainings(self, of: Trained = "model") -> tuple[Mapping[str, int | None], ...]:
        """Return the warm-up and each round's local steps."""
        lengths: list[Mapping[str, int | None]] = []
        for steps in (self.warm_up_steps, *(self.local_steps,) * self.rounds):
            if steps and of == "model":
                lengths.append({"steps": steps})
        return tuple(lengths)

    def alone(self) -> dict[str, Any]:
        """Return settings with a client's total number of SGD steps, spread evenly over the rounds."""
        steps = math.ceil(self.warm_up_steps / self.rounds) + self.local_steps + self.distill_steps
        return {"rounds": self.rounds, "local_steps": steps, "batch_size": self.batch_size, "lr": self.lr}
