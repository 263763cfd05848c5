"""Randomness as an argument: named child generators of one seed, and a separate secret stream.

Guarantees:
  * a child depends only on the seed and its own path: adding a stage never shifts another's draws;
  * different paths give generators seeded by different SHA-256 digests;
  * a `SecretStream` is derived from the vault's secret. A published seed therefore does not reveal defence noise,
    salts, or which records are members;
  * every draw of a `SecretStream` follows its distribution exactly, up to the 52 bits of `uniform`.
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
    """Return a 64-bit seed for the child of `seed` named by `path`, for example `("train", round, "client/3")`."""
    if not path:
        raise ValueError("child_seed: path is empty. Name the stage that draws.")
    text = json.dumps([seed, *path], separators=(",", ":"))
    return int.from_bytes(hashlib.sha256(text.encode("ascii")).digest()[:8], "big")


def child(seed: int, *path: PathPart) -> torch.Generator:
    """Return a CPU `torch.Generator` for the child of `seed` named by `path`.

    Numbers are drawn on the CPU and moved, so a run draws the same numbers on every device. PyTorch's CPU generator
    uses only the low 32 bits of its seed, which an attacker can search. Secrets and everything that decides the truth
    therefore never come from here (see `SecretStream`).
    """
    import torch

    return torch.Generator().manual_seed(child_seed(seed, *path))


def child_numpy(seed: int, *path: PathPart) -> np.random.Generator:
    """Return a `numpy.random.Generator` for the child of `seed` named by `path`."""
    return np.random.default_rng(child_seed(seed, *path))


class SecretStream:
    """A secret random stream for salts, defence noise and the truth's draws, by SHAKE-256 in counter mode.

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
        """Return the next `n` pseudorandom bytes; every call is a new block."""
        block = self._block.to_bytes(8, "big")
        self._block += 1
        return hashlib.shake_256(self._key + block).digest(n)

    def branch(self, name: str) -> SecretStream:
        """Return a stream of its own for a purpose. What this stream gives stays as it is.

        Branches of different names, or made after different numbers of draws, are independent.
        """
        path = json.dumps([name, self._block], separators=(",", ":"))
        return SecretStream(hmac.digest(self._key, path.encode("ascii"), "sha256"), "branch")

    def integers(self, high: int, *shape: int) -> np.ndarray[tuple[int, ...], np.dtype[np.int64]]:
        """Draw integers from 0 to `high` - 1, all equally likely, of the given shape.

        Words beyond the last multiple of `high` are drawn again; otherwise small integers would be more likely.
        """
        if not 1 <= high <= 2**63:
            raise ValueError(f"integers: high is {high}. Give 1 to 2^63.")
        n = int(np.prod(shape, dtype=np.int64))
        last = np.uint64((2**64 // high) * high - 1)
        words = self._words(n)
        while len(again := np.flatnonzero(words > last)):
            words[again] = self._words(len(again))
        return (words % np.uint64(high)).astype(np.int64).reshape(shape)

    def permutation(self, n: int) -> np.ndarray[tuple[int, ...], np.dtype[np.int64]]:
        """Draw an order of the integers from 0 to `n` - 1, all orders equally likely."""
        words = self._words(n)
        while len(np.unique(words)) < n:  # a tie would favour the order of the positions
            words = self._words(n)
        return words.argsort(kind="stable")

    def dirichlet(self, alpha: float, n: int) -> np.ndarray[tuple[int, ...], np.dtype[np.float64]]:
        """Draw `n` shares that sum to 1 from the symmetric Dirichlet distribution of concentration `alpha`.

        Gamma draws are made as Gamma(alpha + 1) times U^(1 / alpha). Logarithms keep a small `alpha` from underflow.
        """
        from scipy.special import gammaincinv, softmax

        logs = np.log(gammaincinv(alpha + 1, self.uniform(n))) + np.log(self.uniform(n)) / alpha
        shares: np.ndarray[tuple[int, ...], np.dtype[np.float64]] = softmax(logs)
        return shares

    def torch_state(self) -> torch.Tensor:
        """Draw a whole state (624 words) for a CPU `torch.Generator`, because a seed has only 32 effective bits."""
        import torch

        state = torch.Generator().manual_seed(0).get_state()
        words = np.frombuffer(self.bytes(4 * 624), dtype="<u4").astype("<u8")
        # The first 8 bytes are the seed that the generator reports. A secret one shows whether somebody set another.
        state[:8] = torch.frombuffer(bytearray(self.bytes(8)), dtype=torch.uint8)
        # After the seed, two numbers of 4 and one of 8 bytes say that all words are still to be used.
        state[24 : 24 + 8 * 624] = torch.frombuffer(bytearray(words.tobytes()), dtype=torch.uint8)
        return state

    def _words(self, n: int) -> np.ndarray[tuple[int, ...], np.dtype[np.uint64]]:
        return np.frombuffer(self.bytes(8 * n), dtype="<u8").astype(np.uint64)

    def uniform(self, *shape: int) -> np.ndarray[tuple[int, ...], np.dtype[np.float64]]:
        """Draw uniformly from the open interval (0, 1) with 52 random bits each, of the given shape."""
        n = int(np.prod(shape, dtype=np.int64))
        # A 53rd bit would leave no room for the half: the largest word would round to 1, whose normal is infinite.
        words = self._words(n) >> np.uint64(12)
        return ((words.astype(np.float64) + 0.5) * 2.0**-52).reshape(shape)

    def normal(self, *shape: int) -> np.ndarray[tuple[int, ...], np.dtype[np.float64]]:
        """Draw standard normal values of the given shape, by inversion of `uniform`."""
        from scipy.special import ndtri

        sample: np.ndarray[tuple[int, ...], np.dtype[np.float64]] = ndtri(self.uniform(*shape))
        return sample

    def laplace(self, *shape: int) -> np.ndarray[tuple[int, ...], np.dtype[np.float64]]:
        """Draw Laplace values of location 0 and scale 1, of the given shape, by inversion of `uniform`."""
        centred = self.uniform(*shape) - 0.5
        sample: np.ndarray[tuple[int, ...], np.dtype[np.float64]] = -np.sign(centred) * np.log1p(
            -2.0 * np.abs(centred)
        )
        return sample
