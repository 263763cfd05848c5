"""One model for writer and readers: it comes back from its file, refuses what it cannot hold, and loads quickly."""

from __future__ import annotations

import copy
import json
import subprocess
import sys
from typing import Any

import pytest
from pydantic import ValidationError

from fdaudit.errors import IntegrityError
from fdaudit.result import Cell, Image, Target, read, read_cell
from fdaudit.types import Figure

from ..helpers.report_cases import load


def cell(**changes: Any) -> Cell:
    named = {"protocol": "fedavg", "adversary": "server", "attack": "dlg", "goal": "reconstruction"}
    return Cell(**{**named, "status": "run", **changes})


def test_a_result_comes_back_from_its_file() -> None:
    result = read(load())
    assert read(json.loads(json.dumps(result.plain()))) == result


def test_empty_optional_members_are_left_out_of_the_file() -> None:
    target = Target(target="client/0", images=(Image(truth="a.png", guess="b.png"),))
    plain = cell(targets=(target,)).plain()
    assert not {"reads", "canaries", "confinement"} & plain.keys()
    assert not {"rank", "gallery"} & plain["targets"][0]["images"][0].keys()
    assert plain["targets"][0]["images"][0]["prior"] is None


@pytest.mark.parametrize(
    "change", [{"new": 1}, {"figures": ...}, {"id": "server/another"}, {"status": "done"}]
)
def test_a_file_that_no_attack_stage_wrote_is_no_cell(change: dict[str, Any]) -> None:
    value = copy.deepcopy(cell(figures=(Figure(name="psnr", value=20.0),)).plain())
    assert read_cell(value, "a.json").plain() == value
    for name, member in change.items():
        value[name] = member
        if member is ...:
            del value[name]
    with pytest.raises(IntegrityError, match=r"a\.json is no outcome of an attack"):
        read_cell(value, "a.json")


@pytest.mark.parametrize("value", [float("nan"), float("inf"), "20"])
def test_a_figure_that_is_no_finite_number_makes_no_cell(value: Any) -> None:
    with pytest.raises(ValidationError, match=r"figures\.0\.value"):
        cell(figures=(Figure(name="psnr", value=value),))


def test_a_whole_number_in_a_figure_is_written_as_it_is_read_again() -> None:
    plain = cell(figures=(Figure(name="psnr", value=20),)).plain()
    assert json.dumps(plain) == json.dumps(read_cell(json.loads(json.dumps(plain)), "a.json").plain())


def test_the_model_loads_no_pytorch() -> None:
    code = "import sys, fdaudit.result; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-P", "-c", code], check=False).returncode == 0


def test_a_result_names_its_failures() -> None:
    value = load()
    value["cells"] = [cell(status="failed", reason="ValueError: no").plain(), cell(adversary="world").plain()]
    gates = (
        {"name": "psnr", "threshold": 20.0, "value": 25.0, "passed": False},
        {"name": "psnr", "threshold": 20.0, "value": 15.0, "passed": False, "inconclusive_for": ["world"]},
        {"name": "utility", "threshold": 0.8, "value": 0.9, "passed": True, "at_least": True},
        {"name": "utility", "threshold": 0.8, "value": None, "passed": False, "at_least": True},
    )
    value["gates"] = list(gates)
    claim = {"claimed": 1.0, "gdp": None, "delta": 1e-5, "unit": "record", "relation": "add-or-remove"}
    value["checks"] = [
        {**claim, "adversary": adversary, "verdict": verdict, "confidence": 0.95, "reason": "no"}
        for adversary, verdict in (("server", "contradicted"), ("world", "consistent"))
    ]
    result = read(value)
    assert [c.id for c in result.failed_cells] == ["server/dlg"]
    assert [g.exceeded for g in result.failed_gates] == [True, False, False]
    assert [c.adversary for c in result.contradicted] == ["server"]
