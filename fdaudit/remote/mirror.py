"""A local copy of a directory behind a URL. A push sends only what changed since the last one.

Guarantees:
  * an interrupted push leaves a remote directory that a run can resume from, at the last complete checkpoint that was
    sent: files are sent before the files that refer to them;
  * a file whose bytes are already there is not sent again;
  * a push removes only files that were fetched or sent earlier and no longer exist locally.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Callable, Collection
from itertools import groupby
from pathlib import Path

from fdaudit.errors import IntegrityError
from fdaudit.remote.selection import Choice, everything
from fdaudit.remote.store import Store

__all__ = ["Mirror", "rank"]

_Done = Callable[[int, int], None]
_Signature = tuple[int, int, int]

_ORDER = tuple(
    re.compile(pattern)
    for pattern in (
        r"(^|/)vault/(\.gitignore|secrets\.json|commitments\.json|splits\.safetensors)$",
        r"(^|/)spec\.yaml$",
        r"(^|/)transcript/payloads/",
        r"(^|/)(transcript/[^/]+|utility\.csv)$",
        r"(^|/)vault/(?!round\.json$)",
        r"(^|/)vault/round\.json$",
        r"(^|/)manifest\.json$",
        r"(^|/)attacks/[^/]+/",
        r"(^|/)attacks/[^/]+$",
        r"(^|/)(timings|result)\.json$",
        r"",
        r"(^|/)(run|card|statement\.dsse)\.json$",
        r"^sweep\.json$",
    )
)
"""Files in the order of sending; the first matching pattern, from the most specific on, decides."""
_REST = _ORDER.index(re.compile(""))


def rank(name: str) -> int:
    """Return a file's place in the order of sending: lower ranks first."""
    special = (i for i, pattern in enumerate(_ORDER) if i != _REST and pattern.search(name))
    return next(special, _REST)


class Mirror:
    """A local copy of a remote directory.

    Args:
        store: the remote directory.
        directory: the local copy.
        ready: selects the local files that may be sent.
    """

    def __init__(self, store: Store, directory: Path, ready: Choice = everything) -> None:
        self.store, self.directory, self._ready = store, directory, ready
        self._there: dict[str, str] = {}
        self._seen: dict[str, _Signature] = {}

    def fetch(self, need: Choice = everything, done: _Done = lambda n, of: None) -> int:
        """Fetch the selected files. Return the number of all remote files.

        Args:
            need: which files.
            done: called with the number of files fetched so far, and their total.

        Raises:
            RunError: the store cannot be read.
            IntegrityError: a name leads out of the directory.
        """
        sizes = self.store.names()
        wanted = {name: sizes[name] for name in need(sizes)}
        self.store.fetch(wanted, self.directory, lambda n: done(n, len(wanted)))
        for name in wanted:
            path = self.directory / name
            self._there[name], self._seen[name] = _sha256(path), _signature(path)
            if "vault" in path.parts[:-1]:
                vault = next(p for p in path.parents if p.name == "vault")
                vault.chmod(0o700)
        return len(sizes)

    def push(self, done: _Done = lambda n, of: None) -> int:
        """Send new and changed files in the order of `rank`, then remove deleted ones; return the number of files sent.

        Args:
            done: called with the number of files sent so far, and their total.

        Raises:
            RunError: the store cannot be written.
            IntegrityError: there is something that is neither directory nor file.
        """
        here = self._here()
        due = self._changed(self._ready(here))
        sent = 0
        for _, group in groupby(sorted(due, key=lambda name: (rank(name), name)), key=rank):
            for name in self.store.put(self.directory, list(group)):
                self._there[name], self._seen[name] = due[name]
                sent += 1
                done(sent, len(due))
        for name in sorted(self._there.keys() - set(here)):
            self.store.remove(name)
            del self._there[name]
            self._seen.pop(name, None)
        return sent

    def _here(self) -> list[str]:
        """Return the local files, without those that still have a temporary name."""
        found = []
        for root, folders, files in os.walk(self.directory):
            below = Path(root).relative_to(self.directory)
            for name in (*folders, *files):
                path = Path(root, name)
                if path.is_symlink() or not (name in folders or path.is_file() or not path.exists()):
                    raise IntegrityError([f"{(below / name).as_posix()} is neither a directory nor a file"])
            found += [(below / f).as_posix() for f in files if not (f.startswith(".") and f.endswith(".tmp"))]
        return found

    def _changed(self, names: Collection[str]) -> dict[str, tuple[str, _Signature]]:
        """Return files whose bytes are not in the store, with their digests. Only touched files are read."""
        found = {}
        for name in names:
            path = self.directory / name
            try:
                signature = _signature(path)
                if self._seen.get(name) == signature:
                    continue
                digest = _sha256(path)
            except FileNotFoundError:  # another process removed it: do not send it
                continue
            if self._there.get(name) == digest:
                self._seen[name] = signature
            else:
                found[name] = (digest, signature)
        return found


def _signature(path: Path) -> _Signature:
    """Return a file's modification time, size and inode. Writing the file changes at least one of them."""
    found = path.stat()
    return found.st_mtime_ns, found.st_size, found.st_ino


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
