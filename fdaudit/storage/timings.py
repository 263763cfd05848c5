"""Timings of a run: seconds by stage or cell. No digest covers them."""

from __future__ import annotations

from pathlib import Path

from fdaudit.errors import IntegrityError, RunError
from fdaudit.storage.files import load_json

__all__ = ["TIMINGS", "read_timings"]

TIMINGS = "timings.json"
"""The file in a run directory."""


def read_timings(run: Path) -> dict[str, float]:
    """Return the seconds in `timings.json` by stage or cell; empty if the file does not exist.

    Raises:
        RunError: the file holds something else.
    """
    path = run / TIMINGS
    if not path.exists() and not path.is_symlink():
        return {}
    try:
        timings = load_json(path)
        right = isinstance(timings, dict) and all(
            type(v) in (int, float) and 0 <= v < 1e12 for v in timings.values()
        )
    except (IntegrityError, OSError):
        right = False
    if not right:
        problem = "does not hold seconds by stage"
        raise RunError(TIMINGS, str(path), problem, "Remove the file: only times are lost with it.")
    return {name: float(seconds) for name, seconds in timings.items()}
