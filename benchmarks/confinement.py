"""Cost of confinement: processor time of an attack's process with all layers against none, in turns.

Bound: at most 5 % of an audit. Starts are measured by themselves, and with one cell of fdaudit's own attacks, the
process forked as an audit's workers fork it. An audit starts one such process for each worker, not for each cell.
"""

from __future__ import annotations

import argparse
import os
import resource
import statistics
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from _pairs import table

from fdaudit.isolation import process
from fdaudit.isolation.launch import THREADS, fork

AUDIT_SECONDS = 231.0
"""Processor time of `make audit` on two processors, from `results.csv`."""


def spent() -> float:
    """Return the processor time of this process and of all its children that have ended."""
    found = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(usage.ru_utime + usage.ru_stime for usage in found)


def measured(work: Callable[[], Any], times: int) -> tuple[list[float], list[float]]:
    """Return the processor times of the work with all layers and with none."""
    confine, found = process.confine, ([], [])
    for number in range(times + 1):
        for place, how in enumerate((confine, lambda allowed: {})):
            process.confine = how
            begun = spent()
            work()
            if number:  # the first time files come from the disk
                found[place].append(spent() - begun)
    process.confine = confine
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--times", type=int, default=10)
    parser.add_argument("--attack", default="dlg")
    parser.add_argument(
        "--processes", type=int, default=2, help="processes that an audit starts: its workers"
    )
    options = parser.parse_args()
    os.environ.update(THREADS)

    import fdaudit
    from fdaudit.evaluation.stage import Stage
    from fdaudit.isolation import attacker
    from fdaudit.planning.attacks import plan_attack

    def start() -> None:
        made = attacker.Attacker(True, fork)
        made.missing()
        made.close()

    with tempfile.TemporaryDirectory() as folder:
        spec = {
            "seed": 1, "device": "cpu", "threads": 1, "profile": "quick", "clients": 3, "references": [],
            "model": {"name": "mlp", "params": {"widths": [64]}},
            "protocol": {"name": "fedavg", "params": {"rounds": 5, "upload": "gradient", "batch_size": 4}},
            "adversaries": ["server"], "attacks": [],
        }  # fmt: skip
        run = fdaudit.run(spec, Path(folder) / "run")
        attack = plan_attack(options.attack, {}, run.case.spec, "attack", ("server",))
        stage = Stage(run.opened)
        with stage.adversary("server") as adversary:

            def cell() -> None:
                attacker.stand_by(fork)
                found = stage.cell(adversary, attack)
                attacker.dismiss()
                if found.status not in ("run", "inconclusive"):
                    raise RuntimeError(f"{options.attack}: {found.status}, {found.reason}")

            starts, cells = measured(start, options.times), measured(cell, options.times)
    rows = []
    for name, (all_layers, none) in (("start", starts), (f"start and {options.attack}", cells)):
        medians = [statistics.median(each) for each in (all_layers, none)]
        ratios = [a / b for a, b in zip(all_layers, none, strict=True)]
        row = [name, *(f"{each:.3f}" for each in medians), f"{statistics.median(ratios):.3f}"]
        rows.append([*row, f"{min(ratios):.3f} to {max(ratios):.3f}"])
    print(
        table((f"{options.times} pairs, processor time", "all layers, s", "none, s", "ratio", "range"), rows)
    )
    more = statistics.median(starts[0]) - statistics.median(starts[1])
    share = options.processes * more / AUDIT_SECONDS
    print(
        f"{options.processes} starts x {more:.3f} s of {AUDIT_SECONDS:.0f} s: {share:.2%} of an audit; bound 5%"
    )


if __name__ == "__main__":
    main()
