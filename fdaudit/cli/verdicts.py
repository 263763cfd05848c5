"""Verdicts on the console: a run's headline and who can learn what, a line for each cell, and runs compared."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fdaudit.reports.curves.sweep_rows import Point
    from fdaudit.result import Result

__all__ = [
    "beside_twin",
    "compared",
    "outcome",
    "over_seeds_lines",
    "profile_words",
    "tried_remedies",
    "verdicts",
]

_UNANSWERED = ("inconclusive", "failed", "not-applicable", "not-tested")
"""Levels of which the reason is printed."""


def outcome(result: Result, *, verbose: bool = False) -> Iterator[str]:
    """Yield a run's headline and its matrix of adversaries and goals, as the first page of its report has them.

    Args:
        result: the result.
        verbose: yield the line of each cell before them.
    """
    from fdaudit.reports.judgement.verdict import LEVELS
    from fdaudit.reports.run.summary import summarise
    from fdaudit.reports.untried import not_tried

    if verbose:
        yield from verdicts(result)
        yield ""
    if result.unfinished is not None:
        yield f"provisional: {result.unfinished.words}"
    if result.budget is not None:
        yield result.budget.short
    summary = summarise(result)
    if summary.level in ("leak", "partial", "possible"):
        yield f"{LEVELS[summary.level]}: {summary.headline}"
    else:
        yield summary.headline
    if summary.matrix:
        table = [["", *(goal.replace("-", " ") for goal in summary.goals)]]
        for row in summary.matrix:
            words = [entry.words for entry in row.entries]
            table.append([row.adversary, *words])
        yield from _aligned(table)
    if untried := not_tried(result):
        yield untried


def tried_remedies(result: Result) -> Iterator[str]:
    """Yield what came of each remedy that was tried: utility, then a line for each adversary and goal."""
    from fdaudit.reports.judgement.tried import effect_words, utility_words

    if not result.remedies:
        yield "No finding has a remedy that could be tried."
    for tried in result.remedies:
        if tried.state != "run":
            yield f"{tried.words}: not run, {tried.reason}"
            continue
        words = f"{tried.words}: {utility_words(tried)}"
        if tried.alone is not None:
            words += f"; clients alone {tried.alone:.1%}"
        yield words
        if tried.settings:
            yield f"  settings: {tried.settings}, the best of {tried.settings_tried}"
        for on in tried.effects:
            yield f"  {effect_words(on)}"
        if tried.left_out:
            yield f"  the budget left out after it: {', '.join(tried.left_out)}"


def beside_twin(result: Result) -> Iterator[str]:
    """Yield how a deviating run compares with its honest twin: a headline, each goal's figures, each detector."""
    from fdaudit.reports.twin import gain_words, twin_summary

    summary = twin_summary(result)
    if summary is None or result.twin is None:
        return
    yield summary.headline
    for gain in result.twin.gains:
        yield f"  {gain_words(gain)}"
    for line in summary.alarms:
        yield f"  {line}"


def profile_words(profile: str, origin: str) -> str:
    """Return a profile's name, and how to try for longer where a longer one exists."""
    longer = {"quick": "standard, or full", "standard": "full"}.get(profile)
    if longer is None:
        return f"{profile}, the longest"
    if origin == "recording":
        return f"{profile}; to try for longer, import again with --profile {longer}"
    return f"{profile}; to try for longer, run a spec with profile: {longer}"


def compared(comparison: Mapping[str, Any]) -> list[str]:
    """Return a comparison of runs as lines: accuracy, bytes and the gravest outcome of each goal, a line a run."""
    goals = dict[str, None]()
    for run in comparison["runs"]:
        for entry in run["outcomes"]:
            goals[entry["goal"]] = None
    rows = [["run", "server", "clients", "worst", "bytes", *goals]]
    for run in comparison["runs"]:
        by_goal = {o["goal"]: o["level"] or "not-audited" for o in run["outcomes"]}
        levels = [by_goal.get(goal, "not-audited") for goal in goals]
        size = run["bytes"]["total"]
        amount = f"{size / 1e6:.2f} MB" if size >= 1e6 else f"{size / 1e3:.1f} kB"
        rows.append([run["name"], *_shares(run["accuracy"]), amount, *levels])
    for line in comparison["references"]:
        shares = _shares(line)
        rows.append([line["line"], *shares, "0 B"])
    return _aligned(rows)


def over_seeds_lines(points: Sequence[Point]) -> list[str]:
    """Return each measure's mean over the seeds with its 95 % interval, a line a measure."""
    from fdaudit.reports.curves.sweep_rows import MEASURES
    from fdaudit.reports.text import amount

    rows = []
    for point in points:
        for measure in MEASURES:
            spread = point.spreads.get(measure.name)
            if spread is None:
                continue
            interval = ""
            if spread.low is not None and spread.high is not None:
                ends = f"{amount(spread.low, measure.unit)}, {amount(spread.high, measure.unit)}"
                interval = f"[{ends}]"
            rows.append([measure.label, amount(spread.mean, measure.unit), interval, f"n = {spread.n}"])
    return [*_aligned(rows), "brackets: 95 % intervals over n seeds"]


def _shares(line: Mapping[str, Any]) -> list[str]:
    values = [(line["server"] or {}).get("value"), line["mean"], (line["worst"] or {}).get("value")]
    return ["-" if v is None else f"{v:.1%}" for v in values]


def _aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    """Return rows of cells as lines with aligned columns, two spaces apart."""
    widths = [0] * max(map(len, rows))
    for row in rows:
        for i, cell in enumerate(row):
            widths[i] = max(widths[i], len(cell))
    lines = []
    for row in rows:
        padded = [cell.ljust(width) for cell, width in zip(row, widths, strict=False)]
        lines.append("  ".join(padded).rstrip())
    return lines


def verdicts(result: Result, only: Collection[str] | None = None) -> Iterator[str]:
    """Yield a line for each cell that was asked for, then one for each view of which a part was not tested.

    A cell's line says who, with which attack, the report's level and the deciding figure, or why there is no answer.

    Args:
        result: the result. The verdicts count all tests of the run, so a single cell has none.
        only: the cells to show, by id, without the views; default: all.
    """
    from fdaudit.reports.judgement.judgement import findings_of, standings_of
    from fdaudit.reports.judgement.verdict import LEVELS
    from fdaudit.reports.text import label, measure

    findings = findings_of(result)
    for finding in findings:
        cell, figure = finding.cell, finding.worst_key or finding.key
        if finding.level == "not-requested" or (only is not None and cell.id not in only):
            continue
        grounds = ""
        if finding.measured and figure is not None and figure.value is not None:
            victim = "all victims"
            if finding.worst is not None and finding.worst_key:
                victim = finding.worst.target
            reason = next(iter(finding.decided_by.values()), "")
            grounds = f", {reason or f'{label(figure.name)} {measure(figure, figure.value)} ({victim})'}"
        if finding.level in _UNANSWERED and finding.because:
            grounds += f": {finding.because.rstrip('.')}"
        yield f"{cell.adversary} / {cell.attack}: {LEVELS[finding.level].lower()}{grounds}"
    if only is not None:
        return
    for standing in standings_of(result, findings):
        if standing.level == "not-tested":
            yield f"{standing.adversary}, {standing.goal}: {LEVELS['not-tested'].lower()}. {standing.untested}"
