"""A directory behind a URL, read and written file by file through fsspec.

Guarantees:
  * an untrusted name cannot lead out of the directory that it is fetched into, and links are refused;
  * a file with another size than listed is refused;
  * a file is written completely under its name, or not at all;
  * every error of a store becomes one error that names the URL.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path, PurePosixPath
from typing import Any, TypeVar

from fdaudit.errors import FdauditError, IntegrityError, RunError, UsageError
from fdaudit.storage.paths import inside
from fdaudit.storage.tree import refuse_links

__all__ = ["Store"]

_T = TypeVar("_T")

_PASSWORD = re.compile(r"(?<=://)([^/@:]*):[^/@]*@")
_WHOLE = frozenset(
    {"abfs", "abfss", "adl", "az", "gcs", "gs", "memory", "oci", "ocilake", "oss", "s3", "s3a"}
)
"""Stores in which a put replaces an object at once. In others a file is put under another name, then renamed."""
_AT_ONCE = 16
"""Files transferred at a time, in stores that support several."""
_CHECK = "Check the URL, the network and the credentials."


class Store:
    """A directory behind a URL.

    Args:
        url: where it is; any scheme that fsspec knows.
        field: what errors call it.

    Raises:
        UsageError: fsspec is not installed, the scheme is unknown, or it needs a package that is not installed.
    """

    def __init__(self, url: str, field: str) -> None:
        self.url, self._field = _PASSWORD.sub(r"\1:***@", url.rstrip("/")), field
        if "::" in url.partition("://")[0]:
            raise UsageError(field, self.url, "chains file systems", "Give the URL of the directory itself.")
        self._fs, root = self._opened(url)
        self._root = str(root).rstrip("/")
        protocols = {self._fs.protocol} if isinstance(self._fs.protocol, str) else set(self._fs.protocol)
        self._direct, self._local = bool(protocols & _WHOLE), "file" in protocols

    def _opened(self, url: str) -> tuple[Any, str]:
        """Return the file system behind a URL, and the path in it."""
        try:
            import fsspec
        except ImportError:
            remedy = "Install it: pip install 'fdaudit[remote]'."
            raise UsageError(
                self._field, self.url, "is a URL, and needs the package fsspec", remedy
            ) from None

        scheme = url.partition("://")[0]
        try:
            fs, root = fsspec.core.url_to_fs(url)
            return fs, root
        except ImportError as error:
            problem, remedy = _missing(scheme, error)
            raise UsageError(self._field, self.url, problem, remedy) from None
        except Exception as error:  # each store has its own; all of them are about what was asked for
            if scheme not in fsspec.available_protocols():
                problem = f"has the scheme {scheme!r}, which is not known"
                remedy = "Use one that fsspec knows, such as s3, gs, abfs or file."
                raise UsageError(self._field, self.url, problem, remedy) from None
            raise RunError(self._field, self.url, f"cannot be opened ({_said(error)})", _CHECK) from None

    @contextmanager
    def _asked(self, what: str) -> Iterator[None]:
        try:
            yield
        except FdauditError:
            raise
        except Exception as error:  # each store has its own errors, below no common one
            raise RunError(self._field, self.url, f"cannot be {what} ({_said(error)})", _CHECK) from None

    def names(self) -> dict[str, int | None]:
        """Return the remote files by relative name, with their size in bytes if the store reports it.

        Raises:
            RunError: it cannot be listed, or is a file.
            IntegrityError: a name leads out of the directory, or is that of a link.
        """
        if self._local:
            refuse_links(Path(self._root))
        with self._asked("listed"):
            self._fs.invalidate_cache()
            try:
                found = self._fs.find(self._root, detail=True)
            except FileNotFoundError:
                return {}
        if list(found) == [self._root]:
            raise RunError(self._field, self.url, "is a file", "Give the URL of a directory.")
        sizes: dict[str, int | None] = {}
        for full, info in found.items():
            if full.endswith("/") and not info.get("size"):
                continue  # what a store's console makes to show an empty folder
            sizes[self._relative(full, info)] = info.get("size")
        for name in sizes:
            above = next((p for p in PurePosixPath(name).parents if p.as_posix() in sizes), None)
            if above is not None:
                raise IntegrityError([f"{self.url}: {above} is a file, and {name} lies below it"])
        return sizes

    def _relative(self, full: str, info: Mapping[str, Any]) -> str:
        """Return the name of a file below the root, checked."""
        name = full[len(self._root) + 1 :]
        try:
            inside(Path(), name)
        except IntegrityError as error:
            raise IntegrityError([f"{self.url}: {finding}" for finding in error.findings]) from None
        if not full.startswith(f"{self._root}/") or PurePosixPath(name).as_posix() != name:
            raise IntegrityError([f"{self.url}: {name!r} is no name of a file"])
        if info.get("islink") or info.get("type") != "file":
            raise IntegrityError([f"{self.url}: {name} is no regular file"])
        return name

    def fetch(self, sizes: dict[str, int | None], target: Path, done: Callable[[int], None]) -> None:
        """Fetch files into a directory. Names are untrusted.

        Args:
            sizes: their names, with the sizes that they must have.
            target: the directory.
            done: told after each file how many have come.

        Raises:
            RunError: a file cannot be read, or came with another size.
            IntegrityError: a name leads out of the directory.
        """

        def one(name: str) -> None:
            path, size = inside(target, name), sizes[name]
            with self._asked("read"):
                path.parent.mkdir(parents=True, exist_ok=True)
                self._fs.get_file(f"{self._root}/{name}", str(path))
            if size is not None and path.stat().st_size != size:
                problem = f"gave {path.stat().st_size} bytes of {name}, though it lists {size}"
                raise RunError(self._field, self.url, problem, "Try again when nothing else writes there.")

        for number, _ in enumerate(self._each(one, list(sizes)), 1):
            done(number)

    def put(self, source: Path, names: Sequence[str]) -> Iterator[str]:
        """Upload files of a directory, each completely or not at all; yield the names of uploaded files.

        Raises:
            RunError: one cannot be written.
        """

        def one(name: str) -> str:
            with self._asked("written"):
                self._put(source / name, name)
            return name

        return self._each(one, names)

    def _put(self, path: Path, name: str) -> None:
        full = f"{self._root}/{name}"
        if self._direct:
            self._fs.put_file(str(path), full)
            return
        folder, _, last = full.rpartition("/")
        self._fs.makedirs(folder, exist_ok=True)
        parts = PurePosixPath(name).parts[:-1]
        if self._local and "vault" in parts:
            Path(self._root, *parts[: parts.index("vault") + 1]).chmod(0o700)
        self._fs.put_file(str(path), f"{folder}/.{last}.tmp")
        self._fs.mv(f"{folder}/.{last}.tmp", full)

    def remove(self, name: str) -> None:
        """Remove a file, if it exists.

        Raises:
            RunError: it cannot be removed.
        """
        with self._asked("changed"), suppress(FileNotFoundError):
            self._fs.rm_file(f"{self._root}/{name}")

    def _each(self, do: Callable[[str], _T], names: Sequence[str]) -> Iterator[_T]:
        """Apply a function to each name, several at a time if the store can."""
        if not self._fs.async_impl or len(names) < 2:
            yield from map(do, names)
            return
        with ThreadPoolExecutor(_AT_ONCE) as pool:
            yield from pool.map(do, names)


def _missing(scheme: str, error: ImportError) -> tuple[str, str]:
    """Return the problem and the remedy when the package behind a scheme is not installed."""
    from fsspec.registry import known_implementations

    package = str(known_implementations.get(scheme, {}).get("class", "")).partition(".")[0]
    if package in ("", "fsspec"):
        return f"cannot be opened ({_said(error)})", "Install what it needs."
    return f"needs the package {package}", f"Install it: python -m pip install {package}."


def _said(error: Exception) -> str:
    """Return an error as one short line."""
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text[:160]}" if text else type(error).__name__
