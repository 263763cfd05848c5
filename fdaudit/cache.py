"""What was computed once and may be needed again: tensors under a digest of all that decides them.

Kept are the works of an adversary or of a control (shadow models, priors, inversions of a model in view), never a
protocol's. They lie in the directory that `FDAUDIT_CACHE` names, or else in this process's memory, the least
recently used forgotten.

Guarantees:
  * the digest decides the result: whoever computes it draws all chance from the digest or from what it covers, so that
    results do not depend on whether, where or by whom they were kept;
  * what is found was computed by the same version of fdaudit and of PyTorch;
  * processes that need the same thing at once compute it once;
  * a file that is damaged, or gone, is as good as none;
  * a directory that `FDAUDIT_CACHE_BYTES` bounds holds no more tensors than that: the oldest go.
"""

from __future__ import annotations

import hashlib
import os
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from importlib.metadata import version
from pathlib import Path
from threading import RLock
from typing import TYPE_CHECKING, Any

from fdaudit.errors import IntegrityError, UsageError
from fdaudit.messages import canonical
from fdaudit.storage import load_tensors, save_tensors, write_atomically

if TYPE_CHECKING:
    import torch
    from torch import Tensor

__all__ = ["BYTES", "DIRECTORY", "computed_once", "digest_of", "remembered"]

DIRECTORY = "FDAUDIT_CACHE"
"""The variable that names a directory to keep things in."""
BYTES = "FDAUDIT_CACHE_BYTES"
"""The variable that says how many bytes the directory may hold; not set, it may hold any number."""

_MOST_KEPT = 256 << 20
"""Bytes that one process remembers."""

_kept: OrderedDict[str, dict[str, Tensor]] = OrderedDict()
_turn = RLock()


def digest_of(card: Mapping[str, Any], *tensors: Tensor | Mapping[str, Tensor]) -> str:
    """SHA-256 of what decides a result: a card of JSON values and tensors, with the versions of fdaudit and PyTorch.

    Args:
        card: what is computed and every setting that it depends on.
        tensors: every tensor that it depends on, in order; of a mapping, names count.
    """
    import torch

    versions = {"fdaudit": version("fdaudit"), "torch": torch.__version__}
    digest = hashlib.sha256(canonical({"card": dict(card), "versions": versions}))
    for given in tensors:
        named = given if isinstance(given, Mapping) else {"": given}
        for name, tensor in sorted(named.items()):
            plain = tensor.detach().cpu().contiguous()
            digest.update(canonical([name, str(plain.dtype), list(plain.shape)]))
            digest.update(plain.flatten().view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


def computed_once(
    card: Mapping[str, Any],
    tensors: Sequence[Tensor | Mapping[str, Tensor]],
    make: Callable[[torch.Generator], Mapping[str, Tensor]],
) -> dict[str, Tensor]:
    """What `make` computes from a card and tensors, its chance drawn from a generator that their digest seeds.

    Two adversaries with the same thing in view thus find out the same about it, and pay for it once.

    Args:
        card: what is computed and every setting that it depends on.
        tensors: every tensor that it depends on.
        make: computes named tensors and draws from the generator alone; calls nothing of this module itself.

    Raises:
        UsageError: the directory that `FDAUDIT_CACHE` names cannot be used.
    """
    import torch

    digest = digest_of(card, *tensors)
    return remembered(digest, lambda: make(torch.Generator().manual_seed(int(digest[:15], 16))))


def remembered(digest: str, make: Callable[[], Mapping[str, Tensor]]) -> dict[str, Tensor]:
    """What `make` returns, or what it returned before for the same digest; on the CPU.

    Args:
        digest: as `digest_of` gives it.
        make: computes named tensors; calls no `remembered` itself.

    Raises:
        UsageError: the directory that `FDAUDIT_CACHE` names cannot be used.
    """
    named = os.environ.get(DIRECTORY)
    if not named:
        with _turn:
            if digest not in _kept:
                _kept[digest] = _plain(make())
            _kept.move_to_end(digest)
            found = dict(_kept[digest])
            while len(_kept) > 1 and sum(map(_bytes, _kept.values())) > _MOST_KEPT:
                _kept.popitem(last=False)
            return found
    folder = Path(named)
    with _alone(folder, digest):
        kept = _read(folder, digest)
        if kept is None:
            kept = _plain(make())
            _write(folder, digest, kept)
    return kept


def _plain(made: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name: t.detach().cpu() for name, t in sorted(made.items())}


def _bytes(tensors: Mapping[str, Tensor]) -> int:
    return sum(t.numel() * t.element_size() for t in tensors.values())


@contextmanager
def _alone(folder: Path, digest: str) -> Iterator[None]:
    """Holds the lock of a digest; the file stays, since another may wait for it."""
    import fcntl

    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        file = (folder / f"{digest}.lock").open("a")
    except OSError as error:
        raise _unusable(folder, error) from None
    with file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _read(folder: Path, digest: str) -> dict[str, Tensor] | None:
    try:
        stated = (folder / f"{digest}.sha256").read_text(encoding="ascii").strip()
        return load_tensors(folder / f"{digest}.safetensors", stated)
    except (OSError, UnicodeDecodeError, IntegrityError):
        return None


def _write(folder: Path, digest: str, tensors: Mapping[str, Tensor]) -> None:
    if not _make_room(folder, _bytes(tensors)):
        return
    try:
        stated = save_tensors(folder / f"{digest}.safetensors", tensors)
        write_atomically(folder / f"{digest}.sha256", stated.encode() + b"\n")
    except OSError as error:
        raise _unusable(folder, error) from None


def _make_room(folder: Path, size: int) -> bool:
    """Removes the oldest files until so many bytes more may be kept; whether they may at all."""
    text = os.environ.get(BYTES)
    if text is None:
        return True
    if not (text.isascii() and text.isdigit()):
        raise UsageError(BYTES, text, "is no number of bytes", "Set it to 1000000000, say, or unset it.")
    if size > int(text):
        return False
    held = list[tuple[float, int, Path]]()
    for path in folder.glob("*.safetensors"):
        with suppress(OSError):  # another process has just removed it
            held.append((path.stat().st_mtime, path.stat().st_size, path))
    over = sum(bytes for _, bytes, _ in held) + size - int(text)
    for _, bytes, path in sorted(held):
        if over <= 0:
            break
        path.unlink(missing_ok=True)
        path.with_suffix(".sha256").unlink(missing_ok=True)
        over -= bytes
    return True


def _unusable(folder: Path, error: OSError) -> UsageError:
    problem = f"cannot be written ({error.strerror})"
    return UsageError(DIRECTORY, str(folder), problem, "Name a directory that can be, or unset it.")
