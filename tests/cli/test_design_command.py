"""`fdaudit design`: what it prints, and that a refusal is one line and writes nothing."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from ..helpers.cli_cases import Shell


@pytest.fixture
def shell(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Shell:
    return Shell(monkeypatch, capsys, tmp_path / "home")


def test_it_tells_the_pairs_the_commitment_and_what_goes_to_whom(shell: Shell) -> None:
    out, err = shell.told("design", "digits", "--sites", 3, "--out", "D")
    assert err == ""
    lines = out.splitlines()
    assert lines[0].split() == ["site", "records", "pairs", "left", "out"]
    assert [line.split() for line in lines[1:4]] == [[f"client/{k}", "479", "119", "119"] for k in range(3)]
    told = {line.split()[0]: line for line in lines[5:]}
    stated = json.loads((shell.home / "D" / "design.json").read_bytes())
    assert told["commitment"].split()[1] == stated["commitment"]
    assert "D/design.json, before the training" in told["publish"]
    assert "D/sites: client-K.npz and client-K.json to site K" in told["hand"]
    assert "D/truth" in told["keep"]
    assert "images" not in told


def test_it_says_when_classes_give_fewer_pairs_and_when_there_are_no_images(shell: Shell) -> None:
    (shell.home / "own").mkdir()
    for k, y in enumerate(([0, 0, 0, 1, 1, 1], [0, 0, 1, 1])):
        np.savez(shell.home / "own" / f"client-{k}.npz", y=y)
    out, _ = shell.told("design", "own", "--fraction", 1, "--out", "D")
    lines = out.splitlines()
    assert lines[1].split()[:4] == ["client/0", "6", "2", "2"]
    assert "1 fewer than asked" in lines[1]
    assert "fewer" not in lines[2]
    assert "client-K.npz" not in out
    assert lines[-1].split()[0] == "images"
    assert "labels only" in lines[-1]


def test_json_has_the_same_figures(shell: Shell) -> None:
    found = shell.json(
        "design", "digits", "--sites", 2, "--fraction", 0.1, "--partition", "iid", "--out", "D"
    )
    stated = json.loads((shell.home / "D" / "design.json").read_bytes())
    assert found == {
        "design": "D",
        "commitment": stated["commitment"],
        "clients": {
            f"client/{k}": {"records": r, "pairs": 35, "asked": 35} for k, r in enumerate((719, 718))
        },
    }


@pytest.mark.parametrize(
    "arguments",
    [
        ("digits", "--out", "D"),
        ("digits", "--sites", "0", "--out", "D"),
        ("digits", "--sites", "2", "--fraction", "2", "--out", "D"),
        ("digits", "--sites", "2", "--alpha", "1", "--out", "D"),
        ("digits", "--sites", "2", "--partition", "by-class", "--out", "D"),
        ("nowhere", "--sites", "2", "--out", "D"),
        ("digits", "--sites", "2", "--out", "."),
    ],
)
def test_a_refusal_is_one_line_and_writes_nothing(arguments: tuple[str, ...], shell: Shell) -> None:
    field, value = shell.refused("design", *arguments).removeprefix("fdaudit: ").split(": ", 1)
    assert field in ("sites", "fraction", "partition.alpha", "partition.classes_per_client", "DATA", "out")
    assert value.count(". ") >= 1
