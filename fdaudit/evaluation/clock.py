"""The time of an attack stage with a budget: when it is spent, and how much of it earlier attempts took."""

from __future__ import annotations

import time
from dataclasses import dataclass, field

from fdaudit.config import validate
from fdaudit.errors import IntegrityError, RunError, SpecError
from fdaudit.result import Budget, in_words
from fdaudit.storage.files import load_json, save_json
from fdaudit.storage.vault import Vault

__all__ = ["Clock", "Deadline", "forget_budget", "kept_budget"]

_FILE = "budget.json"


@dataclass(frozen=True, kw_only=True)
class Deadline:
    """The end of a budget.

    Attributes:
        until: the time at which it is spent, in seconds since 1970.
        budget: its seconds.
    """

    until: float
    budget: float

    @property
    def left(self) -> float:
        """Return the seconds that are left; negative once it is spent."""
        return self.until - time.time()

    @property
    def before_its_turn(self) -> str:
        """Return why a cell was not run."""
        return f"not run: the budget of {in_words(self.budget)} was spent before its turn"

    @property
    def not_in_time(self) -> str:
        """Return why a cell has no answer, whether or not it was begun."""
        return f"no answer in time: the budget of {in_words(self.budget)} was spent"

    @property
    def before_its_end(self) -> str:
        """Return why a cell was stopped."""
        return f"stopped: the budget of {in_words(self.budget)} was spent before its end"


@dataclass(eq=False)
class Clock:
    """The time that an attack stage with a budget has taken, over all attempts; the vault keeps it.

    Attributes:
        vault: the run's vault.
        budget: the budget.
        spent: seconds that earlier attempts took.
        begun: when this attempt began, in seconds since 1970.
    """

    vault: Vault
    budget: Budget
    spent: float = 0.0
    begun: float = field(default_factory=time.time)

    @property
    def deadline(self) -> Deadline:
        """Return when the budget of the stage is spent."""
        return Deadline(until=self.begun + self.budget.attacks - self.spent, budget=self.budget.seconds)

    def note(self) -> None:
        """Keep the budget, and the time that was spent by now."""
        seconds = self.spent + time.time() - self.begun
        value = {"budget": self.budget.plain(), "spent": round(max(0.0, seconds), 3)}
        save_json(self.vault.directory / _FILE, value, sync=False)


def kept_budget(vault: Vault) -> Clock | None:
    """Return the budget of a run's last attack stage, with the time that it has taken; None if it had none.

    Raises:
        RunError: the file holds something else.
    """
    path = vault.directory / _FILE
    if not path.exists() and not path.is_symlink():
        return None
    try:
        value = load_json(path)
        budget, seconds = validate(Budget, value["budget"], _FILE), float(value["spent"])
    except (IntegrityError, OSError, SpecError, KeyError, TypeError, ValueError):
        remedy = "Remove the file, and run the attacks again: `fdaudit attack RUN --all`."
        raise RunError(_FILE, str(path), "holds no budget of an attack stage", remedy) from None
    return Clock(vault, budget, seconds)


def forget_budget(vault: Vault) -> None:
    """Remove the budget of an earlier attack stage: another stage without one begins."""
    (vault.directory / _FILE).unlink(missing_ok=True)
