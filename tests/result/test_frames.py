"""The figures of a result as a table of data, and runs, cells and ledgers in a notebook."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from fdaudit.accounting.ledger import Ledger
from fdaudit.audit.run import Run
from fdaudit.result import read
from fdaudit.result.frames import COLUMNS, figure_rows

from ..helpers.report_cases import Document, load
from ..helpers.run_cases import finished


def test_every_figure_of_a_result_is_a_row_of_its_frame() -> None:
    result = read(load())
    frame = result.to_frame()
    assert tuple(frame.columns) == COLUMNS
    figures = 0
    for cell in result.cells:
        own = frame[(frame["adversary"] == cell.adversary) & (frame["attack"] == cell.attack)]
        expected = [("", f) for f in cell.figures] + [(t.target, f) for t in cell.targets for f in t.figures]
        assert len(own) == max(1, len(expected))
        for (victim, figure), (_, row) in zip(expected, own.iterrows(), strict=False):
            assert (row["victim"], row["figure"], row["n"]) == (victim, figure.name, figure.n) or math.isnan(
                row["n"]
            )
            if figure.value is None:
                assert math.isnan(row["value"])
                assert row["unavailable"] == figure.unavailable
            else:
                assert row["value"] == figure.value
        figures += len(expected)
    assert figures > 10


def test_a_cell_that_did_not_run_keeps_its_row_and_its_reason() -> None:
    rows = list(figure_rows(read(load()).cells))
    silent = [row for row in rows if row["figure"] is None]
    assert silent
    assert all(row["reason"] for row in silent)
    assert all(row.keys() == set(COLUMNS) for row in rows)


@pytest.mark.parametrize("payload", ["<script>alert(1)</script>", "'\"><img src=x>", "\u202egnp.exe"])
def test_a_cell_and_a_ledger_show_a_stranger_s_text_as_text(payload: str) -> None:
    raw = load()
    raw["cells"][0] |= {"adversary": payload, "reason": payload}
    raw["cells"][0]["id"] = f"{payload}/{raw['cells'][0]['attack']}"
    ledger = Ledger(
        view=payload, epsilon=math.inf, delta=1e-5, unit="record", relation="replace-one", cause=payload
    )
    for page in (read(raw).cells[0]._repr_html_(), ledger._repr_html_()):
        shown = Document(page)
        assert {tag for tag, _ in shown.elements} <= {"table", "caption", "thead", "tr", "th", "tbody", "td"}
        assert all(not attributes for _, attributes in shown.elements)
        assert "\u202e" not in page


def test_a_cell_s_table_has_its_figures() -> None:
    cell = next(c for c in read(load()).cells if c.figures)
    text = Document(cell._repr_html_()).text
    assert cell.id in text
    assert all(figure.name in text for figure in cell.figures)


def test_a_run_shows_who_can_learn_what(tmp_path: Path) -> None:
    run = Run(finished(tmp_path / "run", attacks=[{"name": "loss-threshold"}]))
    text = Document(run._repr_html_()).text
    assert "server" in text
    assert "membership" in text
    assert len(run.to_frame()) == len(list(figure_rows(run.result.cells)))
    (run.directory / "result.json").unlink()
    assert "has no result yet" in Document(run._repr_html_()).text
