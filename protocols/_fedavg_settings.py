"""FedAvg's settings: the clients' uploads, the party that averages them, and the weights."""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self

from pydantic import Field, model_validator

from fdaudit.errors import SpecError
from fdaudit.events import Event, SampledGaussian
from fdaudit.federation.local_settings import LocalTraining
from fdaudit.tasks import SINGLE_LABEL, Task
from fdaudit.tasks.stated_loss import ClipFacts, LossFacts
from fdaudit.training.jobs import Fit
from fdaudit.training.objectives import ClientStep

__all__ = ["FedAvgConfig"]


_Weight = Annotated[float, Field(gt=0, allow_inf_nan=False)]


class FedAvgConfig(LocalTraining):
    """FedAvg's settings; symbols follow McMahan et al. 2017, Algorithm 1."""

    upload: Literal["gradient", "model_update", "model_parameters"] = "model_update"
    """What a client sends: the gradient of one batch, the change of its model, or its model."""
    send_state: bool = False
    """Whether clients also send their optimiser's state after training: one step's gradient can be read off it."""
    loss: LossFacts | None = None
    """Settings of the clients' cross-entropy. Default: the plain mean."""
    clip: ClipFacts | None = None
    """Clipping of each step's gradient, which guarantees no privacy. Default: none."""
    fraction: float = Field(1.0, gt=0, le=1)
    """C: share of the clients that take part in a round, at least one. Under a rule on the updates a secret draw."""
    weighting: Literal["samples", "public", "uniform"] = "samples"
    """The average's weights: by `sample_count`, which clients tell the server; by `weights`, or without them by counts
    that every client tells all parties; or equal."""
    weights: tuple[_Weight, ...] | None = None
    """With `weighting: public`: one positive number a client, proportional to p_k and agreed on without using the data.
    No count is then read or sent. None: the counts themselves, which the ledger charges."""
    aggregation: Literal["plain", "secure"] = "plain"
    """The averaging party: the server, which then sees every upload, or secure aggregation, which sends it only their
    sum. With secure aggregation clients send updates, each multiplied by its weight p_k: 1/m, or with public weights
    n_k/n or w_k/w. A defence clips after that."""
    mu: float = Field(0.0, ge=0)
    """FedProx's μ (Li et al. 2020); 0 is FedAvg."""
    server_momentum: float = Field(0.0, ge=0, lt=1)
    """FedAvgM's β (Hsu et al. 2019); 0 is FedAvg."""

    @model_validator(mode="before")
    @classmethod
    def _gradients_are_one_step(cls, values: Any) -> Any:
        values = _with_tuples(values)  # lists are refused below
        if isinstance(values, dict) and values.get("upload") == "gradient" and not values.get("local_epochs"):
            settings: dict[Any, Any] = {"local_steps": 1}
            for name, value in values.items():
                if value is not None:
                    settings[name] = value
            return settings
        return values

    @model_validator(mode="after")
    def _one_step_for_gradients(self) -> Self:
        if self.upload != "gradient":
            return self
        if self.local_epochs is not None or self.local_steps != 1:
            raise ValueError(
                "upload = 'gradient' is one step a round; local_epochs or local_steps say otherwise. "
                "Set local_steps to 1, or upload to 'model_update'."
            )
        if self.momentum or self.weight_decay or self.mu or self.optimizer != "sgd":
            raise ValueError(
                "upload = 'gradient' sends the bare gradient; momentum, weight_decay, mu and optimizer have no part. "
                "Set them to 0 and 'sgd', or upload to 'model_update'."
            )
        return self

    def fit(self, mu: float = 0.0, task: Task = SINGLE_LABEL) -> Fit:
        """Return the training core's settings for labels of a task."""
        step = ClientStep.of(self.model_dump(include={"loss", "clip"}))
        return super().fit(mu, task).model_copy(update={"step": step})

    @model_validator(mode="after")
    def _state_is_there(self) -> Self:
        bare = self.optimizer == "sgd" and not self.momentum
        if self.send_state and (bare or self.upload == "gradient" or self.aggregation == "secure"):
            raise ValueError(
                "send_state needs an optimiser with a state, an upload other than 'gradient', and plain aggregation. "
                "Set momentum or optimizer, or leave send_state out."
            )
        return self

    def refuse_unused(self, classes: int, task: Task, *, defended: bool) -> None:
        """Refuse a loss or clipping that the clients' training would not use.

        Args:
            classes: number of classes.
            task: the learning task.
            defended: whether a rule acts on the gradients of single records.

        Raises:
            SpecError: the loss has other classes, the task has another loss, or such a rule acts.
        """
        for name in ("loss", "clip"):
            value = getattr(self, name)
            if value is not None and defended:
                problem = "does not go with a defence of training, which has its own"
                raise SpecError(
                    f"protocol.params.{name}", value.model_dump(), problem, "Leave one of them out."
                )
        if self.loss is None:
            return
        weights = self.loss.class_weights
        if task.labels.objective != "cross-entropy":
            problem = f"is cross-entropy, and {task.name} is trained by {task.labels.objective}"
            raise SpecError("protocol.params.loss", self.loss.model_dump(), problem, "Leave it out.")
        if weights and len(weights) != classes:
            problem = f"has {len(weights)} weights for {classes} classes"
            raise SpecError("protocol.params.loss.class_weights", list(weights), problem, "Give one a class.")

    @model_validator(mode="after")
    def _weights_are_public(self) -> Self:
        if self.weights is not None and self.weighting != "public":
            raise ValueError(
                f"weights = {list(self.weights)} are used by weighting = 'public' alone; it is {self.weighting!r}. "
                "Set weighting to 'public', or leave weights out."
            )
        return self

    def refuse_uneven(self, event: Event) -> None:
        """Refuse settings under which a noisy sum of clipped updates is not the whole mechanism.

        Args:
            event: the event of one sum by the rule. Its coins and a draw of `fraction` exclude each other.

        Raises:
            SpecError: a client's influence would not end at its clipped update, or who takes part is set otherwise.
        """
        needed = {"upload": "model_update", "weighting": "uniform", "aggregation": "plain"}
        for name, value in {**needed, "server_momentum": 0.0}.items():
            if (setting := getattr(self, name)) != value:
                problem = "does not go with a rule on the clients' updates"
                raise SpecError(f"protocol.params.{name}", setting, problem, f"Set it to {value!r}.")
        if self.fraction < 1 and not (isinstance(event, SampledGaussian) and event.sample_rate == 1):
            problem = "does not go with a rule on the clients' updates that draws them itself"
            remedy = "Set the rule's sample_rate to 1, or fraction to 1.0."
            raise SpecError("protocol.params.fraction", self.fraction, problem, remedy)

    def taking_part(self, clients: int) -> int:
        """Return m = max(C·K, 1), the number of clients that take part in a round."""
        return max(round(self.fraction * clients), 1)

    @property
    def cohort(self) -> int:
        """Return what a rule on the clients' updates divides their noisy sum by, unless it says `expected_batch`."""
        return 1

    def fits(self, clients: int) -> None:
        """Refuse public weights unless there is one for each client.

        Raises:
            SpecError: there are more weights than clients, or fewer.
        """
        if self.weights is not None and len(self.weights) != clients:
            problem = f"are {len(self.weights)} numbers for {clients} clients"
            raise SpecError("protocol.params.weights", list(self.weights), problem, "Give one a client.")

    def assumptions(self) -> tuple[str, ...]:
        """Return the assumption behind constant weights."""
        if self.weights is None:
            return ()
        return ("The weights p_k of the average were agreed on without looking at the data.",)

    @model_validator(mode="after")
    def _sums_of_weighted_updates(self) -> Self:
        if self.aggregation == "secure" and self.upload != "model_update":
            raise ValueError(
                f"aggregation = 'secure' adds up model updates; upload = {self.upload!r} is none. "
                "Set upload to 'model_update'."
            )
        if self.aggregation == "secure" and self.weighting == "samples":
            raise ValueError(
                "aggregation = 'secure' needs weights that clients know beforehand; weighting = 'samples' sends "
                "counts. Set weighting to 'uniform' or 'public'."
            )
        return self


def _with_tuples(value: Any) -> Any:
    """Return settings with a tuple in place of each list."""
    if isinstance(value, dict):
        return {name: _with_tuples(entry) for name, entry in value.items()}
    return tuple(map(_with_tuples, value)) if isinstance(value, list) else value
