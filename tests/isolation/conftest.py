"""Settings of the tests of isolation."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from ..helpers.warm import programs_as_attackers


@pytest.fixture(autouse=True, scope="module")
def _processes_of_their_own() -> Iterator[None]:
    """Attacks run in new programs, and not in a process that another module's tests have forked."""
    with programs_as_attackers():
        yield
