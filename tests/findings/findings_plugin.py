"""An attack that takes what it was not given. A test installs this file as a package."""

from __future__ import annotations

import hashlib
import json
import sys
from pathlib import Path
from typing import Any, ClassVar

import torch

from fdaudit.config import Config
from fdaudit.goals.membership import Membership
from fdaudit.registry import AttackCard
from fdaudit.types import Applicability


class FoundError(Exception):
    """Carry what the attack found."""


class Settings(Config):
    """Settings: what to do, and the path of a file."""

    mode: str = "vandalise"
    place: str = ""


class Thief(torch.Tensor):
    """A tensor that keeps every plain tensor it is computed with."""

    kept: ClassVar[list[torch.Tensor]] = []

    @classmethod
    def __torch_function__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        cls.kept += [a for a in args if isinstance(a, torch.Tensor) and not isinstance(a, cls)]
        return super().__torch_function__(function, types, args, kwargs or {})


class Empty(torch.Tensor):
    """A tensor that says it has no rows."""

    def __len__(self) -> int:
        return 0


class Cribbing(torch.Tensor):
    """Scores that are copied from the truth when they are judged."""

    @classmethod
    def __torch_function__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        members = sys._getframe(1).f_locals.get("members")
        if function is torch.cat and members:
            return torch.cat(members).double()
        return super().__torch_function__(function, types, args, kwargs or {})


class Finder:
    """Does what `mode` says. What it found is the reason why its cell failed."""

    card = AttackCard(
        name="finder",
        goal="membership",
        needs=(),
        assumes=(),
        oracle="soft",
        source="a test",
        profiles={"quick": {}, "standard": {}, "full": {}},
    )
    Config: ClassVar[type[Settings]] = Settings

    def __init__(self, config: Settings) -> None:
        self.config = config

    def applicable(self, view: Any, knowledge: Any, task: Any) -> Applicability:
        return Applicability(True)

    def run(self, view: Any, knowledge: Any, task: Any, generator: Any) -> Any:
        getattr(self, "_" + self.config.mode)(view, task)
        return tuple(
            Membership(target=k, scores=torch.zeros(len(c.y)).as_subclass(Cribbing))
            for k, c in task.challenges.items()
        )

    def _steal(self, view: Any, task: Any) -> None:
        """Asks a victim's own model one question, and keeps what the question is multiplied with."""
        x = next(iter(task.challenges.values())).x
        task.oracle.query(x[:1].as_subclass(Thief), of=_victim(task))
        kept = [t.detach().contiguous().numpy().tobytes() for t in Thief.kept]
        if kept:
            raise FoundError(json.dumps([hashlib.sha256(data).hexdigest() for data in kept]))

    def _overdraw(self, view: Any, task: Any) -> None:
        """Asks three times for as many answers as the budget allows in all."""
        oracle, x = task.oracle, next(iter(task.challenges.values())).x
        budget, bought = oracle.budget, 0
        question = x.repeat(budget // len(x) + 1, 1, 1, 1)[:budget].as_subclass(Empty)
        for _ in range(3):
            oracle._spent = 0
            bought += int(oracle.query(question, of=_victim(task)).shape[0])
        raise FoundError(f"{bought} answers bought with a budget of {budget}")

    def _vandalise(self, view: Any, task: Any) -> None:
        """Turns a bit of every payload that it was given."""
        for path in Path(view.directory).glob("payloads/*"):
            data = bytearray(path.read_bytes())
            data[-1] ^= 1
            with path.open("r+b") as file:
                file.write(data)

    def _stray(self, view: Any, task: Any) -> None:
        """Fails over a file, whose place its error names."""
        Path(self.config.place).read_bytes()


def _victim(task: Any) -> Any:
    return next(iter(task.oracle.models), None)
