"""Controls of attacks that show classes: the run's own setting, and answers drowned in noise.

The target is the run's network, trained on as many auxiliary records as a client has. The attacker has what it has in
the run: the same auxiliary records (`fdaudit.handout.auxiliary`), withheld classes, query budget per model and form
of answers. Its guesses are measured as the run's are.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from fdaudit.adversary.oracle import Oracle, answer
from fdaudit.attacks.model_inversion.priors import composites
from fdaudit.data.stratify import stratified_draw
from fdaudit.evaluation.controls._case import VICTIM, Attempt, Figures, Sent, SmallCase, impossible, said
from fdaudit.evaluation.controls.gradients import LEAST_GAIN_DB
from fdaudit.goals.reconstruction import Reconstruction
from fdaudit.handout.auxiliary import Assumption, assumptions, known
from fdaudit.handout.oracle_access import answered_by, defended_answers
from fdaudit.handout.oracle_server import answers_of
from fdaudit.metrics import Bystanders, score_class_evaluation, score_class_reconstruction
from fdaudit.result import Control
from fdaudit.rng import SecretStream, child, child_numpy
from fdaudit.scoring.class_truth import auxiliary_of, class_priors, judge_of, withheld_of
from fdaudit.storage.cache import computed_once
from fdaudit.training.trainer import Fit, Job, Parameters, draw_batches
from fdaudit.types import AttackTask

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
_LEADING = ("psnr_gain", "dB")


def unseen_classes(attack: AttackPlan, case: Case, setting: str = "") -> dict[str, SmallCase | Control]:
    """Return both cases of an attack that shows classes.

    The attack's card says in `through` what it receives: `oracle`, `parameters` or `messages`.

    Args:
        attack: the attack.
        case: the run's case.
        setting: `answers` if the run's clients answer an oracle in their messages; else empty.
    """
    x, y = case.auxiliary
    own, classes = _drawn(case), torch.unique(y)
    if len(classes) < 2 or len(own) < len(classes):
        reason = "auxiliary records are too few for a client's share of their classes"
        lost = impossible(f"{attack.name} on a model trained on auxiliary records", _LEADING, reason)
        return {"positive": lost, "negative": lost}
    through = str(attack.card.control["through"])
    assumed = assumptions(case, attack.card)
    model = _Model(attack, case, setting, len(assumed), own, _trained(case, x[own], y[own]))
    ways = {"oracle": model.asked, "parameters": model.read, "messages": model.overheard}
    withheld = " and ".join(str(len(classes)) for classes in withheld_of(assumed))
    lacking = f"{withheld} classes withheld" if withheld else "no class withheld"
    source = "clients' answers" if setting else through
    what = f"the run's network trained on {len(own)} auxiliary records, through its {source}, {lacking}"
    leaked = f"p of at most {_LEVEL:g}, or a gain over the prior of at least {LEAST_GAIN_DB:g} dB"
    drowned = f"the same under Gaussian noise {_DROWNING:g} times what is seen of the model"

    def silent(figures: Figures) -> bool:
        return any(f.value is not None for f in figures.values()) and not _leaked(figures)

    cases = dict[str, SmallCase | Control]()
    for name, words, passes, scale in (
        ("positive", f"{what}: {leaked}", _leaked, 0.0),
        ("negative", f"{drowned}: neither of the two", silent, _DROWNING),
    ):
        cases[name] = SmallCase(
            what=words,
            attempts=[ways[through](assumption, scale) for assumption in assumed],
            score=partial(_scored, attack, case, assumed, own, name == "negative"),
            passes=passes,
            leading=_LEADING,
        )
    return cases


def _leaked(figures: Figures) -> bool:
    """Return whether figures show that classes leaked."""
    accuracy, gain = figures.get("evaluator_accuracy"), figures.get("psnr_gain")
    by_name = accuracy is not None and accuracy.p is not None and accuracy.p <= _LEVEL
    return by_name or (gain is not None and gain.value is not None and gain.value >= LEAST_GAIN_DB)


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

    def train(_: torch.Generator) -> Parameters:
        job = Job(party="control", parameters=initial, x=x, targets=y, batches=batches)
        return case.trainer().fit([job], Fit(lr=_RATE, optimizer="adam"))[0].parameters

    card = {
        "what": "control: classes",
        "network": case.architecture.described,
        "execution": case.execution.described,
    }
    return computed_once(card, [initial, x, y, *batches], train)


@dataclass(frozen=True, eq=False)
class _Model:
    """A model trained on rows `own` of the auxiliary records, and what an adversary is given of it."""

    attack: AttackPlan
    case: Case
    setting: str
    adversaries: int
    own: Tensor
    weights: Parameters

    @property
    def _noise(self) -> torch.Generator:
        return child(self.case.seed, "control", self.attack.name, "noise")

    def asked(self, held: Assumption, scale: float) -> Attempt:
        """Return an attempt through an oracle, as in the run; noise is added to the logits behind each answer."""
        case, kind = self.case, str(self.attack.card.oracle or "soft")
        models = case.spec.victims if self.setting else 1
        oracle = Oracle(kind, case.spec.query_budget // self.adversaries // models)
        trainer, noise = case.trainer(), self._noise

        def reply(x: Tensor, _: str | None) -> Tensor:
            logits = _drowned(trainer.predict(self.weights, x), scale, noise)
            return self._answered(kind, logits) if self.setting else answer(kind, logits)

        return self._attempt(held, [], oracle=oracle, reply=reply)

    def read(self, held: Assumption, scale: float) -> Attempt:
        """Return an attempt with the model's parameters in view."""
        noise = self._noise
        weights = {n: _drowned(t, scale, noise) for n, t in self.weights.items()}
        return self._attempt(held, [("server", VICTIM, "model_parameters", weights)])

    def overheard(self, held: Assumption, scale: float) -> Attempt:
        """Return an attempt with the model's answers to public samples, and their mean with another client's.

        The other client lacks half of the classes.
        """
        (x, y), trainer, noise = self.case.auxiliary, self.case.trainer(), self._noise
        public = held.public if held.public is not None else composites(x, _PUBLIC, 0.15, noise)
        few = self.own[torch.isin(y[self.own], torch.unique(y[self.own])[::2])]
        another = _trained(self.case, x[few], y[few])
        logits = _drowned(trainer.predict(self.weights, public), scale, noise)
        own = self._answered("soft", logits, sent=True)
        others = self._answered("soft", trainer.predict(another, public), sent=True)
        if own.ndim == 1:
            return self._attempt(held, "clients answer with classes alone", public=public)
        answers = {"index": torch.arange(len(public)), "values": own}
        mean = {"index": torch.arange(len(public)), "values": (own + others) / 2}
        messages = [(VICTIM, "server", "soft_labels", answers), ("server", VICTIM, "ensemble_labels", mean)]
        return self._attempt(held, messages, public=public)

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

    def _attempt(
        self,
        held: Assumption,
        sent: Sequence[Sent] | str,
        *,
        oracle: Oracle | None = None,
        reply: Callable[[Tensor, str | None], Tensor] | None = None,
        public: Tensor | None = None,
    ) -> Attempt:
        """Return an adversary's attempt on these messages, or the reason why there are none."""
        record = (
            sent if isinstance(sent, str) else said(self.attack, self.case, sent, parties=("server", VICTIM))
        )
        return Attempt(
            record=record,
            knowledge=known(self.case, held, self.attack.card, public=public),
            task=AttackTask(targets=(VICTIM,), oracle=oracle, classes=held.lacks),
            reply=reply,
            assumed=held,
        )


def _drowned(values: Tensor, scale: float, generator: torch.Generator) -> Tensor:
    """Return `values` with Gaussian noise of `scale` times their own spread."""
    if not scale:
        return values
    spread = float(values.std()) if values.numel() > 1 else float(values.abs().max())
    return values + scale * spread * torch.randn(values.shape, generator=generator).to(values)


def _scored(
    attack: AttackPlan,
    case: Case,
    assumed: Sequence[Assumption],
    own: Tensor,
    drowned: bool,
    guesses: Sequence[Reconstruction],
) -> Figures:
    """Return the evaluator's accuracy, chance and prior; PSNR and its gain over the prior come last."""
    x, y = case.auxiliary
    images, labels = [guess.images for guess in guesses], [guess.labels for guess in guesses]
    truth = [x[own]] * len(guesses), [y[own]] * len(guesses)
    withheld, priors = withheld_of(assumed), class_priors(case, assumed)
    draws = child_numpy(case.seed, "control", attack.name, "score", int(drowned))
    evaluated = score_class_evaluation(
        images, labels, *truth, judge_of(case.evaluator), draws, priors=priors, withheld=withheld
    )
    outside = torch.ones(len(y), dtype=torch.bool)
    outside[own] = False
    bystanders = None
    if outside.any() and not withheld:
        bystanders = Bystanders(x, outside.nonzero().flatten().numpy(), y[outside].numpy())
    auxiliary_x, auxiliary_y = auxiliary_of(case, assumed)
    compared = score_class_reconstruction(
        images,
        labels,
        *truth,
        auxiliary_x,
        draws,
        auxiliary_labels=auxiliary_y,
        withheld=withheld,
        bystanders=bystanders,
    ).figures
    figures = {figure.name: figure for figure in evaluated[:3]}
    for name in ("psnr", "psnr_prior", "psnr_gain"):
        if name in compared:
            figures[name] = compared[name]
    return figures
