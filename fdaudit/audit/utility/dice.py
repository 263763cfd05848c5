"""Utility of models that answer for each pixel: the mean Dice coefficient and figures of objects."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

import torch

from fdaudit.audit.utility.measurement import Measurement
from fdaudit.metrics import Chance
from fdaudit.metrics.segmentation.figures import DICE_METHOD, constant_dice, score_masks
from fdaudit.types import Figure

if TYPE_CHECKING:
    from torch import Tensor

    from fdaudit.planning.case import Case

__all__ = ["DiceOfMasks"]


class DiceOfMasks(Measurement):
    """Dice coefficients of predicted masks, for all test images and for those of each site."""

    name: ClassVar[str] = "dice"
    columns: ClassVar[tuple[str, ...]] = (
        "dice",
        "low",
        "high",
        "mean_iou",
        "object_dice",
        "aji",
        "hd95",
        "n",
        "site",
    )
    curve: ClassVar[tuple[str, ...]] = ("dice", "mean_iou")

    def measured(self, logits: Tensor, y: Tensor, case: Case) -> tuple[Any, ...]:
        """Return the figures on all test images, without a site."""
        return (*_on(torch.arange(len(y)), logits.argmax(1), y, case), None)

    def measured_by_site(self, logits: Tensor, y: Tensor, case: Case) -> list[tuple[Any, ...]]:
        """Return the figures on each site's test images, with the site's number; nothing if there is one site."""
        if case.dataset.sites is None:
            return []
        site_of_image = case.dataset.sites[case.splits.test]
        sites = site_of_image.unique().tolist()
        if len(sites) < 2:
            return []
        predicted = logits.argmax(1)
        rows = []
        for site in sites:
            images = (site_of_image == site).nonzero().squeeze(1)
            rows.append((*_on(images, predicted, y, case), site))
        return rows

    def figure(self, row: Any, classes: int) -> Figure:
        """Return the row's mean Dice coefficient as `mean_dice_figure` made it, with other figures as its note."""
        interval: dict[str, Any] = {}
        if row.low == row.low:
            interval = {"low": float(row.low), "high": float(row.high)}
            interval |= {"confidence": 0.95, "method": DICE_METHOD}
        far = f", HD95 {row.hd95:.1f} pixels" if row.hd95 == row.hd95 else ""
        note = f"mIoU {row.mean_iou:.1%}, object-level Dice {row.object_dice:.1%}, AJI {row.aji:.1%}{far}"
        return Figure(
            name="dice", value=float(row.dice), unit="fraction", n=int(row.n), note=note, **interval
        )

    def chance(self, y: Tensor) -> Chance:
        """Return the mean Dice coefficient of the best constant answer."""
        return Chance(constant_dice(y), "a constant answer")


def _on(images: Tensor, predicted: Tensor, y: Tensor, case: Case) -> tuple[Any, ...]:
    """Return the figures of predicted masks (n, h, w) on some test images (m,)."""
    rows = case.splits.test[images]
    objects, pictures = case.dataset.objects, case.dataset.pictures
    scores = score_masks(
        predicted[images].numpy(),
        y[images].numpy(),
        objects=None if objects is None else objects[rows].numpy(),
        pictures=None if pictures is None else pictures[rows].numpy(),
    )
    dice = scores.dice
    others = (scores.mean_iou, scores.object_dice, scores.aji, scores.hd95)
    return dice.value, dice.low, dice.high, *others, len(images)
