"""Times of a run: seconds by stage or cell, and the day on which its result was made. No digest covers them."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from pathlib import Path

from fdaudit.errors import IntegrityError, RunError
from fdaudit.storage.files import load_json, save_json

__all__ = ["TIMINGS", "note_ended", "note_time", "read_ended", "read_timings"]

TIMINGS = "timings.json"
"""The file in a run directory."""
_ENDED = "ended"
"""The member with the time at which the result was made, in seconds since 1970."""


def read_timings(run: Path) -> dict[str, float]:
    """Return the seconds in `timings.json` by stage or cell; empty if the file does not exist.

    Raises:
        RunError: the file holds something else.
    """
    timings = _read(run)
    timings.pop(_ENDED, None)
    return timings


def read_ended(run: Path) -> str:
    """Return the day (UTC, as 2026-11-29) on which the run's result was made; empty if it is not on record.

    Raises:
        RunError: the file holds something else.
    """
    ended = _read(run).get(_ENDED)
    if ended is None:
        return ""
    try:
        return datetime.fromtimestamp(ended, UTC).strftime("%Y-%m-%d")
    except (OverflowError, OSError, ValueError):
        raise _refusal(run) from None


def note_time(run: Path, what: str, seconds: float, *, anew: bool = False) -> None:
    """Add seconds to those of a stage or cell.

    With `anew` they replace the time of earlier attempts, because all of the work was repeated.
    """
    timings = _read(run)
    if not anew:
        seconds += timings.get(what, 0.0)
    timings[what] = round(seconds, 3)
    save_json(run / TIMINGS, timings, indent=1, sync=False)


def note_ended(run: Path) -> None:
    """Record that the run's result was made now."""
    save_json(run / TIMINGS, {**_read(run), _ENDED: round(time.time())}, indent=1, sync=False)


def _read(run: Path) -> dict[str, float]:
    path = run / TIMINGS
    if not path.exists() and not path.is_symlink():
        return {}
    try:
        value = load_json(path)
    except (IntegrityError, OSError):
        raise _refusal(run) from None
    if not isinstance(value, dict):
        raise _refusal(run)
    timings = {}
    for name, seconds in value.items():
        if type(seconds) not in (int, float) or not 0 <= seconds < 1e12:
            raise _refusal(run)
        timings[name] = float(seconds)
    return timings


def _refusal(run: Path) -> RunError:
    problem = "does not hold seconds by stage"
    return RunError(TIMINGS, str(run / TIMINGS), problem, "Remove the file: only times are lost with it.")
