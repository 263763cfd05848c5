"""The loop of a worker process: tasks come as lines of JSON, and lines of JSON about them go back.

Guarantees:
  * only these lines go to standard output; everything else goes to standard error;
  * the process ends at once when its input ends, even in the middle of a task, because its parent has ended. It ends
    by `end`, even if a line can no longer be sent.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Mapping
from queue import SimpleQueue
from threading import Thread
from typing import Any, NoReturn

__all__ = ["Say", "serve"]

Say = Callable[[Mapping[str, Any]], None]
"""Sends a line about the task in hand."""


def serve(
    work: Callable[[dict[str, Any], Say], None],
    end: Callable[[], NoReturn],
    prepare: Callable[[], None] = lambda: None,
) -> NoReturn:
    """Work on tasks until the input ends.

    Args:
        work: does one task, and says what became of it.
        end: ends the process; called by another thread when the input has ended.
        prepare: called before there is a second thread.
    """
    tasks = SimpleQueue[dict[str, Any]]()
    out = os.fdopen(os.dup(1), "w", encoding="utf-8", buffering=1)
    os.dup2(2, 1)
    prepare()

    def read() -> None:
        for line in sys.stdin:
            tasks.put(json.loads(line))
        end()

    def say(line: Mapping[str, Any]) -> None:
        print(json.dumps(line), file=out)

    reader = Thread(target=read, daemon=True)
    reader.start()
    while True:
        try:
            work(tasks.get(), say)
            say({"done": True})
        except BrokenPipeError:  # the parent has ended, and `end` needs time to clean up
            reader.join()
