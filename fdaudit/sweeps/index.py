"""The index of a sweep, `sweep.json`: its grid, and the status of every run.

Guarantees:
  * it is written completely or not at all, after every run;
  * it is checked like any other input when it is read: a key cannot lead out of the sweep.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field

from fdaudit.config import Config, validate
from fdaudit.errors import RunError
from fdaudit.storage.files import load_json, save_json
from fdaudit.sweeps.levels import in_words

__all__ = [
    "ACCOUNTS",
    "INDEX",
    "SCHEMA",
    "Choice",
    "Index",
    "Status",
    "SweepEntry",
    "TunedEpsilon",
    "read_index",
    "write_index",
]

INDEX = "sweep.json"
ACCOUNTS = "accounts.json"
"""The file of a run that keeps what each view charges; it stays when the transcript is removed."""
SCHEMA: Literal["fdaudit-sweep/1"] = "fdaudit-sweep/1"

Status = Literal["pending", "done", "failed", "not-applicable"]
Key = Annotated[str, Field(pattern=r"^[0-9a-f]{16}$")]


class SweepEntry(Config):
    """A run: its place on the axes and its status."""

    key: Key
    """Digest of its spec; it is in `runs/KEY`."""
    protocol: str
    """Its protocol on the axis."""
    defence: str
    """Its defence; `none` where there is none."""
    epsilon: Annotated[float, Field(gt=0)] | Literal["inf"]
    """Its level on the axis; whether that is an ε, `asked` says."""
    asked: bool = False
    """Whether the level is a target ε of the defence, and not another setting."""
    seed: int = Field(ge=0, lt=2**63)
    """The run's seed."""
    status: Status = "pending"
    """Its status."""
    reason: str = ""
    """Why it failed or does not apply; of a finished one, which of its attacks failed."""
    seconds: float | None = None
    """Seconds that it took, summed over all attempts."""
    in_grid: bool = True
    """Whether the grid still has it."""

    @property
    def level(self) -> float:
        """Return the level as a number; infinite without a defence."""
        return math.inf if self.epsilon == "inf" else float(self.epsilon)

    @property
    def called(self) -> str:
        """Return the run in words."""
        return in_words(self.protocol, self.defence, self.level, self.seed, asked=self.asked)


class TunedEpsilon(Config):
    """ε of one view of a chosen run: of all the runs from which it was chosen, together."""

    adversary: str
    """The view."""
    epsilon: Annotated[float, Field(ge=0)] | None
    """ε; None if it is infinite, with a `cause`."""
    delta: float
    """δ."""
    cause: str = ""
    """Why no ε can be claimed."""


class Choice(Config):
    """The run that was chosen by its results, and the price of the choice."""

    key: Key
    """The run."""
    by: Literal["utility"] = "utility"
    """The figure by which it was chosen: the largest counts, of equal ones the first."""
    value: float
    """Its figure."""
    runs: int = Field(ge=1)
    """Number of runs that were carried out, this one included; all are charged."""
    ledger: tuple[TunedEpsilon, ...]
    """ε of each view."""


class Index(Config):
    """The content of `sweep.json`."""

    schema_: Literal["fdaudit-sweep/1"] = Field(SCHEMA, alias="schema")
    """Version of this format."""
    version: str
    """Version of fdaudit that wrote it last."""
    grid: dict[str, Any]
    """The grid with every default written out, its base included."""
    runs: tuple[SweepEntry, ...]
    """Every run, in the order of the grid; those that it no longer has come last."""
    chosen: Choice | None = None
    """With `choose`, once no run is pending: the chosen run."""

    def count(self, status: Status) -> int:
        """Return the number of runs with a status."""
        number = 0
        for entry in self.runs:
            if entry.in_grid and entry.status == status:
                number += 1
        return number


def read_index(directory: Path) -> Index:
    """Return the index of a sweep.

    Raises:
        RunError: the directory holds no sweep.
        IntegrityError: the file is not JSON.
        SpecError: it is not an index.
    """
    path = directory / INDEX
    if not path.is_file():
        raise RunError(
            "sweep", str(directory), "holds no sweep", "Give the directory that `fdaudit sweep` wrote."
        )
    return validate(Index, load_json(path), INDEX)


def write_index(directory: Path, index: Index) -> None:
    """Replace the index."""
    save_json(directory / INDEX, index.model_dump(mode="json", by_alias=True), indent=1)
