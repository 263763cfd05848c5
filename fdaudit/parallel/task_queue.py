"""The order in which tasks are handed to processes, each of which remembers what it has computed.

Guarantees:
  * every task is handed out once, and once more each time that it is put back;
  * the order affects time only, never results.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence

__all__ = ["Queue"]


class Queue:
    """Waiting tasks, by number.

    A process that has finished a task gets another of the same kind, because results in its memory may be reused. If
    there is none, it gets the first task of a kind not yet begun, so that two processes do not compute the same thing
    at once. Otherwise it gets the first task that waits.

    Args:
        kinds: the kind of each task; None matches no other kind.
    """

    def __init__(self, kinds: Sequence[Hashable | None]) -> None:
        self._kinds = kinds
        self._waiting = list(range(len(kinds)))
        self._begun = set[Hashable]()

    def __len__(self) -> int:
        return len(self._waiting)

    def take(self, ended: int | None = None) -> int:
        """Remove the next task for a process and return its number.

        Args:
            ended: the task that the process has just finished.

        Raises:
            IndexError: no task waits.
        """
        kind = None if ended is None else self._kinds[ended]
        number: int | None = None
        for n in self._waiting:
            if kind is not None and self._kinds[n] == kind:
                number = n
                break
            if number is None and self._kinds[n] not in self._begun:
                number = n
        if number is None:
            number = self._waiting[0]
        self._waiting.remove(number)
        if self._kinds[number] is not None:
            self._begun.add(self._kinds[number])
        return number

    def put_back(self, number: int) -> None:
        """Put a task back in front, so that it is handed out again."""
        self._waiting.insert(0, number)

    def clear(self) -> None:
        """Remove all waiting tasks."""
        self._waiting.clear()
