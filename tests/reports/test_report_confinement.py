"""A report says how attacks were confined: once if all were alike, else by cell."""

from __future__ import annotations

from typing import Any

from fdaudit.reports import render_report

from fdaudit.result import Cell, Confinement, read, read_cell

from ..helpers.report_cases import FIXTURES, TIMINGS, Document, load

ALL = Confinement(held=("network", "files"), missing={})
SOME = Confinement(held=("network",), missing={"files": "the kernel has no Landlock"})


def text_of(raw: dict[str, Any]) -> str:
    return " ".join(Document(render_report(read(raw), FIXTURES, TIMINGS)).text.split())


def confined(*by: Confinement) -> dict[str, Any]:
    raw = load()
    for number, cell in enumerate(raw["cells"]):
        cell["confinement"] = by[min(number, len(by) - 1)].plain()
    return raw


def test_an_older_result_says_nothing() -> None:
    assert "were confined" not in text_of(load())


def test_one_line_says_it_for_all_cells() -> None:
    assert "Attacks were confined by network and files." in text_of(confined(ALL))


def test_a_missing_layer_is_said_with_its_reason() -> None:
    said = "Attacks were confined by network; not confined here by files (the kernel has no Landlock)."
    assert said in text_of(confined(SOME))


def test_cells_that_differ_are_named() -> None:
    raw = confined(SOME, ALL)
    text = text_of(raw)
    assert "Attacks were confined by network and files, except these cells." in text
    assert f"{raw['cells'][0]['id']}: confined by network; not confined here by files" in text


def test_a_cell_keeps_how_it_was_confined() -> None:
    cell = Cell(
        protocol="p",
        adversary="server",
        attack="a",
        goal="membership",
        source="s",
        status="run",
        confinement=SOME,
    )
    assert read_cell(cell.plain(), "cell") == cell
    assert "confinement" not in cell.model_copy(update={"confinement": None}).plain()
