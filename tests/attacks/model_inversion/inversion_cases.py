"""Views in memory, and models of all classes whose attackers lack half of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from fdaudit.adversary.knowledge import Knowledge
from fdaudit.adversary.oracle import Oracle, answer, serve
from fdaudit.adversary.view import View
from fdaudit.models import Architecture, architecture
from fdaudit.spec.schema import ModelSpec
from fdaudit.testing.federation import execution
from fdaudit.training.trainer import Fit, Job, Parameters, Trainer, draw_batches, parameters_of
from fdaudit.types import AttackTask

from ..gradient_inversion.gradient_inversion_cases import view_of_messages

SHAPE = (1, 8, 8)
NETWORK = architecture(ModelSpec(name="mlp", params={"widths": [8]}), SHAPE, 3)
LOOP = execution()


def view(*sent: tuple[str, tuple[str, ...], str, dict[str, Tensor]], keep: bool = True) -> View:
    """The server's view of messages, one a round: sender, receivers, kind, tensors."""
    seen = view_of_messages(sent, keep=keep)
    messages = tuple(replace(m, round=m.seq) for m in seen.messages)
    return replace(seen, messages=messages, parties=("server", "client/0", "client/1"))


def known(**more: object) -> Knowledge:
    """What an adversary knows of a network of three classes."""
    x, y = torch.rand(12, *SHAPE, generator=g(5)), torch.arange(12) % 3
    given: dict[str, object] = {"architecture": NETWORK, "auxiliary": (x, y), "classes": 3}
    return Knowledge(**{**given, "train": Trainer(NETWORK, LOOP), **more})


def weights(seed: int = 0) -> Parameters:
    return parameters_of(NETWORK.build(g(seed)))


def run_asking(
    attack: Any, answers: str, budget: int, models: tuple[str, ...] = ()
) -> tuple[Any, dict[Any, int]]:
    """Run an attack on an oracle.

    Returns:
        Its guesses, or why it does not apply; and how many samples each model was asked.
    """
    trainer, spent = known().train, dict[Any, int]()
    oracle = Oracle(answers, budget, models)
    task = AttackTask(targets=("client/0", "client/1"), oracle=oracle)

    def reply(x: Tensor, of: str | None) -> Tensor:
        assert 0 <= x.min() <= x.max() <= 1
        assert x.shape[1:] == SHAPE
        spent[of] = spent.get(of, 0) + len(x)
        return answer(answers, trainer.predict(weights(len(str(of))), x))

    verdict = attack.applicable(view(), known(), task)
    if not verdict:
        return verdict.reason, spent
    return serve(lambda: attack.run(view(), known(), task, g()), oracle, reply), spent


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
