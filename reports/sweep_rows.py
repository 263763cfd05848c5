"""A sweep as rows: what each cell measured, and what its seeds say together. Nothing is measured here.

Guarantees:
  * every cell of the grid has a row; what was not measured is absent, never nought;
  * an attack whose controls failed gives no figure;
  * of several attacks the strongest counts, whatever the defence, so that none is chosen by its outcome alone.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Literal

from .comparison import measure_of, utility
from .schema import Result

__all__ = [
    "MEASURES",
    "Measure",
    "Point",
    "Row",
    "Spread",
    "SweepCell",
    "front",
    "points",
    "row_of",
    "spread_of",
]

Status = Literal["pending", "done", "failed", "not-applicable"]
_LEVEL = 0.95


@dataclass(frozen=True, kw_only=True)
class SweepCell:
    """A cell of a sweep with its result, where it has one; ε is infinite where there is no defence."""

    key: str
    protocol: str
    defence: str
    epsilon: float
    seed: int
    status: Status
    reason: str = ""
    result: Result | None = None


@dataclass(frozen=True, kw_only=True)
class Measure:
    """A column.

    Attributes:
        name: of the column in CSV files.
        label: as an axis says it.
        short: as a table's heading says it.
        unit: `fraction`, `dB`, `bytes` or empty.
        goal: of the attacks that measure it; empty for what is no leakage.
        figure: the attacks' figure; the largest over attacks and views counts.
        least: whether a small value is what leaks.
        level: what no leakage looks like; None where there is no such value.
    """

    name: str
    label: str
    short: str
    unit: str
    goal: str = ""
    figure: str = ""
    least: bool = False
    level: float | None = None


MEASURES = (
    Measure(name="utility", label="Utility (server, else clients' mean)", short="Utility", unit="fraction"),
    Measure(name="server", label="Accuracy of the server's model", short="Server", unit="fraction"),
    Measure(
        name="clients_mean", label="Accuracy, mean of the clients", short="Clients, mean", unit="fraction"
    ),
    Measure(name="worst_client", label="Accuracy of the worst client", short="Worst client", unit="fraction"),
    Measure(
        name="membership_auc",
        label="Membership AUC",
        short="Membership AUC",
        unit="",
        goal="membership",
        figure="auc",
        level=0.5,
    ),
    Measure(
        name="membership_tpr_at_1fpr",
        label="Membership: true positives at 1 % false ones",
        short="TPR at 1 % FPR",
        unit="fraction",
        goal="membership",
        figure="tpr_at_1fpr",
        level=0.01,
    ),
    Measure(
        name="psnr",
        label="PSNR of reconstructions",
        short="PSNR",
        unit="dB",
        goal="reconstruction",
        figure="psnr",
    ),
    Measure(
        name="psnr_gain",
        label="PSNR gain over the prior",
        short="PSNR gain",
        unit="dB",
        goal="reconstruction",
        figure="psnr_gain",
        level=0.0,
    ),
    Measure(
        name="fid",
        label="FID of reconstructions",
        short="FID",
        unit="",
        goal="reconstruction",
        figure="fid",
        least=True,
    ),
    Measure(name="bytes", label="Bytes on the wire", short="Bytes", unit="bytes"),
)
"""Everything that a sweep is drawn and tabled by."""


@dataclass(frozen=True, kw_only=True)
class Row:
    """One cell: its values by measure, ε by adversary (infinite where none can be claimed), reference lines."""

    cell: SweepCell
    values: dict[str, float] = field(default_factory=dict)
    ledger: dict[str, float] = field(default_factory=dict)
    references: dict[str, float] = field(default_factory=dict)
    measured_by: str = "accuracy"


@dataclass(frozen=True, kw_only=True)
class Spread:
    """What n seeds say of a measure: mean, standard deviation (n - 1), 95 % t-interval; one seed has a mean alone."""

    mean: float
    sd: float | None
    low: float | None
    high: float | None
    n: int


@dataclass(frozen=True, kw_only=True)
class Point:
    """A protocol under a defence at an ε: its seeds together."""

    protocol: str
    defence: str
    epsilon: float
    rows: tuple[Row, ...]
    spreads: dict[str, Spread]


def row_of(cell: SweepCell) -> Row:
    """The row of a cell."""
    result = cell.result
    if result is None:
        return Row(cell=cell)
    own = utility(result.utility.final, result.run.protocol)
    values = {
        "utility": own.best,
        "server": None if own.server is None else own.server.value,
        "clients_mean": own.mean,
        "worst_client": None if own.worst is None else own.worst.value,
        "bytes": float(sum(w.bytes for w in result.wire)),
        **{m.name: _strongest(result, m) for m in MEASURES if m.goal},
    }
    lines = dict.fromkeys(f.line for f in result.utility.final if f.line != result.run.protocol)
    references = {line: utility(result.utility.final, line).best for line in lines}
    return Row(
        cell=cell,
        values={name: v for name, v in values.items() if v is not None},
        ledger={e.adversary: math.inf if e.epsilon is None else e.epsilon for e in result.ledger or ()},
        references={line: v for line, v in references.items() if v is not None},
        measured_by=measure_of(result),
    )


def _strongest(result: Result, measure: Measure) -> float | None:
    """The largest value (of a distance: the smallest) over the attacks that ran, each a mean over its victims."""
    found = [
        f.value
        for cell in result.cells
        if cell.goal == measure.goal and cell.status == "run"
        for f in cell.figures
        if f.name == measure.figure and f.value is not None
    ]
    return (min if measure.least else max)(found, default=None)


def points(rows: Iterable[Row]) -> tuple[Point, ...]:
    """Rows put together over seeds, in their order; a point without any result has no spreads."""
    groups: dict[tuple[str, str, float], list[Row]] = {}
    for row in rows:
        groups.setdefault((row.cell.protocol, row.cell.defence, row.cell.epsilon), []).append(row)
    made = []
    for (protocol, defence, epsilon), same in groups.items():
        spreads = {
            m.name: spread_of([r.values[m.name] for r in same if m.name in r.values])
            for m in MEASURES
            if any(m.name in r.values for r in same)
        }
        made.append(
            Point(protocol=protocol, defence=defence, epsilon=epsilon, rows=tuple(same), spreads=spreads)
        )
    return tuple(made)


def spread_of(values: Sequence[float]) -> Spread:
    """Mean, standard deviation and 95 % interval of Student's t; the values are one a seed."""
    mean, n = statistics.fmean(values), len(values)
    if n < 2:
        return Spread(mean=mean, sd=None, low=None, high=None, n=n)
    from scipy.stats import t

    sd = statistics.stdev(values)
    half = float(t.ppf(0.5 + _LEVEL / 2, n - 1)) * sd / math.sqrt(n)
    return Spread(mean=mean, sd=sd, low=mean - half, high=mean + half, n=n)


def front(places: Sequence[tuple[float, float]]) -> list[int]:
    """Which of some (cost, gain) no other betters: none costs at most and gains at least as much, one of both strictly.

    Returns:
        Indices, by rising cost.
    """
    best, kept = -math.inf, list[int]()
    # Among equal costs the largest gain comes first; equal places all stay.
    for i in sorted(range(len(places)), key=lambda i: (places[i][0], -places[i][1])):
        twin = bool(kept) and places[kept[-1]] == places[i]
        if places[i][1] > best or twin:
            kept.append(i)
            best = places[i][1]
    return kept
