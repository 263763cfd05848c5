"""The audit of the lock file, and the bill of materials of a release, with fake tools and the real ones."""

from __future__ import annotations

import importlib.util
import json
import shutil
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

ROOT = Path(__file__).parents[1]
CLEAN = {"name": "numpy", "version": "2.3.0", "vulns": []}
SKIPPED = {"name": "torch", "skip_reason": "Dependency not found on PyPI and could not be audited"}
VULNERABLE = {
    "name": "pillow",
    "version": "10.0.0",
    "vulns": [
        {"id": "PYSEC-2023-175", "fix_versions": ["10.0.1"], "aliases": []},
        {"id": "GHSA-1", "fix_versions": [], "aliases": []},
    ],
}
OFFLINE = "requests.exceptions.ConnectionError: HTTPSConnectionPool(host='pypi.org', port=443): Max retries exceeded"


def script(name: str, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """A script of `.lock/`, which is no package."""
    monkeypatch.syspath_prepend(str(ROOT / ".lock"))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    spec = importlib.util.spec_from_file_location(f"lock_{name}", ROOT / ".lock" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def fake(folder: Path, name: str, code: int, out: str = "", errors: str = "") -> str:
    """A program that prints and ends."""
    path = folder / name
    path.write_text(
        f"#!{sys.executable}\nimport sys\n"
        f"sys.stdout.write({out!r})\nsys.stderr.write({errors!r})\nsys.exit({code})\n"
    )
    path.chmod(0o755)
    return str(path)


def report(*entries: dict[str, Any]) -> str:
    return json.dumps({"dependencies": entries, "fixes": []})


CASES: dict[str, tuple[int, str, str, int, str]] = {
    "clean": (0, report(CLEAN, CLEAN), "No known vulnerabilities found", 0, "2 packages have no known"),
    "vulnerable": (1, report(CLEAN, VULNERABLE), "Found 2", 1, "pillow 10.0.0 is vulnerable: PYSEC-2023-175"),
    "vulnerable, whatever the exit code": (0, report(VULNERABLE), "", 1, "GHSA-1, fixed in no version yet"),
    "no network": (1, "", OFFLINE, 0, "not looked up: no database"),
    "an index without vulnerabilities": (0, report(SKIPPED, SKIPPED), "", 0, "not looked up: the index"),
    "an index that lacks some": (0, report(CLEAN, SKIPPED), "", 0, "not looked up: torch"),
    "vulnerable and skipped": (1, report(SKIPPED, VULNERABLE), "", 1, "PYSEC-2023-175, fixed in 10.0.1"),
    "a wrong option": (2, "", "usage: pip-audit [-h]", 1, "pip-audit failed with exit code 2"),
    "a crash": (1, "", "KeyError: 'x'", 1, "pip-audit failed with exit code 1: KeyError"),
    "half an answer": (1, report(CLEAN)[:-4], "", 1, "pip-audit failed"),
    "clean, but failed": (1, report(CLEAN), "odd", 1, "pip-audit failed"),
}


@pytest.mark.parametrize("case", CASES)
def test_vulnerable_packages_fail_and_an_absent_database_does_not(
    case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, errors, expected, line = CASES[case]
    module = script("audit", monkeypatch)
    program = fake(tmp_path, "pip-audit", code, out, errors)
    monkeypatch.setattr(module, "tool", lambda name: program)
    assert module.main() == expected
    assert line in capsys.readouterr().out


def test_a_missing_tool_is_said(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    module = script("audit", monkeypatch)
    monkeypatch.setattr(module, "tool", lambda name: None)
    assert module.main() == 0
    assert "pip install pip-audit" in capsys.readouterr().out


def test_a_bill_without_a_locked_package_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    module = script("bom", monkeypatch)
    lock = module.locks()[0]
    components = [
        {
            "name": name,
            "version": version,
            "externalReferences": [{"hashes": [{"alg": "SHA-256", "content": sha256}]}],
        }
        for name, version, sha256 in sorted(module.pinned(lock))
    ]
    assert len(components) > 50
    assert module.listed({"components": components}) == module.pinned(lock)
    (tmp_path / "bom.json").write_text(json.dumps({"components": components[1:]}))
    program = tmp_path / "cyclonedx-py"
    program.write_text(
        f"#!{sys.executable}\nimport shutil, sys\n"
        f"shutil.copyfile({str(tmp_path / 'bom.json')!r}, sys.argv[sys.argv.index('--output-file') + 1])\n"
    )
    program.chmod(0o755)
    monkeypatch.setattr(module, "tool", lambda name: str(program))
    with pytest.raises(SystemExit, match=components[0]["name"]):
        module.write(lock, tmp_path / "dist")


@pytest.mark.thorough
@pytest.mark.skipif(shutil.which("cyclonedx-py") is None, reason="cyclonedx-bom is not installed")
def test_the_bill_of_materials_lists_every_locked_package(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = script("bom", monkeypatch)
    for lock in module.locks():
        bom = json.loads(module.write(lock, tmp_path / "dist").read_bytes())
        assert (bom["bomFormat"], bom["specVersion"]) == ("CycloneDX", "1.6")
        assert bom["metadata"]["component"]["name"] == "fdaudit"
        assert module.listed(bom) == module.pinned(lock)
        assert all(c["purl"] == f"pkg:pypi/{c['name']}@{c['version']}" for c in bom["components"])
