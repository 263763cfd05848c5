"""`fdaudit weights`: what is here, what is missing, and whether given files are the pinned ones."""

from __future__ import annotations

import hashlib
import json
from dataclasses import replace
from pathlib import Path

import pytest

from fdaudit.metrics.images import weights

from ..helpers.cli_cases import Shell

ALEXNET = weights.PINS["alexnet"].file


@pytest.fixture
def shell(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Shell:
    return Shell(monkeypatch, capsys, tmp_path / "home")


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


def test_the_list_says_what_is_missing_and_where_it_goes(shell: Shell, small_files: Path) -> None:
    code, out, err = shell("weights")
    assert (code, err) == (0, "")
    for pin in weights.PINS.values():
        assert f"{pin.file}: missing" in out
        assert pin.sha256 in out
        assert pin.source in out
    assert str(small_files) in out
    assert "FDAUDIT_WEIGHTS" in out


def test_the_list_tells_present_from_wrong(shell: Shell, small_files: Path) -> None:
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
    with pytest.raises(weights.WeightsUnavailableError, match="`fdaudit weights` says where it comes from"):
        weights.load_weights("alexnet")


def test_a_file_that_comes_with_a_package_is_looked_for_there(monkeypatch: pytest.MonkeyPatch) -> None:
    pin = weights.Pin(file="a.pth", sha256="0", metric="LPIPS", source="nowhere", package="lpips")
    monkeypatch.setattr(weights, "PINS", {"a": pin})
    assert [p.parts[-3:] for p in weights.places_of("a")] == [("lpips", "weights", "v0.1")]
    monkeypatch.setattr(weights, "PINS", {"a": replace(pin, package="no_such_package")})
    assert weights.places_of("a") == []
