"""Interleaved pairs: comparison of two ways of doing something on a machine that is not quiet.

Both sides of a pair meet the same load, so their ratio is steadier than their seconds. Sides take turns at
going first. The result is the median of the ratios. Its interval comes from order statistics (the sign test
inverted), which assumes nothing about the distribution of the noise.
"""

from __future__ import annotations

import gc
import math
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Pairs:
    """Seconds of both sides, pair by pair."""

    a: tuple[float, ...]
    b: tuple[float, ...]

    @property
    def ratios(self) -> list[float]:
        """Return a over b in each pair, ascending."""
        return sorted(x / y for x, y in zip(self.a, self.b, strict=True))

    @property
    def ratio(self) -> float:
        """Return the median ratio."""
        return statistics.median(self.ratios)

    def interval(self, confidence: float = 0.95) -> tuple[float, float]:
        """Return the narrowest symmetric order-statistic interval of the median with at least this coverage.

        With too few pairs for that coverage, it is the smallest and the largest ratio.
        """
        ratios, n = self.ratios, len(self.a)
        rank, tail = 0, 1 / 2**n  # P(fewer than rank + 1 of n fair coins fall heads)
        while tail + math.comb(n, rank + 1) / 2**n <= (1 - confidence) / 2:
            rank += 1
            tail += math.comb(n, rank) / 2**n
        return ratios[rank], ratios[n - 1 - rank]

    def row(self, what: str) -> list[str]:
        """Return one line of a table: what, median ratio with its interval, both medians, number of pairs."""
        low, high = self.interval()
        seconds = [f"{statistics.median(side):.4g}" for side in (self.a, self.b)]
        return [what, f"{self.ratio:.3f}", f"[{low:.3f}, {high:.3f}]", *seconds, str(len(self.a))]


HEADS = ("A / B", "ratio", "95% interval", "A, s", "B, s", "pairs")


def compare(a: Callable[[], object], b: Callable[[], object], *, pairs: int, warm_up: int = 2) -> Pairs:
    """Run `a` and `b` in turns, `warm_up` times unmeasured and `pairs` times measured by the wall clock."""
    return compare_both(a, b, pairs=pairs, warm_up=warm_up)[0]


def compare_both(
    a: Callable[[], object], b: Callable[[], object], *, pairs: int, warm_up: int = 2
) -> tuple[Pairs, Pairs]:
    """Do as `compare`, by the wall clock and in seconds of processor time, which other load changes less."""
    for _ in range(warm_up):
        a()
        b()
    wall: dict[Callable[[], object], list[float]] = {a: [], b: []}
    processor: dict[Callable[[], object], list[float]] = {a: [], b: []}
    for number in range(pairs):
        for side in (a, b) if number % 2 == 0 else (b, a):
            gc.collect()
            start, used = time.perf_counter(), time.process_time()
            side()
            processor[side].append(time.process_time() - used)
            wall[side].append(time.perf_counter() - start)
    return Pairs(tuple(wall[a]), tuple(wall[b])), Pairs(tuple(processor[a]), tuple(processor[b]))


def table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return rows under their heads, columns aligned."""
    widths = [max(len(row[i]) for row in (heads, *rows)) for i in range(len(heads))]
    lines = [
        "  ".join(
            c.ljust(w) if i == 0 else c.rjust(w) for i, (c, w) in enumerate(zip(row, widths, strict=True))
        )
        for row in (heads, *rows)
    ]
    return "\n".join(lines)
