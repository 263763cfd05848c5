"""The Fréchet distance between Gaussians fitted to two sets of features.

||μ_a - μ_b||² + Tr(Σ_a + Σ_b - 2 (Σ_a Σ_b)^½) (Dowson and Landau, "The Fréchet distance between
multivariate normal distributions", J. Multivariate Analysis 12 (1982)). It is called FID only for features of
FID's own Inception network (`fdaudit.metrics.images.perceptual`).

Guarantees:
  * zero for equal features, symmetric, not negative;
  * equals the closed form for Gaussians with commuting covariances;
  * singular covariances (fewer samples than dimensions) need no regularisation: the trace of the root is
    computed exactly from the samples; a figure computed in this way says so.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from numpy.typing import ArrayLike

from fdaudit.errors import UsageError
from fdaudit.metrics._arrays import Floats, images, same_shape
from fdaudit.types import Figure

__all__ = ["frechet_distance", "frechet_figure", "frechet_to_subsets", "task_encoder_distance"]


def _features(values: ArrayLike, field: str) -> Floats:
    tensor = torch.as_tensor(values).detach().to("cpu", torch.float64)
    if tensor.ndim != 2 or len(tensor) < 2 or tensor.shape[1] < 1:
        raise UsageError(
            field, tuple(tensor.shape), "is not (n, d) with n >= 2", "Give two or more feature vectors."
        )
    if not bool(tensor.isfinite().all()):
        raise UsageError(field, tuple(tensor.shape), "holds NaN or infinity", "Check the encoder.")
    return np.asarray(tensor.numpy())


def _root(features: Floats) -> tuple[Floats, Floats]:
    """Return the mean, and a matrix R of few rows with Rᵀ R the unbiased covariance."""
    mean = features.mean(0)
    spread = (features - mean) / np.sqrt(len(features) - 1)
    if len(spread) > spread.shape[1]:
        spread = np.linalg.qr(spread, mode="r")
    return mean, spread


def frechet_distance(features_a: ArrayLike, features_b: ArrayLike) -> float:
    """Return the squared Fréchet distance (as in FID) between Gaussians fitted to features (n, d) and (m, d).

    With Σ = Rᵀ R for both sides, the non-zero eigenvalues of Σ_a Σ_b are the squared singular values of
    R_a R_bᵀ, so Tr (Σ_a Σ_b)^½ is their sum: no matrix square root, no complex numbers, no added diagonal.

    Raises:
        UsageError: fewer than two samples on a side, widths that differ, or numbers that are not finite.
    """
    first, second = _both(features_a, features_b)
    (mean_a, root_a), (mean_b, root_b) = _root(first), _root(second)
    cross = float(np.linalg.svd(root_a @ root_b.T, compute_uv=False).sum())
    apart = float(((mean_a - mean_b) ** 2).sum())
    # Not negative in exact arithmetic; equal features round to either side of zero.
    return max(0.0, apart + float((root_a**2).sum()) + float((root_b**2).sum()) - 2 * cross)


def frechet_to_subsets(features_a: ArrayLike, features_b: ArrayLike, rows: ArrayLike) -> Floats:
    """Return `frechet_distance` from features (n, d) to many subsets of others (m, d) at once.

    The pool is projected once. Each subset then needs the eigenvalues of a matrix of its own size. Their roots are
    accurate to about 1e-8 of the largest, while single distances are accurate to rounding.

    Args:
        features_a: (n, d).
        features_b: (m, d), the pool.
        rows: (k, l) row numbers of the pool, l >= 2, one subset per row.

    Returns:
        (k,) squared distances.

    Raises:
        UsageError: as `frechet_distance`.
    """
    first, pool = _both(features_a, features_b)
    mean_a, root_a = _root(first)
    projected, trace_a = pool @ root_a.T, float((root_a**2).sum())
    distances = []
    for subset_rows in np.asarray(rows):
        subset, seen = pool[subset_rows], projected[subset_rows]
        mean_b, spread = subset.mean(0), seen - seen.mean(0)
        # Either product has the non-zero eigenvalues of R_a Σ_b R_aᵀ, which are those of Σ_a Σ_b: take the smaller.
        gram = spread @ spread.T if len(spread) < spread.shape[1] else spread.T @ spread
        cross = float(np.sqrt(np.linalg.eigvalsh(gram / (len(subset) - 1)).clip(0)).sum())
        trace_b = float(((subset - mean_b) ** 2).sum()) / (len(subset) - 1)
        apart = float(((mean_a - mean_b) ** 2).sum())
        distances.append(max(0.0, apart + trace_a + trace_b - 2 * cross))
    return np.array(distances)


def _both(features_a: ArrayLike, features_b: ArrayLike) -> tuple[Floats, Floats]:
    first, second = _features(features_a, "features_a"), _features(features_b, "features_b")
    if first.shape[1] != second.shape[1]:
        problem = f"does not have {first.shape[1]} columns"
        raise UsageError("features_b", second.shape, problem, "Use one encoder for both.")
    return first, second


def frechet_figure(features_a: ArrayLike, features_b: ArrayLike, name: str) -> Figure:
    """Return the Fréchet distance as a figure called `name`.

    It has no interval. The estimate is biased upwards by an amount that depends on the sample sizes. A bootstrap
    repeats samples and is biased further. Compare only figures of equal sample sizes.

    Raises:
        UsageError: as `frechet_distance`.
    """
    value = frechet_distance(features_a, features_b)
    (n, d), m = np.shape(features_a), np.shape(features_b)[0]
    note = f"{n} against {m} samples of {d} features; biased upwards, compare only figures of equal sizes"
    if min(n, m) <= d:
        note += "; fewer samples than features make a covariance singular: read as a ranking, not a distance"
    return Figure(name=name, value=value, n=min(n, m), note=note)


def task_encoder_distance(
    images_a: ArrayLike,
    images_b: ArrayLike,
    encode: Callable[[torch.Tensor], torch.Tensor],
    encoder: str,
    *,
    batch_size: int = 256,
) -> Figure:
    """Return the Fréchet distance in the features of a named task encoder; it is never called FID.

    Args:
        images_a: (n, c, h, w) in [0, 1].
        images_b: (m, c, h, w) in [0, 1].
        encode: maps float32 images (k, c, h, w) on the CPU to features (k, d), on any device.
        encoder: name of the encoder in the report: `Fréchet distance (ENCODER encoder)`.
        batch_size: number of images encoded at once.

    Raises:
        UsageError: the name is empty or contains FID, or images or features are unsuitable.
    """
    if not encoder.strip() or "fid" in encoder.casefold():
        raise UsageError(
            "encoder", encoder, "does not name a task encoder", "Name the encoder; FID is Inception's alone."
        )
    first = images(images_a, "images_a", torch.float32)
    second = images(images_b, "images_b", torch.float32)
    same_shape(first, second, count=False)
    with torch.no_grad():
        encoded = []
        for x in (first, second):
            parts = [encode(part).cpu() for part in torch.split(x, batch_size)]
            encoded.append(torch.cat(parts))
    return frechet_figure(encoded[0], encoded[1], f"Fréchet distance ({encoder} encoder)")
