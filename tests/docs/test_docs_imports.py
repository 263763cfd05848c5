"""Classes named by `import:module:Class`, as `docs/extending.md` shows it: found on the path, run, and refused."""

from __future__ import annotations

import importlib
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

import fdaudit
from fdaudit import attacks, defenses
from fdaudit.cli.explain import explained
from fdaudit.errors import SpecError
from fdaudit.isolation.trials import settings_of
from fdaudit.planning.card_protocol import known_protocol
from fdaudit.spec.schema import ProtocolSpec

from ..helpers.cli_cases import Shell
from ..helpers.docs_pages import EXTRAS
from ..helpers.importable import importable
from ..helpers.results import cells_of
from ..helpers.warm import forked_attackers

CONFIDENCE = "import:fdaudit_extras.confidence:Confidence"


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The package on the path, without an entry point."""
    site = tmp_path_factory.mktemp("site")
    shutil.copytree(EXTRAS / "fdaudit_extras", site / "fdaudit_extras")
    with importable(site, "fdaudit_extras"):
        yield site


@pytest.fixture(scope="module")
def run(site: Path, tmp_path_factory: pytest.TempPathFactory) -> fdaudit.Run:
    text = (EXTRAS / "imported.yaml").read_text(encoding="utf-8")
    spec: dict[str, Any] = {**yaml.safe_load(text), "threads": 1, "seed": 4}
    with forked_attackers():
        return fdaudit.run(spec, tmp_path_factory.mktemp("imports") / "run")


def test_the_spec_runs_and_cells_have_the_class_s_own_name(run: fdaudit.Run) -> None:
    assert run.verify() == []
    assert run.result.plain()["run"]["protocol"] == "one-shot"
    assert set(cells_of(run, requested=True)) == {"server/confidence", "world/confidence"}
    assert cells_of(run, requested=True)["world/confidence"]["status"] in ("run", "inconclusive")
    sent = run.view("server").select(kind="model_parameters")
    assert {d["name"] for m in sent if m.sender != "server" for d in m.defenses} == {"sign"}


@pytest.mark.thorough
def test_the_command_attacks_with_a_class(run: fdaudit.Run, tmp_path: Path, shell: Shell) -> None:
    before = cells_of(run, requested=True)["world/confidence"]
    with forked_attackers():
        (cell,) = shell.json("attack", run.directory, CONFIDENCE, "--adversary", "world")
    assert cell == before == cells_of(run, requested=True)["world/confidence"]
    assert shell("report", run.directory)[0] == 0
    assert shell.json("explain", CONFIDENCE)["room"] == "attack"
    code, out, err = shell("report", run.directory, "--public")
    assert (code, err) == (0, "")
    assert "fdaudit_extras" not in Path(out.strip()).read_text(encoding="utf-8")


def test_every_room_is_explained_and_loads_in_the_isolated_process(site: Path) -> None:
    for name, room in (("one_shot:OneShot", "protocol"), ("sign:Sign", "defence")):
        assert explained(f"import:fdaudit_extras.{name}").room == room
    target = attacks.REGISTRY.target(CONFIDENCE)
    assert settings_of(CONFIDENCE, target, "quick", {}, "attack") == {}


@pytest.mark.parametrize(
    ("name", "problem", "remedy"),
    [
        ("import:confidence", "is no import path", "Write import:package.module:Class."),
        ("import:no_such_file:Attack", "names a module no_such_file that is not found", "PYTHONPATH"),
        ("import:fdaudit_extras.confidence:Nothing", "cannot be read", "Correct the class."),
        ("import:fdaudit_extras.sign:Sign", "has a card of another kind, DefenseCard", "Correct the class."),
        ("import:../x:Attack", "is no import path", "Write import:"),
    ],
)
def test_names_that_are_no_attack(site: Path, name: str, problem: str, remedy: str) -> None:
    with pytest.raises(SpecError) as caught:
        attacks.REGISTRY.called(name, "attacks.0.name")
    assert problem in caught.value.problem
    assert remedy in caught.value.remedy


@pytest.mark.parametrize(
    ("own", "problem"),
    [
        ("../up", "no name of small letters"),
        ("a/b", "no name of small letters"),
        ("loss-threshold", "calls itself 'loss-threshold', which is fdaudit."),
    ],
)
def test_a_class_may_not_take_an_unsafe_or_a_known_name(
    site: Path, monkeypatch: pytest.MonkeyPatch, own: str, problem: str
) -> None:
    source = (site / "fdaudit_extras" / "confidence.py").read_text()
    module = f"renamed_{abs(hash(own))}"
    (site / f"{module}.py").write_text(source.replace('name="confidence"', f"name={own!r}"))
    importlib.invalidate_caches()
    with pytest.raises(SpecError, match=problem):
        attacks.REGISTRY.called(f"import:{module}:Confidence")


def test_other_code_under_the_same_import_path_is_another_run(site: Path) -> None:
    file = site / "fdaudit_extras" / "sign.py"
    name, text = "import:fdaudit_extras.sign:Sign", file.read_text()
    first = defenses.REGISTRY.source(name)
    file.write_text(text + "\n# changed\n")
    try:
        assert len(first) == 1
        assert defenses.REGISTRY.source(name) != first
    finally:
        file.write_text(text)
    assert defenses.REGISTRY.source("gaussian-noise") == ()


def test_a_card_s_protocol_is_no_untrusted_code(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fdaudit.spec.trust._named", set())
    with pytest.raises(SpecError, match=r"^card\.stand_in.*: 'import:os:system' .*not named"):
        known_protocol(ProtocolSpec(name="import:os:system"), "card.stand_in")
