"""Settings of the tests of isolation."""

from __future__ import annotations

import pytest


@pytest.fixture(autouse=True, scope="module")
def _processes_of_their_own(new_programs: None) -> None:
    """Attacks run in new programs, and not in a process that another module's tests have forked."""
