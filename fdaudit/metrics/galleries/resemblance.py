"""Measures of resemblance between guessed images and records, several at once.

A blurred, noisy or low-contrast image may have a large squared error and still show one record and no other. So
resemblance is also measured by correlations, which ignore brightness and contrast. It is also measured within bands of
spatial frequency, which leave out the noise of the other bands. Faces, for example, are recognised by 8 to 16 cycles
per face width (Näsänen, "Spatial frequency bandwidth used in the recognition of facial images", Vision Research 39
(1999)).

Guarantees:
  * a correlation does not change when a guess is scaled, or shifted by a constant;
  * common features of all records distinguish none: their mean is removed before a correlation;
  * an image without contrast resembles no record more than another.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch

from fdaudit.metrics._arrays import Floats

__all__ = ["resemblances"]

_OCTAVES = ((0.0, 2.0), (2.0, 4.0), (4.0, 8.0), (8.0, 16.0))
"""Bands of spatial frequency, in cycles across the shorter side."""

_FLAT = 1e-6
"""Largest length of features, relative to the records', of an image that counts as without contrast."""

_EVEN = 0.5
"""Power of the spread by which `whitened` divides principal components: 0 keeps them, 1 equalises them."""

_TINY = 1e-300

_DIGITS = 9
"""Decimals that are kept: rounding must not separate equal images."""


def resemblances(guess: torch.Tensor, records: torch.Tensor) -> dict[str, Floats]:
    """Measure how much each guess resembles each record of one class; higher is closer.

    Args:
        guess: (m, c, h, w) in [0, 1].
        records: (N, c, h, w) in [0, 1].

    Returns:
        By distance (m, N) float64: `pixels`, minus the mean squared error; `correlation`, of pixels; `gradients`, the
        correlation of gradient magnitudes; `whitened`, the correlation of principal components with their spread
        partly evened out; correlations in the bands that the image size resolves; and `all`, the mean of all
        correlations.
    """
    from scipy.fft import dctn

    both = torch.cat([guess, records]).double()
    m = len(guess)
    # The cosine transform treats opposite borders as independent. Orthonormal, it keeps squared distances.
    spectrum = torch.from_numpy(dctn(both.numpy(), axes=(-2, -1), norm="ortho"))
    flat = spectrum.flatten(1)
    pixels = _without_mean(spectrum.flatten(2)[:, :, 1:].flatten(1), m)  # the first is the mean brightness
    likeness = {
        "pixels": -torch.cdist(flat[:m], flat[m:]).square().numpy() / flat.shape[1],
        "correlation": _correlation(pixels, m),
        "whitened": _correlation(_whitened(pixels, m), m),
    }
    down = both[..., 1:, :-1] - both[..., :-1, :-1]
    across = both[..., :-1, 1:] - both[..., :-1, :-1]
    magnitude = (down.square() + across.square()).sqrt()
    likeness["gradients"] = _correlation(_without_mean(magnitude.flatten(1), m), m)
    for (low, high), band in _bands(*both.shape[-2:]).items():
        within = _without_mean(spectrum[:, :, band].flatten(1), m)
        likeness[f"{low:g} to {high:g} cycles"] = _correlation(within, m)
    correlations = [values for name, values in likeness.items() if name != "pixels"]
    likeness["all"] = np.mean(correlations, axis=0)
    return {name: np.round(values, _DIGITS) for name, values in likeness.items()}


def _bands(height: int, width: int) -> Mapping[tuple[float, float], torch.Tensor]:
    """Return the coefficients (h, w) of the cosine transform in each band; coefficient k has k / 2 cycles."""
    short = min(height, width)
    rows = torch.arange(height).double() / 2 * (short / height)
    columns = torch.arange(width).double() / 2 * (short / width)
    radius = (rows[:, None].square() + columns[None, :].square()).sqrt()
    radius[0, 0] = torch.inf  # the mean brightness
    bands = {}
    for low, high in _OCTAVES:
        band = (radius > low) & (radius <= high)
        if low < short / 2 and bool(band.any()):
            bands[low, high] = band
    return bands


def _without_mean(features: torch.Tensor, m: int) -> torch.Tensor:
    """Remove from features (m + N, d) the part along the mean of the last `N`, the records; differences remain."""
    mean = features[m:].mean(0)
    along = features @ mean / mean.square().sum().clamp(min=_TINY)
    return features - along[:, None] * mean


def _whitened(features: torch.Tensor, m: int) -> torch.Tensor:
    """Project on the principal components of the last `N` rows, the records, and even out their spread."""
    if not features.shape[1]:  # of one pixel nothing is left without the mean brightness
        return features
    records = features[m:]
    if records.shape[0] < records.shape[1]:
        # Fewer records than features: the components come from the smaller matrix R Rᵀ. With R = U S Vᵀ a feature x
        # has R x · U = S Vᵀ x, so half a power more of the variance S² is divided out.
        gram, power, through = records @ records.T, _EVEN / 2 + 0.5, features @ records.T
    else:
        gram, power, through = records.T @ records, _EVEN / 2, features
    variance, vectors = torch.linalg.eigh(gram)
    usable = variance > _FLAT * variance[-1]
    evened: torch.Tensor = through @ vectors[:, usable] / variance[usable] ** power
    return evened


def _correlation(features: torch.Tensor, m: int) -> Floats:
    """Correlate the first `m` rows with the others, (m, N); a row without contrast correlates with none."""
    norms = features.norm(dim=1, keepdim=True)
    has_contrast = norms > _FLAT * norms[m:].median()
    unit = torch.where(has_contrast, features / norms.clamp(min=_TINY), torch.zeros_like(features))
    return np.asarray((unit[:m] @ unit[m:].T).numpy())
