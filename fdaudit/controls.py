"""Controls: every attack is tried where it must work and where it must fail, through the code it always runs.

An attack that finds nothing has shown nothing until its positive control has succeeded; one that also finds
something in noise, or in a model that was never trained, has shown nothing either. The victims of controls are
auxiliary records: no private record takes part.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.nn import functional as F

from fdaudit import defenses, protocols
from fdaudit.execution import Execution
from fdaudit.federation import Common
from fdaudit.knowledge import Knowledge
from fdaudit.metrics import score_membership, score_reconstruction
from fdaudit.models import Architecture, architecture
from fdaudit.objectives import objective_of
from fdaudit.oracle import Oracle, serve
from fdaudit.rehearsal import rehearse
from fdaudit.result import Control
from fdaudit.rng import child, child_numpy, child_seed
from fdaudit.spec import ModelSpec
from fdaudit.trainers import Networks
from fdaudit.training import Fit, Job, Parameters, Trainer
from fdaudit.types import AttackTask, Challenge, Figure, Membership, Reconstruction, Task, task_of
from fdaudit.view import View

if TYPE_CHECKING:
    from fdaudit.data import Dataset
    from fdaudit.plan import AttackPlan, Plan

__all__ = ["answer", "controls"]

_LEAST_GAIN_DB = 3.0
"""A reconstruction control counts as working from this mean gain over the prior baseline on."""
_CONFIDENCE = 0.999
"""Level of membership controls: at 95 % one honest run in twenty would read inconclusive by chance."""
_MOST_CANDIDATES = 400
_DROWNING = 100.0
"""Noise of the negative control, in standard deviations of the gradient's entries."""


def controls(attack: AttackPlan, plan: Plan) -> dict[str, Control]:
    """The positive and the negative control of an attack on the run's kind of images."""
    if attack.card["goal"] == "membership":
        return _membership_controls(attack, plan)
    return _reconstruction_controls(attack, plan)


# -- reconstruction -------------------------------------------------------------------------------------------


def _reconstruction_controls(attack: AttackPlan, plan: Plan) -> dict[str, Control]:
    model, count = str(attack.card["control"]["model"]), int(attack.card["control"]["images"])
    x, y = plan.auxiliary
    order = torch.randperm(len(y), generator=child(plan.seed, "control", attack.name, "victims"))
    victims, known = order[:count], order[count:]
    network = architecture(ModelSpec(name=model), plan.dataset.input_shape, plan.dataset.classes)
    execution = Execution.resolve(
        device=plan.execution.device,
        threads=plan.execution.threads,
        convolutions=network.has_convolutions,
        batchnorm=network.has_batchnorm,
    )
    case = _Case(attack, plan, network, execution, (x[known], y[known]))
    what = f"{count} bare gradients of single auxiliary images, untrained {model}"
    gain = {}
    for name in ("positive", "negative"):
        gain[name] = case.figures(x[victims], y[victims], drown=name == "negative")
    value = {name: g["psnr_gain"].value for name, g in gain.items()}
    worked = value["positive"] is not None and value["positive"] >= _LEAST_GAIN_DB
    silent = value["negative"] is not None and value["negative"] < _LEAST_GAIN_DB
    return {
        "positive": Control(
            what=f"{what}: mean gain over the prior at least {_LEAST_GAIN_DB:g} dB",
            passed=worked,
            figures=_shown(gain["positive"], ("psnr", "psnr_prior", "psnr_gain")),
        ),
        "negative": Control(
            what=f"the same under Gaussian noise {_DROWNING:g} times the gradient: gain below {_LEAST_GAIN_DB:g} dB",
            passed=silent,
            figures=_shown(gain["negative"], ("psnr", "psnr_prior", "psnr_gain")),
        ),
    }


def _shown(figures: Mapping[str, Figure], names: Sequence[str]) -> tuple[Figure, ...]:
    return tuple(figures[n] for n in names if n in figures)


@dataclass(frozen=True, eq=False)
class _Case:
    """One attack against one round of FedSGD whose clients hold a single record each."""

    attack: AttackPlan
    plan: Plan
    network: Architecture
    execution: Execution
    auxiliary: tuple[Tensor, Tensor]

    def figures(self, x: Tensor, y: Tensor, drown: bool) -> Mapping[str, Figure]:
        """Scores of the attack on the records (x, y), bare or drowned in noise."""
        with tempfile.TemporaryDirectory(prefix="fdaudit-control-") as clean:
            view = self._rehearsed(Path(clean), x, y, {})
            if not drown:
                return self._attacked(view, x, y)
            uploads = [view.tensors(m) for m in view.select(kind="gradient")]
        spread = float(torch.cat([t.flatten() for u in uploads for t in u.values()]).std())
        noise = defenses.REGISTRY.load("gaussian-noise")
        defense = noise(noise.Config(sigma=_DROWNING * spread))
        with tempfile.TemporaryDirectory(prefix="fdaudit-control-") as noisy:
            return self._attacked(
                self._rehearsed(Path(noisy), x, y, {("gradient", "client"): [defense]}), x, y
            )

    def _rehearsed(self, folder: Path, x: Tensor, y: Tensor, attached: Mapping[tuple[str, str], Any]) -> View:
        fedavg = protocols.REGISTRY.load("fedavg")
        seed = child_seed(self.plan.seed, "control", self.attack.name)
        return rehearse(
            folder,
            protocol=fedavg,
            config=fedavg.Config(rounds=1, upload="gradient", batch_size=1),
            common=Common(
                networks=Networks(self.network),
                execution=self.execution,
                public=x.new_zeros(0, *x.shape[1:]),
                task=task_of(y),
            ),
            data=[(x[k : k + 1], y[k : k + 1]) for k in range(len(y))],
            seed=seed,
            defenses=attached,
        )

    def _attacked(self, view: View, x: Tensor, y: Tensor) -> Mapping[str, Figure]:
        core = Trainer(self.network, self.execution)
        knowledge = Knowledge(
            architecture=self.network, auxiliary=self.auxiliary, train=core, task=task_of(y)
        )
        targets = tuple(f"client/{k}" for k in range(len(y)))
        task = AttackTask(targets=targets)
        attack = self.attack.cls(self.attack.config.model_copy(update={"round": 0}))  # type: ignore[union-attr]
        applicable = attack.applicable(view, knowledge, task)
        if not applicable:
            reason = f"the attack does not apply to its own control: {applicable.reason}"
            return {"psnr_gain": Figure(name="psnr_gain", value=None, unavailable=reason)}
        generator = child(self.plan.seed, "control", self.attack.name, "attack")
        guesses: tuple[Reconstruction, ...] = attack.run(view, knowledge, task, generator)
        rows = [targets.index(g.target) for g in guesses]
        known = task_of(y) == "single-label"  # the prior's strategies by class need one class a record
        return score_reconstruction(
            [g.images for g in guesses],
            [x[k : k + 1] for k in rows],
            self.auxiliary[0],
            child_numpy(self.plan.seed, "control", self.attack.name, "score"),
            true_labels=[y[k : k + 1] for k in rows] if known else None,
            auxiliary_labels=self.auxiliary[1] if known else None,
        ).figures


# -- membership -----------------------------------------------------------------------------------------------


def _membership_controls(attack: AttackPlan, plan: Plan) -> dict[str, Control]:
    """Half of the auxiliary records, by fair coins, are learnt by heart under labels drawn at random."""
    x, _ = plan.auxiliary
    generator = child(plan.seed, "control", attack.name, "design")
    pairs = min(len(x), _MOST_CANDIDATES) // 2
    x = x[torch.randperm(len(x), generator=generator)[: 2 * pairs]]
    y = _random_labels(2 * pairs, plan.dataset, generator)
    coins = torch.randint(2, (pairs,), generator=generator).bool()
    member = torch.stack([coins, ~coins], 1).flatten()
    challenge = Challenge(target="client/0", x=x, y=y, pair=torch.arange(pairs).repeat_interleave(2))
    initial = plan.initial()
    overfit, accuracy = _learn_by_heart(plan, initial, x[member], y[member])
    found = {
        name: _membership_figures(attack, plan, weights, challenge, member)
        for name, weights in (("positive", overfit), ("negative", initial))
    }
    auc = {name: f["auc"] for name, f in found.items()}
    low, high = auc["negative"].low, auc["negative"].high
    return {
        "positive": Control(
            what=(
                f"{pairs} auxiliary records learnt by heart under random labels ({accuracy:.0%} fitted) against "
                f"{pairs} held out: AUC above 0.5 at {_CONFIDENCE:.1%}"
            ),
            passed=accuracy == 1 and auc["positive"].low is not None and auc["positive"].low > 0.5,
            figures=(auc["positive"],),
        ),
        "negative": Control(
            what=f"the same candidates, a model never trained: AUC interval covers 0.5 at {_CONFIDENCE:.1%}",
            passed=low is not None and high is not None and low <= 0.5 <= high,
            figures=(auc["negative"],),
        ),
    }


def _random_labels(n: int, like: Dataset, generator: torch.Generator) -> Tensor:
    """Labels of the dataset's task that have nothing to do with any image."""
    if like.task == "multi-label":
        return torch.randint(2, (n, like.classes), generator=generator)
    return torch.randint(like.classes, (n,), generator=generator)


def _learn_by_heart(plan: Plan, initial: Parameters, x: Tensor, y: Tensor) -> tuple[Parameters, float]:
    """Adam on full batches until every label is fitted, at most 40 times 25 steps."""
    trainer, weights, accuracy, task = plan.trainer(), initial, 0.0, task_of(y)
    batches = [torch.arange(len(y))] * 25
    for _ in range(40):
        job = Job(party="control", parameters=weights, x=x, targets=y, batches=batches)
        fit = Fit(lr=0.003, optimizer="adam", objective=objective_of(task))
        weights = trainer.fit([job], fit)[0].parameters
        right = answer("hard", trainer.predict(weights, x), task) == y
        accuracy = float(right.view(len(y), -1).all(1).double().mean())
        if accuracy == 1:
            break
    return weights, accuracy


def _membership_figures(
    attack: AttackPlan, plan: Plan, weights: Parameters, challenge: Challenge, member: Tensor
) -> Mapping[str, Figure]:
    """The attack on a published model, asked through an oracle as in a run."""
    oracle = Oracle(attack.card.get("oracle") or "soft", budget=max(plan.spec.queries, len(challenge.y)))
    answering = plan.trainer()
    parties, nowhere = ("client/0", "world"), Path(os.devnull)
    nothing = View(
        name="world", members=("world",), parties=parties, hyperparameters={}, messages=(), directory=nowhere
    )
    labels = task_of(challenge.y)
    knowledge = Knowledge(
        architecture=plan.architecture, auxiliary=plan.auxiliary, train=plan.trainer(), task=labels
    )
    task = AttackTask(targets=("client/0",), challenges={"client/0": challenge}, oracle=oracle)
    generator = child(plan.seed, "control", attack.name, "attack")
    runner = attack.cls(attack.config)
    guesses: tuple[Membership, ...] = serve(
        lambda: runner.run(nothing, knowledge, task, generator),
        oracle,
        lambda asked: answer(oracle.answers, answering.predict(weights, asked), labels),
    )
    return score_membership(
        guesses[0].scores,
        member,
        generator=child_numpy(plan.seed, "control", attack.name, "score"),
        pair=challenge.pair,
        confidence=_CONFIDENCE,
    ).figures


def answer(kind: str, logits: Tensor, task: Task = "single-label") -> Tensor:
    """What an oracle answers: probabilities (n, C), or classes (n,); multi-label, 0 and 1 for each class (n, C)."""
    if task == "multi-label":
        return logits.sigmoid() if kind == "soft" else (logits > 0).long()
    return F.softmax(logits, 1) if kind == "soft" else logits.argmax(1)
