"""An outsider who made the scores of attacks and reads a report: what it learns of who was a member.

It knows every score, candidate by candidate, and wants the coins. Of each output it uses all that there is: any pair of
lists that can be a ROC curve, any drawn path that can be one, and every number that stands in an attack's part.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Flags = NDArray[np.bool_]
Counts = NDArray[np.int64]

_PATH = re.compile(r'<path[^>]*?\bd="([^"]+)"', re.DOTALL)
_POINT = re.compile(r"[ML]\s*(-?[\d.]+)\s+(-?[\d.]+)")


# -- curves -------------------------------------------------------------------------------------------------------


def by_curve(corners: Counts, scores: Floats) -> Flags | None:
    """Who is a member, by a curve's corners (k, 2) in numbers of non-members and members passed; None: no curve."""
    half = len(scores) // 2
    if tuple(corners[0]) != (0, 0) or tuple(corners[-1]) != (half, half):
        return None
    order = list[bool]()
    for right, up in np.diff(corners, axis=0):
        if (right and up) or min(right, up) < 0:
            return None
        order += [False] * right + [True] * up
    member = np.zeros(len(scores), dtype=np.bool_)
    member[np.argsort(-scores, kind="stable")] = order
    return member


def listed(value: Any, half: int) -> Iterator[Counts]:
    """Corners of every pair of lists of one length in a JSON document whose numbers are multiples of 1 / half."""
    if isinstance(value, dict):
        lists = [np.array(v, dtype=float) for v in value.values() if _numbers(v)]
        for first in lists:
            for second in lists:
                if first is not second and first.shape == second.shape:
                    corners = np.stack([first, second], axis=1) * half
                    if np.abs(corners - corners.round()).max() < 1e-6:
                        yield corners.round().astype(np.int64)
        value = list(value.values())
    if isinstance(value, list):
        for item in value:
            yield from listed(item, half)


def _numbers(value: Any) -> bool:
    return isinstance(value, list) and len(value) > 2 and all(isinstance(v, int | float) for v in value)


def drawn(page: str, half: int) -> Iterator[Counts]:
    """Corners of every drawn path that never goes back, by linear axes and by logarithmic ones of some decades."""
    for path in _PATH.findall(page):
        points = np.array([(float(x), -float(y)) for x, y in _POINT.findall(path)])
        if len(points) < 3 or (np.ptp(points, axis=0) == 0).any() or (np.diff(points, axis=0) < -1e-3).any():
            continue
        place = (points - points[0]) / (points[-1] - points[0])
        for decades in (0, 1, 2, 3, 4):
            rates = 10.0 ** (decades * (place - 1)) if decades else place
            corners = np.where(place < 1e-6, 0.0, rates) * half
            if np.abs(corners - corners.round()).max() < 0.2:
                yield corners.round().astype(np.int64)


# -- numbers ------------------------------------------------------------------------------------------------------


def numbers_of(value: Any, cell: str) -> dict[str, float]:
    """Every number in the parts of a JSON document that are of one cell, by where it stands."""
    return dict(_numbers_of(value, cell, "", False))


def _numbers_of(value: Any, cell: str, where: str, inside: bool) -> Iterator[tuple[str, float]]:
    if isinstance(value, dict):
        own = value.get("id", value.get("cell"))
        for key, item in value.items():
            part = f"{where}/{value.get('name', '')}.{key}"
            yield from _numbers_of(item, cell, part, inside if own is None else own == cell)
    elif isinstance(value, list):
        for i, item in enumerate(value):
            yield from _numbers_of(item, cell, f"{where}[{i}]" if inside else where, inside)
    elif inside and isinstance(value, int | float) and not isinstance(value, bool):
        yield where, float(value)


def marked(page: str, attack: str) -> dict[str, float]:
    """Every number in the part of a page that is of one attack, drawings included, by its place."""
    for part in page.split('<article class="cell"')[1:]:
        part = part.partition("</article>")[0]
        if f">{attack} <" in part:
            part = part.replace(attack, "")  # a number in its name is no answer
            plain = re.sub(
                r'\b(?:id|href|xlink:href|for|aria-labelledby)="[^"]*"|Figure \d+|Table \d+', "", part
            )
            found = re.findall(r"-?\d+(?:\.\d+)?(?:e-?\d+)?", plain)
            return {str(i): float(v) for i, v in enumerate(found)}
    return {}


def by_regression(answers: list[dict[str, float]], questions: Floats) -> Floats:
    """How likely each coin is to have fallen one way: the number that explains the questions best, of all places.

    Args:
        answers: of each attack, numbers by place.
        questions: (attacks, coins) how much sooner each attack ranks one candidate of a pair than the other.

    Returns:
        (coins,) positive for one way, negative for the other, zero where nothing speaks for either.
    """
    places = set.intersection(*(set(a) for a in answers)) if answers else set()
    best, guess = -1.0, np.zeros(questions.shape[1])
    for place in sorted(places):
        said = np.array([a[place] for a in answers])
        if np.ptp(said) == 0:
            continue
        centred = said - said.mean()
        found = np.linalg.lstsq(questions - questions.mean(0), centred, rcond=1e-9)[0]
        explained = float(np.corrcoef((questions - questions.mean(0)) @ np.sign(found), centred)[0, 1])
        if np.isfinite(explained) and explained > best:
            best, guess = explained, found
    return guess
