"""Pixel comparison: read records off the signs of gradients of their difference from generated images."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

import torch
from pydantic import Field
from torch import Tensor

from fdaudit.config import Config
from fdaudit.goals.reconstruction import Reconstruction
from fdaudit.registry import AttackCard
from fdaudit.types import Applicability, AttackTask

from .._reading import reads_forms
from .._uploads import with_payload

if TYPE_CHECKING:
    from fdaudit.adversary.knowledge import Knowledge
    from fdaudit.adversary.view import View
    from fdaudit.transcript.messages import Message

__all__ = ["PixelComparison", "PixelComparisonConfig", "between", "steps_of"]


class PixelComparisonConfig(Config):
    """Settings of the pixel comparison."""

    steps: int = Field(400, ge=1)
    """Most steps that are read, the last ones. Of records with one class each only the last step is read."""


@reads_forms
class PixelComparison:
    """Brackets each pixel of a record by what gradients say of it: darker than this image, brighter than that one.

    AsynDGAN's clients return the gradient of an L1 loss between a generated image and the record whose label the image
    was made from. Its sign says for each pixel which of the two is brighter. A mask in clear tells in which steps the
    same record stood behind a gradient, so their comparisons are put together: the guess for a pixel is the value that
    contradicts the fewest of them. Records with one class each cannot be followed from step to step.
    """

    card = AttackCard(
        name="pixel-comparison",
        work={"once": 500, "each": 5, "grows": ("steps",)},
        goal="reconstruction",
        needs=("sample_gradients",),
        assumes=("auxiliary",),
        tasks=("single-label", "segmentation"),
        source="ours; the loss is that of Chang et al. 2020, Eq. 3",
        profiles={
            "quick": {"steps": 200},
            "standard": {"steps": 1000},
            "full": {"steps": 10000},
        },
        control={"on": "comparisons"},
    )
    Config: ClassVar[type[PixelComparisonConfig]] = PixelComparisonConfig

    def __init__(self, config: PixelComparisonConfig) -> None:
        self.config = config

    def applicable(self, view: View, knowledge: Knowledge, task: AttackTask) -> Applicability:
        """Check for a victim's labels and gradients, the images between them, and auxiliary records."""
        if knowledge.auxiliary is None:
            return Applicability(False, "no auxiliary record says how bright pixels are")
        if not view.hyperparameters.get("l1", 1):
            return Applicability(False, "the gradients compare no image with a record: l1 is 0")
        if any(steps_of(view, target) for target in task.targets):
            return Applicability(True)
        return Applicability(False, "no gradients at images of a victim's own labels in view")

    def run(
        self, view: View, knowledge: Knowledge, task: AttackTask, generator: torch.Generator
    ) -> tuple[Reconstruction, ...]:
        """Return one `Reconstruction` for each victim with such gradients; images (n, c, h, w) in [0, 1]."""
        if knowledge.auxiliary is None:
            raise ValueError("pixel-comparison: no auxiliary records. Ask `applicable` first.")
        typical = knowledge.auxiliary[0].flatten(1)
        guesses = []
        for target in task.targets:
            steps = steps_of(view, target)
            if not steps:
                continue
            masks = view.tensors(steps[-1][0])["values"].ndim == 3
            steps = steps[-self.config.steps :] if masks else steps[-1:]
            labels = torch.cat([view.tensors(message)["values"] for message, _, _ in steps])
            images = torch.cat([view.tensors(message)["samples"] for _, message, _ in steps])
            gradients = torch.cat([view.tensors(message)["values"] for _, _, message in steps])
            record = torch.arange(len(labels))
            if masks:  # equal masks are of one record
                record = torch.unique(labels.flatten(1), dim=0, return_inverse=True)[1]
            # The loss is |image - record|, so its gradient is negative where the record is brighter.
            x, brighter = images.flatten(1), gradients.flatten(1) < 0
            pixels = []
            for number in range(int(record.max()) + 1):
                own = record == number
                pixels.append(between(x[own], brighter[own], typical))
            guess = Reconstruction(
                target=target,
                messages=tuple(message.seq for message, _, _ in steps),
                images=torch.stack(pixels).view(-1, *images.shape[1:]).clamp(0, 1),
                note=f"{len(steps)} steps, up to {int(record.bincount().max())} comparisons of a record",
            )
            guesses.append(guess)
        return tuple(guesses)


def between(x: Tensor, brighter: Tensor, typical: Tensor) -> Tensor:
    """Return the pixels (d,) that contradict the fewest comparisons.

    Of equally good values it takes the mean of the typical ones in the lowest bracket, or its middle if there is none.

    Args:
        x: (k, d) the images that a record was compared with.
        brighter: (k, d) where the record was said to be brighter.
        typical: (m, d) values that pixels take.
    """
    values, order = x.sort(0)
    above = brighter.gather(0, order).long()
    zero = torch.zeros_like(above[:1])
    # Below place j lie j images: those said to be above the record contradict it, and those above that are said below.
    below_wrong = torch.cat([zero, (1 - above).cumsum(0)])
    above_wrong = torch.cat([above.flip(0).cumsum(0).flip(0), zero])
    wrong = below_wrong + above_wrong
    best = wrong == wrong.min(0).values
    first = best.long().argmax(0)
    places = torch.arange(len(wrong))[:, None]
    # The first run of best places: another one, farther off, may be as good.
    last = torch.where(~best & (places > first), places, len(wrong)).min(0).values - 1
    padded = torch.cat([torch.zeros_like(values[:1]), values, torch.ones_like(values[:1])])
    low = padded.gather(0, first[None])[0]
    high = padded.gather(0, last[None] + 1)[0]
    inside = (typical >= low) & (typical <= high)
    mean = (typical * inside).sum(0) / inside.sum(0).clamp_min(1)
    return torch.where(inside.any(0), mean, (low + high) / 2)


def steps_of(view: View, target: str) -> list[tuple[Message, Message, Message]]:
    """Return a client's steps in view: its labels, the images made of them, and its gradients at the images."""
    order = ["private_labels", "generated_samples", "sample_gradients"]
    complete: list[tuple[Message, Message, Message]] = []
    current: list[Message] = []
    for message in with_payload(view.messages):
        if message.kind == "generated_samples":
            own = message.receivers == (target,)
        else:
            own = message.kind in order and message.sender == target
        if not own:
            continue
        if message.kind == order[0]:
            current = []
        current.append(message)
        if [m.kind for m in current] == order:
            complete.append((current[0], current[1], current[2]))
    return complete
