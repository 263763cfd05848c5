"""Directories that a user names: a local path, or a URL with a local copy while it is open.

Guarantees:
  * a path is used directly: nothing is copied, and fsspec is not loaded;
  * the copy is in a private directory, which is removed when it is closed;
  * results that could not be sent are kept: the copy stays, and the error names its path.
"""

from __future__ import annotations

import math
import os
import re
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from fdaudit.errors import FdauditError, IntegrityError, RunError, UsageError
from fdaudit.progress import progress, say
from fdaudit.storage.cache import DIRECTORY, private_directory
from fdaudit.storage.paths import Place, is_url

if TYPE_CHECKING:
    from fdaudit.progress import Tick
    from fdaudit.remote.mirror import Mirror
    from fdaudit.remote.selection import Choice

__all__ = ["Mode", "Place", "mirrored"]

Mode = Literal["read", "change", "new", "resume", "over"]
"""The use of a directory: read it; read and change it; make it; resume it; or overwrite it unread."""
_EVERY = 30.0
"""Seconds between two pushes during work, unless `FDAUDIT_PUSH_EVERY` is set."""


def _quietly(what: str, done: int, total: int) -> None:
    """Ignore progress."""


class _Copy(Place):
    """The copy of a directory behind a URL.

    Args:
        mirror: fetches and sends the files.
        field: what errors call the directory.
        quiet: no bars are shown.
    """

    def __init__(self, mirror: Mirror, field: str, quiet: bool) -> None:
        super().__init__(mirror.directory)
        self._mirror, self._field, self._quiet = mirror, field, quiet
        self._every, self._next, self._sent = _interval(), 0.0, False
        self.worth_keeping = False

    def begin(self, mode: Mode, need: Choice) -> None:
        """Fetch the selected files; refuse a directory that does not fit the mode."""
        store = self._mirror.store
        if mode == "new" and store.names():
            remedy = "Choose another directory, or add --resume where the command has it."
            raise RunError(self._field, store.url, "exists already", remedy)
        if mode in ("new", "over"):
            return
        with progress(self._quiet) as tick:
            found = self._mirror.fetch(need, lambda n, of: tick("fetching", n, of))
        if mode != "resume" and not found:
            raise RunError(self._field, store.url, "holds nothing", "Give the URL of a directory with files.")

    def push(self) -> None:
        """Send what was written.

        Raises:
            RunError: it cannot be sent; it stays where the error says.
        """
        self.worth_keeping = True
        try:
            with progress(self._quiet) as tick:
                self._push(tick)
        except RunError as error:
            remedy = f"{error.remedy} What was not sent is kept in {self.path}."
            raise RunError(error.field, error.value, error.problem, remedy) from None
        except BaseException:
            say(f"what was not sent is kept in {self.path}")
            raise

    def _push(self, tick: Tick) -> None:
        sent = self._mirror.push(lambda n, of: tick("sending", n, of))
        self._sent = self._sent or sent > 0
        self._next = time.monotonic() + self._every

    def ticking(self, tick: Tick) -> Tick:
        """Return a progress callback that pushes at intervals. The first failed push raises; later ones are retried."""

        def ticked(what: str, done: int, total: int) -> None:
            tick(what, done, total)
            self.worth_keeping = self.worth_keeping or done > 0
            if time.monotonic() < self._next:
                return
            try:
                self._push(_quietly)
            except RunError as error:
                if not self._sent:
                    raise
                say(f"warning: {error} It will be tried again.")
                self._next = time.monotonic() + self._every

        return ticked

    def shown(self, path: Path) -> str:
        """Return the URL of a path in the copy."""
        return self._of_url(str(path))

    def told(self, error: UsageError | IntegrityError) -> FdauditError:
        """Return the error with the URL in place of the copy's path."""
        if isinstance(error, IntegrityError):
            return IntegrityError([self._of_url(finding) for finding in error.findings])
        value = self._of_url(str(error.value)) if isinstance(error.value, str | Path) else error.value
        return type(error)(error.field, value, self._of_url(error.problem), self._of_url(error.remedy))

    def _of_url(self, text: str) -> str:
        return text.replace(str(self.path), self._mirror.store.url)


@contextmanager
def mirrored(
    where: Path | str,
    mode: Mode = "read",
    *,
    field: str = "run",
    need: Choice | None = None,
    ready: Choice | None = None,
    quiet: bool = True,
) -> Iterator[Place]:
    """Open a directory, local or behind a URL, for the duration of the block.

    A URL is copied to the `path` of the result. What the block writes there is sent when it ends, even after a failure,
    and at intervals through `ticking`.

    Args:
        where: a directory, or the URL of one.
        mode: `read`; `change` what is there; make a `new` one; `resume` one; or write `over` what is there, unread.
        field: what errors call it.
        need: selects the remote files to fetch; default: all.
        ready: selects the local files that may be sent; default: all.
        quiet: show no bars.

    Raises:
        UsageError: the URL cannot be opened, holds nothing, or must be empty and is not.
        RunError: what was written cannot be sent; the error names the local copy.
    """
    if not is_url(where):
        yield Place(Path(where))
        return
    from fdaudit.remote.mirror import Mirror
    from fdaudit.remote.selection import everything
    from fdaudit.remote.store import Store

    copy_home = _home(field)
    kept = False
    try:
        store = Store(str(where), field)
        mirror = Mirror(store, copy_home / _called(store.url), ready or everything)
        copy = _Copy(mirror, field, quiet)
        copy.begin(mode, need or everything)
        try:
            yield copy
            copy.worth_keeping = True
        except (UsageError, IntegrityError) as error:
            raise copy.told(error) from None
        finally:
            if mode != "read" and copy.worth_keeping:
                kept = True
                copy.push()
                kept = False
    finally:
        if not kept:
            shutil.rmtree(copy_home, ignore_errors=True)


def _home(field: str) -> Path:
    """Return a private directory for one copy, below `FDAUDIT_CACHE` if that is set."""
    cache = os.environ.get(DIRECTORY)
    if cache:
        os.close(private_directory(Path(cache), DIRECTORY))
    try:
        return Path(tempfile.mkdtemp(prefix="fdaudit-copy-", dir=cache or None)).resolve()
    except OSError as error:
        problem = f"cannot hold the copy that {field} needs ({error.strerror})"
        remedy = "Set FDAUDIT_CACHE to a directory that can be written."
        raise RunError(DIRECTORY, cache, problem, remedy) from None


def _called(url: str) -> str:
    """Return the copy's name: the directory's own, because comparisons use it as the run's name."""
    name = re.sub(r"[^\w.-]", "-", url.partition("://")[2].rpartition("/")[2])
    return name if name.strip(".") else "run"


def _interval() -> float:
    """Return the seconds between pushes."""
    text = os.environ.get("FDAUDIT_PUSH_EVERY")
    try:
        seconds = _EVERY if text is None else float(text)
    except ValueError:
        seconds = -1.0
    if not 0 <= seconds < math.inf:
        raise UsageError("FDAUDIT_PUSH_EVERY", text, "is no number of seconds", "Set it to 30, say.")
    return seconds
