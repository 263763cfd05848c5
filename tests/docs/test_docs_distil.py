"""The protocol of `docs/extending.md`: the page's own text keeps the guarantees, is audited, and resumes."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

import fdaudit
from fdaudit.cli.explain import explained, text
from fdaudit.transcript.manifest import read_manifest

from ..helpers.docs_pages import blocks, page
from ..helpers.importable import importable

_PAGE = "docs/extending.md"
_NAME = "import:fdaudit_extras.distil:Distil"


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The page's file, on the path; yields its text."""
    site = tmp_path_factory.mktemp("site")
    (text_,) = (b for b in blocks(_PAGE, "python") if b.startswith("# fdaudit_extras/distil.py"))
    (site / "fdaudit_extras").mkdir()
    (site / "fdaudit_extras" / "__init__.py").touch()
    (site / "fdaudit_extras" / "distil.py").write_text(text_, encoding="utf-8")
    with importable(site, "fdaudit_extras"):
        yield text_


def spec(**changes: Any) -> dict[str, Any]:
    (block,) = (b for b in blocks(_PAGE, "yaml") if b.startswith("# distil.yaml"))
    return {**yaml.safe_load(block), "threads": 1, "seed": 4, **changes}


def test_the_page_shows_all_that_is_public_in_at_most_40_lines(source: str) -> None:
    kit = importlib.import_module("fdaudit.federation.kit")
    assert [name for name in kit.__all__ if f"`{name}`" not in page(_PAGE)] == []
    assert sorted(kit.__all__) == sorted(n for n in vars(kit) if not n.startswith("_"))
    assert len(source.splitlines()) <= 40


def test_it_is_explained_without_a_claim_about_its_messages(source: str) -> None:
    found = explained(_NAME)
    shown = text(found)
    assert "learns their mean" in shown
    assert "distil.py, line" in shown
    assert "docs/protocols" not in shown
    assert "sees" not in found.plain()
    assert "message is sent" not in shown


def test_an_interrupted_run_ends_with_the_same_bytes(source: str, tmp_path: Path) -> None:
    asked = spec(attacks=[], adversaries=["server"])
    asked["protocol"]["params"]["rounds"] = 3
    whole = fdaudit.run(asked, tmp_path / "whole")

    def stop(what: str, done: int, total: int) -> None:
        if (what, done) == ("distil", 1):
            raise KeyboardInterrupt

    cut = tmp_path / "cut"
    with pytest.raises(KeyboardInterrupt):
        fdaudit.run(asked, cut, seed_from=whole.directory, tick=stop)
    assert not (cut / "manifest.json").exists()
    resumed = fdaudit.run(asked, cut, seed_from=whole.directory, resume=True)
    assert resumed.verify() == []
    assert read_manifest(cut)["head"] == read_manifest(whole.directory)["head"]
    rows = {
        (r["kind"], r["direction"], r["private"])
        for r in resumed.result.plain()["exposure"]
        if r["party"] == "world"
    }
    assert rows == {("model_parameters", "received", True)}


@pytest.mark.thorough
def test_every_attack_by_every_adversary_ends_without_a_failure(source: str, tmp_path: Path) -> None:
    run = fdaudit.run(spec(), tmp_path / "run")
    cells = run.result.plain()["cells"]
    assert {c["adversary"] for c in cells} == set(spec()["adversaries"])
    assert {c["id"]: c["reason"] for c in cells if c["status"] == "failed"} == {}
    assert sum(c["status"] in ("run", "inconclusive") for c in cells) >= 20
