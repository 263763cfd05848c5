"""Worker processes: each receives a task as one line of JSON and answers in lines of JSON.

They are started with `python -m`, not forked. PyTorch's threads do not survive a fork, and a script without a main
guard cannot be imported.

Guarantees:
  * a process that ends is noticed: its task is reported as lost, and a new process replaces it;
  * at most `size` processes work at a time. Concurrent callers are served in the order of their calls;
  * no process outlives its parent: it ends when its input is closed.
"""

from __future__ import annotations

import atexit
import json
import os
import subprocess
import sys
import time
from collections.abc import Generator, Mapping, Sequence
from contextlib import suppress
from queue import Empty, SimpleQueue
from threading import Condition, Lock, Thread
from types import MappingProxyType
from typing import Any, NoReturn, Protocol

from fdaudit.parallel.task_queue import Queue

__all__ = ["Answer", "Pool", "Workers", "leave", "processors", "standing_pool"]

_PATIENCE = 10.0
"""Seconds that a process has to end."""

Answer = tuple[int, Mapping[str, Any] | None]
"""The number of a piece of work, and one line about it; None if its process ended before it was done."""

_REMOVE = "import shutil, sys; shutil.rmtree(sys.argv[1], ignore_errors=True)"


class Workers(Protocol):
    """An executor of tasks: a `Pool` of local processes, or workers on other machines."""

    @property
    def size(self) -> int:
        """Return the number of tasks that run at a time."""
        ...

    def work(self, pieces: Sequence[Mapping[str, Any]]) -> Generator[Answer, None, None]:
        """Run the pieces and yield every answer as it arrives."""
        ...


class _Call:
    """One call of `Pool.work`: its pieces, the waiting ones, the busy processes and their answers.

    An answer of None means that one of the threads that hand out pieces has finished.
    """

    def __init__(self, pieces: Sequence[Mapping[str, Any]]) -> None:
        self.pieces = pieces
        self.waiting = Queue([piece.get("like") for piece in pieces])
        self.busy: list[subprocess.Popen[str]] = []
        self.answers = SimpleQueue[Answer | None]()


class Pool:
    """Processes that run `module`, started when they are first needed.

    Args:
        module: what `python -m` runs.
        size: number of processes.
        variables: environment variables of the processes, added to those of this process.
    """

    def __init__(self, module: str, size: int, variables: Mapping[str, str] = MappingProxyType({})) -> None:
        self._module, self.size, self._variables = module, size, dict(variables)
        self._idle: list[subprocess.Popen[str]] = []
        self._turn, self._at_work = Condition(), 0
        self._unserved: list[_Call] = []

    def stand_by(self) -> None:
        """Start the processes in advance, so that they load their libraries before the first task."""
        with self._turn:
            for _ in range(self.size - self._at_work - len(self._idle)):
                self._idle.append(self._start())

    def work(
        self, pieces: Sequence[Mapping[str, Any]], until: float | None = None
    ) -> Generator[Answer, None, None]:
        """Run the pieces and yield every answer as it arrives; a piece ends with `{"done": true}`.

        A `Queue` sets the order. A piece can name its kind in `like`. Closing the iterator early ends the processes
        that still work. It ends by itself at the time `until`, in seconds since 1970.
        """
        call = _Call(pieces)
        with self._turn:
            self._unserved.append(call)
        threads: list[Thread] = []
        for _ in pieces[: self.size]:
            thread = Thread(target=self._serve, args=(call,), daemon=True)
            threads.append(thread)
            thread.start()
        try:
            ended = 0
            while ended < len(threads):
                left = None if until is None else max(0.0, until - time.time())
                try:
                    answer = call.answers.get(timeout=left)
                except Empty:
                    return
                if answer is None:
                    ended += 1
                else:
                    yield answer
        finally:
            with self._turn:
                call.waiting.clear()
                self._served(call)
                for process in call.busy:
                    _end(process)
            for thread in threads:
                thread.join()

    def close(self) -> None:
        """End the idle processes."""
        while self._idle:
            _end(self._idle.pop())

    def _serve(self, call: _Call) -> None:
        """Hand a call's pieces to processes until none waits. Reuse the same process for as long as it lives."""
        number, process = None, None
        while True:
            with self._turn:
                # Until a piece of the call may be handed out, or no piece is left.
                self._turn.wait_for(
                    lambda: not call.waiting or (self._at_work < self.size and self._unserved[0] is call)
                )
                if not call.waiting:
                    break
                number = call.waiting.take(number)
                if not call.waiting:
                    self._served(call)
                try:
                    process = self._ready(process)
                except OSError:  # no process could start: the piece is lost, as if its process had ended
                    call.answers.put((number, None))
                    continue
                call.busy.append(process)
                self._at_work += 1
            whole = _ask(process, call.pieces[number], number, call.answers)
            with self._turn:
                call.busy.remove(process)
                self._at_work -= 1
                if whole and process.poll() is None:  # not ended meanwhile by the caller closing the iterator
                    self._idle.append(process)
                self._turn.notify_all()
            if not whole:
                _end(process)
                call.answers.put((number, None))
        call.answers.put(None)

    def _served(self, call: _Call) -> None:
        """Let the next call begin, because this one has no waiting pieces. The caller holds `_turn`."""
        self._unserved = [other for other in self._unserved if other is not call]
        self._turn.notify_all()

    def _ready(self, last: subprocess.Popen[str] | None) -> subprocess.Popen[str]:
        """Return a live process: the last one if it is idle, else another idle one, else a new one."""
        if last in self._idle:
            self._idle.append(self._idle.pop(self._idle.index(last)))
        while self._idle:
            process = self._idle.pop()
            if process.poll() is None:
                return process
            _end(process)
        return self._start()

    def _start(self) -> subprocess.Popen[str]:
        # In its own session: this process decides whether an interrupt reaches its workers. It imports what this
        # process could: `-m` alone would put the working directory first, which may be a stranger's run (`-P`).
        path = os.pathsep.join(place or os.getcwd() for place in sys.path)
        return subprocess.Popen(  # noqa: S603  # a module of ours, by name
            [sys.executable, "-P", "-m", self._module],
            start_new_session=True,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": path, **self._variables},
            text=True,
            encoding="utf-8",
        )


def _ask(
    process: subprocess.Popen[str], piece: Mapping[str, Any], number: int, answers: SimpleQueue[Answer | None]
) -> bool:
    """Send a piece to a process and forward its answers. Return whether the process finished the piece."""
    if process.stdin is None or process.stdout is None:
        return False
    try:
        process.stdin.write(json.dumps(piece) + "\n")
        process.stdin.flush()
        for line in process.stdout:
            value = json.loads(line)
            if value.get("done"):
                return True
            answers.put((number, value))
    except (OSError, ValueError):
        pass
    return False


def _end(process: subprocess.Popen[str]) -> None:
    """Close a process's input, so that it cleans up and ends. Kill it if it has not ended after a while."""
    with suppress(OSError):
        if process.stdin is not None:
            process.stdin.close()
    try:
        process.wait(_PATIENCE)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    if process.stdout is not None:
        process.stdout.close()


_standing: dict[tuple[str, int], Pool] = {}
_lock = Lock()


def standing_pool(module: str, size: int, variables: Mapping[str, str] = MappingProxyType({})) -> Pool:
    """Return a pool that lives as long as this process, so that several runs load their libraries only once."""
    key = (module, size)
    with _lock:
        if key not in _standing:
            _standing[key] = Pool(module, size, variables)
            atexit.register(_standing[key].close)
        return _standing[key]


def processors() -> int:
    """Return the default number of threads or processes: one for each processor, at most 8."""
    return min(os.cpu_count() or 1, 8)


def leave(home: str | None) -> NoReturn:
    """End this process at once, even if its threads are working. Remove the directory `home`."""
    if home is not None:
        # A process that becomes another has no thread left that goes on writing where this one removes.
        os.execv(sys.executable, [sys.executable, "-I", "-S", "-c", _REMOVE, home])  # noqa: S606  # a constant
    os._exit(0)
