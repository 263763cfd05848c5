"""The extensions of `examples/extras`: found by entry points as `docs/extending.md` declares them, and run."""

from __future__ import annotations

import shutil
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

import fdaudit
from fdaudit import attacks, defenses, protocols
from fdaudit.cli.explain import explained, text
from fdaudit.transcript.manifest import read_manifest

from ..helpers.docs_pages import EXTRAS, blocks
from ..helpers.importable import importable
from ..helpers.results import cells_of
from ..helpers.warm import forked_attackers

_PAGE = "docs/extending.md"
_ROOMS = {"protocols": protocols.REGISTRY, "attacks": attacks.REGISTRY, "defenses": defenses.REGISTRY}


@pytest.fixture(scope="module")
def extras(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, dict[str, str]]]:
    """The package, installed as far as Python can tell; yields its entry points by group."""
    site = tmp_path_factory.mktemp("site")
    shutil.copytree(EXTRAS / "fdaudit_extras", site / "fdaudit_extras")
    project = tomllib.loads((EXTRAS / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert [tomllib.loads(b)["project"] for b in blocks(_PAGE, "toml")] == [project]
    info = site / "fdaudit_extras-0.1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: fdaudit-extras\nVersion: 0.1.0\n")
    groups: dict[str, dict[str, str]] = project["entry-points"]
    lines = [f"[{g}]\n" + "\n".join(f"{k} = {v}" for k, v in e.items()) for g, e in groups.items()]
    (info / "entry_points.txt").write_text("\n".join(lines) + "\n")
    _forget_names()
    with importable(site, "fdaudit_extras"), forked_attackers():
        yield groups
    _forget_names()


def _forget_names() -> None:
    for registry in _ROOMS.values():
        registry.__dict__.pop("_targets", None)


@pytest.fixture(scope="module")
def runs(
    extras: dict[str, dict[str, str]], tmp_path_factory: pytest.TempPathFactory
) -> dict[str, fdaudit.Run]:
    """The package's specs, run; by protocol. `test_docs_imports.py` runs that of import paths."""
    made = {}
    for name in ("one-shot", "signs"):
        text_ = (EXTRAS / f"{name}.yaml").read_text(encoding="utf-8")
        spec: dict[str, Any] = {**yaml.safe_load(text_), "threads": 1, "seed": 4}
        made[spec["protocol"]["name"]] = fdaudit.run(spec, tmp_path_factory.mktemp("runs") / "run")
    return made


def test_the_names_are_found_and_explained(extras: dict[str, dict[str, str]]) -> None:
    for room, registry in _ROOMS.items():
        for name in extras[f"fdaudit.{room}"]:
            assert name in registry.names()
            assert registry.load(name).card.name == name
            assert name in text(explained(name))


def test_the_protocol_and_the_attack_run(runs: dict[str, fdaudit.Run]) -> None:
    run = runs["one-shot"]
    assert run.verify() == []
    cells = cells_of(run, requested=True)
    assert cells["world/confidence"]["status"] in ("run", "inconclusive")
    assert cells["world/confidence"]["controls"]["positive"]["passed"]
    assert cells["server/confidence"]["status"] == "not-applicable"
    accuracy = run.utility.query("line == 'one-shot'")["accuracy"].iloc[-1]
    assert accuracy > 0.3, "an average of two trained models is better than a guess among ten classes"


def test_the_protocol_ends_with_the_same_bytes_again(runs: dict[str, fdaudit.Run], tmp_path: Path) -> None:
    first = runs["one-shot"].directory
    again = fdaudit.run(first / "spec.yaml", tmp_path / "again", seed_from=first)
    assert read_manifest(again.directory)["head"] == read_manifest(first)["head"]


def test_the_defence_acts_before_anything_is_sent(runs: dict[str, fdaudit.Run]) -> None:
    view = runs["fedavg"].view("server")
    sent = view.select(kind="gradient")
    assert len(sent) == 10
    for message in sent:
        tensors = view.tensors(message).values()
        assert all(set(t.unique().tolist()) <= {-1.0, 0.0, 1.0} for t in tensors)
        assert message.bytes_on_wire == (sum(t.numel() for t in tensors) + 7) // 8
        assert message.defenses == ({"name": "sign"},)
        assert "signs" in message.event.reason
