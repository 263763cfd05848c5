"""Words about deviations that fit a recorded system and were not tried on it."""

from __future__ import annotations

from collections.abc import Iterator

from fdaudit.result import Result, StandInFigures, UntriedDeviation
from fdaudit.types import Figure

from .text import clip, joined, label, with_interval

__all__ = ["not_tried", "untried_lines"]


def not_tried(result: Result) -> str:
    """Return which deviations were not tried, and whether their effect was measured; empty if there are none."""
    recording = result.run.recording
    if recording is None or not recording.untried:
        return ""
    roles: dict[str, list[str]] = {}
    for one in recording.untried:
        roles.setdefault(one.role, []).append(clip(one.name, 60))
    who = [f"{joined(names)} of the {clip(name, 40)}" for name, names in roles.items()]
    measured = sum(bool(one.measured) for one in recording.untried)
    effect = f"effect measured on a stand-in for {measured} of {len(recording.untried)}"
    if result.withheld:
        effect = "effects are in the auditor's report"
    elif not measured:
        effect = "effect not measured"
    return f"Not tried: active: {joined(who)} ({effect})."


def untried_lines(untried: UntriedDeviation) -> Iterator[str]:
    """Yield a deviation, and each attack's figure on the stand-in without it and with it."""
    if not untried.measured:
        why = f": {clip(untried.reason, 300)}" if untried.reason else ""
        yield f"{clip(untried.words, 200)}; effect not measured{why}"
        return
    yield f"{clip(untried.words, 200)}; on a stand-in, {clip(untried.stand_in, 200)}:"
    for one in untried.measured:
        name = next((label(f.name) for f in (one.honest, one.active) if f is not None), "no figure")
        figures = f"{_value(one.honest)} without it, {_value(one.active)} with it"
        yield f"  {clip(one.attack, 60)}, {name}: {figures}; {_gain(one)}"


def _gain(one: StandInFigures) -> str:
    """Return whether the deviation gained something: only where the intervals part."""
    return "a gain" if one.parts else "no gain shown"


def _value(figure: Figure | None) -> str:
    return "no figure" if figure is None else with_interval(figure)
