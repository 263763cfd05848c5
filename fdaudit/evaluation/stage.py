"""The attack stage: runs every adversary x attack cell on a view, or records why it cannot.

An attack receives four objects (view, knowledge, task with its challenges and oracle handle, generator), in a process
that holds nothing else. The view is first exported to a separate directory, so nothing there leads to the vault, to a
split or to others' messages; see `tests/isolation/test_isolation.py`.
"""

from __future__ import annotations

import math
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from torch import Tensor

from fdaudit.adversary.attack_plan import AttackPlan
from fdaudit.adversary.knowledge import Knowledge
from fdaudit.adversary.oracle import Oracle
from fdaudit.adversary.view import View, export_view, open_view
from fdaudit.errors import RunError, plugin_line
from fdaudit.evaluation.clock import Deadline
from fdaudit.evaluation.controls.kept import kept_controls
from fdaudit.evaluation.controls.rehearsed import Rehearsed
from fdaudit.goals import GOALS, Guess, goal_of
from fdaudit.goals.model_extraction import RELEASED
from fdaudit.handout.auxiliary import Assumption, assumptions, known, merged, others, shared
from fdaudit.handout.handed import Adversary, handed_folder, without_records
from fdaudit.handout.rehearsals import rehearsal_of
from fdaudit.isolation.attacker import AttackFailedError, CellAttacks
from fdaudit.isolation.schema import Trial
from fdaudit.isolation.trials import applies, attack, one_cell
from fdaudit.planning.case import Case
from fdaudit.registry import AttackCard
from fdaudit.result import Canaries, Cell, Control, Controls, Queries, Target, cell_directory
from fdaudit.result.cell import noted
from fdaudit.rng import SecretStream, child_seed
from fdaudit.scoring.goals.scorer import CheckedTask
from fdaudit.scoring.guesses import check_guesses, refuse_another_goal, refuse_too_many
from fdaudit.scoring.run_directory import RunDirectory
from fdaudit.scoring.scoring import keep_scores
from fdaudit.tasks import tasks_named
from fdaudit.training.trainer import Trainer
from fdaudit.transcript.transcript import Position, Transcript
from fdaudit.types import AttackTask, Challenge, Figure

__all__ = ["Adversary", "Stage", "handed_folder", "not_asked", "to_come"]

_NO_MODEL = "a client's own model is not on record, so a copy of it cannot be scored"
_GAIN_FOUND = 1.0
"""dB over the prior. Below it an attack may have looked for images on another scale."""
_MOST_LOGGED = 4 << 20
"""Bytes of questions and answers that an oracle's log keeps in full per cell; later ones are kept as digests."""


class Stage:
    """Runs cells on one finished federation.

    Args:
        run: the run.
        common: a directory for rehearsals that every adversary could run itself; None shares nothing.
    """

    def __init__(self, run: RunDirectory, common: Path | None = None) -> None:
        self.run, self.case, self._common = run, run.case, common
        self._rehearsed = Rehearsed(run)

    # -- what an attack is given ----------------------------------------------------------------------------

    @contextmanager
    def adversary(self, name: str) -> Iterator[Adversary]:
        """Export an adversary's view to a directory of its own, and yield it with a directory for its rehearsals.

        Adversaries share neither directory: rehearsals on one's own records must stay unreadable to others.
        """
        with handed_folder() as folder:
            (scratch := folder / "rehearsals").mkdir()
            export_view(self.run.view(name), folder / "view")
            yield Adversary(name, open_view(folder / "view"), scratch)

    def knowledge(
        self, adversary: Adversary, card: AttackCard | None = None, assumption: Assumption | None = None
    ) -> Knowledge:
        """Return an adversary's assumed knowledge, by an attack's card; it holds no weight of any party."""
        rehearsal = None
        if self.case.stand_in is not None:
            rehearsal = rehearsal_of(self.case, adversary.name, own=adversary.scratch, everybody=self._common)
        return known(self.case, assumption or others(self.case), card, rehearsal, train=self._trainer)

    @cached_property
    def _trainer(self) -> Trainer | None:
        """Return one training core for all that is asked of attacks: to build a large network takes long."""
        return None if self.case.networks is None else self.case.trainer()

    def victims(self, adversary: str) -> tuple[str, ...]:
        """Return the victims: the first clients that do not belong to the adversary, fixed before the run."""
        return self.case.victims(adversary)

    def challenges(self, adversary: str) -> dict[str, Challenge]:
        """Return the membership challenges on an adversary's victims.

        A victim without matched pairs has none, nor has one whose images were not brought.
        """
        if self.case.missing("images"):
            return {}
        challenges = dict[str, Challenge]()
        for client in self.victims(adversary):
            challenge, _ = self.run.truth.challenge(client)
            if len(challenge.y):
                challenges[client] = challenge
        return challenges

    def check(self, adversary: str, guesses: Sequence[Guess], victims: Sequence[str] | None = None) -> None:
        """Refuse guesses that did not come from an attack of this run and cannot be scored.

        Args:
            adversary: whose view was attacked.
            guesses: the guesses.
            victims: whom they are about; default: the run's victims.

        Raises:
            ValueError: the guesses are not about the victims or their challenges.
        """
        view = self.run.view(adversary)
        about = self.victims(adversary) if victims is None else victims
        check_guesses(guesses, self._asked(guesses, about, self.challenges(adversary), view))
        refuse_too_many(guesses, view, self.run.truth)

    def _asked(
        self,
        guesses: Sequence[Guess],
        victims: Sequence[str],
        challenges: Mapping[str, Challenge],
        view: View,
    ) -> CheckedTask:
        """Return what guesses are checked against; copies of models may be of the released one, too."""
        if goal_of(guesses[0]).on_released:
            victims = (*victims, RELEASED)
        return CheckedTask.of(victims, challenges, view, self.case.dataset.classes)

    def score(
        self, cell: str, adversary: str, guesses: Sequence[Guess]
    ) -> tuple[tuple[Figure, ...], tuple[Target, ...]]:
        """Score guesses that did not come from an attack of this run, by the same rules.

        Args:
            cell: the cell's id.
            adversary: whose view was attacked.
            guesses: the guesses, about the run's victims.

        Raises:
            ValueError: the guesses are not about the victims or their challenges.
        """
        self.check(adversary, guesses)
        return self.run.scorer.score(cell, guesses)

    def task(self, adversary: str, attack: AttackPlan, canaries: bool = False) -> AttackTask:
        """Return the task: victims fixed in advance, their challenges, and any oracle handle.

        With `canaries` the victims are the clients with canaries, and the canaries are the candidates.
        """
        members, victims = adversary.split("+"), self.victims(adversary)
        if canaries:
            with_canaries = list[str]()
            for client in self.run.truth.with_canaries:
                if client not in members:
                    with_canaries.append(client)
            victims = tuple(with_canaries)
        challenged = GOALS[attack.card.goal].challenged
        challenges: dict[str, Challenge] = {}
        if challenged and canaries:
            challenges = {k: self.run.truth.canaries(k)[0] for k in victims}
        elif challenged:
            challenges = self.challenges(adversary)
        return AttackTask(
            targets=victims,
            challenges=challenges,
            oracle=self.run.answering.oracle(members, attack.card.oracle),
        )

    # -- one cell -------------------------------------------------------------------------------------------

    def cell(
        self,
        adversary: Adversary,
        attack: AttackPlan,
        beside: Sequence[Path] = (),
        deadline: Deadline | None = None,
    ) -> Cell:
        """Run one cell. An error of the attack fails only this cell, visibly.

        Args:
            adversary: the adversary.
            attack: the attack.
            beside: runs with the same secret, whose controls count here as well.
            deadline: the end of the budget; a cell that has no answer by then was not tested.
        """
        if (unasked := not_asked(self.case, adversary.name, attack)) is not None:
            return unasked
        limit = float(self.case.spec.seconds_per_cell)
        if deadline is not None:
            if deadline.left <= 0:
                return self.untested(adversary.name, attack, deadline.before_its_turn)
            limit = min(limit, deadline.left)
        with one_cell(limit) as tried:
            cell = self._cell(_Base(self.case, adversary.name, attack, tried), adversary, beside, deadline)
        if deadline is not None and cell.status == "failed" and deadline.left <= 0:
            return self.untested(adversary.name, attack, deadline.before_its_end)
        return cell

    def _cell(
        self, base: _Base, adversary: Adversary, beside: Sequence[Path], deadline: Deadline | None
    ) -> Cell:
        attack = base.attack
        task, able = self.case.dataset.task, attack.card.tasks
        if task.name not in able:
            return base.cell("not-applicable", reason=task.unmet(tasks_named(able)))
        if lacking := self.case.lacking(attack):
            return base.cell("not-applicable", reason=lacking)
        try:
            assumed = assumptions(self.case, attack.card)
            issued = self.task(adversary.name, attack)
            guesses, queries, reason = self._tried(base, adversary, issued, assumed)
            if not guesses:
                return base.cell("not-applicable", reason=self._with_advice(reason, attack))
            if not (guesses := self.run.scorer.scorable(guesses)):
                return base.cell("not-applicable", reason=_NO_MODEL)
            figures, targets = self.run.scorer.score(base.id, guesses, assumed)
            figures = tuple(self._annotated(figure, attack) for figure in figures)
            on_canaries, canary_guesses = self._on_canaries(base, adversary)
            if deadline is not None and deadline.left <= 0:  # without controls its figures show nothing
                return base.cell("not-tested", reason=deadline.before_its_end)
            controls = kept_controls(attack, self.run, adversary.name, beside)
            controls |= self._power(attack, adversary, issued, assumed)
            failed = [name for name, control in controls.items() if not control.passed]
            status, reason = "run", ""
            if failed:
                status, reason = "inconclusive", f"its {' and '.join(failed)} control failed"
            cell = base.cell(
                status,
                reason=reason,
                queries=queries,
                figures=figures,
                targets=targets,
                controls=Controls(**controls) if controls else None,
                canaries=on_canaries,
            )
            if GOALS[cell.goal].challenged:
                keep_scores(self.run.vault, cell, guesses, canary_guesses)
        except AttackFailedError as error:
            return base.cell("failed", reason=str(error))
        except Exception as error:  # an attack may be third-party code, and answer anything
            return base.cell("failed", reason=f"{type(error).__name__}: {error}{plugin_line(error)}")
        return cell

    def _annotated(self, figure: Figure, attack: AttackPlan) -> Figure:
        """Return a figure with its doubts: what a card leaves open, or a loss that shadow models do not share."""
        imported = self.case.imported
        if imported is not None and figure.value is not None and figure.value < _GAIN_FOUND:
            figure = noted(figure, imported.preprocess_unsaid, "psnr_gain")
        function = (self.case.settings.get("loss") or {}).get("function")
        if function is not None and "auxiliary" in attack.card.assumes:
            figure = noted(figure, "shadow models use cross-entropy, not the clients' own loss")
        return figure

    def applies(self, adversary: Adversary, attack: AttackPlan) -> bool:
        """Return whether an attack says that it can be tried on an adversary's view; one that fails to say can."""
        if self.case.dataset.task.name not in attack.card.tasks or self.case.lacking(attack):
            return False
        try:
            assumed = assumptions(self.case, attack.card)
            task = shared(self.task(adversary.name, attack), assumed[0], len(assumed))
            knowledge = self.knowledge(adversary, attack.card, assumed[0])
            view = self._visible(adversary, assumed)
            return applies(attack, view, Trial(knowledge=knowledge, task=task, seed=0))
        except Exception:  # its cell will show the error
            return True

    def guesses(self, adversary: Adversary, attack: AttackPlan) -> tuple[Guess, ...]:
        """Return an attack's guesses without a score, for a site that holds the truth.

        Raises:
            AttackFailedError: the attack failed.
            RunError: it does not apply.
        """
        base = _Base(self.case, adversary.name, attack)
        task = self.task(adversary.name, attack)
        with one_cell(self.case.spec.seconds_per_cell):
            guesses, _, reason = self._tried(base, adversary, task, assumptions(self.case, attack.card))
        if not guesses:
            problem = f"does not apply ({self._with_advice(reason, attack)})"
            raise RunError("ATTACK", attack.name, problem, "Choose another attack or adversary.")
        return guesses

    def _with_advice(self, reason: str, attack: AttackPlan) -> str:
        """Return why an attack does not apply, and what would let it, as far as the case knows."""
        return "; ".join(filter(None, (reason, self.case.advice(attack))))

    def failed(self, adversary: str, attack: AttackPlan, reason: str) -> Cell:
        """Return the cell of an attack that could not finish."""
        return _Base(self.case, adversary, attack).cell("failed", reason=reason)

    def untested(self, adversary: str, attack: AttackPlan, reason: str) -> Cell:
        """Return the cell of an attack for which no time was left."""
        return _Base(self.case, adversary, attack).cell("not-tested", reason=reason)

    def _tried(
        self,
        base: _Base,
        adversary: Adversary,
        task: AttackTask,
        assumed: Sequence[Assumption],
        *purpose: str,
    ) -> tuple[tuple[Guess, ...], Queries | None, str]:
        """Return the attack's checked guesses on one task, a summary of its questions, and why there are no guesses."""
        seed = child_seed(self.case.seed, "attack", base.id, *purpose)
        trials = []
        for assumption in assumed:
            knowledge = self.knowledge(adversary, base.attack.card, assumption)
            part = shared(task, assumption, len(assumed))
            trials.append(Trial(knowledge=knowledge, task=part, seed=seed))
        view = self._visible(adversary, assumed)
        by_trial, queries = self._ask("/".join((base.id, *purpose)), base.attack, view, trials)
        if isinstance(by_trial, str):
            return (), None, by_trial
        for guesses in filter(None, by_trial):
            check_guesses(guesses, self._asked(guesses, task.targets, task.challenges, adversary.view))
            refuse_another_goal(guesses, base.goal)
            refuse_too_many(guesses, adversary.view, self.run.truth)
        guesses = merged(by_trial, assumed)
        return guesses, queries, "" if guesses else "no victim has a message that the attack can use"

    def _visible(self, adversary: Adversary, assumed: Sequence[Assumption]) -> View:
        """Return an adversary's view, without its own records if some class is withheld from it."""
        if any(assumption.lacks for assumption in assumed):
            return without_records(adversary, self.run.view(adversary.name))
        return adversary.view

    def _on_canaries(self, base: _Base, adversary: Adversary) -> tuple[Canaries | None, tuple[Guess, ...]]:
        """Try a membership attack on the canaries as well; return its outcome and its guesses."""
        if not GOALS[base.attack.card.goal].challenged:
            return None, ()
        task = self.task(adversary.name, base.attack, canaries=True)
        if not task.challenges:
            return None, ()
        guesses, queries, reason = self._tried(base, adversary, task, (others(self.case),), "canaries")
        return Canaries(queries=queries, reason=reason), guesses

    def _ask(
        self, name: str, asked_for: AttackPlan, view: View, trials: Sequence[Trial]
    ) -> tuple[list[tuple[Guess, ...]] | str, Queries | None]:
        """Run the attack on each trial and serve its oracle; every question and answer is chained from the run's head.

        Returns:
            The guesses on each trial, or why there are none. With an oracle, also the budget, the number of answered
            samples and the models that were asked, and the log's length and head, which protect the end of the log.
        """
        oracle, asker = trials[0].task.oracle, view.name
        if not isinstance(oracle, Oracle):
            return _on_each(attack(asked_for, view, trial) for trial in trials), None
        kind, secret = oracle.answers, self.run.vault.secrets.for_run(self.case.identity)
        start = Position(head=str(self.run.manifest["head"]))
        samples, whose = list[int](), set[str]()
        shape, classes = self.case.dataset.input_shape, self.case.dataset.classes
        width = math.prod(shape) + math.prod(self.case.dataset.task.labels.answer_shape(classes, shape))
        log = Transcript(
            cell_directory(self.run.path, name),
            secret=secret,
            start=start,
            keep=lambda _: 4 * width * sum(samples) <= _MOST_LOGGED,
            log="queries.jsonl",
            salt_path=("oracle", name),
        )
        with log:

            def serve_one(x: Tensor, of: str | None) -> Tensor:
                samples.append(max(1, len(x)))  # a question without samples costs one query
                answerer = of or "oracle"
                whose.add(answerer)
                question = log.record(asker, answerer, "oracle_query", {"samples": x})
                # The head covers the question itself: an attack that runs again may ask other questions.
                noise = SecretStream(secret, "oracle", name, question, log.position.head)
                values = self.run.answering.reply(kind, x, of, noise)
                log.record(answerer, asker, "oracle_answer", {"values": values})
                return values

            by_trial = _on_each(attack(asked_for, view, trial, serve_one) for trial in trials)
            end = log.sync()
        if isinstance(by_trial, str):
            shutil.rmtree(cell_directory(self.run.path, name), ignore_errors=True)
            return by_trial, None
        queries = Queries(
            budget=self.case.spec.query_budget,
            spent=sum(samples),
            asked=tuple(sorted(whose)),
            messages=end.seq,
            head=end.head,
        )
        return by_trial, queries

    def _power(
        self, attack: AttackPlan, adversary: Adversary, task: AttackTask, assumed: Sequence[Assumption]
    ) -> dict[str, Control]:
        """Return the power control of a membership attack; empty if the spec asks for none."""
        challenged = GOALS[attack.card.goal].challenged
        if not challenged or not self.case.spec.rehearses or self.case.stand_in is None:
            return {}
        knowledge = self.knowledge(adversary, attack.card, assumed[0])
        return {"power": self._rehearsed.control(attack, adversary.name, knowledge, task)}


def _on_each(answers: Iterable[tuple[Guess, ...] | str]) -> list[tuple[Guess, ...]] | str:
    """Return the guesses on each trial; stop at the first trial without guesses and return the reason."""
    by_trial = list[tuple[Guess, ...]]()
    for guesses in answers:
        if isinstance(guesses, str):
            return guesses
        by_trial.append(guesses)
    return by_trial


def not_asked(case: Case, adversary: str, attack: AttackPlan) -> Cell | None:
    """Return the cell of an attack that the spec does not ask for or the budget does not hold; None for others."""
    if attack.params is not None and adversary in attack.adversaries:
        if adversary not in attack.left_out:
            return None
        return _Base(case, adversary, attack).cell("not-tested", reason=attack.left_out[adversary])
    what = "this attack" if attack.params is None else "it against this adversary"
    return _Base(case, adversary, attack).cell("not-requested", reason=f"the spec does not ask for {what}")


def to_come(case: Case, adversary: str, attack: AttackPlan) -> Cell:
    """Return the cell, in a provisional report, of an attack that has not run yet."""
    return _Base(case, adversary, attack).cell("not-tested", reason="not run yet")


@dataclass(frozen=True)
class _Base:
    """The fields that all outcomes of one cell have in common."""

    case: Case
    adversary: str
    attack: AttackPlan
    tried: CellAttacks | None = None

    @property
    def id(self) -> str:
        return f"{self.adversary}/{self.attack.name}"

    @property
    def goal(self) -> str:
        return self.attack.card.goal_on(self.case.dataset.task.name)

    def cell(self, status: Any, **values: Any) -> Cell:
        return Cell(
            protocol=self.case.protocol.card.name,
            adversary=self.adversary,
            attack=self.attack.name,
            goal=self.goal,
            source=self.attack.card.source,
            status=status,
            assumes=self.attack.card.assumes,
            needs=self.attack.card.needs,
            reads=self.attack.card.reads,
            params=dict(self.attack.params or {}),
            confinement=None if self.tried is None else self.tried.confinement,
            **values,
        )
