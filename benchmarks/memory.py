"""Does memory grow with rounds? The highest resident size of whole runs with a full transcript, long over short.

Each run is a process of its own: FedAvg, 20 clients on digits, `cnn-5-5`, every message kept, no attack, as many
evaluations in the long one as in the short one. Linux notes the highest resident size (`VmHWM`) of a process; it is
read when the last round is over, and again after the run has been concluded (ledger, coverage, result), which reads
the log once more. The messages of a round take more memory than the difference that the target allows, so that a
run which kept them would miss it. Target: at most 1.10.

    python benchmarks/memory.py                  # 20 and 200 rounds
    python benchmarks/memory.py --rounds 4 40
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from pathlib import Path

import torch
from _pairs import table

from fdaudit.audit.pipeline import perform

CLIENTS, TARGET = 20, 1.10
STATUS = Path("/proc/self/status")


def spec(rounds: int) -> dict[str, object]:
    """The run: every round the same work, two evaluations in all."""
    return {
        "name": "Memory of a long run",
        "profile": "quick",
        "seed": 1,
        "threads": 1,
        "clients": CLIENTS,
        "dataset": {"name": "digits", "image_size": 28},
        "model": {"name": "cnn-5-5"},
        "protocol": {
            "name": "fedavg",
            "params": {"rounds": rounds, "local_steps": 1, "batch_size": 8, "lr": 0.05},
        },
        "references": [],
        "record": "full",
        "evaluate_every": rounds,
        "adversaries": ["server"],
        "attacks": [],
    }


def run(rounds: int) -> None:
    """In the child: the run, and its highest resident size in KiB, at its last round and at its end."""
    torch.set_num_threads(1)
    seen: list[int] = []

    def note(what: str, done: int, total: int) -> None:
        if what == "fedavg" and done == total:
            seen.append(highest())

    with tempfile.TemporaryDirectory() as folder:
        perform(spec(rounds), Path(folder) / "run", tick=note)
        files = (Path(folder) / "run" / "transcript").rglob("*")
        size = sum(f.stat().st_size for f in files if f.is_file())
    print(seen[0], highest(), size)


def highest() -> int:
    """The highest resident size of this process so far, in KiB."""
    lines = STATUS.read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM"))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--rounds", type=int, nargs=2, default=(20, 200), help="of the short and the long run"
    )
    parser.add_argument("--run", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.run:
        run(options.run)
        return
    if not STATUS.exists():
        print("not measured: needs Linux's /proc")
        return
    found = []
    for rounds in options.rounds:
        command = [sys.executable, __file__, "--run", str(rounds)]
        done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
        found.append([int(figure) for figure in done.stdout.split()])
    rows = [
        [str(n), f"{size / 2**20:.0f}", f"{federated / 1024:.1f}", f"{end / 1024:.1f}"]
        for n, (federated, end, size) in zip(options.rounds, found, strict=True)
    ]
    short, long = found
    rows.append(["long / short", f"{long[2] / short[2]:.1f}", *(f"{long[i] / short[i]:.3f}" for i in (0, 1))])
    heads = ("rounds", "transcript, MiB", "highest at the last round, MiB", "highest at the end, MiB")
    print(f"FedAvg, {CLIENTS} clients, cnn-5-5, full transcript")
    print(table(heads, rows))
    print(f"target of the last two: at most {TARGET}")


if __name__ == "__main__":
    main()
