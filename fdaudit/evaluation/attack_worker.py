"""A process that runs attack cells; `fdaudit.evaluation.workers` starts it.

Guarantee, in addition to those of `serve`:
  * it leaves no exported view when it ends, and no copy of a run that was made only for it.
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from fdaudit.parallel.pool import leave
from fdaudit.parallel.worker_loop import Say, serve

if TYPE_CHECKING:
    from fdaudit.evaluation.workers import CellRunner

__all__ = ["main"]

_home: str | None = None
"""A local directory only for the run of this process; it is removed with the process."""


_runner: CellRunner | None = None
"""The runner of the last run's cells, if it is still open."""


def main() -> None:
    """Run cells until the input ends."""
    serve(_work, _end, _prepare)


def _prepare() -> None:
    """Load libraries once for this process and for that of attacks, before any data of a run."""
    from fdaudit.isolation.attacker import fork_ahead

    fork_ahead()


def _work(value: dict[str, Any], say: Say) -> None:
    """Say the outcome of each cell of a unit of work."""
    from fdaudit.errors import plugin_line
    from fdaudit.evaluation.workers import CellRunner, WorkUnit
    from fdaudit.scoring.run_directory import RunDirectory
    from fdaudit.spec.trust import trust_code

    global _home, _runner
    trust_code(value["trusted"])
    os.environ.update(value.get("cache", {}))
    run = Path(value["run"])
    try:
        if _runner is None or _runner.run.path != run:
            _close()
            home, tempfile.tempdir = value.get("home"), None
            if home is not None:  # temporary files go below it
                Path(home, "tmp").mkdir(exist_ok=True, mode=0o700)
                tempfile.tempdir = str(Path(home, "tmp"))
            _home = home
            _runner = CellRunner(RunDirectory.reopen(run))
        unit = WorkUnit.from_json(value, _runner.run.case)
        for cell, seconds in _runner.cells(unit):
            say({"adversary": cell.adversary, "cell": cell.plain(), "seconds": seconds})
    except Exception as error:  # a cell's error fails that cell: here the run itself is unavailable
        _close()
        say({"failed": f"{type(error).__name__}: {error}{plugin_line(error)}"})


def _close() -> None:
    """Remove the views that the last run's cells have exported, if any."""
    global _runner
    runner, _runner = _runner, None
    if runner is not None:
        runner.close()


def _end() -> NoReturn:
    from fdaudit.isolation import attacker
    from fdaudit.storage import scratch

    attacker.dismiss(for_good=True)
    if _home is None:
        _close()
    scratch.remove_all()
    leave(_home)


if __name__ == "__main__":
    main()
