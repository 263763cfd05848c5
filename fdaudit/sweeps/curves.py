"""Draw a sweep's curves from `sweep.json` and the runs' results; read nothing else."""

from __future__ import annotations

import hashlib
from pathlib import Path

from fdaudit.errors import FdauditError, RunError, UsageError, nearest, reason_of
from fdaudit.reports.curves.curve_figures import WIDTHS
from fdaudit.reports.curves.curves import Sweep, write_curves
from fdaudit.reports.curves.sweep_rows import SweepRun, axis_adversary, row_of
from fdaudit.result import read
from fdaudit.storage.files import load_json
from fdaudit.storage.tree import refuse_links
from fdaudit.sweeps.index import read_index
from fdaudit.sweeps.sweep import run_directory
from fdaudit.transcript.manifest import refuse_changed

__all__ = ["curve", "drawable"]


def curve(
    sweep: Path | str, out: Path | str, *, width: str = "text", adversary: str | None = None
) -> list[Path]:
    """Draw a sweep: CSV files, figures as SVG, PDF and PNG, and `index.html`.

    Args:
        sweep: its directory.
        out: where the files go; files of these names are replaced.
        width: of the figures: `column` (3.5 inches) or `text` (7 inches).
        adversary: the axis shows the ledger's ε of this adversary's view; default: the grid's, else the server.

    Returns:
        The written files, the page last.

    Raises:
        UsageError: the directory holds no sweep, the width is unknown, or no ledger has the adversary; nothing was
            written.
    """
    if width not in WIDTHS:
        raise UsageError("width", width, "is not known", nearest(width, WIDTHS))
    target = Path(out)
    drawn = drawable(sweep, adversary)
    try:
        target.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        problem = f"cannot be made ({error.strerror})"
        raise RunError("out", str(out), problem, "Give another directory.") from None
    return write_curves(drawn, target, width)


def drawable(sweep: Path | str, adversary: str | None = None) -> Sweep:
    """Return a sweep with the results of its runs.

    Args:
        sweep: its directory.
        adversary: as for `curve`.

    Raises:
        UsageError: the directory holds no sweep, or no ledger has the adversary.
    """
    directory = Path(sweep)
    index = read_index(directory)
    runs: list[SweepRun] = []
    left_out = 0
    for entry in index.runs:
        if not entry.in_grid:
            left_out += 1
            continue
        result, digest, status, reason = None, "", entry.status, entry.reason
        if status == "done":
            try:
                place = run_directory(directory, entry.key)
                refuse_links(directory / "runs", (entry.key,))
                refuse_changed(place, results=True)
                result = read(load_json(place / "result.json"))
                digest = hashlib.sha256((place / "result.json").read_bytes()).hexdigest()
            except (OSError, FdauditError) as error:  # the run is shown as failed
                status, reason = "failed", f"its result cannot be read: {reason_of(error)}"
        run = SweepRun(
            key=entry.key,
            protocol=entry.protocol,
            defence=entry.defence,
            level=entry.level,
            asked=entry.asked,
            seed=entry.seed,
            status=status,
            reason=reason,
            result=result,
            result_sha256=digest,
        )
        runs.append(run)
    rows = tuple(map(row_of, runs))
    requested = adversary if adversary is not None else index.grid.get("adversary")
    axis = axis_adversary(rows, requested if isinstance(requested, str) else None)
    return Sweep(name=str(index.grid.get("name", "sweep")), rows=rows, adversary=axis, left_out=left_out)
