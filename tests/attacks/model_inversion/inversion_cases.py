"""Views in memory, and models of all classes whose attackers lack half of them."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

import torch
from torch import Tensor

from fdaudit.adversary.knowledge import Knowledge
from fdaudit.adversary.oracle import Oracle, answer, serve
from fdaudit.adversary.view import View
from fdaudit.models import Architecture, architecture
from fdaudit.spec.schema import ModelSpec
from fdaudit.training.execution import Execution
from fdaudit.training.trainer import Fit, Job, Parameters, Trainer, draw_batches, parameters_of
from fdaudit.transcript.messages import Message
from fdaudit.types import AttackTask, TensorInfo

LOOP = Execution(device="cpu", threads=1, strategy="loop", memory_format="contiguous")


@dataclass(frozen=True, kw_only=True, eq=False)
class _View(View):
    """A view whose payloads lie in memory."""

    payloads: Mapping[int, dict[str, Tensor]] = field(default_factory=dict)

    def tensors(self, message: Message) -> dict[str, Tensor]:
        return self.payloads[message.seq]


def view(*sent: tuple[str, tuple[str, ...], str, dict[str, Tensor]], keep: bool = True) -> _View:
    messages = tuple(
        Message(
            seq=n,
            round=n,
            step=0,
            sender=sender,
            receivers=receivers,
            kind=kind,
            tensors={name: TensorInfo("F32", tuple(t.shape)) for name, t in tensors.items()},
            payload={"file": "in memory"} if keep else None,
        )
        for n, (sender, receivers, kind, tensors) in enumerate(sent)
    )
    return _View(
        name="server",
        members=("server",),
        parties=("server", "client/0", "client/1"),
        hyperparameters={},
        messages=messages,
        directory=Path(os.devnull),
        payloads={n: tensors for n, (*_, tensors) in enumerate(sent)},
    )


@dataclass(frozen=True, eq=False)
class Withheld:
    """A model of all classes; the evaluator, another network, is trained on records that nobody else has.

    Records are shuffled, then split into the model's, the attackers' and the evaluator's. Each half of the classes is
    withheld from one of two attackers; guesses of withheld classes count.
    """

    x: Tensor
    y: Tensor
    sizes: tuple[int, int, int]
    model: ModelSpec
    steps: int
    seed: int = 0

    @property
    def classes(self) -> int:
        return int(self.y.max()) + 1

    @cached_property
    def parts(self) -> list[tuple[Tensor, Tensor]]:
        rows = torch.randperm(len(self.y), generator=g(self.seed))[: sum(self.sizes)].split(self.sizes)
        return [(self.x[r], self.y[r]) for r in rows]

    def network(self, model: ModelSpec) -> Architecture:
        return architecture(model, tuple(self.x.shape[1:]), self.classes)

    @cached_property
    def weights(self) -> Parameters:
        return _fitted(self.network(self.model), self.parts[0], self.steps, self.seed)

    @cached_property
    def evaluator(self) -> Callable[[Tensor], Tensor]:
        network = self.network(ModelSpec(name="cnn-3-3"))
        weights = _fitted(network, self.parts[2], 600, self.seed + 1)
        return lambda images: Trainer(network, LOOP).predict(weights, images).argmax(1)

    def accuracy(
        self, attack: object, answers: str | None = None, budget: int = 0, weights: Parameters | None = None
    ) -> float:
        """The share of withheld classes whose guess the evaluator takes for the class.

        Args:
            attack: the attack.
            answers: of the oracle, or None where the model's parameters are in view.
            budget: of the oracle, for each attacker.
            weights: of another model to attack than that of all classes.
        """
        weights = self.weights if weights is None else weights
        order = torch.randperm(self.classes, generator=g(self.seed + 2))
        right = []
        for half in order.tensor_split(2):
            x, y = self.parts[1]
            kept = ~torch.isin(y, half)
            network = self.network(self.model)
            known = Knowledge(
                architecture=network,
                auxiliary=(x[kept], y[kept]),
                train=Trainer(network, LOOP),
                classes=self.classes,
            )
            images = _run(attack, known, weights, answers, budget)
            right.append((self.evaluator(images[half]) == half).float())
        return float(torch.cat(right).mean())


def _run(attack: object, known: Knowledge, weights: Parameters, answers: str | None, budget: int) -> Tensor:
    """The images (C, c, h, w) that an attack guesses."""
    if answers is None:
        seen = view(("server", ("client/0",), "model_parameters", dict(weights)))
        return attack.run(seen, known, AttackTask(targets=("client/0",)), g())[0].images
    oracle = Oracle(answers, budget)
    task = AttackTask(targets=("client/0",), oracle=oracle)
    trainer = Trainer(known.architecture, LOOP)
    (guess,) = serve(
        lambda: attack.run(view(), known, task, g()),
        oracle,
        lambda x, _: answer(answers, trainer.predict(weights, x)),
    )
    return guess.images


def _fitted(network: Architecture, records: tuple[Tensor, Tensor], steps: int, seed: int) -> Parameters:
    x, y = records
    batches = draw_batches(len(y), 128, steps=steps, generator=g(seed))
    job = Job(
        party="model", parameters=parameters_of(network.build(g(seed))), x=x, targets=y, batches=batches
    )
    return Trainer(network, LOOP).fit([job], Fit(lr=0.003, optimizer="adam"))[0].parameters


def g(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)
