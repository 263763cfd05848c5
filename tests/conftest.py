"""Settings of every test."""

from __future__ import annotations

import copy
import gc
import os
from collections.abc import Callable, Generator, Iterator
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any
from zlib import crc32

import pytest

# Read once, when torch is first imported: threads that wait for each other sleep instead of spinning, so
# that tests stay quick on a machine with other work.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

from hypothesis import settings

if TYPE_CHECKING:
    from .helpers.browser import Browser
    from .helpers.cli_cases import Shell
    from .helpers.command import Cli

_IN_MEMORY, _ROOM = Path("/dev/shm"), 4 << 30


def _temporary_files_fit_into_memory() -> bool:
    """Return whether this system has a directory in memory with room for all that tests write."""
    if not (_IN_MEMORY.is_dir() and os.access(_IN_MEMORY, os.W_OK)):
        return False
    system = os.statvfs(_IN_MEMORY)
    return system.f_bavail * system.f_frsize > _ROOM and not system.f_flag & os.ST_NOEXEC


# Tests write 80,000 small files, and to remove them from a disk may take longer than to run the tests.
if _temporary_files_fit_into_memory():
    os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", str(_IN_MEMORY))

# A busy machine fails no test, and one commit's tests draw the same examples each time.
settings.register_profile("fdaudit", deadline=None, derandomize=True, max_examples=40)
settings.load_profile("fdaudit")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--part", default="1/1", metavar="K/N", help="leave out thorough tests but the K-th of N parts"
    )


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Deselect thorough tests of other parts. All settings of a test are in one part, which its name decides."""
    part, parts = map(int, config.getoption("--part").split("/"))

    def in_part(item: pytest.Item) -> bool:
        test = item.nodeid.partition("[")[0]
        return item.get_closest_marker("thorough") is None or crc32(test.encode()) % parts == part - 1

    config.hook.pytest_deselected(items=[item for item in items if not in_part(item)])
    items[:] = filter(in_part, items)


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip tests marked `cuda` where there is no CUDA device."""
    if item.get_closest_marker("cuda") is None:
        return
    import torch

    if not torch.cuda.is_available():
        pytest.skip("needs a CUDA device")


@pytest.hookimpl(optionalhook=True)  # tests of one environment run without xdist
def pytest_xdist_auto_num_workers() -> int:
    """As many as there are processors: tests seldom wait, and each process collects all tests for itself."""
    return os.cpu_count() or 1


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """What is loaded now stays to the end: the garbage collector need not look through it again and again."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


def pytest_unconfigure() -> None:
    """At the end everything is let go."""
    gc.unfreeze()


def pytest_make_collect_report() -> None:
    """Small operations gain nothing from a second thread. The process that only hands out tests loads no PyTorch."""
    import torch

    torch.set_num_threads(1)


@pytest.fixture
def trusting(monkeypatch: pytest.MonkeyPatch) -> None:
    """For tests that name code without a spec: all of it is trusted, until the test ends."""
    monkeypatch.setattr("fdaudit.spec.trust._named", {"*"})


@pytest.fixture(autouse=True, scope="session")
def _a_seed_has_one_secret() -> Iterator[None]:
    """Runs of one seed draw the same records each time, as thresholds need: their secret is derived from the seed."""
    from fdaudit.storage.vault import Secrets

    from .helpers.run_cases import known

    drawn = Secrets.draw
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Secrets, "draw", lambda seed=None: drawn() if seed is None else known(seed))
        yield


@pytest.fixture(autouse=True, scope="session")
def _state_of_its_own(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """What fdaudit keeps for its user, the key of caches, does not come from whoever runs the tests."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_STATE_HOME", str(tmp_path_factory.mktemp("state")))
        yield


@pytest.fixture(autouse=True)
def _torch_as_it_was() -> Iterator[None]:
    """One thread, since tests are small; and no switch stays as a run has set it."""
    import torch

    torch.set_num_threads(1)
    yield
    if torch.are_deterministic_algorithms_enabled():  # the other call loads much of PyTorch
        torch.use_deterministic_algorithms(False)


@pytest.fixture(autouse=True, scope="session")
def _attack_processes_are_forked() -> Iterator[None]:
    """A new program loads PyTorch for seconds. Tests of isolation and the end-to-end run start real ones."""
    from .helpers.warm import forked_attackers

    with forked_attackers():
        yield


@pytest.fixture(autouse=True, scope="session")
def _nothing_waits_for_the_disk() -> Iterator[None]:
    """No machine fails under a test. Tests of what is durable look on at this call, or make it fail."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda descriptor: None)
        yield


@pytest.fixture(autouse=True, scope="session")
def _what_is_installed_is_read_once() -> Iterator[None]:
    """The installed packages and the digits among them stay the same; who may change what was read gets a copy."""
    import sklearn.datasets

    from fdaudit.attestation import bundle
    from fdaudit.transcript import manifest

    def once(real: Callable[[], Any]) -> Callable[[], Any]:
        kept = cache(real)
        return lambda: copy.deepcopy(kept())

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sklearn.datasets, "load_digits", once(sklearn.datasets.load_digits))
        patch.setattr(manifest, "version", cache(manifest.version))
        patch.setattr(bundle, "environment", once(bundle.environment))
        patch.setattr(bundle, "sbom", once(bundle.sbom))
        yield


@pytest.fixture(autouse=True, scope="session")
def _the_command_line_is_built_once() -> Iterator[None]:
    """A process builds it for its one command; here many commands share one."""
    import typer.main

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(typer.main, "get_command", cache(typer.main.get_command))
        yield


@pytest.fixture
def cli(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Cli:
    """The command line in this process: exit code, standard output and standard error."""
    from .helpers import run_cases

    return partial(run_cases.cli, monkeypatch, capsys)


@pytest.fixture
def shell(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Shell:
    """The command line in a directory of its own."""
    from .helpers.cli_cases import Shell

    return Shell(monkeypatch, capsys, tmp_path / "home")


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    """A headless Chromium with a new profile; where there is none the test is skipped."""
    from .helpers.browser import chromium

    with chromium(tmp_path_factory.mktemp("profile")) as opened:
        yield opened


@pytest.fixture
def attacks_here() -> Iterator[None]:
    """Attacks run in a thread of this process, where a test can patch them."""
    from .helpers.doubles import in_a_thread

    with in_a_thread():
        yield


@pytest.fixture(scope="module")
def forked_processes() -> Iterator[None]:
    """Attack and sweep processes are forked, for modules that test something else than their start."""
    from .helpers.warm import forked_attackers, forked_workers

    with forked_attackers(), forked_workers():
        yield
