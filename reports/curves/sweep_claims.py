"""Claims of ε over a sweep: contradictions that survive a correction for the number of runs.

Guarantees:
  * if every claim of a sweep holds, any of them is called contradicted with a probability of at most `LEVEL`. A
    run's p-value holds for all its claims together, and Holm's procedure corrects for the runs;
  * every run with a claim and an attack that gave scores counts as a test, even if it contradicts nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from fdaudit.result import Check

from ..text import amount, clip, joined, party, plural
from .sweep_rows import SweepRow

__all__ = ["LEVEL", "Contradiction", "Contradictions", "contradictions"]

LEVEL = 0.05
"""Probability that any claim of a sweep is called contradicted if all of them hold."""

_NAMED = 4
"""Most contradictions that a sentence names."""


@dataclass(frozen=True, kw_only=True)
class Contradiction:
    """A claim that a run's own check contradicts.

    Attributes:
        row: the run.
        check: its check with the least p-value.
        p: that p-value after Holm's correction over the runs of the sweep.
    """

    row: SweepRow
    check: Check
    p: float

    @property
    def survives(self) -> bool:
        """Return whether it contradicts its claim after the correction."""
        return self.p <= LEVEL


@dataclass(frozen=True, kw_only=True)
class Contradictions:
    """The contradicted claims of a sweep.

    Attributes:
        tested: runs with a claim and scores to test it.
        found: one for each run that contradicts a claim alone, the least p-value first.
    """

    tested: int
    found: tuple[Contradiction, ...]

    def in_words(self) -> Iterator[str]:
        """Yield the conclusions, one sentence each; nothing if no claim was tested."""
        if not self.tested:
            return
        survivors = [c for c in self.found if c.survives]
        lost = len(self.found) - len(survivors)
        runs = plural(self.tested, "tested run")
        over = f"after Holm's correction over {runs}"
        if survivors:
            names = joined(map(_called, survivors[:_NAMED]))
            if len(survivors) > _NAMED:
                names += f", and {len(survivors) - _NAMED} more"
            yield f"Attacks contradict a claimed ε, {over}: {names}."
        if lost:
            yield (
                f"In {plural(lost, 'run')} a claim is contradicted by the run alone, and not {over}: "
                "so many runs show as much by chance."
            )
        if not self.found:
            yield f"No attack contradicts a claimed ε in {runs}."


def contradictions(rows: Sequence[SweepRow]) -> Contradictions:
    """Return the contradicted claims of a sweep's runs, corrected over the runs (Holm 1979)."""
    least: list[tuple[float, Check, SweepRow]] = []
    for row in rows:
        if row.run.result is not None:
            checks = list[tuple[float, Check, SweepRow]]()
            for check in row.run.result.checks:
                if check.p is not None:
                    checks.append((check.p, check, row))
            least += sorted(checks, key=_p_value)[:1]
    ranked = sorted(least, key=_p_value)
    contradicted, corrected = [], 0.0
    for place, (p, check, row) in enumerate(ranked):
        corrected = min(1.0, max(corrected, (len(ranked) - place) * p))
        if p <= LEVEL:
            contradicted.append(Contradiction(row=row, check=check, p=corrected))
    return Contradictions(tested=len(ranked), found=tuple(contradicted))


def _p_value(tested: tuple[float, Check, SweepRow]) -> float:
    return tested[0]


def _called(contradiction: Contradiction) -> str:
    run, check = contradiction.row.run, contradiction.check
    who = clip(run.protocol, 40)
    if run.level != float("inf"):
        who += f" under {clip(run.defence, 40)}"
    claim = f"{amount(check.claimed or 0.0)} for {party(check.adversary)}"
    return f"{who}, seed {run.seed} ({claim}, p = {contradiction.p:.1g})"
