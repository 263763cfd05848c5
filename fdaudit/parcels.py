"""A directory as a series of lines, to be sent from one machine to another and laid down there.

Guarantees:
  * what arrives lies at its place whole or not at all, byte for byte and with the modes of its directories;
  * no name leads out of the directory that is laid down, and links are refused.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path, PurePosixPath
from typing import Any

from fdaudit.errors import IntegrityError
from fdaudit.storage import sync_path

__all__ = ["Arrival", "inside", "pack"]

_CHUNK = 8 << 20
"""Bytes of a file in one line."""


def pack(directory: Path) -> Iterator[dict[str, Any]]:
    """A directory's own directories, `{"folder": name, "mode": bits}`, and files, `{"file": name, "data": bytes}`.

    A long file takes several lines, in order. Names are relative, with slashes.

    Raises:
        IntegrityError: there is something that is neither directory nor file.
    """
    for path in sorted(directory.rglob("*")):
        name = path.relative_to(directory).as_posix()
        if path.is_symlink() or not (path.is_dir() or path.is_file()):
            raise IntegrityError([f"{name} is neither a directory nor a file"])
        if path.is_dir():
            yield {"folder": name, "mode": path.stat().st_mode & 0o777}
            continue
        with path.open("rb") as file:
            data = file.read(_CHUNK)
            while True:
                yield {"file": name, "data": data}
                if not (data := file.read(_CHUNK)):
                    break


def inside(directory: Path, name: object) -> Path:
    """Where a file of a stranger's naming lies below a directory.

    Args:
        directory: what the file is to lie in.
        name: its name, relative, with slashes.

    Raises:
        IntegrityError: the name leads elsewhere, or is none.
    """
    parts = PurePosixPath(name).parts if isinstance(name, str) else ()
    if not parts or "\0" in str(name) or PurePosixPath(str(name)).is_absolute() or ".." in parts:
        raise IntegrityError([f"{name!r} is no name of a file that was sent"])
    return directory.joinpath(*parts)


class Arrival:
    """A directory on its way.

    Args:
        staging: where it is put together; replaced.
        target: where it is to lie; on the same file system.
    """

    def __init__(self, staging: Path, target: Path) -> None:
        self._staging, self._target = staging, target
        self._modes: dict[Path, int] = {}
        shutil.rmtree(staging, ignore_errors=True)
        staging.mkdir(parents=True, mode=0o700)

    def take(self, line: Mapping[str, Any]) -> None:
        """Adds what a line of `pack` holds.

        Raises:
            IntegrityError: its name leads elsewhere.
        """
        if "folder" in line:
            path = inside(self._staging, line["folder"])
            path.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._modes[path] = line["mode"] & 0o777
            return
        path = inside(self._staging, line["file"])
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with path.open("ab") as file:
            file.write(line["data"])

    def place(self) -> None:
        """Makes it durable and moves it to its place, in place of what lies there."""
        for path in self._staging.rglob("*"):
            sync_path(path)
        for path, mode in self._modes.items():
            path.chmod(mode)
        self._staging.chmod(0o755)
        if self._target.is_dir():
            shutil.rmtree(self._target)
        self._staging.rename(self._target)
        sync_path(self._target.parent)

    def drop(self) -> None:
        """Removes what has arrived so far."""
        shutil.rmtree(self._staging, ignore_errors=True)
