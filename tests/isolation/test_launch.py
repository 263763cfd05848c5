"""A forked attacker: what it keeps of the process that forked it, and who may fork."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import pytest

from fdaudit.isolation import launch, paths
from fdaudit.isolation.attacker import Attacker
from fdaudit.isolation.confinement import landlock_version
from fdaudit.storage import cache

from ..helpers import warm
from ..helpers.warm import forked_attackers

PARENT = """
import json, os, sys, tempfile, threading
from pathlib import Path
from fdaudit.isolation import launch, process
from fdaudit.isolation.confinement import Allowed
from fdaudit.isolation.keeper import Bounds

def told(allowed):
    links = {}
    for number in os.listdir("/proc/self/fd"):
        try:
            links[int(number)] = os.readlink(f"/proc/self/fd/{number}")
        except OSError:
            pass  # of the listing itself
    said = {"open": links, "variables": dict(os.environ), "at": os.getcwd(), "writable": allowed.writable,
            "leads": os.getsid(0) == os.getpid(), "threads": threading.active_count(),
            "read": os.read(0, 100).decode()}
    os.write(1, json.dumps(said).encode())
    os.write(2, b"printed")

os.environ.update(launch.THREADS)
os.environ["SECRET"] = "5ecret"
secret = open(sys.argv[1])
process.serve_until_the_end = told
with tempfile.TemporaryDirectory() as place, open(Path(place) / "output", "w+b") as output:
    child, reading, writing = launch.fork(launch.Launch(
        allowed=Allowed((), ("a",), Bounds(1, 1, 1)), output=output,
        directory=Path(place), variables={"HOME": "there"}))
    alive = child.poll() is None
    writing.write(b"asked")
    writing.flush()
    said = json.loads(reading.read())
    status = child.wait()
    output.seek(0)
    print(json.dumps({**said, "place": os.path.realpath(place), "alive": alive, "status": status, "again": child.poll(),
                      "printed": output.read().decode(), "output": os.path.realpath(output.name)}))
"""


@pytest.fixture(scope="module")
def said(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    secret = tmp_path_factory.mktemp("truth") / "secret"
    secret.write_text("truth")
    done = warm.run(["-c", PARENT, str(secret)])
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


@pytest.mark.thorough
@pytest.mark.skipif(sys.platform != "linux", reason="needs /proc")
def test_a_fork_keeps_no_file_but_its_pipe_and_its_output(said: dict[str, Any]) -> None:
    assert sorted(said["open"], key=int)[:3] == ["0", "1", "2"]
    assert said["open"]["2"] == said["output"]
    others = [where for number, where in said["open"].items() if int(number) > 2]
    assert all(where.startswith("/proc/") for where in others), others  # the listing


@pytest.mark.skipif(sys.platform != "linux", reason="needs /proc")
def test_a_fork_has_its_own_session_and_speaks_through_its_pipe(said: dict[str, Any]) -> None:
    assert said["variables"] == {"HOME": "there"}
    assert said["at"] == said["place"]
    assert said["leads"]
    assert said["threads"] == 1
    assert said["writable"] == ["a"]
    assert (said["read"], said["printed"]) == ("asked", "printed")
    assert said["alive"]
    assert said["status"] == said["again"] == 1, "it serves until it is ended"


def test_who_has_threads_or_other_variables_does_not_fork() -> None:
    script = (
        "import os, threading\n"
        "from fdaudit.isolation import launch\n"
        "os.environ.update(launch.THREADS)\n"
        "os.environ.update({change!r})\n"
        "if {threaded}: threading.Thread(target=threading.Event().wait, daemon=True).start()\n"
        "try: launch.fork(None)\n"
        "except RuntimeError as error: print(error)\n"
    )
    for change, threaded in (({}, True), ({"OMP_NUM_THREADS": "2"}, False)):
        told = subprocess.run(
            [sys.executable, "-c", script.format(change=change, threaded=threaded)],
            capture_output=True,
            text=True,
            check=True,
        )
        assert "libraries only" in told.stdout
    assert set(launch.THREADS) >= {"OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"}


def test_a_removed_cache_directory_is_made_again_before_its_process_is_confined(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(cache.DIRECTORY, str(tmp_path / "removed" / "cache"))
    monkeypatch.setenv(cache.KEY, "0" * 64)
    with warm.forked_attackers():
        Attacker(own=True).close()
    assert (tmp_path / "removed" / "cache").stat().st_mode & 0o777 == 0o700


COMPILER = """
import os, sys
from fdaudit.isolation import attacker, process

answer = process.serve_cases

def load(*arguments, **named):
    before = "torch._dynamo" in sys.modules
    import scipy.stats, torch._dynamo
    print("loaded", before, "torch._dynamo" in sys.modules, file=sys.stderr, flush=True)
    answer(*arguments, **named)

process.serve_cases = load
attacker.fork_ahead()
fork = attacker._standing(frozenset())
fork.missing()
fork.close()
"""


def test_a_confined_fork_can_load_the_compiler_which_no_fork_has_loaded_before() -> None:
    run = subprocess.run([sys.executable, "-c", COMPILER], capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
    assert "loaded False True" in run.stderr


# -- an attack's process has namespaces of its own; its keeper stays in those of the auditor -----------------------


KINDS = {"tree": ("mnt",), "processes": ("pid", "ipc", "uts"), "network": ("net",)}
"""The kinds of namespaces that each layer consists of."""


@pytest.fixture(scope="module")
def attacker() -> Iterator[Attacker]:
    with forked_attackers():
        attacker = Attacker(own=True)
    yield attacker
    attacker.close()


def _keeper(attacker: Attacker) -> int:
    assert attacker._process is not None
    return attacker._process.pid


def _namespace(process: int, kind: str) -> str:
    return os.readlink(f"/proc/{process}/ns/{kind}")


@pytest.mark.skipif(sys.platform != "linux", reason="attacks are confined on Linux only")
@pytest.mark.parametrize("layer", KINDS)
def test_a_process_has_its_own_namespace_for_each_layer_that_it_does_not_lack(
    layer: str, attacker: Attacker
) -> None:
    if layer in attacker.missing():
        pytest.skip(f"this system has no layer of {layer}, and the process says so")
    keeper = _keeper(attacker)
    (child,) = Path(f"/proc/{keeper}/task/{keeper}/children").read_text().split()
    for kind in KINDS[layer]:
        assert _namespace(int(child), kind) != _namespace(os.getpid(), kind)


@pytest.mark.skipif(sys.platform != "linux", reason="attacks are confined on Linux only")
def test_a_keeper_sees_the_tree_of_its_auditor(attacker: Attacker) -> None:
    """Its process may hide devices and other processes while the keeper starts, and afterwards."""
    attacker.missing()
    assert _namespace(_keeper(attacker), "mnt") == _namespace(os.getpid(), "mnt")


# -- what an attack process may touch so that cuda starts in it, and what this does not open -----------------------


CHILD = """
import json, sys, threading
from fdaudit.isolation.confinement import restrict_files

def can(path, text):
    try:
        with open(path, "r+") as file:
            file.write(text)
    except OSError:
        return False
    return True

restrict_files(["/usr", "/lib", "/lib64", sys.prefix, "/proc/self"], json.loads(sys.argv[2]))
thread = f"/proc/self/task/{threading.get_native_id()}/comm"
outside = sys.argv[1]
print(json.dumps([can(thread, "named"), can(outside, "x"), can("/proc/self/root" + outside, "x"),
                  can("/proc/self/cwd/outside", "x"), can(f"/proc/{sys.argv[3]}/comm", "x")]))
"""


def tried(outside: Path, writable: list[str]) -> list[bool]:
    """Whether a confined child can name its thread, and write outside in four ways."""
    sleeper = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    try:
        arguments = [str(outside), json.dumps(writable), str(sleeper.pid)]
        done = subprocess.run(
            [sys.executable, "-c", CHILD, *arguments],
            capture_output=True,
            text=True,
            check=True,
            cwd=outside.parent,
        )
    finally:
        sleeper.communicate()
    found: list[bool] = json.loads(done.stdout)
    return found


@pytest.mark.skipif(not landlock_version(), reason="this kernel has no Landlock")
def test_a_process_that_may_name_its_threads_can_write_nothing_else(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.write_text("truth")
    assert tried(outside, [])[0] is False  # which CUDA takes for a failure of the operating system
    assert tried(outside, ["/proc/self"]) == [True, False, False, False, False]
    assert outside.read_text() == "truth"


@pytest.mark.parametrize("device", ["nvidia0", "nvidiactl"])
def test_processes_may_name_their_threads_where_there_is_a_cuda_device(
    device: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "null").touch()
    monkeypatch.setattr(paths, "_DEV", tmp_path)
    assert paths.devices() == [str(tmp_path / "null")]
    (tmp_path / device).touch()
    assert paths.devices() == [str(tmp_path / "null"), str(tmp_path / device), "/proc/self"]


# -- what attack processes may read --------------------------------------------------------------------------------


@pytest.fixture
def source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A source directory on the search path, as the working directory of `python -m` is."""
    folder = tmp_path / "work"
    folder.mkdir()
    monkeypatch.setattr(sys, "path", [*sys.path, str(folder)])
    return folder


def made(place: Path, *files: str) -> Path:
    for file in files:
        (place / file).parent.mkdir(parents=True, exist_ok=True)
        (place / file).write_text("")
    return place


def opened(place: Path) -> bool:
    """Whether a path, or a directory above it, is readable."""
    return any(place.resolve().is_relative_to(Path(path)) for path in paths.readable())


def test_packages_of_a_source_directory_and_what_programs_need_are_readable(source: Path) -> None:
    made(source, "mine/__init__.py", "mine/part.py", "single.py", "notes.txt", "plain/part.py")
    assert opened(source / "mine" / "part.py")
    assert opened(source / "single.py")
    assert not opened(source / "notes.txt")
    assert not opened(source / "plain" / "part.py")
    import numpy
    import torch

    for file in (torch.__file__, numpy.__file__, sys.executable, __import__("fdaudit").__file__, "/bin/sh"):
        assert opened(Path(file))


@pytest.mark.parametrize("name", ["audit", "audit.attack"])
def test_a_directory_that_a_registered_package_shares_its_name_with_is_not(
    name: str, source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A namespace package: `audit/` in the working directory, where the quickstart writes its runs."""
    made(source / "audit", "fedavg/manifest.json", "fedavg/vault/secrets.json", "notes.txt")
    point = EntryPoint("hostile", f"{name}:Hostile", "fdaudit.attacks")
    monkeypatch.setattr(paths, "entry_points", lambda group: [point] if group == point.group else [])
    assert not opened(source / "audit" / "fedavg" / "vault" / "secrets.json")
    assert not opened(source / "audit" / "notes.txt")


@pytest.mark.parametrize("mark", ["manifest.json", "deep/below/vault/secrets.json", "record/messages.jsonl"])
def test_a_package_that_holds_a_run_is_not_readable(
    mark: str, source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made(source / "mine", "__init__.py", mark)
    point = EntryPoint("hostile", "mine.attack:Hostile", "fdaudit.attacks")
    monkeypatch.setattr(paths, "entry_points", lambda group: [point])
    assert not opened(source / "mine" / mark)
    assert not opened(source / "mine" / "__init__.py")


def test_an_editable_package_that_holds_a_run_is_not_readable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made(tmp_path / "mine", "__init__.py", "runs/one/manifest.json")
    finder = type(sys)("__editable___mine_finder")
    finder.MAPPING = {"mine": str(tmp_path / "mine")}  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, finder.__name__, finder)
    assert not opened(tmp_path / "mine" / "runs" / "one" / "manifest.json")


@pytest.mark.parametrize("place", ["/usr/src/app", "/usr/games", "/usr/local/src", "/home", "/srv", "/opt"])
def test_a_directory_of_the_system_where_users_work_is_not_readable(place: str) -> None:
    assert not opened(Path(place))
