"""What classes look like, from a generator that learns from all models of a federation in their order."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

import torch
from pydantic import Field
from torch import Tensor

from fdaudit.adversary.class_generator import ClassGenerator
from fdaudit.config import Config
from fdaudit.goals.reconstruction import Reconstruction
from fdaudit.models.generative import SMALLEST_SIDE
from fdaudit.models.network import moved
from fdaudit.registry import AttackCard
from fdaudit.storage.cache import computed_once
from fdaudit.types import Applicability, AttackTask

from .._reading import reads_forms
from .._uploads import broadcasts
from .victims import card_of, of_classes, wanted

if TYPE_CHECKING:
    from fdaudit.adversary.knowledge import Knowledge
    from fdaudit.adversary.view import View

__all__ = ["ClassGan", "ClassGanConfig"]

_SHOWN = 64
"""Generated images of a class, of which the mean is shown."""


class ClassGanConfig(Config):
    """Settings of `class-gan`."""

    steps: int = Field(100, ge=1)
    """Steps of the generator on each model."""
    models: int = Field(30, ge=1)
    """Most models that it learns from, evenly spread over those in view, the last one among them."""


@reads_forms
class ClassGan:
    """Trains a generator against the models that a party saw, one after the other, and shows what it makes of a class.

    The model is the discriminator: images of a class are those that it classifies as such. The adversary needs no image
    of its own. The guess for a class is the mean of generated images. A client that deviates by `gan-client` makes
    others say more of the classes; the same attack on an honest run is that of a passive client.
    """

    card = AttackCard(
        name="class-gan",
        work={"once": 9000, "each": 9000, "grows": ("steps", "models")},
        goal="reconstruction",
        needs=("model_parameters",),
        assumes=("architecture",),
        source="Hitaj, Ateniese & Perez-Cruz 2017, Algorithm 1",
        tasks=("single-label",),
        profiles={
            "quick": {"steps": 150, "models": 10},
            "standard": {"steps": 200, "models": 50},
            "full": {"steps": 500, "models": 200},
        },
        control={"on": "classes", "through": "parameters"},
    )
    Config: ClassVar[type[ClassGanConfig]] = ClassGanConfig

    def __init__(self, config: ClassGanConfig) -> None:
        self.config = config

    def applicable(self, view: View, knowledge: Knowledge, task: AttackTask) -> Applicability:
        """Check for a shared model in view, its network, and images that can be generated."""
        network = knowledge.architecture
        if network is None or not knowledge.classes:
            return Applicability(False, "the architecture of the model in view is not known")
        if not task.targets:
            return Applicability(False, "no victim is named")
        if min(network.input_shape[1:]) < SMALLEST_SIDE:
            return Applicability(False, f"images smaller than {SMALLEST_SIDE} pixels cannot be generated")
        if not view.select(kind="model_parameters") or not broadcasts(view):
            return Applicability(False, "no shared model parameters in view")
        return Applicability(True)

    def run(
        self, view: View, knowledge: Knowledge, task: AttackTask, generator: torch.Generator
    ) -> tuple[Reconstruction, ...]:
        """Return one image of every class for each victim; guesses of classes name no message."""
        applicable = self.applicable(view, knowledge, task)
        network = knowledge.architecture
        if not applicable or network is None:
            raise ValueError(f"class-gan: run on a view to which it does not apply: {applicable.reason}.")
        messages = broadcasts(view)[::-1]
        every = -(-len(messages) // self.config.models)
        models = [moved(view.tensors(m), "cpu") for m in reversed(messages[::every])]
        classes = wanted(knowledge, task)

        def learn(draws: torch.Generator) -> dict[str, Tensor]:
            """Return the mean generated `images` (k, c, h, w) of the classes, and the last cross-entropy in nats."""
            module = network.build(torch.Generator().manual_seed(0)).eval()
            class_images, loss = ClassGenerator(network, classes, draws), 0.0
            for model in models:
                loss = class_images.learn(module, model, self.config.steps)
            images = [class_images.images(c.expand(_SHOWN)).mean(0) for c in classes]
            return {"images": torch.stack(images), "objective": torch.tensor(loss)}

        result = computed_once(card_of("class-gan", self.config, knowledge), [*models, classes], learn)
        guesses = of_classes(
            task.targets,
            result["images"],
            classes,
            objective=float(result["objective"]),
            evaluations=self.config.steps * len(models),
        )
        return tuple(guesses)
