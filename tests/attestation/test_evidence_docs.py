"""What the pages on evidence and continuous integration say is so: fields, files, the check by hand, the workflow."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path
from typing import Any

import pytest
import typer
import yaml

import fdaudit
from fdaudit.attestation.bundle import PARTS
from fdaudit.attestation.statement import PREDICATE_TYPE
from fdaudit.cli.app import app
from fdaudit.spec.schema import GateSpec

from ..helpers.docs_pages import blocks, page, table
from ..helpers.evidence_cases import envelope_of, keypair, statement_of
from ..helpers.run_cases import finished

EVIDENCE, CI = "docs/evidence.md", "docs/ci.md"


class Made:
    """A run, its evidence and the public key, all in one directory."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        attacks = [{"name": "loss-threshold"}]
        self.run = finished(folder / "run", attacks=attacks, gates={"membership_auc": 1.0})
        private, _ = keypair(folder)
        self.bundle = fdaudit.evidence(fdaudit.load(self.run), folder / "evidence", sign=private)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Made:
    return Made(tmp_path_factory.mktemp("docs"))


# -- evidence -----------------------------------------------------------------------------------------------------


def test_the_page_lists_what_a_bundle_and_a_vault_hold_and_the_predicate(made: Made) -> None:
    rows = {row.rstrip("/") for row in table(EVIDENCE, "## What is in it")}
    assert rows == {p.name for p in made.bundle.iterdir()}
    assert set(table(EVIDENCE, "## The envelope")) == set(envelope_of(made.bundle))
    predicate = statement_of(made.bundle)["predicate"]
    rows = table(EVIDENCE, "## The statement")
    assert set(rows) == set(predicate)
    for name, value in predicate.items():
        row = value[0] if isinstance(value, list) else value
        for field in row if isinstance(row, dict) else ():
            assert f"`{field}`" in rows[name][0], f"{name}.{field}"
    assert f"`{PREDICATE_TYPE}`" in page(EVIDENCE)
    named = {n.strip("` /") for row in table(EVIDENCE, "## The vault") for n in row.split(",")}
    assert named == {p.name for p in (made.run / "vault").iterdir()} - {".gitignore"}
    parts = {row.split("/")[0] for row in table("docs/transcript.md", "## A run's directory")}
    assert parts - {"vault"} == PARTS


# -- continuous integration ----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def workflow() -> dict[str, Any]:
    (text,) = blocks(CI, "yml")
    value = yaml.safe_load(text)
    assert isinstance(value, dict)
    return value


def _steps(workflow: dict[str, Any]) -> list[dict[str, Any]]:
    (job,) = workflow["jobs"].values()
    steps: list[dict[str, Any]] = job["steps"]
    return steps


def test_every_command_of_the_workflow_exists_with_its_options(workflow: dict[str, Any]) -> None:
    group = typer.main.get_command(app)
    lines = [line for step in _steps(workflow) for line in step.get("run", "").splitlines()]
    found = [shlex.split(line) for line in lines if line.startswith("fdaudit ")]
    assert [words[1] for words in found] == ["run", "evidence", "verify"]
    for _, name, *arguments in found:
        command = group.commands[name]  # type: ignore[attr-defined]
        command.make_context(name, list(arguments))
        with pytest.raises(Exception, match="--no-such-option"):
            command.make_context(name, [*arguments, "--no-such-option"])


def test_the_workflow_runs_the_spec_that_the_page_shows_and_keeps_what_it_writes(
    workflow: dict[str, Any],
) -> None:
    (text,) = blocks(CI, "yaml")
    assert set(fdaudit.load_spec(yaml.safe_load(text)).gates.model_dump(exclude_none=True)) == {
        "epsilon",
        "membership_auc",
    }
    steps = _steps(workflow)
    words = {w for step in steps for w in shlex.split(step.get("run", ""), comments=True)}
    kept = [s["with"]["path"] for s in steps if s.get("uses", "").startswith("actions/upload-artifact@")]
    assert kept == ["audit/run/report/index.html", "audit/evidence"]
    assert {"audit.yaml", "audit/run", "audit/evidence"} <= words
    assert all((path in words) or (path.removesuffix("/report/index.html") in words) for path in kept)


def test_the_workflow_goes_on_after_a_failed_gate_and_shows_no_secret(workflow: dict[str, Any]) -> None:
    steps = _steps(workflow)
    (audit,) = [n for n, s in enumerate(steps) if s.get("run", "").startswith("fdaudit run ")]
    assert "continue-on-error" not in steps[audit]
    assert {s.get("if") for s in steps[audit + 1 :]} == {"${{ !cancelled() }}"}
    assert len(steps) - audit - 1 == 4
    assert workflow["permissions"] == {"contents": "read"}
    (with_secrets,) = (s["name"] for s in steps if "secrets." in json.dumps(s))
    assert "sign" in with_secrets
    assert not any(re.search(r"\$\{\{", s.get("run", "")) for s in steps), "nothing is pasted into a script"


def test_the_page_lists_the_gates() -> None:
    assert [name for name in GateSpec.model_fields if f"`{name}`" not in page(CI)] == []
