"""The conformance check of an attack."""

from __future__ import annotations

import ast
import inspect
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from fdaudit import attacks
from fdaudit.adversary.forms import with_every_class
from fdaudit.adversary.oracle import Oracle
from fdaudit.adversary.single_terms import with_single_terms
from fdaudit.adversary.task import Attack
from fdaudit.adversary.view import View, open_view
from fdaudit.errors import BudgetExceededError, FdauditError
from fdaudit.goals import GOALS, Guess
from fdaudit.goals.membership import Membership
from fdaudit.isolation.frames import Tensors
from fdaudit.isolation.schema import Trial, packed, packed_guesses, unpacked
from fdaudit.rng import SecretStream
from fdaudit.storage.files import encode
from fdaudit.testing.examples import AttackInputs, Example, FileWatch, examples_of
from fdaudit.testing.extensions import (
    check_settings,
    during,
    fail,
    global_seed,
    has_cuda,
    load_extension,
    read_settings,
    torch_defaults_kept,
)

__all__ = ["check_attack"]

_TRUTH = (
    "audit",
    "evaluation",
    "handout",
    "isolation",
    "metrics",
    "planning",
    "protocols",
    "scoring",
    "storage.vault",
    "transcript.payloads",
    "transcript.transcript",
    "transcript.wire",
)
"""Modules that hold the truth, or lead to it or to other parties' messages."""
_SEED = 11
_PRECISIONS = (torch.float16, torch.float64)
"""Types in which systems that fdaudit did not run send values; views give them in single precision."""


def check_attack(
    attack: type[Attack] | str,
    params: Mapping[str, Any] | None = None,
    *,
    spec: Mapping[str, Any] | None = None,
    any_order: bool = False,
) -> None:
    """Check that an attack keeps the guarantees of its room, on views of small federations.

    It checks that

    * wrong settings are refused with a SpecError that names the field, and the settings of every profile are accepted;
    * it reads its view, knowledge, task and oracle, and neither other files nor modules that hold truth;
    * `applicable` answers no, with a reason, to a view without the messages that the card says it needs; asks no
      oracle; and where it answers yes, `run` returns guesses;
    * the guesses are of the card's goal, one for each victim, and of the victims alone;
    * two runs are equal bit for bit, whatever the global generators hold, and these are never moved;
    * its knowledge, task and view, with its files, are never changed, nor are PyTorch's defaults;
    * it also gives guesses where messages were recorded in half or double precision, or says why it does not apply;
    * it also runs on CUDA, where there is a device.

    Args:
        attack: the class, its public name, or `import:module:Class`.
        params: settings that make it short, in place of those of the profile `quick`.
        spec: a spec of a federation that it applies to, without `attacks`; default: the first of some small ones.
        any_order: whether the attack states that the order of the candidates does not change their scores.

    Raises:
        AssertionError: it breaks a guarantee; the text names it.
    """
    cls = load_extension(attack, attacks.REGISTRY)
    card = cls.card
    config = read_settings(card.name, cls.Config, {**card.profiles["quick"], **(params or {})})
    check_settings(card.name, cls.Config, config.model_dump(mode="json"))
    for profile in ("standard", "full"):
        read_settings(f"{card.name}, profile {profile}", cls.Config, card.profiles[profile])
    _check_imports(card.name, cls)
    checks = _AttackChecks(cls, config)
    with torch_defaults_kept(card.name):
        for example in examples_of(card, spec):
            applying = [adversary for adversary in example.adversaries if checks.applies(example, adversary)]
            if applying:
                break
        else:
            fail(
                card.name,
                "applies to none of the example federations; give the spec of one that it applies to.",
            )
        for adversary in applying:
            checks.check_runs(example, adversary, any_order)
        for dtype in _PRECISIONS:
            checks.check_precision(example, applying[0], dtype)
        if has_cuda(card.name):
            checks.check_runs(example.on_cuda(), applying[0], any_order)


def _check_imports(name: str, cls: type[Attack]) -> None:
    """The attack's module imports nothing that holds the truth."""
    module = sys.modules.get(cls.__module__)
    try:
        source = ast.parse(inspect.getsource(module)) if module else ast.parse("")
    except (OSError, TypeError):
        return
    for node in ast.walk(source):
        targets = []
        if isinstance(node, ast.Import):
            targets = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            targets = [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
        for target in targets:
            unit = target.removeprefix("fdaudit.")
            if unit != target and any(unit == t or unit.startswith(f"{t}.") for t in _TRUTH):
                fail(
                    name,
                    f"imports {target}, from which the truth can be reached; use its view and knowledge.",
                )


class _DirectOracle(Oracle):
    """An oracle that answers in the attack's own thread, which holds the global generators."""

    def __init__(self, oracle: Oracle, reply: Callable[..., Tensor]) -> None:
        super().__init__(oracle.answers, oracle.budget, oracle.models)
        self._reply = reply
        self._noise = SecretStream(b"noise of an oracle of the checks", "oracle")

    def query(self, x: Tensor, of: str | None = None) -> Tensor:
        """Return the answers for samples (n, c, h, w)."""
        n = max(1, len(x))
        if of not in (self.models or (None,)):
            raise FdauditError(f"oracle: {of} has no model to ask; there are {list(self.models) or 'none'}.")
        if n > self.remaining:
            raise BudgetExceededError(f"oracle: {n} samples asked, {self.remaining} of {self.budget} remain.")
        self._spent += n
        return self._reply(self.answers, x, of, self._noise)


class _AttackChecks:
    """An attack that is checked."""

    def __init__(self, cls: type[Attack], config: Any) -> None:
        self.cls, self.config, self.card, self.name = cls, config, cls.card, cls.card.name

    def applies(self, example: Example, adversary: str) -> bool:
        """Return whether the attack applies to an adversary's view, after checks of its answer."""
        with example.adversary(adversary, self.card) as inputs:
            bare = inputs.without_messages()
            if self.card.needs and self._answer(bare.view, bare.trial):
                fail(
                    self.name,
                    "says that it applies to a view without any message or oracle that its card needs.",
                )
            return self._answer(inputs.view, inputs.trial)

    def _answer(self, view: View, trial: Trial) -> bool:
        """Return the answer of `applicable`."""
        oracle = trial.task.oracle
        for first in (True, False):
            with during(self.name, f"applicable() for {view.name}"), global_seed(self.name, 1, first):
                answer = self.cls(self.config).applicable(view, trial.knowledge, trial.task)
        if not hasattr(answer, "ok") or not hasattr(answer, "reason"):
            fail(self.name, "has an `applicable` that returns no Applicability.")
        if isinstance(oracle, Oracle) and oracle.spent:
            fail(self.name, "asks the oracle in `applicable`; ask in `run` only.")
        return bool(answer)

    def check_runs(self, example: Example, adversary: str, any_order: bool) -> None:
        """Check the guesses on one view: twice with other global seeds, and if stated with another order."""
        with example.adversary(adversary, self.card) as inputs:
            first, guesses = self._guesses(inputs, 1)
            self._check_guesses(example, adversary, guesses)
            second, _ = self._guesses(inputs, 2)
            if first != second:
                fail(self.name, "returns other guesses in a second run; draw from `generator` alone.")
            if any_order and GOALS[self.card.goal].challenged:
                # Candidates keep their scores in another order.
                _, reordered = self._guesses(inputs.reversed(), 2)
                for one, two in zip(guesses, reordered, strict=True):
                    if not isinstance(one, Membership) or not isinstance(two, Membership):
                        continue
                    if not torch.allclose(one.scores, two.scores.flip(0)):
                        fail(
                            self.name,
                            "gives candidates other scores in another order, although it states any_order.",
                        )

    def check_precision(self, example: Example, adversary: str, dtype: torch.dtype) -> None:
        """Check that guesses can be had where messages were recorded in another precision."""
        precision = str(dtype).removeprefix("torch.")
        with example.adversary(adversary, self.card, dtype) as inputs:
            try:
                if self._answer(inputs.view, inputs.trial):
                    _, guesses = self._guesses(inputs, 1)
                    self._check_guesses(example, adversary, guesses)
            except AssertionError as error:
                raise AssertionError(f"{error} (with messages recorded as {precision})") from error

    def _guesses(self, inputs: AttackInputs, seed: int) -> tuple[tuple[Any, bytes], Sequence[Guess]]:
        """Return the guesses of a run, as bytes and as they are, with global generators of a seed."""
        tensors = Tensors()
        value = packed(inputs.trial, tensors)
        before = {n: t.clone() for n, t in tensors.named.items()}
        trial = unpacked(value, tensors.named)
        view = with_every_class(with_single_terms(open_view(inputs.view.directory)), trial.knowledge.classes)
        task = trial.task
        if isinstance(task.oracle, Oracle):
            task = replace(task, oracle=_DirectOracle(task.oracle, inputs.reply))

        def run() -> Sequence[Guess]:
            generator = torch.Generator().manual_seed(_SEED)
            with (
                global_seed(self.name, seed, seed == 1),
                FileWatch(inputs.folder, allowed=inputs.allowed) as watch,
            ):
                guesses = self.cls(self.config).run(view, trial.knowledge, task, generator)
            if watch.opened:
                fail(self.name, f"opens {watch.opened[0]}, which is neither its view nor its knowledge.")
            return guesses

        with during(self.name, f"run() on the view of {view.name}"):
            guesses = run()
        if any(not t.equal(tensors.named[n]) for n, t in before.items()):
            fail(self.name, "changes its knowledge or its task; clone tensors first.")
        self._check_view(inputs, view)
        packs = Tensors()
        with during(self.name, "handing over its guesses"):
            rows = packed_guesses(guesses, packs)
            values = encode(packs.named)
        return (rows, values), guesses

    def _check_view(self, inputs: AttackInputs, view: View) -> None:
        """The view and its files are as they were."""
        try:
            again = open_view(inputs.view.directory)
        except FdauditError as error:
            fail(self.name, "writes to the files of its view; keep values in memory.", error)
        same_data = all(
            torch.equal(x, view.own_data[party][0]) and torch.equal(y, view.own_data[party][1])
            for party, (x, y) in again.own_data.items()
        )
        if not same_data or again.hyperparameters != view.hyperparameters:
            fail(self.name, "changes the records or the settings in its view; clone them first.")

    def _check_guesses(self, example: Example, adversary: str, guesses: Sequence[Guess]) -> None:
        """The guesses are of the card's goal, about the victims, and can be scored."""
        goal = GOALS[self.card.goal_on(example.task)]
        if not guesses:
            fail(self.name, "says that it applies, and returns no guess.")
        for guess in guesses:
            if not isinstance(guess, goal.guess):
                fail(
                    self.name,
                    f"returns a {type(guess).__name__}, which is not about {goal.name}, its card's goal.",
                )
        with during(self.name, "the check of its guesses"):
            example.stage.check(adversary, guesses)
