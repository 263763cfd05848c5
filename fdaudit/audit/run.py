"""A finished run as an object. The module loads no PyTorch: a ledger and a result are read without it."""

from __future__ import annotations

from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from fdaudit.accounting.accounts import Accounts
from fdaudit.accounting.ledger import Books, Ledger
from fdaudit.accounting.profile import Profile, profile, with_delta
from fdaudit.audit.ledgers import books_of, kept_books
from fdaudit.errors import FdauditError, RunError
from fdaudit.events import Relation, Unit
from fdaudit.result import Result
from fdaudit.storage.files import load_json
from fdaudit.storage.tables import html_table
from fdaudit.storage.timings import read_ended, read_timings
from fdaudit.transcript.manifest import refuse_changed, verify

if TYPE_CHECKING:
    import pandas as pd

    from fdaudit.adversary.view import View
    from fdaudit.planning.case import Case
    from fdaudit.scoring.run_directory import RunDirectory

__all__ = ["Run"]


class Run:
    """A finished run on disk.

    Args:
        directory: the run directory.

    Attributes:
        directory: the run directory.
    """

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._concluded: tuple[tuple[int, ...], Result] | None = None

    @cached_property
    def opened(self) -> RunDirectory:
        """Return the run's directory with its case, rebuilt from its spec and its vault on first use."""
        from fdaudit.scoring.run_directory import RunDirectory

        return RunDirectory.reopen(self.directory)

    @property
    def is_open(self) -> bool:
        """Return whether the case was rebuilt, which checks the record."""
        return "opened" in vars(self)

    @property
    def case(self) -> Case:
        """Return the run's case."""
        return self.opened.case

    @cached_property
    def books(self) -> Books:
        """Return the run's transcript, prepared for the ledger of any view on first use.

        It takes its terms from the vault, and opens the case only if none are there that still hold.
        """
        refuse_changed(self.directory)
        return kept_books(self.directory) or books_of(self.opened)

    @property
    def views(self) -> tuple[str, ...]:
        """Return the adversaries whose ledgers are shown: every non-client party and the spec's adversaries."""
        return self.books.views

    @property
    def result(self) -> Result:
        """Return the content of `result.json`, whose judgement was compared with its cells.

        Raises:
            RunError: the run was not concluded.
            UsageError: the file is no result, or its judgement contradicts its cells.
        """
        from fdaudit.reports.judgement.judgement import read_judged

        path = self.directory / "result.json"
        if not path.is_file():
            raise RunError("run", str(self.directory), "has no result yet", "Finish it with --resume.")
        if self._concluded is None or self._concluded[0] != _version_of(path):
            self._concluded = (_version_of(path), read_judged(load_json(path)))
        return self._concluded[1]

    def concluded(self, result: Result) -> Result:
        """Keep the result that was just written, so that it is not read again while its file stays the same."""
        self._concluded = (_version_of(self.directory / "result.json"), result)
        return result

    @property
    def page(self) -> Path:
        """Return where the run's own report is."""
        return self.directory / "report" / "index.html"

    @property
    def utility(self) -> pd.DataFrame:
        """Return `utility.csv`: columns line, round, party, accuracy, macro_f1, n.

        Multi-label data have mean_auc, its interval low and high, macro_f1, left_out (classes) and n. Masks have dice,
        its interval low and high, mean_iou, object_dice, aji, hd95, n and site: of the rows after the last round, those
        with a site's number measure its test images alone, and those without one all test images.
        """
        from fdaudit.audit.utility.table import utility_table

        return utility_table(self.directory)

    @property
    def timings(self) -> dict[str, float]:
        """Return seconds by stage; no digest covers them.

        Raises:
            RunError: `timings.json` holds something else.
        """
        return read_timings(self.directory)

    @property
    def ended(self) -> str:
        """Return the day on which the result was made (UTC, as 2026-11-29); empty if it is not on record.

        Raises:
            RunError: `timings.json` holds something else.
        """
        return read_ended(self.directory)

    def view(self, name: str) -> View:
        """Return an adversary's view: `server`, `client/3`, `eavesdropper`, `world`, or a coalition `a+b`."""
        return self.opened.view(name)

    def ledger(
        self,
        view: str = "server",
        *,
        delta: float | None = None,
        unit: Unit | None = None,
        relation: Relation | None = None,
    ) -> Ledger:
        """Return the ε of an adversary's view for the worst-affected client, or why none can be claimed.

        Args:
            view: an adversary, as `view` takes it.
            delta: δ; default: the spec's `privacy.delta`.
            unit: `record` or `client`; default: the spec's.
            relation: `add-or-remove` or `replace-one`; default: the spec's, or the relation of the run's events.
        """
        choices = self.books.choices
        ledger = self.books.ledger(
            view,
            delta=choices.delta if delta is None else delta,
            unit=unit or choices.unit,
            relation=relation or choices.relation,
        )
        return replace(ledger, against=self.books.against(ledger))

    def accounts(
        self, view: str = "server", *, unit: Unit | None = None, relation: Relation | None = None
    ) -> Accounts:
        """Return the mechanisms charged to each client in an adversary's view; arguments as for `ledger`."""
        choices = self.books.choices
        return self.books.accounts(view, unit=unit or choices.unit, relation=relation or choices.relation)

    def profile(
        self,
        view: str = "server",
        *,
        delta: float | None = None,
        unit: Unit | None = None,
        relation: Relation | None = None,
    ) -> Profile:
        """Return ε of an adversary's view at many δ, its loss distributions and its trade-off function.

        Args:
            view: an adversary, as `view` takes it.
            delta: a δ that is included; default: the spec's `privacy.delta`.
            unit: as `ledger` takes it.
            relation: as `ledger` takes it.
        """
        delta = self.books.choices.delta if delta is None else delta
        return profile(self.accounts(view, unit=unit, relation=relation), with_delta(delta))

    def verify(self) -> list[str]:
        """Return the defects of the run's record and of its result, one sentence each; empty if there are none."""
        findings = verify(self.directory)
        if not findings and (self.directory / "result.json").is_file():
            try:
                _ = self.result
            except FdauditError as error:
                findings = [f"result.json: {error}"]
        return findings

    def to_frame(self) -> pd.DataFrame:
        """Return every figure of every attack as a row; columns as in `fdaudit.result.frames.COLUMNS`."""
        return self.result.to_frame()

    def __repr__(self) -> str:
        return f"Run({str(self.directory)!r})"

    def _repr_html_(self) -> str:
        """Return who can learn what as a table for a notebook; a run without a result has no rows."""
        from fdaudit.reports.run.summary import summarise

        try:
            result = self.result
        except RunError as error:
            return html_table((), (), f"{self!r}: {error.problem}")
        summary = summarise(result)
        rows = []
        for row in summary.matrix:
            words = [entry.words for entry in row.entries]
            rows.append([row.adversary, *words])
        return html_table(("adversary", *summary.goals), rows, f"{self!r}: {summary.headline}")


def _version_of(path: Path) -> tuple[int, ...]:
    """Return numbers that change when a file is replaced or written."""
    status = path.stat()
    return status.st_ino, status.st_size, status.st_mtime_ns
