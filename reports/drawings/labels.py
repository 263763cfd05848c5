"""Places for labels beside the marks of a chart.

Guarantees:
  * no label is on a mark, on another label, on another label's leader, or outside the frame;
  * a leader crosses no label, and no mark but its own and those that overlap it;
  * a label without such a place has none: it is never squeezed in.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

__all__ = ["Box", "Label", "place_labels", "text_width"]

_NEAR = 6.0
"""Points between a mark's centre and a label that needs no leader."""
_REACHES = (_NEAR, 9.0, 13.0, 18.0, 23.0, 29.0, 36.0, 44.0, 54.0, 66.0, 80.0)
"""Distances at which places are tried, in points."""
_DIRECTIONS = 48
_WIDTHS = ((1.0, "mMW@%\N{HORIZONTAL ELLIPSIS}\N{REPLACEMENT CHARACTER}"), (0.45, "ijlI.,:;|!' ()[]ftr-/"))
_CAPITAL, _OTHER, _USUAL = 0.85, 0.9, 0.65


@dataclass(frozen=True, kw_only=True)
class Box:
    """A rectangle in points; y grows downwards."""

    left: float
    top: float
    right: float
    bottom: float

    def overlaps(self, other: Box) -> bool:
        """Return whether both share more than an edge."""
        across = self.left < other.right and other.left < self.right
        return across and self.top < other.bottom and other.top < self.bottom

    def within(self, other: Box) -> bool:
        """Return whether it is inside another."""
        across = other.left <= self.left and self.right <= other.right
        return across and other.top <= self.top and self.bottom <= other.bottom

    def crossed_by(self, line: Line) -> bool:
        """Return whether a straight line between two places passes through it."""
        (x1, y1), (x2, y2) = line
        first, last = 0.0, 1.0
        edges = ((x1, x2 - x1, self.left, self.right), (y1, y2 - y1, self.top, self.bottom))
        for start, step, low, high in edges:
            if step == 0:
                if not low < start < high:
                    return False
                continue
            ends = sorted(((low - start) / step, (high - start) / step))
            first, last = max(first, ends[0]), min(last, ends[1])
        return first < last

    def nearest(self, x: float, y: float) -> tuple[float, float]:
        """Return the place in it that is nearest to another."""
        return min(max(x, self.left), self.right), min(max(y, self.top), self.bottom)


Line = tuple[tuple[float, float], tuple[float, float]]


@dataclass(frozen=True, kw_only=True)
class Label:
    """A label's place, and the line to its mark if it is not beside it."""

    box: Box
    leader: Line | None


def text_width(text: str, size: float) -> float:
    """Return at least the width of a text in a common sans-serif font.

    Args:
        text: the text.
        size: of the font, in points.
    """
    return size * sum(map(_letter, text))


def _letter(character: str) -> float:
    for width, characters in _WIDTHS:
        if character in characters:
            return width
    if not character.isalnum() and character != "_":
        return _OTHER
    return _CAPITAL if character.isupper() or character == "w" else _USUAL


def place_labels(
    marks: Sequence[Box], sizes: Sequence[tuple[float, float]], frame: Box, lines: Sequence[Line] = ()
) -> list[Label | None]:
    """Return a place for the label of each mark, or None where there is no room.

    Args:
        marks: the marks.
        sizes: width and height of each mark's label.
        frame: the labels stay inside.
        lines: what a label should not lie on, if there is another place.
    """
    order = list(range(len(marks)))
    best: dict[int, Label] = {}
    for _ in marks:
        placed: dict[int, Label] = {}
        for i in order:
            label = _place(i, marks, sizes[i], frame, lines, list(placed.values()))
            if label is not None:
                placed[i] = label
        if len(placed) > len(best):
            best = placed
        if len(placed) == len(marks):
            break
        order.sort(key=placed.__contains__)  # labels without a place choose first
    return [best.get(i) for i in range(len(marks))]


def _place(
    number: int,
    marks: Sequence[Box],
    size: tuple[float, float],
    frame: Box,
    lines: Sequence[Line],
    placed: Sequence[Label],
) -> Label | None:
    """Return the nearest free place for one label; one on `lines` only if no other is free."""
    own = marks[number]
    x, y = (own.left + own.right) / 2, (own.top + own.bottom) / 2
    width, height = size
    second: Label | None = None
    for reach in _REACHES:
        for turn in range(_DIRECTIONS):
            # The first direction is right, the second left; then even turns go below, odd ones above.
            angle = math.pi * (turn % 2) + 2 * math.pi * (turn // 2) / _DIRECTIONS
            across, down = math.cos(angle), math.sin(angle)
            middle_x = x + across * (reach + width / 2)
            middle_y = y + down * (reach + height / 2)
            box = Box(
                left=middle_x - width / 2,
                top=middle_y - height / 2,
                right=middle_x + width / 2,
                bottom=middle_y + height / 2,
            )
            leader: Line | None = None
            end = box.nearest(x, y)
            if math.dist((x, y), end) > _NEAR + 3:
                leader = ((x, y), end)
            label = Label(box=box, leader=leader)
            if not _is_free(label, own, marks, frame, placed):
                continue
            if not any(label.box.crossed_by(line) for line in lines):
                return label
            second = second or label
    return second


def _is_free(label: Label, own: Box, marks: Sequence[Box], frame: Box, placed: Sequence[Label]) -> bool:
    if not label.box.within(frame) or any(label.box.overlaps(mark) for mark in marks):
        return False
    for other in placed:
        if label.box.overlaps(other.box):
            return False
        if other.leader is not None and label.box.crossed_by(other.leader):
            return False
        if label.leader is not None and other.box.crossed_by(label.leader):
            return False
    if label.leader is None:
        return True
    return not any(mark.crossed_by(label.leader) for mark in marks if not mark.overlaps(own))
