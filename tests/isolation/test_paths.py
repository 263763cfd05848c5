"""What attack processes may read: packages, and nothing that only looks like one."""

from __future__ import annotations

import sys
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest

from fdaudit.isolation import paths


@pytest.fixture
def source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A source directory on the search path, as the working directory of `python -m` is."""
    folder = tmp_path / "work"
    folder.mkdir()
    monkeypatch.setattr(sys, "path", [*sys.path, str(folder)])
    return folder


def made(place: Path, *files: str) -> Path:
    for file in files:
        (place / file).parent.mkdir(parents=True, exist_ok=True)
        (place / file).write_text("")
    return place


def opened(place: Path) -> bool:
    """Whether a path, or a directory above it, is readable."""
    return any(place.resolve().is_relative_to(Path(path)) for path in paths.readable())


def test_a_package_and_a_module_of_a_source_directory_are_readable(source: Path) -> None:
    made(source, "mine/__init__.py", "mine/part.py", "single.py", "notes.txt", "plain/part.py")
    assert opened(source / "mine" / "part.py")
    assert opened(source / "single.py")
    assert not opened(source / "notes.txt")
    assert not opened(source / "plain" / "part.py")


@pytest.mark.parametrize("name", ["audit", "audit.attack"])
def test_a_directory_that_a_registered_package_shares_its_name_with_is_not(
    name: str, source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A namespace package: `audit/` in the working directory, where the quickstart writes its runs."""
    made(source / "audit", "fedavg/manifest.json", "fedavg/vault/secrets.json", "notes.txt")
    point = EntryPoint("hostile", f"{name}:Hostile", "fdaudit.attacks")
    monkeypatch.setattr(paths, "entry_points", lambda group: [point] if group == point.group else [])
    assert not opened(source / "audit" / "fedavg" / "vault" / "secrets.json")
    assert not opened(source / "audit" / "notes.txt")


@pytest.mark.parametrize("mark", ["manifest.json", "deep/below/vault/secrets.json", "record/messages.jsonl"])
def test_a_package_that_holds_a_run_is_not_readable(
    mark: str, source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made(source / "mine", "__init__.py", mark)
    point = EntryPoint("hostile", "mine.attack:Hostile", "fdaudit.attacks")
    monkeypatch.setattr(paths, "entry_points", lambda group: [point])
    assert not opened(source / "mine" / mark)
    assert not opened(source / "mine" / "__init__.py")


def test_an_editable_package_that_holds_a_run_is_not_readable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made(tmp_path / "mine", "__init__.py", "runs/one/manifest.json")
    finder = type(sys)("__editable___mine_finder")
    finder.MAPPING = {"mine": str(tmp_path / "mine")}  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, finder.__name__, finder)
    assert not opened(tmp_path / "mine" / "runs" / "one" / "manifest.json")


@pytest.mark.parametrize("place", ["/usr/src/app", "/usr/games", "/usr/local/src", "/home", "/srv", "/opt"])
def test_a_directory_of_the_system_where_users_work_is_not_readable(place: str) -> None:
    assert not opened(Path(place))


def test_what_programs_need_is_readable() -> None:
    import numpy
    import torch

    for file in (torch.__file__, numpy.__file__, sys.executable, __import__("fdaudit").__file__, "/bin/sh"):
        assert opened(Path(file))
