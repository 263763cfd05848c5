"""Write image files for FedKD with public images of another domain, in MedMNIST's layout.

    python examples/public_images.py DATA OUT

DATA holds `cifar10_jpeg.npz` and `pneumoniamnist.npz`. OUT receives, each 28x28 and grey:

- `digits28.npz`: scikit-learn's 1,797 digits, enlarged from 8x8;
- `cifar28.npz` and `cifar28-all.npz`: 1,797 and all of CIFAR-10's training images, in grey and shrunk;
- `xrays28.npz` and `xrays28-all.npz`: 1,797 and all training images of PneumoniaMNIST.

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
    """Write images (n, 28, 28) and labels (n, 1)."""
    np.savez_compressed(
        path, train_images=images, train_labels=labels, test_images=test, test_labels=test_labels
    )


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


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
