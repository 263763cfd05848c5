"""Claims about the family of a run's tests: adjusted p-values by re-flips of the coins, and what could be detected."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cache, lru_cache
from typing import Any, NamedTuple

import numpy as np
from scipy import stats

from . import recompute_statistics as statistics
from .recompute_claims import Claims, Path
from .recompute_evidence import Array, Evidence

LEVEL = 0.05
BY_COINS = 0.6
"""Share of the level for membership, where other goals have tests too (docs/report.md)."""
REFLIPS, DRAWN_AT_ONCE = 20_000, 1000
"""Of all coins, and how many are drawn at once (docs/report.md)."""
RATES = (0.1, 0.01, 0.001)


class _Column(NamedTuple):
    """A figure that is tested: whose, which, and its candidates: the members' scores, the others', the coins."""

    cell: str
    target: str | None
    figure: str
    inside: Array
    outside: Array
    coins: Array
    rate: float


class _Tests(NamedTuple):
    """Adjusted p-values and floors of AUCs by (cell, target, figure), and the number of coins."""

    p: dict[tuple[str, str | None, str], float]
    floors: dict[tuple[str, str | None, str], float]
    coins: int


def claim_family(claims: Claims, evidence: Evidence, result: Any) -> None:
    """Claims every number of the family, and that it has the figures that verdicts rest on and no other."""
    where: Path = ("result", "family")
    claims.equal((*where, "level"), LEVEL)
    others = _others(_judged(result["cells"], membership=False))
    by_coins = tuple(cell["id"] for cell in _judged(result["cells"], membership=True))
    share = BY_COINS if others and by_coins else 1.0
    tests = _tests(evidence, by_coins, LEVEL * share)
    p = {key: min(1.0, value / share) for key, value in tests.p.items()}
    rest = 1 - share if by_coins else 1.0
    p |= {key: min(1.0, value / rest) for key, value in _holm(others).items()}
    if others:
        claims.equal((*where, "by_themselves", "level"), LEVEL * rest)
        claims.equal((*where, "by_themselves", "tests"), len(others))
    named = [(row["cell"], row["target"], row["figure"]) for row in result["family"]["adjusted"]]
    if sorted(map(str, named)) != sorted(map(str, p)):
        claims.wrong.append("family: other figures are tested than those that verdicts rest on")
        return
    for k, row in enumerate(named):
        claims.equal((*where, "adjusted", k, "p"), p[row])
        if tests.floors.get(row, 2) <= 1:
            claims.equal((*where, "adjusted", k, "floor"), tests.floors[row])
    if not tests.p:
        return
    told: dict[str, float] = {
        "level": LEVEL * share,
        "coins": tests.coins,
        "reflips": REFLIPS,
        "statistics": len(tests.p),
    }
    for name, alone in (("floor", False), ("floor_one_victim", True)):
        largest = max(v for (_, target, _), v in tests.floors.items() if (target is not None) == alone)
        told |= {name: largest} if largest <= 1 else {}
    for name, value in told.items():
        claims.equal((*where, "by_coins", name), value)


def _judged(cells: Sequence[Any], membership: bool) -> Iterator[Any]:
    """Cells that ran and whose negative control did not fail, of membership or of other goals."""
    for cell in cells:
        negative = (cell["controls"] or {}).get("negative")
        ran = cell["status"] in ("run", "inconclusive") and (not negative or negative["passed"])
        if ran and (cell["goal"] == "membership") == membership:
            yield cell


def _others(cells: Iterator[Any]) -> dict[tuple[str, str | None, str], float]:
    """The p-values of figures of other goals, without the worst victim's, which stand beside that victim too."""
    return {
        (cell["id"], None if victim is cell else victim["target"], figure["name"]): figure["p"]
        for cell in cells
        for victim in (cell, *cell["targets"])
        for figure in victim["figures"]
        if figure["p"] is not None and not figure["name"].endswith("_worst")
    }


def _holm(p: Mapping[tuple[str, str | None, str], float]) -> dict[tuple[str, str | None, str], float]:
    """Holm 1979: the k-th least of m p-values times m - k + 1, never less than the one before."""
    found, least = {}, 0.0
    for k, key in enumerate(sorted(p, key=p.__getitem__)):
        least = max(least, (len(p) - k) * p[key])
        found[key] = min(1.0, least)
    return found


@cache
def _tests(evidence: Evidence, cells: tuple[str, ...], level: float) -> _Tests:
    columns, coins = _columns(evidence, cells)
    if not columns:
        return _Tests({}, {}, coins)
    seen = _statistics(columns, np.ones((1, coins), dtype=bool))[0]
    drawn = _statistics(columns, _flips(evidence.seed("family"), coins))
    critical = np.sort(drawn.max(1))[::-1][int(level * (1 + REFLIPS)) - 1]
    floors = {}
    for column in columns:
        if column.figure == "auc":
            ahead = _ahead(column)
            floors[column[:3]] = 0.5 + critical * float(np.sqrt((ahead**2).sum())) / (2 * len(ahead) ** 2)
    p = {column[:3]: _stepped_down(drawn, seen, at) for at, column in enumerate(columns)}
    return _Tests(p, floors, coins)


def _columns(evidence: Evidence, cells: Sequence[str]) -> tuple[list[_Column], int]:
    """The figures of these cells that verdicts rest on, and the number of coins."""
    held: dict[str, Mapping[str, Any]] = {}
    for cell in cells:
        scores = evidence.scores(cell, "candidates")
        held[cell] = {k: _by_coin(evidence, k, s) for k, s in sorted(scores.items())}
    sizes = {client: len(pairs[0]) for of in held.values() for client, pairs in of.items()}
    start, total = {}, 0
    for client in sorted(sizes):
        start[client], total = total, total + sizes[client]
    found = []
    for cell_id, of in held.items():
        for target, chosen in ((None, list(of)), *((client, [client]) for client in of)):
            inside, outside = (np.concatenate([of[k][half] for k in chosen]) for half in (0, 1))
            coins = np.concatenate([start[k] + np.arange(sizes[k]) for k in chosen])
            for name, rate in (("auc", 0.0), *((f"tpr_at_{100 * r:g}fpr", r) for r in RATES)):
                if rate == 0 or rate * len(coins) >= 1 - 1e-9:
                    found.append(_Column(cell_id, target, name, inside, outside, coins, rate))
    return found, total


def _by_coin(evidence: Evidence, client: str, scores: Array) -> tuple[Array, Array]:
    member, coin = evidence.coins(client, "candidates")
    inside, outside = (scores[chosen][np.argsort(coin[chosen])] for chosen in (member, ~member))
    return inside, outside


def _flips(seed: int, coins: int) -> Array:
    """Return whether each coin is as in the run (reflips, coins)."""
    draws = np.random.default_rng(seed)
    parts = [
        draws.integers(2, size=(DRAWN_AT_ONCE, coins), dtype=np.int8) for _ in range(REFLIPS // DRAWN_AT_ONCE)
    ]
    return np.concatenate(parts) == 1


def _ahead(column: _Column) -> Array:
    ranks = stats.rankdata(np.concatenate([column.inside, column.outside]))
    return ranks[: len(column.inside)] - ranks[len(column.inside) :]


def _statistics(columns: Sequence[_Column], kept: Array) -> Array:
    """(flips, figures): a standardised sum of ranks, or the normal quantile of the chance of a rate."""
    return np.stack([_rates(c, kept) if c.rate else _sums(c, kept) for c in columns], 1).round(9)


def _sums(column: _Column, kept: Array) -> Array:
    ahead = _ahead(column)
    sums = np.where(kept[:, column.coins], ahead, -ahead).sum(1)
    scale = float(np.sqrt((ahead**2).sum()))
    return np.asarray(sums / scale if scale else np.full(len(kept), -np.inf))


def _rates(column: _Column, kept: Array) -> Array:
    n, allowed = len(column.coins), int(column.rate * len(column.coins) + 1e-9)
    as_is = kept[:, column.coins]
    member = np.where(as_is, column.inside, column.outside)
    other = np.where(as_is, column.outside, column.inside)
    cut = np.sort(other, axis=1)[:, ::-1][:, [allowed]]
    found, wrong = (member > cut).sum(1), (other > cut).sum(1)
    return np.array([_quantile(int(f), int(w), n) for f, w in zip(found, wrong, strict=True)])


@lru_cache
def _quantile(found: int, wrong: int, n: int) -> float:
    return float(stats.norm.isf(min(statistics.order_p(found, n, wrong, n), 1 - 1e-12)))


def _stepped_down(drawn: Array, seen: Array, at: int) -> float:
    """The largest p-value of a figure and of those above it, each against the largest of those not above it."""
    least = 0.0
    for value in seen[seen >= seen[at]]:
        among = drawn[:, seen <= value].max(1)
        least = max(least, (1 + int((among >= value).sum())) / (1 + REFLIPS))
    return least
