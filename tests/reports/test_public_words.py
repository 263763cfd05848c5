"""That no text of a run, a file or an error, and no path of the auditor's machine, stands on a public page."""

from __future__ import annotations

import copy
import json
from typing import Any

import pytest
from fdaudit.reports.local_names import HIDDEN, settings, without_paths
from fdaudit.reports.run.security import render_report, report_json

from fdaudit.result import read

from ..helpers.report_cases import FIXTURES, TIMINGS, load

SECRET = "alice-s-laptop"
TEXT = f"OSError: /home/{SECRET}/data/x.npz and C:\\Users\\{SECRET}\\x: no such file, says {SECRET}"
FREE = (
    ("cells", 7, "reason"),
    ("cells", 0, "figures", 3, "unavailable"),
    ("cells", 0, "figures", 0, "note"),
    ("cells", 0, "controls", "positive", "what"),
    ("cells", 1, "reason"),
    ("limits", 0),
    ("reproduce", "notes", 0),
    ("reproduce", "commands", 0),
    ("utility", "final", 0, "figure", "note"),
)
"""Where words of a run stand that an error, a setting or a plug-in may have written."""


def public(raw: dict[str, Any], **changes: Any) -> tuple[str, str]:
    return (
        render_report(read(raw), FIXTURES, {**TIMINGS, **changes}, public=True),
        report_json(read(raw), {**TIMINGS, **changes}, public=True),
    )


@pytest.mark.thorough
@pytest.mark.parametrize("place", FREE, ids=lambda p: ".".join(map(str, p)))
def test_words_of_the_run_are_left_out(place: tuple[Any, ...]) -> None:
    raw = load()
    part: Any = raw
    for step in place[:-1]:
        part = part[step]
    part[place[-1]] = TEXT
    assert SECRET in report_json(read(copy.deepcopy(raw)), TIMINGS)
    assert [SECRET in text for text in public(raw)] == [False, False]


def test_places_are_left_out_and_settings_with_a_slash_hidden() -> None:
    raw = load()
    raw["cells"][4]["params"] = {"weights": f"{SECRET}/weights.pt", f"/mnt/{SECRET}": 1}
    raw["run"]["spec"] |= {"extra": {"cache": f"~/{SECRET}", "root": SECRET}, "name": f"runs/{SECRET}"}
    raw["run"]["name"] = f"runs/{SECRET}"
    raw["run"]["deviations"] = [f"reads /srv/{SECRET}"]
    for text in public(raw, **{f"/tmp/{SECRET}": 1.0}):
        assert SECRET not in text
    given = {
        "adversaries": ["server", "client/3", "server+client/0"],
        "file": "data/12",
        "root": "anything",
        "n": 3,
    }
    assert settings(given) == {
        "adversaries": ["server", "client/3", "server+client/0"], "file": HIDDEN, "root": HIDDEN, "n": 3,
    }  # fmt: skip


def test_reasons_are_of_a_closed_set() -> None:
    found = set[str]()
    for status in ("failed", "not-applicable", "not-requested", "not-tested", "inconclusive"):
        raw = load()
        for cell in raw["cells"]:
            cell |= {"status": status, "reason": TEXT}
        found |= {c["reason"] for c in json.loads(public(raw)[1])["result"]["cells"]}
    assert len(found) == 5


@pytest.mark.parametrize(
    "text",
    [
        "/home/a/b", "at /home/a/b.", "('/home/a')", "path=/home/a", "~/home/a", "~bob/home", "../home/a", "./home/a",
        "C:\\home\\a", "c:/home", "\\\\server\\home", "file:///home/a", "s3://home/a", "<home\\a>", "x:/home/a"
    ],
)  # fmt: skip
def test_paths_are_taken_out_of_a_sentence(text: str) -> None:
    assert "home" not in without_paths(text)
    assert HIDDEN in without_paths(text)


@pytest.mark.parametrize("text", ["client/3", "and/or", "1 / 2", "server+client/0", "a.b/c"])
def test_other_slashes_stay(text: str) -> None:
    assert without_paths(text) == text
