"""The error tree: every error names what is wrong, where, and what to do next."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from difflib import get_close_matches

__all__ = [
    "BudgetExceededError",
    "DataError",
    "FdauditError",
    "IntegrityError",
    "ProtocolError",
    "RunError",
    "SpecError",
    "TrainingDivergedError",
    "UsageError",
    "nearest",
]


_MOST_SHOWN = 200


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
        shown = _shown(value)
        if len(shown) > _MOST_SHOWN:
            shown = shown[: _MOST_SHOWN - 3] + "..."
        super().__init__(f"{field}: {shown} {problem}. {remedy}")


def _shown(value: object) -> str:
    try:
        return repr(value)
    except ValueError:  # Python writes no number of more than 4,300 digits
        return "a value too long to show"


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
        self.findings = tuple(findings)
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


def nearest(value: str, known: Iterable[str]) -> str:
    """Return a remedy that names the valid name nearest to `value`, then all valid names."""
    names = sorted(known)
    close = get_close_matches(value, names, n=1, cutoff=0.5)
    hint = f"Did you mean {close[0]!r}? " if close else ""
    return f"{hint}Valid names: {', '.join(names)}."
