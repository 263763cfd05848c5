"""A process that runs attack cells: it reads pieces of work from its input, one per line, and prints their outcomes.

`fdaudit.evaluation.runner` starts it. Only outcomes go to standard output; all other output goes to standard error.

Guarantees:
  * when its input ends, it ends at once, even in the middle of a cell. It leaves no exported view, and no copy of a
    run that was made only for it.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from pathlib import Path
from queue import SimpleQueue
from threading import Thread
from typing import TYPE_CHECKING, Any

from fdaudit.parallel.pool import leave

if TYPE_CHECKING:
    from fdaudit.evaluation.runner import Desk

__all__ = ["main"]

_home: str | None = None
"""A local directory only for the run of this process; it is removed with the process."""


def main() -> None:
    """Serve until the input ends."""
    pieces = SimpleQueue[dict[str, Any]]()
    outcomes = os.fdopen(os.dup(1), "w", encoding="utf-8", buffering=1)
    os.dup2(2, 1)
    desks: list[Desk] = []
    from fdaudit.isolation import attacker, launch

    os.environ.update(launch.THREADS)
    # Libraries are loaded once for both, before any thread or any data of a run.
    attacker.stand_by(launch.fork)
    Thread(target=_read, args=(pieces, desks), daemon=True).start()
    from fdaudit.evaluation import runner
    from fdaudit.planning.run_directory import RunDirectory

    def say(value: dict[str, Any]) -> None:
        print(json.dumps(value), file=outcomes)

    begun = ""
    while True:
        value = pieces.get()
        try:
            if value["run"] != begun:
                while desks:
                    desks.pop().close()
                _settle(value.get("home"))
                desks.append(runner.Desk(RunDirectory.reopen(Path(value["run"]))))
                begun = value["run"]
            piece = runner.Piece.from_json(value, desks[0].plan)
            for cell, seconds in desks[0].cells(piece):
                say({"adversary": cell.adversary, "cell": cell.to_json(), "seconds": seconds})
        except Exception as error:  # a cell's error fails that cell: here the run itself is unavailable
            begun = ""
            say({"failed": f"{type(error).__name__}: {error}"})
        say({"done": True})


def _settle(home: str | None) -> None:
    """Put temporary files below the home, if there is one."""
    global _home
    if home is not None:
        Path(home, "tmp").mkdir(exist_ok=True, mode=0o700)
    tempfile.tempdir = None if home is None else str(Path(home, "tmp"))
    _home = home


def _read(pieces: SimpleQueue[dict[str, Any]], desks: list[Desk]) -> None:
    """Queue incoming pieces; when the input ends, the starter has ended, so end this process at once."""
    for line in sys.stdin:
        pieces.put(json.loads(line))
    from fdaudit.isolation import attacker
    from fdaudit.storage import scratch

    attacker.dismiss(for_good=True)
    for desk in desks if _home is None else ():
        desk.close()
    scratch.remove_all()
    leave(_home)


if __name__ == "__main__":
    main()
