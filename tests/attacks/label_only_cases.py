"""A model that knows records by heart, and label-only attacks on it: what the tests of those attacks share."""

from __future__ import annotations

import os
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fdaudit import attacks
from fdaudit.adversary.knowledge import Knowledge
from fdaudit.adversary.oracle import Oracle, answer, serve
from fdaudit.adversary.view import View
from fdaudit.data import Dataset, load_dataset
from fdaudit.metrics import score_membership
from fdaudit.models import architecture
from fdaudit.rng import child
from fdaudit.spec.schema import DatasetSpec, ModelSpec
from fdaudit.training.execution import Execution
from fdaudit.training.trainer import Fit, Job, Parameters, Trainer, draw_batches, parameters_of
from fdaudit.types import AttackTask, Challenge

from ..helpers.run_cases import stream


def empty_view(hyperparameters: dict[str, Any] | None = None) -> View:
    """What the public sees of a released model: nothing but its oracle."""
    return View(
        name="world",
        members=("world",),
        parties=("client/0", "world"),
        hyperparameters=hyperparameters or {},
        messages=(),
        directory=Path(os.devnull),
    )


class Case:
    """`each` members and as many others, a share of all labels drawn at random, and a model fitted to the members.

    Args:
        each: members, and others.
        noise: share of labels that are drawn at random: they can only be known by heart.
        auxiliary: further records of the same kind, which the adversary has.
        model: of the zoo.
        dataset: where records come from.
        fitted: train the model, or leave it as it was built.
    """

    def __init__(
        self,
        *,
        each: int = 200,
        noise: float = 0.3,
        auxiliary: int = 300,
        model: ModelSpec | None = None,
        dataset: Dataset | None = None,
        fitted: bool = True,
        seed: int = 0,
    ) -> None:
        data = dataset or digits()
        order = torch.randperm(len(data.y), generator=child(seed, "order"))[: 2 * each + auxiliary]
        x, y = data.x[order], data.y[order]
        drawn = torch.rand(len(y), generator=child(seed, "noise")) < noise
        y = torch.where(drawn, torch.randint(data.classes, (len(y),), generator=child(seed, "labels")), y)
        self.member = torch.arange(2 * each) < each
        self.challenge = Challenge(
            target="client/0", x=x[: 2 * each], y=y[: 2 * each], pair=torch.arange(each).repeat(2)
        )
        spec = model or ModelSpec(name="cnn-strided", params={"channels": [16, 32], "kernel": 3})
        self.network = architecture(spec, data.input_shape, data.classes)
        self.execution = Execution.resolve(
            device="cpu",
            threads=torch.get_num_threads(),
            convolutions=self.network.has_convolutions,
        )
        self.trainer = Trainer(self.network, self.execution)
        self.weights = parameters_of(self.network.build(child(seed, "weights")))
        if fitted:
            self.weights = self._by_heart(x[:each], y[:each], seed)
        self.knowledge = Knowledge(
            architecture=self.network,
            auxiliary=(x[2 * each :], y[2 * each :]) if auxiliary else None,
            train=Trainer(self.network, self.execution),
            classes=data.classes,
        )

    def _by_heart(self, x: Tensor, y: Tensor, seed: int) -> Parameters:
        weights, draws = self.weights, child(seed, "batches")
        for _ in range(60):
            batches = draw_batches(len(y), 64, steps=50, generator=draws)
            job = Job(party="target", parameters=weights, x=x, targets=y, batches=batches)
            weights = self.trainer.fit([job], Fit(lr=0.002, optimizer="adam"))[0].parameters
            if bool((self.trainer.predict(weights, x).argmax(1) == y).all()):
                return weights
        raise AssertionError("the model did not learn its records by heart")

    @property
    def right(self) -> Tensor:
        """Which candidates the model classifies right."""
        return self.trainer.predict(self.weights, self.challenge.x).argmax(1) == self.challenge.y

    @property
    def gap(self) -> float:
        """Accuracy on members less that on the others."""
        right = self.right.double()
        return float(right[self.member].mean() - right[~self.member].mean())

    def attacked(self, name: str, budget: int = 10**9, **settings: Any) -> tuple[Tensor, str, int]:
        """Scores, the note and the queries spent of an attack through a hard-label oracle."""
        cls = attacks.REGISTRY.load(name)
        attack = cls(cls.Config(**settings))
        oracle = Oracle("hard", budget)
        task = AttackTask(targets=("client/0",), challenges={"client/0": self.challenge}, oracle=oracle)
        assert attack.applicable(empty_view(), self.knowledge, task)
        (guess,) = serve(
            lambda: attack.run(empty_view(), self.knowledge, task, child(1, "attack", name)),
            oracle,
            lambda x, _: answer("hard", self.trainer.predict(self.weights, x)),
        )
        return guess.scores, guess.note, oracle.spent

    def auc(self, scores: Tensor) -> Any:
        """The AUC's figure."""
        found = score_membership(
            scores, self.member, generator=np.random.default_rng(0), pair=self.challenge.pair
        )
        return found.figures["auc"]


@cache
def digits() -> Dataset:
    return load_dataset(DatasetSpec(name="digits"), stream(0, "dataset"))
