"""Defences. The sender applies them to its data before the wire."""

from fdaudit.registry import Registry

__all__ = ["REGISTRY"]

REGISTRY: Registry = Registry(
    "fdaudit.defenses",
    {
        "confident-gnmax": "fdaudit.defenses.pate.aggregators:ConfidentGNMax",
        "discrete-gaussian": "fdaudit.defenses.discrete:DiscreteGaussianNoise",
        "discrete-laplace": "fdaudit.defenses.discrete:DiscreteLaplaceNoise",
        "dp-fedavg": "fdaudit.defenses.clipped:DPFedAvg",
        "dp-sgd": "fdaudit.defenses.dp_sgd:DPSGD",
        "gaussian-noise": "fdaudit.defenses.noise:GaussianNoise",
        "gnmax": "fdaudit.defenses.pate.aggregators:GNMax",
        "hard-label": "fdaudit.defenses.reduction:HardLabel",
        "laplace-noise": "fdaudit.defenses.noise:LaplaceNoise",
        "lnmax": "fdaudit.defenses.pate.aggregators:LNMax",
        "rounding": "fdaudit.defenses.reduction:Rounding",
        "sanitized-gradients": "fdaudit.defenses.clipped:SanitizedGradients",
        "temperature": "fdaudit.defenses.reduction:Temperature",
        "top-k": "fdaudit.defenses.reduction:TopK",
        "uniform-quantization": "fdaudit.defenses.quantization:UniformQuantization",
    },
)
"""Public names of defences; installed packages add theirs through the entry-point group."""
