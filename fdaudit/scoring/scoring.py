"""Score a cell's guesses by their goal, and keep membership scores in the vault."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from torch import Tensor

from fdaudit.errors import IntegrityError
from fdaudit.goals import Guess, challenged, goal_of
from fdaudit.goals.membership import Membership
from fdaudit.handout.auxiliary import Assumption
from fdaudit.result import Cell, plain_name
from fdaudit.scoring.goals import SCORERS
from fdaudit.scoring.goals.scorer import GoalScorer, Scores, ScoringInputs
from fdaudit.storage.digests import canonical
from fdaudit.storage.files import load_json
from fdaudit.storage.vault import Vault

__all__ = ["SCORED", "Part", "Scorer", "forget_other_scores", "keep_scores", "kept_scores", "outcome_path"]

Part = Literal["candidates", "canaries"]
"""What membership scores are about."""

SCORED = ("run", "inconclusive")
"""Outcomes of a cell that have figures and scores."""


class Scorer:
    """Scores the guesses of one run.

    Args:
        inputs: the auditor's side of the run.
    """

    def __init__(self, inputs: ScoringInputs) -> None:
        self._inputs = inputs
        self._by_goal: dict[str, GoalScorer[Any]] = {}

    def score(self, cell: str, guesses: Sequence[Guess], assumed: Sequence[Assumption] = ()) -> Scores:
        """Return the figures over all victims, and each victim's own with pictures or ROC.

        Args:
            cell: the cell's id; names its directory.
            guesses: of one goal, one a victim.
            assumed: the adversaries that guessed.
        """
        return self.of(guesses[0]).score(cell, guesses, assumed)

    def scorable(self, guesses: Sequence[Guess]) -> tuple[Guess, ...]:
        """Return the guesses about which the truth is on record."""
        scorable = list[Guess]()
        for guess in guesses:
            if self.of(guess).scorable(guess):
                scorable.append(guess)
        return tuple(scorable)

    def of(self, guess: Guess) -> GoalScorer[Any]:
        """Return the scorer of a guess's goal, which is made once."""
        name = goal_of(guess).name
        if name not in self._by_goal:
            self._by_goal[name] = SCORERS[name](self._inputs)
        return self._by_goal[name]


def outcome_path(run: Path, cell: str) -> Path:
    """Return the file of a cell's outcome."""
    return run / "attacks" / f"{plain_name(cell)}.json"


def keep_scores(vault: Vault, cell: Cell, guesses: Sequence[Guess], canaries: Sequence[Guess]) -> None:
    """Keep membership scores in the vault, of candidates and of canaries, by client.

    They are stored under the digest of their outcome. Scores of an earlier outcome of the cell stay until
    `forget_other_scores` is called for the new one.
    """
    scores = dict[str, Tensor]()
    for part, answers in (("candidates", guesses), ("canaries", canaries)):
        for guess in answers:
            if isinstance(guess, Membership):
                scores[f"{part}/{guess.target}"] = guess.scores.detach().cpu().double()
    vault.save(_scores_of(cell.plain()), scores)


def kept_scores(run: Path, cell: str, part: Part) -> dict[str, Tensor]:
    """Return an attack's scores (n,) of candidates or canaries, by client, in the order of their challenge.

    Raises:
        IntegrityError: the attack has run, but its scores are missing; ignoring this would hide its result.
    """
    path, vault = outcome_path(run, cell), Vault(run / "vault")
    outcome = load_json(path) if path.is_file() else {}
    if outcome.get("status") not in SCORED or not challenged(outcome.get("goal")):
        return {}
    if not vault.has(_scores_of(outcome)):
        problem = f"the vault does not hold the scores that the outcome of {cell} rests on"
        raise IntegrityError([f"{problem}: run the attack again"])
    by_client = dict[str, Tensor]()
    for name, scores in vault.load(_scores_of(outcome)).items():
        if name.startswith(f"{part}/"):
            by_client[name.removeprefix(f"{part}/")] = scores
    return by_client


def forget_other_scores(vault: Vault, cell: Cell) -> None:
    """Remove scores of a cell's other outcomes, once this outcome is in its file."""
    for name in vault.names(f"scores/{plain_name(cell.id)}"):
        if name != _scores_of(cell.plain()):
            vault.forget(name)


def _scores_of(outcome: Mapping[str, Any]) -> str:
    """Return the name under which the scores of a stored outcome are kept."""
    return f"scores/{plain_name(str(outcome['id']))}/{hashlib.sha256(canonical(dict(outcome))).hexdigest()}"
