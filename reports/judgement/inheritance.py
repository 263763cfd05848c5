"""Judge each adversary by its own attacks and by those of every adversary whose view it contains.

Guarantees:
  * no adversary reads weaker than one whose view it contains. Its own cells may be inconclusive, failed or absent;
  * only leaks are inherited. An attack on a smaller view that found nothing does not apply to a larger view: if no
    attack applies to the larger view itself, its level is inconclusive, never "not applicable";
  * "no leak measured" needs a view that attacks have read: for every kind of private message in it, an attack that
    needs or reads this kind gave an answer there or on a smaller view. Else the view is "not tested", and it is named;
  * nor is no leak claimed for a goal of which attacks on the view are still to come, or a budget left them out.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from fdaudit.result import Exposure, Level, Remedy, Result, Severity

from ..goals import RULES
from ..text import clip, joined, plural
from .verdict import SETTLED, Finding, by_view, strongest

__all__ = ["LEAKS", "Standing", "UnreadKind", "gaps", "private_kinds", "standings"]

LEAKS: Sequence[Level] = ("leak", "partial")
"""Levels of leaks that were shown."""
_INHERITED: Sequence[Level] = (*LEAKS, "possible")


@dataclass(frozen=True, kw_only=True)
class UnreadKind:
    """A kind of private messages in an adversary's view that no attack has read, and why in a clause."""

    kind: str
    why: str

    @property
    def clause(self) -> str:
        """Return the gap in a clause."""
        return f"{self.kind}: {self.why}"


@dataclass(frozen=True, kw_only=True)
class Standing:
    """The level of one adversary for one goal.

    Attributes:
        adversary: its name.
        goal: of the attacks.
        level: the level found, by itself or by an adversary whose view it contains.
        finding: the gravest finding behind it; None if nothing was audited.
        source: the adversary with that finding.
        untested: what was not tested of its view, in sentences, if the level rests on it.
        alone: the part of a coalition that has this leak without the others; empty if none has.
        severity: how bad a leak is; None before it is judged, and without a leak.
        remedy: what to do about a leak; None likewise.
    """

    adversary: str
    goal: str
    level: Level
    finding: Finding | None
    source: str
    untested: str = ""
    alone: str = ""
    severity: Severity | None = None
    remedy: Remedy | None = None

    @property
    def inherited(self) -> str:
        """Return a sentence that names the source of an inherited finding, or what was not tested; empty if neither."""
        if self.untested:
            return self.untested
        if self.finding is None or self.source == self.adversary:
            return ""
        if self.level not in _INHERITED:
            return f"Tested only on what {self.source} sees, which is a part of its view."
        why = f"it sees everything that {self.source} sees"
        if self.source == "world":
            why = "what is released, everybody sees"
        note = f"Inherits the finding of {self.source}: {why}."
        affected, members = self.finding.affected, self.adversary.split("+")
        if affected and all(k in members for k in affected):
            note += f" The finding is about {joined(affected)}, a member of this coalition."
        return note


def standings(result: Result, findings: Sequence[Finding]) -> tuple[Standing, ...]:
    """Return a standing for every adversary and goal of the findings, in their order; goals in that of the rules."""
    of_findings, tested, tried = dict[str, None](), dict[str, None](), set[str]()
    for finding in findings:
        of_findings[finding.cell.adversary] = None
        tested[finding.cell.goal] = None
        if not finding.untried:
            tried.add(finding.cell.adversary)
    adversaries = tuple(of_findings)
    goals = list[str]()
    for goal in dict.fromkeys((*RULES, *tested)):
        if goal in tested:
            goals.append(goal)
    own_findings = by_view(findings)
    own = {view: strongest(same) for view, same in own_findings.items()}
    unread = gaps(result, findings)
    all_standings = []
    for adversary in adversaries:
        smaller = _contained(adversary, adversaries, result)
        for goal in goals:
            of_parts = list(filter(None, (own.get((part, goal)) for part in smaller)))
            standing = _standing(adversary, goal, own.get((adversary, goal)), of_parts)
            standing = _in_part(result, standing, tried, unread[adversary])
            all_standings.append(_in_time(result, standing, own_findings.get((adversary, goal), ())))
    leaks = [standing for standing in all_standings if standing.level in LEAKS]
    for i, standing in enumerate(all_standings):
        if standing.level in LEAKS:
            all_standings[i] = replace(standing, alone=_part_with_as_much(standing, leaks))
    return tuple(all_standings)


def private_kinds(result: Result, adversary: str) -> tuple[tuple[str, bool], ...]:
    """Return the kinds that carry private data to an adversary, and whether a defence is on each."""
    defended: dict[str, bool] = {}
    for row in _received(result, adversary):
        if row.private:
            defended[row.kind] = defended.get(row.kind, True) and bool(row.defenses)
    return tuple(defended.items())


def gaps(result: Result, findings: Sequence[Finding]) -> Mapping[str, tuple[UnreadKind, ...]]:
    """Return by adversary of the findings what no attack has read of the private messages that reach it.

    A result of an earlier version whose cells do not state what they need has only gaps of messages without the form of
    their kind.
    """
    readers, settled = set[str](), dict[str, set[str]]()
    for finding in findings:
        kinds = {*finding.cell.needs, *finding.cell.reads}
        readers |= kinds
        own = settled.setdefault(finding.cell.adversary, set())
        if finding.level in SETTLED:
            own |= kinds
    adversaries = tuple(settled)
    by_adversary = {}
    for adversary in adversaries:
        kinds = set[str]()
        for part in (adversary, *_contained(adversary, adversaries, result)):
            kinds |= settled[part]
        by_adversary[adversary] = tuple(_gaps(result, adversary, kinds, readers))
    return by_adversary


def _gaps(
    result: Result, adversary: str, read: Collection[str], readers: Collection[str]
) -> Iterator[UnreadKind]:
    """Yield the gaps of one adversary, a kind each; messages derived from others of its view leave none.

    Args:
        result: the result.
        adversary: the adversary.
        read: the kinds that attacks with an answer have read in its view.
        readers: the kinds that any attack of the result could read; none if its version does not say.
    """
    kinds, misfits = dict[str, None](), dict[str, str]()
    for row in _received(result, adversary):
        if row.derived or not row.private:
            continue
        kinds[row.kind] = None
        if row.unread:
            misfits[row.kind] = row.unread
    for kind in kinds:
        name = clip(kind, 60)
        if kind in misfits:
            yield UnreadKind(kind=name, why=f"no attack reads it ({clip(misfits[kind], 300)})")
        elif readers and kind not in readers:
            yield UnreadKind(kind=name, why="no attack reads it")
        elif readers and kind not in read:
            yield UnreadKind(kind=name, why="no attack that reads it gave an answer")


def _received(result: Result, adversary: str) -> list[Exposure]:
    """Return the rows of messages that reached an adversary: its own rows, or those of a coalition's members."""
    members = adversary.split("+")
    own, of_members = list[Exposure](), list[Exposure]()
    for row in result.exposure:
        if row.direction == "sent":
            continue
        if row.party == adversary:
            own.append(row)
        if row.party in members:
            of_members.append(row)
    return own or of_members


def _in_part(
    result: Result, standing: Standing, tried: Collection[str], unread: Sequence[UnreadKind]
) -> Standing:
    """Return a standing that claims no absence of leaks where only a part of the view was tested, or nothing of it."""
    if standing.level == "not-applicable" and standing.adversary not in tried:
        kinds = [clip(kind, 60) for kind, _ in private_kinds(result, standing.adversary)]
        if not kinds:
            return standing
        why = f"Receives private {joined(kinds)}, and no attack here fits."
        return replace(standing, level="not-tested", untested=why)
    if standing.level != "none-seen" or not unread:
        return standing
    clauses = "; ".join(gap.clause for gap in unread)
    return replace(standing, level="not-tested", untested=f"Tested only on a part of its view. {clauses}.")


def _in_time(result: Result, standing: Standing, own: Sequence[Finding]) -> Standing:
    """Return a standing that claims no absence of leaks where attacks of its own have not run."""
    left_out = list[str]()
    for finding in own:
        if finding.cell.status == "not-tested":
            left_out.append(clip(finding.cell.attack, 60))
    unsettled = ["none-seen", "not-tested"]
    why = f"The time budget left out {joined(left_out)}."
    if result.unfinished is not None:
        unsettled.append("inconclusive")
        why = f"Not run yet: {plural(len(left_out), 'attack')}."
    if not left_out or standing.level not in unsettled:
        return standing
    return replace(standing, level="not-tested", untested=f"{standing.untested} {why}".lstrip())


def _contained(adversary: str, adversaries: Sequence[str], result: Result) -> list[str]:
    """Return the adversaries whose whole view this one has: those in the result, and every part of its coalition.

    What is released to the world reaches everyone.
    """
    stated = {row.adversary: row.contains for row in result.views}
    contained = {adversary}
    if result.run.release != "internal" and "world" in adversaries:
        contained.add("world")
    queue = sorted(contained)
    while queue:
        at = queue.pop()
        members = set(at.split("+"))
        more = set(stated.get(at, ()))
        for other in adversaries:
            if members.issuperset(other.split("+")):
                more.add(other)
        more -= contained
        contained |= more
        queue += sorted(more)
    contained.remove(adversary)
    return [other for other in adversaries if other in contained]


def _standing(adversary: str, goal: str, own: Finding | None, of_parts: Sequence[Finding]) -> Standing:
    """Return an adversary's own gravest finding, or a graver leak of an adversary whose view it contains."""
    candidates, silent = list[Finding](), list[Finding]()
    for finding in of_parts:
        if finding.level in _INHERITED:
            candidates.append(finding)
        if finding.level in ("none-seen", "inconclusive"):
            silent.append(finding)
    if own is not None:
        candidates.insert(0, own)
    chosen = strongest(candidates)
    if own is not None and chosen is not None and own.level == chosen.level:
        chosen = own
    level: Level = "not-requested" if chosen is None else chosen.level
    if chosen is None or chosen.untried:
        smaller = strongest(silent)
        if smaller is not None:
            chosen, level = smaller, "inconclusive"
    source = adversary if chosen is None else chosen.cell.adversary
    return Standing(adversary=adversary, goal=goal, level=level, finding=chosen, source=source)


def _part_with_as_much(standing: Standing, leaks: Sequence[Standing]) -> str:
    """Return the part of a coalition that can do most without the others, if it can do as much; else an empty text.

    As much is a leak as grave, shown alone for the same victims.

    An eavesdropper's part is what everyone gets: who encrypts the transport does not take the released model away.

    Args:
        standing: a leak.
        leaks: all standings with a leak.
    """
    whole = standing.finding
    if whole is None:
        return ""
    members = set(standing.adversary.split("+"))
    as_much: list[tuple[str, Finding]] = []
    for other in leaks:
        finding = other.finding
        if finding is None or other.goal != standing.goal:
            continue
        is_part = set(other.adversary.split("+")) < members
        if standing.adversary == "eavesdropper":
            is_part = other.adversary == "world" and finding.certain >= whole.certain
        as_grave = LEAKS.index(other.level) <= LEAKS.index(standing.level)
        if is_part and as_grave and set(finding.affected).issuperset(whole.affected):
            as_much.append((other.adversary, finding))
    most = strongest([finding for _, finding in as_much])
    for adversary, finding in as_much:
        if finding is most:
            return adversary
    return ""
