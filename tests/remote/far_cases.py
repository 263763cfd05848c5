"""What the tests of directories behind URLs share: a store that can die, and be looked into."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from fsspec.implementations.memory import MemoryFileSystem

__all__ = ["FAR", "Killed", "dying", "empty_store", "far_away", "held"]

FAR = "memory://far"


class Killed(BaseException):
    """No code of fdaudit may catch this: the process is gone."""


@contextmanager
def empty_store() -> Iterator[None]:
    """The memory store, empty, and empty again afterwards."""
    MemoryFileSystem.store.clear()
    MemoryFileSystem.pseudo_dirs[:] = [""]
    yield
    MemoryFileSystem.store.clear()


@pytest.fixture(autouse=True)
def far_away(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """An empty store, every push due at once, and copies below `cache`, where a test can see what is left of them."""
    monkeypatch.setenv("FDAUDIT_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("FDAUDIT_PUSH_EVERY", "0")
    with empty_store():
        yield


@contextmanager
def dying(at: int | None) -> Iterator[list[str]]:
    """Counts what changes the memory store, and lets the change numbered `at` and all after it raise.

    Yields:
        The names of what was put, and of what was removed with a minus before them.
    """
    calls, patch = list[str](), pytest.MonkeyPatch()

    def mortal(name: str, mark: str, which: int) -> None:
        real = getattr(MemoryFileSystem, name)

        def call(self: MemoryFileSystem, *args: Any, **kwargs: Any) -> Any:
            calls.append(f"{mark}{str(args[which]).partition('/far/')[2]}")
            if at is not None and len(calls) > at:
                raise Killed
            return real(self, *args, **kwargs)

        patch.setattr(MemoryFileSystem, name, call)

    mortal("put_file", "", 1)
    mortal("rm_file", "-", 0)
    try:
        yield calls
    finally:
        patch.undo()


def held(folder: str = "/far/") -> dict[str, bytes]:
    """What the memory store holds below a folder, but for what no digest covers."""
    return {
        name.removeprefix(folder): file.getvalue()
        for name, file in sorted(MemoryFileSystem.store.items())
        if name.startswith(folder) and not name.endswith("/timings.json") and name != f"{folder}timings.json"
    }
