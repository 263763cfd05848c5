"""The error tree: every error names what is wrong, where, and what to do next."""

from __future__ import annotations

import sysconfig
import traceback
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from difflib import get_close_matches
from functools import cache
from importlib.metadata import entry_points
from pathlib import Path

from fdaudit.names import visible

__all__ = [
    "BudgetExceededError",
    "DataError",
    "FdauditError",
    "IntegrityError",
    "Mistakes",
    "ProtocolError",
    "RunError",
    "SpecError",
    "TrainingDivergedError",
    "UsageError",
    "nearest",
    "one_line",
    "plugin_line",
    "reason_of",
]


_MOST_SHOWN, _MOST_NAMES, _MOST_MISTAKES = 200, 12, 20
_GROUPS = ("fdaudit.attacks", "fdaudit.defenses", "fdaudit.deviations", "fdaudit.protocols")


class FdauditError(Exception):
    """A refusal or failure of fdaudit; `exit_code` is the command line's exit code."""

    exit_code = 1


class UsageError(FdauditError):
    """Bad input: one field, its value, and the remedy.

    Args:
        field: dotted name of the offending field, as the user wrote it.
        value: the offending value.
        problem: what is wrong with it, as a clause ("is not a known dataset").
        remedy: how to fix it, as an imperative sentence.
    """

    exit_code = 2

    def __init__(self, field: str, value: object, problem: str, remedy: str) -> None:
        self.field, self.value, self.problem, self.remedy = field, value, problem, remedy
        self.others: tuple[UsageError, ...] = ()
        try:
            excerpt = repr(value)
        except (ValueError, RecursionError):  # of more than 4,300 digits, or of deep nesting
            excerpt = "a value too long to show"
        if len(excerpt) > _MOST_SHOWN:
            excerpt = excerpt[: _MOST_SHOWN - 3] + "..."
        super().__init__(visible(f"{field}: {excerpt} {problem}. {remedy}"))

    @property
    def all(self) -> tuple[UsageError, ...]:
        """Return this mistake and the others that were found with it."""
        return (self, *self.others)


class Mistakes:
    """The mistakes of steps that do not depend on each other, so that a user reads all of them at once."""

    def __init__(self) -> None:
        self._found: list[UsageError] = []

    @contextmanager
    def apart(self) -> Iterator[None]:
        """Keep a mistake of the steps within, and go on after them."""
        try:
            yield
        except UsageError as error:
            self._found += error.all

    def refuse(self) -> None:
        """Raise the first mistake, with as many others as a user reads; nothing if there is none."""
        if self._found:
            first, *others = self._found
            first.others = tuple(others[: _MOST_MISTAKES - 1])
            raise first


class SpecError(UsageError):
    """A field of a spec is unknown, of the wrong type, out of range, or in conflict with others."""


class DataError(UsageError):
    """A dataset is absent, damaged or unsuitable for the requested partition."""


class RunError(UsageError):
    """A run directory is missing, unfinished or occupied."""


class IntegrityError(FdauditError):
    """A record does not match its digests.

    Args:
        findings: one sentence per defect, which names the file and any message.
    """

    exit_code = 3

    def __init__(self, findings: Sequence[str]) -> None:
        self.findings = tuple(map(visible, findings))
        super().__init__("; ".join(self.findings))


class ProtocolError(FdauditError):
    """A protocol broke its own declaration (an undeclared message kind, an unknown party)."""


class TrainingDivergedError(FdauditError):
    """A loss became NaN or infinite.

    Args:
        party: the party whose model diverged.
        step: number of its step, from 0.
        value: the loss.
    """

    def __init__(self, party: str, step: int, value: float) -> None:
        self.party, self.step, self.value = party, step, value
        super().__init__(f"{party}: the loss at local step {step} is {value}. Lower the learning rate.")


class BudgetExceededError(FdauditError):
    """An attack asked its oracle more often than its budget allows."""


def plugin_line(error: BaseException) -> str:
    """Return the innermost line of a plug-in that an error passed through, as ` (FILE, line N)`, or nothing.

    A plug-in is code that fdaudit called and that is neither its own nor a library's.
    """
    packages: set[str] = set()
    for group in _GROUPS:
        for entry in entry_points(group=group):
            packages.add(entry.value.partition(":")[0].partition(".")[0])
    own = str(Path(__file__).parent)
    called, where = False, ""
    for frame, line in traceback.walk_tb(error.__traceback__):
        file, name = frame.f_code.co_filename, str(frame.f_globals.get("__name__", ""))
        if name.partition(".")[0] == "fdaudit" or file.startswith(own):
            called = True
        elif called and not file.startswith("<"):
            library = any(Path(file).is_relative_to(place) for place in _libraries())
            if not library or name.partition(".")[0] in packages:
                where = f" ({file}, line {line})"
    return where


@cache
def _libraries() -> tuple[str, ...]:
    return tuple(map(sysconfig.get_path, ("stdlib", "platstdlib", "purelib", "platlib")))


def one_line(error: BaseException) -> str:
    """Return the type of an error and the first line of its words, without the full stop."""
    words = str(error).partition("\n")[0].rstrip(". ")
    return f"{type(error).__name__}: {words}"


def reason_of(error: Exception) -> str:
    """Return why an operation failed, in the system's words where it has some."""
    return getattr(error, "strerror", None) or str(error)


def nearest(value: str, known: Iterable[str]) -> str:
    """Return a remedy that names the valid name nearest to `value`, and all valid names unless these are many."""
    names = sorted(known)
    close = get_close_matches(value, names, n=1, cutoff=0.5)
    hint = f"Did you mean {close[0]!r}?" if close else ""
    return hint if hint and len(names) > _MOST_NAMES else f"{hint} Valid names: {', '.join(names)}.".strip()
