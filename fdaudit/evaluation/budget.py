"""A budget of time for an attack stage: the settings that it buys, and the attacks that it leaves out.

Guarantees:
  * an allotment follows from the attacks' costs alone, and is decided once: the vault keeps it (`clock.py`);
  * no setting exceeds what profile and spec ask for, or falls below its least useful number;
  * one factor reduces the settings of all attacks. A setting that has reached its least number stays there;
  * cheap attacks are kept, and run, before expensive ones, and those that the spec names first before both.
"""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import Literal

from fdaudit.adversary.attack_plan import AttackPlan
from fdaudit.errors import UsageError
from fdaudit.result import Allotted, Budget, LeftOut, in_words

__all__ = [
    "Cost",
    "ReducibleSetting",
    "allot",
    "for_attacks",
    "least_of",
    "quick",
    "reduced",
    "seconds_of",
    "total",
]

_UNITS: Mapping[str, int] = {"s": 1, "m": 60, "h": 3600}
_MOST = 10_000 * 3600
"""Seconds of the longest budget, more than a year."""
_KEPT_FOR_ATTACKS = 0.2
"""Least share of the budget that is for attacks, however long training took."""
_ALLOTTED = 0.9
"""Share of the attacks' time that is allotted to them; the rest is for reports and for estimates that are too low."""
_LEAST_SHARE, _LEAST = 0.25, 4
"""The least useful number of a setting: this share of what the profile `quick` asks for, and no less than 4."""
_QUICK = 6.0
"""Seconds in which a stage has run its quick attacks."""
_HALVINGS = 40
"""Halvings of the interval in which the common factor lies."""


def seconds_of(duration: str) -> float:
    """Return the seconds of a duration such as `90s`, `10m` or `2h`.

    Raises:
        UsageError: it is no number of seconds, minutes or hours, or too short or too long.
    """
    match = re.fullmatch(r"(\d{1,9}(?:\.\d{1,3})?)([smh])", duration)
    remedy = "Give a number of seconds, minutes or hours, such as 90s, 10m or 2h."
    if match is None:
        raise UsageError("budget", duration, "is not a duration", remedy)
    seconds = float(match[1]) * _UNITS[match[2]]
    if not 1 <= seconds <= _MOST:
        raise UsageError("budget", duration, "is not between 1s and 10000h", remedy)
    return seconds


def for_attacks(budget: float, training: float) -> float:
    """Return the seconds of a command's budget that its attacks have after training, at least a fifth of it."""
    return max(_KEPT_FOR_ATTACKS * budget, budget - training)


def least_of(quick: int) -> int:
    """Return the least useful number of a setting, from the number in the profile `quick`."""
    return min(quick, max(_LEAST, math.ceil(_LEAST_SHARE * quick)))


@dataclass(frozen=True, kw_only=True)
class ReducibleSetting:
    """A setting that a budget may reduce.

    Attributes:
        asked: the number that profile and spec ask for.
        least: the least useful number.
        work: how the attack's work depends on it. It is proportional to each setting that `multiplies`; it grows as the
            one that `leads` which is reduced least; others count `elsewhere`, in the work that attacks share.
    """

    asked: int
    least: int
    work: Literal["multiplies", "leads", "elsewhere"] = "multiplies"

    def at(self, factor: float) -> int:
        """Return the number for a factor between 0 and 1."""
        return max(self.least, int(self.asked * factor))


@dataclass(frozen=True, kw_only=True)
class Cost:
    """Cost of an attack, or of work that attacks share, and how far settings can be reduced.

    Attributes:
        attack: its name.
        adversaries: those against whom it may apply.
        seconds: time of all its cells with the settings asked for.
        shared: work that it needs and shares with other attacks, by name, such as its control's training.
        settings: those that may be reduced, by name.
    """

    attack: str
    adversaries: tuple[str, ...] = ()
    seconds: float
    shared: tuple[str, ...] = ()
    settings: Mapping[str, ReducibleSetting] = field(default_factory=dict)

    def at(self, factor: float) -> float:
        """Return the seconds of all cells with the settings of `factor`."""
        seconds, leading, reduced = self.seconds, [1.0], list[float]()
        for setting in self.settings.values():
            if setting.work == "multiplies":
                seconds *= setting.at(factor) / setting.asked
            elif setting.work == "leads":
                leading.append(setting.asked / setting.least)
                reduced.append(setting.at(factor) / setting.least)
        # Of settings that lead, the one that asks for most decides the work.
        return seconds * max(reduced, default=1.0) / max(leading)


def total(costs: Sequence[Cost], shared: Mapping[str, Cost], processes: int, factor: float) -> float:
    """Return the seconds of a stage: its work divided by the processes, and no less than its longest attack takes."""
    needs = set(chain.from_iterable(cost.shared for cost in costs))
    work = sum(shared[name].at(factor) for name in needs)
    longest = 0.0
    for cost in costs:
        own = cost.at(factor)
        work += own
        longest = max(longest, own + sum(shared[name].at(factor) for name in cost.shared))
    return max(work / processes, longest)


def allot(
    budget: float,
    costs: Sequence[Cost],
    *,
    shared: Mapping[str, Cost],
    processes: int,
    training: float = 0.0,
    first: Collection[str] = (),
) -> Budget:
    """Allot a budget to attacks; pure.

    Args:
        budget: seconds of the whole command.
        costs: the attacks.
        shared: the work that attacks share, by name.
        processes: how many run them.
        training: seconds that have been spent before the attacks.
        first: names of attacks that are kept, and run, before all others.
    """
    seconds = for_attacks(budget, training)
    usable, least = _ALLOTTED * seconds, 0.0
    fitting, too_expensive = list[Cost](), list[Cost]()
    for cost in _in_turn(costs, shared, least, first):
        if total([*fitting, cost], shared, processes, least) <= usable:
            fitting.append(cost)
        else:
            too_expensive.append(cost)
    factor = _factor(fitting, shared, processes, usable)
    fitting = _in_turn(fitting, shared, factor, first)
    left_out = []
    for cost in too_expensive:
        needed = training + total([*fitting, cost], shared, processes, least) / _ALLOTTED
        left_out.append(LeftOut(attack=cost.attack, adversaries=cost.adversaries, needed=needed))
    settings = []
    for cost in fitting:
        for name, setting in cost.settings.items():
            number = setting.at(factor)
            if number < setting.asked:
                settings.append(
                    Allotted(attack=cost.attack, setting=name, asked=setting.asked, number=number)
                )
    return Budget(
        seconds=budget,
        attacks=seconds,
        estimated=total(fitting, shared, processes, factor),
        settings=tuple(settings),
        order=tuple(cost.attack for cost in fitting),
        left_out=tuple(left_out),
    )


def _in_turn(
    costs: Iterable[Cost], shared: Mapping[str, Cost], factor: float, first: Collection[str]
) -> list[Cost]:
    """Return the attacks that come first, and then the others, both from the cheapest to the most expensive."""
    return sorted(_cheapest_first(costs, shared, factor), key=lambda cost: cost.attack not in first)


def _cheapest_first(costs: Iterable[Cost], shared: Mapping[str, Cost], factor: float) -> list[Cost]:
    """Return attacks in the order of what each adds to those before it, whose shared work it uses."""
    ordered, rest, ready = list[Cost](), list(costs), set[str]()

    def added(cost: Cost) -> tuple[float, str]:
        seconds = cost.at(factor) + sum(shared[name].at(factor) for name in cost.shared if name not in ready)
        return seconds, cost.attack

    while rest:
        cheapest = min(rest, key=added)
        rest.remove(cheapest)
        ordered.append(cheapest)
        ready |= set(cheapest.shared)
    return ordered


def quick(costs: Sequence[Cost], shared: Mapping[str, Cost], processes: int) -> list[str]:
    """Return the names of the cheapest attacks, as many as a stage of these alone would run in some 6 seconds."""
    chosen = list[Cost]()
    for cost in _cheapest_first(costs, shared, 1.0):
        if total([*chosen, cost], shared, processes, 1.0) > _QUICK:
            break
        chosen.append(cost)
    return [cost.attack for cost in chosen]


def _factor(costs: Sequence[Cost], shared: Mapping[str, Cost], processes: int, seconds: float) -> float:
    """Return the largest factor, at most 1, with which the stage takes no longer than `seconds`."""
    if total(costs, shared, processes, 1.0) <= seconds:
        return 1.0
    low, high = 0.0, 1.0
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        if total(costs, shared, processes, middle) <= seconds:
            low = middle
        else:
            high = middle
    return low


def reduced(attacks: Sequence[AttackPlan], budget: Budget) -> tuple[AttackPlan, ...]:
    """Return attacks with the settings that a budget allots, and why it leaves some of them out."""
    numbers = dict[str, dict[str, int]]()
    for allotted in budget.settings:
        numbers.setdefault(allotted.attack, {})[allotted.setting] = allotted.number
    reasons = dict[str, dict[str, str]]()
    for omitted in budget.left_out:
        why = f"not run: the budget of {in_words(budget.seconds)} does not hold it"
        if omitted.needed:
            why += f"; about {_rounded_up(omitted.needed)} needed"
        reasons[omitted.attack] = dict.fromkeys(omitted.adversaries, why)
    plans = list[AttackPlan]()
    for attack in attacks:
        params = None if attack.params is None else {**attack.params, **numbers.get(attack.name, {})}
        plans.append(replace(attack, params=params, left_out=reasons.get(attack.name, {})))
    return tuple(plans)


def _rounded_up(seconds: float) -> str:
    """Return a duration in whole seconds, minutes, or tenths of hours, rounded up."""
    if seconds < 120:
        return in_words(10 * math.ceil(seconds / 10))
    if seconds < 7200:
        return in_words(60 * math.ceil(seconds / 60))
    return in_words(360 * math.ceil(seconds / 360))
