"""`mirrored` in Python: functions take its path, errors speak of its URL, and a path is used as ever."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from fsspec.implementations.memory import MemoryFileSystem

import fdaudit
from fdaudit.errors import FdauditError, IntegrityError, RunError, UsageError
from fdaudit.remote.workspace import mirrored

from ..helpers.run_cases import finished, tiny
from .far_cases import FAR, far_away  # noqa: F401


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return finished(tmp_path_factory.mktemp("whole") / "run")


def test_errors_speak_of_the_url() -> None:
    MemoryFileSystem().pipe_file("/far/manifest.json", b"{}")

    def fail(kind: type[FdauditError]) -> None:
        with mirrored(FAR) as place:
            if kind is IntegrityError:
                raise IntegrityError([f"{place.path / 'x'} is damaged"])
            raise RunError("run", str(place.path / "x"), f"lies in {place.path}", "Remedy.")

    with pytest.raises(RunError) as refused:
        fail(RunError)
    assert str(refused.value) == f"run: '{FAR}/x' lies in {FAR}. Remedy."
    with pytest.raises(IntegrityError, match=f"^{FAR}/x is damaged$"):
        fail(IntegrityError)


def test_python_functions_take_paths_and_refuse_urls(whole: Path) -> None:
    run = fdaudit.load(whole)
    for call in (
        lambda: fdaudit.run(tiny(), FAR),
        lambda: fdaudit.run(tiny(), whole / "x", seed_from=FAR),
        lambda: fdaudit.load(FAR),
        lambda: fdaudit.report(run, f"{FAR}/index.html"),
        lambda: fdaudit.compare([run, run], FAR),
        lambda: fdaudit.evidence(run, FAR),
        lambda: fdaudit.export_view(run, "server", FAR),
    ):
        with pytest.raises(UsageError, match="mirrored"):
            call()


def test_a_path_is_used_as_it_is(tmp_path: Path) -> None:
    with mirrored(tmp_path / "run", "new") as place:
        assert place.path == tmp_path / "run"
        assert place.shown(place.path / "x") == str(tmp_path / "run" / "x")

        def tick(what: str, done: int, total: int) -> None: ...

        assert place.ticking(tick) is tick
        place.push()
    assert not (tmp_path / "run").exists()
    assert not (tmp_path / "cache").exists()


def test_fsspec_is_loaded_for_urls_only(whole: Path) -> None:
    code = (
        "import sys\n"
        "from fdaudit.remote.workspace import mirrored\n"
        "from fdaudit.cli.app import app\n"
        f"with mirrored({str(whole)!r}) as place: pass\n"
        "assert 'fsspec' not in sys.modules\n"
        f"with mirrored({f'file://{whole}'!r}) as place: pass\n"
        "assert 'fsspec' in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=600)
