"""Files that may come from a stranger, damaged at random: one clear error, or nothing that means something else."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from .fuzz_targets import targets
from .fuzzing import Target, run_case

NAMES = (
    *(
        "cache",
        "covered",
        "evidence",
        "guesses",
        "index",
        "json",
        "line",
        "log",
        "manifest",
        "npz",
        "payload",
    ),
    *("foreign-card", "foreign-record", "foreign-truth"),
    *("pictures", "records", "spec", "sweep", "table", "tensors", "view"),
)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, Target]:
    return targets(tmp_path_factory.mktemp("fuzz") / "templates")


@pytest.mark.thorough
def test_every_target_is_fuzzed_and_read_as_it_is(made: Mapping[str, Target]) -> None:
    assert sorted(made) == sorted(NAMES)
    for target in made.values():
        assert target.read(target.template) == target.read(target.template)


@pytest.mark.thorough
@pytest.mark.parametrize("name", NAMES)
def test_damage_is_an_error_or_changes_nothing(name: str, made: Mapping[str, Target], tmp_path: Path) -> None:
    outcomes = {run_case(name, made[name], number, tmp_path) for number in range(25)}
    assert outcomes - {"same"}, "nothing was changed"
