"""Commands on URLs: what they write lies there, whole; what dies goes on from there; paths are used as ever."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import yaml
from fsspec.implementations.memory import MemoryFileSystem

import fdaudit
import fdaudit.audit.pipeline
from fdaudit.quickstart import suite
from fdaudit.remote.mirror import Mirror
from fdaudit.remote.store import Store
from fdaudit.remote.workspace import mirrored
from fdaudit.spec.schema import load_spec

from ..helpers import warm
from ..helpers.cli_cases import Shell
from ..helpers.run_cases import hasten, tiny, tree, write_spec
from ..helpers.sweep_cases import grid
from .far_cases import FAR, Killed, dying, far_away, held  # noqa: F401

pytestmark = pytest.mark.usefixtures("forked_processes")

LOSS = {"name": "loss-threshold"}


def ordered(**changes: Any) -> dict[str, Any]:
    """A tiny spec with its fields in the order in which a file has them: they are part of what is recorded."""
    return dict(yaml.safe_load(yaml.safe_dump(tiny(**changes))))


SPEC = ordered(
    seed=11,
    protocol__params={"rounds": 2, "batch_size": 16, "local_steps": 1, "server_momentum": 0.5},
    references=["standalone"],
    adversaries=["world"],
    attacks=[LOSS],
)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same run in a directory of this machine."""
    return fdaudit.run(SPEC, tmp_path_factory.mktemp("whole") / "run").directory


@pytest.fixture
def swift(monkeypatch: pytest.MonkeyPatch) -> None:
    hasten(monkeypatch)


@pytest.fixture
def shell(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Shell:
    return Shell(monkeypatch, capsys, tmp_path / "home")


def sent(directory: Path, url: str = FAR) -> None:
    """Puts a directory behind a URL."""
    Mirror(Store(url, "run"), directory).push()


# -- commands -----------------------------------------------------------------------------------------------------


@pytest.mark.thorough
@pytest.mark.parametrize("scheme", ["memory", "file"])
def test_a_run_behind_a_url_is_the_run_that_a_path_would_hold(
    scheme: str, shell: Shell, whole: Path, tmp_path: Path
) -> None:
    url = FAR if scheme == "memory" else f"file://{tmp_path}/far"
    out, _ = shell.told(
        "run", write_spec(tmp_path / "spec.yaml", SPEC), "--out", url, "--seed-from", whole, "--no-report"
    )
    assert f"run     {url}\n" in out
    assert (held() if scheme == "memory" else tree(tmp_path / "far")) == tree(whole)
    assert tree(shell.home) == {}
    assert list((tmp_path / "cache").glob("fdaudit-copy-*")) == [], "the copy is gone"


@pytest.mark.thorough
def test_every_command_reads_and_writes_urls(shell: Shell, whole: Path, tmp_path: Path) -> None:
    sent(whole)
    assert json.loads(shell.told("verify", FAR, "--json")[0]) == {"run": FAR, "intact": True, "findings": []}
    assert "world" in shell.told("ledger", FAR)[0]
    assert shell.told("report", FAR)[0] == f"{FAR}/report/index.html\n"
    shell.told("report", FAR, "--public", "--out", "memory://far-away/page.html")
    assert set(held("/far-away/")) == {"page.html", "page.json", "page-appendix.html"}
    cells = json.loads(shell.told("attack", FAR, "gap", "--adversary", "world", "--json")[0])
    assert json.loads(held()["attacks/world-gap.json"]) == cells[0]
    assert "report/index.html" in held(), "what was not fetched stays"
    shell.told("evidence", FAR, "--out", "memory://far-evidence")
    bundle = held("/far-evidence/")
    assert {"statement.dsse.json", "run/manifest.json", "run/report/index.html"} <= set(bundle)
    assert not any("vault" in name for name in bundle)
    assert "vault is the one" in shell.told("verify", "memory://far-evidence", "--vault", f"{FAR}/vault")[0]
    shell.told("export-view", FAR, "world", "--out", "memory://far-view")
    card = json.loads(held("/far-view/")["card.json"])
    guess = {
        "schema": "fdaudit-guesses/1",
        "name": "us",
        "adversary": "world",
        "view": card["view_sha256"],
        "label_distribution": [{"target": card["victims"][0], "distribution": [0.1] * 10}],
    }
    (tmp_path / "guesses.json").write_text(json.dumps(guess))
    shell.told("score", FAR, tmp_path / "guesses.json")
    assert "attacks/external-us.json" in held()
    shell.told("export-view", FAR, "world", "--out", "memory://far-candidates", "--challenges")
    assert any(name.startswith("challenges/") for name in held("/far-candidates/"))
    sent(whole, "memory://far-other")
    shell.told("compare", FAR, "memory://far-other", "--out", "memory://far-page")
    compared = json.loads(held("/far-page/")["comparison.json"])
    assert [run["name"] for run in compared["runs"]] == ["far", "far-other"]
    assert "report/index.html" not in held("/far-page/")["index.html"].decode(), (
        "no link to a copy that is gone"
    )
    assert tree(shell.home) == {}
    assert list((tmp_path / "cache").glob("fdaudit-copy-*")) == []
    shell.told("verify", FAR)


@pytest.mark.thorough
def test_the_quickstart_and_sweeps_take_urls(
    shell: Shell, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    alone = load_spec(tiny(name="one", seed=None))
    monkeypatch.setattr(suite, "specs", lambda: {"one": alone, "other": alone})
    out, _ = shell.told("quickstart", "--out", FAR)
    assert f"page    {FAR}/index.html" in out
    before = held()
    assert {"index.html", "one/manifest.json", "other/report/index.html"} <= set(before)
    assert b"one/report/index.html" in before["index.html"]
    shell.told("quickstart", "--out", FAR, "--resume")
    assert held().keys() == before.keys()
    small = write_spec(
        tmp_path / "grid.yaml",
        grid(protocols=grid()["protocols"][:1], seeds=[1], epsilon=["inf"], defences=[]),
    )
    found = json.loads(shell.told("sweep", small, "--out", "memory://far-sweep", "--workers", 1, "--json")[0])
    assert found["sweep"] == "memory://far-sweep"
    files = held("/far-sweep/")
    (key,) = [c["key"] for c in found["runs"] if c["status"] == "done"]
    assert f"runs/{key}/result.json" in files
    assert not [name for name in files if name.startswith((".lock", "locks/", "scratch/"))]
    shell.told("sweep", small, "--out", "memory://far-sweep", "--workers", 1, "--resume")
    assert held("/far-sweep/").keys() == files.keys()
    assert shell.told("curve", "memory://far-sweep", "--out", "memory://far-curve")[0].endswith(
        "/index.html\n"
    )
    assert "index.html" in held("/far-curve/")
    assert tree(shell.home) == {}
    assert list((tmp_path / "cache").glob("fdaudit-copy-*")) == []


@pytest.mark.thorough
def test_a_sweep_sends_whole_runs_only_and_goes_on_without_the_others(shell: Shell, tmp_path: Path) -> None:
    """A cell whose files came in part is run anew; one that is done is not."""
    small = write_spec(
        tmp_path / "grid.yaml", grid(protocols=grid()["protocols"][:1], epsilon=["inf"], defences=[])
    )
    shell.told("sweep", small, "--out", FAR, "--workers", 1)
    before, removed = held(), 0
    first, _ = sorted({n.split("/")[1] for n in before if n.endswith("/run.json")})
    for name in list(MemoryFileSystem.store):
        if name.endswith((f"{first}/run.json", f"{first}/spec.yaml")):
            del MemoryFileSystem.store[name]
            removed += 1
    assert removed == 2
    with dying(None) as calls:
        shell.told("sweep", small, "--out", FAR, "--workers", 1, "--resume")
    assert {n.split("/")[1] for n in calls if n.startswith("runs/")} == {first}
    unlike = {n for n, data in held().items() if before[n] != data}
    assert held().keys() == before.keys()
    assert unlike <= {f"runs/{first}/run.json", "sweep.json"}, "seconds differ"


# -- dying --------------------------------------------------------------------------------------------------------


@pytest.mark.thorough
@pytest.mark.parametrize(
    "every", [pytest.param(6, id="every-sixth"), pytest.param(1, id="each", marks=pytest.mark.slow)]
)
@pytest.mark.usefixtures("swift")
def test_dying_at_any_put_and_going_on_elsewhere_changes_nothing(
    every: int, whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every put or removal in turn is the last that a machine does; another, with nothing but the URL, goes on."""

    def go(url: str = FAR) -> None:
        with mirrored(url, "resume") as place:
            fdaudit.run(SPEC, place.path, resume=True, seed_from=whole, tick=place.ticking(lambda *a: None))

    with dying(None) as calls:
        go()
    assert held() == tree(whole)
    assert len(calls) > 40
    assert any(c.startswith("-vault/state/") for c in calls), "an older state is removed"
    deaths = range(0, len(calls), every)
    died = 0
    for at in deaths:
        MemoryFileSystem.store.clear()
        with dying(at) as done, suppress(Killed):  # a busy machine sends less often, and may end before
            go()
        died += len(done) > at
        shutil.rmtree(tmp_path / "cache")
        go()
        assert held() == tree(whole), f"died before {calls[at]}"
    assert died > len(deaths) / 2


@pytest.mark.thorough
def test_a_killed_process_goes_on_from_the_url(shell: Shell, tmp_path: Path) -> None:
    """SIGKILL in the middle of the rounds: nothing but what was sent is left, and it ends with the same bytes."""
    longer = ordered(seed=12, protocol__params__rounds=40)
    spec = write_spec(tmp_path / "spec.yaml", longer)
    reference = fdaudit.run(longer, tmp_path / "reference").directory
    far = tmp_path / "far"
    begin = ["-m", "fdaudit", "run", str(spec), "--out", f"file://{far}", "--no-report"]
    process = warm.Started([*begin, "--seed-from", str(reference)], stdout=subprocess.DEVNULL)
    while not (far / "vault" / "round.json").exists() and process.poll() is None:
        time.sleep(0.005)
    process.send_signal(signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL
    assert not (far / "manifest.json").exists()
    shutil.rmtree(tmp_path / "cache")
    shell.told("run", "--out", f"file://{far}", "--no-report", "--resume")
    assert tree(far) == tree(reference)


# -- what goes wrong ----------------------------------------------------------------------------------------------


def test_what_cannot_be_reached_is_refused_in_one_line_and_nothing_is_written(
    shell: Shell, whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = write_spec(tmp_path / "spec.yaml", SPEC)
    sent(whole)
    before = held()
    assert "'nowhere'" in shell.refused("run", spec, "--out", "nowhere://b/r")
    assert "holds nothing" in shell.refused("verify", "memory://empty")
    assert f"'{FAR}' exists already" in shell.refused("run", spec, "--out", FAR)
    assert "exists already" in shell.refused("evidence", FAR, "--out", FAR)
    assert "lies in the run itself" in shell.refused("evidence", FAR, "--out", f"{FAR}/bundle")
    assert "chains" in shell.refused("report", "simplecache::memory://far")
    bad = write_spec(tmp_path / "bad.yaml", {**SPEC, "clients": 0})
    assert "clients" in shell.refused("run", bad, "--out", "memory://new")
    assert "'memory://far/vault' is not a run directory" in shell.refused("ledger", f"{FAR}/vault")
    monkeypatch.setenv("FDAUDIT_PUSH_EVERY", "often")
    assert "FDAUDIT_PUSH_EVERY: 'often'" in shell.refused("attack", FAR, "gap")
    monkeypatch.setenv("FDAUDIT_PUSH_EVERY", "0")
    (tmp_path / "file").write_text("a file")
    monkeypatch.setenv("FDAUDIT_CACHE", str(tmp_path / "file" / "below"))
    assert "FDAUDIT_CACHE" in shell.refused("verify", FAR)
    assert held() == before
    assert not (tmp_path / "cache").exists() or list((tmp_path / "cache").glob("fdaudit-copy-*")) == []


def test_a_changed_record_behind_a_url_is_found_and_not_attacked(shell: Shell, whole: Path) -> None:
    sent(whole)
    for name in ("transcript/payloads/round-000001.shard", "utility.csv"):
        file = MemoryFileSystem.store[f"/far/{name}"]
        kept = file.getvalue()
        file.seek(len(kept) - 1)
        file.write(bytes([kept[-1] ^ 1]))
        before = held()
        assert name.rpartition("/")[2] in shell.told("verify", FAR, code=3)[1]
        shell.told("attack", FAR, "gap", code=3)
        assert held() == before
        file.seek(0)
        file.write(kept)
    MemoryFileSystem.store["/far/transcript/stray"] = MemoryFileSystem.store["/far/utility.csv"]
    assert "stray is listed by no message" in shell.told("verify", FAR, code=3)[1]


def test_a_store_that_may_not_be_written_ends_a_run_before_it_trains(
    shell: Shell, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*args: Any, **kwargs: Any) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(MemoryFileSystem, "put_file", refuse)
    monkeypatch.setattr(fdaudit.audit.pipeline, "federate", lambda *args: pytest.fail("it trains"))
    spec = write_spec(tmp_path / "spec.yaml", SPEC)
    assert "cannot be written (PermissionError" in shell.refused("run", spec, "--out", FAR)
    assert list((tmp_path / "cache").glob("fdaudit-copy-*")) == []


def test_a_store_that_fails_for_a_while_is_tried_again(
    shell: Shell, whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, puts = MemoryFileSystem.put_file, list[str]()

    def flaky(self: MemoryFileSystem, source: str, target: str, **kwargs: Any) -> None:
        puts.append(target)
        if 8 <= len(puts) < 10:
            raise ConnectionError("reset by peer")
        real(self, source, target, **kwargs)

    monkeypatch.setattr(MemoryFileSystem, "put_file", flaky)
    spec = write_spec(tmp_path / "spec.yaml", SPEC)
    _, err = shell.told("run", spec, "--out", FAR, "--seed-from", whole, "--no-report")
    assert [line.count("will be tried again") for line in err.splitlines()] == [1, 1]
    assert held() == tree(whole)


def test_what_cannot_be_sent_in_the_end_is_kept_and_said_where(
    shell: Shell, whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, puts = MemoryFileSystem.put_file, list[str]()

    def ends(self: MemoryFileSystem, source: str, target: str, **kwargs: Any) -> None:
        puts.append(target)
        if len(puts) > 12:
            raise ConnectionError("unreachable")
        real(self, source, target, **kwargs)

    monkeypatch.setattr(MemoryFileSystem, "put_file", ends)
    spec = write_spec(tmp_path / "spec.yaml", SPEC)
    _, err = shell.told("run", spec, "--out", FAR, "--seed-from", whole, "--no-report", code=2)
    (home,) = [p for p in (tmp_path / "cache").iterdir() if list(p.iterdir())]
    assert f"What was not sent is kept in {home / 'far'}." in err.splitlines()[-1]
    assert home.stat().st_mode & 0o777 == 0o700
    assert tree(home / "far") == tree(whole)


def test_an_interrupted_run_sends_what_it_has(whole: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FDAUDIT_PUSH_EVERY", "3600")

    def tick(what: str, done: int, total: int) -> None:
        if done == 2:
            raise KeyboardInterrupt

    def go() -> None:
        with mirrored(FAR, "resume") as place:
            fdaudit.run(SPEC, place.path, resume=True, seed_from=whole, tick=place.ticking(tick))

    with pytest.raises(KeyboardInterrupt):
        go()
    assert json.loads(held()["vault/round.json"])["round"] == 1
    with mirrored(FAR, "resume") as place:
        fdaudit.run(None, place.path, resume=True)
    assert held()["manifest.json"] == tree(whole)["manifest.json"]
