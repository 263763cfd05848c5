"""What a spec says of privacy: which combination of defences it wants, what ε is stated for and checked on."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from fdaudit.config import Config
from fdaudit.errors import SpecError
from fdaudit.events import Relation, Unit

__all__ = ["BudgetSpec", "CanarySpec", "PresetSpec", "PrivacySpec"]

Text = Annotated[str, Field(min_length=1, max_length=20_000)]


class PresetSpec(Config):
    """A protocol as its paper has it, or with the defences that give the server's view a finite ε."""

    name: Literal["as-published", "private"]
    """`private`: the protocol's combination of DP-SGD, message noise and withheld messages (`fdaudit explain NAME`)."""
    epsilon: float | None = Field(None, gt=0)
    """ε of the server's view at `privacy.delta`, for one record; of `private` only."""
    clip: float = Field(1.0, gt=0)
    """C of DP-SGD."""
    sample_rate: float | None = Field(None, gt=0, le=1)
    """q of DP-SGD; default: the batch size over the mean number of records a client, a public constant then."""
    written_out: bool = False
    """Set in a run's own `spec.yaml`: protocol, defenses and withhold hold what the preset stands for."""

    @model_validator(mode="after")
    def _epsilon_where_it_belongs(self) -> Self:
        if (self.name == "private") != (self.epsilon is not None):
            problem = "is missing" if self.epsilon is None else "has no meaning for a protocol as published"
            raise SpecError("preset.epsilon", self.epsilon, problem, "Give it with name: private only.")
        return self


class CanarySpec(Config):
    """Records inserted into clients' training data, each by a secret fair coin, to check a claimed ε on."""

    count: int = Field(500, ge=1, le=1_000_000)
    """Canaries in each of the clients, or pairs of them; as many coins, but for `unit: client`, which has one."""
    clients: tuple[Annotated[int, Field(ge=0)], ...] = Field((0,), min_length=1)
    """The clients that get canaries, by number."""
    kind: Literal["mislabelled", "noise"] = "mislabelled"
    """`mislabelled`: records of the client's own, set aside, under labels not theirs; `noise`: random pixels."""
    design: Literal["coin-flips", "matched-pairs"] = "coin-flips"
    """`coin-flips` checks an ε for records added or removed; `matched-pairs`, one of two each, for records replaced."""
    unit: Unit = "record"
    """`record`: each canary, or pair, has a coin. `client`: one coin a client decides about all of its pairs."""
    guesses: int | None = Field(None, ge=1)
    """How many coins an attack guesses, of all; default: several numbers are tried, and that is corrected for."""

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
    """What a view may cost; the run ends before a round that would pass it."""

    epsilon: float = Field(gt=0)
    """ε at `privacy.delta`, of the client that is worst off."""
    adversary: Text = "server"
    """Whose view."""


class PrivacySpec(Config):
    """What ε is stated for, and what the ledger is told about choices that no message shows."""

    unit: Unit = "record"
    """What changes between neighbouring datasets: one record of a client, or everything that it holds."""
    relation: Relation | None = None
    """How it changes: `add-or-remove` or `replace-one`; default: what the run's privacy events are stated for."""
    delta: float = Field(1e-5, gt=0, lt=1)
    """δ: well below one over a client's number of records, or it permits to publish one of them."""
    tuned_on: Literal["nothing", "public", "private"] = "nothing"
    """What hyper-parameters, and the protocol itself, were chosen on; a choice on private data leaves no ε to claim."""
    stopped_on: Literal["schedule", "private"] = "schedule"
    """Whether the number of rounds was fixed beforehand, or followed from private data."""
    published: Literal["last", "chosen-on-private"] = "last"
    """Which round's model is published: the last, or one chosen by its results on private data."""
    budget: BudgetSpec | None = None
    """What the view of one adversary may cost at most."""

    def unaccounted(self) -> str:
        """A choice on private data that no event charges, or nothing."""
        if self.tuned_on == "private":
            return "hyper-parameters were tuned on private data (tuned_on), and the tuning is not charged"
        if self.stopped_on == "private":
            return "training was stopped by private data (stopped_on), and the decision is not charged"
        if self.published == "chosen-on-private":
            return "the published round was chosen on private data (published), and the choice is not charged"
        return ""
