"""Settings of the tests of isolation."""

from __future__ import annotations

import pytest

from fdaudit.isolation import attacker


@pytest.fixture(autouse=True, scope="module")
def _no_process_of_other_tests() -> None:
    """Attacks do not run in a process that another module's tests have forked."""
    attacker.dismiss()
