"""Small images of bright discs with their masks, made here: no file of data is needed."""

from __future__ import annotations

import numpy as np
import torch

from fdaudit.data import Dataset

SIDE = 16


def discs(n, *, side=SIDE, seed=0, noise=0.05):
    """Return images (n, side, side) in [0, 1] and the numbers of their discs (n, side, side): one to three each."""
    rng = np.random.default_rng(seed)
    rows, columns = np.mgrid[:side, :side]
    objects = np.zeros((n, side, side), dtype=np.int32)
    for one in objects:
        for number in range(1, 1 + int(rng.integers(1, 4))):
            (r, c), radius = rng.uniform(2, side - 2, 2), rng.uniform(1.5, side / 5)
            one[(rows - r) ** 2 + (columns - c) ** 2 <= radius**2] = number
    images = np.clip(0.2 + 0.6 * (objects > 0) + noise * rng.standard_normal(objects.shape), 0, 1)
    return images.astype(np.float32), objects


def write_masks(path, n=40, *, sites=("b", "a", "c"), each=2, **drawn):
    """Write a file of `masks:FILE`: `each` images a picture; the pictures go to the sites in turn."""
    images, objects = discs(n, **drawn)
    picture = np.arange(n) // each
    source = np.array([sites[p % len(sites)] for p in picture])
    np.savez(path, images=images, instances=objects, source=source, picture=picture)
    return path


def made(n=40, *, sites=2, each=2, **drawn):
    """Return a dataset of discs, `each` images a picture; the pictures go to the sites in turn."""
    images, objects = discs(n, **drawn)
    picture = torch.arange(n) // each
    return Dataset(
        name="discs",
        x=torch.from_numpy(images)[:, None],
        y=torch.from_numpy(objects > 0).long(),
        objects=torch.from_numpy(objects),
        classes=2,
        provenance="made here",
        sites=picture % sites,
        pictures=picture,
    )
