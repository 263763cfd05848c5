"""Image similarity: MSE, PSNR, SSIM, and the matching of a guessed batch to the true one.

Every function takes images in [0, 1], shape (n, c, h, w), as tensors, arrays or lists, computes in float64 on
the CPU (SSIM in float32), and returns one number per image.

Guarantees:
  * `psnr(a, a + d)` is -20 log10 |d| dB for a constant shift d, and infinite for identical images;
  * `ssim(a, a)` is 1, and `ssim` is symmetric;
  * the pairing of `match` has the least total squared error of all one-to-one pairings, the identity included.
"""

from __future__ import annotations

from typing import cast

import torch
from numpy.typing import ArrayLike

from fdaudit.errors import UsageError
from fdaudit.metrics._arrays import images, same_shape

__all__ = ["SSIM_SIDE", "match", "mse", "psnr", "ssim", "ssim_window"]

_WINDOW = 11
_SIGMA = 1.5
_AT_ONCE = 1 << 15
"""Pixel values whose filtered copies are in memory together; more leave a processor's cache and take twice as long."""
SSIM_SIDE = 3
"""Pixels of the shortest side over which SSIM compares structure."""


def _pair(a: ArrayLike, b: ArrayLike) -> tuple[torch.Tensor, torch.Tensor]:
    first, second = images(a, "a"), images(b, "b")
    same_shape(first, second)
    return first, second


def mse(a: ArrayLike, b: ArrayLike) -> torch.Tensor:
    """Return the mean squared error of each pair of images, (n, c, h, w) and (n, c, h, w) -> (n,) float64.

    Raises:
        UsageError: shapes differ, or pixels are not finite or not in [0, 1].
    """
    first, second = _pair(a, b)
    return (first - second).square().flatten(1).mean(1)


def psnr(a: ArrayLike, b: ArrayLike) -> torch.Tensor:
    """Return the peak signal-to-noise ratio of image pairs in dB, (n, c, h, w) and (n, c, h, w) -> (n,) float64.

    10 log10(1 / MSE): the data range is 1. Identical images give +inf, the formula's limit. Before a mean is taken,
    infinities are capped (see `fdaudit.metrics.images.reconstruction`).

    Raises:
        UsageError: shapes differ, or pixels are not finite or not in [0, 1].
    """
    return -10 * torch.log10(mse(a, b))


def ssim_window(height: int, width: int) -> int:
    """Return the side of the Gaussian window for images of this size: 11, or the largest odd number that fits.

    Raises:
        UsageError: a side is under 3 pixels, too small for SSIM to compare structure.
    """
    side = min(height, width)
    if side < SSIM_SIDE:
        raise UsageError("images", (height, width), "are too small for SSIM", "Use images of 3x3 or larger.")
    return min(_WINDOW, side - 1 + side % 2)


def ssim(a: ArrayLike, b: ArrayLike) -> torch.Tensor:
    """Return the structural similarity of image pairs, (n, c, h, w) and (n, c, h, w) -> (n,) float64 in [-1, 1].

    Gaussian window of side 11 and σ = 1.5, K1 = 0.01, K2 = 0.03, data range 1, reflected borders, averaged over
    channels and pixels (Wang et al., "Image quality assessment: from error visibility to structural similarity", IEEE
    TIP 13 (2004), through torchmetrics). A smaller image gets the largest odd window that fits and σ in proportion
    (8x8: window 7, σ = 0.95). Such values are comparable with each other, not with those of larger images. Computation
    is in float32, in a tenth of the time: within 2e-3 of float64 in flat areas, and much closer in others.

    Raises:
        UsageError: shapes differ, a side is under 3 pixels, or pixels are not finite or not in [0, 1].
    """
    from torchmetrics.functional.image import structural_similarity_index_measure

    first, second = _pair(a, b)
    # torchmetrics ignores `kernel_size` for Gaussian windows: it takes 2 int(3.5 σ + 1/2) + 1, which for
    # σ = 1.5 window / 11 is the window again (1, 3, ..., 11).
    sigma = _SIGMA * ssim_window(*first.shape[-2:]) / _WINDOW
    at_once = max(1, _AT_ONCE // first[0].numel()) if len(first) else 1
    values = []
    for some, others in zip(first.float().split(at_once), second.float().split(at_once), strict=True):
        value = structural_similarity_index_measure(
            some, others, sigma=sigma, reduction="none", data_range=1.0
        )
        # A tuple only if full images are requested.
        values.append(cast(torch.Tensor, value).double().reshape(len(some)))
    return torch.cat(values)


def match(guess: ArrayLike, truth: ArrayLike) -> torch.Tensor:
    """Return the one-to-one pairing of guessed with true images that has the least total squared error.

    Args:
        guess: (m, c, h, w).
        truth: (n, c, h, w).

    Returns:
        (n,) int64: for each true image the index of its guess, or -1 if it has none, for m < n. With m > n, m - n
        guesses stay unused. `guess[match(guess, truth)]` lines up with `truth` if m >= n.

    Raises:
        UsageError: shapes differ, or pixels are not finite or not in [0, 1].
    """
    from scipy.optimize import linear_sum_assignment

    guessed, true = images(guess, "guess"), images(truth, "truth")
    same_shape(guessed, true, count=False)
    # Differences, not |a|² + |b|² - 2ab: near-exact guesses would drown in cancellation.
    cost = []
    for image in true:
        cost.append((guessed - image).square().flatten(1).mean(1))
    rows, columns = linear_sum_assignment(torch.stack(cost).numpy())
    permutation = torch.full((len(true),), -1, dtype=torch.int64)
    permutation[torch.from_numpy(rows)] = torch.from_numpy(columns)
    return permutation
