"""Writing beside computing: one thread does what it is handed, in order, and whoever hands it too much waits.

Guarantees:
  * work is done in the order in which it was put, one piece at a time;
  * no more than `most` bytes wait, one piece excepted that alone is larger: memory does not grow with a slow disk;
  * once a piece of work has failed none after it is done, and its error is raised where the next is put, or drained;
  * work that puts work has it done at once.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from threading import Condition, Thread, current_thread
from typing import Protocol

__all__ = ["BackgroundWriter", "InlineWriter", "Writer"]

_MOST = 64 << 20
"""Bytes that may wait where nothing else is said."""

Work = Callable[[], object]


class Writer(Protocol):
    """Does work in order, here and now or a little later."""

    def put(self, work: Work, size: int = 0) -> None:
        """Hands over work that keeps `size` bytes until it is done."""
        ...

    def drain(self) -> None:
        """Returns once everything that was put is done."""
        ...

    def close(self) -> None:
        """Does what was put and ends; raises nothing."""
        ...


class InlineWriter:
    """Does everything at once."""

    def put(self, work: Work, size: int = 0) -> None:
        """Does it."""
        work()

    def drain(self) -> None:
        """There is nothing to wait for."""

    def close(self) -> None:
        """There is nothing to end."""


class BackgroundWriter:
    """Does everything in a thread of its own.

    Args:
        most: bytes that may wait.
    """

    def __init__(self, most: int = _MOST) -> None:
        self._most, self._waiting = most, 0
        self._works = deque[tuple[Work, int]]()
        self._changed = Condition()
        self._busy, self._ends = False, False
        self._error: BaseException | None = None
        self._thread = Thread(target=self._serve, name="fdaudit-writer", daemon=True)
        self._thread.start()

    def put(self, work: Work, size: int = 0) -> None:
        """Hands over work, once there is room for it.

        Raises:
            BaseException: what an earlier piece of work raised.
        """
        if current_thread() is self._thread:
            work()
            return
        with self._changed:
            self._changed.wait_for(
                lambda: self._error or not self._works or self._waiting + size <= self._most
            )
            self._refuse_after_error()
            self._works.append((work, size))
            self._waiting += size
            self._changed.notify_all()

    def drain(self) -> None:
        """Waits until all that was put is done.

        Raises:
            BaseException: what a piece of work raised.
        """
        if current_thread() is self._thread:
            return
        with self._changed:
            self._changed.wait_for(lambda: self._error or not (self._works or self._busy))
            self._refuse_after_error()

    def close(self) -> None:
        """Does what was put, unless a piece of it failed, and ends the thread; raises nothing."""
        with self._changed:
            self._ends = True
            self._changed.notify_all()
        self._thread.join()

    def _refuse_after_error(self) -> None:
        if self._error is not None:
            raise self._error

    def _serve(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._works or self._ends)
                if not self._works:
                    return
                work, size = self._works.popleft()
                self._busy = True
            try:
                work()
                failed = None
            except BaseException as error:  # raised again where the next work is put
                failed = error
            with self._changed:
                self._busy, self._waiting = False, self._waiting - size
                if failed is not None:
                    self._error = failed
                    self._works.clear()
                self._changed.notify_all()
