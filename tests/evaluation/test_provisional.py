"""A provisional report: when it is written, what it says of the cells to come, and that it changes no result."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import fdaudit
from fdaudit.evaluation.steps import Unit
from fdaudit.result import Unfinished

from ..helpers.run_cases import tree
from .test_estimate import SPEC as COSTED

SPEC: dict[str, Any] = {
    **COSTED,
    "model": {"name": "mlp", "params": {"widths": [8]}},
    "attacks": [
        {"name": "inverting-gradients", "params": {"iterations": 30, "restarts": 1, "tune": False}},
        {"name": "loss-threshold"},
        {"name": "gap"},
    ],
}
QUICK, OF = 4, 6
"""Cells of the two quick attacks, and of all three: one for each of two adversaries."""


@pytest.fixture(autouse=True, scope="module")
def made_up_steps() -> Any:
    """A step of 4 ms: the attacks on membership take some seconds, and gradient inversion minutes."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Unit, "measured", lambda case: Unit(seconds=0.004, parameters=1000, kept=500))
        yield


class Early:
    """Progress that looks at the report when it is announced as provisional."""

    def __init__(self, then: type[BaseException] | None = None) -> None:
        self.said, self.page, self.json, self._then = list[str](), "", dict[str, Any](), then

    def __call__(self, what: str, done: int, total: int) -> None:
        if total or not what.startswith("provisional report"):
            return
        self.said.append(what)
        page = Path(what.rpartition(": ")[2])
        self.page, self.json = page.read_text("utf-8"), json.loads(page.with_suffix(".json").read_bytes())
        if self._then is not None:
            raise self._then


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> tuple[fdaudit.Run, Early]:
    early = Early()
    return fdaudit.run(SPEC, tmp_path_factory.mktemp("early") / "run", tick=early, provisional=True), early


def test_it_comes_once_and_cells_to_come_are_not_tested(ran: tuple[fdaudit.Run, Early]) -> None:
    run, early = ran
    (line,) = early.said
    words = f"{QUICK} of {OF} tests done, the others not tested yet"
    assert line == f"provisional report, {words}: {run.directory / 'report' / 'index.html'}"
    assert early.json["result"]["unfinished"] == {"done": QUICK, "of": OF}
    assert early.json["result"]["run"]["status"] == "provisional"
    assert words in early.json["verdict"]["headline"]
    assert "<title>Provisional: " in early.page
    assert "Provisional report." in early.page
    assert any(words in limit for limit in early.json["result"]["limits"])
    early = ran[1]
    cells = {cell["id"]: cell for cell in early.json["result"]["cells"]}
    assert cells.keys() == {cell.id for cell in ran[0].result.cells}
    for name, cell in cells.items():
        assert (cell["status"] == "not-tested") == name.endswith("/inverting-gradients")
        if cell["status"] == "not-tested":
            assert (cell["reason"], cell["figures"]) == ("not run yet", [])
    standings = {(s["adversary"], s["goal"]): s["level"] for s in early.json["adversaries"]}
    assert standings["server", "reconstruction"] == "not-tested"
    assert f"{OF - QUICK} are not tested" in early.json["verdict"]["standing"]
    assert any("have not run" in line for line in early.json["front"]["untested"])
    assert Unfinished(done=1, of=3).words.startswith("1 of 3 ")


def test_no_result_is_written_with_it(tmp_path: Path) -> None:
    early = Early(KeyboardInterrupt)
    with pytest.raises(KeyboardInterrupt):
        fdaudit.run(SPEC, tmp_path / "run", tick=early, provisional=True)
    page = tmp_path / "run" / "report" / "index.html"
    assert page.read_text("utf-8") == early.page
    assert not (tmp_path / "run" / "result.json").exists()
    with pytest.raises(fdaudit.FdauditError, match="no result yet"):
        fdaudit.report(fdaudit.load(tmp_path / "run"))
    run = fdaudit.run(None, tmp_path / "run", resume=True, provisional=True)
    assert run.result.unfinished is None
    assert "Provisional" not in fdaudit.report(run).read_text("utf-8")


def test_results_are_the_same_without_it(ran: tuple[fdaudit.Run, Early], tmp_path: Path) -> None:
    without = fdaudit.run(SPEC, tmp_path / "run")
    assert not (tmp_path / "run" / "report").exists()
    alike = [(k, v) for k, v in tree(ran[0].directory).items() if not k.startswith("report/")]
    assert alike == list(tree(without.directory).items())
    for run in (ran[0], without):
        run.directory.joinpath("timings.json").write_text("{}")
    assert fdaudit.report(ran[0]).read_bytes() == fdaudit.report(without).read_bytes()


def test_a_run_without_dear_attacks_has_none(tmp_path: Path) -> None:
    early = Early()
    spec = {**SPEC, "attacks": [{"name": "gap"}]}
    fdaudit.run(spec, tmp_path / "run", tick=early, provisional=True)
    assert early.said == []
