"""Images like faces: a shared layout, a smooth pattern for each person, and a smooth change for each photograph."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray


def smooth(rng: np.random.Generator, n: int, height: int, width: int) -> NDArray[np.float64]:
    """Random images (n, h, w) whose power falls with the cube of the frequency, each of variance 1."""
    rows, columns = np.fft.fftfreq(height) * height, np.fft.rfftfreq(width) * width
    frequency = np.hypot(rows[:, None], columns[None])
    frequency[0, 0] = 1
    images = np.fft.irfft2(
        np.fft.rfft2(rng.standard_normal((n, height, width))) / frequency**1.5, s=(height, width)
    )
    return np.asarray(images / images.std(axis=(1, 2), keepdims=True))


def faces(
    rng: np.random.Generator, people: int, photographs: int, height: int = 28, width: int = 23
) -> tuple[torch.Tensor, NDArray[np.int64]]:
    """Photographs (n, 1, h, w) in [0, 1], and who is on each (n,)."""
    layout = 0.5 + 0.15 * smooth(rng, 1, height, width)
    person = 0.11 * smooth(rng, people, height, width)
    each = 0.07 * smooth(rng, people * photographs, height, width)
    x = (layout + np.repeat(person, photographs, 0) + each).clip(0, 1)
    return torch.from_numpy(x).float()[:, None], np.repeat(np.arange(people), photographs)


def blurred(x: torch.Tensor, noise: float, rng: np.random.Generator) -> torch.Tensor:
    """Images averaged over 3x3 pixels, with Gaussian noise of that standard deviation on each pixel."""
    soft = torch.nn.functional.avg_pool2d(x, 3, 1, 1, count_include_pad=False)
    return (soft + noise * torch.from_numpy(rng.standard_normal(tuple(x.shape))).float()).clamp(0, 1)
