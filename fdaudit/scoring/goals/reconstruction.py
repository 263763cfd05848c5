"""Score reconstructed images against the records behind a victim's messages, or against its classes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from io import BytesIO
from pathlib import Path
from typing import Annotated, Any, ClassVar

import numpy as np
import PIL.Image
import torch
from pydantic import Field
from torch import Tensor

from fdaudit.errors import FdauditError, UsageError
from fdaudit.goals.reconstruction import GOAL, Reconstruction
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
from fdaudit.result import Image, Target, cell_directory, noted
from fdaudit.scoring.class_truth import class_priors, evaluate_classes, score_classes
from fdaudit.scoring.galleries import bystanders_of, gallery_tests
from fdaudit.scoring.goals.scorer import (
    CheckedTask,
    GoalScorer,
    Scores,
    ScoringInputs,
    refuse_other_senders,
    refuse_two_of_a_victim,
)
from fdaudit.scoring.goals.submission import FileName, Reader, Submission
from fdaudit.storage.files import write_atomically
from fdaudit.tasks import labels_of
from fdaudit.training.encoder import TaskEncoder
from fdaudit.types import Figure

__all__ = ["ReconstructionGuess", "ReconstructionScorer"]


_REMEDY = "Write float32 images (n, c, h, w) in [0, 1] under the name `images` beside the guesses."


class ReconstructionGuess(Submission):
    """Images reconstructed from messages of one victim."""

    explained: ClassVar[str] = "One for each victim, or for some."
    file: ClassVar[str] = "images"

    messages: tuple[Annotated[int, Field(ge=0)], ...] = Field(min_length=1)
    """`seq` of the messages from which the images were reconstructed; at most as many images as records behind them."""
    images: FileName
    """A safetensors file in the same folder: `images` (n, c, h, w) in [0, 1] and, if guessed, `labels` (n,) int64."""

    def guess(self, read: Reader, field: str, shape: tuple[int, ...]) -> Reconstruction:
        """Return the images of the file, float32."""
        field = f"{field}.images"
        tensors = read(self.images, field, _REMEDY)
        images, labels = tensors.get("images"), tensors.get("labels")
        if images is None or images.ndim != 4 or tuple(images.shape[1:]) != shape or not len(images):
            content = "no images" if images is None else f"images of shape {tuple(images.shape)}"
            problem = f"holds {content}, not (n, {', '.join(map(str, shape))})"
            raise UsageError(field, self.images, problem, _REMEDY)
        inside = images.is_floating_point() and bool(((images >= 0) & (images <= 1)).all())
        if not inside:
            raise UsageError(field, self.images, "holds images outside [0, 1]", _REMEDY)
        if labels is not None and (labels.dtype != torch.int64 or labels.shape != (len(images),)):
            raise UsageError(field, self.images, "holds labels that are not one int64 an image", _REMEDY)
        return Reconstruction(
            target=self.target, messages=self.messages, images=images.float(), labels=labels
        )

    @classmethod
    def entry(cls, guess: Reconstruction) -> tuple[dict[str, Any], dict[str, Tensor]]:
        """Return the messages of a guess; its images, and its labels if it has any, belong into a file."""
        tensors = {"images": guess.images.float().clamp(0, 1).contiguous()}
        if guess.labels is not None:
            tensors["labels"] = guess.labels.long().contiguous()
        return {"target": guess.target, "messages": list(guess.messages)}, tensors


class ReconstructionScorer(GoalScorer[Reconstruction]):
    """Scores reconstructed images."""

    goal = GOAL
    submission = ReconstructionGuess

    def __init__(self, inputs: ScoringInputs) -> None:
        super().__init__(inputs)
        try:
            self._lpips: torch.nn.Module | None = load_lpips()
        except WeightsUnavailableError:
            self._lpips = None  # the metric then says itself what is missing

    @classmethod
    def check(cls, guesses: Sequence[Reconstruction], asked: CheckedTask) -> None:
        """Refuse a mix of guesses about messages and about classes, and what is about neither.

        A guess names a message of its target that is in the view, and none of another client; or it shows one image of
        each class that it names. A victim has one guess.
        """
        for guess in guesses:
            if guess.by_class != guesses[0].by_class:
                raise ValueError("the attack returned reconstructions of messages and of classes")
            if guess.by_class:
                if (
                    guess.labels is None
                    or guess.labels.shape != (len(guess.images),)
                    or not len(guess.images)
                ):
                    raise ValueError(
                        f"{guess.target}: needs one class for each of {len(guess.images)} images"
                    )
                if len(guess.labels.unique()) < len(guess.labels):
                    problem = "shows a class more than once. Give one image a class at most"
                    raise ValueError(f"{guess.target}: {problem}")
            else:
                refuse_other_senders(guess, guess.messages, asked.view)
        refuse_two_of_a_victim(guesses)

    @classmethod
    def shown(cls, guess: Reconstruction) -> int:
        """Return the number of images, if they are of messages."""
        return 0 if guess.by_class else len(guess.images)

    def score(
        self, cell: str, guesses: Sequence[Reconstruction], assumed: Sequence[Assumption] = ()
    ) -> Scores:
        """Return the figures over all victims, and each victim's own with pictures."""
        whole = self.compared(guesses, assumed)
        adversary, _, _ = cell.rpartition("/")
        # Galleries hold no record that a client of the adversary trains on.
        clients = sorted(set(adversary.split("+")).intersection(self.case.clients))
        rows = [self.truth.rows(guess) for guess in guesses]
        tests = partial(gallery_tests, self.case, guesses, rows, clients)
        identification = self.scores.once("identification", guesses, tests, beside=clients)
        targets, notes = [], dict[str, None]()
        for guess in guesses:
            if guess.note:
                notes[guess.note] = None
            score = self.compared([guess], assumed)
            figures = [noted(figure, guess.note, "psnr") for figure in score.figures.values()]
            figures += self._evaluated([guess], assumed, together=False)
            figures += identification.targets[guess.target]
            images = self._pictures(cell, guess, score, assumed, identification.ranks[guess.target])
            targets.append(
                Target(target=guess.target, messages=guess.messages, figures=tuple(figures), images=images)
            )
        note = "; ".join(notes)
        figures = [noted(figure, note, "psnr") for figure in whole.figures.values()]
        figures += self._evaluated(guesses, assumed, together=True)
        figures += self.scores.once("distances", guesses, lambda draws: self._distances(guesses))
        figures += identification.figures
        return tuple(figures), tuple(targets)

    def compared(
        self, guesses: Sequence[Reconstruction], assumed: Sequence[Assumption] = ()
    ) -> ReconstructionScore:
        """Score reconstructions, one batch a guess, against the prior baseline from what the adversaries hold.

        The baseline knows each record's class, or with masks its site. With several labels a record it knows nothing.

        Raises:
            FdauditError: no record stands behind a victim's messages; Poisson sampling can draw empty batches.
        """
        what = "reconstruction"
        if not guesses[0].by_class:
            return self.scores.once(what, guesses, partial(self._score_messages, guesses))
        bystanders = bystanders_of(self.case, [g.target for g in guesses])
        classes = partial(score_classes, self.case, guesses, assumed, bystanders, self._lpips)
        return self.scores.once(what, guesses, classes, beside=assumed)

    def _score_messages(
        self, guesses: Sequence[Reconstruction], generator: np.random.Generator
    ) -> ReconstructionScore:
        groups = self.case.dataset.known_groups
        truths, labels, true_labels = list[Tensor](), list[Tensor](), list[Tensor]()
        for guess in guesses:
            x, _ = self.truth.behind(guess.target, guess.messages)
            if not len(x):
                raise FdauditError(
                    f"{guess.target}: no record stands behind its messages {list(guess.messages)}: the steps of its "
                    "training drew nobody. There is nothing to be reconstructed; raise the defence's sample_rate."
                )
            truths.append(x)
            if guess.labels is not None:
                labels.append(guess.labels)
            if groups is not None:
                true_labels.append(groups[self.truth.rows(guess)])
        auxiliary_x, auxiliary_groups = self._prior()
        victims = [guess.target for guess in guesses]
        return score_reconstruction(
            [guess.images for guess in guesses],
            truths,
            auxiliary_x,
            generator,
            guess_labels=labels if len(labels) == len(guesses) else None,
            true_labels=true_labels or None,
            auxiliary_labels=auxiliary_groups,
            bystanders=bystanders_of(self.case, victims),
            targets=victims,
            lpips_network=self._lpips,
        )

    def _evaluated(
        self, guesses: Sequence[Reconstruction], assumed: Sequence[Assumption], *, together: bool
    ) -> tuple[Figure, ...]:
        """Return figures of guesses of classes by the auditor's evaluator, for all victims or for one."""
        if not guesses[0].by_class:
            return ()
        evaluated = partial(evaluate_classes, self.case, guesses, assumed, together)
        return self.scores.once("evaluation", guesses, evaluated, beside=[assumed, together])

    def _distances(self, guesses: Sequence[Reconstruction]) -> tuple[Figure, ...]:
        """Measure the distance between all guesses and all true images as sets: FID, and the task encoder's."""
        guess_images, true_images = list[Tensor](), list[Tensor]()
        for guess in guesses:
            guess_images.append(guess.images)
            true_images.append(self.truth.records(guess)[0])
        images, truth = torch.cat(guess_images), torch.cat(true_images)
        if min(len(images), len(truth)) < 2:
            why = "a distance between sets needs at least two images on each side"
            fid = Figure(name="fid", value=None, unavailable=why)
            return fid, Figure(name="frechet_task_encoder", value=None, unavailable=why)
        fid = fid_figure(images, truth)
        if self.inputs.encode is not None:
            return fid, task_encoder_distance(images, truth, self.inputs.encode, TaskEncoder.name)
        why = "bring auxiliary records"
        if self.case.dataset.task.labels.dense:
            why = "the encoder learns classes, and masks are none"
        return fid, Figure(name="frechet_task_encoder", value=None, unavailable=why)

    def _prior(self) -> tuple[Tensor | None, Tensor | None]:
        """Return the images (m, c, h, w) that the prior baseline is made of, and their classes or sites (m,)."""
        x, y = others(self.case).prior
        return x, groups_of(self.case, y)

    def prior_images(
        self,
        guess: Reconstruction,
        score: ReconstructionScore,
        assumed: Sequence[Assumption] = (),
    ) -> Tensor | None:
        """Return the prior baseline's images for a score's true images, (rows, c, h, w) in the order of `score.images`.

        They are one draw of the baseline's best PSNR strategy. They are matched to the truth as guesses are, or belong
        to the class of the guess.
        """
        played = score.strategies.get("psnr", ())
        if not played or played[0] == OWN_IMAGES:
            return None
        x, y = self.truth.records(guess)
        generator = self.scores.draws("prior-images", [guess])
        rows = [r.truth for r in score.images]
        if guess.by_class:
            priors = class_priors(self.case, assumed)
            if priors is None:
                return None
            of = y[rows].numpy()  # a guess is of the class of its nearest record
            return priors.guess(played[0], of, generator).float()
        auxiliary, auxiliary_groups = self._prior()
        if auxiliary is None:
            return None
        own_groups, groups = None, self.case.dataset.known_groups
        if groups is not None:
            own_groups = groups[self.truth.rows(guess)].numpy()
        images = AuxiliaryPool(auxiliary, auxiliary_groups).guess(played[0], len(x), own_groups, generator)
        return images[match(images, x)].float()[rows]

    def _pictures(
        self,
        cell: str,
        guess: Reconstruction,
        score: ReconstructionScore,
        assumed: Sequence[Assumption],
        ranks: Mapping[int, Rank],
    ) -> tuple[Image, ...]:
        """Write true images and guesses as PNG; return one entry an image, most similar first."""
        x, y = self.truth.records(guess)
        folder = cell_directory(self.inputs.run, cell)
        prior = self.prior_images(guess, score, assumed)
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
                    true_label=int(y[row.truth]) if labels_of(y).one_class else None,
                    guessed_label=label,
                    rank=None if rank is None else rank.rank,
                    gallery=None if rank is None else rank.of,
                )
            )
        return tuple(entries)

    def _keep(self, path: Path, image: Tensor) -> str:
        """Write an image (c, h, w) in [0, 1] as 8-bit PNG, grey or RGB; return its path below the run directory."""
        pixels = (image.clamp(0, 1) * 255).round().to(torch.uint8).permute(1, 2, 0).cpu().numpy()
        if pixels.shape[2] != 3:
            pixels = pixels[:, :, 0]
        stream = BytesIO()
        PIL.Image.fromarray(np.ascontiguousarray(pixels)).save(stream, format="PNG")
        write_atomically(path, stream.getvalue(), sync=False)
        return path.relative_to(self.inputs.run).as_posix()
