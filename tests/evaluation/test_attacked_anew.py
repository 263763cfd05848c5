"""An attack that is run anew: its outcome and the scores behind it change together, wherever it is interrupted."""

from __future__ import annotations

import itertools
import os
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from fdaudit.attacks.loss_threshold import LossThreshold

import fdaudit
from fdaudit.scoring.scoring import kept_scores
from fdaudit.testing.specs import small_spec


class Killed(BaseException):
    """The process is gone."""


def evidence(run: Path) -> dict[str, torch.Tensor]:
    return kept_scores(run, "server/loss-threshold", "candidates")


@pytest.mark.thorough
@pytest.mark.usefixtures("attacks_here")
def test_an_attack_that_is_killed_anywhere_leaves_the_old_outcome_with_its_scores_or_the_new_one(
    tmp_path: Path,
) -> None:
    """Killed at every rename and removal in turn; until the new outcome stands the old one has its scores."""
    first = fdaudit.run(
        small_spec(attacks=[{"name": "loss-threshold"}], threads=1, seed=9), tmp_path / "first"
    ).directory
    outcome = "attacks/server-loss-threshold.json"
    old, old_scores = (first / outcome).read_bytes(), evidence(first)["client/0"]
    whole = Path(shutil.copytree(first, tmp_path / "whole"))

    def again(run: Path) -> None:
        with pytest.MonkeyPatch.context() as patch:  # another answer than before
            real = LossThreshold.run
            patch.setattr(LossThreshold, "run", lambda *given: tuple(map(turned, real(*given))))
            fdaudit.attack("loss-threshold", fdaudit.load(run), "server")

    def turned(guess: Any) -> Any:
        return replace(guess, scores=-guess.scores)

    again(whole)
    new = (whole / outcome).read_bytes()
    assert new != old
    assert torch.equal(evidence(whole)["client/0"], -old_scores)
    assert len(list((whole / "vault" / "scores" / "server-loss-threshold").iterdir())) == 1
    states = []
    for at in itertools.count():
        run = Path(shutil.copytree(first, tmp_path / f"killed-{at}"))
        if not killed(at, lambda run=run: again(run)):
            break
        found = (run / outcome).read_bytes()
        assert found in (old, new), at
        assert torch.equal(evidence(run)["client/0"], old_scores if found == old else -old_scores), at
        states.append(found == old)
        fdaudit.run(None, run, resume=True)
        assert torch.equal(evidence(run)["client/0"], old_scores if found == old else -old_scores), at
        shutil.rmtree(run)
    assert {True, False} == set(states)
    assert len(states) > 4


def killed(at: int, work: Callable[[], object]) -> bool:
    """Whether work that dies at its rename or removal numbered `at` came so far."""
    calls = itertools.count()

    def mortal(real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **named: Any) -> Any:
            if next(calls) >= at:
                raise Killed
            return real(*arguments, **named)

        return call

    with pytest.MonkeyPatch.context() as patch:
        for name in ("replace", "rename", "unlink"):
            patch.setattr(os, name, mortal(getattr(os, name)))
        try:
            work()
        except Killed:
            return True
    return False


@pytest.mark.usefixtures("attacks_here")
def test_an_attack_that_fails_when_it_is_run_anew_takes_its_scores_with_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = fdaudit.run(small_spec(attacks=[{"name": "loss-threshold"}]), tmp_path / "run")
    assert evidence(run.directory)

    def broken(*_: object) -> None:
        raise RuntimeError("no")

    monkeypatch.setattr(LossThreshold, "run", broken)
    assert fdaudit.attack("loss-threshold", run, "server").status == "failed"
    assert evidence(run.directory) == {}
    assert list((run.directory / "vault" / "scores" / "server-loss-threshold").iterdir()) == []


def test_scores_of_cells_that_processes_ran_belong_to_their_outcomes(tmp_path: Path) -> None:
    asked = small_spec(attacks=[{"name": "loss-threshold"}], adversaries=["server", "client/1"], threads=2)
    run = fdaudit.run(asked, tmp_path / "run").directory
    for adversary in ("server", "client/1"):
        (scores,) = kept_scores(run, f"{adversary}/loss-threshold", "candidates").values()
        assert scores.shape == (8,)
