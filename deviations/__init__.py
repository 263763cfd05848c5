"""Deviations: what a party sends in place of what its protocol says."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fdaudit.registry import DeviationCard, Registry

if TYPE_CHECKING:
    from fdaudit.transcript.wire import Deviation

__all__ = ["REGISTRY", "Deviation", "DeviationCard"]

REGISTRY: Registry[Deviation, DeviationCard] = Registry(
    "fdaudit.deviations",
    {
        "candidate-neurons": "fdaudit.deviations.candidate_neurons:CandidateNeurons",
        "chosen-few": "fdaudit.deviations.chosen_few:ChosenFew",
        "class-fishing": "fdaudit.deviations.class_fishing:ClassFishing",
        "crafted-consensus": "fdaudit.deviations.crafted_consensus:CraftedConsensus",
        "gan-client": "fdaudit.deviations.gan_client:GanClient",
        "imprint": "fdaudit.deviations.imprint:Imprint",
        "known-terms": "fdaudit.deviations.known_terms:KnownTerms",
        "model-inconsistency": "fdaudit.deviations.model_inconsistency:ModelInconsistency",
        "planted-candidates": "fdaudit.deviations.planted_candidates:PlantedCandidates",
        "poisoning": "fdaudit.deviations.poisoning:Poisoning",
        "repeated-model": "fdaudit.deviations.repeated_model:RepeatedModel",
        "trap-weights": "fdaudit.deviations.trap_weights:TrapWeights",
    },
)
"""Public names of deviations; installed packages add theirs through the entry-point group."""


def __getattr__(name: str) -> Any:
    if name == "Deviation":  # its module loads torch
        from fdaudit.transcript.wire import Deviation

        return Deviation
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
