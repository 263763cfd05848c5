"""Turn guesses and truth into the figures, curves and pictures of a cell's result."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from fdaudit.errors import IntegrityError
from fdaudit.handout.auxiliary import Assumption
from fdaudit.metrics import (
    MembershipScore,
    Rank,
    ReconstructionScore,
    fid_figure,
    mean_and_worst,
    task_encoder_distance,
)
from fdaudit.result import TargetResult
from fdaudit.rng import child_numpy
from fdaudit.scoring.extraction import Copies
from fdaudit.scoring.ground_truth import Truth
from fdaudit.storage.digests import canonical
from fdaudit.storage.files import load_json, write_atomically
from fdaudit.storage.vault import Vault
from fdaudit.training.encoder import TaskEncoder
from fdaudit.types import Extraction, Figure, Guess, LabelDistribution, Membership, Reconstruction

if TYPE_CHECKING:
    from fdaudit.result import Cell

__all__ = [
    "SCORED",
    "Scorer",
    "cell_directory",
    "forget_other_scores",
    "keep_scores",
    "kept_scores",
    "outcome_path",
]


class Scorer:
    """Scores the guesses of one run.

    Args:
        truth: the auditor's side of every challenge.
        run: the run directory, where pictures go.
        seed: the run's seed, for bootstrap draws.
        encode: the task encoder, for distances between sets of images.
        copies: scores copies of models.
    """

    def __init__(
        self, truth: Truth, run: Path, seed: int, encode: Callable[[Tensor], Tensor], copies: Copies
    ) -> None:
        self._truth, self._run, self._seed, self._encode = truth, run, seed, encode
        self._copies = copies

    def score(
        self, cell: str, guesses: Sequence[Guess], assumed: Sequence[Assumption] = ()
    ) -> tuple[tuple[Figure, ...], tuple[TargetResult, ...]]:
        """Return the figures over all victims, and each victim's own with pictures or ROC.

        Args:
            cell: the cell's id; names its random draws and its directory.
            guesses: of one kind, one a victim.
            assumed: for reconstructions, the adversaries that guessed.
        """
        if isinstance(guesses[0], Membership):
            return self._score_membership(cell, [g for g in guesses if isinstance(g, Membership)])
        if isinstance(guesses[0], LabelDistribution):
            return self._score_labels(cell, [g for g in guesses if isinstance(g, LabelDistribution)])
        if isinstance(guesses[0], Extraction):
            return self._copies.score([g for g in guesses if isinstance(g, Extraction)], cell)
        images = [g for g in guesses if isinstance(g, Reconstruction)]
        return self._score_reconstruction(cell, images, assumed)

    def _score_membership(
        self, cell: str, guesses: Sequence[Membership]
    ) -> tuple[tuple[Figure, ...], tuple[TargetResult, ...]]:
        whole = self._truth.membership(guesses, cell)
        scores = {g.target: self._truth.membership([g], cell) for g in guesses}
        targets = tuple(
            TargetResult(
                target=guess.target,
                figures=(
                    *(_noted(f, guess.note) for f in scores[guess.target].figures.values()),
                    *self._truth.generated([guess], cell, self._encode),
                ),
                roc=_roc(scores[guess.target]),
            )
            for guess in guesses
        )
        figures = list(whole.figures.values())
        for name in figures[:]:
            generator = child_numpy(self._seed, "score", cell, name.name)
            figures.append(mean_and_worst({t: s.figures[name.name] for t, s in scores.items()}, generator)[1])
        return (*figures, *self._truth.generated(guesses, cell, self._encode)), targets

    def _score_labels(
        self, cell: str, guesses: Sequence[LabelDistribution]
    ) -> tuple[tuple[Figure, ...], tuple[TargetResult, ...]]:
        name, prior = self._truth.label_prior([g.target for g in guesses])
        scores = {g.target: self._truth.labels(g, name, prior) for g in guesses}
        targets = tuple(
            TargetResult(
                target=g.target,
                figures=tuple(scores[g.target].values()),
                shares={
                    "truth": self._truth.label_shares(g.target).tolist(),
                    "guess": g.distribution.double().tolist(),
                    "prior": prior.tolist(),
                },
            )
            for g in guesses
        )
        figures = []
        for figure in scores[guesses[0].target]:
            generator = child_numpy(self._seed, "score", cell, figure)
            by_client = {t: s[figure] for t, s in scores.items()}
            mean, worst = mean_and_worst(by_client, generator, higher_is_worse=False)
            # The client nearest to the prior is no victim of anything: of the prior the mean alone says something.
            figures += [mean] if figure.endswith("_prior") else [mean, worst]
        return tuple(figures), targets

    def _score_reconstruction(
        self, cell: str, guesses: Sequence[Reconstruction], assumed: Sequence[Assumption]
    ) -> tuple[tuple[Figure, ...], tuple[TargetResult, ...]]:
        whole = self._truth.reconstruction(guesses, cell, assumed)
        found = self._truth.identification(guesses, cell)
        targets = []
        for guess in guesses:
            own = f"{cell}/{guess.target}"
            score = self._truth.reconstruction([guess], own, assumed)
            shown = self._truth.evaluation([guess], own, assumed, False)
            targets.append(
                TargetResult(
                    target=guess.target,
                    messages=guess.messages,
                    figures=(
                        *(_noted(f, guess.note, "psnr") for f in score.figures.values()),
                        *shown,
                        *found.targets[guess.target],
                    ),
                    images=self._pictures(cell, guess, score, assumed, found.ranks[guess.target]),
                )
            )
        note = "; ".join(dict.fromkeys(filter(None, (g.note for g in guesses))))
        figures = (_noted(f, note, "psnr") for f in whole.figures.values())
        evaluated = self._truth.evaluation(guesses, cell, assumed, True)
        return (*figures, *evaluated, *self._distances(guesses), *found.figures), tuple(targets)

    def _distances(self, guesses: Sequence[Reconstruction]) -> tuple[Figure, ...]:
        """Measure the distance between all guesses and all true images as sets: FID, and the task encoder's."""
        guess = torch.cat([g.images for g in guesses])
        truth = torch.cat([self._truth.records(g)[0] for g in guesses])
        if min(len(guess), len(truth)) < 2:
            why = "a distance between sets needs at least two images on each side"
            return tuple(Figure(name=n, value=None, unavailable=why) for n in ("fid", "frechet_task_encoder"))
        return (
            fid_figure(guess, truth),
            task_encoder_distance(guess, truth, self._encode, TaskEncoder.name),
        )

    def _pictures(
        self,
        cell: str,
        guess: Reconstruction,
        score: ReconstructionScore,
        assumed: Sequence[Assumption],
        ranks: Mapping[int, Rank],
    ) -> tuple[Mapping[str, Any], ...]:
        """Write true images and guesses as PNG; return one entry an image, most similar first."""
        x, y = self._truth.records(guess)
        folder = cell_directory(self._run, cell)
        prior = self._truth.prior_images(guess, score, cell, assumed)
        entries = []
        for place, row in sorted(enumerate(score.images), key=lambda r: -r[1].psnr):
            # Guesses of classes may share a nearest record, so the guess's number names their pictures.
            number = row.guess if guess.by_class else row.truth
            stem = f"{guess.target.replace('/', '-')}-{number:03d}"
            paths = {"truth": f"{stem}-truth.png", "guess": f"{stem}-guess.png"}
            write_atomically(folder / paths["truth"], _png(x[row.truth]), sync=False)
            write_atomically(folder / paths["guess"], _png(guess.images[row.guess]), sync=False)
            if prior is not None:
                paths["prior"] = f"{stem}-prior.png"
                write_atomically(folder / paths["prior"], _png(prior[place]), sync=False)
            entries.append(
                {
                    "prior": None,
                    **{k: (folder / p).relative_to(self._run).as_posix() for k, p in paths.items()},
                    "psnr": row.psnr,
                    "prior_psnr": row.psnr_prior,
                    "ssim": row.ssim,
                    "true_label": int(y[row.truth]) if y.ndim == 1 else None,
                    "guessed_label": (
                        label := None if guess.labels is None else int(guess.labels[row.guess])
                    ),
                    **_ranked(ranks.get(label if guess.by_class and label is not None else row.truth)),
                }
            )
        return tuple(entries)


def _ranked(rank: Rank | None) -> dict[str, int]:
    """Return a record's rank in its gallery, for its picture; empty if it has no gallery."""
    return {} if rank is None else {"rank": rank.rank, "gallery": rank.of}


def _noted(figure: Figure, note: str, name: str = "auc") -> Figure:
    """Add the attack's note about its guess to the figure `name`; return other figures unchanged."""
    if figure.name != name or not note:
        return figure
    return replace(figure, note="; ".join(filter(None, [figure.note, note])))


def cell_directory(run: Path, cell: str) -> Path:
    """Return the directory of a cell's own files."""
    path = run / "attacks" / _plain(cell)
    path.mkdir(parents=True, exist_ok=True)
    return path


def outcome_path(run: Path, cell: str) -> Path:
    """Return the file of a cell's outcome."""
    return run / "attacks" / f"{_plain(cell)}.json"


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
    vault.save(_scores_of(cell.to_json()), values)


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
    for name in vault.names(f"scores/{_plain(cell.id)}"):
        if name != _scores_of(cell.to_json()):
            vault.forget(name)


SCORED = ("run", "inconclusive")
"""Outcomes of a cell that have figures and scores."""

_PARTS: tuple[Literal["candidates", "canaries"], ...] = ("candidates", "canaries")


def _plain(cell: str) -> str:
    """Return a cell's id as part of a file name."""
    return cell.replace("/", "-").replace("+", "_")


def _scores_of(outcome: Mapping[str, Any]) -> str:
    """Return the name under which the scores of a stored outcome are kept."""
    return f"scores/{_plain(str(outcome['id']))}/{hashlib.sha256(canonical(dict(outcome))).hexdigest()}"


def _png(image: Tensor) -> bytes:
    """Return an image (c, h, w) in [0, 1] as 8-bit PNG, grey or RGB."""

    pixels = (image.clamp(0, 1) * 255).round().to(torch.uint8).permute(1, 2, 0).cpu().numpy()
    array = pixels[:, :, 0] if pixels.shape[2] != 3 else pixels
    stream = BytesIO()
    Image.fromarray(np.ascontiguousarray(array)).save(stream, format="PNG")
    return stream.getvalue()


def _roc(score: MembershipScore) -> dict[str, Any]:
    return {"fpr": score.roc.fpr.tolist(), "tpr": score.roc.tpr.tolist()}
