"""Which messages have a size that tells nothing, and what an eavesdropper on an encrypted transport is charged."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest

import fdaudit
from fdaudit.errors import SpecError
from fdaudit.planning.message_sizes import fixed_sizes
from fdaudit.planning.simulated import simulated_case
from fdaudit.registry import DefenseCard
from fdaudit.spec.schema import load_spec

from ..helpers.oracle_cases import on_message, spec
from ..helpers.run_cases import known

VOTES = {"ensemble": "votes", "weights": "uniform", "local_epochs": 1, "distill_steps": 2}
CONFIDENT = {"threshold": 2.0, "sigma_threshold": 60.0, "sigma": 40.0, "public_index": True}
GNMAX = {"sigma": 40.0, "public_index": True}


def overheard(
    protocol: str, params: dict[str, Any], defenses: list[dict[str, Any]], folder: Path
) -> fdaudit.Run:
    changes = {"transport": "encrypted", "adversaries": ["world", "eavesdropper"], "defenses": defenses}
    return fdaudit.run(spec(protocol, params, **changes), folder / "run")


def test_the_number_of_answers_is_charged_unless_all_are_answered(tmp_path: Path) -> None:
    votes = on_message("vote_counts", "confident-gnmax", "aggregator", **CONFIDENT)
    run = overheard("fedkd", VOTES, [votes], tmp_path)
    found = run.ledger("eavesdropper")
    assert 0 < found.epsilon < math.inf
    assert found.epsilon == pytest.approx(run.ledger("server").epsilon)
    votes = on_message("vote_counts", "gnmax", "aggregator", **GNMAX)
    run = overheard("fedkd", VOTES, [votes], tmp_path / "all")
    assert run.ledger("eavesdropper").epsilon == 0.0
    assert run.ledger("server").epsilon > 0


@pytest.mark.parametrize("selector", ["density-ratio", "none"])
def test_how_many_samples_a_selector_accepted_leaves_no_epsilon(selector: str, tmp_path: Path) -> None:
    params = {"rounds": 1, "local_steps": 1, "public_batch": 8, "selector": selector, "warm_up_steps": 1}
    found = overheard("selective-fd", params, [], tmp_path).ledger("eavesdropper")
    assert found.epsilon == math.inf, "also without a selector the server leaves ambiguous samples out"


@pytest.mark.thorough
@pytest.mark.parametrize("protocol", ["fedavg", "fedmd", "ds-fl", "dafkd"])
def test_sizes_that_settings_fix_cost_nothing(protocol: str, tmp_path: Path) -> None:
    assert overheard(protocol, {"rounds": 1}, [], tmp_path).ledger("eavesdropper").epsilon == 0.0


def test_a_defence_that_declares_nothing_may_change_sizes() -> None:
    case = simulated_case(
        load_spec(spec("fedavg", {"rounds": 1}, defenses=[on_message("model_update")])), known(1)
    )
    assert ("model_update", "client") in fixed_sizes(case)

    class Undeclared:
        card = DefenseCard(name="undeclared")

    object.__setattr__(case, "defenses", {("model_update", "client"): (Undeclared(),)})
    assert ("model_update", "client") not in fixed_sizes(case)
    assert ("model_parameters", "server") in fixed_sizes(case)


def test_no_index_is_promised_of_answers_that_a_defence_made_another_kind() -> None:
    """A label that noise moves out of range is no answer, and a sample without an answer is left out."""
    hard = on_message("soft_labels", "hard-label")
    hard["params"] = {}
    made = spec("ds-fl", {"rounds": 1, "share": "soft_labels"})
    assert ("ensemble_labels", "server") in fixed_sizes(simulated_case(load_spec(made), known(1)))
    recast = load_spec({**made, "defenses": [hard]})
    assert ("ensemble_labels", "server") not in fixed_sizes(simulated_case(recast, known(1)))
    noise = on_message("ensemble_labels", sender="server", sigma=1.0, clip=1.0, public_index=True)
    with pytest.raises(SpecError, match="hard-label changes"):
        simulated_case(load_spec({**made, "defenses": [hard, noise]}), known(1))
