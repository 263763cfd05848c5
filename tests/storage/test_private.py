"""Whose a run is: its owner's alone, from the first file on, whatever the umask; what is given away is not."""

from __future__ import annotations

import os
import shutil
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import fdaudit
from fdaudit.attestation.bundle import evidence
from fdaudit.cluster import sweeps
from fdaudit.cluster.transfer import write_tree
from fdaudit.errors import IntegrityError, RunError
from fdaudit.quickstart import suite
from fdaudit.spec.schema import load_spec
from fdaudit.storage.digests import canonical
from fdaudit.storage.locks import make_private
from fdaudit.sweeps import sweep
from fdaudit.testing.specs import small_spec

from ..helpers.command import Cli
from ..helpers.sweep_cases import grid, inline

SPEC = small_spec(
    attacks=[{"name": "loss-threshold"}, {"name": "analytic"}],
    adversaries=["server"],
    protocol__params={"rounds": 1, "batch_size": 1, "local_steps": 1, "upload": "gradient"},
)


@pytest.fixture(params=[0o000, 0o022, 0o077], ids=lambda mask: f"umask {mask:03o}")
def umask(request: pytest.FixtureRequest) -> Iterator[int]:
    before = os.umask(request.param)
    yield request.param
    os.umask(before)


def reachable(top: Path) -> list[str]:
    """What others may read or enter below a directory, the directory itself included."""
    if not top.stat().st_mode & 0o077:
        return []
    found = [top.as_posix()]
    for path in top.iterdir():
        if path.is_dir() and not path.is_symlink():
            found += reachable(path)
        elif path.lstat().st_mode & 0o077:
            found.append(path.as_posix())
    return found


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


# -- the auditor's ------------------------------------------------------------------------------------------------


@pytest.mark.thorough
def test_nobody_else_reaches_anything_of_a_run_at_any_time(umask: int, tmp_path: Path) -> None:
    seen: list[str] = []

    def look(what: str, done: int, total: int) -> None:
        seen.extend(reachable(tmp_path / "run"))

    run = fdaudit.run(SPEC, tmp_path / "run", tick=look)
    fdaudit.report(run)
    fdaudit.attack("loss-threshold", run, "world")
    assert mode(run.directory) == 0o700
    assert mode(run.directory / "vault") == 0o700
    assert list((run.directory / "attacks").rglob("*-truth.png"))
    assert reachable(run.directory) == seen == []


def test_the_directory_is_private_before_anything_is_in_it(umask: int, tmp_path: Path) -> None:
    """Whoever has the directory open keeps what he may do: it must never have been anybody's."""
    modes: list[int] = []
    real = os.mkdir

    def watched(path: Any, given: int = 0o777, **more: Any) -> None:
        real(path, given, **more)
        if Path(path).name in ("run", "vault"):
            modes.append(mode(Path(path)))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "mkdir", watched)
        fdaudit.run(small_spec(), tmp_path / "run")
    assert modes == [0o700, 0o700]


@pytest.mark.parametrize("given", [0o777, 0o755, 0o750, 0o701, 0o700])
def test_a_directory_that_was_there_is_left_to_its_owner(given: int, tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run").chmod(given)
    fdaudit.run(small_spec(), tmp_path / "run")
    assert mode(tmp_path / "run") == 0o700


def test_a_directory_of_somebody_else_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def forbidden(*_: object, **__: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    (tmp_path / "run").mkdir(mode=0o755)
    monkeypatch.setattr(os, "chmod", forbidden)
    with pytest.raises(RunError, match="Operation not permitted"):
        make_private(tmp_path / "run")
    with pytest.raises(RunError, match="Operation not permitted"):
        fdaudit.run(small_spec(), tmp_path / "run")
    assert list((tmp_path / "run").iterdir()) == []


@pytest.mark.thorough
def test_a_sweep_and_its_cells_are_private(umask: int, tmp_path: Path) -> None:
    sweep.sweep(grid(keep="runs"), tmp_path / "sweep", executor=inline)
    assert list((tmp_path / "sweep" / "runs").iterdir())
    tops = [tmp_path / "sweep", tmp_path / "sweep" / "runs", *(tmp_path / "sweep" / "runs").iterdir()]
    tops += [tmp_path / "sweep" / "shared", *(tmp_path / "sweep" / "shared").iterdir()]
    assert {mode(top) for top in tops} == {0o700}


@pytest.mark.thorough
def test_the_runs_of_a_quickstart_are_private(
    umask: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    alone = load_spec(small_spec(seed=None))
    monkeypatch.setattr(suite, "specs", lambda: {"one": alone, "other": alone})
    suite.quickstart(tmp_path / "audit")
    assert {mode(tmp_path / "audit" / name) for name in (".", "one", "other")} == {0o700}


def test_a_run_that_comes_from_another_machine_is_private(
    umask: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    places = {name: str(tmp_path / name) for name in ("run", "lock", "scratch", "shared")}
    job = sweeps._SweepJob(number=0, kind=None, task=sweeps._task(places, tmp_path / "mark"))
    job.arrived.append("a reference")
    monkeypatch.setattr(job, "trees", lambda: [{"vault": 0o700, "result.json": b"{}", "attacks": 0o755}])
    job.accept({"status": "done"})
    assert mode(tmp_path / "run") == 0o700
    write_tree({"attacks/a": 0o755, "attacks/a/b.png": b""}, tmp_path / "run", below=("attacks",))
    assert (tmp_path / "run" / "attacks" / "a" / "b.png").is_file()
    assert reachable(tmp_path / "run") == []


@pytest.mark.thorough
def test_views_and_evidence_are_private_until_they_are_whole(
    umask: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While they are made, under another name, nobody else sees them; evidence holds private records for ever."""
    run = fdaudit.run(SPEC, tmp_path / "run")
    (tmp_path / "out").mkdir()
    seen = list[str]()
    real = os.replace

    def watched(*given: Any, **more: Any) -> None:
        for path in (tmp_path / "out").iterdir():
            if path.name.startswith("."):
                seen.extend(reachable(path))
        real(*given, **more)

    monkeypatch.setattr(os, "replace", watched)
    fdaudit.export_view(run, "server", tmp_path / "out" / "view", challenges=True)
    evidence(run, tmp_path / "out" / "evidence")
    assert seen == []
    assert reachable(tmp_path / "out" / "evidence") == []


# -- what is given away -------------------------------------------------------------------------------------------


def test_what_is_given_away_can_be_read(tmp_path: Path) -> None:
    before = os.umask(0o022)
    try:
        run = fdaudit.run(SPEC, tmp_path / "run")
        fdaudit.export_view(run, "server", tmp_path / "view", challenges=True)
    finally:
        os.umask(before)
    for path in (tmp_path / "view", *(tmp_path / "view").rglob("*")):
        wanted = 0o755 if path.is_dir() else 0o644
        assert mode(path) & wanted == wanted, path


# -- a record that was changed is not read ------------------------------------------------------------------------


COMMANDS = (
    ("attack", "RUN", "loss-threshold"),
    ("report", "RUN"),
    ("report", "RUN", "--public"),
    ("report", "RUN", "--out", "OUT/page.html"),
    ("ledger", "RUN"),
    ("export-view", "RUN", "server", "--out", "OUT/view"),
    ("score", "RUN", "OUT/guesses.json"),
    ("evidence", "RUN", "--out", "OUT/evidence"),
    ("compare", "RUN", "COPY", "--out", "OUT/comparison"),
    ("run", "--resume", "--out", "RUN"),
    ("verify", "RUN"),
)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return fdaudit.run(SPEC, tmp_path_factory.mktemp("whole") / "run").directory


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_no_command_reads_a_record_that_was_changed(
    command: tuple[str, ...], whole: Path, tmp_path: Path, cli: Cli
) -> None:
    run = Path(shutil.copytree(whole, tmp_path / "run"))
    copy = Path(shutil.copytree(whole, tmp_path / "copy"))
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "guesses.json").write_bytes(canonical({}))
    (payload, *_) = sorted((run / "transcript" / "payloads").iterdir())
    content = bytearray(payload.read_bytes())
    content[-1] ^= 1
    payload.write_bytes(content)
    places = {"RUN": run, "COPY": copy, "OUT": tmp_path / "out"}
    before = sorted(p.relative_to(tmp_path) for p in tmp_path.rglob("*"))
    given = ["/".join(str(places.get(part, part)) for part in word.split("/")) for word in command]
    code, _, err = cli(*given)
    assert code == 3, err
    assert payload.name in err
    assert "its digest" in err
    assert sorted(p.relative_to(tmp_path) for p in tmp_path.rglob("*")) == before


def test_an_object_that_was_opened_before_does_not_read_it_either(whole: Path, tmp_path: Path) -> None:
    run = fdaudit.load(shutil.copytree(whole, tmp_path / "run"))
    assert run.case
    (payload, *_) = sorted((run.directory / "transcript" / "payloads").iterdir())
    payload.write_bytes(payload.read_bytes()[:-1])
    for work in (
        lambda: fdaudit.attack("loss-threshold", run),
        lambda: fdaudit.report(run),
        lambda: fdaudit.export_view(run, "server", tmp_path / "view"),
    ):
        with pytest.raises(IntegrityError):
            work()
    assert not (tmp_path / "view").exists()
