"""Words about deviations that fit a recorded system and were not tried on it."""

from __future__ import annotations

from collections.abc import Iterator

from fdaudit.result import Result, UntriedDeviation
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
    what = clip(untried.words, 200)
    if not untried.measured and untried.reason:
        yield f"{what}; effect not measured: {clip(untried.reason, 300)}"
    elif not untried.measured:
        yield f"{what}; effect not measured"
    else:
        yield f"{what}; on a stand-in, {clip(untried.stand_in, 200)}:"
    for one in untried.measured:
        figure = one.honest or one.active
        name = "no figure" if figure is None else label(figure.name)
        gain = "a gain" if one.parts else "no gain shown"
        figures = f"{_value(one.honest)} without it, {_value(one.active)} with it"
        yield f"  {clip(one.attack, 60)}, {name}: {figures}; {gain}"


def _value(figure: Figure | None) -> str:
    if figure is None:
        return "no figure"
    return with_interval(figure)
