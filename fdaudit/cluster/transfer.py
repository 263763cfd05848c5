"""Transfer of a directory, or of its changes, as a series of lines for another machine.

Guarantees:
  * an arriving directory appears in place completely or not at all, byte for byte and with the modes of its
    directories; only its owner has access;
  * each changed file appears in place completely or not at all, after all changes have arrived;
  * no name leads out of the target directory, or out of the parts of it that may change; links are refused.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Any

from fdaudit.errors import IntegrityError
from fdaudit.storage.files import sync_path

__all__ = ["Arrival", "Snapshot", "changes", "pack", "snapshot"]

_CHUNK = 8 << 20
"""Bytes of a file in one line."""

Snapshot = Mapping[str, tuple[int, ...]]
"""Entries of a directory by name: for a file, values that change when it is written; for a folder, an empty tuple."""


def pack(directory: Path) -> Iterator[dict[str, Any]]:
    """Yield a directory's folders, `{"folder": name, "mode": bits}`, and files, `{"file": name, "data": bytes}`.

    A long file becomes several lines, in order. Names are relative, with slashes.

    Raises:
        IntegrityError: an entry is neither directory nor file.
    """
    for path in sorted(directory.rglob("*")):
        yield from _packed(directory, path)


def snapshot(directory: Path) -> Snapshot:
    """Return the current state of a directory, for `changes` to compare with."""
    found = {}
    for path in directory.rglob("*"):
        state = path.lstat()
        written = () if path.is_dir() else (state.st_ino, state.st_size, state.st_mtime_ns)
        found[path.relative_to(directory).as_posix()] = written
    return found


def changes(directory: Path, before: Snapshot) -> Iterator[dict[str, Any]]:
    """Yield entries that are new or written since, as `pack` does, after `{"gone": name}` for removed ones.

    Raises:
        IntegrityError: a new entry is neither directory nor file.
    """
    now = snapshot(directory)
    yield from ({"gone": name} for name in sorted(before.keys() - now.keys(), reverse=True))
    for name in sorted(now):
        if before.get(name) != now[name]:
            yield from _packed(directory, directory / name)


def _packed(directory: Path, path: Path) -> Iterator[dict[str, Any]]:
    name = path.relative_to(directory).as_posix()
    if path.is_symlink() or not (path.is_dir() or path.is_file()):
        raise IntegrityError([f"{name} is neither a directory nor a file"])
    if path.is_dir():
        yield {"folder": name, "mode": path.stat().st_mode & 0o777}
        return
    with path.open("rb") as file:
        data = file.read(_CHUNK)
        while True:
            yield {"file": name, "data": data}
            if not (data := file.read(_CHUNK)):
                break


class Arrival:
    """A directory, or changes to one, that is arriving.

    Args:
        staging: where it is assembled; replaced if it exists.
        target: its final place, on the same file system.
        below: the only parts of it that may change; by default all.
    """

    def __init__(self, staging: Path, target: Path, below: Sequence[str] = ()) -> None:
        self._staging, self._target, self._below = staging, target, tuple(below)
        self._modes: dict[Path, int] = {}
        self._gone: list[Path] = []
        shutil.rmtree(staging, ignore_errors=True)
        staging.mkdir(parents=True, mode=0o700)

    def take(self, line: Mapping[str, Any]) -> None:
        """Add the content of a line of `pack` or `changes`.

        Raises:
            IntegrityError: its name leads out of the directory.
        """
        if "folder" in line:
            path = self._inside(line["folder"])
            path.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._modes[path] = line["mode"] & 0o777
            return
        if "gone" in line:
            self._gone.append(self._inside(line["gone"]))
            return
        path = self._inside(line["file"])
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with path.open("ab") as file:
            file.write(line["data"])

    def place(self) -> None:
        """Make the directory durable and move it to its place; an existing directory there is replaced."""
        for path in self._staging.rglob("*"):
            sync_path(path)
        for path, mode in self._modes.items():
            path.chmod(mode)
        if self._target.is_dir():
            shutil.rmtree(self._target)
        self._staging.rename(self._target)
        sync_path(self._target.parent)

    def merge(self) -> None:
        """Move every file into the target directory, each completely, and delete removed entries."""
        for path in sorted(self._staging.rglob("*")):
            sync_path(path)
        folders = set[Path]()
        for staged in self._gone:
            path = self._at_its_place(staged)
            path.rmdir() if path.is_dir() else path.unlink(missing_ok=True)
            folders.add(path.parent)
        for staged in sorted(self._staging.rglob("*")):
            path = self._at_its_place(staged)
            if not staged.is_dir():
                staged.replace(path)
            elif not path.is_dir():
                path.mkdir()
                path.chmod(self._modes.get(staged, 0o700))
            folders.add(path.parent)
        for folder in folders:
            if folder.is_dir():
                sync_path(folder)
        self.drop()

    def drop(self) -> None:
        """Remove everything that has arrived so far."""
        shutil.rmtree(self._staging, ignore_errors=True)

    def _inside(self, name: object) -> Path:
        parts = PurePosixPath(name).parts if isinstance(name, str) else ()
        if not parts or "\0" in str(name) or PurePosixPath(str(name)).is_absolute() or ".." in parts:
            raise IntegrityError([f"{name!r} is no name of a file that was sent"])
        path = self._staging.joinpath(*parts)
        within = [path.relative_to(self._staging).is_relative_to(part) for part in self._below]
        if within and not any(within):
            raise IntegrityError([f"{name!r} is no file that may change here"])
        return path

    def _at_its_place(self, staged: Path) -> Path:
        return self._target / staged.relative_to(self._staging)
