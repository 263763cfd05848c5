"""What the tests of finished runs share: a run small enough for thousands of checks, the command line in process."""

from __future__ import annotations

import functools
import hashlib
import os
import sys
from collections import deque
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import yaml

import fdaudit
import fdaudit.audit.pipeline
import fdaudit.scoring.run_directory
import fdaudit.transcript.manifest
from fdaudit.cli.app import main
from fdaudit.rng import SecretStream
from fdaudit.storage.vault import Secrets
from fdaudit.storage.writer import Work
from fdaudit.testing.specs import small_spec


def known(seed: int) -> Secrets:
    """The secrets that every run of the tests with this seed has (see `conftest.py`)."""
    return Secrets(seed, hashlib.sha256(f"tests/{seed}".encode()).digest())


def secrets_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes runs of one seed draw a secret each, and the same records and working seed all the same."""
    monkeypatch.setattr(Secrets, "draw", lambda seed=None: Secrets(seed, os.urandom(32)))
    monkeypatch.setattr(Secrets, "truth", lambda self, *path: stream(self.seed, *path))
    monkeypatch.setattr(Secrets, "working_seed", property(lambda self: self.seed))


def stream(seed: int, *path: str | int) -> SecretStream:
    """What decides the truth of a run of the tests with this seed."""
    return SecretStream(known(seed).secret, "truth", seed, *path)


def write_spec(path: Path, spec: Mapping[str, Any] | str) -> Path:
    """Writes a spec, or the text of one, as a file."""
    path.write_text(spec if isinstance(spec, str) else yaml.safe_dump(dict(spec)), encoding="utf-8")
    return path


def three_clients(**changes: Any) -> dict[str, Any]:
    """The spec of three clients on digits that train for two rounds, without references and attacks."""
    return {
        "seed": 3,
        "device": "cpu",
        "threads": 1,
        "profile": "quick",
        "clients": 3,
        "dataset": {"name": "digits", "limit": 240},
        "model": {"name": "mlp", "params": {"widths": [16]}},
        "protocol": {"name": "fedavg", "params": {"rounds": 2, "local_steps": 2, "batch_size": 16}},
        "references": [],
        "adversaries": ["server", "world"],
        "attacks": [],
        **changes,
    }


def finished(directory: Path, **changes: Any) -> Path:
    """Runs `small_spec` into a directory."""
    return fdaudit.run(small_spec(**changes), directory).directory


def cli(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *arguments: object
) -> tuple[int, str, str]:
    """Exit code, standard output and standard error of the real entry point, in this process."""
    monkeypatch.setattr(sys, "argv", ["fdaudit", *map(str, arguments)])
    capsys.readouterr()
    code: object = 0
    try:
        main()
    except SystemExit as end:
        code = end.code
    out, err = capsys.readouterr()
    assert isinstance(code, int) or code is None
    return code or 0, out, err


def tree(directory: Path, without: Sequence[str] = ("timings.json",)) -> dict[str, bytes]:
    """Every file below a directory by its relative path; links are an error."""
    found = {}
    for path in sorted(directory.rglob("*")):
        name = path.relative_to(directory).as_posix()
        assert not path.is_symlink(), f"{name} is a link"
        if path.is_file() and name not in without:
            found[name] = path.read_bytes()
    return found


def hasten(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leaves out what takes time and writes nothing: a case is made once for one spec, nothing waits for the disk."""
    real, cases = fdaudit.scoring.run_directory.simulated_case, dict[str, Any]()

    def make(spec: fdaudit.Spec, secrets: Secrets) -> Any:
        key = f"{spec.digest()}/{secrets}"
        return cases.get(key) or cases.setdefault(key, real(spec, secrets))

    monkeypatch.setattr(fdaudit.scoring.run_directory, "simulated_case", make)
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)
    monkeypatch.setattr(
        fdaudit.transcript.manifest, "version", functools.cache(fdaudit.transcript.manifest.version)
    )


class Waiting:
    """A writer that does as much of what waits as it is let, and all of it when it is drained."""

    def __init__(self) -> None:
        self._works, self._busy = deque[Work](), False

    def put(self, work: Work, size: int = 0) -> None:
        if self._busy:
            work()
        else:
            self._works.append(work)

    def let(self, count: int) -> None:
        self._busy = True
        try:
            for _ in range(min(count, len(self._works))):
                self._works.popleft()()
        except BaseException:
            self._works.clear()
            raise
        finally:
            self._busy = False

    def drain(self) -> None:
        if not self._busy:
            self.let(len(self._works))

    def close(self) -> None:
        with suppress(BaseException):
            self.drain()
