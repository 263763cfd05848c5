"""Cost of PATE's data-dependent analysis: all queries and orders at once against Theorem 6 query by query.

A is `gnmax_rdp`, B the paper's formula in a loop over the queries, with NumPy over the orders; they must agree. Time
and memory of the full size are measured in a separate process: the peak above the memory with the votes
drawn.
Targets: GNMax of 100,000 queries at 200 orders under 10 s and 1 GB.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
from _pairs import HEADS, compare, table
from fdaudit.defenses.pate import confident_gnmax_rdp, gnmax_rdp, gnmax_smooth_sensitivity, lnmax_rdp
from numpy.typing import NDArray
from scipy.special import erfc

CLIENTS, SIGMA, THRESHOLD = 250, 40.0, 150
QUERIES, ORDERS = 100_000, np.linspace(1.5, 200, 200)
WHAT: dict[str, tuple[int, Callable[[NDArray[np.int64]], object]]] = {  # classes, analysis
    "GNMax, 10 classes": (10, lambda votes: gnmax_rdp(votes, SIGMA, ORDERS)),
    "GNMax, 1,000 classes": (1000, lambda votes: gnmax_rdp(votes, SIGMA, ORDERS)),
    "Confident-GNMax, 10 classes": (
        10,
        lambda votes: confident_gnmax_rdp(votes, THRESHOLD, 2 * SIGMA, SIGMA, ORDERS),
    ),
    "LNMax, 10 classes": (10, lambda votes: lnmax_rdp(votes, 0.05, ORDERS)),
    "smooth sensitivity at one order, 10 classes": (
        10,
        lambda votes: gnmax_smooth_sensitivity(votes, SIGMA, 20.0, 0.01),
    ),
}
"""Analyses by their row of the table."""
CLEAR = Path("/proc/self/clear_refs")


def histograms(queries: int, classes: int) -> NDArray[np.int64]:
    """Votes of clients that agree on most queries, on some of them hardly."""
    rng = np.random.default_rng(0)
    agreed = rng.beta(4, 1, size=queries)
    first = rng.binomial(CLIENTS, agreed)
    votes = rng.multinomial(CLIENTS - first, [1 / classes] * classes)
    votes[:, 0] += first
    found: NDArray[np.int64] = rng.permuted(votes, axis=1)
    return found


def one_by_one(votes: NDArray[np.int64]) -> NDArray[np.float64]:
    """Theorem 6 as printed, a query at a time."""
    found = np.empty((len(votes), len(ORDERS)))
    for row, counts in zip(found, votes, strict=True):
        first, *rest = np.sort(counts)[::-1]
        q = min(erfc((first - np.array(rest)) / (2 * SIGMA)).sum() / 2, 1 - 1 / len(counts))
        row[:] = ORDERS / SIGMA**2
        mu2 = SIGMA * np.sqrt(-np.log(q))
        mu1 = mu2 + 1
        eps1, eps2 = mu1 / SIGMA**2, mu2 / SIGMA**2
        if mu2 <= 1 or np.log(q) > (mu2 - 1) * eps2 - mu2 * np.log(mu1 / (mu1 - 1) * mu2 / (mu2 - 1)):
            continue
        below = mu1 >= ORDERS
        less = ORDERS[below] - 1
        a = np.log1p(-q) - np.log1p(-((q * np.exp(eps2)) ** (1 - 1 / mu2)))
        b = eps1 - np.log(q) / (mu1 - 1)
        bound = np.logaddexp(np.log1p(-q) + less * a, np.log(q) + less * b) / less
        row[below] = np.minimum(row[below], bound)
    return found


def once(name: str) -> dict[str, float]:
    """Seconds and the rise of peak memory in MB, by a process that does nothing else."""
    command = [sys.executable, __file__, "--only", name]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    found: dict[str, float] = json.loads(done.stdout)
    return found


def measure(name: str) -> dict[str, float]:
    classes, analysis = WHAT[name]
    votes = histograms(QUERIES, classes)
    analysis(votes[:10])  # loads what SciPy loads late
    CLEAR.write_text("5")  # the highest resident size so far is forgotten
    before = resident("VmRSS")
    start = time.perf_counter()
    analysis(votes)
    return {"seconds": time.perf_counter() - start, "megabytes": (resident("VmHWM") - before) / 1e6}


def resident(what: str) -> int:
    """A figure of this process's memory in bytes."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return 1024 * next(int(line.split()[1]) for line in lines if line.startswith(what))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--only", choices=list(WHAT), help="measure one analysis and print JSON")
    options = parser.parse_args()
    if options.only:
        print(json.dumps(measure(options.only)))
        return
    print(f"{QUERIES:,} queries of {CLIENTS} clients, {len(ORDERS)} orders")
    found = {name: once(name) for name in WHAT}
    rows = [[name, f"{f['seconds']:.2f}", f"{f['megabytes']:.0f}"] for name, f in found.items()]
    print(table(("analysis", "s", "MB above the votes"), rows))
    print("target: GNMax at most 10 s and 1,000 MB")
    votes = histograms(2000, 10)
    np.testing.assert_allclose(gnmax_rdp(votes, SIGMA, ORDERS), one_by_one(votes), rtol=1e-6, atol=1e-15)
    pairs = compare(
        lambda: gnmax_rdp(votes, SIGMA, ORDERS), lambda: one_by_one(votes), pairs=options.pairs, warm_up=1
    )
    print(table(HEADS, [pairs.row("GNMax, 2,000 queries: together / one by one")]))


if __name__ == "__main__":
    main()
