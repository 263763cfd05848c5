"""The result of a run, as `result.json` holds it: one model for the code that writes it and for all that read it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Final, Literal

from pydantic import Field

from fdaudit.config import validate
from fdaudit.errors import SpecError, UsageError
from fdaudit.result.budget import Budget
from fdaudit.result.cell import Cell
from fdaudit.result.claims import Check, Family, LedgerEntry
from fdaudit.result.frames import COLUMNS, figure_rows
from fdaudit.result.gates import Gate
from fdaudit.result.judgement import Judgement
from fdaudit.result.part import AUDITOR, Audience, Part, is_empty
from fdaudit.result.remedies import TriedRemedy
from fdaudit.result.run_card import OutOfScope, Reproduce, RunCard, Unfinished, Utility
from fdaudit.result.traffic import Exposure, OracleRow, ViewRow, WireRow
from fdaudit.result.twin import Twin

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["SCHEMA", "Result", "read"]

SCHEMA: Final = "fdaudit-result/1"


class Result(Part):
    """A finished run's result."""

    _audience: ClassVar[Audience] = "public"

    schema_name: Literal["fdaudit-result/1"] = Field(alias="schema")
    run: RunCard
    auditor_only: bool
    class_table: Annotated[tuple[tuple[int, ...], ...] | None, AUDITOR] = None
    """Records (client, class); None for a recording whose records were not brought."""
    class_names: Annotated[tuple[str, ...], AUDITOR] = ()
    utility: Utility
    exposure: tuple[Exposure, ...]
    wire: tuple[WireRow, ...]
    assumptions: tuple[str, ...] = ()
    oracles: tuple[OracleRow, ...] = ()
    views: tuple[ViewRow, ...] = ()
    cells: tuple[Cell, ...]
    judgement: Judgement | None = Field(default=None, exclude_if=is_empty)
    """What follows from the cells; None in a result of an earlier version."""
    unfinished: Unfinished | None = Field(default=None, exclude_if=is_empty)
    """How far the attack stage came, if it is not at its end: the result is provisional."""
    budget: Budget | None = Field(default=None, exclude_if=is_empty)
    """The budget of the attack stage, if it had one."""
    family: Annotated[Family | None, AUDITOR] = None
    gates: tuple[Gate, ...] = ()
    limits: Annotated[tuple[str, ...], AUDITOR] = ()
    out_of_scope: tuple[OutOfScope, ...] = ()
    withheld: tuple[str, ...] = Field(default=(), exclude_if=is_empty)
    """Parts that a public variant leaves out."""
    ledger: tuple[LedgerEntry, ...] | None = None
    checks: tuple[Check, ...] = ()
    remedies: Annotated[tuple[TriedRemedy, ...], AUDITOR] = Field(default=(), exclude_if=is_empty)
    """The remedies that were tried, and what came of them."""
    twin: Twin | None = Field(default=None, exclude_if=is_empty)
    """The honest twin of a run with deviations, if it was made."""
    reproduce: Reproduce

    def to_frame(self) -> pd.DataFrame:
        """Return every figure as a row: see `fdaudit.result.frames`."""
        import pandas as pd

        return pd.DataFrame.from_records(list(figure_rows(self.cells)), columns=list(COLUMNS))

    @property
    def bounds(self) -> tuple[LedgerEntry, ...]:
        """Return the entries of the ledger whose finite ε rests on noise."""
        bounds = list[LedgerEntry]()
        for entry in self.ledger or ():
            if entry.rests_on_noise:
                bounds.append(entry)
        return tuple(bounds)

    @property
    def contradicted_views(self) -> frozenset[str]:
        """Return the adversaries for whose views the attacks contradict the ledger's ε."""
        views = list[str]()
        for check in self.contradicted:
            if not check.source:
                views.append(check.adversary)
        return frozenset(views)

    @property
    def tests(self) -> tuple[Cell, ...]:
        """Return the cells that ran."""
        cells = list[Cell]()
        for cell in self.cells:
            if cell.status == "run":
                cells.append(cell)
        return tuple(cells)

    @property
    def failed_cells(self) -> tuple[Cell, ...]:
        """Return the cells whose attack stopped with an error."""
        cells = list[Cell]()
        for cell in self.cells:
            if cell.status == "failed":
                cells.append(cell)
        return tuple(cells)

    @property
    def failed_gates(self) -> tuple[Gate, ...]:
        """Return the gates of the spec that the run does not pass."""
        gates = list[Gate]()
        for gate in self.gates:
            if not gate.passed:
                gates.append(gate)
        return tuple(gates)

    @property
    def contradicted(self) -> tuple[Check, ...]:
        """Return the claims of ε, the ledger's and the system's own, that attacks exceed."""
        checks = list[Check]()
        for check in self.checks:
            if check.verdict == "contradicted":
                checks.append(check)
        return tuple(checks)


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
