"""Make the judgement of a result, once, and read it back as the findings and standings that pages print.

Guarantees:
  * nothing that prints a result judges it: levels, severities and remedies are read from `Result.judgement`;
  * a result of an earlier version, without a judgement or with one by other rules, is judged when it is read;
  * a result whose judgement contradicts its own cells is refused.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from importlib import metadata
from typing import Any

from fdaudit.errors import UsageError
from fdaudit.result import JudgedCell, JudgedView, Judgement, Level, Result, read

from ..goals import RULES
from ..goals.rule import by_name
from ..text import clip
from .inheritance import LEAKS, Standing, standings
from .remedies import ENCRYPT, remedy
from .severity import severity
from .tried import effects_on
from .verdict import Finding, judge_all, strongest

__all__ = [
    "findings_of",
    "judged",
    "judgement_in",
    "judgement_of",
    "read_judged",
    "standings_of",
]

_ANEW = (
    "Believe none of it. Its owner can make it anew: `fdaudit run --resume --out RUN`, or of a recording "
    "`fdaudit attack RUN --all`."
)
_SAME = tuple(name for name in JudgedCell.model_fields if name not in ("cell", "worst"))
"""What a finding and the judgement of its cell have under one name."""


def judged(result: Result) -> Result:
    """Return a result with its judgement, which is made if the result has none."""
    if result.judgement is not None:
        return result
    return result.model_copy(update={"judgement": judgement_in(result)})


def read_judged(value: Mapping[str, Any]) -> Result:
    """Return the checked form of a parsed `result.json`, with its judgement.

    A judgement by this version's rules must be the one that they give. One of another version is made again.

    Raises:
        UsageError: a member is missing or mistyped, or the judgement contradicts the cells; `field` gives its place.
    """
    result = read(value)
    stated, due = result.judgement, judgement_of(result, judge_all(result))
    if stated is not None and stated.version == due.version and stated != due:
        place, value_there, value_due = next(_differences(stated.plain(), due.plain(), "result.judgement"))
        problem = f"contradicts the cells of this result, which give {clip(repr(value_due), 200)}"
        raise UsageError(place, value_there, problem, _ANEW)
    return result.model_copy(update={"judgement": due})


def judgement_of(result: Result, findings: Sequence[Finding]) -> Judgement:
    """Return the judgement that follows from the findings of a result's cells.

    Its level is the gravest; without a leak, "not tested" if a part of some view was not.
    """
    all_standings = standings(result, findings)
    cells = []
    for finding in findings:
        own = {name: getattr(finding, name) for name in _SAME}
        own["decided_by"] = dict(finding.decided_by)
        if finding.worst is not None:
            own["worst"] = finding.worst.target
        cells.append(JudgedCell(cell=finding.cell.id, **own))
    level: Level = "inconclusive"
    top = strongest(findings)
    if top is not None and not top.untried and top.level != "failed":
        level = top.level
        if level == "none-seen" and any(s.level == "not-tested" for s in all_standings):
            level = "not-tested"
    return Judgement(
        version=_version(),
        level=level,
        cells=tuple(cells),
        views=tuple(_view(result, standing, all_standings) for standing in all_standings),
    )


def findings_of(result: Result) -> tuple[Finding, ...]:
    """Return the finding of each cell, in the result's order, as its judgement has it."""
    findings = []
    pairs = zip(result.cells, judgement_in(result).cells, strict=True)
    for number, (cell, judged_cell) in enumerate(pairs, start=1):
        own = {name: getattr(judged_cell, name) for name in _SAME}
        rule = RULES.get(cell.goal)
        if rule is not None:
            own["key"] = by_name(cell.figures, rule.figure)
        for target in cell.targets:
            if target.target == judged_cell.worst:
                own["worst"] = target
                own["worst_key"] = by_name(target.figures, rule.figure) if rule else None
                break
        findings.append(Finding(number=number, cell=cell, **own))
    return tuple(findings)


def standings_of(result: Result, findings: Sequence[Finding]) -> tuple[Standing, ...]:
    """Return the standing of each adversary for each goal, as the judgement has it.

    Args:
        result: the result.
        findings: those of `findings_of`.
    """
    by_cell = {finding.cell.id: finding for finding in reversed(findings)}
    all_standings = []
    for view in judgement_in(result).views:
        standing = Standing(
            adversary=view.adversary,
            goal=view.goal,
            level=view.level,
            finding=by_cell.get(view.cell),
            source=view.source,
            untested=view.untested,
            alone=view.alone,
            severity=view.severity,
            remedy=view.remedy,
        )
        all_standings.append(standing)
    return tuple(all_standings)


@cache
def _version() -> str:
    return metadata.version("fdaudit")


def judgement_in(result: Result) -> Judgement:
    """Return the judgement of a result, which is made if the result has none."""
    if result.judgement is not None:
        return result.judgement
    return judgement_of(result, judge_all(result))


def _view(result: Result, standing: Standing, all_standings: Sequence[Standing]) -> JudgedView:
    view = JudgedView(
        adversary=standing.adversary,
        goal=standing.goal,
        level=standing.level,
        source=standing.source,
        cell="" if standing.finding is None else standing.finding.cell.id,
        alone=standing.alone,
        untested=standing.untested,
    )
    if standing.level not in LEAKS:
        return view
    evidence = standing
    for other in all_standings:
        if (other.adversary, other.goal) == (standing.alone, standing.goal):
            evidence = other
    # An inherited finding has its own remedy, unless the heir only listens in.
    what = ENCRYPT
    if evidence.adversary != "eavesdropper" and evidence.finding is not None:
        what = remedy(result, evidence.finding)
    # Everybody has what the world has: its finding is the evidence, and what it leaves certain is certain to all.
    finding = evidence.finding if evidence.adversary == "world" else standing.finding
    grade = severity(
        standing.goal,
        standing.level,
        standing.adversary,
        result.run.release,
        of_classes=finding is not None and finding.of_classes,
        certain=finding is not None and finding.certain,
    )
    measured = bool(effects_on(result, what, [standing.adversary], [standing.goal]))
    return view.model_copy(update={"severity": grade, "remedy": what, "effect_measured": measured})


def _differences(stated: Any, due: Any, place: str) -> Iterator[tuple[str, Any, Any]]:
    """Yield each place in which two plain objects differ, with the value of each there."""
    if isinstance(stated, dict) and isinstance(due, dict):
        for name in dict.fromkeys((*due, *stated)):
            yield from _differences(stated.get(name), due.get(name), f"{place}.{name}")
    elif isinstance(stated, list) and isinstance(due, list) and len(stated) == len(due):
        for number, (one, other) in enumerate(zip(stated, due, strict=True)):
            yield from _differences(one, other, f"{place}.{number}")
    elif stated != due:
        yield place, stated, due
