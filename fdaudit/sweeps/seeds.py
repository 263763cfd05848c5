"""One spec with several seeds: a sweep of a single point, and the runs of a sweep grouped over their seeds."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from fdaudit.errors import SpecError
from fdaudit.spec.schema import Spec
from fdaudit.sweeps.index import read_index
from fdaudit.sweeps.levels import UNDEFENDED
from fdaudit.sweeps.sweep import run_directory

__all__ = ["FIRST_SEED", "over_seeds", "seed_grid"]

FIRST_SEED = 1
"""The first seed where the spec gives none."""
_LAST_SEED = 2**63 - 1


def seed_grid(spec: Spec, count: int) -> dict[str, Any]:
    """Return the grid of one spec with `count` seeds, from the spec's own seed on; whole runs are kept.

    Raises:
        SpecError: the last seed would be larger than a seed may be.
    """
    first = FIRST_SEED if spec.seed is None else spec.seed
    if first + count - 1 > _LAST_SEED:
        raise SpecError("seed", first, f"leaves no room for {count} seeds", "Give a smaller seed.")
    return {
        "sweep": 1,
        "name": spec.name,
        "base": spec.model_dump(mode="json", exclude={"seed", "protocol", "name"}),
        "protocols": [spec.protocol.model_dump(mode="json")],
        "seeds": list(range(first, first + count)),
        "keep": "runs",
    }


def over_seeds(directory: Path) -> dict[str, list[Path]]:
    """Return the finished runs of a sweep by the point of its grid, one run a seed.

    A sweep with a single point gives it the directory's name.

    Raises:
        RunError: the directory holds no sweep.
    """
    points: dict[str, list[Path]] = {}
    for entry in read_index(directory).runs:
        if entry.status == "done" and entry.in_grid:
            name = entry.protocol
            if entry.defence != UNDEFENDED:
                name = f"{entry.protocol}, {entry.defence} at {entry.level:g}"
            points.setdefault(name, []).append(run_directory(directory, entry.key))
    if len(points) == 1:
        return {directory.resolve().name: runs for runs in points.values()}
    return points
