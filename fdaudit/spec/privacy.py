"""The privacy part of a spec: presets, canaries, budgets, and the terms of ε."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from fdaudit.config import Config
from fdaudit.errors import SpecError
from fdaudit.events import EventUnit, Relation, Unit

__all__ = ["BudgetSpec", "CanarySpec", "PresetSpec", "PrivacySpec", "TuningSpec"]

Text = Annotated[str, Field(min_length=1, max_length=20_000)]


class PresetSpec(Config):
    """A protocol as published, with its paper's or its authors' settings, or with defences for a finite ε."""

    name: Literal["as-published", "paper", "authors-code", "private"]
    """`paper` and `authors-code`: the protocol's settings as its paper states them, or as its authors' code has them;
    the spec's own `protocol.params` come first. `private`: the protocol's DP-SGD, message noise and withheld messages;
    lengths, learning rates and batches of all records where the spec gives none. See `fdaudit explain NAME`."""
    epsilon: float | None = Field(None, gt=0)
    """ε of the server's view at `privacy.delta`, for one record; only for `private`."""
    clip: float = Field(1.0, gt=0)
    """C of DP-SGD."""
    sample_rate: float | None = Field(None, gt=0, le=1)
    """q of DP-SGD. Default: batch size divided by the mean number of records a client, which is then public: 1 where
    the spec gives no batch size. With a rate of its own the batch size is the protocol's default."""
    written_out: bool = False
    """Set in a run's own `spec.yaml`: `protocol`, `defenses` and `withhold` already contain the preset's settings."""
    tuned: tuple[str, ...] = ()
    """Set in a run's own `spec.yaml`: settings of `protocol` that were chosen for noise. References do without them."""

    @model_validator(mode="after")
    def _epsilon_where_it_belongs(self) -> Self:
        if (self.name == "private") != (self.epsilon is not None):
            problem = "is missing" if self.epsilon is None else "has no meaning for a protocol as published"
            raise SpecError("preset.epsilon", self.epsilon, problem, "Give it with name: private only.")
        return self


class CanarySpec(Config):
    """Records inserted into clients' training data, each by a secret fair coin, to check a claimed ε on."""

    count: int = Field(500, ge=1, le=1_000_000)
    """Canaries, or pairs of them, in each of the clients. Each has one coin; with `unit: client` all share one."""
    clients: tuple[Annotated[int, Field(ge=0)], ...] = Field((0,), min_length=1)
    """The clients that get canaries, by number."""
    kind: Literal["mislabelled", "noise"] = "mislabelled"
    """`mislabelled`: the client's own records, set aside, with wrong labels; `noise`: random pixels."""
    design: Literal["coin-flips", "matched-pairs"] = "coin-flips"
    """`coin-flips` checks ε for added or removed records; `matched-pairs`, for replaced records."""
    unit: EventUnit = "record"
    """`record`: each canary or pair has its own coin. `client`: one coin decides all pairs of a client."""
    guesses: int | None = Field(None, ge=1)
    """Number of coins that an attack guesses. Default: try several numbers and correct for multiple testing."""

    @model_validator(mode="after")
    def _enough_coins(self) -> Self:
        if len(set(self.clients)) != len(self.clients):
            raise SpecError("canaries.clients", list(self.clients), "names a client twice", "Name each once.")
        if self.unit == "client" and self.design != "matched-pairs":
            problem = "leaves a client with other numbers of records by its coin"
            raise SpecError("canaries.design", self.design, problem, "Use matched-pairs with unit: client.")
        coins = len(self.clients) * (self.count if self.unit == "record" else 1)
        if self.guesses is not None and self.guesses > coins:
            problem = f"is more than the {coins} coins"
            raise SpecError(
                "canaries.guesses", self.guesses, problem, "Ask for more canaries or clients, or guess fewer."
            )
        return self


class BudgetSpec(Config):
    """A limit on a view's ε. The run ends before a round that would exceed it."""

    epsilon: float = Field(gt=0)
    """ε at `privacy.delta`, of the worst-affected client."""
    adversary: Text = "server"
    """The adversary whose view is limited."""
    against: tuple[Literal["server", "aggregator", "client"], ...] = ()
    """Roles whose parties may depart from the protocol, each role by itself; of clients, all but the one protected.
    What still counts of ε is then limited too. A run for which nothing is left is refused."""


class TuningSpec(Config):
    """How many runs on the private records a setting was chosen from, by their results (Papernot & Steinke 2022)."""

    runs: float = Field(ge=1, le=1e6)
    """Number of runs, the chosen one included; with `number: geometric`, its mean."""
    number: Literal["fixed", "geometric"] = "fixed"
    """`fixed`: set beforehand, and every run counts in full. `geometric`: secret coins fixed it before the first run,
    and settings were drawn at random; then one run and the choice count."""

    @model_validator(mode="after")
    def _whole_runs(self) -> Self:
        if self.number == "fixed" and self.runs != int(self.runs):
            raise SpecError("privacy.tuning.runs", self.runs, "is no number of runs", "Give a whole number.")
        return self


class PrivacySpec(Config):
    """The terms in which ε is stated, and choices on private data that no message shows."""

    unit: Unit = "record"
    """The difference between neighbouring datasets: one record, all records of one group, or all of a client's records.

    Groups are the dataset's: a column `group` of a table, `train_groups` of an npz file, pictures, or persons.
    """
    relation: Relation | None = None
    """The neighbouring relation: `add-or-remove` or `replace-one`. Default: that of the run's privacy events."""
    delta: float = Field(1e-5, gt=0, lt=1)
    """δ: well below 1 / (records of a client); otherwise publishing one record would be allowed."""
    tuned_on: Literal["nothing", "public", "private"] = "nothing"
    """The data on which the protocol and hyper-parameters were chosen. With `private`, ε needs `tuning`."""
    tuning: TuningSpec | None = None
    """With `tuned_on: private`: from how many runs the setting was chosen. Their price is then part of ε."""
    stopped_on: Literal["schedule", "private"] = "schedule"
    """How the number of rounds was set: in advance, or from private data."""
    published: Literal["last", "chosen-on-private"] = "last"
    """The published model: the last round's, or one chosen by results on private data."""
    budget: BudgetSpec | None = None
    """A limit on the ε of one adversary's view."""

    @model_validator(mode="after")
    def _budget_of_units(self) -> Self:
        if self.unit == "group" and self.budget is not None:
            problem = "is no unit that a budget can limit"
            raise SpecError("privacy.unit", self.unit, problem, "Use record or client, or remove the budget.")
        return self

    @model_validator(mode="after")
    def _tuning_of_private_data(self) -> Self:
        if self.tuning is None:
            return self
        if self.tuned_on != "private":
            problem = "prices a choice by private results, and tuned_on names none"
            raise SpecError("privacy.tuning", self.tuning.runs, problem, "Set tuned_on to private.")
        if self.budget is not None:
            problem = "is not counted by a budget"
            raise SpecError("privacy.tuning", self.tuning.runs, problem, "Remove the budget.")
        return self

    def unaccounted(self) -> str:
        """Return a choice on private data that no event charges, or an empty string."""
        if self.tuned_on == "private" and self.tuning is None:
            return "hyper-parameters were tuned on private data (tuned_on), and the tuning is not charged"
        if self.stopped_on == "private":
            return "training was stopped by private data (stopped_on), and the decision is not charged"
        if self.published == "chosen-on-private":
            return "the published round was chosen on private data (published), and the choice is not charged"
        return ""
