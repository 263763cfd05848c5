"""A cache of computed tensors, keyed by a digest of everything that determines them.

It holds results of adversaries and controls (shadow models, priors, inversions of a visible model), never a
protocol's. Results are in the directory that `FDAUDIT_CACHE` names, or else in this process's memory, where the least
recently used are dropped.

Guarantees:
  * the digest determines the result. All randomness is drawn from the digest or from what it covers, so results do not
    depend on whether or where they were cached;
  * a cached result was computed by the same version of fdaudit and of PyTorch;
  * processes that need the same result at once compute it once;
  * the directory is private to this user. Links and pipes in it are never opened;
  * a file counts only if this user's key authenticates it. A damaged, planted, renamed or deleted file is treated as
    missing;
  * a directory limited by `FDAUDIT_CACHE_BYTES` holds no more tensors than that: the oldest are removed.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import re
import secrets
import stat
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import cache
from importlib.metadata import version
from pathlib import Path
from threading import RLock
from typing import TYPE_CHECKING, Any

from fdaudit.errors import IntegrityError, UsageError
from fdaudit.storage.digests import canonical
from fdaudit.storage.files import decode, encode

if TYPE_CHECKING:
    import torch
    from torch import Tensor

__all__ = [
    "BYTES",
    "DIRECTORY",
    "KEY",
    "VARIABLES",
    "computed_once",
    "digest_of",
    "handed_on",
    "private_directory",
    "remembered",
    "remembered_parts",
    "state_directory",
]

DIRECTORY = "FDAUDIT_CACHE"
"""The environment variable that names the cache directory."""
BYTES = "FDAUDIT_CACHE_BYTES"
"""The environment variable that limits the directory's size in bytes; unlimited if not set."""
KEY = "FDAUDIT_CACHE_KEY"
"""The environment variable with the key that authenticates files, 64 hexadecimal digits. Default: the user's own."""
VARIABLES = (DIRECTORY, BYTES, KEY)
"""The environment variables to remove from a process that must share nothing; it then caches only for itself."""

_MOST_KEPT = 256 << 20
"""Bytes that one process remembers."""

_MOST_READ = 1 << 30
"""Bytes of one file."""
_MOST_DIGITS = 20
_SEAL_BYTES = 32
_KEPT = ".kept"
_KEY_FILE = "cache.key"
_IS_KEY = re.compile("[0-9a-f]{64}")
_SAFELY = os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
"""Refuses links, and does not block on pipes."""
_OTHER_DIRECTORY = "Name a directory of your own, or unset it."
_OTHER_KEY = f"Name a directory that can be, or put a key into {KEY}."

_kept: OrderedDict[str, dict[str, Tensor]] = OrderedDict()
_turn = RLock()


def digest_of(card: Mapping[str, Any], *tensors: Tensor | Mapping[str, Tensor]) -> str:
    """Return the SHA-256 of a card of JSON values, tensors, and the versions of fdaudit and PyTorch.

    Args:
        card: the computation and every setting that it depends on.
        tensors: every tensor that it depends on, in order; in a mapping the names count as well.
    """
    return _digest(card, tensors)


def _digest(card: Mapping[str, Any], tensors: Iterable[Tensor | Mapping[str, Tensor]]) -> str:
    """Return `digest_of`, with one tensor at a time in memory if `tensors` reads them one by one."""
    import torch

    versions = {"fdaudit": version("fdaudit"), "torch": torch.__version__}
    digest = hashlib.sha256(canonical({"card": dict(card), "versions": versions}))
    for part in tensors:
        by_name = part if isinstance(part, Mapping) else {"": part}
        for name, tensor in sorted(by_name.items()):
            plain = tensor.detach().cpu().contiguous()
            digest.update(canonical([name, str(plain.dtype), list(plain.shape)]))
            digest.update(plain.flatten().view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


def computed_once(
    card: Mapping[str, Any],
    tensors: Iterable[Tensor | Mapping[str, Tensor]],
    make: Callable[[torch.Generator], Mapping[str, Tensor]],
) -> dict[str, Tensor]:
    """Return what `make` computes from a card and tensors, cached. The digest seeds the generator of `make`.

    Two adversaries with the same input therefore get the same result and compute it once.

    Args:
        card: the computation and every setting that it depends on.
        tensors: every tensor that it depends on.
        make: computes named tensors, draws only from the generator, and does not call this module.

    Raises:
        UsageError: the directory that `FDAUDIT_CACHE` names cannot be used.
    """
    import torch

    digest = _digest(card, tensors)
    return remembered(digest, lambda: make(torch.Generator().manual_seed(int(digest[:15], 16))))


def remembered(digest: str, make: Callable[[], Mapping[str, Tensor]]) -> dict[str, Tensor]:
    """Return what `make` returns, or the cached result for the same digest; on the CPU.

    Args:
        digest: as `digest_of` gives it.
        make: computes named tensors; calls no `remembered` itself.

    Raises:
        UsageError: the directory that `FDAUDIT_CACHE` names cannot be used.
    """
    return remembered_parts({digest: make})[0]


def remembered_parts(works: Mapping[str, Callable[[], Mapping[str, Tensor]]]) -> list[dict[str, Tensor]]:
    """Return the results of several computations, each cached as by `remembered`.

    Processes that need the same results at once share the work. A piece that another process computes is left for last.

    Args:
        works: by digest, in the order of the results.

    Raises:
        UsageError: the directory that `FDAUDIT_CACHE` names cannot be used.
    """
    location = os.environ.get(DIRECTORY)
    if not location:
        copies = []
        for digest, make in works.items():
            with _turn:
                if digest not in _kept:
                    _kept[digest] = _plain(make())
                _kept.move_to_end(digest)
                copies.append({name: t.clone() for name, t in _kept[digest].items()})
                while len(_kept) > 1 and sum(map(_bytes, _kept.values())) > _MOST_KEPT:
                    _kept.popitem(last=False)
        return copies
    folder = Path(location)
    directory = private_directory(folder, DIRECTORY)
    try:
        tensors: dict[str, dict[str, Tensor]] = {}
        for wait in (False, True):
            for digest, make in works.items():
                if digest in tensors:
                    continue
                with _alone(folder, directory, digest, wait) as mine:
                    if mine:
                        tensors[digest] = _kept_or_made(folder, directory, digest, make)
    finally:
        os.close(directory)
    return [tensors[digest] for digest in works]


def _kept_or_made(
    folder: Path, directory: int, digest: str, make: Callable[[], Mapping[str, Tensor]]
) -> dict[str, Tensor]:
    tensors = _read(directory, digest)
    if tensors is not None:
        return tensors
    tensors = _plain(make())
    payload = encode(tensors)
    size = len(payload) + _SEAL_BYTES
    if size <= _MOST_READ and _make_room(directory, size):
        try:
            _replace(directory, f"{digest}{_KEPT}", _seal(digest, payload) + payload)
        except OSError as error:
            raise _unusable(folder, error) from None
    return tensors


def private_directory(folder: Path, field: str) -> int:
    """Open a directory that is private to this user; create it if missing. The caller closes the descriptor.

    Raises:
        UsageError: it cannot be made, is a link, belongs to another user, or others may enter it.
    """
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    except OSError as error:
        problem = "is a link" if folder.is_symlink() else f"cannot be used ({error.strerror})"
        raise UsageError(field, str(folder), problem, _OTHER_DIRECTORY) from None
    status = os.fstat(descriptor)
    if status.st_uid != os.geteuid():
        os.close(descriptor)
        raise UsageError(field, str(folder), "belongs to another user", _OTHER_DIRECTORY)
    if status.st_mode & 0o077:
        os.close(descriptor)
        problem = f"lets other users in (mode {stat.S_IMODE(status.st_mode):04o})"
        raise UsageError(field, str(folder), problem, f"Run `chmod 700` on it. {_OTHER_DIRECTORY}")
    return descriptor


def _plain(made: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name: t.detach().cpu() for name, t in sorted(made.items())}


def _bytes(tensors: Mapping[str, Tensor]) -> int:
    total = 0
    for t in tensors.values():
        total += t.numel() * t.element_size()
    return total


@contextmanager
def _alone(folder: Path, directory: int, digest: str, wait: bool) -> Iterator[bool]:
    """Hold the lock of a digest, and yield whether this succeeded; without `wait`, do not block.

    The lock file stays, because another process may wait for it.
    """
    import fcntl

    try:
        descriptor = os.open(f"{digest}.lock", os.O_RDWR | os.O_CREAT | _SAFELY, 0o600, dir_fd=directory)
    except OSError as error:
        raise _unusable(folder, error) from None
    operation = fcntl.LOCK_EX
    if not wait:
        operation |= fcntl.LOCK_NB
    with os.fdopen(descriptor, "rb"):
        try:
            fcntl.flock(descriptor, operation)
        except BlockingIOError:
            yield False
        else:
            yield True


def _read(directory: int, digest: str) -> dict[str, Tensor] | None:
    """Return the tensors of a file that this user's key authenticates, or None."""
    data = _content(f"{digest}{_KEPT}", directory)
    if data is None or not hmac.compare_digest(data[:_SEAL_BYTES], _seal(digest, data[_SEAL_BYTES:])):
        return None
    try:
        return decode(data[_SEAL_BYTES:])
    except IntegrityError:
        return None


def _content(name: str, directory: int) -> bytes | None:
    """Return the bytes of a regular file, or None if there is none."""
    try:
        descriptor = os.open(name, os.O_RDONLY | _SAFELY, dir_fd=directory)
    except OSError:
        return None
    status = os.fstat(descriptor)
    if not stat.S_ISREG(status.st_mode) or status.st_size > _MOST_READ:
        os.close(descriptor)
        return None
    with os.fdopen(descriptor, "rb") as file:
        return file.read(_MOST_READ)


def _seal(digest: str, payload: bytes) -> bytes:
    return hmac.digest(_key(), b"\0".join([b"fdaudit-cache/1", digest.encode(), payload]), "sha256")


def _replace(directory: int, name: str, data: bytes) -> None:
    """Write a file completely or not at all. The caller holds the lock, so one process at a time writes."""
    temporary = f".{name}.tmp"
    with suppress(FileNotFoundError):  # left by a process that was killed, or planted
        os.unlink(temporary, dir_fd=directory)
    created = os.O_WRONLY | os.O_CREAT | os.O_EXCL | _SAFELY
    with os.fdopen(os.open(temporary, created, 0o600, dir_fd=directory), "wb") as file:
        file.write(data)
    os.replace(temporary, name, src_dir_fd=directory, dst_dir_fd=directory)


def _make_room(directory: int, size: int) -> bool:
    """Remove the oldest files until `size` bytes fit. Return whether they can fit at all."""
    text = os.environ.get(BYTES)
    if text is None:
        return True
    if not (text.isascii() and text.isdigit() and len(text) < _MOST_DIGITS):
        raise UsageError(BYTES, text, "is no number of bytes", "Set it to 1000000000, say, or unset it.")
    if size > int(text):
        return False
    files = list[tuple[float, int, str]]()
    for entry in os.scandir(directory):
        if entry.name.endswith(_KEPT):
            with suppress(OSError):  # another process has just removed it
                status = entry.stat(follow_symlinks=False)
                files.append((status.st_mtime, status.st_size, entry.name))
    over = size - int(text)
    for _, bytes, _ in files:
        over += bytes
    for _, bytes, name in sorted(files):
        if over <= 0:
            break
        with suppress(FileNotFoundError):
            os.unlink(name, dir_fd=directory)
        over -= bytes
    return True


def _unusable(folder: Path, error: OSError) -> UsageError:
    problem = f"cannot be written ({error.strerror})"
    return UsageError(DIRECTORY, str(folder), problem, "Name a directory that can be, or unset it.")


# -- the key ----------------------------------------------------------------------------------------------------


def handed_on() -> dict[str, str]:
    """Return the environment variables with which a child process uses this cache; empty if nothing is kept."""
    if not os.environ.get(DIRECTORY):
        return {}
    variables = {}
    for name in VARIABLES:
        if os.environ.get(name):
            variables[name] = os.environ[name]
    variables[KEY] = _key().hex()
    return variables


def _key() -> bytes:
    """Return the key that this process was given, or the user's own, created at first use."""
    text = os.environ.get(KEY)
    if text is None:
        return _own_key(state_directory())
    if not _IS_KEY.fullmatch(text):
        raise UsageError(
            KEY, "…", "is no key of 64 hexadecimal digits", "Unset it to use the key of this user."
        )
    return bytes.fromhex(text)


def state_directory() -> Path:
    """Return the directory where this user's programs keep persistent state."""
    location = os.environ.get("XDG_STATE_HOME") or os.path.join(os.path.expanduser("~"), ".local", "state")
    return Path(location) / "fdaudit"


@cache
def _own_key(folder: Path) -> bytes:
    directory = private_directory(folder, "XDG_STATE_HOME")
    try:
        temporary = f".{_KEY_FILE}.{secrets.token_hex(8)}"
        if _content(_KEY_FILE, directory) is None:
            _replace(directory, temporary, secrets.token_bytes(_SEAL_BYTES))
            with suppress(FileExistsError):  # another process was first: its key counts
                os.link(
                    temporary, _KEY_FILE, src_dir_fd=directory, dst_dir_fd=directory, follow_symlinks=False
                )
            os.unlink(temporary, dir_fd=directory)
        key = _content(_KEY_FILE, directory)
    except OSError as error:
        raise UsageError(
            "XDG_STATE_HOME", str(folder), f"cannot be written ({error.strerror})", _OTHER_KEY
        ) from None
    finally:
        os.close(directory)
    if key is None or len(key) != _SEAL_BYTES:
        problem = f"holds in {_KEY_FILE} no key of {_SEAL_BYTES} bytes"
        raise UsageError("XDG_STATE_HOME", str(folder), problem, f"Remove {_KEY_FILE}: another is made.")
    return key
