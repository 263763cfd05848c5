"""Attacks on gradients are tried on bare gradients of single records, and on the same drowned in noise."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from fdaudit import defenses, protocols
from fdaudit.controls._membership import attack_seed
from fdaudit.execution import Execution
from fdaudit.federation import Common
from fdaudit.isolation.attacker import attack as run_attack
from fdaudit.isolation.schema import Case
from fdaudit.knowledge import Knowledge
from fdaudit.metrics import score_reconstruction
from fdaudit.models import Architecture, architecture
from fdaudit.rehearsal import rehearse
from fdaudit.result import Control
from fdaudit.rng import child, child_numpy, child_seed
from fdaudit.scratch import scratch
from fdaudit.spec import ModelSpec
from fdaudit.trainers import Networks
from fdaudit.training import Trainer
from fdaudit.types import AttackTask, Figure, Reconstruction, task_of
from fdaudit.view import View

if TYPE_CHECKING:
    from fdaudit.plan import AttackPlan, Plan

__all__ = ["bare_gradients"]

_LEAST_GAIN_DB = 3.0
"""A reconstruction control counts as working from this mean gain over the prior baseline on."""
_DROWNING = 100.0
"""Noise of the negative control, in standard deviations of the gradient's entries."""


def bare_gradients(attack: AttackPlan, plan: Plan) -> dict[str, Control]:
    """Both controls of an attack on gradients; its card names the `model` and the number of `images`."""
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
        work=network.work,
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
        with scratch("control") as clean:
            view = self._rehearsed(clean, x, y, {})
            if not drown:
                return self._attacked(view, x, y)
            uploads = [view.tensors(m) for m in view.select(kind="gradient")]
        spread = float(torch.cat([t.flatten() for u in uploads for t in u.values()]).std())
        noise = defenses.REGISTRY.load("gaussian-noise")
        defense = noise(noise.Config(sigma=_DROWNING * spread))
        with scratch("control") as noisy:
            return self._attacked(self._rehearsed(noisy, x, y, {("gradient", "client"): [defense]}), x, y)

    def _rehearsed(self, folder: Path, x: Tensor, y: Tensor, attached: Mapping[tuple[str, str], Any]) -> View:
        fedavg = protocols.REGISTRY.load("fedavg")
        seed = child_seed(self.plan.seed, "control", self.attack.name)
        return rehearse(
            folder / "transcript",
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
            architecture=self.network,
            auxiliary=self.auxiliary,
            train=core,
            classes=self.network.classes,
            task=task_of(y),
        )
        targets = tuple(f"client/{k}" for k in range(len(y)))
        task = AttackTask(targets=targets)
        attack = replace(self.attack, params={**(self.attack.params or {}), "round": 0})
        case = Case(knowledge=knowledge, task=task, seed=attack_seed(self.plan, attack))
        made = run_attack(attack, view, case)
        if isinstance(made, str):
            reason = f"the attack does not apply to its own control: {made}"
            return {"psnr_gain": Figure(name="psnr_gain", value=None, unavailable=reason)}
        guesses = [g for g in made if isinstance(g, Reconstruction)]
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
