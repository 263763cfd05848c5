"""Acceptance: a run that dies at any write and is resumed ends byte for byte as one that was never interrupted."""

from __future__ import annotations

import io
import json
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fdaudit
import fdaudit.audit.pipeline
import fdaudit.evaluation.controls.kept
import fdaudit.planning.case
from fdaudit.audit import simulation
from fdaudit.config import validate
from fdaudit.errors import IntegrityError, RunError, SpecError
from fdaudit.result import Control
from fdaudit.testing.specs import small_spec
from fdaudit.transcript.manifest import verify
from fdaudit.transcript.transcript import Transcript

from ..helpers.refusals import refused
from ..helpers.run_cases import Waiting, finished, hasten, tree

SPEC = small_spec(
    seed=11,
    protocol__params={
        "rounds": 2,
        "batch_size": 16,
        "local_steps": 1,
        "server_momentum": 0.5,
        "fraction": 0.5,
    },
    references=["standalone"],
    adversaries=["world"],
    attacks=[{"name": "loss-threshold"}],
    deviations=[{"party": "server", "name": "imprint", "params": {"rounds": [1]}}],
)
"""Everything that outlives a round takes part: server momentum, sampling of clients, a reference, an oracle's log; and
a server that deviates."""


# -- in process: every instant --------------------------------------------------------------------------------


class Killed(BaseException):
    """No code of fdaudit may catch this: the process is gone."""


WRITES = ("fsync", "replace", "rename", "unlink", "remove", "ftruncate", "mkdir", "link")


@contextmanager
def dying(at: int | None) -> Iterator[list[str]]:
    """Counts the calls that change a disk, and lets the one numbered `at` and all after it raise.

    A line of the log is written to its half before the death, a file to its half under its temporary name.
    """
    calls, patch = list[str](), pytest.MonkeyPatch()

    def mortal(
        name: str, real: Callable[..., Any], half: Callable[..., Any] | None = None
    ) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            calls.append(name)
            if at is not None and len(calls) > at:
                if half is not None and len(calls) == at + 1:
                    half(*args)
                raise Killed
            return real(*args, **kwargs)

        return call

    for name in WRITES:
        patch.setattr(os, name, mortal(name, getattr(os, name)))
    real_append = Transcript.append

    def append(self: Transcript, *args: Any) -> Any:
        file = self._files._log
        if not isinstance(file, Log):
            self._files._log = Log(file, mortal)  # type: ignore[assignment]
        return real_append(self, *args)

    patch.setattr(Transcript, "append", append)
    try:
        yield calls
    finally:
        patch.undo()


class Log:
    """A log whose writes can be the last thing that happens."""

    def __init__(self, real: io.FileIO, mortal: Callable[..., Any]) -> None:
        self._real = real
        self.write = mortal("write", real.write, lambda line: real.write(line[: len(line) // 2]))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The uninterrupted run."""
    out = tmp_path_factory.mktemp("whole") / "run"
    fdaudit.run(SPEC, out)
    return out


@pytest.fixture(autouse=True)
def temporary_files_go_with_the_test(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What dies leaves its exported views behind."""
    (tmp_path / "temporary").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))


@pytest.fixture
def swift(whole: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Leaves out what takes time and writes nothing, so that a run can die 200 times in seconds.

    Calls for the disk count as ever; the controls, which take most of a run's time and write one file, have the outcome
    that they had in the whole run.
    """
    hasten(monkeypatch)
    kept = json.loads((whole / "attacks" / "controls" / "loss-threshold.json").read_bytes())
    outcome = {name: validate(Control, value) for name, value in kept["controls"].items()}
    monkeypatch.setattr(fdaudit.evaluation.controls.kept, "controls", lambda attack, case, setting: outcome)
    # loss-threshold asks for none
    monkeypatch.setattr(fdaudit.planning.case, "TaskEncoder", lambda *args, **kwargs: None)


STRIDES = pytest.mark.parametrize(
    "every", [pytest.param(3, id="every-third"), pytest.param(1, id="each", marks=pytest.mark.slow)]
)
"""All writes take a minute on two cores; every third of them is for every day."""


def die_everywhere(
    spec: dict[str, Any],
    begun: Path | None,
    seed_from: Path,
    wanted: dict[str, bytes],
    folder: Path,
    every: int,
) -> list[str]:
    """From the same beginning, dies at calls that change the disk in turn and resumes; returns all such calls.

    `every` is the step from one of them to the next.
    """
    out = folder / "out"

    def begin() -> None:
        shutil.rmtree(out, ignore_errors=True)
        if begun is not None:
            shutil.copytree(begun, out)

    begin()
    fdaudit.run(spec, out, seed_from=seed_from, resume=True)  # the process of attacks stands by from here on
    begin()
    with dying(None) as calls:
        fdaudit.run(spec, out, seed_from=seed_from, resume=True)
    assert tree(out) == wanted
    # A flush changes nothing that a reader sees: dying there leaves what dying at the next call does.
    changing = [(at, call) for at, call in enumerate(calls) if call != "fsync"]
    for at, call in changing[::every]:
        begin()
        with dying(at) as seen, pytest.raises(Killed):
            fdaudit.run(spec, out, seed_from=seed_from, resume=True)
        assert len(seen) > at
        fdaudit.run(spec, out, seed_from=seed_from, resume=True)
        found = tree(out)
        assert found.keys() == wanted.keys(), f"killed at {at} ({call})"
        assert [name for name in wanted if found[name] != wanted[name]] == [], f"killed at {at} ({call})"
    return calls


@pytest.mark.thorough
@STRIDES
@pytest.mark.usefixtures("swift")
def test_dying_at_any_write_of_the_federation_and_resuming_changes_nothing(
    whole: Path, tmp_path: Path, every: int
) -> None:
    spec = {**SPEC, "attacks": []}
    fdaudit.run(spec, tmp_path / "whole", seed_from=whole)
    calls = die_everywhere(spec, None, whole, tree(tmp_path / "whole"), tmp_path, every)
    assert {"fsync", "mkdir", "replace", "ftruncate", "unlink", "write"} <= set(calls)
    assert len(calls) > 80


@pytest.mark.thorough
@STRIDES
@pytest.mark.usefixtures("swift")
def test_dying_at_any_write_of_rounds_that_wait_together_and_resuming_changes_nothing(
    tmp_path: Path, every: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first of four rounds becomes durable by itself, the others together."""
    spec = small_spec(seed=11, protocol__params={**SPEC["protocol"]["params"], "rounds": 4})
    whole = fdaudit.run(spec, tmp_path / "whole").directory
    monkeypatch.setattr(simulation, "BackgroundWriter", Waiting)
    calls = die_everywhere(spec, None, whole, tree(whole), tmp_path, every)
    assert {"mkdir", "replace", "ftruncate", "unlink", "write"} <= set(calls)
    assert len(calls) > 80


@pytest.mark.thorough
@STRIDES
@pytest.mark.usefixtures("swift")
def test_dying_at_any_write_of_the_attacks_and_resuming_changes_nothing(
    whole: Path, tmp_path: Path, every: int
) -> None:
    sealed = Path(shutil.copytree(whole, tmp_path / "sealed"))
    shutil.rmtree(sealed / "attacks")
    (sealed / "result.json").unlink()
    calls = die_everywhere(SPEC, sealed, whole, tree(whole), tmp_path, every)
    assert {"fsync", "mkdir", "replace", "write"} <= set(calls)
    assert len(calls) > 20


@pytest.mark.thorough
@pytest.mark.usefixtures("swift")
def test_dying_again_and_again_changes_nothing(whole: Path, tmp_path: Path) -> None:
    """A run that dies in its own resumption, too, every time a little later."""
    out, deaths, at = tmp_path / "killed", 0, 3
    while True:
        with dying(at):
            try:
                fdaudit.run(SPEC, out, seed_from=whole, resume=True)
                break
            except Killed:
                deaths += 1
                at += 7
    assert deaths >= 5
    assert tree(out) == tree(whole)


# -- the same bytes twice -------------------------------------------------------------------------------------


@pytest.mark.thorough
def test_one_spec_and_one_vault_seed_give_the_same_bytes(whole: Path, tmp_path: Path) -> None:
    again = tmp_path / "again"
    np.random.seed(1)  # noqa: NPY002  # whatever the global state is
    fdaudit.run(whole / "spec.yaml", again, seed_from=whole)  # as result.json's `reproduce` says
    assert tree(again) == tree(whole)


@pytest.mark.parametrize("strategy", ["loop", "stacked"])
def test_several_threads_give_the_same_bytes_twice(strategy: str, tmp_path: Path) -> None:
    spec = small_spec(clients=4, threads=2, strategy=strategy, model={"name": "cnn-strided"})
    first = finished(tmp_path / "first", **spec)
    fdaudit.run(spec, tmp_path / "second", seed_from=first)
    assert tree(tmp_path / "second") == tree(first)


def test_another_seed_or_another_secret_gives_another_head(whole: Path, tmp_path: Path) -> None:
    def head(run: Path) -> str:
        return str(json.loads((run / "manifest.json").read_bytes())["head"])

    fdaudit.run({**SPEC, "attacks": []}, tmp_path / "secret")  # the seed is the spec's, the secret is drawn
    fdaudit.run({**SPEC, "attacks": [], "seed": 99}, tmp_path / "seed")
    assert len({head(whole), head(tmp_path / "secret"), head(tmp_path / "seed")}) == 3
    same = [p.read_bytes() for p in sorted((whole / "transcript" / "payloads").iterdir())]
    assert same == [
        p.read_bytes() for p in sorted((tmp_path / "secret" / "transcript" / "payloads").iterdir())
    ]


def test_resuming_a_finished_run_changes_nothing(whole: Path, tmp_path: Path) -> None:
    out = Path(shutil.copytree(whole, tmp_path / "run"))
    fdaudit.run(SPEC, out, resume=True)
    assert tree(out) == tree(whole)
    fdaudit.run(None, out, resume=True)
    assert tree(out) == tree(whole)


def test_the_seed_is_nowhere_but_in_the_vault(whole: Path, tmp_path: Path) -> None:
    fdaudit.run(small_spec(seed=8_123_456_789_012_345), tmp_path / "run")
    secret = json.loads((tmp_path / "run" / "vault" / "secrets.json").read_bytes())["secret"].encode()
    holding = [
        n for n, data in tree(tmp_path / "run").items() if b"8123456789012345" in data or secret in data
    ]
    assert holding == ["vault/secrets.json"]


# -- what resuming refuses ------------------------------------------------------------------------------------


@pytest.fixture
def unfinished(whole: Path, tmp_path: Path) -> Path:
    """A run that died after its first round."""
    out = tmp_path / "unfinished"

    def tick(what: str, done: int, total: int) -> None:
        if done == 1:
            raise Killed

    with pytest.raises(Killed):
        fdaudit.run(SPEC, out, seed_from=whole, tick=tick)
    assert (out / "vault" / "round.json").is_file()
    assert not (out / "manifest.json").exists()
    return out


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("clients", 3),
        ("seed", 12),
        ("threads", 2),
        ("memory_format", "channels_last"),
        ("name", "another"),
        ("record", "digest"),
        ("attacks", []),
        ("protocol", {"name": "fedavg", "params": {"rounds": 4}}),
        ("dataset", {"name": "digits", "limit": 101}),
    ],
)
def test_a_changed_spec_is_refused_and_nothing_is_touched(
    field: str, value: object, unfinished: Path
) -> None:
    before = tree(unfinished, without=())
    refused(lambda: fdaudit.run({**SPEC, field: value}, unfinished, resume=True), field)
    assert tree(unfinished, without=()) == before


@pytest.mark.thorough
@pytest.mark.usefixtures("swift")
def test_what_the_rules_chose_need_not_be_repeated(whole: Path, unfinished: Path) -> None:
    """`auto` in the spec and the resolved value in the run are no change; nor is a seed left out."""
    left_open = {k: v for k, v in SPEC.items() if k not in ("seed", "threads", "device")}
    fdaudit.run(left_open, unfinished, resume=True)
    assert tree(unfinished) == tree(whole)


def test_another_vault_is_refused(unfinished: Path, tmp_path: Path) -> None:
    other = finished(tmp_path / "other")
    before = tree(unfinished, without=())
    with pytest.raises(RunError, match="seed or secret"):
        fdaudit.run(SPEC, unfinished, resume=True, seed_from=other)
    with pytest.raises(SpecError, match="in the vault"):
        fdaudit.run(SPEC, tmp_path / "new", seed_from=other)
    assert not (tmp_path / "new").exists()
    assert tree(unfinished, without=()) == before


def test_other_data_is_refused(tmp_path: Path) -> None:
    """The first rounds were trained on other records than the manifest would commit to."""
    draw = np.random.default_rng(0)
    arrays = {
        "train_images": draw.integers(0, 256, (120, 8, 8), dtype=np.uint8),
        "train_labels": np.arange(120) % 4,
    }
    np.savez(tmp_path / "data.npz", **arrays)
    spec = small_spec(dataset={"name": f"npz:{tmp_path / 'data.npz'}"})
    out = tmp_path / "run"
    with dying(60), pytest.raises(Killed):
        fdaudit.run(spec, out)
    arrays["train_images"][7, 3, 3] ^= 1
    np.savez(tmp_path / "data.npz", **arrays)
    before = tree(out, without=())
    with pytest.raises(RunError, match="data"):
        fdaudit.run(spec, out, resume=True)
    assert tree(out, without=()) == before
    arrays["train_images"][7, 3, 3] ^= 1
    np.savez(tmp_path / "data.npz", **arrays)
    fdaudit.run(spec, out, resume=True)
    assert verify(out) == []


@pytest.mark.thorough
@pytest.mark.parametrize(
    "damage",
    ["state changed", "state gone", "log cut", "log changed", "checkpoint", "checkpoint path", "secrets"],
)
def test_a_damaged_checkpoint_is_found_and_not_trained_on(damage: str, unfinished: Path) -> None:
    checkpoint = unfinished / "vault" / "round.json"
    (state,) = (unfinished / "vault" / "state").glob("*.safetensors")
    log = unfinished / "transcript" / "messages.jsonl"
    noted = json.loads(checkpoint.read_bytes())
    if damage == "state changed":
        data = bytearray(state.read_bytes())
        data[-1] ^= 1
        state.write_bytes(data)
    elif damage == "state gone":
        state.unlink()
    elif damage == "log cut":
        os.truncate(log, noted["transcript"]["offset"] - 1)
    elif damage == "log changed":
        data = bytearray(log.read_bytes())
        data[noted["transcript"]["offset"] - 30] ^= 1
        log.write_bytes(data)
    elif damage == "checkpoint":
        checkpoint.write_bytes(b'{"round": 0}')
    elif damage == "checkpoint path":
        checkpoint.write_text(json.dumps({**noted, "state": "../../state"}))
    else:
        (unfinished / "vault" / "secrets.json").write_bytes(b'{"seed": 1}')
    with pytest.raises(IntegrityError):
        fdaudit.run(None, unfinished, resume=True)
    assert not (unfinished / "manifest.json").exists()
