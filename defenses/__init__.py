"""Defences: senders apply them before the wire, clients in training, receivers to what they got."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fdaudit.registry import DefenseCard, Registry

if TYPE_CHECKING:
    from fdaudit.transcript.wire import Defense

__all__ = ["REGISTRY", "Defense", "DefenseCard"]

REGISTRY: Registry[Defense, DefenseCard] = Registry(
    "fdaudit.defenses",
    {
        "confident-gnmax": "fdaudit.defenses.pate.aggregators:ConfidentGNMax",
        "discrete-gaussian": "fdaudit.defenses.discrete:DiscreteGaussianNoise",
        "discrete-laplace": "fdaudit.defenses.discrete:DiscreteLaplaceNoise",
        "dp-fedavg": "fdaudit.defenses.clipped:DPFedAvg",
        "dp-sgd": "fdaudit.defenses.dp_sgd:DPSGD",
        "fresh-samples": "fdaudit.defenses.checks:FreshSamples",
        "gaussian-noise": "fdaudit.defenses.noise:GaussianNoise",
        "gnmax": "fdaudit.defenses.pate.aggregators:GNMax",
        "hard-label": "fdaudit.defenses.reduction:HardLabel",
        "laplace-noise": "fdaudit.defenses.noise:LaplaceNoise",
        "lnmax": "fdaudit.defenses.pate.aggregators:LNMax",
        "own-public-set": "fdaudit.defenses.checks:OwnPublicSet",
        "rounding": "fdaudit.defenses.reduction:Rounding",
        "same-broadcast": "fdaudit.defenses.checks:SameBroadcast",
        "sanitized-gradients": "fdaudit.defenses.clipped:SanitizedGradients",
        "temperature": "fdaudit.defenses.reduction:Temperature",
        "top-k": "fdaudit.defenses.reduction:TopK",
        "uniform-quantization": "fdaudit.defenses.quantization:UniformQuantization",
    },
)
"""Public names of defences; installed packages add theirs through the entry-point group."""


def __getattr__(name: str) -> Any:
    if name == "Defense":  # its module loads torch
        from fdaudit.transcript.wire import Defense

        return Defense
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
