"""What is installed: every package and data file, under one name, quick to ask for help."""

from __future__ import annotations

import ast
import importlib
import importlib.metadata
import importlib.util
import json
import os
import shutil
import subprocess
import sys
import tomllib
import zipfile
from functools import cache
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[1]
PROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
SETUPTOOLS: dict[str, Any] = PROJECT["tool"]["setuptools"]
ROOMS = ("attacks", "defenses", "deviations", "protocols", "reports")
OF_EXTRAS = ("flwr", "nvflare", "ray", "tokenizers", "transformers")
"""Packages that only an extra installs; a test that needs one is skipped where it is absent."""
TOP_LEVEL = {"fdaudit", *ROOMS, "tests", "docs", "examples", "benchmarks"}


def sources() -> dict[str, Path]:
    """Every package of the tree by its dotted name, found by its `__init__.py`."""
    found = {}
    for package, folder in SETUPTOOLS["package-dir"].items():
        for init in (ROOT / folder).rglob("__init__.py"):
            below = init.parent.relative_to(ROOT / folder).parts
            found[".".join((package, *below))] = init.parent
    return found


def data_files() -> set[str]:
    """Every file that pyproject.toml declares as package data, by its path in an installation."""
    found = set()
    for package, patterns in SETUPTOOLS["package-data"].items():
        for pattern in patterns:
            matched = list(sources()[package].glob(pattern))
            assert matched, f"{package}: {pattern} matches nothing"
            found |= {
                f"{package.replace('.', '/')}/{p.relative_to(sources()[package]).as_posix()}" for p in matched
            }
    return found


def test_every_package_of_the_tree_is_named() -> None:
    assert SETUPTOOLS["packages"] == sorted(sources())
    for folder in SETUPTOOLS["package-dir"].values():
        for path in (ROOT / folder).rglob("*.py"):
            assert (path.parent / "__init__.py").is_file(), path
    assert not (ROOT / "build").exists()


def test_every_data_file_is_declared() -> None:
    declared, found = data_files(), set()
    for package, folder in sources().items():
        for path in folder.iterdir():
            if path.is_file() and path.suffix not in (".py", ".pyc"):
                found.add(f"{package.replace('.', '/')}/{path.name}")
    templates = {
        f"fdaudit/reports/templates/{p.name}"
        for p in (ROOT / "reports" / "templates").iterdir()
        if p.is_file()
    }
    quickstart = {f"fdaudit/quickstart/{p.name}" for p in (ROOT / "fdaudit" / "quickstart").glob("*.yaml")}
    assert declared == found | templates | quickstart
    assert {"fdaudit/py.typed", "fdaudit/quickstart/fedavg.yaml"} <= declared


@pytest.mark.parametrize("room", ROOMS)
def test_no_room_is_a_package_of_its_own(room: str) -> None:
    """From the root `attacks.x` and `fdaudit.attacks.x` could be two modules: PYTHONSAFEPATH forbids it."""
    assert importlib.util.find_spec(room) is None
    spec = importlib.util.find_spec(f"fdaudit.{room}")
    assert spec is not None
    assert spec.origin is not None
    assert Path(spec.origin).resolve() == ROOT / room / "__init__.py"


def test_the_console_script_is_there() -> None:
    (script,) = [e for e in entry_points(group="console_scripts") if e.name == "fdaudit"]
    assert script.value == PROJECT["project"]["scripts"]["fdaudit"] == "fdaudit.cli.app:main"
    assert callable(script.load())


def test_the_top_level_holds_what_the_design_names() -> None:
    tracked = subprocess.run(
        ["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=False, timeout=600
    ).stdout.split()
    if not tracked:
        pytest.skip("not a git checkout")
    folders = {name.split("/")[0] for name in tracked if "/" in name and not name.startswith(".")}
    assert folders <= TOP_LEVEL
    assert not [
        name for name in tracked if name.endswith((".npz", ".pt", ".pth", ".pkl", ".safetensors", ".ckpt"))
    ]


# -- what loads what ------------------------------------------------------------------------------------------


def loaded_by(*arguments: str) -> tuple[set[str], str]:
    """Top-level modules in memory after a command, and what the command printed."""
    code = (
        "import sys, json\n"
        f"sys.argv = ['fdaudit', *{list(arguments)!r}]\n"
        "from fdaudit.cli.app import main\n"
        "try:\n    main()\nexcept SystemExit as end:\n    assert not end.code, end.code\n"
        "print('LOADED', json.dumps(sorted({n.partition('.')[0] for n in sys.modules})))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=600, check=True
    )
    text, _, names = done.stdout.rpartition("LOADED ")
    return set(json.loads(names)), text


HEAVY = {
    "torch",
    "torchvision",
    "pandas",
    "scipy",
    "sklearn",
    "matplotlib",
    "lpips",
    "pytorch_fid",
    "torchmetrics",
}


@pytest.mark.parametrize(
    "arguments",
    [
        ("--help",),
        ("run", "--help"),
        ("list",),
        ("explain", "fedavg"),
        ("explain", "dlg"),
        ("explain", "gaussian-noise"),
    ],
    ids=" ".join,
)
def test_asking_for_help_loads_no_torch(arguments: tuple[str, ...]) -> None:
    loaded, text = loaded_by(*arguments)
    assert loaded.isdisjoint(HEAVY)
    assert len(text) > 200


def test_importing_the_package_loads_next_to_nothing() -> None:
    code = "import sys, fdaudit; dir(fdaudit); print(*sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=600, check=True
    )
    loaded = set(done.stdout.split())
    assert {name.partition(".")[0] for name in loaded}.isdisjoint(
        {*HEAVY, "numpy", "pydantic", "yaml", "typer"}
    )
    assert {name for name in loaded if name.startswith("fdaudit.")} <= {"fdaudit.errors"}


# -- the public surface ---------------------------------------------------------------------------------------


def public_modules() -> list[tuple[str, Path]]:
    found = []
    for package, folder in sources().items():
        for path in sorted(folder.glob("*.py")):
            name = package if path.stem == "__init__" else f"{package}.{path.stem}"
            if not path.stem.startswith("_") or path.stem == "__init__":
                found.append((name, path))
    return found


@cache
def body_of(path: Path) -> list[ast.stmt]:
    """The statements of a module."""
    return ast.parse(path.read_text(encoding="utf-8")).body


def listed(path: Path) -> list[str] | None:
    """A module's `__all__`, read without running it."""
    for node in body_of(path):
        if isinstance(node, ast.Assign) and getattr(node.targets[0], "id", "") == "__all__":
            names: list[str] = ast.literal_eval(node.value)
            return names
    return None


def isort_order(name: str) -> tuple[int, str]:
    """Constants, then classes, then the rest, each in alphabetical order: what ruff keeps."""
    kind = 0 if name.isupper() and len(name) > 1 else 1 if name[:1].isupper() else 2
    return kind, name


def test_public_modules_list_their_names_and_others_are_underscored() -> None:
    assert len(public_modules()) > 200
    left = [module for module, path in public_modules() if not _lists_its_names_in_order(module, path)]
    if left:
        pytest.skip(f"all others do; not installed is what these need: {', '.join(left)}")
    for module, path in public_modules():
        _underscores_what_it_does_not_list(module, path)


def _lists_its_names_in_order(module: str, path: Path) -> bool:
    """Return whether the module could be imported; an environment with its extra checks the others."""
    names = listed(path)
    defines = [n for n in body_of(path) if not isinstance(n, (ast.Expr, ast.Import, ast.ImportFrom, ast.If))]
    if names is None:
        assert not defines, f"{module} defines names and has no __all__"
        return True
    assert names == sorted(names, key=isort_order), module
    assert len(set(names)) == len(names), module
    assert not [n for n in names if n.startswith("_") and not n.startswith("__")], module
    try:
        loaded = importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name not in OF_EXTRAS:
            raise
        return False
    assert [f"{module}.{n}" for n in names if not hasattr(loaded, n)] == []
    return True


def _underscores_what_it_does_not_list(module: str, path: Path) -> None:
    names = set(listed(path) or ())
    defined = set()
    for node in body_of(path):
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            defined.add(node.name)
    # Commands are offered to the shell, not to Python.
    unlisted = {n for n in defined - names if not n.startswith("_")}
    allowed = {
        "fdaudit.cli.app": {
            "active",
            "attack",
            "compare",
            "explain",
            "list_",
            "quickstart",
            "remedy",
            "report",
            "run",
            "twin",
            "verify",
        }
    }
    assert unlisted <= allowed.get(module, set()), module


# -- the wheel ------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> zipfile.ZipFile:
    """A wheel built from a clean copy of the tree."""
    home = tmp_path_factory.mktemp("wheel")
    copy = home / "copy"
    copy.mkdir()
    for name in ("pyproject.toml", "setup.py", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, copy / name)
    for folder in SETUPTOOLS["package-dir"].values():
        shutil.copytree(ROOT / folder, copy / folder, ignore=shutil.ignore_patterns("__pycache__"))
    arguments = [sys.executable, "-m", "pip", "wheel", "--no-deps", "--quiet", "--disable-pip-version-check"]
    if int(importlib.metadata.version("setuptools").split(".")[0]) >= 77:
        arguments.append("--no-build-isolation")
    done = subprocess.run(
        [*arguments, "--wheel-dir", str(home), str(copy)],
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
        env={**os.environ, "PIP_NO_INPUT": "1"},
    )
    if done.returncode and "--no-build-isolation" not in arguments and "setuptools" in done.stderr:
        pytest.skip("setuptools>=77 is neither installed nor to be had: no wheel can be built here")
    assert done.returncode == 0, done.stderr
    (built,) = home.glob("*.whl")
    return zipfile.ZipFile(built)


@pytest.mark.thorough
def test_the_wheel_holds_every_package_and_data_file_and_nothing_else(wheel: zipfile.ZipFile) -> None:
    expected = data_files()
    for package, folder in sources().items():
        expected |= {f"{package.replace('.', '/')}/{p.name}" for p in folder.glob("*.py")}
    held = {n for n in wheel.namelist() if ".dist-info/" not in n}
    assert held == expected


@pytest.mark.thorough
def test_the_wheel_puts_one_name_into_site_packages_with_licence_and_script(wheel: zipfile.ZipFile) -> None:
    tops = {n.split("/")[0] for n in wheel.namelist()}
    assert {t for t in tops if not t.endswith(".dist-info")} == {"fdaudit"}
    (script,) = [n for n in wheel.namelist() if n.endswith("entry_points.txt")]
    assert "fdaudit = fdaudit.cli.app:main" in wheel.read(script).decode()
    assert [n for n in wheel.namelist() if n.endswith("LICENSE")]


@pytest.mark.thorough
def test_the_wheel_works_where_the_repository_is_not(wheel: zipfile.ZipFile, tmp_path: Path) -> None:
    """Unpacked on its own, every package of it is imported from there."""
    wheel.extractall(tmp_path / "site")
    code = (
        "import importlib.util, json\n"
        f"names = {SETUPTOOLS['packages']!r}\n"
        "print(json.dumps([importlib.util.find_spec(n).origin for n in names]))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=True,
        timeout=600,
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(tmp_path / "site"), "PYTHONSAFEPATH": "1"},
    )
    assert all(Path(origin).is_relative_to(tmp_path / "site") for origin in json.loads(done.stdout))


def test_benchmarks_tests_and_docs_import_names_that_are_there() -> None:
    """Nobody runs every benchmark after each change: a name that has moved must show here."""
    lacking = []
    for folder in ("benchmarks", "docs", "examples", "tests"):
        for path in sorted((ROOT / folder).rglob("*.py")):
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                if not isinstance(node, ast.ImportFrom) or node.level or not node.module:
                    continue
                if node.module.split(".")[0] == "fdaudit":
                    lacking += [
                        f"{path.name}: {m}" for m in _absent(node.module, [a.name for a in node.names])
                    ]
    assert lacking == []


def _absent(module: str, names: list[str]) -> list[str]:
    """Names that a module neither defines nor holds as a module."""
    try:
        found = importlib.import_module(module)
    except ModuleNotFoundError as error:
        return [] if error.name in OF_EXTRAS else [module]
    return [
        f"{module}.{name}"
        for name in names
        if not hasattr(found, name)
        and (not hasattr(found, "__path__") or importlib.util.find_spec(f"{module}.{name}") is None)
    ]


def test_a_name_that_has_moved_is_found() -> None:
    assert _absent("fdaudit.attacks._shadows", ["shadows", "no_such_name"]) == [
        "fdaudit.attacks._shadows.no_such_name"
    ]
    assert _absent("fdaudit.view", ["View"]) == ["fdaudit.view"]
