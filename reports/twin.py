"""The honest twin in words: what a deviation gained and cost, and whether receivers could have noticed.

Guarantees:
  * a gain, or a loss of utility, is claimed only where intervals part;
  * a rate of detection never stands without its rate of false alarms, and both with their counts;
  * a public page has utility alone, in whole per cents.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from fdaudit.result import Gain, GainVerdict, Noticed, Result, Twin
from fdaudit.types import Figure

from .judgement.verdict import EVERYONE, LEVELS
from .text import amount, clip, joined, label, party, plural, sentence, with_interval

__all__ = ["GAINS", "HOW_TO_MAKE", "TwinRow", "TwinSummary", "alarm_words", "gain_words", "twin_summary"]

HOW_TO_MAKE = (
    "What the deviation gains was not measured: `fdaudit twin RUN` runs the same records without it."
)
"""Said of a deviating run without a twin."""

GAINS: Mapping[GainVerdict, str] = MappingProxyType(
    {
        "gain": "gain",
        "only-active": "only with the deviation",
        "none": "no gain shown",
        "less": "less than without it",
        "no-figure": "nothing to compare",
    }
)
"""The verdicts on a gain, in words."""

_GAINED = ("gain", "only-active")
_SHOWN, _NAMED = 3, 2
"""Rows on the front page; most gains that its sentence names."""


@dataclass(frozen=True, kw_only=True)
class TwinRow:
    """One line of the table: a goal of an adversary, in the twin and under the deviation."""

    who: str
    goal: str
    victim: str
    honest: str
    active: str
    verdict: str


@dataclass(frozen=True, kw_only=True)
class TwinSummary:
    """The comparison with the honest twin.

    Attributes:
        headline: gain, cost and detection in a few sentences.
        rows: a line for each adversary, goal and victim; all victims together come first.
        front: the lines of the front page, those with a gain first.
        alarms: what each detector noticed, in a sentence each.
        command: the command that makes the twin again.
    """

    headline: str
    rows: tuple[TwinRow, ...]
    front: tuple[TwinRow, ...]
    alarms: tuple[str, ...]
    command: str


def twin_summary(result: Result) -> TwinSummary | None:
    """Return the comparison of a run with its honest twin; None without a twin."""
    twin = result.twin
    if twin is None:
        return None
    sentences = [_cost(twin, public=not result.auditor_only)]
    if result.auditor_only:
        sentences = [_gained(twin.gains), *sentences, _detected(twin.noticed)]
    # For each adversary and goal all victims together, or a victim with a gain.
    by_pair: dict[tuple[str, str], Gain] = {}
    for gain in twin.gains:
        earlier = by_pair.setdefault((gain.adversary, gain.goal), gain)
        if gain.verdict in _GAINED and earlier.verdict not in _GAINED:
            by_pair[gain.adversary, gain.goal] = gain
    shown = sorted(by_pair.values(), key=lambda gain: list(GAINS).index(gain.verdict))[:_SHOWN]
    return TwinSummary(
        headline=" ".join(sentences),
        rows=tuple(map(_row, twin.gains)),
        front=tuple(map(_row, shown)),
        alarms=tuple(map(alarm_words, twin.noticed)),
        command=twin.command,
    )


def gain_words(gain: Gain) -> str:
    """Return a goal's figures without and with the deviation, in a line."""
    row = _row(gain)
    return f"{row.who}, {row.goal}, {row.victim}: {row.verdict} ({row.honest} without, {row.active} with)"


def alarm_words(noticed: Noticed) -> str:
    """Return what one detector noticed, with its false alarms, in a sentence."""
    head = f"`{clip(noticed.detector, 40)}` on {clip(noticed.kind, 60)} of {party(noticed.party)}"
    if noticed.threshold is None:
        return f"{head}: no rate, since {clip(noticed.reason, 120)}."
    return (
        f"{head} notices {_rates(noticed)}; its threshold was learnt on {noticed.learnt_on} honest messages."
    )


def _rates(noticed: Noticed) -> str:
    return (
        f"{noticed.caught} of {noticed.of_crafted} crafted messages, with false alarms on {noticed.alarms} of "
        f"{noticed.of_honest} honest ones"
    )


def _gained(gains: Sequence[Gain]) -> str:
    """Return for which goals of which adversaries a gain is shown, in a sentence."""
    pairs, gained = set[tuple[str, str]](), dict[str, None]()
    for gain in gains:
        pairs.add((gain.goal, gain.adversary))
        if gain.verdict in _GAINED:
            gained[f"{gain.goal.replace('-', ' ')} by {party(gain.adversary)}"] = None
    if not pairs:
        return "Neither this run nor its honest twin has an answer to compare."
    whom = "no gain is shown"
    if len(gained) > _NAMED:
        whom = f"a gain is shown for {len(gained)} of {len(pairs)} pairs of adversary and goal"
    elif gained:
        whom = f"a gain is shown for {joined(gained)}"
    return f"Beside the honest twin, the same records without the deviation, {whom}."


def _cost(twin: Twin, *, public: bool) -> str:
    """Return utility without and with the deviation."""
    honest, active = twin.honest_utility, twin.utility
    if honest is None or active is None or honest.value is None or active.value is None:
        return "What it costs in utility was not measured."
    name = label(active.name)
    if public:
        change = f"{amount(honest.value, 'fraction')} to {amount(active.value, 'fraction')}"
        return f"{name} on the same records without the deviation, and with it: {change}."
    verdict = "no cost shown"
    if honest.low is None or active.high is None:
        verdict = "one run each, without an interval"
    elif active.high < honest.low:
        verdict = "a cost"
    return f"{name} goes from {with_interval(honest)} to {with_interval(active)}: {verdict}."


def _detected(noticed: Sequence[Noticed]) -> str:
    """Return whether receivers could have noticed, by the detector that tells most."""
    rated = [one for one in noticed if one.threshold is not None]
    if not rated:
        why = "no detector is named for it"
        if noticed:
            why = clip(noticed[0].reason, 120)
        return f"Whether receivers could have noticed is not known: {why}."
    # The one that notices the largest share of crafted messages, less its share of honest ones.
    best = max(rated, key=lambda one: one.caught / one.of_crafted - one.alarms / one.of_honest)
    if not best.caught:
        return f"Of {plural(len(rated), 'detector')} none notices a crafted message."
    return f"Receivers could have noticed: `{clip(best.detector, 40)}` notices {_rates(best)}."


def _row(gain: Gain) -> TwinRow:
    return TwinRow(
        who=sentence(party(gain.adversary)),
        goal=gain.goal.replace("-", " "),
        victim=clip(gain.victim, 60) or EVERYONE,
        honest=_side(gain.honest_figure, gain.honest_attack, LEVELS[gain.honest_level]),
        active=_side(gain.figure, gain.attack, LEVELS[gain.level]),
        verdict=GAINS[gain.verdict],
    )


def _side(figure: Figure | None, attack: str, level: str) -> str:
    """Return one run's figure with its interval and attack, or its level where there is no figure."""
    if figure is None or figure.value is None:
        return level.lower()
    name = label(figure.name)
    if figure.name == "auc":
        name = "AUC"
    return f"{name} {with_interval(figure)} by {clip(attack, 60)}"
