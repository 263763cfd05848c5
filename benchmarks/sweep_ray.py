"""The same sweep on Ray with one worker, with two, and in two processes without Ray: by the wall clock, all told.

Each sweep is a process of its own, as a command is; importing is not counted. All start from the same seeds and secrets
and from nothing else, so every run's `result.json` must be the same bytes.
Target: two workers at least 1.7 times as fast as one, on a machine with two processors to spare.
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # as the command line does

import yaml
from _pairs import table

from fdaudit.cluster.sweeps import ray_cluster
from fdaudit.errors import UsageError
from fdaudit.parallel.pool import Answer
from fdaudit.sweeps import sweep as engine

ROOT = Path(__file__).parents[1]
TARGET = 1.7
WAYS: dict[str, Callable[[], engine.Executor]] = {
    "Ray, 1 worker": lambda: ray_cluster(1),
    "Ray, 2 workers": lambda: ray_cluster(2),
    "2 processes": lambda: engine.local(2),
}
PROTOCOLS, SEEDS = ("fedavg", "fedkd"), [1, 2, 3]
"""Of the reference grid, where no other is given; without a defence."""


def nothing(pieces: Sequence[Mapping[str, Any]]) -> Generator[Answer, None, None]:
    yield from ()


def cut(grid: dict[str, Any]) -> dict[str, Any]:
    """A handful of runs of the reference grid."""
    kept = [p for p in grid["protocols"] if p["name"] in PROTOCOLS]
    return {**grid, "protocols": kept, "defences": [], "epsilon": ["inf"], "seeds": SEEDS}


def results(out: Path) -> dict[str, bytes]:
    return {p.parent.name: p.read_bytes() for p in sorted(out.glob("runs/*/result.json"))}


def apart(way: str, start: Path, out: Path) -> tuple[float, dict[str, bytes]]:
    """Seconds of a sweep that goes on in `out`, a copy of `start`, in a process of its own, and its results."""
    shutil.copytree(start, out)
    command = [sys.executable, __file__, "--way", way, str(out)]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode:
        sys.exit(f"{way}: failed, as said above")
    return float(done.stdout), results(out)


def here(way: str, out: Path) -> None:
    """Does that in this process, and prints the seconds."""
    grid = engine.read_index(out).grid
    before = time.perf_counter()
    index = engine.sweep(grid, out, resume=True, executor=WAYS[way]())
    seconds = time.perf_counter() - before
    if index.count("failed") or index.count("pending"):
        sys.exit("\n".join(f"{e.called}: {e.status} {e.reason}" for e in index.runs))
    print(seconds)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("grid", nargs="?", type=Path, help="default: a handful of runs of the reference grid")
    parser.add_argument("--way", choices=WAYS, help=argparse.SUPPRESS)
    parser.add_argument("--times", type=int, default=1, help="how often; every other time in reverse order")
    options = parser.parse_args()
    if options.way:
        here(options.way, options.grid)
        return
    try:
        ray_cluster(1)
    except UsageError as error:
        print(f"not measured: {error}")
        return
    path = options.grid or ROOT / "examples" / "sweep-digits.yaml"
    grid = yaml.safe_load(path.read_text(encoding="utf-8"))
    if options.grid is None:
        grid = cut(grid)
    found: dict[str, list[float]] = {way: [] for way in WAYS}
    with tempfile.TemporaryDirectory(prefix="fdaudit-bench-") as folder:
        start, made = Path(folder) / "start", list[dict[str, bytes]]()
        engine.sweep(grid, start, executor=nothing)  # draws seeds and secrets
        for number in range(options.times):
            for way in list(WAYS)[:: -1 if number % 2 else 1]:
                load = os.getloadavg()[0]
                seconds, runs = apart(way, start, Path(folder) / f"{number}-{way}")
                found[way].append(seconds)
                made.append(runs)
                print(f"{way}: {seconds:.1f} s, {len(runs)} runs, load average before {load:.1f}", flush=True)
    report(found)
    if any(runs != made[0] for runs in made) or not made[0]:
        sys.exit("results differ")
    print(f"all {len(made)} sweeps gave the same {len(made[0])} results, bit for bit")


def report(found: Mapping[str, Sequence[float]]) -> None:
    """The median ratio of each pair of ways, measured in the same turn, and its extremes."""
    one, two, processes = found.values()
    rows = []
    for name, a, b in (
        ("Ray: 1 worker / 2 workers", one, two),
        ("Ray, 2 workers / 2 processes", two, processes),
    ):
        ratios = [x / y for x, y in zip(a, b, strict=True)]
        rows.append([name, *(f"{f(ratios):.2f}" for f in (statistics.median, min, max)), str(len(ratios))])
    print(table(("A / B", "median ratio", "least", "most", "times"), rows))
    print(f"target of the first: at least {TARGET}")


if __name__ == "__main__":
    main()
