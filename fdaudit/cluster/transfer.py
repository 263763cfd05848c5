"""Transfer of a directory, or of its changes, as names with bytes.

Guarantees:
  * each file appears in place completely or not at all, byte for byte; folders keep their modes;
  * no name leads out of the target directory, or out of the parts of it that may change; links are refused.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path, PurePosixPath
from types import MappingProxyType

from fdaudit.errors import IntegrityError
from fdaudit.storage.files import write_together
from fdaudit.storage.tree import make_folder

__all__ = ["Snapshot", "Tree", "changes", "snapshot", "write_tree"]

_BATCH = 16 << 20
"""Approximate bytes of files in a tree."""

Tree = dict[str, bytes | int | None]
"""Entries by name, with slashes: a file's bytes, a folder's mode, None for a removed entry."""
Snapshot = Mapping[str, tuple[int, ...]]
"""Entries by name: for a file, values that change when it is written; for a folder, an empty tuple."""


def snapshot(directory: Path) -> Snapshot:
    """Return the current state of a directory, for `changes` to compare with."""
    states = {}
    for path in sorted(directory.rglob("*")):
        state = path.lstat()
        stamp = () if path.is_dir() else (state.st_ino, state.st_size, state.st_mtime_ns)
        states[path.relative_to(directory).as_posix()] = stamp
    return states


def changes(directory: Path, before: Snapshot = MappingProxyType({})) -> Iterator[Tree]:
    """Yield what is new, written or removed since a snapshot, in trees of a limited size; by default everything.

    Raises:
        IntegrityError: a new entry is neither directory nor file.
    """
    now = snapshot(directory)
    tree: Tree = dict.fromkeys(before.keys() - now.keys())
    size = 0
    for name, stamp in now.items():
        if before.get(name) == stamp:
            continue
        path = directory / name
        if path.is_symlink() or not (path.is_dir() or path.is_file()):
            raise IntegrityError([f"{name} is neither a directory nor a file"])
        if path.is_dir():
            tree[name] = path.stat().st_mode & 0o777
            continue
        data = path.read_bytes()
        tree[name] = data
        size += len(data)
        if size >= _BATCH:
            yield tree
            tree, size = {}, 0
    if tree:
        yield tree


def write_tree(tree: Tree, directory: Path, below: Sequence[str] = ("",)) -> None:
    """Make the changes of a tree in a directory.

    Args:
        tree: the changes.
        directory: the directory.
        below: the parts of it that may change.

    Raises:
        IntegrityError: a name leads out of these parts; nothing was written.
    """
    for name in tree:
        pure = PurePosixPath(name) if isinstance(name, str) else PurePosixPath()
        if not pure.parts or "\0" in str(pure) or pure.is_absolute() or ".." in pure.parts:
            raise IntegrityError([f"{name!r} is no name of a file that was sent"])
        if not any(pure.is_relative_to(part) for part in below):
            raise IntegrityError([f"{name!r} is no file that may change here"])
    removed = [name for name, content in tree.items() if content is None]
    for name in sorted(removed, reverse=True):
        path = directory / name
        if path.is_dir():
            path.rmdir()
        else:
            path.unlink(missing_ok=True)
    for name, content in sorted(tree.items()):
        path = directory / name
        if isinstance(content, int) and not path.is_dir():
            make_folder(path, 0o700)
            path.chmod(content & 0o777)
    files = dict[Path, bytes]()
    for name, content in tree.items():
        if isinstance(content, bytes):
            files[directory / name] = content
    write_together(files)
