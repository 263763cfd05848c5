"""Black-box model inversion after IDEAL: a data-free surrogate from soft or hard answers, then its inversion."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, Literal

import torch
from torch import Tensor

from fdaudit.goals.reconstruction import Reconstruction
from fdaudit.registry import AttackCard
from fdaudit.types import AttackTask

from .._reading import reads_forms
from .inversion import InversionConfig, invert_classes
from .model_attack import QueriesConfig, QueryAttack
from .priors import centres
from .surrogate import SurrogateConfig, fit_surrogate, surrogate_of
from .victims import Askable, as_probabilities, of_classes, wanted

if TYPE_CHECKING:
    from fdaudit.adversary.knowledge import Knowledge

__all__ = ["IdealConfig", "IdealHard", "IdealSoft"]


class IdealConfig(QueriesConfig, SurrogateConfig, InversionConfig):
    """Settings of black-box model inversion."""

    prior: Literal["auxiliary", "none"] = "auxiliary"
    """Centre images of the inversion's prior: mean auxiliary images, or black ones (data-free throughout)."""


_SOURCE: str = "Zhang, Chen & Lyu 2023 (IDEAL); Fredrikson, Jha & Ristenpart 2015"
_PROFILES: dict[str, dict[str, Any]] = {
    "quick": {
        "queries": 4000,
        "rounds": 6,
        "generator_steps": 3,
        "surrogate_steps": 40,
        "width": 64,
        "restarts": 2,
        "iterations": 80,
    },
    "standard": {"queries": 50_000, "rounds": 50, "surrogate_steps": 100},
    "full": {
        "queries": 250_000,
        "rounds": 100,
        "surrogate_steps": 200,
        "width": 256,
        "restarts": 16,
        "iterations": 1000,
    },
}


class _Ideal(QueryAttack):
    """The shared part of both attacks, which differ in the answers that they query."""

    Config: ClassVar[type[IdealConfig]] = IdealConfig

    def __init__(self, config: IdealConfig) -> None:
        self.config: IdealConfig = config

    def invert(
        self, model: Askable, knowledge: Knowledge, task: AttackTask, generator: torch.Generator
    ) -> list[Reconstruction]:
        """Return one image of every class for each victim of the model."""
        if knowledge.architecture is None:
            raise ValueError("ideal: the images' shape is not known. Ask `applicable` first.")
        shape, classes = knowledge.architecture.input_shape, knowledge.classes
        device, shown = knowledge.device, wanted(knowledge, task)

        def ask(x: Tensor) -> Tensor:
            return as_probabilities(model.model(x), classes)

        auxiliary = knowledge.auxiliary if self.config.prior == "auxiliary" else None
        centre = centres(auxiliary, classes, shape)[shown].to(device)

        def fit(draws: torch.Generator) -> dict[str, Tensor]:
            return fit_surrogate(ask, model.queries, shape, classes, self.config, draws, device)

        # It needs no auxiliary image, so that adversaries who lack other classes share it where they may.
        learned = SurrogateConfig(**self.config.model_dump(include=set(SurrogateConfig.model_fields)))
        parameters = model.once("ideal: surrogate", learned, knowledge, [], generator, fit)
        surrogate = surrogate_of(parameters, shape, classes, self.config, device)

        def invert(draws: torch.Generator) -> dict[str, Tensor]:
            images, objective = invert_classes(surrogate, centre, shown, self.config, draws)
            return {"images": images, "objective": objective}

        inversion = model.once("ideal", self.config, knowledge, [centre, shown], generator, invert)
        return of_classes(
            model.targets,
            inversion["images"],
            shown,
            objective=float(inversion["objective"].mean()),
            evaluations=self.config.restarts * self.config.copies * self.config.iterations,
        )


@reads_forms
class IdealSoft(_Ideal):
    """Learns a surrogate from soft answers to generated images, one query an image, and inverts it class by class.

    The surrogate needs no data (Zhang 2023). The inversion uses gradients and image priors: total variation, and a
    Gaussian around the mean auxiliary image of a class (of all classes if auxiliary data lack it). `prior: none`
    replaces this mean by black. Each victim's own model is queried if clients answer. Otherwise the released one is,
    which gives one guess for all victims. A model in view is queried up to the limit `queries`.
    """

    card = AttackCard(
        name="ideal-soft",
        work={"once": 6000, "each": 1800, "grows": ("rounds", "surrogate_steps")},
        needs=("oracle (soft labels)", "model_parameters"),
        oracle="soft",
        goal="reconstruction",
        source=_SOURCE,
        assumes=("architecture", "auxiliary"),
        tasks=("single-label",),
        control={"on": "classes", "through": "oracle"},
        profiles=_PROFILES,
    )


@reads_forms
class IdealHard(_Ideal):
    """As `ideal-soft`, from hard answers: the surrogate learns the answered class.

    Everything else is the same, so the two show how much more soft answers reveal than hard ones.
    """

    card = AttackCard(
        name="ideal-hard",
        work={"once": 6000, "each": 1800, "grows": ("rounds", "surrogate_steps")},
        needs=("oracle (hard labels)", "model_parameters"),
        oracle="hard",
        goal="reconstruction",
        source=_SOURCE,
        assumes=("architecture", "auxiliary"),
        tasks=("single-label",),
        control={"on": "classes", "through": "oracle"},
        profiles=_PROFILES,
    )
