"""What commands print while they work: lines, and one bar of progress."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import typer

__all__ = ["Tick", "progress", "say", "show"]


Tick = Callable[[str, int, int], None]


def say(line: str) -> None:
    """One line on standard error."""
    print(f"fdaudit: {_visible(line)}", file=sys.stderr)  # noqa: T201


def _visible(text: str) -> str:
    """Text with control characters and directional marks written out: it may come from a stranger's file."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in text)


def show(*lines: str) -> None:
    """Prints lines; a line break inside one is written out, so that no name can pass for a line of ours."""
    print("\n".join(_visible(line) for line in lines))  # noqa: T201


@contextmanager
def progress(quiet: bool) -> Iterator[Tick]:
    """One bar for what is under way, on standard error, where that is a terminal."""
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

        def tick(what: str, done: int, total: int) -> None:
            bars.update(bar, description=what, completed=done, total=total)

        try:
            yield tick
        except KeyboardInterrupt:
            bars.stop()
            say("interrupted; go on with --resume")
            raise typer.Exit(130) from None
