"""Trials of attacks, each in a process that holds nothing else; this side answers the questions to its oracle.

Guarantees:
  * an attack's answers are bytes, from which plain tensors are rebuilt here, and counted;
  * a question is answered only if its samples fit the network, it names a model of the oracle, and the budget lasts;
  * all attacks of a cell share one deadline.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import replace
from functools import cache
from pathlib import Path
from tempfile import mkdtemp
from typing import TYPE_CHECKING, Any, BinaryIO

from fdaudit.errors import BudgetExceededError, FdauditError, SpecError
from fdaudit.isolation.attacker import AttackFailedError, CellAttacks, attacker_for, stated_reason
from fdaudit.isolation.frames import Frame, MalformedError, Tensors, send
from fdaudit.storage.scratch import remove_tree

if TYPE_CHECKING:
    from torch import Tensor

    from fdaudit.adversary.attack_plan import AttackPlan
    from fdaudit.adversary.oracle import Oracle
    from fdaudit.adversary.view import View
    from fdaudit.goals import Guess
    from fdaudit.isolation.schema import Trial
    from fdaudit.models import Architecture

__all__ = ["applies", "attack", "one_cell", "settings_of"]

_SETTINGS_SECONDS, _ALONE_SECONDS = 600.0, 86_400.0
"""Seconds in which an attack's settings are found, and for an attack that belongs to no cell."""
_LONGEST_SETTINGS = 65_536
"""Most characters of an attack's settings in a result."""
_MOST_REFUSED = 100
"""Questions after a refused one that are still answered with a refusal."""
Reply = Callable[["Tensor", "str | None"], "Tensor"]
"""Maps samples (n, c, h, w) and the party whose model is asked to answers."""
_cell: ContextVar[CellAttacks | None] = ContextVar("cell", default=None)


@contextmanager
def one_cell(seconds: float) -> Iterator[CellAttacks]:
    """Count all attacks of the block as one cell's, with one deadline for all."""
    cell = CellAttacks(seconds)
    token = _cell.set(cell)
    try:
        yield cell
    finally:
        _cell.reset(token)


def attack(
    asked: AttackPlan, view: View, trial: Trial, reply: Reply | None = None
) -> tuple[Guess, ...] | str:
    """Run an attack on a trial in a process that holds nothing else.

    Args:
        asked: the attack and its settings.
        view: the adversary's view; it is exported, unless the process can already read it.
        trial: the attack's other inputs.
        reply: answers the questions to the oracle of its task.

    Returns:
        Its guesses, or the reason why it does not apply.

    Raises:
        AttackFailedError: it raised an error, or its process ended.
        Exception: the exception of `reply`.
    """
    from fdaudit.isolation.schema import guesses_of

    frame = _answered("attack", asked, view, trial, reply)
    if frame.kind == "not-applicable":
        return stated_reason(frame)
    if frame.kind != "guesses":
        raise MalformedError(f"the attack's process answered with {frame.kind!r:.60}")
    most = len(trial.task.targets) + 1  # one for each victim, and for the released model
    return guesses_of(frame.fields.get("guesses"), frame.tensors, most)


def applies(asked: AttackPlan, view: View, trial: Trial) -> bool:
    """Return whether an attack says that it can be tried, from a process as for `attack`; it is not run.

    Raises:
        AttackFailedError: it raised an error, or its process ended.
    """
    return _answered("applies", asked, view, trial, None).kind != "not-applicable"


def _answered(kind: str, asked: AttackPlan, view: View, trial: Trial, reply: Reply | None) -> Frame:
    """Send a trial to a process that holds nothing else, and return its answer."""
    from fdaudit.adversary.oracle import Oracle
    from fdaudit.isolation.schema import packed

    oracle, network = trial.task.oracle, trial.knowledge.architecture
    served, serve = None, None
    if reply is not None and isinstance(oracle, Oracle) and network is not None:
        served = _ServedOracle(oracle, network, reply)
        serve = served.serve
    cell = _cell.get() or CellAttacks(_ALONE_SECONDS)
    # The files of pretrained networks that the adversary knows are public.
    knowledge: Any = trial.knowledge
    reads = set[str]()
    if network is not None:
        reads.update(network.pretrained)
    if knowledge.train is not None:
        reads.update(knowledge.train.architecture.pretrained)
    if knowledge.rehearse is not None:
        for other in knowledge.rehearse.common.networks.distinct:
            reads.update(other.pretrained)
    with (
        attacker_for(asked.own, frozenset(reads)) as attacker,
        _trial_folder(attacker.folder, asked.own) as folder,
    ):
        directory = _laid_out(view, attacker.folder, folder / "view")
        attacker.give(folder)
        tensors = Tensors()
        fields = {
            "target": asked.target,
            "params": dict(asked.params or {}),
            "view": str(directory),
            "trial": packed(_with_own_rehearsals(trial, attacker.folder, folder), tensors),
        }
        try:
            return attacker.ask(kind, fields, tensors, cell, serve)
        finally:
            if served is not None and served.refusal is not None:
                raise served.refusal


@contextmanager
def _trial_folder(above: Path, own: bool) -> Iterator[Path]:
    """Yield a directory of one trial. A third party's goes with its process: nothing is removed under its hands."""
    folder = Path(mkdtemp(dir=above, prefix="trial-"))
    try:
        yield folder
    finally:
        if own:
            remove_tree(folder)


def _laid_out(view: View, readable_below: Path, place: Path) -> Path:
    """Return a directory with the view that the process may read; copy or export the view to `place` if needed."""
    from fdaudit.adversary.view import export_view, is_exported

    if not is_exported(view):
        export_view(view, place)
    elif not view.directory.is_relative_to(readable_below):
        shutil.copytree(view.directory, place)
    else:
        return view.directory
    return place


def _with_own_rehearsals(trial: Trial, readable_below: Path, folder: Path) -> Trial:
    """Return the trial with rehearsal directories that its process may use."""
    rehearsal: Any = trial.knowledge.rehearse
    if rehearsal is None or (rehearsal.own is not None and rehearsal.own.is_relative_to(readable_below)):
        return trial
    own = replace(rehearsal, own=folder, everybody=None)
    return replace(trial, knowledge=replace(trial.knowledge, rehearse=own))


def settings_of(
    name: str, target: str, profile: str, params: Mapping[str, Any], where: str
) -> dict[str, Any]:
    """Return an attack's settings under a profile; a separate process finds them, so its code is not loaded here.

    Raises:
        SpecError: a setting is unknown or out of range, or the attack cannot be loaded.
    """
    return dict(_settings_of(name, target, profile, json.dumps(params, sort_keys=True), where))


@cache
def _settings_of(name: str, target: str, profile: str, params: str, where: str) -> dict[str, Any]:
    request = {
        "name": name,
        "target": target,
        "profile": profile,
        "params": json.loads(params),
        "where": where,
    }
    remedy = "Correct the attack, or uninstall its package."
    try:
        with attacker_for(own=False) as attacker:
            frame = attacker.ask("settings", request, Tensors(), CellAttacks(_SETTINGS_SECONDS))
    except (AttackFailedError, MalformedError) as error:
        raise SpecError(where, target, f"cannot be loaded ({error})", remedy) from None
    fields = frame.fields
    if frame.kind == "wrong":
        field, problem, advice = (str(fields.get(part, "")) for part in ("field", "problem", "remedy"))
        raise SpecError(field, fields.get("value"), problem, advice)
    resolved = fields.get("params")
    if frame.kind != "settings" or not isinstance(resolved, dict):
        raise SpecError(where, target, "cannot be loaded (it gave no settings)", remedy)
    if len(json.dumps(resolved)) > _LONGEST_SETTINGS:
        raise SpecError(where, target, f"has settings of more than {_LONGEST_SETTINGS} characters", remedy)
    return resolved


# -- the oracle -------------------------------------------------------------------------------------------------


class _ServedOracle:
    """The auditor's side of an oracle: counts questions, and keeps the first error as the reason to refuse all others.

    Attributes:
        refusal: that error; None while every question could be answered.
    """

    def __init__(self, oracle: Oracle, network: Architecture, reply: Reply) -> None:
        self._oracle, self._network, self._reply = oracle, network, reply
        self._left = oracle.budget
        self._refused = 0
        self.refusal: Exception | None = None

    def serve(self, frame: Frame, writing: BinaryIO) -> None:
        """Answer a question, or report that it cannot be answered.

        Raises:
            MalformedError: the process does not stop to ask after a refusal.
        """
        if self.refusal is None:
            try:
                values = self._reply(*self._checked(frame))
            except Exception as error:  # raised after the attack has ended
                self.refusal = error
            else:
                send(writing, "answer", {}, {"values": values})
                return
        self._refused += 1
        if self._refused > _MOST_REFUSED:
            raise MalformedError("the attack's process did not stop to ask")
        send(writing, "refused", {"reason": "the question could not be answered"}, {})

    def _checked(self, frame: Frame) -> tuple[Tensor, str | None]:
        """Return the samples of a question and the party that it asks, and charge it to the budget."""
        from fdaudit.isolation.schema import question_of

        question = question_of(frame.fields.get("question"), frame.tensors)
        x, of = question.samples, question.of
        shape, words = self._network.input_shape, self._network.words
        if words:
            fits, reads = _are_tokens(x, words), f"texts of {words} words"
        else:
            fits, reads = x.is_floating_point(), self._network.reads
        if not fits or x.ndim != 1 + len(shape) or tuple(x.shape[1:]) != shape:
            expected = f"{reads} (n, {', '.join(map(str, shape))})"
            raise FdauditError(f"oracle: asked {x.dtype} of shape {tuple(x.shape)}, not {expected}.")
        if of not in (self._oracle.models or (None,)):
            raise FdauditError(f"oracle: {of!r:.60} has no model to ask.")
        self._left -= max(1, len(x))  # each question costs work, so their number is bounded too
        if self._left < 0:
            raise BudgetExceededError(f"oracle: more was asked than the budget of {self._oracle.budget}.")
        return x, of


def _are_tokens(x: Tensor, words: int) -> bool:
    """Return whether every entry is the number of a word."""
    return str(x.dtype) == "torch.int64" and bool(((x >= 0) & (x < words)).all())
