"""PATE (Papernot et al. 2017, 2018): noisy plurality votes and their privacy cost.

This package contains the analyses. The aggregators, which need PyTorch, are in `fdaudit.defenses.pate.aggregators`. A
client is a teacher: it casts at most one vote a query.
"""

from .confident import (
    confident_gnmax_capped_rdp,
    confident_gnmax_independent_rdp,
    confident_gnmax_rdp,
    threshold_rdp,
)
from .gnmax import gnmax_independent_rdp, gnmax_log_q, gnmax_rdp
from .lnmax import lnmax_independent_rdp, lnmax_log_q, lnmax_rdp
from .release import (
    DataDependentEpsilon,
    SmoothRelease,
    gnmax_epsilon,
    gnmax_smooth_sensitivity,
    release_gnmax_epsilon,
)

__all__ = [
    "DataDependentEpsilon",
    "SmoothRelease",
    "confident_gnmax_capped_rdp",
    "confident_gnmax_independent_rdp",
    "confident_gnmax_rdp",
    "gnmax_epsilon",
    "gnmax_independent_rdp",
    "gnmax_log_q",
    "gnmax_rdp",
    "gnmax_smooth_sensitivity",
    "lnmax_independent_rdp",
    "lnmax_log_q",
    "lnmax_rdp",
    "release_gnmax_epsilon",
    "threshold_rdp",
]
