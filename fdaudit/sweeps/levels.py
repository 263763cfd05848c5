"""The levels of a sweep's ε axis: how a level fills a defence's settings, and whether it is an ε there.

Guarantees:
  * a level counts as a target ε only if calibration, a preset or a budget uses it as one;
  * a level that stands for another setting, such as σ, is never called ε;
  * a level that several mechanisms each use in full is not the ε of the run.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any

from fdaudit.accounting.calibration import SHAPES, Shape, noise_for
from fdaudit.config import validate
from fdaudit.errors import SpecError, nearest

__all__ = ["PLACEHOLDER", "UNDEFENDED", "asks_for_epsilon", "filled", "in_words"]

UNDEFENDED = "none"
"""The name of no defence on the defence axis."""
PLACEHOLDER = "{epsilon}"
"""The placeholder of the level in a defence's settings."""
_CALIBRATE = "calibrate"
_SHARES: Mapping[tuple[str, ...], float] = {
    ("preset", "epsilon"): 1.0,
    ("privacy", "budget", "epsilon"): 0.0,
}
"""Settings that are an ε, each with the share of the run's ε that it spends; a budget only limits others."""
_NEUTRAL = (("gates", "epsilon"),)
"""Settings that are an ε and bound nothing."""
_ROUNDING = 1e-9


def in_words(protocol: str, defence: str, level: float, seed: int, *, asked: bool) -> str:
    """Return a run's name for people; it mentions ε only if the level is one."""
    if defence == UNDEFENDED:
        return f"{protocol}, no defence, seed {seed}"
    strength = "ε asked" if asked else "level"
    return f"{protocol}, {defence}, {strength} {level:g}, seed {seed}"


def asks_for_epsilon(fragment: Mapping[str, Any]) -> bool:
    """Return whether a defence's settings use the level as the ε of the run.

    Args:
        fragment: fields of a spec, with placeholders.
    """
    shares: list[float] = []
    for path, share in _uses(fragment, ()):
        if path not in _NEUTRAL:
            shares.append(share)
    return bool(shares) and math.fsum(shares) <= 1 + _ROUNDING


def _uses(value: Any, path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], float]]:
    """Yield each use of a level and the share of the run's ε spent there; infinite if it is not an ε."""
    if value == PLACEHOLDER:
        yield path, _SHARES.get(path, math.inf)
    elif isinstance(value, Mapping) and _CALIBRATE in value:
        share = value.get("share", 1.0)
        if not isinstance(share, int | float):
            share = math.inf
        yield path, float(share)
    elif isinstance(value, Mapping):
        for key, below in value.items():
            yield from _uses(below, (*path, str(key)))
    elif isinstance(value, list | tuple):
        for number, below in enumerate(value):
            yield from _uses(below, (*path, str(number)))


def filled(value: Any, epsilon: float, delta: float, where: str) -> Any:
    """Return a fragment with `{epsilon}` replaced by the level, and `{calibrate: DEFENCE, …}` by noise.

    Raises:
        SpecError: the defence cannot be calibrated, or its share is not a valid share.
    """
    if value == PLACEHOLDER:
        return epsilon
    if isinstance(value, Mapping):
        if _CALIBRATE in value:
            shape = dict(value)
            defence, share = shape.pop(_CALIBRATE), shape.pop("share", 1.0)
            if defence not in SHAPES:
                raise SpecError(
                    f"{where}.{_CALIBRATE}", defence, "cannot be calibrated", nearest(str(defence), SHAPES)
                )
            if isinstance(share, bool) or not isinstance(share, int | float) or not 0 < share <= 1:
                problem = "is no share of ε"
                raise SpecError(f"{where}.share", share, problem, "Give a number above 0 and at most 1.")
            return _calibrated(str(defence), validate(Shape, shape, where), share * epsilon, share * delta)
        return {k: filled(v, epsilon, delta, f"{where}.{k}") for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [filled(v, epsilon, delta, f"{where}.{n}") for n, v in enumerate(value)]
    return value


@cache
def _calibrated(defence: str, shape: Shape, epsilon: float, delta: float) -> float:
    noise, _ = noise_for(defence, shape, epsilon, delta)
    setting, _ = SHAPES[defence]
    if setting.startswith("1/"):
        return 1 / noise
    return noise
