"""A forked attacker: what it keeps of the process that forked it, and who may fork."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from fdaudit.isolation import launch
from fdaudit.isolation.attacker import Attacker
from fdaudit.storage import cache

from ..helpers import warm

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
def test_a_fork_has_its_own_variables_directory_and_session(said: dict[str, Any]) -> None:
    assert said["variables"] == {"HOME": "there"}
    assert said["at"] == said["place"]
    assert said["leads"]
    assert said["threads"] == 1
    assert said["writable"] == ["a"]


@pytest.mark.skipif(sys.platform != "linux", reason="needs /proc")
def test_a_fork_speaks_through_its_pipe_and_its_end_is_seen(said: dict[str, Any]) -> None:
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
        assert "has loaded libraries only" in told.stdout
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
