"""One run's attack cells on Ray and here: seconds by the wall clock, and that outcomes are the same bytes.

Two processes of this machine, one worker of Ray, and two. The cluster is started once and stands by, as it does for a
long run; the benchmark says how long that takes. Every way starts from the same seeds and secrets. Target: two workers
at least 1.7 times as fast as one, on a machine with two processors to spare.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # as the command line does

from _pairs import table

import fdaudit
from fdaudit.cluster import connection
from fdaudit.cluster.backends import elsewhere
from fdaudit.errors import UsageError
from fdaudit.parallel.pool import Workers

Way = Callable[[], AbstractContextManager[Workers | None]]
CELLS: Mapping[str, Way] = {
    "2 processes": lambda: elsewhere("local"),
    "Ray, 1 worker": lambda: elsewhere("ray", 1),
    "Ray, 2 workers": lambda: elsewhere("ray", 2),
}
ATTACKS = ("lira-online", "rmia", "calibrated-loss", "boundary-distance", "ideal-hard", "ideal-soft")


def spec(attacks: Sequence[str]) -> dict[str, Any]:
    """A small federation, and attacks that train shadow models or ask much."""
    return {
        "seed": 1,
        "device": "cpu",
        "threads": 2,
        "clients": 5,
        "dataset": {"name": "digits"},
        "model": {"name": "cnn-strided"},
        "protocol": {"name": "fedavg", "params": {"rounds": 3, "local_steps": 20, "batch_size": 32}},
        "splits": {"candidates": 20},
        "references": [],
        "adversaries": ["world", "server"],
        "attacks": [{"name": name} for name in attacks],
    }


def contents(run: Path) -> dict[str, bytes]:
    """Every file that does not say how long something took."""
    files = (p for p in sorted(run.rglob("*")) if p.is_file() and p.name != "timings.json")
    return {p.relative_to(run).as_posix(): p.read_bytes() for p in files}


def timed(way: Way, work: Callable[[Workers | None], fdaudit.Run]) -> tuple[float, dict[str, bytes]]:
    """Seconds from begin to end, and what the run then holds."""
    before = time.perf_counter()
    with way() as far:
        run = work(far)
    seconds = time.perf_counter() - before
    failed = [c for c in run.result.cells if c.status == "failed"]
    if failed:
        sys.exit("\n".join(f"{c.id}: {c.reason}" for c in failed))
    return seconds, contents(run.directory)


def measured(
    what: str,
    ways: Mapping[str, Way],
    times: int,
    work: Callable[[Path, Workers | None], fdaudit.Run],
    folder: Path,
) -> list[list[str]]:
    """A row for each way but the first, of the first's seconds over its own."""
    found: dict[str, list[float]] = {name: [] for name in ways}
    made = []
    for number in range(times):
        for name in list(ways)[:: -1 if number % 2 else 1]:
            load, place = os.getloadavg()[0], folder / f"{what}-{number}-{name}"
            seconds, held = timed(ways[name], lambda far, place=place: work(place, far))
            found[name].append(seconds)
            made.append(held)
            print(f"{what}, {name}: {seconds:.1f} s, load average before {load:.1f}", flush=True)
    if any(held != made[0] for held in made):
        sys.exit(f"{what}: outcomes differ")
    print(f"{what}: all {len(made)} runs hold the same {len(made[0])} files, bit for bit")
    names = list(ways)
    pairs = [(names[0], n) for n in names[1:]] + [(a, b) for a in names[1:] for b in names[1:] if a < b]
    return [row(what, a, b, found[a], found[b]) for a, b in pairs]


def row(what: str, a: str, b: str, first: Sequence[float], then: Sequence[float]) -> list[str]:
    ratios = [x / y for x, y in zip(first, then, strict=True)]
    figures = (f"{f(ratios):.2f}" for f in (statistics.median, min, max))
    return [what, f"{a} / {b}", *figures, str(len(ratios))]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--attacks", nargs="+", default=ATTACKS, metavar="ATTACK")
    parser.add_argument("--times", type=int, default=1, help="how often; every other time in reverse order")
    options = parser.parse_args()
    try:
        connection.refuse_unusable(None)
    except UsageError as error:
        print(f"not measured: {error}")
        return
    begun = time.perf_counter()
    with tempfile.TemporaryDirectory(prefix="fdaudit-bench-") as name, connection.connected(2, None):
        print(f"the cluster took {time.perf_counter() - begun:.1f} s to start", flush=True)
        folder = Path(name)
        federated = fdaudit.run(spec([]), folder / "federated")

        def cells(place: Path, far: Workers | None) -> fdaudit.Run:
            return fdaudit.run(spec(options.attacks), place, seed_from=federated.directory, workers=far)

        rows = measured("cells", CELLS, options.times, cells, folder)
    print(table(("of", "A / B", "median ratio", "least", "most", "times"), rows))
    print("target: 1 worker / 2 workers at least 1.7")


if __name__ == "__main__":
    main()
