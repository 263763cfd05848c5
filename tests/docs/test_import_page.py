"""The page on imports lists what the program knows."""

from __future__ import annotations

from fdaudit.planning.ladder import LADDER

from ..helpers.docs_pages import page


def test_the_ladder_on_the_page_is_the_program_s() -> None:
    lines = page("docs/import.md").splitlines()
    assert [line for line in lines if line in {f"| {what} | {buys} |" for what, _, buys in LADDER}] == [
        f"| {what} | {buys} |" for what, _, buys in LADDER
    ]
