"""Attacks that invert a whole model are tried on classes that only the model has seen, and on drowned answers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from fdaudit.attacks.model_inversion.priors import composites
from fdaudit.cache import computed_once
from fdaudit.controls._membership import attack_seed
from fdaudit.isolation.attacker import attack as run_attack
from fdaudit.isolation.schema import Case
from fdaudit.knowledge import Knowledge
from fdaudit.metrics import ImageScore, mean_figure, score_class_reconstruction
from fdaudit.oracle import Oracle, answer
from fdaudit.result import Control
from fdaudit.rng import child, child_numpy
from fdaudit.scratch import scratch
from fdaudit.training import Fit, Job, Parameters, draw_batches
from fdaudit.transcript import Transcript
from fdaudit.types import AttackTask, Figure, Reconstruction
from fdaudit.view import View, view_of

if TYPE_CHECKING:
    from fdaudit.plan import AttackPlan, Plan

__all__ = ["withheld_classes"]

_LEAST_GAIN_DB = 0.5
"""A control counts as working from this mean gain over the prior baseline on."""
_DROWNING = 100.0
"""Noise of the negative control, in standard deviations of what it is added to."""
_MOST_RECORDS = 2000
_STEPS, _BATCH, _RATE = 300, 128, 0.003
_PUBLIC = 1000
"""Public samples of an attack on messages."""


def withheld_classes(attack: AttackPlan, plan: Plan) -> dict[str, Control]:
    """Both controls: a model of all classes, and an attacker whose auxiliary images lack half of them.

    Scored are the attacker's guesses of the classes that it lacks, against the records that the model was trained on.
    Each half of the classes is withheld in turn. The attack's card says in `through` what it is given: `oracle`,
    `parameters` or `messages`.
    """
    generator = child(plan.seed, "control", "classes", "design")
    x, y = plan.auxiliary
    chosen = torch.randperm(len(y), generator=generator)[:_MOST_RECORDS]
    x, y = x[chosen], y[chosen]
    present = torch.unique(y)
    present = present[torch.randperm(len(present), generator=generator)]
    halves = [torch.isin(y, half) for half in present.tensor_split(2)]
    if min(int(half.sum()) for half in halves) < 2:
        return _impossible(attack, "auxiliary records are too few for two halves of their classes")
    weights = _trained(plan, x, y, generator)
    through = str(attack.card["control"]["through"])
    cases = []
    for unseen in halves:
        others = _trained(plan, x[~unseen], y[~unseen], generator) if through == "messages" else weights
        cases.append(
            _Case(attack, plan, through, weights, others, (x[~unseen], y[~unseen]), (x[unseen], y[unseen]))
        )
    gain = {name: _figures(cases, drown=name == "negative") for name in ("positive", "negative")}
    value = {name: g[-1].value for name, g in gain.items()}
    what = f"{len(present)} classes, half of them at a time seen by the model alone ({through})"
    found, none = value["positive"], value["negative"]
    return {
        "positive": Control(
            what=f"{what}: mean gain over the prior at least {_LEAST_GAIN_DB:g} dB",
            passed=found is not None and found >= _LEAST_GAIN_DB,
            figures=gain["positive"],
        ),
        "negative": Control(
            what=(
                f"the same under Gaussian noise {_DROWNING:g} times what is seen of the model: gain below "
                f"{_LEAST_GAIN_DB:g} dB"
            ),
            passed=none is not None and none < _LEAST_GAIN_DB,
            figures=gain["negative"],
        ),
    }


def _figures(cases: Sequence[_Case], drown: bool) -> tuple[Figure, ...]:
    """PSNR, the prior's and the gain over all withheld classes, each resampled as one; the gain comes last."""
    rows: list[ImageScore] = []
    for case in cases:
        scored = case.scores(drown)
        if isinstance(scored, str):
            why = f"the attack does not apply to its own control: {scored}"
            return (Figure(name="psnr_gain", value=None, unit="dB", unavailable=why),)
        rows += scored
    generator = child_numpy(cases[0].plan.seed, "control", cases[0].attack.name, "intervals")
    psnr = np.array([r.psnr for r in rows])
    prior = np.array([r.psnr_prior for r in rows], dtype=np.float64)
    values = {"psnr": psnr, "psnr_prior": prior, "psnr_gain": psnr - prior}
    note = "each class's guess against its nearest record; n counts classes"
    return tuple(mean_figure(name, v, generator, unit="dB", note=note) for name, v in values.items())


def _impossible(attack: AttackPlan, reason: str) -> dict[str, Control]:
    figure = Figure(name="psnr_gain", value=None, unit="dB", unavailable=reason)
    what = f"{attack.name} on classes that only the model has seen"
    return {n: Control(what=what, passed=False, figures=(figure,)) for n in ("positive", "negative")}


def _trained(plan: Plan, x: Tensor, y: Tensor, generator: torch.Generator) -> Parameters:
    """The run's network after 300 steps of Adam on some records; all attacks of a run meet the same ones."""
    batches, initial = draw_batches(len(y), _BATCH, steps=_STEPS, generator=generator), plan.initial()

    def made(_: torch.Generator) -> Parameters:
        job = Job(party="control", parameters=initial, x=x, targets=y, batches=batches)
        return plan.trainer().fit([job], Fit(lr=_RATE, optimizer="adam"))[0].parameters

    card = {
        "what": "control: classes",
        "network": plan.architecture.described,
        "execution": plan.execution.described,
    }
    return computed_once(card, [initial, x, y, *batches], made)


@dataclass(frozen=True, eq=False)
class _Case:
    """One attack on one model; `known` are the attacker's records, `unseen` those that it must not know."""

    attack: AttackPlan
    plan: Plan
    through: str
    weights: Parameters
    others: Parameters
    known: tuple[Tensor, Tensor]
    unseen: tuple[Tensor, Tensor]

    def scores(self, drown: bool) -> list[ImageScore] | str:
        """The attack's guesses of the withheld classes, bare or drowned in noise; or why it does not apply."""
        noise = child(self.plan.seed, "control", self.attack.name, "noise")
        scale = _DROWNING if drown else 0.0
        ways = {"oracle": self._asked, "parameters": self._read, "messages": self._overheard}
        with scratch("control") as folder:
            guesses = ways[self.through](folder, scale, noise)
        if isinstance(guesses, str):
            return guesses
        withheld = torch.unique(self.unseen[1])
        kept = [torch.isin(_labels(g), withheld) for g in guesses]
        scored = score_class_reconstruction(
            [g.images[k] for g, k in zip(guesses, kept, strict=True)],
            [_labels(g)[k] for g, k in zip(guesses, kept, strict=True)],
            [self.unseen[0]] * len(guesses),
            [self.unseen[1]] * len(guesses),
            self.known[0],
            child_numpy(self.plan.seed, "control", self.attack.name, "score"),
            auxiliary_labels=self.known[1],
        )
        return list(scored.images)

    def _asked(self, folder: Path, scale: float, noise: torch.Generator) -> Sequence[Reconstruction] | str:
        """Through an oracle, as in a run; the noise is on the logits behind each answer."""
        kind = self.attack.card.get("oracle") or "soft"
        oracle, answering = Oracle(kind, self.plan.spec.query_budget), self.plan.trainer()
        task = AttackTask(targets=("client/0",), oracle=oracle)

        def reply(x: Tensor, _: str | None) -> Tensor:
            return answer(kind, _drowned(answering.predict(self.weights, x), scale, noise))

        return self._run(_view(folder, ()), task, None, reply)

    def _read(self, folder: Path, scale: float, noise: torch.Generator) -> Sequence[Reconstruction] | str:
        """The model's parameters in view."""
        weights = {n: _drowned(t, scale, noise) for n, t in self.weights.items()}
        view = _view(folder, [("server", "client/0", "model_parameters", weights)])
        return self._run(view, AttackTask(targets=("client/0",)), None)

    def _overheard(
        self, folder: Path, scale: float, noise: torch.Generator
    ) -> Sequence[Reconstruction] | str:
        """The model's logits on public samples, and their mean with those of a client without the withheld classes."""
        public = composites(self.known[0], _PUBLIC, 0.15, noise)
        trainer = self.plan.trainer()
        own = _drowned(trainer.predict(self.weights, public), scale, noise)
        mean = (own + trainer.predict(self.others, public)) / 2
        index = torch.arange(len(public))
        view = _view(
            folder,
            [
                ("client/0", "server", "logits", {"index": index, "values": own}),
                ("server", "client/0", "ensemble_labels", {"index": index, "values": mean}),
            ],
        )
        return self._run(view, AttackTask(targets=("client/0",)), public)

    def _run(
        self,
        view: View,
        task: AttackTask,
        public: Tensor | None,
        reply: Callable[[Tensor, str | None], Tensor] | None = None,
    ) -> Sequence[Reconstruction] | str:
        knowledge = Knowledge(
            architecture=self.plan.architecture,
            auxiliary=self.known,
            train=self.plan.trainer(),
            public=public,
            classes=self.plan.dataset.classes,
        )
        case = Case(knowledge=knowledge, task=task, seed=attack_seed(self.plan, self.attack))
        guesses = run_attack(self.attack, view, case, reply)
        return guesses if isinstance(guesses, str) else [g for g in guesses if isinstance(g, Reconstruction)]


def _labels(guess: Reconstruction) -> Tensor:
    if guess.labels is None:
        raise ValueError(f"{guess.target}: a class-level reconstruction names no classes")
    return guess.labels


def _drowned(values: Tensor, scale: float, generator: torch.Generator) -> Tensor:
    """`values` with Gaussian noise of `scale` times their own spread."""
    if not scale:
        return values
    spread = float(values.std()) if values.numel() > 1 else float(values.abs().max())
    return values + scale * spread * torch.randn(values.shape, generator=generator).to(values)


def _view(folder: Path, sent: Sequence[tuple[str, str, str, Mapping[str, Tensor]]]) -> View:
    """The server's view of a few messages; no protocol sent them and nothing private is in them."""
    with Transcript(folder, secret=bytes(32)) as transcript:
        for sender, receiver, kind, tensors in sent:
            transcript.record(sender, receiver, kind, tensors)
    return view_of(folder, "server", parties=("server", "client/0"), hyperparameters={})
