"""Inverting Gradients: cosine matching with a total-variation prior, for batches and several local steps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from pydantic import Field
from torch import Tensor, nn

from fdaudit.config import Config
from fdaudit.errors import UsageError
from fdaudit.types import Applicability, AttackTask, Reconstruction

from .engine import Matched, best_of, match_adam
from .gradients import GradientMap, flatten
from .labels import recover_labels
from .updates import LocalSGD, UpdateMap
from .uploads import (
    Upload,
    adversary_probes,
    applies,
    device_of,
    find_uploads,
    matched_once,
    network,
    reconstruction,
    together,
)

if TYPE_CHECKING:
    from fdaudit.knowledge import Knowledge
    from fdaudit.view import View

__all__ = ["InvertingGradients", "InvertingGradientsConfig", "invert_gradients"]


class InvertingGradientsConfig(Config):
    """Settings of Inverting Gradients."""

    restarts: int = Field(2, ge=1)
    """Random starts for each message; all advance together, the best match is kept."""
    iterations: int = Field(1000, ge=1)
    """Steps of signed Adam."""
    lr: float = Field(0.1, gt=0)
    """Size of the first steps, in units of pixel intensity; a tenth after 3/8, 5/8 and 7/8 of them."""
    tv: float = Field(1e-3, ge=0)
    """Weight of total variation (mean absolute difference of neighbouring pixels)."""
    signed: bool = True
    """Step along the gradient's sign."""
    round: int = Field(0, ge=0)
    """Which round's upload is inverted."""
    max_images: int = Field(64, ge=1)
    """Uploads that mix more images than this are not tried."""


class InvertingGradients:
    """Finds a batch whose gradient points where the one sent does: cosine distance, total variation, signed Adam.

    Labels are read off the last layer. An update of several local steps is inverted by simulating them, with the
    learning rate, steps and batch size of the public configuration; which images met in which step, after the
    first pass, is not known and taken to repeat. All restarts of all victims of one model advance together.
    """

    name: ClassVar[str] = "inverting-gradients"
    goal: ClassVar[str] = "reconstruction"
    needs: ClassVar[tuple[str, ...]] = ("gradient", "model_update", "model_parameters")
    assumes: ClassVar[tuple[str, ...]] = ("architecture", "auxiliary")
    source: ClassVar[str] = "Geiping, Bauermeister, Dröge & Moeller 2020"
    profiles: ClassVar[dict[str, dict[str, Any]]] = {
        "quick": {"restarts": 1, "iterations": 500},
        "standard": {"restarts": 2, "iterations": 2000},
        "full": {"restarts": 8, "iterations": 8000},
    }
    control: ClassVar[dict[str, Any]] = {"on": "gradients", "model": "cnn-strided", "images": 2}
    Config: ClassVar[type[InvertingGradientsConfig]] = InvertingGradientsConfig

    def __init__(self, config: InvertingGradientsConfig) -> None:
        self.config = config

    def applicable(self, view: View, knowledge: Knowledge, task: AttackTask) -> Applicability:
        """Yes where a victim's upload, the model it started from and its architecture are at hand."""
        module = network(knowledge)
        if isinstance(module, str):
            return Applicability(False, module)
        found, reasons = find_uploads(view, task.targets, self.config.round, self.config.max_images)
        return applies(found, reasons)

    def run(
        self, view: View, knowledge: Knowledge, task: AttackTask, generator: torch.Generator
    ) -> tuple[Reconstruction, ...]:
        """One `Reconstruction` for each victim with a fit upload; images (n, c, h, w) in [0, 1]."""
        module, device = network(knowledge), device_of(knowledge)
        if isinstance(module, str):
            raise UsageError("knowledge", None, f"does not do: {module}", "Ask `applicable` first.")
        uploads, _ = find_uploads(view, task.targets, self.config.round, self.config.max_images)
        guesses = []
        for group in together(uploads):
            invert = partial(self._group, group, module, knowledge, device)
            found = matched_once(self.name, self.config, knowledge, group, invert)
            guesses += [reconstruction(u, found, i) for i, u in enumerate(group)]
        return tuple(guesses)

    def _group(
        self,
        group: Sequence[Upload],
        module: nn.Module,
        knowledge: Knowledge,
        device: torch.device,
        generator: torch.Generator,
    ) -> Matched:
        first, n = group[0], group[0].training.images
        probes = adversary_probes(knowledge, generator)
        labels = [recover_labels(u.gradient, module, u.start, n, probes) for u in group]
        sent = [u.gradient if u.update is None else u.update for u in group]
        return invert_gradients(
            module.to(device),
            {k: t.to(device) for k, t in first.start.items()},
            [{k: t.to(device) for k, t in s.items()} for s in sent],
            torch.stack(labels),
            shape=tuple(probes.shape[1:]),
            config=self.config,
            generator=generator,
            training=None if first.update is None else first.training,
        )


def invert_gradients(
    module: nn.Module,
    tensors: Mapping[str, Tensor],
    sent: Sequence[Mapping[str, Tensor]],
    labels: Tensor,
    *,
    shape: tuple[int, ...],
    config: InvertingGradientsConfig,
    generator: torch.Generator,
    training: LocalSGD | None = None,
) -> Matched:
    """Inverting Gradients on bare gradients or updates (Geiping 2020, eq. 4): M of the same model at once.

    Args:
        module: the architecture.
        tensors: parameters, and buffers, that the clients started from.
        sent: M named gradients of mean cross-entropy; updates where `training` is given.
        labels: (M, n); with several steps, in no particular order: restarts try different ones.
        shape: (c, h, w) of an image.
        config: settings.
        generator: draws starting points, and orders of labels.
        training: the local steps behind the updates; None for gradients.

    Returns:
        M rows, the best restart of each.
    """
    simulate = GradientMap(module, tensors) if training is None else UpdateMap(module, tensors, training)
    R, (M, n) = config.restarts, labels.shape
    target = torch.stack([flatten(s, simulate.names) for s in sent])
    x = torch.rand(M * R, n, *shape, generator=generator).to(target)
    y = labels.repeat_interleave(R, 0)
    if training is not None:
        # Within one step the order means nothing; across steps it decides which labels met.
        y = torch.stack([row[torch.randperm(n, generator=generator)] for row in y])
    matched = match_adam(
        simulate,
        # Restarts of one message share their target's memory, which the engine takes advantage of.
        target.expand(R, -1) if M == 1 else target.repeat_interleave(R, 0),
        x,
        y.to(target.device),
        iterations=config.iterations,
        lr=config.lr,
        tv=config.tv,
        signed=config.signed,
    )
    return best_of(matched, R)
