"""The tables of a comparison to take away: a CSV file with every figure, and two LaTeX tables for a paper."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

from fdaudit.storage.tables import csv_text, latex_table

from ..text import amount, bracketed, clip, duration, joined, kilobytes, label, visible, with_interval
from .comparison import HELD, Comparison, ComparisonRow, GoalOutcome
from .trade import Reach

__all__ = ["comparison_csv", "comparison_latex"]

_ABOUT = ("run", "protocol", "seeds")
_OUTCOME = (
    "goal", "adversary", "attack", "level", "seeds_at_level", "victim",
    "figure", "value", "low", "high", "confidence",
)  # fmt: skip
_COST = (
    "measure", "utility", "utility_low", "utility_high",
    "membership_auc", "membership_auc_low", "membership_auc_high",
    "bytes", "rounds", "seconds", "epsilon", "delta", "epsilon_cause",
)  # fmt: skip


def comparison_csv(comparison: Comparison) -> str:
    """Return one row for each run and goal: its worst adversary with the deciding figure, and what the run costs.

    `epsilon` is the ledger's for this adversary: `inf` where none can be claimed, empty where no ledger has it. A run
    without any attack has one row. Utility, AUC and bytes of several seeds are means with intervals over the seeds.
    """
    body: list[list[Any]] = [[*_ABOUT, *_OUTCOME, *_COST]]
    for row in comparison.rows:
        about = [visible(row.entry.name), visible(row.entry.result.run.protocol), row.seeds]
        entries = {entry.adversary: entry for entry in row.ledger}
        unmeasured = ["", "", ""]
        outcomes: Sequence[GoalOutcome | None] = row.outcomes or (None,)
        for outcome in outcomes:
            entry = None if outcome is None else entries.get(outcome.adversary)
            claim: list[Any] = ["", "", ""]
            if entry is not None:
                epsilon = math.inf if entry.epsilon is None else entry.epsilon
                claim = [epsilon, entry.delta, visible(entry.cause)]
            cost: list[Any] = [
                comparison.measure,
                *(row.learnt or unmeasured),
                *(row.leaked or unmeasured),
                row.size,
                row.entry.result.run.rounds,
                row.entry.seconds,
                *claim,
            ]
            body.append([*about, *_outcome(outcome), *cost])
    return csv_text(body)


def _outcome(outcome: GoalOutcome | None) -> list[Any]:
    """Return the cells of `_OUTCOME`."""
    if outcome is None or outcome.finding is None:
        return [""] * len(_OUTCOME)
    finding = outcome.finding
    attack, victim = finding.cell.attack, ""
    if outcome.level == HELD or not outcome.tried:
        attack = ""  # no attack was tried
    if finding.worst is not None and finding.worst_key is not None:
        victim = finding.worst.target
    texts = map(visible, (outcome.goal, outcome.adversary, attack, outcome.level or ""))
    cells: list[Any] = [*texts, outcome.agreeing, visible(victim)]
    key = finding.worst_key or finding.key
    if key is None or not attack:
        return [*cells, "", "", "", "", ""]
    return [*cells, key.name, key.value, key.low, key.high, key.confidence]


# -- LaTeX ---------------------------------------------------------------------------------------------------------


def comparison_latex(comparison: Comparison) -> str:
    """Return two tables: utility, leakage and cost of each run, and the outcome of each goal."""
    goals = [goal for goal in comparison.goals if goal not in comparison.untried]
    over = ""
    if any(row.seeds > 1 for row in comparison.rows):
        over = "; of runs with several seeds over seeds"
    runs = latex_table(
        ["Run", comparison.measure.capitalize(), "Membership AUC", "Bytes", "Rounds", "Time", "ε"],
        map(_latex_run, comparison.rows),
        f"Utility, largest membership AUC of any audited adversary, traffic and ε by the ledger. "
        f"Brackets: 95 % intervals{over}.",
        "lrrrrrl",
    )
    untried = ""
    if comparison.untried:
        names = joined(goal.replace("-", " ") for goal in comparison.untried)
        untried = f" No attack was tried for {names}."
    head = ["Run", *(goal.replace("-", " ").capitalize() for goal in goals)]
    outcomes = latex_table(
        head,
        [list(_latex_outcomes(row, goals)) for row in comparison.rows],
        f"Gravest outcome of each kind of attack, with its adversary and deciding figure.{untried}",
        "l" * len(head),
    )
    return f"% Needs \\usepackage{{booktabs}}.\n{runs}\n{outcomes}"


def _latex_run(row: ComparisonRow) -> list[str]:
    seconds = row.entry.seconds
    epsilon = "; ".join(f"{e.adversary}: {amount(e.epsilon or 0.0)}" for e in row.bounded)
    if not epsilon:
        epsilon = "none claimed" if row.ledger else "no ledger"
    return [
        clip(row.entry.name, 60),
        _bracketed(row.learnt, "fraction"),
        _bracketed(row.leaked, ""),
        kilobytes(row.size),
        str(row.entry.result.run.rounds),
        "" if seconds is None else duration(seconds),
        epsilon,
    ]


def _bracketed(reach: Reach | None, unit: str) -> str:
    if reach is None:
        return "not measured"
    return bracketed(reach.value, reach.low, reach.high, unit)


def _latex_outcomes(row: ComparisonRow, goals: list[str]) -> Iterator[str]:
    """Yield a run's name and its outcome of each goal."""
    yield clip(row.entry.name, 60)
    outcomes = {o.goal: o for o in row.outcomes}
    for goal in goals:
        outcome = outcomes.get(goal)
        if outcome is None or outcome.finding is None:
            yield "Not audited"
            continue
        text = outcome.words
        if outcome.level == HELD:
            text += f": {joined(outcome.holders)}"
        elif outcome.tried:
            text += f": {outcome.adversary}"
        key = outcome.finding.worst_key or outcome.finding.key
        if outcome.tried and key is not None and outcome.level != HELD:
            text += f", {label(key.name)} {with_interval(key)}"
        yield text
