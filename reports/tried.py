"""Remedies that were tried, in words: what each changed for a finding, before and after."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType

from fdaudit.result import Effect, Level, Remedy, Result, TriedRemedy
from fdaudit.types import Figure

from .text import NBSP, amount, label, measure, party, sentence
from .verdict import LEVELS

__all__ = ["TOGETHER", "UNMEASURED", "effect", "effect_words", "effects_on", "utility_words"]

TOGETHER = "together"
"""Name of the remedies that serve alone, tried together."""
UNMEASURED = "Effect not measured."
"""Said of a remedy that was not tried."""

_LEFT: Mapping[Level, int] = MappingProxyType(
    {"leak": 1, "partial": 2, "possible": 3, "none-seen": 4, "not-applicable": 5}
)
"""How much a level leaves to learn, from most to least. A level without an answer shows nothing, and counts 0."""


def effect(result: Result, what: Remedy, adversaries: Sequence[str], goals: Sequence[str]) -> str:
    """Return what trying a remedy changed for a finding, in a sentence.

    Of several, the one is named that leaves least to learn among those that keep utility above clients alone. If a leak
    stays, so is the one that leaves least at any cost.

    Args:
        result: the result.
        what: the remedy.
        adversaries: of the finding.
        goals: of the finding.
    """
    if not result.auditor_only:
        return ""  # a public page names no single figure
    run = effects_on(result, what, adversaries, goals)
    if not run:
        return UNMEASURED
    useful = [pair for pair in run if pair[0].kept]
    others = [pair for pair in run if not pair[0].kept]
    told = []
    if useful:
        best, on = max(useful, key=lambda pair: (_left(pair[1]), pair[0].utility_value))
        told.append(_change(best, on))
        if _left(on) > _LEFT["leak"]:
            others = []
    if others:
        most, on = max(others, key=lambda pair: (_left(pair[1]), pair[0].utility_value))
        alone = amount(most.alone or 0.0, "fraction")
        told.append(f"{_change(most, on)}, not above clients alone ({alone})")
    return f"Tried: {'; '.join(told)}."


def effects_on(
    result: Result, what: Remedy, adversaries: Sequence[str], goals: Sequence[str]
) -> list[tuple[TriedRemedy, Effect]]:
    """Return each trial of a remedy that changed a finding, with the effect that leaves most to learn."""
    tried = [one for one in result.remedies if one.name in (*what.tries, TOGETHER)]
    return [(one, gravest) for one in tried if (gravest := _gravest(one, adversaries, goals)) is not None]


def _change(tried: TriedRemedy, on: Effect) -> str:
    """Return what a remedy changed for a finding, in a clause."""
    changes = [f"{_name(on)} {_value(on.before)} to {_after(on)}"]
    if tried.utility != tried.utility_before:
        changes.append(_utility(tried))
    return f"{_short(tried)}, {', '.join(changes)}{_stated(on)}"


def _short(tried: TriedRemedy) -> str:
    return {"together": "several together"}.get(tried.name, tried.name.replace("-", " "))


def _utility(tried: TriedRemedy) -> str:
    """Return utility before and after a remedy, in a clause."""
    name = "utility" if tried.utility is None else label(tried.utility.name)
    if not name[:2].isupper():
        name = name[:1].lower() + name[1:]
    return f"{name} {_value(tried.utility_before)} to {_value(tried.utility)}"


def _gravest(tried: TriedRemedy, adversaries: Sequence[str], goals: Sequence[str]) -> Effect | None:
    """Return a remedy's effect on a finding where it leaves most to learn; None if it was not run for it."""
    effects = [one for one in tried.effects if one.adversary in adversaries and one.goal in goals]
    return min(effects, key=_left, default=None)


def _left(on: Effect) -> int:
    return next((rank for level, rank in _LEFT.items() if level == on.level), 0)


def effect_words(on: Effect) -> str:
    """Return a deciding figure before and after a remedy, and the ε of the adversary's view, in a clause."""
    return f"{sentence(party(on.adversary))}, {_name(on)}: {_value(on.before)} to {_after(on)}{_stated(on)}"


def _name(on: Effect) -> str:
    if on.before is None:
        return on.goal.replace("-", " ")
    return "AUC" if on.before.name == "auc" else label(on.before.name)


def _after(on: Effect) -> str:
    return "no attack applies" if on.level == "not-applicable" else f"{_value(on.after)} ({_level(on)})"


def _stated(on: Effect) -> str:
    return "" if on.epsilon is None else f", ε{NBSP}={NBSP}{on.epsilon:.3g} per {on.unit}"


def _level(on: Effect) -> str:
    return next((words.lower() for level, words in LEVELS.items() if level == on.level), on.level)


def utility_words(tried: TriedRemedy) -> str:
    """Return utility before and after a remedy, as the start of a sentence."""
    return sentence(_utility(tried))


def _value(figure: Figure | None) -> str:
    return "not measured" if figure is None or figure.value is None else measure(figure, figure.value)
