"""Settings of the tests of runs behind URLs."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from ..helpers.warm import forked_attackers, forked_workers


@pytest.fixture(autouse=True, scope="module")
def _processes_are_forked() -> Iterator[None]:
    """These tests are about the files of runs, and not about the start of the processes that make them."""
    with forked_attackers(), forked_workers():
        yield
