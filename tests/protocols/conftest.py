"""Runs that several tests of protocols look at."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from fdaudit.testing.running import ProtocolRun

from ..helpers.protocol_cases import case_id, run


@pytest.fixture(scope="session")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., ProtocolRun]:
    """Return the run of a case that nothing disturbs, made once. Tests read it and change nothing of it."""
    made: dict[tuple[str, int], ProtocolRun] = {}

    def of(case: tuple[str, dict[str, Any]], rounds: int = 3) -> ProtocolRun:
        key = case_id(case), rounds
        if key not in made:
            made[key] = run(tmp_path_factory.mktemp("undisturbed"), *case, rounds=rounds)
        return made[key]

    return of
