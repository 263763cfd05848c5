"""Controls hand to attacks, and make of their guesses, what they did when `control_outcomes.json` was written."""

from __future__ import annotations

import json
import re

import pytest

from .control_cases import OUTCOMES, QUICK, digest, machine, outcome

WRITTEN = json.loads(OUTCOMES.read_text(encoding="utf-8"))
SAME = WRITTEN["machine"] == machine()
"""Whether figures are the same to the last bit here; other processors and versions of PyTorch round differently."""


def without_numbers(outcomes):
    """Return the parts of outcomes that are the same on every machine."""
    parts = {}
    for name in ("positive", "negative"):
        fields = ("name", "unit", "n", "unavailable")
        figures = [[figure.get(field) for field in fields] for figure in outcomes[name]["figures"]]
        parts[name] = (re.sub(r"\d+% fitted", "", outcomes[name]["what"]), figures)
    return parts


def names():
    thorough = pytest.mark.thorough
    return [name if name in QUICK else pytest.param(name, marks=thorough) for name in WRITTEN["outcomes"]]


@pytest.mark.parametrize("name", names())
def test_the_outcome_of_a_control_is_as_written(name):
    expected, found = WRITTEN["outcomes"][name], outcome(name)
    if isinstance(expected, str):
        if not SAME:
            pytest.skip("written on another machine")
        found = digest(found)
    elif not SAME:
        expected, found = without_numbers(expected), without_numbers(found)
    assert found == expected


@pytest.mark.parametrize("name", QUICK)
def test_a_control_whose_attack_does_not_apply_fails_and_says_why(name):
    outcomes = outcome(name, applies=False)
    for control in (outcomes["positive"], outcomes["negative"]):
        assert not control["passed"]
        (figure,) = {figure["unavailable"] for figure in control["figures"]}
        assert figure == "the attack does not apply to its own control: it does not like the view"
