"""Selective-FD (Shao et al. 2023): its density-ratio estimator and its selectors."""

from .density_ratio import DensityRatio, KuLSIF, NystromKuLSIF

__all__ = ["DensityRatio", "KuLSIF", "NystromKuLSIF"]
