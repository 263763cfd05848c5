"""Score reconstructed images and texts against the records behind a victim's messages, or against its classes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from io import BytesIO
from pathlib import Path

import numpy as np
import PIL.Image
import torch
from torch import Tensor

from fdaudit.errors import FdauditError
from fdaudit.handout.auxiliary import Assumption, groups_of, others
from fdaudit.metrics import (
    OWN_IMAGES,
    AuxiliaryPool,
    Rank,
    ReconstructionScore,
    WeightsUnavailableError,
    fid_figure,
    load_lpips,
    match,
    score_reconstruction,
    task_encoder_distance,
)
from fdaudit.metrics.texts.overlap import bag
from fdaudit.metrics.texts.recovery import Recovered, score_texts
from fdaudit.result import Image, Target, cell_directory, noted
from fdaudit.rng import child_numpy
from fdaudit.scoring.class_truth import class_priors, evaluate_classes, score_classes
from fdaudit.scoring.galleries import bystanders_of, gallery_tests
from fdaudit.scoring.ground_truth import Truth
from fdaudit.storage.files import write_atomically
from fdaudit.training.encoder import TaskEncoder
from fdaudit.types import Figure, Reconstruction, TextReconstruction

__all__ = ["ReconstructionScorer", "score_recovered"]

_MOST_SHOWN = 12
"""Recovered words that a figure's note lists."""


class ReconstructionScorer:
    """Scores reconstructions.

    Args:
        truth: the auditor's side.
        run: the run directory, where pictures go.
        encode: the task encoder, for distances between sets of images; None without auxiliary records, or for masks.
    """

    def __init__(self, truth: Truth, run: Path, encode: Callable[[Tensor], Tensor] | None) -> None:
        self._truth, self._plan, self._run, self._encode = truth, truth.plan, run, encode
        try:
            self._lpips: torch.nn.Module | None = load_lpips()
        except WeightsUnavailableError:
            self._lpips = None  # the metric then says itself what is missing

    def score(
        self, cell: str, guesses: Sequence[Reconstruction], assumed: Sequence[Assumption]
    ) -> tuple[tuple[Figure, ...], tuple[Target, ...]]:
        """Return the figures over all victims, and each victim's own with pictures.

        Args:
            cell: the cell's id; names its random draws and its directory.
            guesses: one a victim.
            assumed: the adversaries that guessed.
        """
        whole = self.compared(guesses, cell, assumed)
        found = gallery_tests(self._plan, guesses, [self._truth.rows(g) for g in guesses], cell)
        targets = []
        for guess in guesses:
            own = f"{cell}/{guess.target}"
            score = self.compared([guess], own, assumed)
            shown = self._evaluated([guess], own, assumed, together=False)
            targets.append(
                Target(
                    target=guess.target,
                    messages=guess.messages,
                    figures=(
                        *(noted(f, guess.note, "psnr") for f in score.figures.values()),
                        *shown,
                        *found.targets[guess.target],
                    ),
                    images=self._pictures(cell, guess, score, assumed, found.ranks[guess.target]),
                )
            )
        note = "; ".join(dict.fromkeys(filter(None, (g.note for g in guesses))))
        figures = (noted(f, note, "psnr") for f in whole.figures.values())
        evaluated = self._evaluated(guesses, cell, assumed, together=True)
        return (*figures, *evaluated, *self._distances(guesses), *found.figures), tuple(targets)

    def compared(
        self, guesses: Sequence[Reconstruction], cell: str, assumed: Sequence[Assumption] = ()
    ) -> ReconstructionScore:
        """Score reconstructions, one batch a guess, against the prior baseline from what the adversaries hold.

        The baseline knows each record's class, or with masks its site. With several labels a record it knows nothing.

        Raises:
            FdauditError: no record stands behind a victim's messages; Poisson sampling can draw empty batches.
        """
        if guesses[0].by_class:
            beside = bystanders_of(self._plan, [g.target for g in guesses])
            return score_classes(self._plan, guesses, cell, assumed, beside, self._lpips)
        truths = [self._truth.behind(g.target, g.messages) for g in guesses]
        for guess, (x, _) in zip(guesses, truths, strict=True):
            if not len(x):
                raise FdauditError(
                    f"{guess.target}: no record stands behind its messages {list(guess.messages)}: the steps of its "
                    "training drew nobody. There is nothing to be reconstructed; raise the defence's sample_rate."
                )
        auxiliary_x, auxiliary_groups = self._prior()
        known = self._plan.dataset.known_groups
        labels = [g.labels for g in guesses if g.labels is not None]
        return score_reconstruction(
            [g.images for g in guesses],
            [x for x, _ in truths],
            auxiliary_x,
            child_numpy(self._plan.seed, "score", cell),
            guess_labels=labels if len(labels) == len(guesses) else None,
            true_labels=None if known is None else [known[self._truth.rows(g)] for g in guesses],
            auxiliary_labels=auxiliary_groups,
            bystanders=bystanders_of(self._plan, [g.target for g in guesses]),
            targets=[g.target for g in guesses],
            lpips_network=self._lpips,
        )

    def _evaluated(
        self, guesses: Sequence[Reconstruction], cell: str, assumed: Sequence[Assumption], *, together: bool
    ) -> tuple[Figure, ...]:
        """Return figures of guesses of classes by the auditor's evaluator, for all victims or for one."""
        by_class = guesses[0].by_class
        return evaluate_classes(self._plan, guesses, cell, assumed, together) if by_class else ()

    def _distances(self, guesses: Sequence[Reconstruction]) -> tuple[Figure, ...]:
        """Measure the distance between all guesses and all true images as sets: FID, and the task encoder's."""
        guess = torch.cat([g.images for g in guesses])
        truth = torch.cat([self._truth.records(g)[0] for g in guesses])
        if min(len(guess), len(truth)) < 2:
            why = "a distance between sets needs at least two images on each side"
            return tuple(Figure(name=n, value=None, unavailable=why) for n in ("fid", "frechet_task_encoder"))
        if self._encode is None:
            masks = self._plan.dataset.task == "segmentation"
            why = "the encoder learns classes, and masks are none" if masks else "bring auxiliary records"
            return fid_figure(guess, truth), Figure(name="frechet_task_encoder", value=None, unavailable=why)
        return (
            fid_figure(guess, truth),
            task_encoder_distance(guess, truth, self._encode, TaskEncoder.name),
        )

    def _prior(self) -> tuple[Tensor | None, Tensor | None]:
        """Return the images (m, c, h, w) that the prior baseline is made of, and their classes or sites (m,)."""
        x, y = others(self._plan).prior
        return x, groups_of(self._plan, y)

    def prior_images(
        self,
        guess: Reconstruction,
        score: ReconstructionScore,
        cell: str,
        assumed: Sequence[Assumption] = (),
    ) -> Tensor | None:
        """Return the prior baseline's images for a score's true images, (rows, c, h, w) in the order of `score.images`.

        They are one draw of the baseline's best PSNR strategy. They are matched to the truth as guesses are, or belong
        to the class of the guess.
        """
        played = score.strategies.get("psnr", ())
        if not played or played[0] == OWN_IMAGES:
            return None
        x, y = self._truth.records(guess)
        generator = child_numpy(self._plan.seed, "prior-images", cell, guess.target)
        rows = [r.truth for r in score.images]
        if guess.by_class:
            of = y[rows].numpy()  # a guess is of the class of its nearest record
            priors = class_priors(self._plan, assumed)
            return None if priors is None else priors.guess(played[0], of, generator).float()
        auxiliary, groups = self._prior()
        if auxiliary is None:
            return None
        known = self._plan.dataset.known_groups
        own = None if known is None else known[self._truth.rows(guess)].numpy()
        shown = AuxiliaryPool(auxiliary, groups).guess(played[0], len(x), own, generator)
        return shown[match(shown, x)].float()[rows]

    def _pictures(
        self,
        cell: str,
        guess: Reconstruction,
        score: ReconstructionScore,
        assumed: Sequence[Assumption],
        ranks: Mapping[int, Rank],
    ) -> tuple[Image, ...]:
        """Write true images and guesses as PNG; return one entry an image, most similar first."""
        x, y = self._truth.records(guess)
        folder = cell_directory(self._run, cell)
        prior = self.prior_images(guess, score, cell, assumed)
        entries = []
        for place, row in sorted(enumerate(score.images), key=lambda r: -r[1].psnr):
            # Guesses of classes may share a nearest record, so the guess's number names their pictures.
            number = row.guess if guess.by_class else row.truth
            stem = f"{guess.target.replace('/', '-')}-{number:03d}"
            label = None if guess.labels is None else int(guess.labels[row.guess])
            rank = ranks.get(label if guess.by_class and label is not None else row.truth)
            entries.append(
                Image(
                    truth=self._keep(folder / f"{stem}-truth.png", x[row.truth]),
                    guess=self._keep(folder / f"{stem}-guess.png", guess.images[row.guess]),
                    prior=None if prior is None else self._keep(folder / f"{stem}-prior.png", prior[place]),
                    psnr=row.psnr,
                    prior_psnr=row.psnr_prior,
                    ssim=row.ssim,
                    true_label=int(y[row.truth]) if y.ndim == 1 else None,
                    guessed_label=label,
                    rank=None if rank is None else rank.rank,
                    gallery=None if rank is None else rank.of,
                )
            )
        return tuple(entries)

    def _keep(self, path: Path, image: Tensor) -> str:
        """Write an image (c, h, w) as PNG, and return its path below the run directory."""
        write_atomically(path, _png(image), sync=False)
        return path.relative_to(self._run).as_posix()


def score_recovered(
    truth: Truth, cell: str, guesses: Sequence[TextReconstruction]
) -> tuple[tuple[Figure, ...], tuple[Target, ...]]:
    """Return the figures of recovered words and texts over all victims, and each victim's own.

    Args:
        truth: the auditor's side.
        cell: the cell's id; names its random draws.
        guesses: one a victim.

    Raises:
        FdauditError: no record stands behind a victim's messages.
        ValueError: a guess is no number of a word, or texts have another length.
    """
    plan, found = truth.plan, list[Recovered]()
    for guess in guesses:
        x, y = truth.behind(guess.target, guess.messages)
        if not len(x):
            raise FdauditError(
                f"{guess.target}: no record stands behind its messages {list(guess.messages)}."
            )
        _refuse_no_words(guess, len(plan.dataset.words), x.shape[1])
        texts = None if guess.texts is None else guess.texts.numpy()
        words = bag(guess.words.numpy())
        found.append(Recovered(words=words, texts=texts, truth=x.numpy(), labels=y.numpy()))
    auxiliary, beside = others(plan).prior[0], bystanders_of(plan, [g.target for g in guesses])
    empty = plan.dataset.x[:0]
    rows = torch.zeros(0, dtype=torch.int64) if beside is None else torch.from_numpy(beside.rows)
    given = (
        (empty if auxiliary is None else auxiliary).numpy(),
        (plan.dataset.x[rows].numpy(), plan.dataset.y[rows].numpy()),
    )
    whole = score_texts(found, *given, child_numpy(plan.seed, "score", cell))
    targets = []
    for guess, one in zip(guesses, found, strict=True):
        figures = score_texts([one], *given, child_numpy(plan.seed, "score", f"{cell}/{guess.target}"))
        names = [
            plan.dataset.words[w] for w in sorted(one.words & bag(one.truth), reverse=True)[:_MOST_SHOWN]
        ]
        note = f"rare words recovered: {', '.join(names)}" if names else ""
        told = tuple(noted(f, note, "token_f1") for f in figures.values())
        targets.append(Target(target=guess.target, messages=guess.messages, figures=told))
    return tuple(whole.values()), tuple(targets)


def _refuse_no_words(guess: TextReconstruction, words: int, length: int) -> None:
    """Refuse numbers that no word of the vocabulary has, and texts of another length."""
    told = guess.words if guess.texts is None else torch.cat([guess.words, guess.texts.flatten()])
    if bool((told >= words).any()):
        raise ValueError(f"{guess.target}: names the word {int(told.max())}; there are {words}")
    if guess.texts is not None and guess.texts.shape[1] != length:
        raise ValueError(f"{guess.target}: has texts of {guess.texts.shape[1]} tokens, not {length}")


def _png(image: Tensor) -> bytes:
    """Return an image (c, h, w) in [0, 1] as 8-bit PNG, grey or RGB."""

    pixels = (image.clamp(0, 1) * 255).round().to(torch.uint8).permute(1, 2, 0).cpu().numpy()
    array = pixels[:, :, 0] if pixels.shape[2] != 3 else pixels
    stream = BytesIO()
    PIL.Image.fromarray(np.ascontiguousarray(array)).save(stream, format="PNG")
    return stream.getvalue()
