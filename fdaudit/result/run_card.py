"""The head of a result: what was run, on which data and with which code, and what the models learnt."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, model_validator

from fdaudit.result.part import AUDITOR, Audience, Part, is_empty
from fdaudit.tasks import SINGLE_LABEL, TASKS
from fdaudit.types import Figure

__all__ = [
    "CurvePoint",
    "Departure",
    "FinalUtility",
    "ModelHash",
    "OutOfScope",
    "Recording",
    "Reproduce",
    "RunCard",
    "Rung",
    "Silence",
    "StandInFigures",
    "Unfinished",
    "UntriedDeviation",
    "UnusedMembers",
    "Utility",
]


class Silence(Part):
    """A client that did not answer, and the rounds in which it owed a message."""

    _audience: ClassVar[Audience] = "public"

    party: str
    rounds: tuple[int, ...] = Field(min_length=1)


class Departure(Part):
    """A party that departed from the protocol: by which deviation, and how many messages it changed."""

    _audience: ClassVar[Audience] = "public"

    party: str
    name: str
    messages: int


class ModelHash(Part):
    """SHA-256 of the final model of a party other than a client."""

    _audience: ClassVar[Audience] = "public"

    party: str
    sha256: str


class Rung(Part):
    """Something that an auditor may bring to a recording, what it makes possible, and whether it was brought."""

    _audience: ClassVar[Audience] = "public"

    bring: str
    buys: str
    there: bool


class UnusedMembers(Part):
    """Records that a client is said to train on, and that no message of it used.

    Attributes:
        party: the client.
        unused: how many there are.
        of: the records that it is said to train on.
        unused_candidates: those among them that membership attacks are asked about.
        candidates: the members that membership attacks are asked about.
    """

    party: str
    unused: int
    of: int
    unused_candidates: int = 0
    candidates: int = 0

    @property
    def words(self) -> str:
        """Return the counts in a sentence."""
        said = f"{self.unused} of {self.of} members of {self.party} were used by no message"
        if self.candidates:
            said += f", {self.unused_candidates} of its {self.candidates} candidates among them"
        return f"{said}."


class StandInFigures(Part):
    """What one attack showed on a stand-in of a recorded system, without a deviation and with it."""

    attack: str
    goal: str
    honest: Figure | None = None
    """None: the attack had no figure."""
    active: Figure | None = None

    @property
    def parts(self) -> bool:
        """Return whether the intervals of both figures part."""
        if self.honest is None or self.active is None:
            return False
        low, high = self.honest.low, self.honest.high
        other_low, other_high = self.active.low, self.active.high
        if low is None or high is None or other_low is None or other_high is None:
            return False
        return high < other_low or other_high < low


class UntriedDeviation(Part):
    """A shipped deviation that would fit a recorded system, and was not tried on it: that needs an active party."""

    _audience: ClassVar[Audience] = "public"

    name: str
    role: str
    """Who would deviate."""
    kinds: tuple[str, ...]
    """Kinds of its messages on record that the deviation changes."""
    attacks: tuple[str, ...]
    """Attacks that read more by it."""
    stand_in: Annotated[str, AUDITOR] = ""
    """The federation of auxiliary records on which its effect was measured, in words; empty if it was not."""
    measured: Annotated[tuple[StandInFigures, ...], AUDITOR] = ()
    reason: Annotated[str, AUDITOR] = ""
    """Why it could not be measured; empty if it was, or if nobody tried."""

    @property
    def words(self) -> str:
        """Return the deviation, who would deviate, and that it was not tried, in a clause."""
        return f"{self.name} of the {self.role} in {', '.join(self.kinds)}: not tried: active"


class Recording(Part):
    """A recording of a system that fdaudit did not run."""

    _audience: ClassVar[Audience] = "public"

    system: str
    asserted_by: str
    closed: bool
    left_out: int = 0
    design: str
    notes: tuple[str, ...] = ()
    asserted: tuple[str, ...] = ()
    ladder: tuple[Rung, ...] = ()
    unused: Annotated[tuple[UnusedMembers, ...], AUDITOR] = ()
    """Clients with members that no message used."""
    untried: tuple[UntriedDeviation, ...] = Field(default=(), exclude_if=is_empty)
    """Deviations that fit the system and were not tried on it."""


class RunCard(Part):
    """The run, its code and its data."""

    _audience: ClassVar[Audience] = "public"

    name: str
    status: str
    profile: str
    protocol: str
    protocol_summary: str = ""
    deviations: tuple[str, ...] = ()
    """The differences of the protocol from its paper, as its card states them."""
    dataset: str
    dataset_provenance: str = ""
    task: str = Field(SINGLE_LABEL.name, pattern=f"^({'|'.join(TASKS)})$")
    clients: int
    rounds: int
    model: str
    client_models: tuple[str, ...] = ()
    parameters: int
    silences: tuple[Silence, ...] = ()
    departures: tuple[Departure, ...] = Field(default=(), exclude_if=is_empty)
    roles: tuple[str, ...] = ()
    head: str
    messages: int
    record: str
    transport: str
    spec: dict[str, Any]
    spec_sha256: str
    versions: dict[str, str]
    device: str
    threads: int
    strategy: str
    seed_commitment: str
    data_commitment: str = ""
    """Salted: without the vault's secret it reveals nothing about the data."""
    model_hashes: tuple[ModelHash, ...] = ()
    release: Literal["internal", "api", "public-weights"] | None = None
    origin: Literal["simulation", "recording"] = "simulation"
    recording: Recording | None = None


class CurvePoint(Part):
    """Utility of one party's model after one round; fractions in [0, 1]."""

    _audience: ClassVar[Audience] = "public"

    line: str
    round: int
    party: str
    accuracy: float | None = Field(default=None, exclude_if=is_empty)
    mean_auc: float | None = Field(default=None, exclude_if=is_empty)
    dice: float | None = Field(default=None, exclude_if=is_empty)
    macro_f1: float | None = Field(default=None, exclude_if=is_empty)
    mean_iou: float | None = Field(default=None, exclude_if=is_empty)

    @model_validator(mode="after")
    def _one_figure(self) -> CurvePoint:
        if (self.accuracy, self.mean_auc, self.dice).count(None) != 2:
            raise ValueError(
                "has not one figure. Give accuracy, mean_auc of a multi-label task, or dice of segmentation."
            )
        return self

    @property
    def value(self) -> float:
        """Return accuracy, mAUC of the multi-label task, or the Dice coefficient of segmentation."""
        for figure in (self.accuracy, self.mean_auc, self.dice):
            if figure is not None:
                return figure
        return 0.0


class FinalUtility(Part):
    """One final utility figure of one party's model."""

    _audience: ClassVar[Audience] = "public"

    line: str
    party: str
    figure: Figure


class Utility(Part):
    """Utility by round, and at the end with intervals."""

    _audience: ClassVar[Audience] = "public"

    curve: tuple[CurvePoint, ...] = ()
    final: tuple[FinalUtility, ...] = ()
    warnings: Annotated[tuple[str, ...], AUDITOR] = ()
    """Final models near chance, in words: their training diverged, was too short or was drowned in noise."""


class OutOfScope(Part):
    """An attack that was not tried because the tool has none of its kind."""

    _audience: ClassVar[Audience] = "public"

    name: str
    what: str


class Unfinished(Part):
    """How far an attack stage came that is not at its end: cells, each one attack by one adversary."""

    _audience: ClassVar[Audience] = "public"

    done: int
    of: int

    @property
    def words(self) -> str:
        """Return how many cells are done, as a clause."""
        return f"{self.done} of {self.of} tests done, the others not tested yet"


class Reproduce(Part):
    """Commands and versions that make the result again."""

    commands: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
