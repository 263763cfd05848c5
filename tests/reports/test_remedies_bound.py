"""The remedy "train with dp-sgd at a stated ε" ends in an ε: what it says to withhold is all that stands in the way."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from fdaudit.protocols import REGISTRY
from fdaudit.reports.judgement.remedies import without_epsilon

import fdaudit
from fdaudit.result import Result, read

from ..planning.test_presets import PROTOCOLS, WITHOUT, spec

OTHERWISE = {
    "fkd": "class_prototypes of client/0",  # membership by prototypes has a remedy of its own: noisy sums
    "pls": "class_prototypes of client/0",
    "selective-fd": "its index says which samples the selectors",  # "Answer every public sample"
}
"""What else stands in the way, where a remedy names it or is another one."""


def dp_sgd(of: str) -> dict[str, Any]:
    params = {"clip": 1.0, "noise_multiplier": 2.0, "sample_rate": 0.1}
    return {"at": "training", "name": "dp-sgd", "of": of, "params": params}


def result_of(run: Path) -> Result:
    return read(json.loads((run / "result.json").read_text(encoding="utf-8")))


@pytest.mark.thorough
@pytest.mark.parametrize("name", [p for p in PROTOCOLS if p not in WITHOUT])
def test_what_is_to_be_withheld_is_all_that_stands_between_dp_sgd_and_an_epsilon(
    name: str, tmp_path: Path
) -> None:
    aside = without_epsilon(result_of(fdaudit.run(spec(name), tmp_path / "bare").directory))
    trained = [dp_sgd(of) for of in REGISTRY.load(name).card.trains]

    def causes(run: str, withhold: list[str]) -> list[str]:
        made = fdaudit.run(spec(name, defenses=trained, withhold=withhold), tmp_path / run)
        entries = result_of(made.directory).ledger or ()
        assert entries
        return [entry.cause or "" for entry in entries if entry.epsilon is None]

    left = causes("kept", aside)
    assert bool(left) == (name in OTHERWISE)
    assert all(OTHERWISE[name] in cause for cause in left)
    for kind in aside:  # none of them is to be withheld for nothing
        assert any(kind in cause for cause in causes(f"with-{kind}", [k for k in aside if k != kind]))


@pytest.mark.parametrize("name", WITHOUT)
def test_labels_in_clear_are_named_where_no_training_defence_covers_them(name: str, tmp_path: Path) -> None:
    aside = without_epsilon(result_of(fdaudit.run(spec(name), tmp_path / "bare").directory))
    assert "private_labels" in aside
