"""Attacks: a view, declared knowledge and a budget in; guesses out."""

from fdaudit.registry import Registry

__all__ = ["REGISTRY"]

REGISTRY = Registry(
    "fdaudit.attacks",
    {
        "analytic": "fdaudit.attacks.gradient_inversion.analytic:AnalyticRecovery",
        "dlg": "fdaudit.attacks.gradient_inversion.dlg:DLG",
        "inverting-gradients": "fdaudit.attacks.gradient_inversion.inverting:InvertingGradients",
        "loss-threshold": "fdaudit.attacks.loss_threshold:LossThreshold",
    },
)
"""Public names of attacks; installed packages add theirs through the entry-point group."""
