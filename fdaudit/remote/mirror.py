"""A local copy of a directory behind a URL, and what of it changed since: that, and nothing else, is sent.

Guarantees:
  * a push that ends at any instant leaves, there, what a run killed at some instant leaves on a disk: it goes on from
    the last whole checkpoint that was sent, because what a file relies on is sent before it;
  * a file whose bytes lie there already is not sent again;
  * nothing is removed there but what was fetched or sent, and is gone here.
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
        r"(^|/)(cell|card|statement\.dsse)\.json$",
        r"^sweep\.json$",
    )
)
"""Files in the order in which they are sent; the first pattern from the most special ones on decides."""
_REST = _ORDER.index(re.compile(""))


def rank(name: str) -> int:
    """When a file is sent: after all of a lower rank."""
    special = (i for i, pattern in enumerate(_ORDER) if i != _REST and pattern.search(name))
    return next(special, _REST)


class Mirror:
    """A local copy of what lies in a store.

    Args:
        store: where it lies.
        directory: the copy.
        ready: of the local files, those that may be sent.
    """

    def __init__(self, store: Store, directory: Path, ready: Choice = everything) -> None:
        self.store, self.directory, self._ready = store, directory, ready
        self._there: dict[str, str] = {}
        self._seen: dict[str, _Signature] = {}

    def fetch(self, need: Choice = everything, done: _Done = lambda n, of: None) -> int:
        """Fetches what is needed; returns how many files lie there, needed or not.

        Args:
            need: which files.
            done: told how many have come, and of how many.

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
        """Sends what is new or changed in the order of `rank`, then removes what is gone; returns how much was sent.

        Args:
            done: told how many files have been sent, and of how many.

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
        """The local files, but for those that do not have their name yet."""
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
        """Files whose bytes do not lie there, with their digests; a file is read where it was touched."""
        found = {}
        for name in names:
            path = self.directory / name
            try:
                signature = _signature(path)
                if self._seen.get(name) == signature:
                    continue
                digest = _sha256(path)
            except FileNotFoundError:  # another process took it away: it is not part of what is sent
                continue
            if self._there.get(name) == digest:
                self._seen[name] = signature
            else:
                found[name] = (digest, signature)
        return found


def _signature(path: Path) -> _Signature:
    """What differs once a file was written: its time, its length, its place on the disk."""
    found = path.stat()
    return found.st_mtime_ns, found.st_size, found.st_ino


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
