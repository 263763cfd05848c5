"""A process that carries out runs of a sweep; `fdaudit.sweeps.sweep` starts it.

Guarantees, in addition to those of `serve`:
  * it leaves no adversary's view behind when it ends;
  * two processes never work on one run: a new process waits for an orphaned one.
"""

from __future__ import annotations

import fcntl
import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

from fdaudit.parallel.pool import leave
from fdaudit.parallel.worker_loop import Say, serve
from fdaudit.storage.locks import writing

__all__ = ["alone", "main"]

_home: str | None = None
"""The directory to remove when this process's input ends."""


def main() -> None:
    """Carry out runs until the input ends."""
    serve(_work, lambda: leave(_home))


def _work(piece: dict[str, Any], say: Say) -> None:
    # Temporary files lie below the sweep's own directory, which removes them if this process is killed.
    global _home
    own = Path(piece["scratch"]) / str(os.getpid())
    own.mkdir(parents=True, exist_ok=True, mode=0o700)
    tempfile.tempdir = str(own)
    _home = piece.get("home", tempfile.tempdir)
    say(_outcome(piece, lambda *tick: say({"tick": tick})))


def _outcome(piece: dict[str, Any], tick: Callable[[str, int, int], None]) -> dict[str, Any]:
    """Carry out a run; return its `status`, and a `reason` unless it is done. Its spec is the user's own."""
    from fdaudit.audit.pipeline import perform
    from fdaudit.errors import SpecError, plugin_line
    from fdaudit.sweeps.chosen import note_accounts

    place = Path(piece["run"])
    try:
        # An orphan lets go of the run's lock and of its directory when it ends, not of both at once.
        with alone(Path(piece["lock"])), writing(place, wait=True) if place.is_dir() else nullcontext():
            perform(piece["spec"], place, resume=True, seed_from=Path(piece["shared"]), tick=tick)
            note_accounts(place, piece["records"])
    except Exception as error:  # any error fails only this run
        if piece["defended"] and isinstance(error, SpecError) and not place.exists():
            return {"status": "not-applicable", "reason": str(error)}
        reason = f"{type(error).__name__}: {error}{plugin_line(error)}"
        return {"status": "failed", "reason": reason}
    return {"status": "done", "reason": ""}


@contextmanager
def alone(lock: Path) -> Iterator[None]:
    """Wait until no other process works on the run. The lock ends with the process."""
    with lock.open("a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


if __name__ == "__main__":
    main()
