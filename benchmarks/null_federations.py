"""Count the federations that learn nothing in which a report still finds members.

Each is the quickstart's federation with three clients and a learning rate of 1e-9, so its models stay as they were.
Every membership attack runs on every view, with secrets of its own. Whatever an attack finds is a false alarm.
Target: at most 5 of 40 are flagged (5 % are expected; more than 5 of 40 has a chance of 1 % then).
"""

from __future__ import annotations

import argparse
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

import yaml
from fdaudit.reports.judgement.judgement import findings_of
from scipy.stats import binomtest

import fdaudit
from fdaudit import attacks

SPECS = Path(fdaudit.__file__).parent / "quickstart"
NOTHING = 1e-9
"""The learning rate."""
PROTOCOLS: dict[str, dict[str, Any]] = {
    "fedkd": {
        "local_epochs": 4, "batch_size": 8, "lr": NOTHING, "distill_rounds": 2, "distill_steps": 20,
        "distill_lr": NOTHING,
    },
    "fedmd": {"rounds": 4, "batch_size": 8, "lr": NOTHING},
    "ds-fl": {"rounds": 4, "batch_size": 8, "lr": NOTHING},
    "cronus": {"rounds": 4, "batch_size": 8, "lr": NOTHING},
}  # fmt: skip
"""Settings by protocol. Rounds are few, because nothing changes in them. No protocol sends models: a bias of zero keeps
the whole of a change by 1e-9, which tells of records. Selective-FD is none of them: its selectors learn from records
whatever the learning rate."""


def spec_of(protocol: str) -> dict[str, Any]:
    """Return the quickstart's federation with another protocol, which learns nothing."""
    base = yaml.safe_load((SPECS / "fedkd.yaml").read_text(encoding="utf-8"))
    names = [n for n in attacks.REGISTRY.names() if attacks.REGISTRY.load(n).card.goal == "membership"]
    adversaries = [a for a in base["adversaries"] if a != "aggregator" or protocol == "fedkd"]
    return base | {
        "name": f"{protocol} that learns nothing",
        "protocol": {"name": protocol, "params": PROTOCOLS[protocol]},
        "references": [],
        "clients": 3,
        "victims": 3,
        "dataset": base["dataset"] | {"limit": 600},
        "adversaries": adversaries,
        "attacks": [{"name": name} for name in names],
    }


def main() -> None:
    """Run the federations and print what was flagged in each, and their number."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--each", type=int, default=10, help="federations of each protocol (default: 10)")
    parser.add_argument("--protocols", nargs="+", default=list(PROTOCOLS), choices=PROTOCOLS)
    asked = parser.parse_args()
    flagged, total, levels = 0, 0, Counter[str]()
    for number in range(asked.each):
        for protocol in asked.protocols:
            with tempfile.TemporaryDirectory() as folder:
                run = fdaudit.run(spec_of(protocol), Path(folder) / "run")
                findings = findings_of(run.result)
            levels.update(f.level for f in findings)
            found = [f for f in findings if f.level in ("leak", "partial")]
            told = ", ".join(f"{f.cell.adversary}/{f.cell.attack}: {f.because}" for f in found)
            total, flagged = total + 1, flagged + bool(found)
            print(f"{protocol} {number}: {told or 'clean'}", flush=True)
    interval = binomtest(flagged, total).proportion_ci()
    print(dict(levels))
    print(f"{flagged} of {total} federations flagged ({interval.low:.1%} to {interval.high:.1%})")


if __name__ == "__main__":
    main()
