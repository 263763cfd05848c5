"""Training-based model inversion: train a network on auxiliary images to invert the model."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

import torch
from pydantic import Field
from torch import Tensor

from fdaudit.goals.reconstruction import Reconstruction
from fdaudit.registry import AttackCard
from fdaudit.types import AttackTask

from .._reading import reads_forms
from .decoder import DecoderConfig, evidence, fit_decoder, sure_of
from .model_attack import QueriesConfig, QueryAttack
from .priors import composites
from .victims import Askable, as_probabilities, of_classes

if TYPE_CHECKING:
    from fdaudit.adversary.knowledge import Knowledge

__all__ = ["InversionNetwork", "InversionNetworkConfig"]


class InversionNetworkConfig(QueriesConfig, DecoderConfig):
    """Settings of training-based model inversion."""

    queries: int = Field(20_000, ge=1)
    """Number of images queried from one model, if the budget allows."""
    noise: float = Field(0.15, ge=0)
    """Standard deviation of noise on the queried images."""


@reads_forms
class InversionNetwork(QueryAttack):
    """Learns a network from answers to images on auxiliary images, and applies it to an answer certain of each class.

    Yang 2019 inverts recorded answers about private inputs. In federated distillation the recorded answers are about
    public samples, which an adversary holds anyway. The private part is what the model is certain of. For each class
    the attack therefore inverts an answer that has the usual certainty of answers and is equal for all other classes.
    The image shows the model's idea of the class. The model is queried with noisy images that join two auxiliary ones
    along a line, because it assigns real ones only to their own classes.
    """

    card = AttackCard(
        name="inversion-network",
        work={"once": 3500, "each": 1800, "grows": ("steps",)},
        goal="reconstruction",
        needs=("oracle (soft labels)", "model_parameters"),
        assumes=("architecture", "auxiliary"),
        oracle="soft",
        source="Yang, Zhang, Chang & Liang 2019",
        tasks=("single-label",),
        profiles={
            "quick": {"queries": 2000, "steps": 300},
            "standard": {"queries": 20_000, "steps": 3000, "width": 256},
            "full": {"queries": 100_000, "steps": 10_000, "width": 512},
        },
        control={"on": "classes", "through": "oracle"},
    )
    Config: ClassVar[type[InversionNetworkConfig]] = InversionNetworkConfig

    def __init__(self, config: InversionNetworkConfig) -> None:
        self.config: InversionNetworkConfig = config

    def missing(self, knowledge: Knowledge) -> str:
        """Return a reason if there are no auxiliary images to learn from."""
        if knowledge.auxiliary is None or not len(knowledge.auxiliary[1]):
            return "no auxiliary images to learn from: bring auxiliary records"
        return ""

    def invert(
        self, model: Askable, knowledge: Knowledge, task: AttackTask, generator: torch.Generator
    ) -> list[Reconstruction]:
        """Return one image of every class for each victim of the model."""
        if knowledge.auxiliary is None:
            raise ValueError("inversion-network: no auxiliary images. Ask `applicable` first.")
        config, classes = self.config, knowledge.classes
        device = knowledge.device
        auxiliary = knowledge.auxiliary[0]

        def invert(draws: torch.Generator) -> dict[str, Tensor]:
            images = composites(auxiliary, model.queries, config.noise, draws)
            answers = evidence(as_probabilities(model.model(images), classes), config.floor)
            decode = fit_decoder(answers, images, config, draws, device)
            return {"images": decode(sure_of(answers, config.quantile))}

        inversion = model.once("inversion-network", config, knowledge, [auxiliary], generator, invert)
        return of_classes(model.targets, inversion["images"], torch.arange(classes))
