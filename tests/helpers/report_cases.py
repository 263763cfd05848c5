"""The report tests' fixture result, and how to read a page's text back."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

FIXTURES = Path(__file__).parents[1] / "fixtures"
MAIN = (
    "summary",
    "findings",
    "exposure",
    "utility",
    "ledger",
    "coverage",
    "system",
    "threats",
    "reproduce",
)
APPENDIX = ("cells", "reasons", "annex", "spec")
SECTIONS = (*MAIN, *APPENDIX)
TIMINGS = {"run": 12.34, "server/dlg": 41.2, "world/boundary-distance": 66.0}


def load() -> dict[str, Any]:
    """The fixture as a fresh, plain object."""
    value: dict[str, Any] = json.loads((FIXTURES / "result.json").read_text("utf-8"))
    return value


def minimal() -> dict[str, Any]:
    """The least result that the schema allows."""
    raw = load()
    raw |= {"utility": {"curve": [], "final": []}, "exposure": [], "wire": [], "cells": [], "reproduce": {}}
    for name in ("class_table", "assumptions", "oracles", "gates", "limits"):
        del raw[name]
    for name in ("protocol_summary", "deviations", "dataset_provenance"):
        del raw["run"][name]
    return raw


def numbers(value: Any) -> Iterator[float]:
    """Every number in a plain object."""
    if isinstance(value, bool):
        return
    if isinstance(value, int | float):
        yield float(value)
    elif isinstance(value, dict):
        for item in value.values():
            yield from numbers(item)
    elif isinstance(value, list):
        for item in value:
            yield from numbers(item)


def figures_in(text: str) -> list[str]:
    """Every number in a text, as it is printed."""
    return re.findall(r"\d(?:[\d.,]*\d)?", text)


class Document(HTMLParser):
    """A page's elements, its text by section, and the numbers it marks as measured."""

    def __init__(self, page: str) -> None:
        super().__init__(convert_charrefs=True)
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.sections: dict[str, str] = {}
        self.marked: list[tuple[float, str]] = []
        self.text = ""
        self._section = ""
        self._data: float | None = None
        self._skip = ""
        self.feed(page)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        attributes = dict(attrs)
        self.elements.append((tag, attributes))
        if tag == "section":
            self._section = str(attributes["id"])
            self.sections[self._section] = ""
        if tag == "data":
            self._data = float(str(attributes["value"]))
            self.marked.append((self._data, ""))
        if tag in ("style", "script"):
            self._skip = tag

    def handle_endtag(self, tag: str) -> None:
        if tag == "section":
            self._section = ""
        if tag == "data":
            self._data = None
        if tag == self._skip:
            self._skip = ""

    def handle_data(self, data: str) -> None:
        if self._skip:
            return
        self.text += data
        if self._section:
            self.sections[self._section] += data
        if self._data is not None:
            value, text = self.marked[-1]
            self.marked[-1] = (value, text + data)
