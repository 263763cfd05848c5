"""Metrics: compare guesses with the truth, as figures with intervals.

Plain functions on tensors, arrays or lists. Those whose names end in `_figure`, and the `score_*` functions, return
`fdaudit.types.Figure`: a number with its interval, or the reason why there is none. Random functions (bootstrap, prior
draws) take a `numpy.random.Generator`. Libraries for pretrained networks and image measures are loaded by the functions
that use them, not by this package.
"""

from fdaudit.metrics.chance import auc_p_value, tpr_p_value
from fdaudit.metrics.claims.gaussian_bounds import gdp_epsilon, mu_lower_bound, mu_p_value, one_run_mu
from fdaudit.metrics.claims.lower_bounds import (
    Design,
    epsilon_lower_bound,
    epsilon_p_value,
    guesses_needed,
    most_contradictable,
    one_run_epsilon,
)
from fdaudit.metrics.clients import mean_and_worst
from fdaudit.metrics.extraction import score_extraction
from fdaudit.metrics.family import REFLIPS, FigureKey, Pairs, Reflipped, holm, reflip
from fdaudit.metrics.galleries.gallery import Gallery, Probe
from fdaudit.metrics.galleries.identification import Identification, Rank, identify
from fdaudit.metrics.images.bystanders import OWN_IMAGES, Bystanders
from fdaudit.metrics.images.class_evaluation import Judge, relabelled_p_value, score_class_evaluation
from fdaudit.metrics.images.class_reconstruction import nearest_records, score_class_reconstruction
from fdaudit.metrics.images.compared import PSNR_CEILING, ImageScore, ReconstructionScore
from fdaudit.metrics.images.frechet import frechet_distance, frechet_figure, task_encoder_distance
from fdaudit.metrics.images.generated import score_generated
from fdaudit.metrics.images.perceptual import (
    LPIPS_SIDE,
    fid_figure,
    inception_features,
    load_fid,
    load_lpips,
    lpips_distance,
)
from fdaudit.metrics.images.prior import AuxiliaryPool, ClassPriors, Measure, choose_strategies
from fdaudit.metrics.images.reconstruction import score_reconstruction
from fdaudit.metrics.images.similarity import match, mse, psnr, ssim, ssim_window
from fdaudit.metrics.images.weights import PINS, Pin, WeightsUnavailableError, load_weights
from fdaudit.metrics.intervals import Interval, bootstrap, clopper_pearson, mean_figure
from fdaudit.metrics.labels import (
    SMOOTHING,
    chebyshev,
    kl_divergence,
    label_overlap,
    label_recovery_figures,
    score_label_distribution,
    total_variation,
)
from fdaudit.metrics.membership import (
    FPRS,
    MembershipScore,
    auc_figure,
    balanced_accuracy_figure,
    pair_accuracy_figure,
    score_membership,
    tpr_at_fpr_figure,
)
from fdaudit.metrics.multilabel import (
    MEAN_AUC_METHOD,
    MeanAuc,
    mean_auc,
    mean_auc_figure,
    multilabel_macro_f1,
)
from fdaudit.metrics.ranking import RocCurve, auc, balanced_accuracy, pair_accuracy, roc_curve, tpr_at_fpr
from fdaudit.metrics.utility import (
    Chance,
    accuracy,
    accuracy_figure,
    bytes_figure,
    bytes_on_wire,
    constant_accuracy,
    macro_f1,
    near_chance,
)

__all__ = [
    "FPRS",
    "LPIPS_SIDE",
    "MEAN_AUC_METHOD",
    "OWN_IMAGES",
    "PINS",
    "PSNR_CEILING",
    "REFLIPS",
    "SMOOTHING",
    "AuxiliaryPool",
    "Bystanders",
    "Chance",
    "ClassPriors",
    "Design",
    "FigureKey",
    "Gallery",
    "Identification",
    "ImageScore",
    "Interval",
    "Judge",
    "MeanAuc",
    "Measure",
    "MembershipScore",
    "Pairs",
    "Pin",
    "Probe",
    "Rank",
    "ReconstructionScore",
    "Reflipped",
    "RocCurve",
    "WeightsUnavailableError",
    "accuracy",
    "accuracy_figure",
    "auc",
    "auc_figure",
    "auc_p_value",
    "balanced_accuracy",
    "balanced_accuracy_figure",
    "bootstrap",
    "bytes_figure",
    "bytes_on_wire",
    "chebyshev",
    "choose_strategies",
    "clopper_pearson",
    "constant_accuracy",
    "epsilon_lower_bound",
    "epsilon_p_value",
    "fid_figure",
    "frechet_distance",
    "frechet_figure",
    "gdp_epsilon",
    "guesses_needed",
    "holm",
    "identify",
    "inception_features",
    "kl_divergence",
    "label_overlap",
    "label_recovery_figures",
    "load_fid",
    "load_lpips",
    "load_weights",
    "lpips_distance",
    "macro_f1",
    "match",
    "mean_and_worst",
    "mean_auc",
    "mean_auc_figure",
    "mean_figure",
    "most_contradictable",
    "mse",
    "mu_lower_bound",
    "mu_p_value",
    "multilabel_macro_f1",
    "near_chance",
    "nearest_records",
    "one_run_epsilon",
    "one_run_mu",
    "pair_accuracy",
    "pair_accuracy_figure",
    "psnr",
    "reflip",
    "relabelled_p_value",
    "roc_curve",
    "score_class_evaluation",
    "score_class_reconstruction",
    "score_extraction",
    "score_generated",
    "score_label_distribution",
    "score_membership",
    "score_reconstruction",
    "ssim",
    "ssim_window",
    "task_encoder_distance",
    "total_variation",
    "tpr_at_fpr",
    "tpr_at_fpr_figure",
    "tpr_p_value",
]
