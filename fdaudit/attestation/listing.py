"""The listing of a directory's files with size and SHA-256; links are never followed.

Guarantees:
  * links, pipes, devices and entries deeper than any bundle's file are named and never opened;
  * a listed path stays inside the directory, on every system.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Container, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

from fdaudit.errors import IntegrityError
from fdaudit.limits import LOG_BYTES, open_file
from fdaudit.storage.digests import canonical

from .strict import is_digest, parse_canonical

__all__ = [
    "ListedFile",
    "digest",
    "is_safe",
    "is_temporary",
    "read_listing",
    "refuse_paths",
    "survey",
    "walk",
    "write_listing",
]

Kind = Literal["file", "folder", "link", "other", "deep"]

_SCHEMA = "fdaudit-files/1"
_DEPTH = 16
_CHUNK = 1 << 20
_PLAIN = re.compile(r"[A-Za-z0-9._+=,@-]+(/[A-Za-z0-9._+=,@-]+)*")


@dataclass(frozen=True)
class ListedFile:
    """A file: its path with slashes, its size in bytes, its SHA-256."""

    path: str
    size: int
    sha256: str


def is_safe(path: str) -> bool:
    """Return whether a path is relative, without `.` or `..`, and has only letters, digits and `. _ + = , @ -`.

    Such a path needs no escapes: a listing can be read without a JSON parser.
    """
    plain = len(path) < 1000 and _PLAIN.fullmatch(path) is not None
    return plain and not any(part in (".", "..") for part in path.split("/"))


def is_temporary(name: str) -> bool:
    """Return whether a name is one that files have until they are complete."""
    return name.startswith(".") and name.endswith((".tmp", ".part"))


def walk(directory: Path) -> Iterator[tuple[str, Kind]]:
    """Yield everything below a directory by its path, in no order; a folder comes before its content.

    Raises:
        IntegrityError: a folder cannot be read.
    """
    pending: list[tuple[str, ...]] = [()]
    while pending:
        parts = pending.pop()
        try:
            with os.scandir(directory.joinpath(*parts)) as scan:
                entries = list(scan)
        except OSError as error:
            raise IntegrityError([f"{'/'.join(parts) or '.'} cannot be read ({error.strerror})"]) from None
        for entry in entries:
            below = (*parts, entry.name)
            kind: Kind = "other"
            if entry.is_symlink():
                kind = "link"
            elif entry.is_dir(follow_symlinks=False) and len(below) == _DEPTH:
                kind = "deep"
            elif entry.is_dir(follow_symlinks=False):
                kind = "folder"
                pending.append(below)
            elif entry.is_file(follow_symlinks=False):
                kind = "file"
            yield "/".join(below), kind


def survey(directory: Path, sizes: Mapping[str, int]) -> tuple[dict[str, ListedFile], set[str], list[str]]:
    """Return the files of a directory by path, the paths of its folders, and a sentence for each entry that is neither.

    Args:
        directory: the directory to survey.
        sizes: expected sizes of files. A file of another size is not read, nor a long file that is not listed: its
            entry has no digest.
    """
    files: dict[str, ListedFile] = {}
    folders: set[str] = set()
    findings: list[str] = []
    words = {"link": "is a symbolic link", "other": "is no regular file", "deep": "lies too deep"}
    try:
        for path, kind in walk(directory):
            if kind == "file":
                try:
                    lengths = (sizes[path],) if path in sizes else range(LOG_BYTES.most)
                    files[path] = digest(directory, path, lengths)
                except IntegrityError as error:
                    findings += error.findings
            elif kind == "folder":
                folders.add(path)
            else:
                findings.append(f"{path} {words[kind]}")
    except IntegrityError as error:
        findings += error.findings
    return files, folders, sorted(findings)


def digest(directory: Path, path: str, lengths: Container[int] | None = None) -> ListedFile:
    """Return a file's size and SHA-256, read piece by piece; no digest if `lengths` lacks its size.

    Raises:
        IntegrityError: it cannot be read.
    """
    hasher, size = hashlib.sha256(), 0
    try:
        with open_file(directory / path) as file:
            length = os.fstat(file.fileno()).st_size
            if lengths is not None and length not in lengths:
                return ListedFile(path, length, "")
            while piece := file.read(_CHUNK):
                hasher.update(piece)
                size += len(piece)
    except OSError as error:
        raise IntegrityError([f"{path} cannot be read ({error.strerror})"]) from None
    return ListedFile(path, size, hasher.hexdigest())


def write_listing(entries: Iterable[ListedFile]) -> bytes:
    """Return a listing of files as a canonical JSON line, sorted by path."""
    files = list(map(asdict, sorted(entries, key=lambda e: e.path)))
    return canonical({"schema": _SCHEMA, "files": files}) + b"\n"


def read_listing(data: bytes, name: str) -> dict[str, ListedFile]:
    """Return the files that `write_listing` listed, by path.

    Raises:
        IntegrityError: it is not such a listing, lists a file twice, or has a path that leaves the directory.
    """
    value = parse_canonical(data, name)
    if not isinstance(value, dict) or value.keys() != {"schema", "files"} or value["schema"] != _SCHEMA:
        raise IntegrityError([f"{name} is no listing of schema {_SCHEMA}"])
    listed = value["files"]
    if not isinstance(listed, list) or not all(map(_is_entry, listed)):
        raise IntegrityError([f"{name} does not list path, size and sha256 of each file"])
    refuse_paths([entry["path"] for entry in listed], name, "path")
    return {entry["path"]: ListedFile(**entry) for entry in listed}


def refuse_paths(paths: list[str], what: str, by: str) -> None:
    """Refuse paths that are unsafe, unsorted or named twice.

    Raises:
        IntegrityError: `what` lists such paths.
    """
    unsafe = list[str]()
    for path in paths:
        if not is_safe(path):
            unsafe.append(f"{what} names a path that is refused: {path[:200]!r}")
    if unsafe:
        raise IntegrityError(unsafe[:10])
    if paths != sorted(set(paths)):
        raise IntegrityError([f"{what} is not sorted by {by}, or names a file twice"])


def _is_entry(value: object) -> bool:
    return (
        isinstance(value, dict)
        and value.keys() == {"path", "size", "sha256"}
        and isinstance(value["path"], str)
        and type(value["size"]) is int
        and is_digest(value["sha256"])
    )
