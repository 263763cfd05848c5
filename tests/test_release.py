"""The files that a release needs agree with pyproject.toml: citation, index page, oldest versions, jobs."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tarfile
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.version import Version

ROOT = Path(__file__).parents[1]
PROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]


def test_this_version_is_in_the_citation_the_changelog_and_the_security_page() -> None:
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text("utf-8"))
    assert {"cff-version", "message", "title", "authors"} <= citation.keys()
    assert citation["cff-version"] == "1.2.0"
    assert citation["version"] == PROJECT["version"]
    assert citation["license"] == PROJECT["license"]
    assert citation["authors"] == PROJECT["authors"]
    released = yaml.safe_load((ROOT / "CITATION.cff").read_text("utf-8"))["date-released"]
    headings = re.findall(r"^## (.*)$", (ROOT / "CHANGELOG.md").read_text("utf-8"), re.MULTILINE)
    assert headings[:2] == ["[Unreleased]", f"[{PROJECT['version']}] - {released}"]
    series = ".".join(PROJECT["version"].split(".")[:2])
    assert f"| {series} | yes |" in (ROOT / "SECURITY.md").read_text("utf-8")


def test_links_of_the_pages_at_the_root_lead_somewhere() -> None:
    for name in ("CONTRIBUTING.md", "SECURITY.md"):
        targets = re.findall(r"\]\(([^)\s]+)\)", (ROOT / name).read_text("utf-8"))
        assert targets
        for target in targets:
            path, _, anchor = target.partition("#")
            text = (ROOT / path).read_text("utf-8")
            headings = {
                re.sub(r"[^\w -]", "", h).strip().lower().replace(" ", "-")
                for h in re.findall(r"^#+ (.*)$", text, re.MULTILINE)
            }
            assert not anchor or anchor in headings, f"{name}: {target}"


# -- the index page -----------------------------------------------------------------------------------------------


def test_the_index_page_keeps_the_text_of_relative_links() -> None:
    code = (
        "import json, runpy, setuptools\n"
        "setuptools.setup = lambda cmdclass, **settings: print(json.dumps(settings))\n"
        "runpy.run_path('setup.py')\n"
    )
    # In a process of its own, because setuptools adds packages of its own to those that can be imported.
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True, timeout=60
    )
    given = json.loads(done.stdout)
    page, readme = given["long_description"], (ROOT / "README.md").read_text("utf-8")
    assert re.search(r"\]\((?!https://)", readme)
    assert not re.search(r"\]\((?!https://)", page)
    assert "![" in readme
    assert "![" not in page
    texts = re.findall(r"(?<!!)\[([^\]]+)\]\([^)\s]+\)", readme)
    assert len(texts) > 20
    assert all(text in page for text in texts)
    assert given["long_description_content_type"] == "text/markdown"
    assert PROJECT["dynamic"] == ["readme"]


# -- the source distribution --------------------------------------------------------------------------------------


def test_a_source_distribution_without_the_generated_pages_is_refused(tmp_path: Path) -> None:
    """Git does not hold them, and an isolated build cannot make them."""
    for name in ("setup.py", "README.md", "docs/notes/attacks/dlg.md"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes((ROOT / name).read_bytes())
    command = [sys.executable, "setup.py", "-q", "sdist"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=600)
    assert done.returncode != 0
    assert "docs/attacks/dlg.md is missing" in done.stderr
    assert "`make docs`" in done.stderr
    (tmp_path / "docs" / "attacks").mkdir()
    (tmp_path / "docs" / "attacks" / "dlg.md").write_text("the page")
    (tmp_path / "MANIFEST.in").write_bytes((ROOT / "MANIFEST.in").read_bytes())
    subprocess.run(command, cwd=tmp_path, capture_output=True, check=True, timeout=600)
    (archive,) = (tmp_path / "dist").glob("*.tar.gz")
    with tarfile.open(archive) as opened:
        assert any(name.endswith("/docs/attacks/dlg.md") for name in opened.getnames())


# -- the oldest versions ------------------------------------------------------------------------------------------


def test_the_oldest_versions_are_the_lower_bounds() -> None:
    lines = (ROOT / ".ci" / "oldest.txt").read_text("utf-8").splitlines()
    pins = dict(line.split("==") for line in lines if not line.startswith("#"))
    wanted = {}
    for line in PROJECT["dependencies"]:
        requirement = Requirement(line)
        (bound,) = requirement.specifier
        assert bound.operator == ">=", line
        wanted[requirement.name] = Version(bound.version)
    assert {name: Version(version) for name, version in pins.items()} == wanted


# -- the jobs -----------------------------------------------------------------------------------------------------


JOBS = ("extras", "wheel", "oldest")


def test_continuous_integration_runs_every_job_and_the_tests_of_the_oldest() -> None:
    lines = (ROOT / ".ci" / "run").read_text("utf-8").splitlines()
    run = [line.strip().removeprefix("job ") for line in lines if line.strip().startswith("job ")]
    assert sorted(run) == sorted(
        ["make check", "make test", "make thorough", *(f".ci/{job}" for job in JOBS)]
    )
    text = (ROOT / ".ci" / "oldest").read_text("utf-8")
    block = re.search(r"^tests=\((.*?)^\)", text, re.MULTILINE | re.DOTALL)
    assert block is not None
    names = re.sub(r"#.*", "", block[1]).split()
    assert len(names) > 10
    for name in names:
        assert len(list((ROOT / "tests").rglob(f"{name}.py"))) == 1, name


@pytest.mark.parametrize("job", [*JOBS, "run"])
def test_a_job_ends_at_its_first_failure(job: str) -> None:
    script = ROOT / ".ci" / job
    assert script.stat().st_mode & 0o100
    subprocess.run(["bash", "-n", str(script)], check=True, timeout=30)
    text = script.read_text("utf-8")
    assert "set -euo pipefail" in text or 'source "$(dirname "$0")/common"' in text
    assert "set -euo pipefail" in (ROOT / ".ci" / "common").read_text("utf-8")


def test_a_job_without_its_packages_fails(tmp_path: Path) -> None:
    """Where pip cannot install, the job ends with an error and runs no test."""
    python = tmp_path / "python"
    python.write_text(
        '#!/bin/sh\n[ "$2" = venv ] || exit 1\nmkdir -p "$3/bin"\ncp "$0" "$3/bin/python"\n', "utf-8"
    )
    python.chmod(0o755)
    copy = tmp_path / "copy"
    (copy / ".ci").mkdir(parents=True)
    for path in (ROOT / ".ci").iterdir():
        (copy / ".ci" / path.name).write_bytes(path.read_bytes())
    for job in JOBS:
        done = subprocess.run(
            ["bash", str(copy / ".ci" / job)],
            env={"PATH": "/usr/bin:/bin", "PYTHON": str(python)},
            capture_output=True, text=True, check=False, timeout=60,
        )  # fmt: skip
        assert done.returncode != 0, job
        assert (copy / f".venv-{job}" / "bin" / "python").exists(), job
