"""The order in which pieces of work are handed to processes, each of which remembers what it has computed.

Guarantees:
  * every piece is handed out once, and once more each time that it is given back;
  * who handed out what decides nothing but time.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence

__all__ = ["Queue"]


class Queue:
    """Pieces that wait, by number.

    Whoever has ended a piece is handed another of its kind, which may find in memory what that has left there; else the
    first of a kind that nobody has begun, so that no two compute the same at once; else the first of all.

    Args:
        kinds: of each piece; None is like nothing else.
    """

    def __init__(self, kinds: Sequence[Hashable | None]) -> None:
        self._kinds = kinds
        self._waiting = list(range(len(kinds)))
        self._begun = set[Hashable]()

    def __len__(self) -> int:
        return len(self._waiting)

    def take(self, ended: int | None = None) -> int:
        """The next piece for a process.

        Args:
            ended: the piece that it has ended last.

        Raises:
            IndexError: none waits.
        """
        kind = None if ended is None else self._kinds[ended]
        alike = (n for n in self._waiting if kind is not None and self._kinds[n] == kind)
        fresh = (n for n in self._waiting if self._kinds[n] not in self._begun)
        number = next(alike, next(fresh, None))
        if number is None:
            number = self._waiting[0]
        self._waiting.remove(number)
        if self._kinds[number] is not None:
            self._begun.add(self._kinds[number])
        return number

    def put_back(self, number: int) -> None:
        """Lets a piece be handed out again, before the others of its kind."""
        self._waiting.insert(0, number)

    def clear(self) -> None:
        """Lets none wait."""
        self._waiting.clear()
