"""Defences: applied where data leaves a party, on the sender's side of the wire."""

from fdaudit.registry import Registry

__all__ = ["REGISTRY"]

REGISTRY = Registry(
    "fdaudit.defenses",
    {
        "confident-gnmax": "fdaudit.defenses.pate.aggregators:ConfidentGNMax",
        "gaussian-noise": "fdaudit.defenses.noise:GaussianNoise",
        "gnmax": "fdaudit.defenses.pate.aggregators:GNMax",
        "laplace-noise": "fdaudit.defenses.noise:LaplaceNoise",
        "lnmax": "fdaudit.defenses.pate.aggregators:LNMax",
        "uniform-quantization": "fdaudit.defenses.quantization:UniformQuantization",
    },
)
"""Public names of defences; installed packages add theirs through the entry-point group."""
