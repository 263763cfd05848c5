"""Score a cell's guesses by their goal, and keep membership scores in the vault."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from torch import Tensor

from fdaudit.errors import IntegrityError
from fdaudit.handout.auxiliary import Assumption
from fdaudit.result import Cell, Target, plain_name
from fdaudit.scoring.extraction import Copies
from fdaudit.scoring.ground_truth import Truth
from fdaudit.scoring.label_distribution import score_labels
from fdaudit.scoring.membership import MembershipScorer
from fdaudit.scoring.reconstruction import ReconstructionScorer, score_recovered
from fdaudit.storage.digests import canonical
from fdaudit.storage.files import load_json
from fdaudit.storage.vault import Vault
from fdaudit.types import (
    Extraction,
    Figure,
    Guess,
    LabelDistribution,
    Membership,
    Reconstruction,
    TextReconstruction,
)

__all__ = ["SCORED", "Scorer", "forget_other_scores", "keep_scores", "kept_scores", "outcome_path"]


class Scorer:
    """Scores the guesses of one run.

    Args:
        truth: the auditor's side of every challenge.
        run: the run directory, where pictures go.
        encode: the task encoder, for distances between sets of images; None without auxiliary records.
        copies: scores copies of models.
    """

    def __init__(
        self, truth: Truth, run: Path, encode: Callable[[Tensor], Tensor] | None, copies: Copies
    ) -> None:
        self._truth, self._copies = truth, copies
        self._membership = MembershipScorer(truth, encode)
        self._reconstruction = ReconstructionScorer(truth, run, encode)

    def score(
        self, cell: str, guesses: Sequence[Guess], assumed: Sequence[Assumption] = ()
    ) -> tuple[tuple[Figure, ...], tuple[Target, ...]]:
        """Return the figures over all victims, and each victim's own with pictures or ROC.

        Args:
            cell: the cell's id; names its random draws and its directory.
            guesses: of one kind, one a victim.
            assumed: for reconstructions, the adversaries that guessed.
        """
        if isinstance(guesses[0], Membership):
            return self._membership.score(cell, [g for g in guesses if isinstance(g, Membership)])
        if isinstance(guesses[0], LabelDistribution):
            return score_labels(self._truth, cell, [g for g in guesses if isinstance(g, LabelDistribution)])
        if isinstance(guesses[0], Extraction):
            return self._copies.score([g for g in guesses if isinstance(g, Extraction)], cell)
        if isinstance(guesses[0], TextReconstruction):
            return score_recovered(
                self._truth, cell, [g for g in guesses if isinstance(g, TextReconstruction)]
            )
        images = [g for g in guesses if isinstance(g, Reconstruction)]
        return self._reconstruction.score(cell, images, assumed)


def outcome_path(run: Path, cell: str) -> Path:
    """Return the file of a cell's outcome."""
    return run / "attacks" / f"{plain_name(cell)}.json"


def keep_scores(vault: Vault, cell: Cell, guesses: Sequence[Guess], canaries: Sequence[Guess]) -> None:
    """Keep membership scores in the vault, of candidates and of canaries, by client.

    They are stored under the digest of their outcome. Scores of an earlier outcome of the cell stay until
    `forget_other_scores` is called for the new one.
    """
    named = {
        f"{part}/{g.target}": g.scores
        for part, found in zip(_PARTS, (guesses, canaries), strict=True)
        for g in found
        if isinstance(g, Membership)
    }
    values = {name: scores.detach().cpu().double() for name, scores in named.items()}
    vault.save(_scores_of(cell.plain()), values)


def kept_scores(run: Path, cell: str, part: Literal["candidates", "canaries"]) -> dict[str, Tensor]:
    """Return an attack's scores (n,) of candidates or canaries, by client, in the order of their challenge.

    Raises:
        IntegrityError: the attack has run, but its scores are missing; ignoring this would hide its result.
    """
    path, vault = outcome_path(run, cell), Vault(run / "vault")
    outcome = load_json(path) if path.is_file() else {}
    if outcome.get("status") not in SCORED or outcome.get("goal") != "membership":
        return {}
    if not vault.has(_scores_of(outcome)):
        problem = f"the vault does not hold the scores that the outcome of {cell} rests on"
        raise IntegrityError([f"{problem}: run the attack again"])
    found = vault.load(_scores_of(outcome))
    return {n.removeprefix(f"{part}/"): scores for n, scores in found.items() if n.startswith(f"{part}/")}


def forget_other_scores(vault: Vault, cell: Cell) -> None:
    """Remove scores of a cell's other outcomes, once this outcome is in its file."""
    for name in vault.names(f"scores/{plain_name(cell.id)}"):
        if name != _scores_of(cell.plain()):
            vault.forget(name)


SCORED = ("run", "inconclusive")
"""Outcomes of a cell that have figures and scores."""

_PARTS: tuple[Literal["candidates", "canaries"], ...] = ("candidates", "canaries")


def _scores_of(outcome: Mapping[str, Any]) -> str:
    """Return the name under which the scores of a stored outcome are kept."""
    return f"scores/{plain_name(str(outcome['id']))}/{hashlib.sha256(canonical(dict(outcome))).hexdigest()}"
