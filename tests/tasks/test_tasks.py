"""Learning tasks: each object answers for its forms of inputs and labels, as computed here in another way."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest
import torch

from fdaudit.audit.utility import MEASUREMENTS, measurement_of
from fdaudit.result import CurvePoint
from fdaudit.rng import SecretStream, child
from fdaudit.tasks import (
    LABELS,
    MULTI_LABEL,
    SEGMENTATION,
    SINGLE_LABEL,
    TABLE,
    TASKS,
    TEXT,
    Task,
    labels_of,
    task_of,
    tasks_named,
)
from fdaudit.training.objectives import loss_function

CLASSES, SHAPE, N = 3, (1, 8, 6), 40
EVERY = pytest.mark.parametrize("task", TASKS.values(), ids=lambda task: task.name)


def shape_of(task: Task) -> tuple[int, ...]:
    return (5,) if task in (TEXT, TABLE) else SHAPE


def drawn(task: Task) -> torch.Tensor:
    """Random labels of a task."""
    return task.labels.random(N, CLASSES, shape_of(task), child(0, "labels"))


def logits(task: Task) -> torch.Tensor:
    return torch.randn(N, *task.labels.answer_shape(CLASSES, shape_of(task)), generator=child(0, "logits"))


def inputs(task: Task) -> torch.Tensor:
    if task == TEXT:
        return torch.randint(9, (N, 5), generator=child(0, "inputs"))
    if task == TABLE:
        return 4 * torch.randn(N, 5, generator=child(0, "inputs"))
    return torch.rand(N, *SHAPE, generator=child(0, "inputs"))


def stream() -> SecretStream:
    return SecretStream(b"0" * 16, "tasks")


# -- every task -----------------------------------------------------------------------------------------------


def test_a_task_is_listed_by_its_name() -> None:
    assert all(name == task.name for name, task in TASKS.items())
    assert tasks_named(["text", "acme/rows"]) == (TEXT,)


@EVERY
def test_records_and_labels_tell_the_task(task: Task) -> None:
    assert task_of(inputs(task), drawn(task)) == task
    assert labels_of(drawn(task)) == task.labels
    assert task.inputs.misfit(inputs(task), 9 if task == TEXT else 0) is None


def test_other_shapes_are_of_no_task() -> None:
    with pytest.raises(ValueError, match="of no task"):
        task_of(torch.zeros(2, 3), torch.zeros(2, 3, dtype=torch.int64))
    with pytest.raises(ValueError, match="have no form"):
        labels_of(torch.zeros(1, 1, 1, 1))


@EVERY
def test_labels_have_the_stated_shape_and_bounds(task: Task) -> None:
    bounds = task.labels.bounds(CLASSES)
    for y in (drawn(task), task.labels.stand_ins(N, CLASSES, shape_of(task), child(0, "stand-ins"))):
        assert y.shape == (N, *task.labels.shape(CLASSES, shape_of(task)))
        assert y.ndim == task.labels.ndim
        assert bounds.least <= int(y.min()) <= int(y.max()) <= bounds.most


@EVERY
def test_the_likelihood_is_minus_the_loss_on_average(task: Task) -> None:
    z, y, labels = logits(task).double(), drawn(task), task.labels
    found = labels.log_likelihood(labels.probabilities(z), y, 1e-300)
    name = "binary-cross-entropy" if task == MULTI_LABEL else "cross-entropy"
    scale = CLASSES if task == MULTI_LABEL else 1  # that loss is a mean over classes
    assert float(-found.mean()) == pytest.approx(scale * float(loss_function(name, 1.0)(z, y)))


@EVERY
def test_answers_that_are_the_labels_are_fitted_and_others_are_not(task: Task) -> None:
    y, z = drawn(task), logits(task)
    assert not bool(task.labels.fitted(z, y).all())
    hot = y if task == MULTI_LABEL else torch.nn.functional.one_hot(y, CLASSES).movedim(-1, 1)
    right = 2.0 * hot - 1
    assert torch.equal(task.labels.predicted(right), y)
    assert bool(task.labels.fitted(right, y).all())


@EVERY
def test_every_home_is_a_client(task: Task) -> None:
    home = task.labels.home(drawn(task), 4)
    assert home.shape == (N,)
    assert set(home.tolist()) <= set(range(4))


@EVERY
def test_the_objective_is_a_loss_of_these_labels(task: Task) -> None:
    loss = loss_function(task.labels.objective, 1.0)
    assert torch.isfinite(loss(logits(task), drawn(task)))


@EVERY
def test_utility_is_measured_and_drawn_by_round(task: Task) -> None:
    measurement = measurement_of(task)
    assert measurement.name == task.labels.figure
    assert set(measurement.curve) <= set(measurement.columns) & CurvePoint.model_fields.keys()
    assert MEASUREMENTS.keys() == {labels.figure for labels in LABELS.values()}


# -- single tasks ---------------------------------------------------------------------------------------------


def test_counts_agree_with_numpy() -> None:
    y = drawn(SINGLE_LABEL)
    assert SINGLE_LABEL.labels.counts(y, 5).tolist() == np.bincount(y.numpy(), minlength=5).tolist()
    several = torch.tensor([[1, 0, -1], [1, 1, 0]])
    assert MULTI_LABEL.labels.counts(several, 3).tolist() == [2, 1, 0]
    masks = drawn(SEGMENTATION)
    assert int(SEGMENTATION.labels.counts(masks, CLASSES).sum()) == masks.numel()


def test_answers_of_masks_and_of_one_class_have_their_confidence() -> None:
    p = SINGLE_LABEL.labels.probabilities(logits(SINGLE_LABEL).double())
    y = drawn(SINGLE_LABEL)
    mine = p[torch.arange(N), y]
    assert torch.allclose(SINGLE_LABEL.labels.confidence(p, y, 1e-12), (mine / (1 - mine)).log())
    labels, y = SEGMENTATION.labels, drawn(SEGMENTATION)
    with pytest.raises(TypeError, match="no confidence"):
        labels.confidence(torch.zeros(N, CLASSES, *SHAPE[1:]), y, 0.0)
    for call in (lambda: labels.canaries(2, CLASSES, stream()), lambda: labels.other(y, CLASSES, stream())):
        with pytest.raises(TypeError, match="masks"):
            call()
    with pytest.raises(TypeError, match="no main class"):
        labels.main_class(y, stream())


def test_a_main_class_is_the_records_own_and_wrong_labels_are_wrong() -> None:
    y = torch.tensor([[0, 1, 1], [0, 0, 0], [-1, 0, 1]])
    main = MULTI_LABEL.labels.main_class(y, stream()).tolist()
    assert main[0] in (1, 2)
    assert main[1:] == [3, 2]  # without a class; the only one
    y = drawn(SINGLE_LABEL)
    assert not bool((SINGLE_LABEL.labels.other(y, CLASSES, stream()) == y).any())
    assert MULTI_LABEL.labels.other(torch.tensor([[1, 0, -1]]), 3, stream()).tolist() == [[0, 1, -1]]


def test_a_guess_may_use_the_class_of_an_image_and_the_site_of_a_mask() -> None:
    y, sites = torch.tensor([1, 0]), torch.tensor([4, 5])
    assert SINGLE_LABEL.known_groups(y, sites) is y
    assert SEGMENTATION.known_groups(y, sites) is sites
    assert SEGMENTATION.known_groups(y, None) is None
    assert MULTI_LABEL.known_groups(y, sites) is None
    assert TEXT.known_groups(y, sites) is None
    assert TABLE.known_groups(y, None) is y


@pytest.mark.parametrize(
    ("task", "able", "words"),
    [
        (TEXT, (SINGLE_LABEL,), "works on images, not on texts"),
        (SINGLE_LABEL, (TEXT,), "works on texts, not on images"),
        (TABLE, (SINGLE_LABEL,), "works on images, not on rows of a table"),
        (SEGMENTATION, (TEXT,), "works on texts, not on images"),
        (SEGMENTATION, (SINGLE_LABEL, TEXT), "not one for each pixel"),
        (MULTI_LABEL, (SINGLE_LABEL,), "not multi-label"),
        (SINGLE_LABEL, (MULTI_LABEL,), "other labels than one class"),
    ],
)
def test_an_attack_is_told_what_it_would_need(task: Task, able: tuple[Task, ...], words: str) -> None:
    assert words in task.unmet(able)


@pytest.mark.parametrize(
    ("task", "x", "words", "problem"),
    [
        (SINGLE_LABEL, torch.full((1, 1, 2, 2), 2.0), 0, "values in"),
        (SINGLE_LABEL, torch.full((1, 1, 2, 2), torch.nan), 0, "NaN"),
        (SINGLE_LABEL, torch.zeros(1, 1, 2, 2), 3, "has 3 words"),
        (SINGLE_LABEL, torch.zeros(1, 1, 2, 2, dtype=torch.uint8), 0, "uint8"),
        (TEXT, torch.tensor([[3]]), 3, "tokens from 3 to 3"),
        (TEXT, torch.zeros(1, 0, dtype=torch.int64), 3, "has texts"),
        (TABLE, torch.zeros(1, 2, dtype=torch.float16), 0, "has rows torch.float16"),
        (TABLE, torch.zeros(1, 0), 0, "has rows"),
        (TABLE, torch.full((1, 2), torch.inf), 0, "NaN or infinite"),
    ],
)
def test_unfit_records_are_refused(task: Task, x: torch.Tensor, words: int, problem: str) -> None:
    misfit = task.inputs.misfit(x, words)
    assert misfit is not None
    assert problem in misfit.problem


def test_reading_the_tasks_imports_no_torch() -> None:
    code = "import sys, fdaudit.tasks; assert not {'torch', 'numpy', 'pydantic'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=600)
