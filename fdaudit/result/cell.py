"""A cell of the coverage table: one attack on one adversary's view, with its figures, victims and controls.

The attack stage writes cells, one file each. The result of a run holds all of them.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, computed_field, model_validator

from fdaudit.config import validate
from fdaudit.errors import IntegrityError, SpecError
from fdaudit.result.part import AUDITOR, PUBLIC, Audience, Part, Shown, is_empty
from fdaudit.storage.tables import html_table
from fdaudit.storage.tree import make_folder
from fdaudit.types import Figure

__all__ = [
    "Canaries",
    "Cell",
    "Confinement",
    "Control",
    "Controls",
    "Image",
    "Queries",
    "Roc",
    "Row",
    "RowCell",
    "Shares",
    "Status",
    "Target",
    "cell_directory",
    "noted",
    "plain_name",
    "read_cell",
]

Status = Literal["run", "not-applicable", "not-requested", "not-tested", "inconclusive", "failed"]


class Queries(Part):
    """Samples that an attack was allowed to query, and queried."""

    budget: Annotated[int, PUBLIC]
    spent: Annotated[int, PUBLIC]
    asked: tuple[str, ...] = Field(default=(), exclude_if=is_empty)
    """The models that answered: clients, or `oracle`."""
    messages: int | None = Field(default=None, exclude_if=is_empty)
    """Length of the log of questions and answers."""
    head: str = Field(default="", exclude_if=is_empty)
    """Digest of the log's last line, which protects the end of the log."""


class Image(Part):
    """One true image beside its reconstruction and the prior's guess; paths below the run directory."""

    truth: str
    guess: str
    prior: str | None = None
    psnr: float | None = None
    prior_psnr: float | None = None
    ssim: float | None = None
    true_label: int | None = None
    guessed_label: int | None = None
    rank: int | None = Field(default=None, exclude_if=is_empty)
    """Place of the true record in its gallery, from 1, ordered by similarity to the guess."""
    gallery: int | None = Field(default=None, exclude_if=is_empty)
    """Number of records in the gallery."""


class RowCell(Part):
    """One cell of a true row, its guess and the prior's guess, as people read them."""

    column: str
    truth: str
    guess: str | None = None
    """None if no guess was matched with the row."""
    prior: str | None = None
    right: bool = False
    """Whether the cell counts as recovered."""


class Row(Part):
    """One true row of a table beside its guess."""

    cells: tuple[RowCell, ...] = ()
    """The first cells, in the order of the columns."""
    columns: int
    """Number of all cells of the row."""
    right: int
    """Number of cells recovered."""
    true_label: int
    guessed_label: int | None = None


class Roc(Part):
    """A receiver operating characteristic; fractions in [0, 1], ascending in `fpr`."""

    fpr: tuple[float, ...]
    tpr: tuple[float, ...]
    members: int | None = Field(default=None, exclude_if=is_empty)
    nonmembers: int | None = Field(default=None, exclude_if=is_empty)

    @model_validator(mode="after")
    def _same_length(self) -> Roc:
        if len(self.fpr) != len(self.tpr) or len(self.fpr) < 2:
            raise ValueError("has no pairs to draw. Give fpr and tpr of one length, two points at least.")
        return self


class Shares(Part):
    """Class shares (C,) of one victim: its own, what the attack guessed, and the prior's; each sums to 1."""

    truth: tuple[float, ...] = Field(min_length=1)
    guess: tuple[float, ...]
    prior: tuple[float, ...]

    @model_validator(mode="after")
    def _same_length(self) -> Shares:
        if not len(self.truth) == len(self.guess) == len(self.prior):
            raise ValueError("differ in their number of classes. Give one number a class in each.")
        return self


class Target(Part):
    """An attack's result against one victim."""

    target: Annotated[str, PUBLIC]
    """The victim."""
    messages: tuple[int, ...] = ()
    """`seq` of the messages that were inverted."""
    figures: tuple[Figure, ...] = ()
    images: tuple[Image, ...] = ()
    """True images beside guessed ones, the most similar first."""
    rows: tuple[Row, ...] = Field(default=(), exclude_if=is_empty)
    """The first true rows of a table beside guessed ones."""
    roc: Roc | None = None
    """Of a membership attack."""
    shares: Shares | None = None
    """Of a label-distribution attack."""


class Control(Part):
    """The same attack on a case with a known outcome."""

    what: Annotated[str, Shown("auditor", instead="")]
    """The target of the control, and the expected result."""
    passed: Annotated[bool, PUBLIC]
    """Whether the result was as expected."""
    figures: tuple[Figure, ...] = ()


class Controls(Part):
    """The positive and the negative control, and a rehearsal of the run, which shows what the attack should reach."""

    _audience: ClassVar[Audience] = "public"

    positive: Control | None = Field(default=None, exclude_if=is_empty)
    negative: Control | None = Field(default=None, exclude_if=is_empty)
    power: Control | None = Field(default=None, exclude_if=is_empty)


class Canaries(Part):
    """The questions that a membership attack asked about canaries, or the reason why it scored none."""

    queries: Queries | None
    reason: str


class Confinement(Part):
    """The layers that confined the processes of a cell's attacks, and why the others did not."""

    _audience: ClassVar[Audience] = "public"

    held: tuple[str, ...] = ()
    missing: dict[str, str] = Field(default_factory=dict)


class Cell(Part):
    """One protocol x adversary x attack cell: its result, or the reason why it was not run."""

    _audience: ClassVar[Audience] = "public"

    protocol: str
    adversary: str
    attack: str
    goal: str
    source: str = ""
    status: Status
    reason: Annotated[str, AUDITOR] = ""
    assumes: tuple[str, ...] = ()
    needs: tuple[str, ...] = ()
    """What the attack can start from: kinds of messages, or an oracle; empty for guesses from outside."""
    reads: tuple[str, ...] = Field(default=(), exclude_if=is_empty)
    """Kinds of messages that it uses besides, where they are in view."""
    params: Annotated[dict[str, Any], AUDITOR] = Field(default_factory=dict)
    queries: Queries | None = None
    figures: Annotated[tuple[Figure, ...], AUDITOR] = ()
    targets: tuple[Target, ...] = ()
    controls: Controls | None = None
    """None if it has no control, so that silence is never "no leak measured"."""
    canaries: Annotated[Canaries | None, AUDITOR] = Field(default=None, exclude_if=is_empty)
    """None if the run has no canaries for it."""
    confinement: Confinement | None = Field(default=None, exclude_if=is_empty)
    """None if no process was started."""

    @computed_field  # type: ignore[prop-decorator]
    @property
    def id(self) -> str:
        """Return `adversary/attack`, unique in a run."""
        return f"{self.adversary}/{self.attack}"

    def _repr_html_(self) -> str:
        """Return the figures as a table for a notebook."""
        by_victim = list[tuple[str, tuple[Figure, ...]]]()
        by_victim.append(("all victims", self.figures))
        for target in self.targets:
            by_victim.append((target.target, target.figures))
        rows = list[list[object]]()
        for victim, figures in by_victim:
            for f in figures:
                rows.append([f.name, victim, f.value, f.low, f.high, f.n])
        caption = f"{self.id} ({self.goal}): {self.status}"
        if self.reason:
            caption += f", {self.reason}"
        return html_table(("figure", "victim", "value", "low", "high", "n"), rows, caption)

    @model_validator(mode="after")
    def _has_reason(self) -> Cell:
        if self.status != "run" and not self.reason.strip():
            raise ValueError(f"cell {self.id[:80]!r} is {self.status} without a reason. Say why.")
        return self


def read_cell(value: object, name: str) -> Cell:
    """Return the cell whose `plain` form is `value`.

    Args:
        value: the content of a cell's file.
        name: the file's name, for messages.

    Raises:
        IntegrityError: a member is missing, mistyped or unknown.
    """
    try:
        cell = validate(Cell, value, "outcome")  # type: ignore[arg-type]  # it refuses what is no mapping
    except SpecError as error:
        raise IntegrityError([f"{name} is no outcome of an attack: {error}"]) from None
    if cell.plain() != value:
        raise IntegrityError([f"{name} is no outcome of an attack: its members are not those of a cell"])
    return cell


def noted(figure: Figure, note: str, name: str = "auc") -> Figure:
    """Add the attack's note about its guess to the figure `name`; return other figures unchanged."""
    if figure.name != name or not note:
        return figure
    return replace(figure, note="; ".join(filter(None, [figure.note, note])))


def plain_name(cell: str) -> str:
    """Return a cell's id as part of a file name."""
    return cell.replace("/", "-").replace("+", "_")


def cell_directory(run: Path, cell: str) -> Path:
    """Return the directory of a cell's own files."""
    path = run / "attacks" / plain_name(cell)
    for folder in (path.parent, path):
        make_folder(folder)
    return path
