"""Utility of models that answer for each class by itself: mAUC and macro-F1."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from fdaudit.audit.utility.measurement import Measurement
from fdaudit.metrics import MEAN_AUC_METHOD, Chance, mean_auc, mean_auc_figure, multilabel_macro_f1
from fdaudit.types import Figure

if TYPE_CHECKING:
    from torch import Tensor

    from fdaudit.planning.case import Case

__all__ = ["MeanAucOfClasses"]


class MeanAucOfClasses(Measurement):
    """The mean over classes of the area under the ROC curve, with its interval if there is one."""

    name: ClassVar[str] = "mean_auc"
    columns: ClassVar[tuple[str, ...]] = ("mean_auc", "low", "high", "macro_f1", "left_out", "n")
    curve: ClassVar[tuple[str, ...]] = ("mean_auc", "macro_f1")

    def measured(self, logits: Tensor, y: Tensor, case: Case) -> tuple[Any, ...]:
        """Return mAUC with its interval, macro-F1, the number of classes left out, and of records."""
        figure = mean_auc_figure(logits, y)
        left_out = len(mean_auc(logits, y).left_out)
        return figure.value, figure.low, figure.high, multilabel_macro_f1(logits > 0, y), left_out, len(y)

    def figure(self, row: Any, classes: int) -> Figure:
        """Return the row's mAUC as `mean_auc_figure` made it; an empty cell is NaN, which never equals itself."""
        left_out = int(row.left_out)
        interval: dict[str, Any] = {}
        if row.low == row.low:
            interval = {"low": float(row.low), "high": float(row.high)}
            interval |= {"confidence": 0.95, "method": MEAN_AUC_METHOD}
        note = f"mean over {classes - left_out} of {classes} classes" if left_out else ""
        value = float(row.mean_auc)
        return Figure(name="mean_auc", value=value, unit="fraction", n=int(row.n), note=note, **interval)

    def chance(self, y: Tensor) -> Chance:
        """Return one half, which any order of the records reaches on average."""
        return Chance(0.5, "guessing")
