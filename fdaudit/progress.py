"""Output of commands while they work: lines, and one progress bar."""

from __future__ import annotations

import json
import shlex
import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

import typer

from fdaudit.names import visible

__all__ = [
    "TerminatedError",
    "Tick",
    "answer",
    "no_progress",
    "printer",
    "progress",
    "say",
    "show",
    "terminable",
    "typed_again",
]


Tick = Callable[[str, int, int], None]
"""Reports the current activity, the steps done, and their total; a total of 0 makes it a line to print at once."""


def no_progress(what: str, done: int, total: int) -> None:
    """Report nothing: the `Tick` of a caller who asked for none."""


_SECONDS = 30.0
"""Least time between two lines of progress where no bar can be drawn."""


class TerminatedError(KeyboardInterrupt):
    """The process was told to end (SIGTERM); work ends as it does after Ctrl-C."""


@contextmanager
def terminable() -> Iterator[None]:
    """Raise `TerminatedError` in the block when the process is told to end, so that what is done is kept."""

    def end(number: int, frame: FrameType | None) -> None:
        raise TerminatedError

    try:
        earlier = signal.signal(signal.SIGTERM, end)
    except ValueError:  # not the main thread, which alone gets signals
        yield
        return
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, earlier)


def say(line: str) -> None:
    """Print one line on standard error."""
    print(f"fdaudit: {visible(line)}", file=sys.stderr)  # noqa: T201


def show(*lines: str) -> None:
    """Print lines. Line breaks inside one are escaped, so that a name cannot imitate another line."""
    print("\n".join(map(visible, lines)))  # noqa: T201


def answer(value: object, *lines: str, as_json: bool) -> None:
    """Print lines, or with `--json` the value as one line of JSON."""
    if as_json:
        lines = (json.dumps(value),)
    show(*lines)


def printer() -> Callable[[Sequence[str]], None]:
    """Return a function that shows lines at once while a command works, above the bar and outside of redirections.

    Call it before either begins.
    """
    out, beside = sys.stdout, sys.stdout.isatty() and sys.stderr.isatty()

    def shown(lines: Sequence[str]) -> None:
        # A bar on the same terminal moves aside only for what is written to standard error.
        print("\n".join(map(visible, lines)), file=sys.stderr if beside else out, flush=True)

    return shown


def typed_again(*added: str) -> str:
    """Return this process's command as a shell takes it, with the flags of `added` that it lacks."""
    program = [sys.argv[0]]
    if Path(sys.argv[0]).name == "__main__.py":
        program = [sys.executable, "-m", "fdaudit"]
    command = [*program, *sys.argv[1:]]
    for flag in added:
        if flag not in sys.argv:
            command.append(flag)
    return shlex.join(command)


@contextmanager
def progress(quiet: bool, again: str = "") -> Iterator[Tick]:
    """Yield a progress callback that draws one bar on standard error; if that is no terminal, a line now and then.

    Args:
        quiet: show nothing.
        again: the command that goes on, if the user interrupts this one.
    """
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

    console = Console(stderr=True)
    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console, disable=quiet or not console.is_terminal) as bars:
        bar = bars.add_task("preparing", total=None)

        last = time.monotonic()

        def tick(what: str, done: int, total: int) -> None:
            nonlocal last
            if not total:
                if not quiet:
                    say(what)
                return
            bars.update(bar, description=what, completed=done, total=total)
            if not (quiet or console.is_terminal) and time.monotonic() - last >= _SECONDS:
                last = time.monotonic()
                say(f"{what}: {done} of {total}")

        try:
            yield tick
        except KeyboardInterrupt as error:
            bars.stop()
            say(f"interrupted; go on with: {again}" if again else "interrupted")
            raise typer.Exit(143 if isinstance(error, TerminatedError) else 130) from None
