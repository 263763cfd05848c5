"""The examples of `docs/extending.md` are short, and pass the checks that the page shows."""

from __future__ import annotations

import ast
import importlib
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from fdaudit import testing

from ..helpers.docs_pages import EXTRAS, blocks

_PAGE = "docs/extending.md"


@pytest.fixture(scope="module")
def extras(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The package of the page, with the protocol that stands on it."""
    site = tmp_path_factory.mktemp("site")
    shutil.copytree(EXTRAS / "fdaudit_extras", site / "fdaudit_extras")
    (text,) = (b for b in blocks(_PAGE, "python") if b.startswith("# fdaudit_extras/distil.py"))
    (site / "fdaudit_extras" / "distil.py").write_text(text, encoding="utf-8")
    sys.path.insert(0, str(site))
    importlib.invalidate_caches()
    yield site / "fdaudit_extras"
    sys.path.remove(str(site))
    for name in [n for n in sys.modules if n.partition(".")[0] == "fdaudit_extras"]:
        del sys.modules[name]


def calls() -> list[ast.Expr]:
    (text,) = (b for b in blocks(_PAGE, "python") if b.startswith("from fdaudit.testing import"))
    return [line for line in ast.parse(text).body if isinstance(line, ast.Expr)]


@pytest.mark.parametrize("call", calls(), ids=ast.unparse)
def test_the_checks_of_the_page_pass(call: ast.Expr, extras: Path) -> None:
    checked = call.value
    assert isinstance(checked, ast.Call)
    arguments = [ast.literal_eval(argument) for argument in checked.args]
    getattr(testing, ast.unparse(checked.func))(*arguments)


def test_the_long_example_of_a_protocol_passes(extras: Path) -> None:
    testing.check_protocol("import:fdaudit_extras.one_shot:OneShot", {"local_epochs": 1, "batch_size": 4})


@pytest.mark.parametrize("name", ["confidence", "distil", "sign"])
def test_an_example_takes_at_most_40_lines(name: str, extras: Path) -> None:
    assert len((extras / f"{name}.py").read_text(encoding="utf-8").splitlines()) <= 40
