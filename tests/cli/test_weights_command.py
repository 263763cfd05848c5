"""`fdaudit weights`: what is here, what is missing, and whether given files are the pinned ones."""

from __future__ import annotations

import hashlib
import json
import re
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fdaudit.cli import machine
from fdaudit.isolation import attacker
from fdaudit.isolation.confinement import LAYERS
from fdaudit.metrics.images import weights

from ..helpers import warm
from ..helpers.cli_cases import Shell
from ..helpers.run_cases import finished

ALEXNET = weights.PINS["alexnet"].file


@pytest.fixture(autouse=True)
def small_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Pin small stand-ins in place of the real files; `here` is the directory of FDAUDIT_WEIGHTS."""
    pins = {
        name: replace(pin, sha256=hashlib.sha256(name.encode()).hexdigest())
        for name, pin in weights.PINS.items()
        if not pin.package
    }
    monkeypatch.setattr(weights, "PINS", pins)
    here = tmp_path / "here"
    here.mkdir()
    monkeypatch.setenv("FDAUDIT_WEIGHTS", str(here))
    monkeypatch.setenv("TORCH_HOME", str(tmp_path / "torch"))
    return here


def test_the_list_says_what_is_missing_present_or_wrong(shell: Shell, small_files: Path) -> None:
    code, out, err = shell("weights")
    assert (code, err) == (0, "")
    for pin in weights.PINS.values():
        assert f"{pin.file}: missing" in out
        assert pin.sha256 in out
        assert pin.source in out
    assert str(small_files) in out
    assert "FDAUDIT_WEIGHTS" in out
    (small_files / ALEXNET).write_bytes(b"alexnet")
    code, out, _ = shell("weights", "--json")
    states = {e["file"]: e["state"] for e in json.loads(out)}
    assert code == 0
    assert states[ALEXNET] == "present"
    (small_files / ALEXNET).write_bytes(b"something else")
    code, out, _ = shell("weights", "--json")
    assert code == 1
    assert {e["file"]: e["state"] for e in json.loads(out)}[ALEXNET] == "wrong digest"


def test_given_files_are_right_wrong_or_unknown(shell: Shell, tmp_path: Path) -> None:
    renamed, wrong, other = tmp_path / "mine.pth", tmp_path / ALEXNET, tmp_path / "other.pth"
    renamed.write_bytes(b"alexnet")
    code, out, _ = shell("weights", str(renamed))
    assert code == 0
    assert "right" in out
    assert f"rename it to {ALEXNET}" in out
    wrong.write_bytes(b"damaged")
    other.write_bytes(b"damaged")
    code, out, _ = shell("weights", str(wrong), str(other))
    assert code == 1
    first, second = out.splitlines()
    assert first.startswith(f"wrong digest  {wrong}")
    assert second.startswith("unknown")


def test_a_file_that_is_not_there_is_refused(shell: Shell, tmp_path: Path) -> None:
    code, _, err = shell("weights", str(tmp_path / "none.pth"))
    assert code == 2
    assert "none.pth" in err
    assert "cannot be read" in err


def test_an_unavailable_figure_points_to_the_command() -> None:
    with pytest.raises(weights.WeightsUnavailableError, match="`fdaudit weights`"):
        weights.load_weights("alexnet")


def test_a_file_that_comes_with_a_package_is_looked_for_there(monkeypatch: pytest.MonkeyPatch) -> None:
    pin = weights.Pin(file="a.pth", sha256="0", metric="LPIPS", source="nowhere", package="lpips")
    monkeypatch.setattr(weights, "PINS", {"a": pin})
    assert [p.parts[-3:] for p in weights.places_of("a")] == [("lpips", "weights", "v0.1")]
    monkeypatch.setattr(weights, "PINS", {"a": replace(pin, package="no_such_package")})
    assert weights.places_of("a") == []


# -- `fdaudit doctor` says what this machine offers ----------------------------------------------------------------


@pytest.mark.thorough
def test_it_tries_the_layers_of_confinement(capsys: pytest.CaptureFixture[str]) -> None:
    with warm.forked_attackers():
        machine.doctor(as_json=True)
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    said = found["confinement"]
    assert {*said["held"], *said["missing"]} == {*LAYERS, "time"}
    assert found["cores"] >= 1
    assert found["disk_free_gb"] > 0
    assert {"memory_gb", "accelerator", "data", "weights", "weights_missing"} <= found.keys()


def test_it_says_which_layer_is_missing_and_why(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(attacker, "_without", ("files",))
    with warm.forked_attackers():
        machine.doctor()
    lines = capsys.readouterr().out.splitlines()
    assert any(re.fullmatch(r"not confined.*\bfiles:.*", line) for line in lines)
    assert "files" not in lines[0]
    assert all(len(line.split()) > 1 for line in lines)


# -- `fdaudit compare` on a folder of runs, as the quickstart and sweeps write them --------------------------------


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return finished(tmp_path_factory.mktemp("folder") / "run", attacks=[])


@pytest.mark.usefixtures("forked_processes")
@pytest.mark.parametrize("below", [".", "runs"])
def test_a_folder_of_runs_is_compared_run_by_run(below: str, original: Path, shell: Shell) -> None:
    for name in ("b", "a"):
        shutil.copytree(original, shell.home / "folder" / below / name)
    (shell.home / "folder" / "shared").mkdir()
    shell.told("compare", "folder")
    rows = json.loads((shell.home / "comparison" / "comparison.json").read_bytes())["runs"]
    assert [row["name"] for row in rows] == ["a", "b"]


def test_a_folder_and_a_run_are_compared_together(original: Path, shell: Shell) -> None:
    shutil.copytree(original, shell.home / "folder" / "a")
    shutil.copytree(original, shell.home / "b")
    shell.told("compare", "b", "folder")
    rows = json.loads((shell.home / "comparison" / "comparison.json").read_bytes())["runs"]
    assert [row["name"] for row in rows] == ["b", "a"]


def test_a_folder_of_one_run_stands_alone(original: Path, shell: Shell) -> None:
    shutil.copytree(original, shell.home / "folder" / "a")
    assert "stands alone" in shell.refused("compare", "folder")


@pytest.mark.usefixtures("forked_processes")
def test_a_folder_without_runs_is_refused(shell: Shell) -> None:
    (shell.home / "folder" / "empty").mkdir(parents=True)
    assert "folder" in shell.refused("compare", "folder", "folder")


# -- `fdaudit design` ----------------------------------------------------------------------------------------------


def test_it_tells_the_pairs_the_commitment_and_what_goes_to_whom(shell: Shell) -> None:
    out, err = shell.told("design", "digits", "--sites", 3, "--out", "D")
    assert err == ""
    lines = out.splitlines()
    assert lines[0].split() == ["site", "records", "pairs", "left", "out"]
    assert [line.split() for line in lines[1:4]] == [[f"client/{k}", "479", "119", "119"] for k in range(3)]
    told = {line.split()[0]: line for line in lines[5:]}
    stated = json.loads((shell.home / "D" / "design.json").read_bytes())
    assert told["commitment"].split()[1] == stated["commitment"]
    assert "D/design.json" in told["publish"]
    assert "D/sites: client-K.npz" in told["hand"]
    assert "D/truth" in told["keep"]
    assert "images" not in told


def test_it_says_when_classes_give_fewer_pairs_and_when_there_are_no_images(shell: Shell) -> None:
    (shell.home / "own").mkdir()
    for k, y in enumerate(([0, 0, 0, 1, 1, 1], [0, 0, 1, 1])):
        np.savez(shell.home / "own" / f"client-{k}.npz", y=y)
    out, _ = shell.told("design", "own", "--fraction", 1, "--out", "D")
    lines = out.splitlines()
    assert lines[1].split()[:4] == ["client/0", "6", "2", "2"]
    assert "1 fewer" in lines[1]
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
