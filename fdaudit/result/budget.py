"""The budget of an attack stage: what each attack was allotted, and which attacks it left out."""

from __future__ import annotations

from typing import Annotated, ClassVar

from pydantic import Field

from fdaudit.result.part import AUDITOR, Audience, Part

__all__ = ["Allotted", "Budget", "LeftOut", "in_words"]


_SHOWN = 4
"""Settings that a short statement names."""


class Allotted(Part):
    """One setting of one attack: the number that the profile and the spec ask for, and the number allotted."""

    attack: str
    setting: str
    asked: int = Field(ge=0)
    number: int = Field(ge=0)


class LeftOut(Part):
    """An attack that the budget does not hold even at its least settings."""

    _audience: ClassVar[Audience] = "public"

    attack: str
    adversaries: tuple[str, ...]
    needed: Annotated[float | None, AUDITOR] = None
    """Seconds of a budget that would hold it with the attacks that are kept."""


class Budget(Part):
    """A budget of time, and what it bought."""

    _audience: ClassVar[Audience] = "public"

    seconds: float = Field(gt=0)
    """For the whole command."""
    attacks: Annotated[float, AUDITOR] = 0.0
    """Seconds of it for the attack stage: what training left, and at least a fifth."""
    estimated: Annotated[float, AUDITOR] = 0.0
    """Seconds that the attack stage was estimated to take."""
    settings: Annotated[tuple[Allotted, ...], AUDITOR] = ()
    """The settings that were reduced."""
    order: Annotated[tuple[str, ...], AUDITOR] = ()
    """The attacks that are kept, the cheapest first."""
    left_out: tuple[LeftOut, ...] = ()

    @property
    def short(self) -> str:
        """Return what the budget bought of the dearest attacks, as a clause; `words` has all of it."""
        dearest = dict[str, Allotted]()
        for one in reversed(self.settings):
            dearest.setdefault(one.setting, one)
        shown = [_numbers(one) for one in list(dearest.values())[:_SHOWN]]
        more = len(self.settings) - len(shown)
        if more:
            shown.append(f"{more} more setting{'s' if more > 1 else ''} reduced")
        return self._with(shown)

    @property
    def words(self) -> str:
        """Return what the budget bought, as a clause."""
        alike: dict[str, list[str]] = {}
        for one in self.settings:
            alike.setdefault(_numbers(one), []).append(one.attack)
        return self._with([f"{numbers} ({', '.join(names)})" for numbers, names in alike.items()])

    def _with(self, bought: list[str]) -> str:
        words = f"budget {in_words(self.seconds)}: {', '.join(bought) or 'no setting reduced'}"
        if self.left_out:
            words += f"; attacks left out: {', '.join(one.attack for one in self.left_out)}"
        return words


def _numbers(one: Allotted) -> str:
    return f"{one.number:,} of {one.asked:,} {one.setting.replace('_', ' ')}"


def in_words(seconds: float) -> str:
    """Return a duration in words, in the largest unit that leaves at most one decimal."""
    for unit, size in (("hour", 3600), ("minute", 60)):
        if seconds >= 2 * size or (seconds >= size and seconds % size == 0):
            return _counted(seconds / size, unit)
    return _counted(seconds, "second")


def _counted(number: float, unit: str) -> str:
    text = f"{number:.1f}".removesuffix(".0")
    return f"{text} {unit}" if text == "1" else f"{text} {unit}s"
