"""The page on designs: its commands and its program are executed as printed, and its tables name what there is."""

from __future__ import annotations

import json
import textwrap
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fdaudit.planning.brought import read_records

from ..helpers.cli_cases import Shell
from ..helpers.docs_pages import page, table

_PAGE = "docs/design.md"


def steps() -> list[tuple[str, str]]:
    """The fenced blocks, also those inside lists: language and text."""
    found = []
    language, body = None, list[str]()
    for line in page(_PAGE).splitlines():
        if not line.strip().startswith("```"):
            body.append(line)
        elif language is None:
            language, body = line.strip()[3:], []
        else:
            found.append((language, textwrap.dedent("\n".join(body))))
            language = None
    return found


def hospitals(folder: Path) -> None:
    folder.mkdir()
    draws = np.random.default_rng(0)
    for name, count in (("client-0", 40), ("client-1", 30), ("test", 10)):
        x = draws.integers(0, 256, (count, 6, 6), dtype=np.uint8)
        np.savez(folder / f"{name}.npz", x=x, y=np.arange(count) % 2)


def test_the_commands_do_what_the_page_says(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    hospitals(shell.home / "hospitals")
    languages = [language for language, _ in steps()]
    assert languages == ["bash", "python", "bash"]
    (_, first), (_, program), (_, second) = steps()
    for line in (first, second):
        shell.told(*line.split()[1:])
    assert sorted(p.name for p in (shell.home / "OWN" / "sites").glob("client*")) == [
        "client-0.json",
        "client-1.json",
    ]

    monkeypatch.chdir(shell.home / "DESIGN" / "sites")
    scope: dict[str, Any] = {"__name__": "snippet"}
    exec(compile(program, _PAGE, "exec"), scope)
    key = read_records(*(shell.home / "DESIGN" / "truth" / f"records.{end}" for end in ("json", "npz")))
    own = key.clients["client/0"]
    rows = own.records[scope["keep"]]
    assert set(rows.tolist()) == set(own.records.tolist()) - set(own.non_members.tolist())
    assert key.x is not None
    assert np.array_equal(scope["x"], key.x[rows, 0].numpy())
    assert np.array_equal(scope["y"], key.y[rows].numpy())


def test_the_tables_name_the_files_and_the_fields(shell: Shell) -> None:
    shell.told("design", "digits", "--sites", 2, "--public", 0.1, "--out", "DESIGN")
    folder = shell.home / "DESIGN"
    listed = table(_PAGE, "## The parts of a design")
    found = {
        p.relative_to(folder).as_posix().replace("client-0", "client-K") for p in folder.glob("sites/*-0.*")
    }
    assert set(listed) == found | {"design.json", "truth/"} | {p.name for p in folder.glob("*.npz")}
    text = page(_PAGE)
    value = json.loads((folder / "truth" / "records.json").read_bytes())
    named = [f"`{name}`" for name in (*value, *value["clients"]["client/0"], *value["design"])]
    assert [name for name in named if name not in text] == []


def test_the_table_of_options_is_complete(shell: Shell) -> None:
    shown, _ = shell.told("design", "--help")
    options = {word for word in shown.replace("[", " ").split() if word.startswith("--")}
    assert options - {"--out", "--json", "--help"} == {
        w.strip("`,.") for w in page(_PAGE).split() if w.startswith("`--")
    } - {"--truth"}
