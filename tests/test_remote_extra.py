"""URLs as directories are an extra: without it everything else works, and a URL is one error that names the remedy."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from .helpers.run_cases import finished

PROJECT = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text("utf-8"))["project"]
REMEDY = "Install it: pip install 'fdaudit[remote]'."


def without(modules: tuple[str, ...], code: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    """Run Python code in a process that cannot import some modules."""
    blocked = f"import sys\nsys.modules.update(dict.fromkeys({modules!r}))\n"
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.run(
        [sys.executable, "-c", blocked + code],
        cwd=cwd, env=environment, capture_output=True, text=True, check=False, timeout=300,
    )  # fmt: skip


def command(*arguments: str) -> str:
    return f"import sys\nsys.argv = ['fdaudit', *{arguments!r}]\nfrom fdaudit.cli.app import main\nmain()\n"


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("extra")
    run = finished(folder / "run", attacks=[{"name": "loss-threshold"}])
    shutil.copytree(run, folder / "other")
    return run


NEITHER = ("fsspec", "fdaudit.remote")


@pytest.mark.thorough
def test_the_package_and_its_public_names_need_no_extra(tmp_path: Path) -> None:
    code = "import fdaudit\nfor name in set(fdaudit.__all__) - {'mirrored'}: getattr(fdaudit, name)\n"
    done = without(NEITHER, code, tmp_path)
    assert done.returncode == 0, done.stderr
    done = without(NEITHER, "import fdaudit\nfdaudit.mirrored\n", tmp_path)
    assert done.returncode == 1
    assert "fdaudit.remote" in done.stderr  # the block works


@pytest.mark.thorough
@pytest.mark.parametrize(
    "arguments",
    [
        ("--help",),
        ("list",),
        ("explain", "fedkd"),
        ("calibrate", "--help"),
        ("verify", "RUN"),
        ("ledger", "RUN"),
        ("report", "RUN", "--out", "page.html"),
        ("compare", "RUN", "RUN/../other", "--out", "both"),
        ("evidence", "RUN", "--out", "bundle"),
        ("export-view", "RUN", "server", "--out", "view"),
        ("attack", "RUN", "gap", "--adversary", "world"),
    ],
    ids=lambda a: a[0],
)
def test_commands_on_local_directories_need_no_extra(
    arguments: tuple[str, ...], whole: Path, tmp_path: Path
) -> None:
    done = without(NEITHER, command(*(a.replace("RUN", str(whole)) for a in arguments)), tmp_path)
    assert done.returncode == 0, done.stderr


@pytest.mark.thorough
def test_a_run_needs_no_extra(tmp_path: Path, whole: Path) -> None:
    done = without(NEITHER, command("run", str(whole / "spec.yaml"), "--out", "again", "--json"), tmp_path)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["run"] == "again"


@pytest.mark.thorough
@pytest.mark.parametrize(
    "arguments",
    [
        ("verify", "s3://bucket/run"),
        ("report", "memory://far"),
        ("run", "RUN/spec.yaml", "--out", "file:///tmp/nowhere"),
    ],
    ids=lambda a: a[0],
)
def test_a_url_without_the_extra_is_one_error(
    arguments: tuple[str, ...], whole: Path, tmp_path: Path
) -> None:
    done = without(("fsspec",), command(*(a.replace("RUN", str(whole)) for a in arguments)), tmp_path)
    assert done.returncode == 2
    (line,) = done.stderr.splitlines()
    assert line.endswith(f"is a URL, and needs the package fsspec. {REMEDY}")
    assert done.stdout == ""


def test_mirrored_without_the_extra_is_the_same_error(tmp_path: Path) -> None:
    code = (
        "import fdaudit\n"
        "try:\n    fdaudit.mirrored('memory://far').__enter__()\n"
        "except fdaudit.FdauditError as error:\n    print(error.exit_code, error.remedy)\n"
    )
    assert without(("fsspec",), code, tmp_path).stdout == f"2 {REMEDY}\n"


def test_the_extra_is_declared_and_tests_have_it() -> None:
    extras = PROJECT["optional-dependencies"]
    assert [Requirement(line).name for line in extras["remote"]] == ["fsspec"]
    assert "fsspec" not in {Requirement(line).name for line in PROJECT["dependencies"]}
    assert any(Requirement(line).extras >= {"remote"} for line in extras["dev"])
