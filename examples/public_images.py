"""Write image files in MedMNIST's layout: public images of other domains for FedKD, and X-rays with three findings.

    python examples/public_images.py DATA OUT

DATA holds `cifar10_jpeg.npz` and `pneumoniamnist.npz`. OUT receives, each 28x28 and grey:

- `digits28.npz`: scikit-learn's 1,797 digits, enlarged from 8x8;
- `cifar28.npz` and `cifar28-all.npz`: 1,797 and all of CIFAR-10's training images, in grey and shrunk;
- `xrays28.npz` and `xrays28-all.npz`: 1,797 and all training images of PneumoniaMNIST;
- `xrays28-findings.npz`: all of its images with three labels each, pneumonia, heart on the right, and device. The
  first is the file's own. The other two are made: half of the images are mirrored, and half show a bright bar of 2x6
  pixels at a random place. The halves are drawn at random, each by itself.

FedKD does not read labels of public images. The files hold them because the layout has them.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image
from sklearn.datasets import load_digits

COUNT = 1797
"""As many as scikit-learn has digits."""

Images = NDArray[np.uint8]


def resized(images: Images) -> Images:
    """Return grey images (n, h, w) as (n, 28, 28)."""
    return np.stack(
        [np.asarray(Image.fromarray(i).resize((28, 28), Image.Resampling.BILINEAR)) for i in images]
    )


def write(path: Path, images: Images, labels: Images, test: Images, test_labels: Images) -> None:
    """Write images (n, 28, 28) and labels (n, 1) or (n, 3)."""
    np.savez_compressed(
        path, train_images=images, train_labels=labels, test_images=test, test_labels=test_labels
    )


def with_findings(images: Images, labels: Images, draws: np.random.Generator) -> tuple[Images, Images]:
    """Return copies of images (n, 28, 28), some mirrored, some with a bar, and their three labels (n, 3)."""
    found = np.concatenate([labels, draws.integers(0, 2, (len(images), 2), dtype=np.uint8)], axis=1)
    made = images.copy()
    mirrored = found[:, 1] == 1
    made[mirrored] = made[mirrored, :, ::-1]
    height, width = 2, 6
    for i in np.flatnonzero(found[:, 2]):
        top, left = draws.integers(0, 28 - height + 1), draws.integers(0, 28 - width + 1)
        made[i, top : top + height, left : left + width] = 255
    return made, found


def main(data: Path, out: Path) -> None:
    """Write all files."""
    out.mkdir(parents=True, exist_ok=True)
    digits = load_digits()
    x, y = (
        resized(np.round(digits.images * (255 / 16)).astype(np.uint8)),
        digits.target[:, None].astype(np.uint8),
    )
    write(out / "digits28.npz", x, y, x[:100], y[:100])
    for name, source in (("cifar28", "cifar10_jpeg.npz"), ("xrays28", "pneumoniamnist.npz")):
        with np.load(data / source) as file:
            parts = {
                part: file[part] for part in ("train_images", "train_labels", "test_images", "test_labels")
            }
        for part in ("train_images", "test_images"):
            grey = parts[part] @ [0.299, 0.587, 0.114] if parts[part].ndim == 4 else parts[part]
            parts[part] = resized(grey.astype(np.uint8))
        write(out / f"{name}-all.npz", *parts.values())
        parts["train_images"], parts["train_labels"] = (
            parts["train_images"][:COUNT],
            parts["train_labels"][:COUNT],
        )
        write(out / f"{name}.npz", *parts.values())
    with np.load(data / "pneumoniamnist.npz") as file:
        draws = np.random.default_rng(0)
        train, test = (
            with_findings(file[f"{part}_images"], file[f"{part}_labels"], draws) for part in ("train", "test")
        )
    write(out / "xrays28-findings.npz", *train, *test)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
