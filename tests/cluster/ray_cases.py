"""What the tests on Ray share: a cluster of this machine's own, and who is at work on it."""

from __future__ import annotations

import gc
import os
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from fdaudit.cluster import connection
from fdaudit.errors import UsageError


@contextmanager
def cluster(temporary: Path) -> Iterator[Path]:
    """A cluster with two workers, which keep temporary files in `temporary`; skips where Ray is absent."""
    pytest.importorskip("ray")
    with connection._variables({"TMPDIR": str(temporary)}), ExitStack() as stack:
        assert _connected(stack) == 2
        yield temporary


def _connected(stack: ExitStack) -> int:
    """Start a cluster, up to three times: Ray's node dies if its agent takes 15 seconds to start beside other work."""
    for _ in range(2):
        with suppress(UsageError):
            return stack.enter_context(connection.connected(2, None))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ResourceWarning)  # the dead node's processes
            gc.collect()
    return stack.enter_context(connection.connected(2, None))


@contextmanager
def unseen(scratch: Path) -> Iterator[Path]:
    """In the place of `connection.marked`: no node sees this machine's directories."""
    yield scratch / "nobody sees this"


@contextmanager
def cancellations() -> Iterator[list[Any]]:
    """What Ray is asked to cancel from here on. It is not to be asked for what has ended or is about to: it ends the
    process that asks, or the worker that is at the next task already."""
    import ray

    asked, real = list[Any](), ray.cancel

    def cancel(what: Any, **options: Any) -> None:
        asked.append(what)
        real(what, **options)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ray, "cancel", cancel)
        yield asked


def descendants(pid: int) -> dict[int, str]:
    """Processes below another, by number, with their command lines."""
    return {child: line for child, (_, line) in _below(pid).items()}


def workers_of(module: str) -> set[int]:
    """The workers of Ray below this process that have a process of `module`."""
    below = _below(os.getpid())
    found = {parent for parent, line in below.values() if f"-m {module}" in line}
    # What was orphaned has another parent while it goes.
    return {pid for pid in found if below.get(pid, (0, ""))[1].startswith("ray::")}


def _below(pid: int) -> dict[int, tuple[int, str]]:
    """Processes below another, by number, with their parents and command lines."""
    parents, lines = {}, {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            parents[int(stat.parent.name)] = int(stat.read_text().rpartition(")")[2].split()[1])
            lines[int(stat.parent.name)] = (stat.parent / "cmdline").read_text().replace("\0", " ")
        except OSError:
            continue
    found = {pid}
    while more := {child for child, parent in parents.items() if parent in found} - found:
        found |= more
    return {child: (parents[child], lines[child]) for child in found - {pid}}


def until(condition: Callable[[], Any], seconds: float = 60) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.02)
