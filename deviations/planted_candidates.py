"""Planted candidates: clients answer for the records whose membership is in question."""

from __future__ import annotations

from typing import ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor

from fdaudit.errors import SpecError
from fdaudit.registry import DeviationCard
from fdaudit.tasks import Task

from ._candidates import CandidateQuestions
from ._probes import probes_of
from ._rounds import SomeRounds

__all__ = ["PlantedCandidates", "PlantedCandidatesConfig"]


class PlantedCandidatesConfig(SomeRounds):
    """Settings of planted candidates."""

    probes: Literal["none", "neighbours", "boundary", "gradients"] = "none"
    """What is planted beside each candidate: neighbours of it, samples towards the `boundary` of its class, or pairs
    on both sides of it, which show `gradients`.
    """
    each: int = Field(4, ge=1, le=10_000)
    """Probes of a candidate. Fewer candidates are asked about where places are too few."""
    reach: float = Field(0.1, gt=0)
    """Distance of the farthest probe from its candidate, root-mean-square over the values of a sample."""


class PlantedCandidates(CandidateQuestions):
    """The server hides the candidates among the samples that clients answer, and asks for them first.

    A model answers records that it was trained on more surely than others. Clients answer with the model of that round,
    so `candidate-answers` reads each candidate as often as it is asked. Where a defence draws its noise anew for each
    answer, the mean over the rounds has less of it.

    The server goes on from answers about other samples than its own. Where these teach its model, as in FedIOD, name
    the last round in `rounds`: clients' models are frozen there, and one round asks everything.
    """

    card = DeviationCard(
        name="planted-candidates",
        source=(
            "ours; that a server chooses the samples: Cheng et al. 2021 and Gong et al. 2023 allow it; probes: "
            "Choquette-Choo et al. 2021, gradients: Rezaei & Liu 2021"
        ),
        roles=("server",),
        changes=("proxy_indices", "generated_samples"),
        read_by=("candidate-answers",),
        noticed="A client finds its own records among the samples that it is to answer.",
        detectors=("own-records", "repeats"),
        knows=("candidates",),
    )
    Config: ClassVar[type[PlantedCandidatesConfig]] = PlantedCandidatesConfig
    config: PlantedCandidatesConfig

    def planted(self, x: Tensor, y: Tensor, task: Task, generator: torch.Generator) -> Tensor:
        """Return each candidate with its probes (n, m, ...)."""
        config = self.config
        if config.probes == "none":
            return x[:, None]
        if not x.is_floating_point():
            problem = "has records of whole numbers, which have no probes around them"
            raise SpecError("dataset.name", task.name, problem, "Set probes to 'none'.")
        probes = probes_of(config.probes, x, y, config.each, config.reach, generator)
        if task.inputs.bounded:
            probes = probes.clamp(0, 1)
        return torch.cat([x[:, None], probes], 1)
