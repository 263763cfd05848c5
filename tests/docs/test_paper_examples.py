"""The baselines' specs with the papers' settings: all are there, and can be planned where their data is at hand."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from fdaudit.planning.simulated import simulated_case
from fdaudit.spec.schema import load_spec

from ..helpers.docs_pages import ROOT
from ..helpers.run_cases import known

PAPER = sorted((ROOT / "examples" / "paper").glob("*.yaml"))
MNIST = [p for p in PAPER if load_spec(p).dataset.name == "mnist"]


def test_each_protocol_has_the_papers_settings_and_a_reduced_version() -> None:
    names = {p.name for p in PAPER}
    for protocol in ("ds-fl", "feded", "fedkd", "fedmd", "fkd", "pls"):
        assert {f"{protocol}-mnist.yaml", f"{protocol}-mnist-small.yaml"} <= names


@pytest.mark.parametrize("path", PAPER, ids=lambda p: p.stem)
def test_each_says_what_it_is_and_leaves_the_seed_open(path: Path) -> None:
    spec = load_spec(path)
    text = path.read_text(encoding="utf-8")
    assert text.startswith("# ")
    assert "20" in text.split("fdaudit:")[0], "the head names no paper"
    assert spec.name != "audit"
    assert spec.seed is None
    assert path.stem.endswith("-small") or path.with_stem(f"{path.stem}-small") in PAPER


@pytest.mark.data
@pytest.mark.skipif(not os.environ.get("FDAUDIT_DATA"), reason="FDAUDIT_DATA is not set")
@pytest.mark.parametrize("path", MNIST, ids=lambda p: p.stem)
def test_those_on_mnist_can_be_planned(path: Path) -> None:
    case = simulated_case(load_spec(path), known(1))
    assert len(case.public) or not case.protocol.card.needs_public
