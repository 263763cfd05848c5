"""Learning tasks: an object for each, made of a form of inputs and a form of labels.

A form is a module with what differs: shapes and checks, losses, probabilities, draws, groups and words. Results, files
and the declarations of protocols and attacks name a task by its name. Torch is imported where tensors are made.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING

from fdaudit.tasks.inputs import Images, Inputs, Rows, Texts
from fdaudit.tasks.label_sets import LabelSets
from fdaudit.tasks.labels import Labels, Supervised, Unshared
from fdaudit.tasks.masks import Masks
from fdaudit.tasks.one_class import OneClass
from fdaudit.tasks.task import Task

if TYPE_CHECKING:
    from torch import Tensor

__all__ = [
    "LABELS",
    "MULTI_LABEL",
    "ONLY_SINGLE_LABEL",
    "SEGMENTATION",
    "SINGLE_LABEL",
    "TABLE",
    "TASKS",
    "TEXT",
    "Inputs",
    "Labels",
    "Supervised",
    "Task",
    "Unshared",
    "labels_of",
    "task_of",
    "tasks_named",
]

SINGLE_LABEL = Task(name="single-label", words="one label", inputs=Images(), labels=OneClass())
MULTI_LABEL = Task(name="multi-label", words="several labels", inputs=Images(), labels=LabelSets())
SEGMENTATION = Task(name="segmentation", words="masks", inputs=Images(), labels=Masks())
TEXT = Task(name="text", words="texts", inputs=Texts(), labels=OneClass())
TABLE = Task(name="table", words="rows", inputs=Rows(), labels=OneClass())

TASKS: Mapping[str, Task] = MappingProxyType(
    {task.name: task for task in (SINGLE_LABEL, MULTI_LABEL, SEGMENTATION, TEXT, TABLE)}
)
"""The tasks by name. A new task is a line here; a new form is a module of its own besides."""

LABELS: Mapping[int, Labels] = MappingProxyType({task.labels.ndim: task.labels for task in TASKS.values()})
"""The forms of labels by their number of dimensions."""

ONLY_SINGLE_LABEL: tuple[str, ...] = (SINGLE_LABEL.name,)
"""The tasks of a protocol or an attack that declares none."""


def labels_of(y: Tensor) -> Labels:
    """Return the form of labels: (n,) are of one class, (n, C) of several classes, (n, h, w) masks.

    Raises:
        ValueError: no form of labels has this number of dimensions.
    """
    if y.ndim not in LABELS:
        raise ValueError(f"labels_of: labels of shape {tuple(y.shape)} have no form.")
    return LABELS[y.ndim]


def task_of(x: Tensor, y: Tensor) -> Task:
    """Return the task of records with labels.

    Raises:
        ValueError: there is no task of such inputs and labels.
    """
    for task in TASKS.values():
        if task.inputs.fits(x) and task.labels.ndim == y.ndim:
            return task
    raise ValueError(f"task_of: inputs {tuple(x.shape)} with labels {tuple(y.shape)} are of no task.")


def tasks_named(names: Iterable[str]) -> tuple[Task, ...]:
    """Return the tasks of these names; names that fdaudit does not know are left out."""
    tasks = []
    for name in names:
        if name in TASKS:
            tasks.append(TASKS[name])
    return tuple(tasks)
