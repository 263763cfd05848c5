"""One writer at a time: of those that would write to a run together one goes on, and the others are told so."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from contextvars import copy_context
from pathlib import Path

import pytest

import fdaudit
from fdaudit.adversary.view import view_digest
from fdaudit.attestation.bundle import evidence
from fdaudit.errors import RunError
from fdaudit.storage.locks import make_private, together, writing
from fdaudit.testing.specs import small_spec
from fdaudit.transcript.manifest import verify

from ..helpers import warm
from ..helpers.command import Cli
from ..helpers.run_cases import tree, write_spec

pytestmark = pytest.mark.usefixtures("forked_processes")

SPEC = small_spec(
    seed=11,
    protocol__params={"rounds": 40, "batch_size": 16, "local_steps": 2, "server_momentum": 0.5},
    references=["standalone"],
    adversaries=["world"],
    attacks=[{"name": "loss-threshold"}],
)


class Killed(BaseException):
    """The process is gone."""


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return fdaudit.run(SPEC, tmp_path_factory.mktemp("whole") / "run").directory


@pytest.fixture(scope="module")
def interrupted(whole: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that died after its third round."""

    def tick(what: str, done: int, total: int) -> None:
        if done == 3:
            raise Killed

    out = tmp_path_factory.mktemp("interrupted") / "run"
    with pytest.raises(Killed):
        fdaudit.run(SPEC, out, seed_from=whole, tick=tick)
    return out


@contextmanager
def held_elsewhere(directory: Path) -> Iterator[warm.Started]:
    """Another process that holds the lock on a directory."""
    code = (
        "import sys; from pathlib import Path; from fdaudit.storage.locks import writing\n"
        "with writing(Path(sys.argv[1])): print('held', flush=True); sys.stdin.read()"
    )
    holder = warm.Started(["-c", code, str(directory)], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    try:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        yield holder
    finally:
        holder.kill()
        holder.end()


# -- resumers -----------------------------------------------------------------------------------------------------


RESUMER = """
import sys
import tempfile
from pathlib import Path
from fdaudit.cli.app import main
answers, sys.stdout = sys.stdout, sys.stderr
print("ready", file=answers, flush=True)
for line in sys.stdin:
    sys.argv = ["fdaudit", "run", "--resume", "--no-report", "--out", line.strip()]
    try:
        main()
        code = 0
    except SystemExit as end:
        code = end.code or 0
    print(code, file=answers, flush=True)
"""


class Resumer(warm.Started):
    """A process that resumes a run whenever it is told to."""

    def __init__(self, errors: Path) -> None:
        self._errors = errors
        with errors.open("wb") as file:
            super().__init__(["-c", RESUMER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=file)

    def line(self) -> str:
        assert self.stdout is not None
        return self.stdout.readline().strip()

    def begin(self, out: Path) -> None:
        assert self.stdin is not None
        self.stdin.write(f"{out}\n")
        self.stdin.flush()

    def said(self) -> list[str]:
        return self._errors.read_text().splitlines()


@contextmanager
def resumers(many: int, folder: Path) -> Iterator[list[Resumer]]:
    """So many processes, once they are ready."""
    found = [Resumer(folder / f"errors-{k}") for k in range(many)]
    try:
        assert {one.line() for one in found} == {"ready"}
        yield found
    finally:
        for one in found:
            one.end()


def at_once(found: list[Resumer], interrupted: Path, whole: Path, out: Path) -> None:
    """Resumes a copy of a run in all processes at the same instant."""
    shutil.copytree(interrupted, out)
    for one in found:
        one.begin(out)
    codes = [one.line() for one in found]
    assert sorted(codes) == ["0", *["2"] * (len(found) - 1)]
    for code, one in zip(codes, found, strict=True):
        if code == "2":
            assert f"{str(out)!r} is being written by another process" in one.said()[-1]
    assert verify(out) == []
    assert tree(out) == tree(whole)


@pytest.mark.thorough
def test_of_many_resumers_one_goes_on(interrupted: Path, whole: Path, tmp_path: Path) -> None:
    with resumers(4, tmp_path) as found:
        for many in (2, 4):
            at_once(found[:many], interrupted, whole, Path(tempfile.mkdtemp(dir=tmp_path)) / "run")


@pytest.mark.slow
def test_of_many_resumers_one_goes_on_in_each_of_twenty_trials(
    interrupted: Path, whole: Path, tmp_path: Path
) -> None:
    with resumers(8, tmp_path) as found:
        for many in (2, 4, 8):
            for trial in range(20):
                at_once(found[:many], interrupted, whole, tmp_path / f"run-{many}-{trial}")
            print(f"{many} resumers: one of them went on in each of 20 trials")


@pytest.mark.thorough
def test_of_two_that_begin_a_run_in_one_new_directory_one_goes_on(tmp_path: Path) -> None:
    """In threads, each of which has made its case before either begins to write."""
    out = tmp_path / "run"

    def begin(seed: int) -> str:
        try:
            fdaudit.run(small_spec(seed=seed, protocol__params__rounds=20), out)
        except RunError as error:
            return str(error)
        return "done"

    with ThreadPoolExecutor(4) as pool:
        said = sorted(pool.map(begin, range(4)))
    assert said.count("done") == 1
    refused = [line for line in said if line != "done"]
    assert all("another process" in line or "exists already" in line for line in refused), said
    assert verify(out) == []


# -- everything that writes ---------------------------------------------------------------------------------------


WRITERS: dict[str, Callable[[Path, Path], object]] = {
    "resume": lambda run, out: fdaudit.run(None, run, resume=True),
    "run": lambda run, out: fdaudit.run(SPEC, run),
    "attack": lambda run, out: fdaudit.attack("loss-threshold", fdaudit.load(run), "world"),
    "report": lambda run, out: fdaudit.report(fdaudit.load(run)),
    "public report": lambda run, out: fdaudit.report(fdaudit.load(run), public=True),
    "report by its path": lambda run, out: fdaudit.report(fdaudit.load(run), run / "more" / "page.html"),
    "score": lambda run, out: fdaudit.score(fdaudit.load(run), guesses(run, out)),
    "evidence": lambda run, out: evidence(fdaudit.load(run), out / "evidence"),
}
READERS: dict[str, Callable[[Path, Path], object]] = {
    "verify": lambda run, out: fdaudit.load(run).verify(),
    "ledger": lambda run, out: fdaudit.load(run).ledger("world"),
    "export": lambda run, out: fdaudit.export_view(fdaudit.load(run), "world", out / "view"),
    "report elsewhere": lambda run, out: fdaudit.report(fdaudit.load(run), out / "page.html"),
    "compare": lambda run, out: fdaudit.compare(
        [fdaudit.load(run), fdaudit.load(shutil.copytree(run, out / "copy"))], out / "comparison"
    ),
}


def guesses(run: Path, out: Path) -> Path:
    loaded = fdaudit.load(run)
    value = {
        "schema": "fdaudit-guesses/1",
        "name": "even",
        "adversary": "world",
        "view": view_digest(loaded.view("world")),
        "label_distribution": [{"target": "client/0", "distribution": [0.1] * 10}],
    }
    path = out / "guesses.json"
    path.write_text(json.dumps(value))
    return path


@pytest.mark.thorough
@pytest.mark.parametrize("writer", WRITERS)
def test_who_writes_is_refused_while_another_process_does(writer: str, whole: Path, tmp_path: Path) -> None:
    run = Path(shutil.copytree(whole, tmp_path / "run"))
    (tmp_path / "out").mkdir()
    before = tree(run, without=())
    with held_elsewhere(run), pytest.raises(RunError, match="another process") as refused:
        WRITERS[writer](run, tmp_path / "out")
    assert refused.value.exit_code == 2
    assert tree(run, without=()) == before
    assert not [p for p in (tmp_path / "out").iterdir() if p.name != "guesses.json"]
    if writer != "run":  # which is refused for another reason then
        WRITERS[writer](run, tmp_path / "out")


@pytest.mark.parametrize("reader", READERS)
def test_who_reads_is_not_refused(reader: str, whole: Path, tmp_path: Path) -> None:
    run = Path(shutil.copytree(whole, tmp_path / "run"))
    (tmp_path / "out").mkdir()
    with held_elsewhere(run):
        READERS[reader](run, tmp_path / "out")


def test_the_command_says_it_in_one_line(whole: Path, tmp_path: Path, cli: Cli) -> None:
    run = Path(shutil.copytree(whole, tmp_path / "run"))
    spec = write_spec(tmp_path / "spec.yaml", SPEC)
    commands = [("run", spec, "--out", run, "--resume"), ("attack", run, "loss-threshold"), ("report", run)]
    with held_elsewhere(run):
        for command in commands:
            code, _, err = cli(*command)
            assert code == 2
            assert err.count("\n") == 1
            assert repr(str(run)) in err


# -- the lock itself ----------------------------------------------------------------------------------------------


def test_it_ends_with_its_holder_and_leaves_nothing(tmp_path: Path) -> None:
    with held_elsewhere(tmp_path) as holder:
        with pytest.raises(RunError), writing(tmp_path):
            pass
        holder.send_signal(signal.SIGKILL)
        holder.wait()
        with writing(tmp_path):
            assert list(tmp_path.iterdir()) == []


def test_who_waits_goes_on_when_the_other_has_ended(tmp_path: Path) -> None:
    with held_elsewhere(tmp_path) as holder, ThreadPoolExecutor(1) as pool:

        def wait() -> bool:
            with writing(tmp_path, wait=True):
                return True

        waiting = pool.submit(wait)
        time.sleep(0.1)
        assert not waiting.done()
        holder.kill()
        assert waiting.result(30)


def test_what_a_holder_calls_may_write_and_threads_of_strangers_may_not(tmp_path: Path) -> None:
    def write() -> bool:
        with writing(tmp_path):
            return True

    with ThreadPoolExecutor(1) as pool, writing(tmp_path):
        assert write()
        assert pool.submit(copy_context().run, write).result()
        with pytest.raises(RunError):
            pool.submit(write).result()
    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(write).result()


def test_locks_that_are_kept_together_end_together(tmp_path: Path) -> None:
    def free(directory: Path) -> bool:
        try:
            with writing(directory):
                return True
        except RunError:
            return False

    for name in ("a", "b"):
        (tmp_path / name).mkdir()
    with ThreadPoolExecutor(1) as pool:
        with together():
            for name in ("a", "b"):
                with writing(tmp_path / name):
                    pass
            assert not any(pool.submit(free, tmp_path / n).result() for n in "ab")
            with writing(tmp_path / "a"):
                pass
        assert all(pool.submit(free, tmp_path / n).result() for n in "ab")


def test_a_child_process_does_not_inherit_it(tmp_path: Path) -> None:
    with writing(tmp_path):
        child = subprocess.Popen(
            [sys.executable, "-c", "import sys; sys.stdin.read()"], stdin=subprocess.PIPE
        )
    try:
        with writing(tmp_path):
            pass
    finally:
        child.communicate()


def test_what_is_no_directory_cannot_be_locked(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    for name in ("file", "nowhere"):
        with pytest.raises(RunError, match="cannot be opened"), writing(tmp_path / name):
            pass
    with pytest.raises(RunError, match="cannot be made"):
        make_private(tmp_path / "file")
    assert os.listdir(tmp_path) == ["file"]
