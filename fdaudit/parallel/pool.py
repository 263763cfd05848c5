"""Processes that stand by for pieces of work: each is told one as a line of JSON and answers in lines of JSON.

They are started as `python -m`, not forked: threads of PyTorch do not survive a fork, and a script without a main guard
can be imported by nobody.

Guarantees:
  * a process that ends is noticed, what it had in hand is reported as lost, and another takes its place;
  * no more of them are at work than the pool's size, however many ask at once: who came first is served first;
  * no process outlives the one that started it: it ends as soon as its input does.
"""

from __future__ import annotations

import atexit
import json
import os
import subprocess
import sys
from collections.abc import Generator, Mapping, Sequence
from contextlib import suppress
from queue import SimpleQueue
from threading import Condition, Lock, Thread
from types import MappingProxyType
from typing import Any, NoReturn, Protocol

from fdaudit.parallel.task_queue import Queue

__all__ = ["Answer", "Pool", "Workers", "leave", "processors", "standing_pool"]

_PATIENCE = 10.0
"""Seconds that a process has to end."""

Answer = tuple[int, Mapping[str, Any] | None]
"""The number of a piece of work, and one line about it; None: its process ended before it was done."""

_REMOVE = "import shutil, sys; shutil.rmtree(sys.argv[1], ignore_errors=True)"


class Workers(Protocol):
    """Who runs pieces of work: a `Pool` of processes here, or workers of other machines."""

    @property
    def size(self) -> int:
        """Pieces at a time."""
        ...

    def work(self, pieces: Sequence[Mapping[str, Any]]) -> Generator[Answer, None, None]:
        """Hands out the pieces, and yields every answer as it comes."""
        ...


class _Call:
    """One call of `Pool.work`: its pieces, those that wait, who is at the others, and what these have said.

    Of the answers, None says that no more will come from one of those who hand out its pieces.
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
        size: how many.
        variables: set for the processes, beside those of this process.
    """

    def __init__(self, module: str, size: int, variables: Mapping[str, str] = MappingProxyType({})) -> None:
        self._module, self.size, self._variables = module, size, dict(variables)
        self._idle: list[subprocess.Popen[str]] = []
        self._turn, self._at_work = Condition(), 0
        self._unserved: list[_Call] = []

    def stand_by(self) -> None:
        """Starts the processes already, so that they load their libraries while nothing is asked of them."""
        with self._turn:
            for _ in range(self.size - self._at_work - len(self._idle)):
                self._idle.append(self._start())

    def work(self, pieces: Sequence[Mapping[str, Any]]) -> Generator[Answer, None, None]:
        """Yields every answer as it comes; a piece ends with `{"done": true}`.

        The pieces are handed out as by a `Queue`; one that has a kind names it in `like`. Closing the iterator early
        ends the processes that are still at work.
        """
        call = _Call(pieces)
        with self._turn:
            self._unserved.append(call)
        threads = [Thread(target=self._serve, args=(call,), daemon=True) for _ in pieces[: self.size]]
        for thread in threads:
            thread.start()
        try:
            ended = 0
            while ended < len(threads):
                answer = call.answers.get()
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
        """Ends the processes that stand by."""
        while self._idle:
            _end(self._idle.pop())

    def _serve(self, call: _Call) -> None:
        """Hands a call's pieces to one process after the other until none waits: the same one, as long as it lives."""
        number, process = None, None
        while True:
            with self._turn:
                self._turn.wait_for(lambda: self._is_due(call))
                if not call.waiting:
                    break
                number = call.waiting.take(number)
                if not call.waiting:
                    self._served(call)
                try:
                    process = self._ready(process)
                except OSError:  # no process can be had: lost like what a process had that ended
                    call.answers.put((number, None))
                    continue
                call.busy.append(process)
                self._at_work += 1
            whole = _ask(process, call.pieces[number], number, call.answers)
            with self._turn:
                call.busy.remove(process)
                self._at_work -= 1
                if whole and process.poll() is None:  # not ended meanwhile by whoever stopped listening
                    self._idle.append(process)
                self._turn.notify_all()
            if not whole:
                _end(process)
                call.answers.put((number, None))
        call.answers.put(None)

    def _is_due(self, call: _Call) -> bool:
        """Whether a piece of the call may be handed out, or none waits."""
        return not call.waiting or (self._at_work < self.size and self._unserved[0] is call)

    def _served(self, call: _Call) -> None:
        """The next call's turn, once nothing of this one waits; asked for with the turn in hand."""
        self._unserved = [other for other in self._unserved if other is not call]
        self._turn.notify_all()

    def _ready(self, last: subprocess.Popen[str] | None) -> subprocess.Popen[str]:
        """The last one if it stands by, or another that does, if it has not ended meanwhile, or a new one."""
        if last in self._idle:
            self._idle.append(self._idle.pop(self._idle.index(last)))
        while self._idle:
            process = self._idle.pop()
            if process.poll() is None:
                return process
            _end(process)
        return self._start()

    def _start(self) -> subprocess.Popen[str]:
        # In a session of its own: what interrupts this process is for this process to pass on.
        return subprocess.Popen(  # noqa: S603  # a module of ours, by name
            [sys.executable, "-m", self._module],
            start_new_session=True,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, **self._variables},
            text=True,
            encoding="utf-8",
        )


def _ask(
    process: subprocess.Popen[str], piece: Mapping[str, Any], number: int, answers: SimpleQueue[Answer | None]
) -> bool:
    """Hands a piece to a process and passes on what it says; whether it got to the end."""
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
    """Closes a process's input, upon which it tidies up and ends; after a while it is made to."""
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
    """A pool that stays until this process ends, so that several runs load their libraries once."""
    key = (module, size)
    with _lock:
        if key not in _standing:
            _standing[key] = Pool(module, size, variables)
            atexit.register(_standing[key].close)
        return _standing[key]


def processors() -> int:
    """How many threads or processes there are where nobody says how many: one for each processor, at most 8."""
    return min(os.cpu_count() or 1, 8)


def leave(home: str | None) -> NoReturn:
    """Ends this process at once, whatever its threads are at; nothing of the directory `home` stays."""
    if home is not None:
        # A process that becomes another has no thread left that goes on writing where this one removes.
        os.execv(sys.executable, [sys.executable, "-I", "-S", "-c", _REMOVE, home])  # noqa: S606  # a constant
    os._exit(0)
