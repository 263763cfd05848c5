"""Score guesses of classes against the records of those classes that each victim trains on."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from fdaudit.goals.reconstruction import Reconstruction
from fdaudit.handout.auxiliary import Assumption, others
from fdaudit.metrics import (
    Bystanders,
    ClassPriors,
    Judge,
    score_class_evaluation,
    score_class_reconstruction,
)
from fdaudit.scoring.galleries import unused_records
from fdaudit.types import Figure

if TYPE_CHECKING:
    from fdaudit.metrics import ReconstructionScore
    from fdaudit.planning.case import Case
    from fdaudit.training.evaluator import Evaluator

__all__ = ["auxiliary_of", "class_priors", "evaluate_classes", "judge_of", "score_classes", "withheld_of"]


def withheld_of(assumed: Sequence[Assumption]) -> list[tuple[int, ...]]:
    """Return the withheld classes of each adversary that lacks some."""
    return [one.lacks for one in assumed if one.lacks]


def class_priors(case: Case, assumed: Sequence[Assumption]) -> ClassPriors | None:
    """Return the priors that can guess each class without a view, or None if there are none."""
    x, y = auxiliary_of(case, assumed)
    return None if x is None else ClassPriors(x, y, withheld_of(assumed))


def score_classes(
    case: Case,
    guesses: Sequence[Reconstruction],
    assumed: Sequence[Assumption],
    bystanders: Bystanders | None,
    lpips: torch.nn.Module | None,
    generator: np.random.Generator,
) -> ReconstructionScore:
    """Score guesses of classes by their likeness to the nearest records.

    For a withheld class the adversary holds no image that could resemble a record. The prior is then the whole
    baseline. For other classes the guesses' likeness to bystanders counts as well.

    Args:
        case: the run's case.
        guesses: one a victim.
        assumed: the adversaries that guessed; default: one that holds the auxiliary records of `others`.
        bystanders: records that no guess is about.
        lpips: the network of LPIPS, if available.
        generator: randomness of the prior's guesses and of the bootstrap.
    """
    x, y = auxiliary_of(case, assumed)
    withheld = withheld_of(assumed)
    return score_class_reconstruction(
        *_beside(case, guesses),
        x,
        generator,
        auxiliary_labels=y,
        withheld=withheld,
        bystanders=None if withheld else bystanders,
        targets=[g.target for g in guesses],
        lpips_network=lpips,
    )


def evaluate_classes(
    case: Case,
    guesses: Sequence[Reconstruction],
    assumed: Sequence[Assumption],
    together: bool,
    generator: np.random.Generator,
) -> tuple[Figure, ...]:
    """Return figures of guesses of classes by the auditor's evaluator; none for the multi-label task.

    Args:
        case: the run's case.
        guesses: one a victim.
        assumed: the adversaries that guessed; default: one that holds the auxiliary records of `others`.
        together: whether the guesses cover all victims.
        generator: randomness of the prior's guesses, of the test and of the bootstrap.
    """
    dataset, strangers = case.dataset, None
    if not dataset.task.labels.one_class:
        return ()
    # Records that no client trains on and that neither an adversary nor the evaluator has seen.
    unused = unused_records(case, case.clients)
    if dataset.test_y is None:  # else the test records are no part of the dataset's own
        unused[case.splits.test] = False
    rows = unused.nonzero().flatten()
    if len(rows):
        strangers = Bystanders(dataset.x, rows.numpy(), dataset.y[rows].numpy())
    return score_class_evaluation(
        *_beside(case, guesses),
        judge_of(case.evaluator),
        generator,
        priors=class_priors(case, assumed),
        withheld=withheld_of(assumed),
        bystanders=strangers,
        together=together,
    )


def judge_of(evaluator: Evaluator) -> Judge:
    """Return an evaluator in the form that metrics use."""
    return Judge(evaluator.name, evaluator.classify, evaluator.features)


def auxiliary_of(
    case: Case, assumed: Sequence[Assumption]
) -> tuple[torch.Tensor | None, torch.Tensor | None]:
    """Return the records that one attack's adversaries hold together: images, and labels if known."""
    if len(assumed) > 1:
        return case.auxiliary
    (assumption,) = assumed or (others(case),)
    return assumption.prior


def _beside(
    case: Case, guesses: Sequence[Reconstruction]
) -> tuple[list[Any], list[Any], list[Any], list[Any]]:
    """Return guessed images and classes, and each victim's images and classes."""
    images, labels, records, classes = list[Any](), list[Any](), list[Any](), list[Any]()
    for guess in guesses:
        x, y = case.records(guess.target)
        images.append(guess.images)
        labels.append(guess.labels)
        records.append(x)
        classes.append(y)
    return images, labels, records, classes
