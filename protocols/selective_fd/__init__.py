"""Selective-FD (Shao et al. 2023): the protocol, its density-ratio estimator and its selectors."""

from fdaudit.models.density_ratio import DensityRatio, KuLSIF, NystromKuLSIF

from .config import SelectiveFDConfig
from .protocol import SelectiveFD
from .selectors import BoundingBox, DensitySelector, Selection, confidence, energy, fit_density

__all__ = [
    "BoundingBox",
    "DensityRatio",
    "DensitySelector",
    "KuLSIF",
    "NystromKuLSIF",
    "Selection",
    "SelectiveFD",
    "SelectiveFDConfig",
    "confidence",
    "energy",
    "fit_density",
]
