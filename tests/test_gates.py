"""The gate on ε: of the ledger's views the worst counts, and one that is infinite fails it whatever the others are."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fdaudit.errors import SpecError
from fdaudit.result import gates
from fdaudit.spec.schema import Spec, load_spec

from .run_cases import finished

EPSILONS = st.one_of(st.none(), st.floats(0, 1e9))


@given(st.lists(EPSILONS, max_size=5), st.floats(1e-9, 1e9))
def test_the_gate_passes_where_every_view_has_an_epsilon_within_it_and_only_there(
    claimed: list[float | None], threshold: float
) -> None:
    (row,) = gates({"epsilon": threshold}, [], [{"epsilon": e} for e in claimed])
    held = [e is not None and e <= threshold for e in claimed]
    assert row["passed"] == (bool(held) and all(held))
    assert row["value"] == (max(claimed) if claimed and None not in claimed else None)  # type: ignore[type-var]
    assert (row["name"], row["threshold"], row["at_least"]) == ("epsilon", threshold, False)


@pytest.mark.parametrize("value", [0, -1.0, float("inf"), float("nan"), "8 or so"])
def test_a_threshold_that_is_none_is_refused(value: object) -> None:
    with pytest.raises(SpecError, match=r"gates\.epsilon"):
        load_spec({"gates": {"epsilon": value}})


def test_without_it_no_row_is_written() -> None:
    assert gates(Spec().gates.model_dump(), [], [{"epsilon": None}]) == []


@pytest.mark.parametrize("factor", [0.999, 1.0])
def test_a_run_with_noise_is_held_to_its_own_ledger(factor: float, tmp_path: Path) -> None:
    """The same spec twice: its ε is read first, then stated as the gate, just met or just missed."""
    noisy = {
        "defenses": [
            {"kind": "model_update", "name": "gaussian-noise", "params": {"clip": 1.0, "sigma": 5.0}}
        ],
        "withhold": ["sample_count"],
    }
    first = _result(finished(tmp_path / "first", **noisy))
    costs = [entry["epsilon"] for entry in first["ledger"]]
    assert None not in costs
    second = _result(finished(tmp_path / "second", gates={"epsilon": max(costs) * factor}, **noisy))
    (row,) = second["gates"]
    assert (row["value"], row["passed"]) == (max(costs), factor == 1.0)


def _result(run: Path) -> dict:  # type: ignore[type-arg]
    return json.loads((run / "result.json").read_bytes())  # type: ignore[no-any-return]
