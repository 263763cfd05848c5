"""Utility of models that name one class for each record: accuracy and macro-F1."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from fdaudit.audit.utility.measurement import Measurement
from fdaudit.metrics import Chance, accuracy, clopper_pearson, constant_accuracy, macro_f1
from fdaudit.types import Figure

if TYPE_CHECKING:
    from torch import Tensor

    from fdaudit.planning.case import Case

__all__ = ["AccuracyOfClasses"]


class AccuracyOfClasses(Measurement):
    """Accuracy on test records, with its Clopper-Pearson interval."""

    name: ClassVar[str] = "accuracy"
    columns: ClassVar[tuple[str, ...]] = ("accuracy", "macro_f1", "n")
    curve: ClassVar[tuple[str, ...]] = ("accuracy", "macro_f1")

    def measured(self, logits: Tensor, y: Tensor, case: Case) -> tuple[Any, ...]:
        """Return accuracy, macro-F1 and the number of records."""
        guess = logits.argmax(1)
        return accuracy(guess, y), macro_f1(guess, y), len(y)

    def figure(self, row: Any, classes: int) -> Figure:
        """Return the row's accuracy with its interval."""
        n, value = int(row.n), float(row.accuracy)
        interval = clopper_pearson(round(value * n), n)
        return Figure(name="accuracy", value=value, unit="fraction", n=n, **interval._asdict())

    def chance(self, y: Tensor) -> Chance:
        """Return the accuracy of always naming the most frequent class."""
        return constant_accuracy(y)
