"""Defences: applied where data leaves a party, on the sender's side of the wire."""

from fdaudit.registry import Registry

__all__ = ["REGISTRY"]

REGISTRY = Registry(
    "fdaudit.defenses",
    {
        "dp-sgd": "fdaudit.defenses.dp_sgd:DPSGD",
        "gaussian-noise": "fdaudit.defenses.noise:GaussianNoise",
        "laplace-noise": "fdaudit.defenses.noise:LaplaceNoise",
        "uniform-quantization": "fdaudit.defenses.quantization:UniformQuantization",
    },
)
"""Public names of defences; installed packages add theirs through the entry-point group."""
