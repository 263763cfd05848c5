"""Start-up time of a command: whole processes, by the wall clock.

Target: `--help` in under half a second. `import torch` is the cost of a command that imports it at once.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import time

from _pairs import table

TARGET = 0.5
COMMANDS = {
    "fdaudit --help": ["-m", "fdaudit", "--help"],
    "fdaudit list": ["-m", "fdaudit", "list"],
    "fdaudit explain fedavg": ["-m", "fdaudit", "explain", "fedavg"],
    'python -c "import torch"': ["-c", "import torch"],
    'python -c ""': ["-c", ""],
}


def seconds(arguments: list[str]) -> float:
    start = time.perf_counter()
    subprocess.run([sys.executable, *arguments], check=True, capture_output=True)
    return time.perf_counter() - start


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--times", type=int, default=10)
    options = parser.parse_args()
    found: dict[str, list[float]] = {name: [] for name in COMMANDS}
    for number in range(options.times + 1):  # in turns, so that all meet the same load
        for name, arguments in COMMANDS.items():
            took = seconds(arguments)
            if number:  # the first time files come from the disk
                found[name].append(took)
    rows = [[n, *(f"{f(t):.3f}" for f in (statistics.median, min, max))] for n, t in found.items()]
    print(table((f"{options.times} times each", "median, s", "least, s", "most, s"), rows))
    print(f"target of --help: under {TARGET} s")


if __name__ == "__main__":
    main()
