"""Everything that a hostile attack may try: it changes and learns nothing, ends in bounded time, and leaves nothing."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import fdaudit
from fdaudit.evaluation.stage import Stage
from fdaudit.isolation import attacker
from fdaudit.isolation.attacker import OVERDUE, offered_confinement
from fdaudit.isolation.confinement import LAYERS
from fdaudit.isolation.keeper import ENDINGS, Bounds
from fdaudit.isolation.paths import readable
from fdaudit.planning.attacks import plan_attack
from fdaudit.result import Cell, Confinement
from fdaudit.spec.schema import Spec
from fdaudit.storage import scratch

from ..helpers.doubles import spec
from . import hostile_behaviours as behaviours
from .hostile_cases import hostile_package

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="attacks are confined on Linux only")
BY_STAGE = ("attacks", "vault")
"""Where a cell of any attack leaves its own files: new ones; nothing there may change."""
SMALL = {"memory": 1 << 30, "processes": 24, "disk": 64 << 20}
ENDED = ("the process that ran it ended", "the system killed the process")
EXPECTED = {  # how each reason may begin, by what becomes of the cell
    "ended": (*ENDED, "RuntimeError", "MalformedError", ENDINGS[90]),  # children count what they share
    "overdue": (OVERDUE.split("{")[0],),
    "processes or overdue": (ENDINGS[91], ENDINGS[90], OVERDUE.split("{")[0], *ENDED),
    "memory": (ENDINGS[90], "MemoryError", *ENDED),
    "disk": (ENDINGS[92], "OSError", *ENDED),
    "malformed": ("MalformedError", "KeyError"),
    "any": ("",),
}  # fmt: skip


@pytest.fixture(scope="module")
def installed() -> Iterator[Path]:
    """The package `hostile_extras`, installed where another user can read it."""
    above = Path(tempfile.mkdtemp(prefix="hostile-"))
    above.chmod(0o755)
    site = above / "site"
    site.mkdir()
    with hostile_package(site):
        yield above
    shutil.rmtree(above)


@pytest.fixture(scope="module")
def run(installed: Path) -> fdaudit.Run:
    """A finished run below a source directory of the search path, under a name that could be a package's."""
    sys.path.append(str(installed))  # the working directory of `python -m fdaudit`
    try:
        made = fdaudit.run(spec(attacks=[], adversaries=["world"], queries=60), installed / "audit")
        cell_of(made, "guess")  # whatever the stage itself keeps is there from here on
        yield made
    finally:
        sys.path.remove(str(installed))


@pytest.fixture(scope="module")
def layers(run: fdaudit.Run) -> Confinement:
    return offered_confinement()


def cell_of(run: fdaudit.Run, mode: str, **params: Any) -> Cell:
    """What becomes of the hostile attack on the released model."""
    given = {"mode": mode, "place": str(run.directory), "auditor": os.getpid(), **params}
    asked = plan_attack("hostile", {}, run.case.spec, "attack", ("world",))
    stage = Stage(run.opened)
    with stage.adversary("world") as adversary:
        return stage.cell(adversary, replace(asked, params={**given, "other": str(run.directory.parent)}))


def state_of(run: fdaudit.Run) -> dict[str, Any]:
    """Everything about each file of a run that somebody else could notice."""
    found = {}
    for path in (run.directory, *sorted(run.directory.rglob("*"))):
        name = str(path.relative_to(run.directory))
        status = path.lstat()
        told: list[Any] = [status.st_mode, status.st_uid, status.st_gid, status.st_nlink, os.listxattr(path)]
        if path.is_file():
            told += [status.st_mtime_ns, hashlib.sha256(path.read_bytes()).hexdigest()]
        found[name] = told
    return found


def unchanged(before: dict[str, Any], after: dict[str, Any]) -> list[str]:
    """The files that changed, were removed, or came from somewhere else than the stage."""
    changed = [name for name, told in before.items() if after.get(name) != told and not _is_of_stage(name)]
    gone = [name for name in before if name not in after and not _is_of_stage(name)]
    new = [name for name in after if name not in before and not _is_of_stage(name)]
    modes = [
        name for name in before if name in after and before[name][:5] != after[name][:5] and name != "attacks"
    ]
    return [*changed, *gone, *new, *(name for name in modes if not name.startswith("attacks/"))]


def _is_of_stage(name: str) -> bool:
    return name.startswith("attacks/")


def left_over() -> list[str]:
    """Processes of this machine that a hostile attack has started and named."""
    found = []
    for process in Path("/proc").iterdir():
        if process.name.isdigit():
            try:
                command = (process / "cmdline").read_bytes()
            except OSError:
                continue
            if behaviours.CREATED_BY.encode() in command:
                found.append(process.name)
    return found


def test_there_are_more_than_forty_behaviours() -> None:
    assert len(behaviours.TOGETHER) + len(behaviours.ALONE) >= 40


@pytest.mark.thorough
def test_nothing_that_it_tries_succeeds(run: fdaudit.Run, layers: Confinement) -> None:
    lacking = set(layers.missing) - {"user"}
    if lacking:
        pytest.skip(f"this system has no layer of {', '.join(sorted(lacking))}, and the cell says so")
    before = state_of(run)
    cell = cell_of(run, "together")
    kind, _, text = cell.reason.partition(": ")
    assert kind == "FoundError", cell.reason
    assert json.JSONDecoder().raw_decode(text)[0] == {}
    assert unchanged(before, state_of(run)) == []
    assert cell.confinement == layers
    for place in ("/tmp", "/var/tmp", "/dev/shm", "/", str(run.directory.parent)):
        assert not Path(place, behaviours.CREATED_BY).exists()


@pytest.mark.thorough
def test_the_behaviours_succeed_where_nothing_confines_them(tmp_path: Path) -> None:
    """Otherwise the test above would show nothing: in a process of its own, on files of its own."""
    victim = tmp_path / "audit"
    (victim / "vault").mkdir(parents=True)
    (victim / "vault" / "secrets.json").write_text("{}")
    (victim / "manifest.json").write_text("{}")
    wanted = (
        "reads",
        "reads_by_another_program",
        "sees_the_run",
        "times",
        "open_to_all",
        "chmod_of_all_kinds",
    )
    script = (
        "import json, os, sys; sys.path.insert(0, sys.argv[1]); import hostile_behaviours as b\n"
        "os.chdir(sys.argv[3]); p = b.Place(sys.argv[2], os.getppid(), sys.argv[3])\n"
        f"print(json.dumps([name for name in {wanted!r} if b.TOGETHER[name](p)]))"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, str(Path(__file__).parent), str(victim), str(tmp_path)],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert json.loads(done.stdout) == list(wanted)


@pytest.mark.thorough
@pytest.mark.parametrize("name", behaviours.ALONE)
def test_it_ends_and_leaves_nothing(
    name: str, run: fdaudit.Run, layers: Confinement, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, becomes = behaviours.ALONE[name]
    if becomes in ("memory", "disk", "processes or overdue") and "memory" in layers.missing:
        pytest.skip("this system has no layer of memory, and the cell says so")
    monkeypatch.setattr(attacker, "_bounds", lambda place, folder: Bounds(**SMALL, folder=folder))
    if "overdue" in becomes:
        monkeypatch.setattr(Spec, "seconds_per_cell", 3)
    before = state_of(run)
    cell = cell_of(run, "alone", behaviour=name)
    assert cell.status in ("failed", "inconclusive")
    assert cell.reason.startswith(EXPECTED[becomes]), cell.reason
    assert unchanged(before, state_of(run)) == []
    assert left_over() == []
    assert not [folder for root in scratch._held for folder in root.glob("attack-*")]


@pytest.mark.thorough
def test_the_next_cell_runs(run: fdaudit.Run) -> None:
    after = cell_of(run, "guess")
    assert after.status == "inconclusive", after.reason  # its guesses are all alike


@pytest.mark.thorough
def test_questions_without_samples_cost_their_budget(run: fdaudit.Run) -> None:
    cell = cell_of(run, "empty")
    assert cell.status == "failed"
    assert cell.reason.startswith("BudgetExceededError: ")
    assert "budget of 60" in cell.reason


@pytest.mark.thorough
@pytest.mark.parametrize("layer", LAYERS)
def test_a_missing_layer_is_said_on_the_cell(
    layer: str, run: fdaudit.Run, layers: Confinement, monkeypatch: pytest.MonkeyPatch
) -> None:
    off = ("network", "system calls") if layer == "network" else (layer,)  # either refuses all sockets
    monkeypatch.setattr(attacker, "_without", off)
    found = cell_of(run, "guess").confinement
    assert found is not None
    assert found.missing[layer] == "switched off"
    lost = {*off, "user"} if layer == "tree" else set(off)  # the tree shows another user what it needs
    assert set(found.held) | {"user"} == set(layers.held) - set(off) | {"user"}
    assert set(found.held) >= set(layers.held) - lost


@pytest.mark.thorough
def test_all_of_it_holds_for_an_ordinary_user() -> None:
    """As root, the tests of this module run again as another user, who has no privilege."""
    if os.geteuid() != 0:
        pytest.skip("this is an ordinary user already")
    home = Path(tempfile.mkdtemp(prefix="ordinary-"))
    os.chown(home, NOBODY, NOBODY)
    try:
        done = subprocess.run(
            [sys.executable, "-c", ORDINARY, str(home), str(ROOT), json.dumps(readable())],
            cwd=home, capture_output=True, text=True, check=False,
            env={"PATH": os.environ["PATH"], "HOME": str(home), "TMPDIR": str(home), "PYTHONSAFEPATH": "1",
                 "PYTHONPATH": os.environ.get("PYTHONPATH", ""), "PYTHONDONTWRITEBYTECODE": "1"},
        )  # fmt: skip
    finally:
        shutil.rmtree(home)
    if done.returncode == SKIPPED:
        pytest.skip(
            f"an ordinary user cannot read Python and the repository here: {done.stdout.strip()[-200:]}"
        )
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]


NOBODY, SKIPPED = 65534, 77
ORDINARY = f"""
import json, os, sys
from fdaudit.isolation import namespaces
home, root, files = sys.argv[1], sys.argv[2], json.loads(sys.argv[3])
if "tree" not in namespaces.enter(["tree"]):  # shows Python below directories that only root may enter
    devices = ["/dev/" + name for name in ("null", "zero", "urandom", "full", "shm")]
    namespaces.build_tree([*files, root, "/etc"], [home, "/proc/self", *devices])
hidden = namespaces.unreachable([root, sys.prefix, os.__file__], {NOBODY})
if hidden is not None:
    print(hidden)
    sys.exit({SKIPPED})
namespaces.become({NOBODY})
namespaces.stay_visible()
os.chdir(root)
import pytest
sys.exit(pytest.main(["-q", "-p", "no:cacheprovider", "--basetemp", home + "/pytest", "-rs",
                      "tests/isolation/test_hostile_behaviours.py", "-k", "not ordinary"]))
"""
