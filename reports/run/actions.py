"""What to do after a run: actions with their reasons, the most useful first."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from fdaudit.result import Result, in_words

from ..judgement.remedies import ENCRYPT
from ..judgement.verdict import Finding
from ..text import clip, joined, party, plural, sentence
from .findings import FrontFinding

__all__ = ["Action", "actions", "lacks_auxiliary", "open_cells"]


@dataclass(frozen=True, kw_only=True)
class Action:
    """One thing to do and why."""

    do: str
    why: str


def open_cells(findings: Sequence[Finding]) -> list[Finding]:
    """Return the findings of cells that failed, or whose controls did."""
    return [f for f in findings if f.level in ("inconclusive", "failed")]


def lacks_auxiliary(result: Result) -> bool:
    """Return whether a record was imported without auxiliary records, from which the controls of attacks are made."""
    recording = result.run.recording
    if recording is None:
        return False
    return any(rung.bring == "auxiliary records" and not rung.there for rung in recording.ladder)


def actions(
    result: Result, findings: Sequence[Finding], front_findings: Sequence[FrontFinding]
) -> Iterator[Action]:
    """Yield what to do: gates and false claims first, then the remedies of the findings, then what is open."""
    if result.failed_gates:
        names = joined(clip(gate.name, 80) for gate in result.failed_gates)
        yield Action(do="Hold the release: a gate of the spec failed.", why=f"Not met: {names}.")
    if result.contradicted:
        yield Action(
            do="Claim no ε: find out why attacks show more than the ledger allows.",
            why=f"Contradicted for {joined(party(check.adversary) for check in result.contradicted)}.",
        )
    remedies = [finding.remedy for finding in sorted(front_findings, key=_most_useful_first)]
    for do, why in dict.fromkeys((remedy.do, remedy.why) for remedy in remedies):
        yield Action(do=do, why=why)
    yield from _settling(result, findings)
    if not front_findings:
        yield Action(
            do="Claim no more than was measured: these attacks, this profile, this data.",
            why="Not finding a leak does not show that there is none. Only a mechanism with an ε bounds one.",
        )


def _settling(result: Result, findings: Sequence[Finding]) -> Iterator[Action]:
    """Yield what would settle the tests that are open, were left out or are still to come."""
    possible = sum(f.level == "possible" for f in findings)
    if possible:
        yield Action(
            do=f"Repeat the {plural(possible, 'test')} of a possible leak on a run with more "
            "candidates (`splits.candidates`).",
            why="Significant alone, not among all tests of this run: chance and a leak are both open.",
        )
    unsettled = open_cells(findings)
    if lacks_auxiliary(result) and any(f.level == "inconclusive" for f in unsettled):
        inconclusive = sum(f.level == "inconclusive" for f in unsettled)
        yield Action(
            do="Import the record again, and bring auxiliary records: ones like the clients', which nobody trained on.",
            why=f"Without them no attack has controls. So {plural(inconclusive, 'test')} stayed inconclusive.",
        )
        unsettled = [f for f in unsettled if f.level == "failed"]
    if unsettled:
        yield Action(do=_rerun(result, unsettled), why="Until then treat each as a possible leak.")
    if result.unfinished is not None:
        yield Action(
            do="Wait for the final report. If the command was interrupted, call it again (`run` and `quickstart` with "
            "`--resume`): it continues.",
            why=f"Provisional: {result.unfinished.words}.",
        )
    elif result.run.recording is not None and all(f.untried for f in findings):
        for rung in result.run.recording.ladder:
            if not rung.there:
                yield Action(
                    do=f"Import the record again, and bring {clip(rung.bring, 80)}.",
                    why="No attack could be tried. The table under Coverage says what else to bring.",
                )
                break
    if result.budget is not None and result.budget.left_out:
        needed = list[float]()
        for one in result.budget.left_out:
            if one.needed is not None:
                needed.append(one.needed)
        longer = "a longer `--budget`"
        if needed:
            longer = f"a `--budget` of {in_words(math.ceil(min(needed) / 60) * 60)} or more"
        yield Action(
            do=f"Run the attacks again with {longer}.",
            why=f"The time budget left out {joined(clip(one.attack, 60) for one in result.budget.left_out)}.",
        )


def _most_useful_first(finding: FrontFinding) -> tuple[bool, bool, int]:
    """Return the order of remedies; encryption comes late, since it changes nothing for those who take part."""
    rank = ("worked", "untried", "stays", "useless").index(finding.outcome)
    return finding.outcome == "useless", finding.remedy == ENCRYPT, rank


def _rerun(result: Result, unsettled: Sequence[Finding]) -> str:
    """Return how to settle open tests: mend what failed, and spend more on the others."""
    failed = sum(f.level == "failed" for f in unsettled)
    parts = []
    if failed:
        parts.append(f"mend the {plural(failed, 'failed test')} (their errors are in the appendix)")
    if inconclusive := len(unsettled) - failed:
        wider = {"quick": "with `profile: standard`", "standard": "with `profile: full`"}
        more = wider.get(result.run.profile, "with more records, or on another task")
        parts.append(f"rerun the {plural(inconclusive, 'inconclusive test')} {more}")
    return f"{sentence(joined(parts))}."
