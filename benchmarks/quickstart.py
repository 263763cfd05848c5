"""Time, size and figures of the quickstart: `python benchmarks/quickstart.py [FILE]`, on a quiet machine.

It runs the quickstart in a directory that it removes afterwards, and writes what it measured to FILE
(`docs/quickstart.json` if none is given). The documentation's times and sizes come from that file: run
`docs/generate.py` afterwards.
"""

from __future__ import annotations

import json
import os
import platform
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

DOCS = Path(__file__).parent.parent / "docs"


def main() -> None:
    kept = Path(sys.argv[1]) if len(sys.argv) > 1 else DOCS / "quickstart.json"
    with tempfile.TemporaryDirectory() as scratch:
        out = Path(scratch) / "audit"
        start = time.perf_counter()
        subprocess.run([sys.executable, "-m", "fdaudit", "quickstart", "--out", str(out)], check=True)
        clock = time.perf_counter() - start
        spent = resource.getrusage(resource.RUSAGE_CHILDREN)
        measured = {
            "command": "python benchmarks/quickstart.py",
            "machine": f"{platform.system()}, {platform.machine()}",
            "cores": len(os.sched_getaffinity(0)),
            "clock_seconds": round(clock),
            "processor_seconds": round(spent.ru_utime + spent.ru_stime),
            "bytes": sum(p.stat().st_size for p in out.rglob("*") if p.is_file()),
            **figures(json.loads((out / "comparison.json").read_bytes())),
        }
    kept.write_text(json.dumps(measured, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    print(f"{clock / 60:.1f} minutes by the clock; written to {kept}")


def figures(comparison: dict[str, Any]) -> dict[str, Any]:
    """Return accuracies, bytes and verdicts by goal of each run, and the accuracies of the reference lines."""
    runs = [
        {
            "name": run["name"],
            **accuracies(run["accuracy"]),
            "bytes_sent": run["bytes"]["total"],
            "verdicts": {outcome["goal"]: outcome["level"] for outcome in run["outcomes"]},
        }
        for run in comparison["runs"]
    ]
    references = [{"name": line["line"], **accuracies(line)} for line in comparison["references"]]
    return {"runs": runs, "references": references}


def accuracies(line: dict[str, Any]) -> dict[str, float | None]:
    """Return a line's accuracies, in percent."""
    found = {
        "server": line["server"] and line["server"]["value"],
        "mean": line["mean"],
        "worst": line["worst"] and line["worst"]["value"],
    }
    return {key: None if value is None else round(100 * value, 1) for key, value in found.items()}


if __name__ == "__main__":
    main()
