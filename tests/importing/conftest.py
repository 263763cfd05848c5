"""An auditor and a site, made once for all tests of this folder that only read them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from fdaudit.storage.answered import LEDGER

from .site_cases import Two, two


@pytest.fixture(scope="session")
def two_directories(tmp_path_factory: pytest.TempPathFactory) -> Two:
    return two(tmp_path_factory.mktemp("two"))


@pytest.fixture
def made(two_directories: Two, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Two]:
    """The two directories, whose site has answered nothing yet."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    yield two_directories
    (two_directories.truth / LEDGER).unlink(missing_ok=True)
