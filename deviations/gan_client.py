"""GAN client: a client that generates images of classes and trains on them with wrong classes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import ClassVar

import torch
from pydantic import Field
from torch import Tensor
from torch.nn import functional as F

from fdaudit.adversary.class_generator import ClassGenerator
from fdaudit.adversary.knowledge import Knowledge
from fdaudit.errors import SpecError
from fdaudit.models.network import call_with, trainable_parameters
from fdaudit.registry import DeviationCard
from fdaudit.transcript.wire import Outgoing

from ._rounds import SomeRounds

__all__ = ["GanClient", "GanClientConfig"]

_IMAGES = 64
"""Generated images of a step of training."""


class GanClientConfig(SomeRounds):
    """Settings of a GAN client."""

    target: int | None = Field(None, ge=0)
    """The class that is generated, counted from 0; default: all."""
    generator_steps: int = Field(200, ge=1)
    """Steps of the generator in a round, with the received model as its discriminator."""
    steps: int = Field(10, ge=1)
    """Steps of SGD on generated images with wrong classes, after the client's own training."""
    lr: float = Field(0.1, gt=0)
    """Learning rate of these steps."""


class GanClient:
    """A client trains a generator on the model that it received, and its model on generated images with wrong classes.

    Whoever holds the class must correct that, and the next model tells the generator of `class-gan` more. The paper's
    client keeps its generator over all rounds. This one starts anew in each, so that a run can be resumed from the
    record alone.
    """

    card = DeviationCard(
        name="gan-client",
        source="Hitaj, Ateniese & Perez-Cruz 2017, Algorithm 1",
        roles=("client",),
        changes=("gradient", "model_update", "model_parameters"),
        read_by=("class-gan",),
        noticed="An update unlike those of others; other clients see a model that is unsure of the classes.",
        detectors=("outlier",),
    )
    Config: ClassVar[type[GanClientConfig]] = GanClientConfig

    def __init__(self, config: GanClientConfig, knowledge: Knowledge) -> None:
        network = knowledge.architecture
        if network is None or network.reads != "images" or not knowledge.task.labels.one_class:
            problem = "has no images with one class each, which a generator is trained for"
            raise SpecError("dataset.name", knowledge.task.name, problem, "Choose another deviation.")
        if config.target is not None and config.target >= network.classes:
            problem = f"is none of the {network.classes} classes, counted from 0"
            raise SpecError("deviations.params.target", config.target, problem, "Choose a smaller number.")
        self._config, self._network = config, network
        self._module = network.build(torch.Generator().manual_seed(0)).eval()
        self._trainable = tuple(trainable_parameters(self._module))
        self._classes = torch.arange(network.classes)
        if config.target is not None:
            self._classes = self._classes[config.target : config.target + 1]
        self._generator(torch.Generator().manual_seed(0))  # small images are refused before the run

    def sends(self, draft: Outgoing, generator: torch.Generator) -> Sequence[Outgoing]:
        """Return the upload after more training on generated images; a gradient is averaged with that of such images.

        Without a model received in the round there is nothing to learn from, and the upload is the honest one.
        """
        models = [m.tensors for m in draft.received if m.kind == "model_parameters"]
        if draft.kind not in self.card.changes or not self._config.within(draft.round) or not models:
            return (draft,)
        start = {name: tensor.cpu() for name, tensor in models[-1].items()}
        class_generator = self._generator(generator)
        class_generator.learn(self._module, start, self._config.generator_steps)
        if draft.kind == "gradient":
            wrong = self._gradient(start, class_generator, generator)
            tensors = {}
            for name, gradient in draft.tensors.items():
                honest = gradient.cpu()
                tensors[name] = (honest + wrong.get(name, honest)) / 2
            return (replace(draft, tensors=tensors),)
        # An update that was weighted before it was sent says so, as in a secure sum.
        weight = float(draft.fields.get("weight", 1.0))
        of_update = draft.kind == "model_update"
        end = {name: tensor.cpu() for name, tensor in draft.tensors.items()}
        if of_update:
            end = {name: start[name] + tensor / weight for name, tensor in end.items()}
        for _ in range(self._config.steps):
            gradients = self._gradient({**start, **end}, class_generator, generator)
            for name, gradient in gradients.items():
                end[name] = end[name] - self._config.lr * gradient
        if of_update:
            end = {name: weight * (tensor - start[name]) for name, tensor in end.items()}
        return (replace(draft, tensors=end),)

    def _generator(self, draws: torch.Generator) -> ClassGenerator:
        return ClassGenerator(self._network, self._classes, draws)

    def _gradient(
        self, model: Mapping[str, Tensor], class_generator: ClassGenerator, draws: torch.Generator
    ) -> dict[str, Tensor]:
        """Return the gradient of cross-entropy on generated images, with classes that they are not."""
        y = self._classes[torch.randint(len(self._classes), (_IMAGES,), generator=draws)]
        step = torch.randint(1, self._network.classes, (_IMAGES,), generator=draws)
        wrong = (y + step) % self._network.classes
        free = {name: model[name].clone().requires_grad_() for name in self._trainable if name in model}
        logits = call_with(self._module, {**model, **free}, class_generator.images(y))
        gradients = torch.autograd.grad(F.cross_entropy(logits, wrong), list(free.values()))
        return dict(zip(free, gradients, strict=True))
