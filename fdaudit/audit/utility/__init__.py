"""Utility of models on test records: a module for each main figure that a form of labels may name."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from fdaudit.audit.utility.accuracy import AccuracyOfClasses
from fdaudit.audit.utility.dice import DiceOfMasks
from fdaudit.audit.utility.mean_auc import MeanAucOfClasses
from fdaudit.audit.utility.measurement import Measurement
from fdaudit.tasks import Task

__all__ = ["MEASUREMENTS", "Measurement", "measurement_of"]

MEASUREMENTS: Mapping[str, Measurement] = MappingProxyType(
    {made.name: made for made in (AccuracyOfClasses(), MeanAucOfClasses(), DiceOfMasks())}
)
"""The measurements by the name of their main figure."""


def measurement_of(task: Task) -> Measurement:
    """Return how the utility of a task's models is measured."""
    return MEASUREMENTS[task.labels.figure]
