"""Cost of a density ratio: KuLSIF by matrix products against pairwise differences in NumPy, its memory, Nyström.

A is fdaudit's estimator, B the closed form in NumPy with broadcast differences, both on the same samples
of 784 dimensions; they must agree. Memory is the peak above the memory with torch and the samples
loaded, each size in a separate process. Targets: 500 + 500 samples scoring 1,000 at least 100 times faster than B
and under 100 MB; 5,000 + 5,000 scoring 6,000 under 1.5 GB and 5 s; Nyström with 50,000 + 50,000 within 10 times that.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from _pairs import HEADS, compare, table
from fdaudit.protocols.selective_fd import KuLSIF, NystromKuLSIF
from numpy.typing import NDArray

D, SIGMA, BETA, LANDMARKS = 784, 2.0, 0.05, 1000
SIZES = {"500": (500, 1000), "5000": (5000, 6000), "nystrom": (50_000, 6000)}
"""Samples of each set, and samples scored."""
CLEAR = Path("/proc/self/clear_refs")

Array = NDArray[Any]


def samples(n: int, q: int, dtype: type) -> tuple[Array, Array, Array]:
    """Known samples around a few points, uniform auxiliary ones, and samples to score of both sorts."""
    rng = np.random.default_rng(0)
    around = rng.random((10, D), dtype=np.float32)
    known, scored = (
        np.clip(around[rng.integers(10, size=m)] + 0.1 * rng.standard_normal((m, D), dtype=np.float32), 0, 1)
        for m in (n, q)
    )
    scored[: q // 2] = rng.random((q // 2, D), dtype=np.float32)
    auxiliary = rng.random((n, D), dtype=np.float32)
    return known.astype(dtype), auxiliary.astype(dtype), scored.astype(dtype)


def ours(known: Array, auxiliary: Array, x: Array) -> Array:
    return KuLSIF(SIGMA, BETA).fit(known, auxiliary).ratio(x)


def broadcast(known: Array, auxiliary: Array, x: Array) -> Array:
    """The closed form with every pairwise difference held at once."""

    def kernel(a: Array, b: Array) -> Array:
        distances: Array = np.linalg.norm(a[:, None] - b[None], axis=2)
        return np.exp(-(distances**2) / (2 * SIGMA**2))

    n_k, n_u = len(known), len(auxiliary)
    system = kernel(auxiliary, auxiliary) / n_u + BETA * np.eye(n_u)
    a = np.linalg.solve(system, -kernel(auxiliary, known).sum(1) / (n_u * n_k * BETA))
    found: Array = kernel(x, auxiliary) @ a + kernel(x, known).sum(1) / (n_k * BETA)
    return found


def against_numpy(pairs: int) -> None:
    rows = []
    for dtype in (np.float32, np.float64):
        given = samples(*SIZES["500"], dtype)
        np.testing.assert_allclose(ours(*given), broadcast(*given), rtol=1e-3, atol=1e-6)
        found = compare(lambda g=given: ours(*g), lambda g=given: broadcast(*g), pairs=pairs, warm_up=1)
        rows.append(
            [*found.row(f"500 + 500 scoring 1,000, {np.dtype(dtype).name}"), f"{1 / found.ratio:.0f}"]
        )
    print(table((*HEADS, "times faster"), rows))
    print("target: at least 100 times faster")


def once(name: str) -> dict[str, float]:
    """Seconds and the rise of peak memory in MB of one fit and one scoring, by a process that does nothing else."""
    command = [sys.executable, __file__, "--only", name, "--threads", str(torch.get_num_threads())]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    found: dict[str, float] = json.loads(done.stdout)
    return found


def measure(name: str) -> dict[str, float]:
    known, auxiliary, x = samples(*SIZES[name], np.float32)
    small = samples(20, 20, np.float32)
    ours(*small)  # loads what torch loads late
    CLEAR.write_text(
        "5"
    )  # the highest resident size so far is forgotten; making the samples would hide the rest
    before = resident("VmRSS")
    start = time.perf_counter()
    if name == "nystrom":
        estimator = NystromKuLSIF(SIGMA, BETA, landmarks=LANDMARKS, seed=0)
        estimator.fit(known, auxiliary).ratio(x)
    else:
        ours(known, auxiliary, x)
    return {"seconds": time.perf_counter() - start, "megabytes": (resident("VmHWM") - before) / 1e6}


def resident(what: str) -> int:
    """A figure of this process's memory in bytes."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return 1024 * next(int(line.split()[1]) for line in lines if line.startswith(what))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--only", choices=list(SIZES), help="measure one size and print JSON")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    if options.only:
        print(json.dumps(measure(options.only)))
        return
    print(f"KuLSIF, {D} dimensions, float32 samples where nothing else is said, {options.threads} thread(s)")
    found = {name: once(name) for name in SIZES}
    rows = [
        [label, f"{found[name]['seconds']:.2f}", f"{found[name]['megabytes']:.0f}", target]
        for name, label, target in (
            ("500", "500 + 500 scoring 1,000", "100 MB"),
            ("5000", "5,000 + 5,000 scoring 6,000", "1,500 MB and 5 s"),
            (
                "nystrom",
                f"Nyström, {LANDMARKS:,} landmarks, 50,000 + 50,000 scoring 6,000",
                "10 times the line above",
            ),
        )
    ]
    print(table(("one fit and one scoring", "s", "MB above the samples", "target: at most"), rows))
    against_numpy(options.pairs)


if __name__ == "__main__":
    main()
