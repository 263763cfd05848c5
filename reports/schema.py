"""Input of a report: `result.json`, schema `fdaudit-result/1`, as typed and checked parts.

Unknown members are ignored, so that a newer result with more members still renders. A missing or mistyped
member is one error that names its place.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Literal

from pydantic import ConfigDict, Field, model_validator

from fdaudit.config import Config, validate
from fdaudit.errors import SpecError, UsageError
from fdaudit.types import Figure, Task

__all__ = [
    "SCHEMA",
    "Adjusted",
    "ByCoins",
    "ByThemselves",
    "Cell",
    "Check",
    "Confinement",
    "Contribution",
    "Control",
    "Controls",
    "CurvePoint",
    "Evidence",
    "Exposure",
    "Family",
    "FinalUtility",
    "Gate",
    "Image",
    "LedgerEntry",
    "ModelHash",
    "Oracle",
    "OutOfScope",
    "Queries",
    "Recording",
    "Reproduce",
    "Result",
    "Roc",
    "Run",
    "Rung",
    "Shares",
    "Silence",
    "Target",
    "Utility",
    "ViewRow",
    "WireRow",
    "read",
]

SCHEMA = "fdaudit-result/1"


class _Part(Config):
    model_config = ConfigDict(extra="ignore")
    _most: ClassVar[int] = 2**63 - 1  # what was measured, such as bytes, has no limit of our own
    _one_line: ClassVar[bool] = (
        False  # an attack's own reason may have several lines; pages and terminals escape them
    )


class Silence(_Part):
    """A client that did not answer, and the rounds in which it owed a message."""

    party: str
    rounds: tuple[int, ...] = Field(min_length=1)


class ModelHash(_Part):
    """SHA-256 of the final model of a party other than a client."""

    party: str
    sha256: str


class Rung(_Part):
    """Something that an auditor may bring to a recording, what it makes possible, and whether it was brought."""

    bring: str
    buys: str
    there: bool


class Recording(_Part):
    """A recording of a system that fdaudit did not run."""

    system: str
    asserted_by: str
    closed: bool
    left_out: int = 0
    design: str
    notes: tuple[str, ...] = ()
    asserted: tuple[str, ...] = ()
    ladder: tuple[Rung, ...] = ()


class Run(_Part):
    """The run, its code and its data."""

    name: str
    status: str
    profile: str
    protocol: str
    protocol_summary: str = ""
    deviations: tuple[str, ...] = ()
    dataset: str
    dataset_provenance: str = ""
    task: Task = "single-label"
    clients: int
    rounds: int
    model: str
    client_models: tuple[str, ...] = ()
    parameters: int
    silences: tuple[Silence, ...] = ()
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


class CurvePoint(_Part):
    """Utility of one party's model after one round; fractions in [0, 1]."""

    line: str
    round: int
    party: str
    accuracy: float | None = None
    mean_auc: float | None = None
    dice: float | None = None
    macro_f1: float | None = None
    mean_iou: float | None = None

    @model_validator(mode="after")
    def _one_figure(self) -> CurvePoint:
        if sum(v is not None for v in (self.accuracy, self.mean_auc, self.dice)) != 1:
            raise ValueError(
                "has not one figure. Give accuracy, mean_auc of a multi-label task, or dice of segmentation."
            )
        return self

    @property
    def value(self) -> float:
        """Return accuracy, mAUC of the multi-label task, or the Dice coefficient of segmentation."""
        return next((v for v in (self.accuracy, self.mean_auc, self.dice) if v is not None), 0.0)


class FinalUtility(_Part):
    """One final utility figure of one party's model."""

    line: str
    party: str
    figure: Figure


class Utility(_Part):
    """Utility by round, and at the end with intervals."""

    curve: tuple[CurvePoint, ...]
    final: tuple[FinalUtility, ...]
    warnings: tuple[str, ...] = ()
    """Final models near chance, in words: their training diverged, was too short or was drowned in noise."""


class Exposure(_Part):
    """Messages of one kind that one party saw or sent, with the other receivers and the defences."""

    party: str
    kind: str
    direction: Literal["received", "sent", "overheard"]
    count: int
    bytes: int
    senders: tuple[str, ...] = ()
    recorded: str
    defenses: tuple[str, ...] = ()
    private: bool = True
    """Whether the messages depend on raw data of any party; if left out, they do."""
    unread: str = ""
    """Why no attack reads some of these messages; empty if attacks do."""
    derived: bool = False
    """Whether they are computed from other messages of the party's view alone, and tell nothing new."""


class ViewRow(_Part):
    """An adversary, and the others whose whole view it has."""

    adversary: str
    contains: tuple[str, ...] = ()


class WireRow(_Part):
    """Traffic of one kind from one role."""

    kind: str
    sender_role: str
    messages: int
    bytes: int


class Oracle(_Part):
    """An oracle that the protocol gives to some parties."""

    name: str
    available_to: tuple[str, ...]
    answers: str


class Queries(_Part):
    """Samples an attack was allowed to query, and queried."""

    budget: int
    spent: int


class Image(_Part):
    """One true image beside its reconstruction and the prior's guess; paths below the run directory."""

    truth: str
    guess: str
    prior: str | None = None
    psnr: float | None = None
    prior_psnr: float | None = None
    ssim: float | None = None
    true_label: int | None = None
    guessed_label: int | None = None
    rank: int | None = None
    gallery: int | None = None


class Roc(_Part):
    """A receiver operating characteristic; fractions in [0, 1], ascending in `fpr`."""

    fpr: tuple[float, ...]
    tpr: tuple[float, ...]
    members: int | None = None
    nonmembers: int | None = None

    @model_validator(mode="after")
    def _same_length(self) -> Roc:
        if len(self.fpr) != len(self.tpr) or len(self.fpr) < 2:
            raise ValueError("has no pairs to draw. Give fpr and tpr of one length, two points at least.")
        return self


class Shares(_Part):
    """Class shares of one victim: its own, what the attack guessed, and the prior's; each sums to 1."""

    truth: tuple[float, ...] = Field(min_length=1)
    guess: tuple[float, ...]
    prior: tuple[float, ...]

    @model_validator(mode="after")
    def _same_length(self) -> Shares:
        if not len(self.truth) == len(self.guess) == len(self.prior):
            raise ValueError("differ in their number of classes. Give one number a class in each.")
        return self


class Target(_Part):
    """An attack's result against one victim."""

    target: str
    messages: tuple[int, ...] = ()
    figures: tuple[Figure, ...] = ()
    images: tuple[Image, ...] | None = None
    roc: Roc | None = None
    shares: Shares | None = None


class Control(_Part):
    """The same attack on a case with a known outcome."""

    what: str
    passed: bool
    figures: tuple[Figure, ...] = ()


class Controls(_Part):
    """The positive and the negative control, and a rehearsal of the run, which shows what the attack should reach."""

    positive: Control | None = None
    negative: Control | None = None
    power: Control | None = None


class Confinement(_Part):
    """The layers that confined the processes of a cell's attacks, and why the others did not."""

    held: tuple[str, ...] = ()
    missing: dict[str, str] = Field(default_factory=dict)


class Cell(_Part):
    """One protocol x adversary x attack."""

    id: str
    protocol: str
    adversary: str
    attack: str
    goal: str
    status: Literal["run", "not-applicable", "not-requested", "inconclusive", "failed"]
    reason: str = ""
    source: str = ""
    assumes: tuple[str, ...] = ()
    needs: tuple[str, ...] = ()
    """What the attack can start from: kinds of messages, or an oracle; empty for guesses from outside."""
    reads: tuple[str, ...] = ()
    """Kinds of messages that it uses besides, where they are in view."""
    params: dict[str, Any] = Field(default_factory=dict)
    queries: Queries | None = None
    figures: tuple[Figure, ...] = ()
    targets: tuple[Target, ...] = ()
    controls: Controls | None = None
    confinement: Confinement | None = None
    """None if no process was started, or an older version did not say."""

    @model_validator(mode="after")
    def _has_reason(self) -> Cell:
        if self.status != "run" and not self.reason.strip():
            raise ValueError(f"cell {self.id[:80]!r} is {self.status} without a reason. Say why.")
        return self


class Adjusted(_Part):
    """A figure's p-value after correction for all tests of the run; of all victims if `target` is None."""

    cell: str
    target: str | None = None
    figure: str
    p: float
    floor: float | None = None
    """The least AUC that would have been significant; None if even a perfect one would not."""


class ByCoins(_Part):
    """Membership figures, tested by joint re-flips of the known coins; each `floor` is the largest of all cells."""

    level: float
    coins: int
    reflips: int
    statistics: int
    floor: float | None = None
    floor_one_victim: float | None = None


class ByThemselves(_Part):
    """Figures that carry a p-value of their own, corrected by Holm's method."""

    level: float
    tests: int


class Family(_Part):
    """All tests of a run: the probability that any is significant if nothing leaks is at most `level`."""

    level: float
    by_coins: ByCoins | None = None
    by_themselves: ByThemselves | None = None
    adjusted: tuple[Adjusted, ...] = ()

    @property
    def tests(self) -> int:
        """Return the number of tested figures."""
        return len(self.adjusted)


class Gate(_Part):
    """A bound that the spec sets on a figure."""

    name: str
    threshold: float
    value: float | None
    passed: bool
    at_least: bool = False
    """Whether the figure must be at least the threshold; left out, at most."""
    inconclusive_for: tuple[str, ...] = ()
    """Adversaries for whom every cell that measured the figure is inconclusive; the gate then fails."""


class Contribution(_Part):
    """Contribution of one kind of message to an ε, and its cost alone."""

    kind: str
    sender: str
    mechanism: str
    charges: int
    epsilon: float


class LedgerEntry(_Part):
    """ε of one adversary's view for one unit of the worst client; `None` means infinite, with its cause."""

    adversary: str
    epsilon: float | None
    delta: float | None = None
    unit: str = ""
    relation: str = ""
    accountant: str = ""
    cause: str = ""
    victim: str = ""
    sampling: str = ""
    contributions: tuple[Contribution, ...] = ()
    assumptions: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()


class Evidence(_Part):
    """Result of one attack on one kind of coins: lower bounds of ε and of μ, and those of a perfect attack."""

    attack: str
    on: str
    design: str
    coins: int
    bound: float
    power: float
    mu: float = 0.0
    mu_power: float = 0.0
    gaussian: float = 0.0
    p: float = 1.0


class Check(_Part):
    """A claimed ε compared with the attacks' results; bounds hold at `confidence` each."""

    adversary: str
    claimed: float | None
    verdict: Literal["contradicted", "consistent", "inconclusive", "nothing-claimed", "not-checked"]
    reason: str
    confidence: float
    bound: float | None = None
    power: float | None = None
    needed: int | None = None
    gdp: float | None = None
    mu: float | None = None
    gaussian: float | None = None
    p: float | None = None
    evidence: tuple[Evidence, ...] = ()
    source: str = ""
    """Who claims it, if the claim is a recorded system's own and not the ledger's."""


class OutOfScope(_Part):
    """An attack that was not tried because the tool has none of its kind."""

    name: str
    what: str


class Reproduce(_Part):
    """Commands and versions that make the result again."""

    commands: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


class Result(_Part):
    """A finished run's result."""

    schema_name: Literal["fdaudit-result/1"] = Field(alias="schema")
    run: Run
    auditor_only: bool
    class_table: tuple[tuple[int, ...], ...] | None = None
    class_names: tuple[str, ...] = ()
    utility: Utility
    exposure: tuple[Exposure, ...]
    wire: tuple[WireRow, ...]
    assumptions: tuple[str, ...] = ()
    oracles: tuple[Oracle, ...] = ()
    views: tuple[ViewRow, ...] = ()
    cells: tuple[Cell, ...]
    family: Family | None = None
    gates: tuple[Gate, ...] = ()
    limits: tuple[str, ...] = ()
    out_of_scope: tuple[OutOfScope, ...] = ()
    withheld: tuple[str, ...] = ()
    """Parts that a public variant leaves out."""
    ledger: tuple[LedgerEntry, ...] | None = None
    checks: tuple[Check, ...] = ()
    reproduce: Reproduce


def read(result: Mapping[str, Any]) -> Result:
    """Return the checked form of a parsed `result.json`.

    Raises:
        UsageError: a member is missing, mistyped or not finite; `field` gives its place.
    """
    try:
        return validate(Result, result, "result")
    except SpecError as error:
        raise UsageError(
            error.field, error.value, error.problem, f"{error.remedy} (schema {SCHEMA})"
        ) from None
