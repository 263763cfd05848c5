"""An error inside a plug-in names the plug-in's file and line, from an attack, a defence, a protocol or a network."""

from __future__ import annotations

import importlib
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fdaudit.errors import plugin_line
from fdaudit.storage.vault import Secrets, Vault
from fdaudit.sweeps import worker
from fdaudit.testing.specs import small_spec

from ..helpers.cli_cases import Shell
from ..helpers.docs_pages import EXTRAS
from ..helpers.warm import forked_attackers


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The classes of `examples/extras` in a package that nothing installs, and a network that fails."""
    package = tmp_path / "site" / "faulty"
    shutil.copytree(EXTRAS / "fdaudit_extras", package)
    (package / "network.py").write_text(
        "from torch import nn\nclass Net(nn.Module):\n    def __init__(self, classes):\n        1 / 0\n"
    )
    monkeypatch.syspath_prepend(tmp_path / "site")
    importlib.invalidate_caches()
    yield package
    for name in [n for n in sys.modules if n.partition(".")[0] == "faulty"]:
        del sys.modules[name]


def broken(file: Path, method: str) -> str:
    """Let a method of a file fail first; return how an error names its line."""
    lines = file.read_text(encoding="utf-8").split("\n")
    start = next(n for n, line in enumerate(lines) if line.startswith(f"    def {method}("))
    end = next(n for n in range(start, len(lines)) if lines[n].rstrip().endswith(":"))
    if lines[end + 1].lstrip().startswith('"""'):
        end += 1
    lines.insert(end + 1, "        raise KeyError('mine')")
    file.write_text("\n".join(lines), encoding="utf-8")
    return f" ({file}, line {end + 2})"


@pytest.mark.thorough
def test_an_attack_s_cell_fails_with_its_line(shell: Shell, site: Path) -> None:
    place = broken(site / "confidence.py", "applicable")
    spec = shell.spec(adversaries=["world"], attacks=[{"name": "import:faulty.confidence:Confidence"}])
    with forked_attackers():
        code, _, err = shell("run", spec, "--out", "out", "--no-report")
    head, _, error = err.partition(" failed: ")
    assert (code, head.split()[-1], error) == (1, "world/confidence", f"KeyError: 'mine'{place}\n")


@pytest.mark.parametrize(
    ("file", "method", "changes"),
    [
        ("one_shot.py", "rounds", {"protocol": {"name": "import:faulty.one_shot:OneShot", "params": {}}}),
        ("sign.py", "release", {"defenses": [{"kind": "model_update", "name": "import:faulty.sign:Sign"}]}),
    ],
)
def test_a_protocol_and_a_defence_fail_with_their_line(
    shell: Shell, site: Path, file: str, method: str, changes: dict[str, Any]
) -> None:
    place = broken(site / file, method)
    code, out, err = shell("run", shell.spec(**changes), "--out", "out", "--no-report")
    assert (code, out) == (1, "")
    assert err.partition(" failed: ")[2] == f"KeyError: 'mine'{place}\n"


def test_a_sweep_s_run_fails_with_its_line(site: Path, tmp_path: Path) -> None:
    place = broken(site / "one_shot.py", "rounds")
    Vault(tmp_path / "shared" / "vault").create(Secrets.draw(7))
    piece = {
        "run": str(tmp_path / "run"),
        "lock": str(tmp_path / "lock"),
        "shared": str(tmp_path / "shared"),
        "records": "shared",
        "spec": small_spec(protocol={"name": "import:faulty.one_shot:OneShot", "params": {}}),
        "defended": False,
    }
    found = worker._outcome(piece, lambda *tick: None)
    assert found == {"status": "failed", "reason": f"KeyError: 'mine'{place}"}


def test_a_network_is_refused_with_its_line(shell: Shell, site: Path) -> None:
    line = shell.refused("run", shell.spec(model={"name": "import:faulty.network:Net"}), "--out", "out")
    problem = f"cannot be made (ZeroDivisionError: division by zero) ({site / 'network.py'}, line 4)"
    assert f"model.name: 'import:faulty.network:Net' {problem}. " in line


def test_a_module_that_fails_to_load_is_refused_with_its_line(shell: Shell, site: Path) -> None:
    file = site / "one_shot.py"
    file.write_text(file.read_text(encoding="utf-8") + "\n1 / 0\n", encoding="utf-8")
    at = len(file.read_text(encoding="utf-8").splitlines())
    spec = shell.spec(protocol={"name": "import:faulty.one_shot:OneShot", "params": {}})
    line = shell.refused("run", spec, "--out", "out")
    assert f"by zero ({file}, line {at})" in line


def test_an_error_of_our_own_names_no_plug_in() -> None:
    with pytest.raises(ModuleNotFoundError) as caught:
        importlib.import_module("fdaudit.nothing")
    assert plugin_line(caught.value) == ""
