"""An attack stage that is interrupted keeps what is done, says how far it came, and goes on."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from fdaudit.attacks import REGISTRY

import fdaudit
from fdaudit import api, attacks
from fdaudit.cli.verdicts import outcome
from fdaudit.evaluation.unfinished import AttackStage, unfinished
from fdaudit.progress import TerminatedError, terminable
from fdaudit.result import Unfinished
from fdaudit.testing import RecordedFederation

FEW = ("gap", "label-counts")
AFTER = 4


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> fdaudit.Run:
    """A record of class counts and two attacks, of which one applies."""
    run = RecordedFederation(kind="class_counts").run(tmp_path)
    monkeypatch.setattr(REGISTRY, "_own", {name: attacks.REGISTRY._own[name] for name in FEW})
    monkeypatch.delitem(REGISTRY.__dict__, "_targets", raising=False)
    return api.load(run.directory)


def interrupt(after: int, how: Callable[..., Any]) -> Callable[[str, int, int], None]:
    """Return progress that is interrupted when so many cells are done."""

    def tick(what: str, done: int, total: int) -> None:
        if total and done == after:
            how()

    return tick


def raises(error: type[BaseException]) -> Callable[..., Any]:
    def how(*arguments: object) -> None:
        raise error

    return how


def total(run: fdaudit.Run) -> int:
    return len(FEW) * len(api.every_adversary(run))


@pytest.mark.parametrize("error", [KeyboardInterrupt, TerminatedError, OSError, MemoryError])
def test_what_is_done_is_kept_and_counted(error: type[BaseException], run: fdaudit.Run) -> None:
    with pytest.raises(error):
        api.attack_all(run, interrupt(AFTER, raises(error)))
    result = run.result
    assert result.unfinished == Unfinished(done=AFTER, of=total(run))
    assert sum(cell.status != "not-tested" for cell in result.cells) == AFTER
    assert len(result.cells) == total(run)
    said = f"{AFTER} of {total(run)} tests done"
    page = api.report(run, run.directory.parent / "page.html")
    public = api.report(run, run.directory.parent / "public.html", public=True)
    for text in ("\n".join(outcome(result)), page.read_text("utf-8"), public.read_text("utf-8")):
        assert said in text
        assert "attack was tried" not in text.lower()
    assert json.loads(page.with_suffix(".json").read_bytes())["result"]["unfinished"]["done"] == AFTER
    assert any(said in limit for limit in result.limits)


def test_the_next_call_goes_on(run: fdaudit.Run, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(KeyboardInterrupt):
        api.attack_all(run, interrupt(AFTER, raises(KeyboardInterrupt)))
    kept = {path.name: path.read_bytes() for path in (run.directory / "attacks").glob("*.json")}
    counts: list[int] = []
    cells = api.attack_all(run, lambda what, done, of: counts.append(done) if of else None)
    assert counts[0] == AFTER + 1
    assert len(cells) == total(run)
    assert run.result.unfinished is None
    for name, before in kept.items():
        assert (run.directory / "attacks" / name).read_bytes() == before
    anew: list[int] = []
    api.attack_all(run, lambda what, done, of: anew.append(done) if of else None)
    assert anew[0] == 1


def test_a_killed_stage_is_counted_when_the_run_is_opened(run: fdaudit.Run, monkeypatch) -> None:
    tick = interrupt(AFTER, raises(KeyboardInterrupt))
    with monkeypatch.context() as patch:
        patch.setattr(
            "fdaudit.audit.summary.conclude", raises(KeyboardInterrupt)
        )  # a kill leaves no time to conclude
        with pytest.raises(KeyboardInterrupt):
            api.attack_all(run, tick)
    assert run.result.unfinished is None
    assert api.load(run.directory).result.unfinished == Unfinished(done=AFTER, of=total(run))


@pytest.mark.parametrize(
    "text", ["", "[]", "{}", '{"wanted": {"a": 1}, "done": []}', '{"wanted": 3, "done": 4}']
)
def test_a_damaged_list_counts_as_none(text: str, run: fdaudit.Run) -> None:
    vault = run.opened.vault
    (vault.directory / "attack-stage.json").write_text(text)
    assert unfinished(vault) is None
    assert AttackStage.begin(vault, ()).done == set()


def test_a_process_that_is_told_to_end_ends_as_after_an_interrupt() -> None:
    before = signal.getsignal(signal.SIGTERM)
    with terminable(), pytest.raises(TerminatedError):
        signal.raise_signal(signal.SIGTERM)
    assert signal.getsignal(signal.SIGTERM) is before
