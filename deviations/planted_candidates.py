"""Planted candidates: clients answer for the records whose membership is in question."""

from __future__ import annotations

from typing import ClassVar

from fdaudit.registry import DeviationCard

from ._candidates import CandidateQuestions
from ._rounds import SomeRounds

__all__ = ["PlantedCandidates", "PlantedCandidatesConfig"]


class PlantedCandidatesConfig(SomeRounds):
    """Settings of planted candidates."""


class PlantedCandidates(CandidateQuestions):
    """The server hides the candidates among the samples that clients answer, and asks for them first.

    A model answers records that it was trained on more surely than others. Clients answer with the model of that round,
    so `candidate-answers` reads each candidate as often as it is asked. Where a defence draws its noise anew for each
    answer, the mean over the rounds has less of it.
    """

    card = DeviationCard(
        name="planted-candidates",
        source="ours; that a server chooses the samples: Cheng et al. 2021 and Gong et al. 2023 allow it",
        roles=("server",),
        changes=("proxy_indices", "generated_samples"),
        read_by=("candidate-answers",),
        noticed="A client finds its own records among the samples that it is to answer.",
        detectors=("own-records", "repeats"),
        knows=("candidates",),
    )
    Config: ClassVar[type[PlantedCandidatesConfig]] = PlantedCandidatesConfig
