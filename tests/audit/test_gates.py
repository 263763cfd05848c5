"""The gate on ε: of the ledger's views the worst counts, and one that is infinite fails it whatever the others are."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fdaudit.cli.app import _broken
from fdaudit.errors import SpecError
from fdaudit.result import Cell, FinalUtility, LedgerEntry, Target, check_gates
from fdaudit.spec.schema import Spec, load_spec
from fdaudit.testing.specs import small_spec
from fdaudit.types import Figure

from ..helpers.command import Cli
from ..helpers.run_cases import finished, write_spec

EPSILONS = st.one_of(st.none(), st.floats(0, 1e9))


@given(st.lists(EPSILONS, max_size=5), st.floats(1e-9, 1e9))
def test_the_gate_passes_where_every_view_has_an_epsilon_within_it_and_only_there(
    claimed: list[float | None], threshold: float
) -> None:
    (gate,) = check_gates({"epsilon": threshold}, [], [_entry(e) for e in claimed])
    held = [e is not None and e <= threshold for e in claimed]
    assert gate.passed == (bool(held) and all(held))
    assert gate.value == (max(claimed) if claimed and None not in claimed else None)  # type: ignore[type-var]
    assert (gate.name, gate.threshold, gate.at_least) == ("epsilon", threshold, False)


def _entry(epsilon: float | None) -> LedgerEntry:
    return LedgerEntry(adversary="server", epsilon=epsilon)


@pytest.mark.parametrize("value", [0, -1.0, float("inf"), float("nan"), "8 or so"])
def test_a_threshold_that_is_none_is_refused(value: object) -> None:
    with pytest.raises(SpecError, match=r"gates\.epsilon"):
        load_spec({"gates": {"epsilon": value}})


def test_without_it_no_row_is_written() -> None:
    assert check_gates(Spec().gates.model_dump(), [], [_entry(None)]) == ()


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


FIGURES = st.one_of(
    st.just(Figure(name="auc", value=None, unavailable="not measured")),
    st.builds(Figure, name=st.just("auc"), value=st.floats(0, 1)),
)
TARGETS = st.builds(Target, target=st.just("client/0"), figures=st.lists(FIGURES, max_size=1).map(tuple))
CELLS = st.lists(
    st.builds(
        Cell,
        protocol=st.just("fedavg"),
        adversary=st.sampled_from(["server", "world"]),
        attack=st.just("attack"),
        goal=st.sampled_from(["membership", "reconstruction"]),
        status=st.sampled_from(["run", "inconclusive"]),
        reason=st.just("a control failed"),
        targets=st.lists(TARGETS, max_size=2).map(tuple),
    ),
    max_size=4,
)


@given(CELLS, st.floats(0, 1))
def test_a_gate_holds_only_if_each_adversary_was_tested_by_an_attack_that_works(
    cells: list[Cell], threshold: float
) -> None:
    (gate,) = check_gates({"membership_auc": threshold}, cells)
    seen = [
        (cell.adversary, cell.status, f.value)
        for cell in cells
        for target in cell.targets
        for f in target.figures
        if cell.goal == "membership" and f.value is not None
    ]
    within = all(value <= threshold for _, _, value in seen)
    tested = all((adversary, "run") in {(a, s) for a, s, _ in seen} for adversary, _, _ in seen)
    assert gate.passed == (bool(seen) and within and tested)
    assert gate.value == max((value for _, _, value in seen), default=None)
    assert bool(gate.inconclusive_for) == (not tested)


def _cell(
    status: Literal["run", "inconclusive", "not-tested"], value: float | None, adversary: str = "server"
) -> Cell:
    return Cell(
        protocol="fedavg",
        adversary=adversary,
        attack="attack",
        goal="membership",
        status=status,
        reason="a control failed",
        targets=()
        if value is None
        else (Target(target="client/0", figures=(Figure(name="auc", value=value),)),),
    )


@pytest.mark.parametrize(
    ("cells", "says"),
    [
        ([_cell("inconclusive", 0.5)], "every cell that measured it is inconclusive for server"),
        ([_cell("run", 0.6), _cell("inconclusive", 0.5, "world")], "inconclusive for world"),
        ([_cell("run", 0.6), _cell("not-tested", None)], "the budget left out attacks of server"),
        ([_cell("run", 0.6), _cell("not-tested", None, "world")], "the budget left out attacks of world"),
        ([_cell("not-tested", None)], "the budget left out attacks of server"),
        ([_cell("inconclusive", 0.9)], r"0\.9 > 0\.7"),
        ([_cell("run", 0.6), _cell("inconclusive", 0.9)], r"0\.9 > 0\.7"),
        ([], "no cell could measure it"),
    ],
)
def test_a_failed_gate_says_why(cells: list[Cell], says: str) -> None:
    (gate,) = check_gates({"membership_auc": 0.7}, cells)
    assert not gate.passed
    assert re.search(says, _broken(gate))


def _result(run: Path) -> dict:  # type: ignore[type-arg]
    return json.loads((run / "result.json").read_bytes())  # type: ignore[no-any-return]


# -- utility -------------------------------------------------------------------------------------------------------


def final(**lines: dict[str, float]) -> list[FinalUtility]:
    """Return final utility: a line is a mapping of parties to accuracies."""
    return [
        FinalUtility(line=line, party=party.replace("_", "/"), figure=Figure(name="accuracy", value=value))
        for line, parties in lines.items()
        for party, value in parties.items()
    ]


SERVER = final(fedkd={"server": 0.7, "client_0": 0.1}, standalone={"client_0": 0.6, "client_1": 0.9})
CLIENTS = final(fedkd={"client_0": 0.5, "client_1": 0.9}, standalone={"client_0": 0.6, "client_1": 0.8})


@pytest.mark.parametrize(
    ("rows", "name", "value"),
    [
        (SERVER, "utility", 0.7),
        (CLIENTS, "utility", 0.5),
        (SERVER, "utility_drop", 0.05),
        (CLIENTS, "utility_drop", 0.1),
    ],
)
def test_a_utility_gate_compares_the_server_or_the_worst_client(
    rows: list[FinalUtility], name: str, value: float
) -> None:
    at_least = name == "utility"
    for shift, passed in ((-0.01, at_least), (0.01, not at_least)):
        (gate,) = check_gates({name: value + shift}, [], [], rows, "fedkd")
        assert gate.value == pytest.approx(value)
        assert (gate.passed, gate.at_least) == (passed, at_least)


@pytest.mark.parametrize("name", ["utility", "utility_drop"])
def test_a_utility_gate_without_a_measurement_fails_and_says_why(name: str) -> None:
    rows = [] if name == "utility" else final(fedkd={"server": 1.0})
    (gate,) = check_gates({name: 0.0}, [], [], rows, "fedkd")
    assert (gate.value, gate.passed) == (None, False)
    assert ("standalone" if name == "utility_drop" else "test records") in _broken(gate)


def test_a_diverged_run_fails_its_gate_and_is_warned_about(tmp_path: Path, cli: Cli) -> None:
    protocol = {"name": "fedavg", "params": {"rounds": 2, "lr": 1000.0}}
    spec = small_spec(protocol=protocol, gates={"utility": 0.9}, references=["centralized"])
    path = write_spec(tmp_path / "spec.yaml", spec)
    code, out, err = cli("run", path, "--out", tmp_path / "run")
    result = json.loads((tmp_path / "run" / "result.json").read_text())
    assert code == 1
    assert "gate utility failed" in err
    (warning,) = result["utility"]["warnings"]
    assert "near chance" in warning
    assert f"warning   {warning}" in out
    assert any(limit.startswith("Compare nothing") and "`centralized`" in limit for limit in result["limits"])
