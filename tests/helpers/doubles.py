"""Attacks made for tests: one that shows what it was given, some that misbehave. And a small run to try them on."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from threading import Thread
from typing import Any, BinaryIO, ClassVar

import pytest
import torch

from fdaudit import attacks
from fdaudit.config import Config
from fdaudit.goals.membership import Membership
from fdaudit.isolation import attacker
from fdaudit.isolation.confinement import LAYERS
from fdaudit.isolation.process import serve_cases
from fdaudit.registry import AttackCard, Registry
from fdaudit.rng import child
from fdaudit.types import Applicability

from .run_cases import known, three_clients

SEED = 7_310_948_221_907_113
"""No number that turns up by chance."""

HOOKS: dict[str, Callable[..., Any]] = {}
"""What the doubles call; in a module's global, which the walker leaves out, so that no test is found instead."""


def spec(**changes: Any) -> dict[str, Any]:
    """A federation that runs in a fraction of a second."""
    own = {
        "seed": SEED,
        "dataset": {"name": "digits"},
        "splits": {"candidates": 10},
        "attacks": [{"name": "spy"}],
    }
    return three_clients(**own | changes)


@contextmanager
def registered(*names: str) -> Iterator[None]:
    """Makes these doubles the only attacks there are; they run in a thread of this process."""
    mapping = {n: f"{__name__}:{n.title().replace('-', '')}" for n in names}
    with pytest.MonkeyPatch.context() as patch, in_a_thread():
        patch.setattr(attacks, "REGISTRY", Registry("fdaudit.attacks", mapping))
        yield


_IN_A_THREAD = dict.fromkeys(LAYERS, "it runs in a thread of the tests")


class Beside(attacker.Attacker):
    """An attacker in a thread of this process, for tests that look on: the same frames, the same bytes."""

    alive = True

    def _started(self) -> tuple[BinaryIO, BinaryIO]:
        from_here, to_there = os.pipe()
        from_there, to_here = os.pipe()

        def work() -> None:
            with (
                suppress(BrokenPipeError),  # what was not yet flushed, when the test has gone
                os.fdopen(from_here, "rb") as reading,
                os.fdopen(to_here, "wb") as writing,
            ):
                serve_cases(reading, writing, _IN_A_THREAD, lambda: None)

        Thread(target=work, daemon=True).start()
        return os.fdopen(from_there, "rb"), os.fdopen(to_there, "wb")


@contextmanager
def in_a_thread() -> Iterator[None]:
    """Attacks run in a thread of this process meanwhile, where a test can patch them and look on."""
    attacker.dismiss()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(attacker, "Attacker", Beside)
        yield
        attacker.dismiss()


class NoSettings(Config):
    """Nothing to set."""


class Spy:
    """Hands everything it was given to the test, and guesses at random."""

    card = AttackCard(
        name="spy",
        goal="membership",
        needs=(),
        assumes=(),
        oracle="soft",
        source="a test",
        profiles={"quick": {}, "standard": {}, "full": {}},
    )
    Config: ClassVar[type[NoSettings]] = NoSettings

    def __init__(self, config: NoSettings) -> None:
        self.config = config

    def applicable(self, view: Any, knowledge: Any, task: Any) -> Applicability:
        return Applicability(True)

    def run(self, view: Any, knowledge: Any, task: Any, generator: torch.Generator) -> tuple[Membership, ...]:
        if "spy" in HOOKS:
            HOOKS["spy"](view, knowledge, task, generator)
        return _guess(task, lambda c: torch.rand(len(c.y), generator=generator))


class Noise(Spy):
    """Broken: its scores have nothing to do with the candidates."""

    card = AttackCard(
        name="noise",
        goal="membership",
        needs=(),
        assumes=(),
        oracle="soft",
        source="a test",
        profiles={"quick": {}, "standard": {}, "full": {}},
    )


class Cheat(Spy):
    """Knows the coins of its own controls, whatever the model: it does not measure what a model leaks."""

    card = AttackCard(
        name="cheat",
        goal="membership",
        needs=(),
        assumes=(),
        oracle="soft",
        source="a test",
        profiles={"quick": {}, "standard": {}, "full": {}},
    )

    def run(self, view: Any, knowledge: Any, task: Any, generator: torch.Generator) -> tuple[Membership, ...]:
        return _guess(
            task, lambda c: control_coins(len(c.y), 10) + torch.rand(len(c.y), generator=generator) / 2
        )


class Crash(Spy):
    """Raises what the test says, where the test says."""

    card = AttackCard(
        name="crash",
        goal="membership",
        needs=(),
        assumes=(),
        oracle="soft",
        source="a test",
        profiles={"quick": {}, "standard": {}, "full": {}},
    )

    def __init__(self, config: NoSettings) -> None:
        super().__init__(config)
        HOOKS["crash"]("init", None)

    def applicable(self, view: Any, knowledge: Any, task: Any) -> Applicability:
        HOOKS["crash"]("applicable", task)
        return Applicability(True)

    def run(self, view: Any, knowledge: Any, task: Any, generator: torch.Generator) -> tuple[Membership, ...]:
        made = HOOKS["crash"]("run", task)
        return _guess(task, lambda c: torch.zeros(len(c.y))) if made is None else made


def control_coins(candidates: int, classes: int) -> torch.Tensor:
    """Who is a member in the membership control of `cheat`, from the seed that it should not know."""
    generator = child(known(SEED).working_seed, "control", "models", "design")
    records = HOOKS["auxiliary"]()
    torch.randperm(records, generator=generator)
    torch.randint(classes, (candidates,), generator=generator)
    coins = torch.randint(2, (candidates // 2,), generator=generator).bool()
    return torch.stack([coins, ~coins], 1).flatten().float()


def _guess(task: Any, scores: Callable[[Any], torch.Tensor]) -> tuple[Membership, ...]:
    return tuple(Membership(target=k, scores=scores(c)) for k, c in task.challenges.items())
