"""A sweep as rows: each run's measurements, and summaries over its seeds. Nothing is measured here.

Guarantees:
  * every run of the grid has a row; a missing measurement is absent, never 0;
  * an attack whose controls failed gives no figure;
  * the ε of a point is the largest of its runs' ledgers, and infinite if one of them has none;
  * the strongest of several attacks counts, for every defence, so that none is chosen by its outcome alone;
  * an interval contains its mean, and stays in the range of its measure.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from fdaudit.errors import UsageError, nearest
from fdaudit.result import Cell, LedgerEntry, Result

from ..goals.model_extraction import holds_model
from ..grouping import grouped
from ..run_figures import measure_of, reference_lines, strongest_figure, utility

__all__ = [
    "MEASURES",
    "Point",
    "PointLedgers",
    "Spread",
    "SweepColumn",
    "SweepRow",
    "SweepRun",
    "axis_adversary",
    "front",
    "points",
    "row_of",
    "spread_of",
    "spreads_of",
]

Status = Literal["pending", "done", "failed", "not-applicable"]
_LEVEL = 0.95


@dataclass(frozen=True, kw_only=True)
class SweepRun:
    """A run of a sweep with its result, if it has one.

    Attributes:
        level: its place on the grid's ε axis; infinite without a defence.
        asked: whether that level is an ε, and not another setting of the defence.
        result_sha256: digest of its `result.json`; empty without a result.
    """

    key: str
    protocol: str
    defence: str
    level: float
    seed: int
    status: Status
    asked: bool = False
    reason: str = ""
    result: Result | None = None
    result_sha256: str = ""

    @property
    def epsilon_asked(self) -> float | None:
        """ε that was asked of the defence; infinite without one; None where the level is no ε."""
        return self.level if self.asked or math.isinf(self.level) else None


@dataclass(frozen=True, kw_only=True)
class SweepColumn:
    """A column.

    Attributes:
        name: of the column in CSV files.
        label: as an axis shows it.
        short: as a table's heading shows it.
        unit: `fraction`, `dB`, `bytes` or empty.
        goal: of the attacks that measure it; empty for measures other than leakage.
        figure: the attacks' figure; the largest over attacks and views counts.
        least: whether a small value leaks.
        level: its value without leakage; None if there is no such value.
        ceiling: its largest possible value, where 0 is the least; infinite if only 0 bounds it; None without bounds.
    """

    name: str
    label: str
    short: str
    unit: str
    goal: str = ""
    figure: str = ""
    least: bool = False
    level: float | None = None
    ceiling: float | None = None


MEASURES = (
    SweepColumn(
        name="utility",
        label="Utility (server, else clients' mean)",
        short="Utility",
        unit="fraction",
        ceiling=1.0,
    ),
    SweepColumn(
        name="server", label="Accuracy of the server's model", short="Server", unit="fraction", ceiling=1.0
    ),
    SweepColumn(
        name="clients_mean",
        label="Accuracy, mean of the clients",
        short="Clients, mean",
        unit="fraction",
        ceiling=1.0,
    ),
    SweepColumn(
        name="worst_client",
        label="Accuracy of the worst client",
        short="Worst client",
        unit="fraction",
        ceiling=1.0,
    ),
    SweepColumn(
        name="membership_auc",
        label="Membership AUC",
        short="Membership AUC",
        unit="",
        goal="membership",
        figure="auc",
        level=0.5,
        ceiling=1.0,
    ),
    SweepColumn(
        name="membership_tpr_at_1fpr",
        label="Membership: true positives at 1 % false ones",
        short="TPR at 1 % FPR",
        unit="fraction",
        goal="membership",
        figure="tpr_at_1fpr",
        level=0.01,
        ceiling=1.0,
    ),
    SweepColumn(
        name="psnr",
        label="PSNR of reconstructions",
        short="PSNR",
        unit="dB",
        goal="reconstruction",
        figure="psnr",
    ),
    SweepColumn(
        name="psnr_gain",
        label="PSNR gain over the prior",
        short="PSNR gain",
        unit="dB",
        goal="reconstruction",
        figure="psnr_gain",
        level=0.0,
    ),
    SweepColumn(
        name="fid",
        label="FID of reconstructions",
        short="FID",
        unit="",
        goal="reconstruction",
        figure="fid",
        least=True,
        ceiling=math.inf,
    ),
    SweepColumn(
        name="class_named",
        label="Reconstructions that a classifier takes for the class they claim",
        short="Class named",
        unit="fraction",
        goal="reconstruction",
        figure="evaluator_accuracy",
        ceiling=1.0,
    ),
    SweepColumn(
        name="label_tv",
        label="Class shares: total variation left",
        short="Shares, distance",
        unit="",
        goal="label-distribution",
        figure="label_tv",
        least=True,
        ceiling=1.0,
    ),
    SweepColumn(
        name="label_tv_prior",
        label="Class shares: total variation of the prior",
        short="Shares, prior's",
        unit="",
        goal="label-distribution",
        figure="label_tv_prior",
        least=True,
        ceiling=1.0,
    ),
    SweepColumn(
        name="agreement",
        label="Agreement of a copy with the model",
        short="Copy agrees",
        unit="fraction",
        goal="model-extraction",
        figure="agreement",
        ceiling=1.0,
    ),
    SweepColumn(
        name="agreement_gain",
        label="Agreement of a copy above the baseline's",
        short="Copy, gain",
        unit="fraction",
        goal="model-extraction",
        figure="agreement_gain",
    ),
    SweepColumn(name="bytes", label="Bytes on the wire", short="Bytes", unit="bytes", ceiling=math.inf),
)
"""All measures of a sweep's figures and tables."""


@dataclass(frozen=True, kw_only=True)
class SweepRow:
    """One run: its values by measure, its ledger by adversary, reference lines."""

    run: SweepRun
    values: dict[str, float] = field(default_factory=dict)
    ledger: dict[str, LedgerEntry] = field(default_factory=dict)
    references: dict[str, float] = field(default_factory=dict)
    measured_by: str = "accuracy"

    def epsilon(self, adversary: str) -> float | None:
        """Return ε by the ledger; infinite if none can be claimed, None if the ledger has no such adversary."""
        if (entry := self.ledger.get(adversary)) is None:
            return None
        return math.inf if entry.epsilon is None else entry.epsilon


@dataclass(frozen=True, kw_only=True)
class Spread:
    """Summary of a measure over n seeds: mean, standard deviation (n - 1), 95 % interval; one seed: only the mean."""

    mean: float
    sd: float | None
    low: float | None
    high: float | None
    n: int


@dataclass(frozen=True, kw_only=True)
class PointLedgers:
    """Ledgers of a point's runs for one adversary's view.

    Attributes:
        epsilon: the largest ε over the runs; infinite if one run has none.
        least: the smallest ε over the runs.
        causes: why ε is infinite, each cause once.
        deltas: δ of the entries, ascending, each once.
        terms: unit and relation of the entries, each pair once.
    """

    epsilon: float
    least: float
    causes: tuple[str, ...]
    deltas: tuple[float, ...]
    terms: tuple[tuple[str, str], ...]


@dataclass(frozen=True, kw_only=True)
class Point:
    """A protocol under a defence at a level, over all its seeds."""

    protocol: str
    defence: str
    level: float
    rows: tuple[SweepRow, ...]
    spreads: dict[str, Spread]

    @property
    def defended(self) -> bool:
        """Return whether there is a defence."""
        return math.isfinite(self.level)

    @property
    def epsilon_asked(self) -> float | None:
        """ε that was asked of the defence; infinite without one; None where the level is no ε."""
        requests = set[float | None]()
        for row in self.rows:
            if row.run.status != "not-applicable":
                requests.add(row.run.epsilon_asked)
        return requests.pop() if len(requests) == 1 else None

    @property
    def seeds(self) -> int:
        """Return the number of runs with a utility."""
        return self.spreads["utility"].n if "utility" in self.spreads else 0

    def absence(self, measure: SweepColumn) -> str:
        """Return why no run has a figure of a measure.

        `held` if the adversary has the model in view that a copy would be of; `inconclusive` if an attack was tried and
        its controls failed; else a dash.
        """
        cells = list[Cell]()
        for row in self.rows:
            if row.run.result is not None:
                for cell in row.run.result.cells:
                    if cell.goal == measure.goal:
                        cells.append(cell)
        if any(map(holds_model, cells)):
            return "held"
        if any(cell.status == "inconclusive" for cell in cells):
            return "inconclusive"
        return "–"

    def bill(self, adversary: str) -> PointLedgers | None:
        """Return the ledgers' result; None if a run with a result does not mention this adversary."""
        epsilons, deltas, terms = list[float](), set[float](), set[tuple[str, str]]()
        causes = dict[str, None]()
        for row in self.rows:
            if row.run.result is None:
                continue
            entry, epsilon = row.ledger.get(adversary), row.epsilon(adversary)
            if entry is None or epsilon is None:
                return None
            epsilons.append(epsilon)
            terms.add((entry.unit, entry.relation))
            if entry.delta is not None:
                deltas.add(entry.delta)
            if entry.epsilon is None:
                causes[entry.cause or "the ledger gives no cause"] = None
        if not epsilons:
            return None
        return PointLedgers(
            epsilon=max(epsilons),
            least=min(epsilons),
            causes=tuple(causes),
            deltas=tuple(sorted(deltas)),
            terms=tuple(sorted(terms)),
        )


def axis_adversary(rows: Iterable[SweepRow], wanted: str | None) -> str:
    """Return the axis's adversary: the wanted one, else the server, else the first of any ledger.

    Raises:
        UsageError: there are ledgers, and none of them has the wanted adversary.
    """
    names = dict[str, None]()
    for row in rows:
        names |= dict.fromkeys(row.ledger)
    adversaries = list(names)
    if wanted is not None:
        if adversaries and wanted not in adversaries:
            raise UsageError(
                "adversary", wanted, "is in no ledger of this sweep", nearest(wanted, adversaries)
            )
        return wanted
    return "server" if "server" in adversaries or not adversaries else adversaries[0]


def row_of(run: SweepRun) -> SweepRow:
    """Return the row of a run."""
    result = run.result
    if result is None:
        return SweepRow(run=run)
    references = {}
    for line in reference_lines(result):
        best = utility(result.utility.final, line).best
        if best is not None:
            references[line] = best
    return SweepRow(
        run=run,
        values=_values(result),
        ledger={e.adversary: e for e in result.ledger or ()},
        references=references,
        measured_by=measure_of(result),
    )


def _values(result: Result) -> dict[str, float]:
    """Return the values of a run by the name of their measure; what was not measured is absent."""
    own = utility(result.utility.final, result.run.protocol)
    values = {
        "utility": own.best,
        "clients_mean": own.mean,
        "bytes": float(sum(row.bytes for row in result.wire)),
    }
    if own.server is not None:
        values["server"] = own.server.value
    if own.worst is not None:
        values["worst_client"] = own.worst.value
    for measure in MEASURES:
        if measure.goal:
            strongest = strongest_figure(result, measure.goal, measure.figure, least=measure.least)
            if strongest is not None:
                values[measure.name] = strongest.figure.value
    measured = dict[str, float]()
    for name, value in values.items():
        if value is not None:
            measured[name] = value
    return measured


def points(rows: Iterable[SweepRow]) -> tuple[Point, ...]:
    """Return rows grouped over seeds, in their order; a point without any result has no spreads."""
    own_points = []
    groups = grouped(rows, lambda row: (row.run.protocol, row.run.defence, row.run.level))
    for (protocol, defence, level), same in groups.items():
        spreads = _spreads([row.values for row in same])
        point = Point(protocol=protocol, defence=defence, level=level, rows=tuple(same), spreads=spreads)
        own_points.append(point)
    return tuple(own_points)


def spreads_of(results: Iterable[Result]) -> dict[str, Spread]:
    """Return the spread of each measure over runs that differ only in their seeds."""
    return _spreads(list(map(_values, results)))


def _spreads(runs: Sequence[Mapping[str, float]]) -> dict[str, Spread]:
    """Return the spread of each measure over the runs that have a value of it."""
    spreads = {}
    for measure in MEASURES:
        values = [run[measure.name] for run in runs if measure.name in run]
        if values:
            spreads[measure.name] = spread_of(values, measure.ceiling)
    return spreads


def spread_of(values: Sequence[float], ceiling: float | None = None) -> Spread:
    """Return mean, standard deviation and 95 % interval; the values are one a seed.

    Args:
        values: at least one.
        ceiling: see `Measure`. Without bounds the interval is Student's t. With bounds it is Wilson's, with a
            quantile of Student's t.
    """
    mean, n = statistics.fmean(values), len(values)
    if n < 2:
        return Spread(mean=mean, sd=None, low=None, high=None, n=n)
    if min(values) == max(values):
        return Spread(mean=values[0], sd=0.0, low=values[0], high=values[0], n=n)
    from scipy.stats import t

    sd = statistics.stdev(values)
    half = float(t.ppf(0.5 + _LEVEL / 2, n - 1)) * sd / math.sqrt(n)
    low, high = mean - half, mean + half
    if ceiling is not None:
        low, high = _bounded(mean, half, ceiling)
    return Spread(mean=mean, sd=sd, low=min(low, mean), high=max(high, mean), n=n)


def _bounded(mean: float, half: float, ceiling: float) -> tuple[float, float]:
    """Return Wilson's interval for a mean between 0 and a ceiling, from half the length of its t-interval.

    The ends p solve (mean - p)² = half² p (c - p) / (mean (c - mean)): the variance over seeds falls to 0 at the
    bounds, as that of a proportion does. Without a ceiling it is proportional to p.

    Source: Wilson, "Probable inference, the law of succession, and statistical inference", JASA 22 (1927), with an
    effective number of trials as in Korn and Graubard, Survey Methodology 24 (1998).
    """
    room = mean * (1 - mean / ceiling)
    if room <= 0:
        return mean, mean
    k = half * half / room
    reach = math.sqrt(k * room + k * k / 4)
    middle, width = mean + k / 2, 1 + k / ceiling
    low, high = (middle - reach) / width, (middle + reach) / width
    return max(low, 0.0), min(high, ceiling)


def front(places: Sequence[tuple[float, float]]) -> list[int]:
    """Return the places (cost, gain) that no other place dominates.

    A place dominates another if it costs at most as much and gains at least as much, one of both strictly.

    Returns:
        Indices, by rising cost.
    """
    best, undominated = -math.inf, list[int]()
    # Among equal costs the largest gain comes first; equal places all stay.
    for i in sorted(range(len(places)), key=lambda i: (places[i][0], -places[i][1])):
        _, gain = places[i]
        twin = bool(undominated) and places[undominated[-1]] == places[i]
        if gain > best or twin:
            undominated.append(i)
            best = gain
    return undominated
