"""Pretrained weights: found on disk, checked against a pinned SHA-256, never downloaded.

Guarantees:
  * nothing is downloaded: a file is taken from `FDAUDIT_WEIGHTS` or else torch's hub cache, or is missing;
  * the bytes that are hashed are the bytes that are loaded;
  * a file with another digest is refused in either place, and no other file is tried instead.
"""

from __future__ import annotations

import hashlib
import importlib.util
import io
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

import torch

from fdaudit.errors import UsageError
from fdaudit.limits import TENSOR_BYTES, read_file

__all__ = [
    "PINS",
    "Pin",
    "WeightsUnavailableError",
    "find_weights",
    "load_weights",
    "places_of",
    "same_weights",
]


@dataclass(frozen=True)
class Pin:
    """A weights file.

    Attributes:
        file: its name.
        sha256: the SHA-256 that it must have.
        metric: the figure that needs it.
        source: where its makers publish it.
        package: the package that brings it along, in its folder `weights/v0.1`; empty if none does.
    """

    file: str
    sha256: str
    metric: str
    source: str
    package: str = ""


PINS: Mapping[str, Pin] = MappingProxyType(
    {
        # torchvision's `AlexNet_Weights.IMAGENET1K_V1`; the file's name carries the digest's first 8 digits.
        "alexnet": Pin(
            file="alexnet-owt-7be5be79.pth",
            sha256="7be5be791159472b1fbf3c69796f7cb30dca7ad8466c2df70058c37116cdee02",
            metric="LPIPS",
            source="https://download.pytorch.org/models/alexnet-owt-7be5be79.pth",
        ),
        # pytorch-fid's Inception; the file's name carries the digest's first 8 digits.
        "inception": Pin(
            file="pt_inception-2015-12-05-6726825d.pth",
            sha256="6726825d0af5f729cebd5821db510b11b1cfad8faad88a03f1befd49fb9129b2",
            metric="FID",
            source="https://github.com/mseitzer/pytorch-fid/releases/download/fid_weights/"
            "pt_inception-2015-12-05-6726825d.pth",
        ),
        # The linear layers that come inside the `lpips` wheel, version 0.1.
        "lpips-alex": Pin(
            file="alex.pth",
            sha256="df73285e35b22355a2df87cdb6b70b343713b667eddbda73e1977e0c860835c0",
            metric="LPIPS",
            source="https://raw.githubusercontent.com/richzhang/PerceptualSimilarity/master/lpips/weights/v0.1/"
            "alex.pth",
            package="lpips",
        ),
    }
)
"""Every weights file that may be loaded."""


class WeightsUnavailableError(UsageError):
    """Weights are missing or are not the pinned ones; the metric that needs them is unavailable."""


def _directories() -> list[Path]:
    directory = os.environ.get("FDAUDIT_WEIGHTS")
    return ([Path(directory)] if directory else []) + [Path(torch.hub.get_dir()) / "checkpoints"]


def places_of(name: str) -> list[Path]:
    """Return the folders where a pinned file is looked for, in their order."""
    if not (package := PINS[name].package):
        return _directories()
    spec = importlib.util.find_spec(package)
    if spec is None or spec.origin is None:
        return []
    return [Path(spec.origin).parent / "weights" / "v0.1"]


def find_weights(name: str) -> Path | None:
    """Return the path of a pinned file, whatever its bytes; None if it is in no place."""
    return _present(PINS[name].file, places_of(name))


def _present(file: str, places: Iterable[Path]) -> Path | None:
    """Return the path of a file in the first folder that has it."""
    for place in places:
        if (place / file).is_file():
            return place / file
    return None


def same_weights(path: Path) -> str | None:
    """Return the key of the pinned file with the same bytes as this one; None if there is none.

    Raises:
        OSError: the file cannot be read.
    """
    digest = hashlib.sha256(read_file(path, TENSOR_BYTES)).hexdigest()
    for name, pin in PINS.items():
        if pin.sha256 == digest:
            return name
    return None


def load_weights(name: str, directory: Path | None = None) -> dict[str, torch.Tensor]:
    """Return the tensors of a pinned weights file, on the CPU.

    Args:
        name: key of `PINS`.
        directory: folder of the file; default: `FDAUDIT_WEIGHTS`, then torch's hub cache.

    Raises:
        WeightsUnavailableError: the file is missing, cannot be read, has another digest, or is not a mapping of names
            to tensors.
    """
    pin = PINS[name]

    def unavailable(problem: str, remedy: str) -> WeightsUnavailableError:
        return WeightsUnavailableError("FDAUDIT_WEIGHTS", pin.file, problem, remedy)

    path = _present(pin.file, _directories() if directory is None else [directory])
    if path is None:
        raise unavailable(
            "is in neither FDAUDIT_WEIGHTS nor torch's hub cache",
            f"Put the file of SHA-256 {pin.sha256} in a directory and set FDAUDIT_WEIGHTS to it. "
            "`fdaudit weights` says where it comes from.",
        )
    try:
        content = read_file(path, TENSOR_BYTES)
    except OSError as error:
        raise unavailable(f"cannot be read ({error.strerror})", "Make it readable.") from None
    digest = hashlib.sha256(content).hexdigest()
    if digest != pin.sha256:
        raise unavailable(
            f"has SHA-256 {digest}, not the pinned {pin.sha256}",
            "Replace it with the original file: `fdaudit weights` says where it comes from.",
        )
    # The one use of torch.load in fdaudit: the formats these weights are published in allow nothing else.
    # Only bytes of a pinned digest come here, and `weights_only` unpickles tensors and plain containers
    # alone.
    try:
        tensors = torch.load(io.BytesIO(content), map_location="cpu", weights_only=True)
    except Exception:  # the unpickler's, the archive reader's or torch's own: in each case no weights
        tensors = None
    if not isinstance(tensors, dict) or not all(isinstance(t, torch.Tensor) for t in tensors.values()):
        raise unavailable("does not map names to tensors", "Replace it with the original file.")
    return dict(tensors)
