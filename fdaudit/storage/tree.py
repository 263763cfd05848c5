"""Directories that came from someone else: nothing below them is read or written through a link.

Guarantees:
  * a directory that holds a link, a pipe, a device, a socket or a file with a second name (a hard link) is refused
    before anything in it is read or written. The directory itself may be a link: its user named it;
  * files that are made or appended to here are regular files of this directory, even if a link takes their place
    after the check;
  * a folder that is made here is no link.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import BinaryIO

from fdaudit.errors import IntegrityError

__all__ = ["irregular", "make_folder", "open_appending", "open_new", "put_in_place", "refuse_links"]

_MOST_NAMED = 20
_REMEDY = "Take it away, or put the file itself there"


def refuse_links(directory: Path, only: Iterable[str] | None = None) -> None:
    """Refuse a directory that holds anything but folders and files of its own. Call this before anything is read.

    Args:
        directory: the directory; may be a link itself, or absent.
        only: names in it that are looked at; default: all.

    Raises:
        IntegrityError: it holds something else; the message names it.
    """
    for finding in irregular(directory, only):
        raise IntegrityError([f"{finding}. {_REMEDY}."])


def irregular(directory: Path, only: Iterable[str] | None = None) -> list[str]:
    """Return one sentence for each entry below a directory that is no folder or file of its own; no link is followed.

    Args:
        directory: the directory; may be a link itself, or absent.
        only: names in it that are looked at; default: all.

    Returns:
        Sentences without a full stop, sorted, at most 20.
    """
    names = None if only is None else set(only)
    return sorted(islice(_irregular(directory, names), _MOST_NAMED))


def _irregular(directory: Path, only: set[str] | None) -> Iterator[str]:
    pending = [str(directory)]
    while pending:
        folder = pending.pop()
        try:
            with os.scandir(folder) as listed:
                entries = list(listed)
        except (FileNotFoundError, NotADirectoryError):
            continue  # another process removed it
        except OSError as error:
            # What cannot be searched cannot be read or written through either.
            if os.access(folder, os.X_OK) or error.errno != errno.EACCES:
                yield f"{_shown(folder, directory)} cannot be searched for links ({error.strerror})"
            continue
        for entry in entries:
            if only is not None and folder == str(directory) and entry.name not in only:
                continue
            if entry.is_dir(follow_symlinks=False):
                pending.append(entry.path)
            elif (problem := _problem(entry)) is not None:
                yield f"{_shown(entry.path, directory)} {problem}"


def _problem(entry: os.DirEntry[str]) -> str | None:
    """Return why an entry that is no folder is not a file of this directory alone."""
    try:
        status = entry.stat(follow_symlinks=False)
    except FileNotFoundError:
        return None  # another process removed it
    if stat.S_ISLNK(status.st_mode):
        return "is a link, no regular file"
    if not stat.S_ISREG(status.st_mode):
        return "is no regular file"
    if status.st_nlink > 1:
        return "has another name on this disk (it is a hard link)"
    return None


def _shown(path: str, directory: Path) -> str:
    return Path(os.path.relpath(path, directory)).as_posix()


def open_new(path: Path, mode: int = 0o644) -> BinaryIO:
    """Open a file to be made. Whatever has the name, a link for instance, is removed and not followed.

    Raises:
        IntegrityError: a folder has its name.
        OSError: it cannot be made.
    """
    try:
        path.unlink(missing_ok=True)
    except OSError:
        if path.is_dir():
            raise _is_folder(path) from None
        raise
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    return os.fdopen(os.open(path, flags, mode), "wb")


def put_in_place(made: Path, path: Path) -> None:
    """Give a file that is complete its name. Whatever has the name, a link for instance, is replaced.

    Raises:
        IntegrityError: a folder has the name; the file is removed.
        OSError: it cannot be renamed.
    """
    try:
        made.replace(path)
    except IsADirectoryError:
        made.unlink(missing_ok=True)
        raise _is_folder(path) from None


def _is_folder(path: Path) -> IntegrityError:
    return IntegrityError([f"{path.name} is a folder, where a file is to be written. Take it away."])


def open_appending(path: Path, end: int | None = None) -> BinaryIO:
    """Open a file at its end, unbuffered; make it if it does not exist.

    Args:
        path: the file.
        end: the length to cut the file to first; default: all of it stays.

    Raises:
        IntegrityError: it is a link, no regular file, or has a second name.
        OSError: it cannot be opened.
    """
    problem = "is no regular file of this directory alone, and nothing is written to it. Take it away"
    refused = IntegrityError([f"{path.name} {problem}."])
    flags = os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    try:
        descriptor = os.open(path, flags, 0o644)
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.EISDIR, errno.ENXIO):
            raise refused from None
        raise
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode) or status.st_nlink > 1:
            raise refused
        if end is not None:
            os.ftruncate(descriptor, end)
    except BaseException:
        os.close(descriptor)
        raise
    return open(path, "ab", buffering=0, opener=lambda path, flags: descriptor)  # so it knows its path


def make_folder(path: Path, mode: int = 0o777) -> None:
    """Make a folder in an existing one, unless it is there.

    Raises:
        IntegrityError: a file or a link has its name.
        OSError: it cannot be made.
    """
    try:
        path.mkdir(mode)
    except FileExistsError:
        if path.is_symlink() or not path.is_dir():
            raise IntegrityError([f"{path.name} is no folder. Take it away."]) from None
