"""Controls of attacks that show classes: the run's own setting, and answers drowned in noise.

The target is the run's network, trained on as many auxiliary records as a client has. The attacker has what it has in
the run: the same auxiliary records (`fdaudit.handout.auxiliary`), withheld classes, query budget per model and form
of answers. Its guesses are measured as the run's are.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from fdaudit.adversary.oracle import Oracle, answer
from fdaudit.adversary.view import View, view_of
from fdaudit.attacks.model_inversion.priors import composites
from fdaudit.data.stratify import stratified_draw
from fdaudit.evaluation.controls._membership import attack_seed
from fdaudit.evaluation.controls.gradients import LEAST_GAIN_DB
from fdaudit.goals import Guess
from fdaudit.goals.reconstruction import Reconstruction
from fdaudit.handout.auxiliary import Assumption, assumptions, known, merged
from fdaudit.handout.oracle_access import answered_by, defended_answers
from fdaudit.handout.oracle_server import answers_of
from fdaudit.isolation.attacker import attack as run_attack
from fdaudit.isolation.schema import Trial
from fdaudit.metrics import Bystanders, score_class_evaluation, score_class_reconstruction
from fdaudit.result import Control
from fdaudit.rng import SecretStream, child, child_numpy
from fdaudit.scoring.class_truth import auxiliary_of, class_priors, judge_of, withheld_of
from fdaudit.storage.cache import computed_once
from fdaudit.storage.scratch import scratch
from fdaudit.training.trainer import Fit, Job, Parameters, draw_batches
from fdaudit.transcript.transcript import Transcript
from fdaudit.types import AttackTask, Figure

if TYPE_CHECKING:
    from fdaudit.adversary.attack_plan import AttackPlan
    from fdaudit.planning.case import Case

__all__ = ["unseen_classes"]

_LEVEL = 0.001
"""Largest p at which the evaluator's accuracy counts: the level of one of 20 such tests of a run."""
_DROWNING = 100.0
"""Noise of the negative control, in standard deviations of the values."""
_STEPS, _BATCH, _RATE = 300, 128, 0.003
_PUBLIC = 1000
"""Public samples of an attack on messages, if the run has none."""
_VICTIM = "client/0"


def unseen_classes(attack: AttackPlan, case: Case, setting: str = "") -> dict[str, Control]:
    """Return both controls of an attack that shows classes.

    The attack's card says in `through` what it receives: `oracle`, `parameters` or `messages`.

    Args:
        attack: the attack.
        case: the run's case.
        setting: `answers` if the run's clients answer an oracle in their messages; else empty.
    """
    made = _design(attack, case, setting)
    if isinstance(made, str):
        return _impossible(attack, made)
    found = {name: made.figures(drown=name == "negative") for name in ("positive", "negative")}
    counted = f"p of at most {_LEVEL:g}, or a gain over the prior of at least {LEAST_GAIN_DB:g} dB"
    what = f"{made.told}: {counted}"
    drowned = (
        f"the same under Gaussian noise {_DROWNING:g} times what is seen of the model: neither of the two"
    )
    return {
        "positive": Control(what=what, passed=_counts(found["positive"]), figures=found["positive"]),
        "negative": Control(
            what=drowned,
            passed=any(f.value is not None for f in found["negative"]) and not _counts(found["negative"]),
            figures=found["negative"],
        ),
    }


def _counts(figures: Sequence[Figure]) -> bool:
    """Return whether figures show that classes leaked."""
    named = {f.name: f for f in figures}
    accuracy, gain = named.get("evaluator_accuracy"), named.get("psnr_gain")
    by_name = accuracy is not None and accuracy.p is not None and accuracy.p <= _LEVEL
    return by_name or (gain is not None and gain.value is not None and gain.value >= LEAST_GAIN_DB)


def _impossible(attack: AttackPlan, reason: str) -> dict[str, Control]:
    figure = Figure(name="psnr_gain", value=None, unit="dB", unavailable=reason)
    what = f"{attack.name} on a model trained on auxiliary records"
    return {n: Control(what=what, passed=False, figures=(figure,)) for n in ("positive", "negative")}


def _design(attack: AttackPlan, case: Case, setting: str) -> _ClassControl | str:
    """Return the control's target and attackers, or the reason why it cannot be made."""
    x, y = case.auxiliary
    own, wanted = _drawn(case), torch.unique(y)
    if len(wanted) < 2 or len(own) < len(wanted):
        return "auxiliary records are too few for a client's share of their classes"
    return _ClassControl(
        attack=attack,
        case=case,
        setting=setting,
        through=str(attack.card.control["through"]),
        assumed=assumptions(case, attack.card),
        own=own,
        weights=_trained(case, x[own], y[own]),
    )


def _drawn(case: Case) -> Tensor:
    """Return the target's training records: as many as the median client has, in the classes' shares."""
    y, sizes = case.auxiliary[1], [len(client.train) for client in case.splits.clients]
    size = min(int(np.median(sizes)), len(y))
    seed = case.seed.to_bytes(8, "big") * 4
    rows, _ = stratified_draw(
        y, size, case.dataset.classes, SecretStream(seed, "control", "classes", "design")
    )
    return rows


def _trained(case: Case, x: Tensor, y: Tensor) -> Parameters:
    """Return the run's network after 300 steps of Adam on some records, the same for all attacks of a run."""
    generator = child(case.seed, "control", "classes", "batches")
    batches, initial = draw_batches(len(y), _BATCH, steps=_STEPS, generator=generator), case.initial()

    def made(_: torch.Generator) -> Parameters:
        job = Job(party="control", parameters=initial, x=x, targets=y, batches=batches)
        return case.trainer().fit([job], Fit(lr=_RATE, optimizer="adam"))[0].parameters

    card = {
        "what": "control: classes",
        "network": case.architecture.described,
        "execution": case.execution.described,
    }
    return computed_once(card, [initial, x, y, *batches], made)


@dataclass(frozen=True, eq=False)
class _ClassControl:
    """A model trained on rows `own` of the auxiliary records, and the attackers that try to invert it."""

    attack: AttackPlan
    case: Case
    setting: str
    through: str
    assumed: Sequence[Assumption]
    own: Tensor
    weights: Parameters

    @property
    def told(self) -> str:
        """Return a description of the control."""
        given = "clients' answers" if self.setting else self.through
        withheld = [len(classes) for classes in withheld_of(self.assumed)]
        lacking = f"{' and '.join(map(str, withheld))} classes withheld" if withheld else "no class withheld"
        return (
            f"the run's network trained on {len(self.own)} auxiliary records, through its {given}, {lacking}"
        )

    def figures(self, drown: bool) -> tuple[Figure, ...]:
        """Return the evaluator's accuracy, chance and prior; PSNR and its gain over the prior come last."""
        found = self._guesses(drown)
        if isinstance(found, str):
            why = f"the attack does not apply to its own control: {found}"
            return (Figure(name="psnr_gain", value=None, unit="dB", unavailable=why),)
        x, y = self.case.auxiliary
        guesses = [g for g in found if isinstance(g, Reconstruction)]
        given = [g.images for g in guesses], [g.labels for g in guesses]
        truth = [x[self.own]] * len(guesses), [y[self.own]] * len(guesses)
        generator, withheld = self._generator(drown), withheld_of(self.assumed)
        priors = class_priors(self.case, self.assumed)
        evaluated = score_class_evaluation(
            *given, *truth, judge_of(self.case.evaluator), generator, priors=priors, withheld=withheld
        )
        left = torch.ones(len(y), dtype=torch.bool)
        left[self.own] = False
        rows = left.nonzero().flatten().numpy()
        beside = Bystanders(x, rows, y[left].numpy()) if len(rows) and not withheld else None
        known_x, known_y = auxiliary_of(self.case, self.assumed)
        scored = score_class_reconstruction(
            *given,
            *truth,
            known_x,
            generator,
            auxiliary_labels=known_y,
            withheld=withheld,
            bystanders=beside,
        )
        wanted = ("psnr", "psnr_prior", "psnr_gain")
        return (*evaluated[:3], *(scored.figures[name] for name in wanted if name in scored.figures))

    def _generator(self, drown: bool) -> np.random.Generator:
        return child_numpy(self.case.seed, "control", self.attack.name, "score", int(drown))

    def _guesses(self, drown: bool) -> tuple[Guess, ...] | str:
        """Return the attackers' guesses about a bare or a drowned model, or why the attack does not apply."""
        ways = {"oracle": self._asked, "parameters": self._read, "messages": self._overheard}
        made = list[tuple[Guess, ...]]()
        for held in self.assumed:
            noise = child(self.case.seed, "control", self.attack.name, "noise")
            with scratch("control") as folder:
                found = ways[self.through](folder, held, _DROWNING if drown else 0.0, noise)
            if isinstance(found, str):
                return found
            made.append(found)
        return merged(made, self.assumed) or "it guessed nothing"

    def _asked(
        self, folder: Path, held: Assumption, scale: float, noise: torch.Generator
    ) -> tuple[Guess, ...] | str:
        """Return the guesses through an oracle, as in the run; noise is added to the logits behind each answer."""
        case, kind = self.case, str(self.attack.card.oracle or "soft")
        models = case.spec.victims if self.setting else 1
        oracle = Oracle(kind, case.spec.query_budget // len(self.assumed) // models)
        task, answering = AttackTask(targets=(_VICTIM,), oracle=oracle, classes=held.lacks), case.trainer()

        def reply(x: Tensor, _: str | None) -> Tensor:
            logits = _drowned(answering.predict(self.weights, x), scale, noise)
            return self._answered(kind, logits) if self.setting else answer(kind, logits)

        return self._run(_view(folder, ()), held, task, reply)

    def _read(
        self, folder: Path, held: Assumption, scale: float, noise: torch.Generator
    ) -> tuple[Guess, ...] | str:
        """Return the guesses from the model's parameters in view."""
        weights = {n: _drowned(t, scale, noise) for n, t in self.weights.items()}
        view = _view(folder, [("server", _VICTIM, "model_parameters", weights)])
        return self._run(view, held, AttackTask(targets=(_VICTIM,), classes=held.lacks))

    def _overheard(
        self, folder: Path, held: Assumption, scale: float, noise: torch.Generator
    ) -> tuple[Guess, ...] | str:
        """Return the guesses from the model's answers to public samples, and their mean with another client's.

        The other client lacks half of the classes.
        """
        (x, y), trainer = self.case.auxiliary, self.case.trainer()
        public = held.public if held.public is not None else composites(x, _PUBLIC, 0.15, noise)
        few = self.own[torch.isin(y[self.own], torch.unique(y[self.own])[::2])]
        logits = _drowned(trainer.predict(self.weights, public), scale, noise)
        own = self._answered("soft", logits, sent=True)
        others = self._answered(
            "soft", trainer.predict(_trained(self.case, x[few], y[few]), public), sent=True
        )
        if own.ndim == 1:
            return "clients answer with classes alone"
        answers = {"index": torch.arange(len(public)), "values": own}
        mean = {"index": torch.arange(len(public)), "values": (own + others) / 2}
        sent = [(_VICTIM, "server", "soft_labels", answers), ("server", _VICTIM, "ensemble_labels", mean)]
        return self._run(
            _view(folder, sent), held, AttackTask(targets=(_VICTIM,), classes=held.lacks), public=public
        )

    def _answered(self, wanted: str, logits: Tensor, sent: bool = False) -> Tensor:
        """Return a client's answers with these logits, through the run's defences on its answer messages.

        For answers in messages, the clients have agreed on a range of logits.
        """
        heard = answered_by(self.case)
        if heard is None:
            return answer(wanted, logits)
        stream = SecretStream(bytes(32), "control", self.attack.name, "answers")
        if not sent:
            return answers_of(self.case, wanted, heard[0], logits, stream)
        return defended_answers(self.case, heard[0], logits, stream, logits.abs().max())[0]

    def _run(
        self,
        view: View,
        held: Assumption,
        task: AttackTask,
        reply: Callable[[Tensor, str | None], Tensor] | None = None,
        public: Tensor | None = None,
    ) -> tuple[Guess, ...] | str:
        knowledge = known(self.case, held, self.attack.card, public=public)
        trial = Trial(knowledge=knowledge, task=task, seed=attack_seed(self.case, self.attack))
        return run_attack(self.attack, view, trial, reply)


def _drowned(values: Tensor, scale: float, generator: torch.Generator) -> Tensor:
    """Return `values` with Gaussian noise of `scale` times their own spread."""
    if not scale:
        return values
    spread = float(values.std()) if values.numel() > 1 else float(values.abs().max())
    return values + scale * spread * torch.randn(values.shape, generator=generator).to(values)


def _view(folder: Path, sent: Sequence[tuple[str, str, str, dict[str, Tensor]]]) -> View:
    """Return the server's view of a few made-up messages; they hold nothing private."""
    with Transcript(folder, secret=bytes(32)) as transcript:
        for sender, receiver, kind, tensors in sent:
            transcript.record(sender, receiver, kind, tensors)
    return view_of(folder, "server", parties=("server", _VICTIM), hyperparameters={})
