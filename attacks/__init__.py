"""Attacks: they take a view, declared knowledge and a budget, and return guesses."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fdaudit.registry import AttackCard, Registry

if TYPE_CHECKING:
    from fdaudit.adversary.task import Attack

__all__ = ["REGISTRY", "Attack", "AttackCard"]

REGISTRY: Registry[Attack, AttackCard] = Registry(
    "fdaudit.attacks",
    {
        "accept-set": "fdaudit.attacks.membership.accept_set:AcceptSet",
        "analytic": "fdaudit.attacks.gradient_inversion.analytic:AnalyticRecovery",
        "augmentation": "fdaudit.attacks.label_only.augmentation:AugmentedCopies",
        "boundary-distance": "fdaudit.attacks.label_only.boundary:BoundaryDistance",
        "brep-mi": "fdaudit.attacks.model_inversion.brep_mi:BREPMI",
        "calibrated-loss": "fdaudit.attacks.membership.lira:CalibratedLoss",
        "candidate-answers": "fdaudit.attacks.membership.candidate_answers:CandidateAnswers",
        "class-gan": "fdaudit.attacks.model_inversion.class_gan:ClassGan",
        "co-op-lira": "fdaudit.attacks.membership.distillation_lira:CoopLiRA",
        "coin-regression": "fdaudit.attacks.membership.coin_regression:CoinRegression",
        "discriminator-regression": (
            "fdaudit.attacks.membership.discriminator_regression:DiscriminatorRegression"
        ),
        "distillation-lira": "fdaudit.attacks.membership.distillation_lira:DistillationLiRA",
        "dlg": "fdaudit.attacks.gradient_inversion.dlg:DLG",
        "embedding-rows": "fdaudit.attacks.text_inversion.rows:EmbeddingRows",
        "extraction-hard": "fdaudit.attacks.model_extraction.surrogate:ExtractionHard",
        "extraction-soft": "fdaudit.attacks.model_extraction.surrogate:ExtractionSoft",
        "gap": "fdaudit.attacks.label_only.gap:Gap",
        "generator-leakage": "fdaudit.attacks.membership.generator_leakage:GeneratorLeakage",
        "gmi": "fdaudit.attacks.model_inversion.gmi:GMI",
        "ideal-hard": "fdaudit.attacks.model_inversion.ideal:IdealHard",
        "ideal-soft": "fdaudit.attacks.model_inversion.ideal:IdealSoft",
        "inversion-network": "fdaudit.attacks.model_inversion.inversion_network:InversionNetwork",
        "inverting-gradients": "fdaudit.attacks.gradient_inversion.inverting:InvertingGradients",
        "label-answers": "fdaudit.attacks.label_distribution.answers:LabelAnswers",
        "label-counts": "fdaudit.attacks.label_distribution.counts:LabelCounts",
        "label-declined": "fdaudit.attacks.label_distribution.declined:LabelDeclined",
        "label-presence": "fdaudit.attacks.label_distribution.presence:LabelPresence",
        "label-updates": "fdaudit.attacks.label_distribution.updates:LabelUpdates",
        "learned-inversion": "fdaudit.attacks.gradient_inversion.learned:LearnedInversion",
        "lira-offline": "fdaudit.attacks.membership.lira:LiRAOffline",
        "lira-online": "fdaudit.attacks.membership.lira:LiRAOnline",
        "logan": "fdaudit.attacks.membership.logan:DiscriminatorScore",
        "loss-threshold": "fdaudit.attacks.loss_threshold:LossThreshold",
        "neuron-updates": "fdaudit.attacks.membership.neuron_updates:NeuronUpdates",
        "noise-robustness": "fdaudit.attacks.label_only.noise:NoiseRobustness",
        "paired-logits": "fdaudit.attacks.model_inversion.paired_logits:PairedLogits",
        "pixel-comparison": "fdaudit.attacks.gradient_inversion.comparison:PixelComparison",
        "pixel-matching": "fdaudit.attacks.membership.comparisons:PixelMatching",
        "plg-mi": "fdaudit.attacks.model_inversion.plg_mi:PLGMI",
        "prototype-regression": "fdaudit.attacks.membership.prototypes:PrototypeRegression",
        "rehearsed-regression": "fdaudit.attacks.membership.rehearsed_regression:RehearsedRegression",
        "rmia": "fdaudit.attacks.membership.lira:RMIA",
        "tag": "fdaudit.attacks.text_inversion.tag:TAG",
        "update-projection": "fdaudit.attacks.membership.projection:UpdateProjection",
        "yoqo": "fdaudit.attacks.label_only.yoqo:YOQO",
    },
)
"""Public names of attacks; installed packages add theirs through the entry-point group."""


def __getattr__(name: str) -> Any:
    if name == "Attack":  # its module loads torch
        from fdaudit.adversary.task import Attack

        return Attack
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
