"""Scores of membership inference from soft answers: calibrated loss, LiRA and RMIA, as functions of tensors.

Rows are models, columns candidates; `inside` (m, n) marks which model was trained on which candidate.

Guarantees:
  * every score is finite for finite answers, even with few models on either side;
  * reordering models does not change scores, and reordering candidates reorders them in the same way.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from fdaudit.tasks import labels_of

__all__ = ["calibrated", "confidence", "lira_offline", "lira_online", "rmia"]

_LEAST_DEVIATION = 1e-3
"""Smallest standard deviation of a likelihood, in units of the logit: no two trained models agree better."""


def confidence(answer: Tensor, y: Tensor, floor: float = 1e-12) -> Tensor:
    """Return the logit-scaled confidence φ = log(p_y / (1 - p_y)) (n,) of soft answers (n, C), in float64.

    Args:
        answer: probabilities (n, C).
        y: classes (n,), or (n, C) of 1, 0 and -1 for unknown.
        floor: smallest probability before a logarithm.
    """
    return labels_of(y).confidence(answer.double(), y, floor)


def calibrated(target: Tensor, shadows: Tensor, inside: Tensor) -> Tensor:
    """Return the target's log p minus its mean over models that never saw the candidate (n,).

    This is minus the loss calibrated by its mean under reference models (Watson 2022, Eq. 2). For a candidate that
    every shadow model was trained on, the mean is over all.

    Args:
        target: log p_y (n,) under the target.
        shadows: log p_y (m, n) under the shadow models.
        inside: (m, n).
    """
    mean, _, count = _moments(shadows, ~inside)
    return target - torch.where(count > 0, mean, shadows.mean(0))


def lira_online(
    target: Tensor, shadows: Tensor, inside: Tensor, *, fixed_variance: bool, blur: Tensor | float = 0.0
) -> Tensor:
    """Return the log-likelihood ratio (n,) of φ under Gaussians of the models with and without each candidate.

    Source: Carlini 2022, Algorithm 1 (online), and section VI-B for the variance: with few shadow models, one for all
    candidates. Then the two means are few models' too, and their difference has the wrong sign for many candidates. It
    is shrunk towards the mean difference of all candidates by its variance (James & Stein 1961); one variance serves
    both sides, so that a target that is surer than every shadow is not judged by which side scatters more.

    Args:
        target: φ (n,) of the target.
        shadows: φ (m, n) of the shadow models.
        inside: (m, n).
        fixed_variance: one variance for all candidates and both sides.
        blur: variance (n,) that rounding of the target's answers adds to both sides.
    """
    both = (inside.any(0) & (~inside).any(0)).double()
    if fixed_variance:
        return _shrunk_ratio(target, shadows, inside, blur) * both
    with_it = _gaussian(shadows, inside, fixed_variance)
    without = _gaussian(shadows, ~inside, fixed_variance)
    ratio = _log_density(target, *with_it, blur) - _log_density(target, *without, blur)
    return ratio * both  # a candidate on one side of all models cannot be told by them


def _shrunk_ratio(target: Tensor, shadows: Tensor, inside: Tensor, blur: Tensor | float) -> Tensor:
    """Return the log-likelihood ratio (n,) of two Gaussians of one variance, with shrunk differences of their means."""
    mean_with, spread_with, count_with = _moments(shadows, inside)
    mean_without, spread_without, count_without = _moments(shadows, ~inside)
    comparable = inside.any(0) & (~inside).any(0)
    freedom = (count_with - 1).clamp_min(0).sum() + (count_without - 1).clamp_min(0).sum()
    variance = (spread_with.sum() + spread_without.sum()) / freedom.clamp_min(1)
    variance = variance.clamp_min(_LEAST_DEVIATION**2)
    gap = mean_with - mean_without
    error = variance * (1 / count_with.clamp_min(1) + 1 / count_without.clamp_min(1))
    if not bool(comparable.any()):
        return torch.zeros_like(target)
    centre = gap[comparable].mean()
    # Differences scatter by their true variance and by the error of their means: the rest is the true one.
    true = ((gap[comparable] - centre).square().mean() - error[comparable].mean()).clamp_min(0)
    shrunk = centre + (gap - centre) * true / (true + error)
    middle = (mean_with + mean_without) / 2
    return (target - middle) * shrunk / (variance + blur)


def lira_offline(
    target: Tensor, shadows: Tensor, inside: Tensor, *, fixed_variance: bool, blur: Tensor | float = 0.0
) -> Tensor:
    """Return the standard score of φ (n,) against models without each candidate.

    In Carlini 2022, Eq. 4, Λ = Pr[Z <= φ]. The standard score is its quantile, which keeps the order and does not
    saturate.

    Args:
        target: φ (n,) of the target.
        shadows: φ (m, n) of the shadow models.
        inside: (m, n).
        fixed_variance: one variance for all candidates.
        blur: variance (n,) that rounding of the target's answers adds.
    """
    mean, variance = _gaussian(shadows, ~inside, fixed_variance)
    comparable = (~inside).any(0)
    return torch.where(comparable, (target - mean) / (variance + blur).sqrt(), torch.zeros_like(target))


def rmia(
    target: Tensor,
    shadows: Tensor,
    inside: Tensor,
    target_z: Tensor,
    shadows_z: Tensor,
    inside_z: Tensor,
    *,
    gamma: float,
    a: float | None = None,
) -> Tensor:
    """Return the share (n,) of population records z that each candidate x dominates: LR(x, z) >= γ.

    Zarifzadeh 2024, Eq. 2 to 4: LR = (Pr(x|θ) / Pr(x)) / (Pr(z|θ) / Pr(z)). Pr(x) is the mean of Pr(x|θ') over
    reference models; those with x and those without have equal weight. A share has few possible values. The ratio
    itself breaks ties, within less than one step of the share.

    Args:
        target: log Pr(x|θ) (n,) under the target.
        shadows: the same (m, n) under the reference models.
        inside: (m, n).
        target_z: log Pr(z|θ) (k,) of the population.
        shadows_z: the same (m, k).
        inside_z: (m, k).
        gamma: γ, at least 1.
        a: of the offline attack: Pr(x) = ((1 + a) Pr_OUT(x) + 1 - a) / 2 from models without x; None is online.
    """
    ratio = target - _evidence(shadows, inside, a)
    ratio_z = target_z - _evidence(shadows_z, inside_z, a)
    share = (ratio[:, None] - ratio_z[None, :] >= math.log(gamma)).double().mean(1)
    return share + 0.5 / len(ratio_z) * torch.sigmoid(ratio)


def _evidence(log_p: Tensor, inside: Tensor, a: float | None) -> Tensor:
    """Return log Pr(x) (n,) from log Pr(x|θ') (m, n)."""
    p = log_p.exp()
    out, _, outs = _moments(p, ~inside)
    within, _, ins = _moments(p, inside)
    if a is not None:
        # A record that every reference model saw has no model without it: its mean over all stands in.
        without = torch.where(outs > 0, out, p.mean(0))
        evidence = ((1 + a) * without + 1 - a) / 2
    else:
        evidence = (out + within) / 2
        evidence = torch.where(ins == 0, out, evidence)
        evidence = torch.where(outs == 0, within, evidence)
    return evidence.clamp_min(torch.finfo(torch.float64).tiny).log()


def _moments(values: Tensor, chosen: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return mean, sum of squared deviations and count (n,) over the chosen rows of each column (m, n)."""
    weight = chosen.to(values.dtype)
    count = weight.sum(0)
    mean = (values * weight).sum(0) / count.clamp_min(1)
    spread = ((values - mean).square() * weight).sum(0)
    return mean, spread, count


def _gaussian(values: Tensor, chosen: Tensor, fixed_variance: bool) -> tuple[Tensor, Tensor]:
    """Return mean (n,) and variance (n,) over the chosen rows of each column, pooled if requested or necessary."""
    mean, spread, count = _moments(values, chosen)
    freedom = (count - 1).clamp_min(0)
    pooled = spread.sum() / freedom.sum().clamp_min(1)
    own = spread / freedom.clamp_min(1)
    variance = pooled.expand_as(own) if fixed_variance else torch.where(freedom > 0, own, pooled)
    return mean, variance.clamp_min(_LEAST_DEVIATION**2)


def _log_density(value: Tensor, mean: Tensor, variance: Tensor, blur: Tensor | float) -> Tensor:
    """Return log N(value; mean, variance + blur) up to a constant."""
    total = variance + blur
    return -0.5 * ((value - mean).square() / total + total.log())
