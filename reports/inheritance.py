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

from .goals import RULES
from .text import clip, joined, plural
from .verdict import SETTLED, Finding, strongest

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
    adversaries = tuple(dict.fromkeys(f.cell.adversary for f in findings))
    spoken = dict.fromkeys(f.cell.goal for f in findings)
    goals = [*(g for g in RULES if g in spoken), *(g for g in spoken if g not in RULES)]
    own: dict[tuple[str, str], Finding | None] = {}
    for a in adversaries:
        for g in goals:
            own[a, g] = strongest([f for f in findings if (f.cell.adversary, f.cell.goal) == (a, g)])
    tried = {f.cell.adversary for f in findings if not f.untried}
    unread = gaps(result, findings)
    all_standings = []
    for a in adversaries:
        smaller = _contained(a, adversaries, result)
        for g in goals:
            of_parts = [own[b, g] for b in smaller]
            others = [finding for finding in of_parts if finding is not None]
            standing = _standing(a, g, own[a, g], others)
            standing = _in_part(result, standing, tried, unread[a])
            all_standings.append(_in_time(result, standing, findings))
    leaks = [s for s in all_standings if s.level in LEAKS]
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
    adversaries = tuple(dict.fromkeys(f.cell.adversary for f in findings))
    readers = {kind for cell in result.cells for kind in (*cell.needs, *cell.reads)}
    settled: dict[str, set[str]] = {a: set() for a in adversaries}
    for f in findings:
        if f.level in SETTLED:
            settled[f.cell.adversary] |= {*f.cell.needs, *f.cell.reads}
    by_adversary = {}
    for adversary in adversaries:
        smaller = _contained(adversary, adversaries, result)
        kinds = settled[adversary].union(*(settled[a] for a in smaller))
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
    rows = [row for row in _received(result, adversary) if row.private and not row.derived]
    misfits = {row.kind: row.unread for row in rows if row.unread}
    for kind in dict.fromkeys(row.kind for row in rows):
        name = clip(kind, 60)
        if kind in misfits:
            yield UnreadKind(kind=name, why=f"no attack reads it ({clip(misfits[kind], 300)})")
        elif readers and kind not in readers:
            yield UnreadKind(kind=name, why="no attack reads it")
        elif readers and kind not in read:
            yield UnreadKind(kind=name, why="no attack that reads it gave an answer")


def _received(result: Result, adversary: str) -> list[Exposure]:
    """Return the rows of messages that reached an adversary: its own rows, or those of a coalition's members."""
    rows = [row for row in result.exposure if row.direction != "sent"]
    members = adversary.split("+")
    own = [row for row in rows if row.party == adversary]
    return own or [row for row in rows if row.party in members]


def _in_part(
    result: Result, standing: Standing, tried: Collection[str], left: Sequence[UnreadKind]
) -> Standing:
    """Return a standing that claims no absence of leaks where only a part of the view was tested, or nothing of it."""
    if standing.level == "not-applicable" and standing.adversary not in tried:
        kinds = [clip(kind, 60) for kind, _ in private_kinds(result, standing.adversary)]
        if not kinds:
            return standing
        why = f"Receives private {joined(kinds)}, and no attack here fits."
        return replace(standing, level="not-tested", untested=why)
    if standing.level != "none-seen" or not left:
        return standing
    why = f"Tested only on a part of its view. {'; '.join(gap.clause for gap in left)}."
    return replace(standing, level="not-tested", untested=why)


def _in_time(result: Result, standing: Standing, findings: Sequence[Finding]) -> Standing:
    """Return a standing that claims no absence of leaks where attacks with its goal have not run."""
    of_standing = (standing.adversary, standing.goal)
    left_out = [
        clip(f.cell.attack, 60)
        for f in findings
        if f.cell.status == "not-tested" and (f.cell.adversary, f.cell.goal) == of_standing
    ]
    provisional = result.unfinished is not None
    unsettled = ("none-seen", "not-tested", "inconclusive") if provisional else ("none-seen", "not-tested")
    if not left_out or standing.level not in unsettled:
        return standing
    why = f"The time budget left out {joined(left_out)}."
    if provisional:
        why = f"Not run yet: {plural(len(left_out), 'attack')}."
    return replace(standing, level="not-tested", untested=" ".join(filter(None, (standing.untested, why))))


def _contained(adversary: str, adversaries: Sequence[str], result: Result) -> list[str]:
    """Return the adversaries whose whole view this one has: those in the result, and every part of its coalition.

    What is released to the world reaches everybody.
    """
    stated = {row.adversary: row.contains for row in result.views}
    contained = {adversary}
    if result.run.release != "internal" and "world" in adversaries:
        contained.add("world")
    queue = sorted(contained)
    while queue:
        at = queue.pop()
        members = set(at.split("+"))
        parts = [a for a in adversaries if set(a.split("+")) <= members]
        more = {*stated.get(at, ()), *parts} - contained
        contained |= more
        queue += sorted(more)
    return [a for a in adversaries if a in contained and a != adversary]


def _standing(adversary: str, goal: str, own: Finding | None, others: Sequence[Finding]) -> Standing:
    """Return an adversary's own gravest finding, or a graver leak of an adversary whose view it contains."""
    leaks = [f for f in others if f.level in _INHERITED]
    chosen = strongest(leaks if own is None else [own, *leaks])
    if own is not None and chosen is not None and own.level == chosen.level:
        chosen = own
    if chosen is None or chosen.untried:
        smaller = strongest([f for f in others if f.level in ("none-seen", "inconclusive")])
        if smaller is not None:
            return Standing(
                adversary=adversary,
                goal=goal,
                level="inconclusive",
                finding=smaller,
                source=smaller.cell.adversary,
            )
    if chosen is None:
        return Standing(adversary=adversary, goal=goal, level="not-requested", finding=None, source=adversary)
    return Standing(
        adversary=adversary,
        goal=goal,
        level=chosen.level,
        finding=chosen,
        source=chosen.cell.adversary,
    )


def _part_with_as_much(standing: Standing, held: Sequence[Standing]) -> str:
    """Return the part of a coalition that can do most without the others, if it can do as much; else an empty text.

    As much is a leak as grave, shown alone for the same victims.

    An eavesdropper's part is what everybody gets: who encrypts the transport does not take the released model away.

    Args:
        standing: a leak.
        held: all standings with a leak.
    """
    members = set(standing.adversary.split("+"))
    own = [s for s in held if s.goal == standing.goal and s.finding is not None]
    parts = [s for s in own if set(s.adversary.split("+")) < members]
    if standing.adversary == "eavesdropper":
        beyond_doubt = standing.finding is not None and standing.finding.certain
        parts = [s for s in own if s.adversary == "world"]
        parts = [s for s in parts if s.finding is not None and s.finding.certain >= beyond_doubt]
    alone = set() if standing.finding is None else set(standing.finding.affected)
    parts = [s for s in parts if s.finding is not None and alone <= set(s.finding.affected)]
    as_much = [s for s in parts if LEAKS.index(s.level) <= LEAKS.index(standing.level)]
    most = strongest([s.finding for s in as_much if s.finding is not None])
    return next((s.adversary for s in as_much if s.finding is most), "")
