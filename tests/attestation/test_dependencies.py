"""The closure of the audit environment: the list that explains it, the lock, and the bill of materials in evidence."""

from __future__ import annotations

import csv
import json
import re
import subprocess
import sys
import tomllib
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement
from packaging.version import Version

import fdaudit
from fdaudit.attestation.check import verify_bundle
from fdaudit.attestation.sbom import ClosurePart, closure, normalised, sbom

from ..helpers.docs_pages import ROOT
from ..helpers.evidence_cases import statement_of
from ..helpers.run_cases import finished

LOCKS = sorted((ROOT / ".lock").glob("*.txt"))
LINE = re.compile(r"([a-z0-9-]+)==([A-Za-z0-9.]+) --hash=sha256:[0-9a-f]{64}")
REQUIRED = {"lpips", "opacus", "pytorch-fid"}


def declared() -> dict[str, Requirement]:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    found = [Requirement(line) for line in project["dependencies"]]
    return {normalised(r.name): r for r in found}


def listed() -> list[dict[str, str]]:
    """Return the rows of the list of distributions."""
    with (ROOT / "docs" / "dependencies.csv").open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def direct() -> dict[str, str]:
    """Return what each distribution that fdaudit requires itself is for."""
    return {
        row["Distribution"]: row["What it is for"] for row in listed() if row["Pulled in by"] == "fdaudit"
    }


def pulled_in() -> dict[str, set[str]]:
    """Return the other distributions, with those that pull them in."""
    return {
        row["Distribution"]: set(row["Pulled in by"].split("; "))
        for row in listed()
        if row["Distribution"] not in direct()
    }


# -- the list -----------------------------------------------------------------------------------------------------


def locked() -> dict[str, str]:
    """Return the versions of the lock of Linux by name."""
    (lock,) = (p for p in LOCKS if p.stem == "linux-x86_64-cp311")
    lines = [line for line in lock.read_text("utf-8").splitlines() if not line.startswith("#")]
    return {match[1]: match[2] for line in lines if (match := LINE.fullmatch(line))}


def as_locked() -> dict[str, ClosurePart]:
    """Return what is installed here at the version of the lock: `make test` takes whatever is newest."""
    pins = locked()
    return {n: p for n, p in closure().items() if p.installed.version.partition("+")[0] == pins.get(n)}


def test_the_list_has_what_the_lock_installs_and_who_pulls_it_in() -> None:
    assert direct().keys() == declared().keys()
    assert sorted([*direct(), *pulled_in()]) == sorted(locked())
    purposes = [row["What it is for"] for row in listed()]
    assert all(purposes)
    parts, checked = as_locked(), 0
    for name, parents in pulled_in().items():
        assert parents - {""}, name
        assert [p for p in parents if p in parts and name not in parts[p].needs] == [], name
        checked += len(parents & parts.keys())
    assert checked > 10
    parts, pins = as_locked(), locked()
    assert len(parts) > 10
    needed = set().union(*(p.needs for p in parts.values()))
    assert sorted(needed - pins.keys()) == []


def test_direct_dependencies_used_in_one_place_are_justified() -> None:
    modules = {
        "dp-accounting": "dp_accounting",
        "pillow": "PIL",
        "pytorch-fid": "pytorch_fid",
        "pyyaml": "yaml",
    }
    modules["scikit-learn"] = "sklearn"
    texts = [
        path.read_text("utf-8")
        for room in ("fdaudit", "attacks", "defenses", "deviations", "protocols", "reports")
        for path in (ROOT / room).rglob("*.py")
    ]
    for name, purpose in direct().items():
        pattern = re.compile(rf"^\s*(?:import|from) {modules.get(name, name)}\b", re.MULTILINE)
        places = sum(bool(pattern.search(text)) for text in texts)
        assert places, f"{name} is not used"
        if places == 1:
            assert "in one place" in purpose or name in REQUIRED, name
    assert declared().keys() >= REQUIRED


# -- the lock -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", LOCKS, ids=lambda p: p.stem)
def test_a_lock_names_each_distribution_once_with_its_hash(path: Path) -> None:
    lines = [line for line in path.read_text("utf-8").splitlines() if not line.startswith("#")]
    assert [line for line in lines if not LINE.fullmatch(line)] == []
    pins = {match[1]: match[2] for line in lines if (match := LINE.fullmatch(line))}
    assert list(pins) == sorted(pins)
    assert len(pins) == len(lines)
    for name, requirement in declared().items():
        assert requirement.specifier.contains(Version(pins[name])), name
    built = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["build-system"]["requires"]
    assert all(Requirement(r).specifier.contains(Version(pins[Requirement(r).name])) for r in built)
    assert "://" not in path.read_text("utf-8")


def make(*arguments: str) -> str:
    done = subprocess.run(
        ["make", "--dry-run", "--always-make", "audit", f"PYTHON={sys.executable}", *arguments],
        cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    return done.stdout + done.stderr


def test_an_audit_installs_by_hashes_or_tells_what_lacks_a_lock(tmp_path: Path) -> None:
    said = make("LOCKED=1")
    installs = [line for line in said.splitlines() if "pip install" in line]
    assert installs
    for line in installs:
        assert "--require-hashes" in line or ("--no-deps" in line and "--no-build-isolation" in line)
    assert ".venv-locked/bin/fdaudit quickstart" in said
    assert "--require-hashes" not in make()
    python = tmp_path / "python"
    python.write_text("#!/bin/sh\necho plan9-mips-cp399\n", encoding="utf-8")
    python.chmod(0o755)
    command = ["make", "audit", "LOCKED=1", f"PYTHON={python}", f"VENV={tmp_path / 'none'}"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "no lock for" in done.stdout
    assert not (tmp_path / "none").exists()


# -- the bill of materials ----------------------------------------------------------------------------------------


def test_the_bill_has_cyclonedx_fields_and_is_the_same_each_time() -> None:
    bill = sbom()
    assert (bill["bomFormat"], bill["specVersion"], bill["version"]) == ("CycloneDX", "1.5", 1)
    components = [bill["metadata"]["component"], *bill["components"]]
    for component in components:
        assert {"type", "name", "version"} <= component.keys()
    references = [c["bom-ref"] for c in components if "bom-ref" in c]
    assert len(references) == len(set(references)) == len(closure())
    assert {d["ref"] for d in bill["dependencies"]} == set(references)
    assert {r for d in bill["dependencies"] for r in d["dependsOn"]} <= set(references)
    (torch,) = (c for c in components if c["name"] == "torch")
    assert torch["version"] == version("torch")
    assert torch["purl"].startswith("pkg:pypi/torch@")
    text = json.dumps(sbom())
    assert text == json.dumps(sbom())
    assert str(Path.home()) not in text
    assert str(ROOT) not in text
    assert sys.prefix not in text


@pytest.mark.thorough
def test_evidence_holds_the_bill_and_covers_it(tmp_path: Path) -> None:
    run = finished(tmp_path / "run", adversaries=["server"], attacks=[], model__params={"widths": [1]})
    bundle = fdaudit.evidence(fdaudit.load(run), tmp_path / "bundle")
    path = bundle / "sbom.cdx.json"
    assert json.loads(path.read_bytes()) == sbom()
    subjects: list[dict[str, Any]] = statement_of(bundle)["subject"]
    assert "sbom.cdx.json" in [s["name"] for s in subjects]
    assert "sbom.cdx.json" in [f["path"] for f in json.loads((bundle / "files.json").read_bytes())["files"]]
    assert verify_bundle(bundle).findings == []
    path.write_bytes(path.read_bytes().replace(b"torch", b"torsh"))
    assert any("sbom.cdx.json is not" in finding for finding in verify_bundle(bundle).findings)
