"""Randomness as an argument: named child generators of one seed, and a separate secret stream.

Guarantees:
  * a child depends on the seed and its own path only: adding a stage never shifts another's draws;
  * distinct paths give generators seeded by distinct SHA-256 digests;
  * a `SecretStream` is derived from the vault's secret, never from the seed, so publishing a seed
    does not regenerate defence noise or salts.
"""

from __future__ import annotations

import hashlib
import hmac
import json
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    import torch

__all__ = ["SecretStream", "child", "child_numpy", "child_seed"]

PathPart = str | int


def child_seed(seed: int, *path: PathPart) -> int:
    """A 64-bit seed for the child of `seed` named by `path`, for example `("train", round, "client/3")`."""
    if not path:
        raise ValueError("child_seed: path is empty. Name the stage that draws.")
    text = json.dumps([seed, *path], separators=(",", ":"))
    return int.from_bytes(hashlib.sha256(text.encode("ascii")).digest()[:8], "big")


def child(seed: int, *path: PathPart) -> torch.Generator:
    """A CPU `torch.Generator` for the child of `seed` named by `path`.

    Draws are made on the CPU and moved, so a run draws the same numbers on every device. PyTorch's CPU
    generator uses the low 32 bits of its seed; secrets therefore never come from here (see `SecretStream`).
    """
    import torch

    return torch.Generator().manual_seed(child_seed(seed, *path))


def child_numpy(seed: int, *path: PathPart) -> np.random.Generator:
    """A `numpy.random.Generator` for the child of `seed` named by `path`."""
    return np.random.default_rng(child_seed(seed, *path))


class SecretStream:
    """Salts and defence noise from the vault's secret, by SHAKE-256 in counter mode.

    Args:
        secret: at least 16 bytes that only the auditor holds.
        path: the name of the draw; a given secret and path always give the same bytes.
    """

    def __init__(self, secret: bytes, *path: PathPart) -> None:
        if len(secret) < 16:
            raise ValueError(f"SecretStream: secret has {len(secret)} bytes. Give at least 16.")
        text = json.dumps(list(path), separators=(",", ":"))
        self._key = hmac.digest(secret, text.encode("ascii"), "sha256")
        self._block = 0

    def bytes(self, n: int) -> bytes:
        """The next `n` pseudorandom bytes; every call is a fresh block."""
        block = self._block.to_bytes(8, "big")
        self._block += 1
        return hashlib.shake_256(self._key + block).digest(n)

    def uniform(self, *shape: int) -> np.ndarray[tuple[int, ...], np.dtype[np.float64]]:
        """Uniform draws in the open interval (0, 1) with 52 random bits each, of the given shape."""
        n = int(np.prod(shape, dtype=np.int64))
        # A 53rd bit would leave no room for the half: the largest word would round to 1, whose normal is infinite.
        words = np.frombuffer(self.bytes(8 * n), dtype="<u8") >> np.uint64(12)
        return ((words.astype(np.float64) + 0.5) * 2.0**-52).reshape(shape)

    def normal(self, *shape: int) -> np.ndarray[tuple[int, ...], np.dtype[np.float64]]:
        """Standard normal draws of the given shape, by inversion of `uniform`."""
        from scipy.special import ndtri

        drawn: np.ndarray[tuple[int, ...], np.dtype[np.float64]] = ndtri(self.uniform(*shape))
        return drawn

    def laplace(self, *shape: int) -> np.ndarray[tuple[int, ...], np.dtype[np.float64]]:
        """Laplace draws of location 0 and scale 1, of the given shape, by inversion of `uniform`."""
        centred = self.uniform(*shape) - 0.5
        drawn: np.ndarray[tuple[int, ...], np.dtype[np.float64]] = -np.sign(centred) * np.log1p(
            -2.0 * np.abs(centred)
        )
        return drawn
