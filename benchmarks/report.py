"""Time and size of a report: `PYTHONPATH=benchmarks python benchmarks/report.py [RUN...]`.

Without arguments it looks for the quickstart's runs below `audit/`. It shows the report's time with
its drawings and without them.
"""

from __future__ import annotations

import contextlib
import sys
import time
from pathlib import Path
from unittest import mock

from fdaudit.reports.run import cells, context

import fdaudit


def main() -> None:
    runs = [Path(p) for p in sys.argv[1:]] or sorted(p.parent for p in Path("audit").glob("*/result.json"))
    if not runs:
        print("no run: name some, or make audit/ with `make audit`")
        return
    print(f"{'run':<24}{'cells':>7}{'seconds':>10}{'without drawings':>18}{'MB':>7}")
    for directory in runs:
        run = fdaudit.load(directory)
        tested = sum(c.status == "run" for c in run.result.cells)
        out = directory / "report" / "benchmark.html"
        start = time.perf_counter()
        fdaudit.report(run, out)
        whole = time.perf_counter() - start
        size = out.stat().st_size / 1e6
        with contextlib.ExitStack() as stack:
            for chart in ("forest_chart", "roc_chart", "shares_chart"):
                stack.enter_context(mock.patch.object(cells, chart, return_value=""))
            stack.enter_context(mock.patch.object(context, "utility_chart", return_value=""))
            start = time.perf_counter()
            fdaudit.report(run, out)
            bare = time.perf_counter() - start
        for made in (out, out.with_suffix(".json")):
            made.unlink()
        print(f"{directory.name:<24}{tested:>7}{whole:>10.1f}{bare:>18.1f}{size:>7.2f}")


if __name__ == "__main__":
    main()
