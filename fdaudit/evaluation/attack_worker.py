"""A process that runs attack cells; `fdaudit.evaluation.workers` starts it.

Guarantee, besides those of `serve`:
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
    from fdaudit.evaluation.workers import Desk

__all__ = ["main"]

_home: str | None = None
"""A local directory only for the run of this process; it is removed with the process."""


_desks: list[Desk] = []
"""The desk of the run in hand, if any."""


def main() -> None:
    """Run cells until the input ends."""
    serve(_work, _end, _prepare)


def _prepare() -> None:
    """Load libraries once for this process and for that of attacks, before any data of a run."""
    from fdaudit.isolation.attacker import fork_ahead

    fork_ahead()


def _work(value: dict[str, Any], say: Say) -> None:
    """Say the outcome of each cell of a piece."""
    from fdaudit.errors import plugin_line
    from fdaudit.evaluation.workers import Desk, Piece
    from fdaudit.scoring.run_directory import RunDirectory
    from fdaudit.spec.trust import trust_code

    global _home
    trust_code(value["trusted"])
    os.environ.update(value.get("cache", {}))
    run = Path(value["run"])
    try:
        if not _desks or _desks[0].run.path != run:
            while _desks:
                _desks.pop().close()
            home, tempfile.tempdir = value.get("home"), None
            if home is not None:  # temporary files go below it
                Path(home, "tmp").mkdir(exist_ok=True, mode=0o700)
                tempfile.tempdir = str(Path(home, "tmp"))
            _home = home
            _desks.append(Desk(RunDirectory.reopen(run)))
        piece = Piece.from_json(value, _desks[0].run.case)
        for cell, seconds in _desks[0].cells(piece):
            say({"adversary": cell.adversary, "cell": cell.plain(), "seconds": seconds})
    except Exception as error:  # a cell's error fails that cell: here the run itself is unavailable
        while _desks:
            _desks.pop().close()
        say({"failed": f"{type(error).__name__}: {error}{plugin_line(error)}"})


def _end() -> NoReturn:
    from fdaudit.isolation import attacker
    from fdaudit.storage import scratch

    attacker.dismiss(for_good=True)
    for desk in _desks if _home is None else ():
        desk.close()
    scratch.remove_all()
    leave(_home)


if __name__ == "__main__":
    main()
