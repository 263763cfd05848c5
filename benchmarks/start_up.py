"""Start-up of a command: whole processes with their children, in wall time, processor time and memory.

Target: `--help` in under half a second. `import torch` is the cost of a command that imports it at once, so the
processor time of each command is also given as a multiple of it. Commands on a run read one made from
`examples/analytic-mlp.yaml`.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from _pairs import table

TARGET = 0.5
SPEC = Path(__file__).parents[1] / "examples" / "analytic-mlp.yaml"
TORCH = 'python -c "import torch"'


@dataclass(frozen=True)
class Took:
    """The cost of a process."""

    wall: float
    processor: float
    megabytes: float


def commands(run: Path) -> dict[str, list[str]]:
    """Return the commands by name; the quickstart is refused, because its directory is occupied."""
    found = {TORCH: ["-c", "import torch"], 'python -c ""': ["-c", ""]}
    for words in (
        "--help",
        "list",
        "explain fedavg",
        "quickstart --out RUN",
        "verify RUN",
        "ledger RUN",
        "report RUN",
        "attack RUN analytic",
    ):
        found[f"fdaudit {words}"] = ["-m", "fdaudit", *(str(run) if w == "RUN" else w for w in words.split())]
    return found


def took(arguments: list[str]) -> Took:
    """Return the cost of a process and its children; memory is that of the largest of them."""
    start = time.perf_counter()
    process = subprocess.Popen(
        [sys.executable, *arguments], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    _, status, used = os.wait4(process.pid, 0)
    wall = time.perf_counter() - start
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode != (2 if "quickstart" in arguments else 0):
        raise RuntimeError(f"{arguments} ended with {process.returncode}")
    return Took(wall, used.ru_utime + used.ru_stime, used.ru_maxrss / 1024)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--times", type=int, default=10)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        run = Path(folder) / "run"
        subprocess.run(
            [sys.executable, "-m", "fdaudit", "run", str(SPEC), "--out", str(run)],
            check=True,
            capture_output=True,
        )
        asked = commands(run)
        found: dict[str, list[Took]] = {name: [] for name in asked}
        for number in range(options.times + 1):  # in turns, so that all meet the same load
            for name, arguments in asked.items():
                cost = took(arguments)
                if number:  # the first time files come from the disk
                    found[name].append(cost)
    rows = []
    for name, costs in found.items():
        wall = [cost.wall for cost in costs]
        ratio = [mine.processor / torch.processor for mine, torch in zip(costs, found[TORCH], strict=True)]
        rows.append(
            [
                name,
                *(f"{of(wall):.3f}" for of in (statistics.median, min, max)),
                f"{statistics.median(cost.processor for cost in costs):.2f}",
                f"{statistics.median(ratio):.2f}",
                f"{max(cost.megabytes for cost in costs):.0f}",
            ]
        )
    heads = (f"{options.times} times each", "median, s", "least, s", "most, s")
    print(table((*heads, "processor, s", "of import torch", "memory, MB"), rows))
    print(f"target of --help: under {TARGET} s")


if __name__ == "__main__":
    main()
