"""Write in the background: one thread does queued work in order, and a caller that queues too much waits.

Guarantees:
  * work is done in the order in which it was put, one piece at a time;
  * at most `most` bytes wait, except for a single larger piece, so a slow disk does not increase memory use;
  * after a piece of work has failed, none after it is done. The next `put` or `drain` raises its error;
  * work that puts work has it done at once.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from threading import Condition, Thread, current_thread
from typing import Protocol

__all__ = ["BackgroundWriter", "InlineWriter", "Writer"]

_MOST = 64 << 20
"""Default number of bytes that may wait."""

Work = Callable[[], object]


class Writer(Protocol):
    """Does work in order, immediately or later."""

    def put(self, work: Work, size: int = 0) -> None:
        """Queue work that holds `size` bytes until it is done."""
        ...

    def drain(self) -> None:
        """Wait until all queued work is done."""
        ...

    def close(self) -> None:
        """Do the queued work and end; raise nothing."""
        ...


class InlineWriter:
    """Does all work immediately."""

    def put(self, work: Work, size: int = 0) -> None:
        """Do the work."""
        work()

    def drain(self) -> None:
        """Do nothing: no work waits."""

    def close(self) -> None:
        """Do nothing: there is no thread to end."""


class BackgroundWriter:
    """Does all work in its own thread.

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
        """Queue work once there is room for it.

        Raises:
            BaseException: the error of an earlier piece of work.
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
        """Wait until all queued work is done.

        Raises:
            BaseException: the error of a piece of work.
        """
        if current_thread() is self._thread:
            return
        with self._changed:
            self._changed.wait_for(lambda: self._error or not (self._works or self._busy))
            self._refuse_after_error()

    def close(self) -> None:
        """Do the queued work, unless a piece failed, and end the thread; raise nothing."""
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
