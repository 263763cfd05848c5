"""Sides that cannot share a process: each runs in its own process and does a round on request.

The parent writes a line, the child answers with a line of JSON. `go` is one round, answered with its seconds by the
wall clock. Anything else is a file into which the child writes its parameters. A waiting side reads a pipe.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from safetensors.torch import load_file, save_file
from torch import Tensor

State = dict[str, Tensor]
Pause = Callable[[Callable[[], State]], None]
"""Given what tells the parameters; called before the first round and after each, it returns when a side may go on."""


def pause_on_pipe() -> Pause:
    """In the child: what answers the parent between two rounds. What libraries print goes to standard error."""
    replies = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    began = 0.0

    def pause(state: Callable[[], State]) -> None:
        nonlocal began
        print(json.dumps(time.perf_counter() - began), file=replies)
        while (asked := sys.stdin.readline().rstrip("\n")) != "go":
            if not asked:
                raise SystemExit("the parent has gone")
            save_file({n: t.detach().contiguous() for n, t in state().items()}, asked)
            print(json.dumps(None), file=replies)
        began = time.perf_counter()

    return pause


def round_by_round(step: Callable[[], None], state: Callable[[], State], rounds: int, pause: Pause) -> None:
    """A side whose rounds are calls."""
    pause(state)
    for _ in range(rounds):
        step()
        pause(state)


class Side:
    """In the parent: a child that has started and waits for its first round.

    Args:
        command: what to run, after the interpreter.
        environment: added to the parent's.

    Raises:
        RuntimeError: the child ended; what it wrote to standard error is in the message.
    """

    def __init__(self, command: Sequence[str], environment: Mapping[str, str]) -> None:
        self._log = tempfile.TemporaryFile("w+")  # noqa: SIM115 (closed by `close`)
        began = time.perf_counter()
        self._process = subprocess.Popen(
            [sys.executable, *command],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            text=True,
            env={**os.environ, **environment},
        )
        self._answer()
        self.ready = time.perf_counter() - began
        """Seconds from the start of the process until it could begin its first round."""

    def round(self) -> float:
        """Run one round and return its seconds."""
        self._ask("go")
        return float(self._answer() or 0)

    def parameters(self) -> State:
        """Return the server's current parameters."""
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "state.safetensors"
            self._ask(str(path))
            self._answer()
            return load_file(path)

    def close(self) -> None:
        """Let the child end by itself."""
        if self._process.poll() is None:
            self._ask("go")
            try:
                self._process.wait(timeout=60)
            except subprocess.TimeoutExpired:
                self._process.kill()
        self._process.wait()
        self._log.close()

    def _ask(self, line: str) -> None:
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(f"{line}\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            pass  # the answer that does not come says why

    def _answer(self) -> float | None:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            self._process.wait()
            self._log.seek(0)
            raise RuntimeError(f"{' '.join(self._process.args)} ended:\n{self._log.read()[-4000:]}")
        answer: float | None = json.loads(line)
        return answer
