"""A task encoder: features learnt from auxiliary data alone, for Fréchet distances and attacks in feature space."""

from __future__ import annotations

from functools import cached_property

import torch
from torch import Tensor

from fdaudit.cache import computed_once
from fdaudit.execution import Execution
from fdaudit.models import Architecture, Network, architecture
from fdaudit.objectives import objective_of
from fdaudit.rng import child
from fdaudit.spec import ModelSpec
from fdaudit.training import Fit, Job, Parameters, Trainer, draw_batches, parameters_of
from fdaudit.types import task_of

__all__ = ["TaskEncoder"]

_MODEL = ModelSpec(name="cnn-strided")
_STEPS, _BATCH, _RATE = 150, 64, 0.001


class TaskEncoder:
    """Maps images (n, c, h, w) to features (n, d): all but the head of a small classifier.

    The classifier (`cnn-strided`) is fitted to the auxiliary records by 150 steps of Adam when features are first
    asked for. Its features say something about this task; distances between them are no FID and never called so.

    Args:
        auxiliary: records (x, y), y (n,) or (n, C).
        classes: number of classes.
        execution: how training runs.
        seed: the seed of its initial weights and batches.
    """

    name = "auxiliary-trained cnn-strided"

    def __init__(
        self, auxiliary: tuple[Tensor, Tensor], *, classes: int, execution: Execution, seed: int
    ) -> None:
        self.auxiliary, self.classes, self.execution, self.seed = auxiliary, classes, execution, seed

    @torch.no_grad()
    def __call__(self, x: Tensor) -> Tensor:
        """Features (n, d) on the CPU."""
        return self._network.features(x.cpu())

    @cached_property
    def _network(self) -> Network:
        x, y = self.auxiliary
        shape = (int(x.shape[1]), int(x.shape[2]), int(x.shape[3]))
        made = architecture(_MODEL, shape, self.classes)
        module = made.build(child(self.seed, "encoder", "initial"))
        card = {"what": "encoder", "execution": self.execution.described, "seed": self.seed}
        start = parameters_of(module)
        fitted = computed_once(card, [start, x, y], lambda _: self._fitted(made, start))
        module.load_state_dict(fitted, strict=False)
        if not isinstance(module, Network):
            raise TypeError(f"the encoder's model is a {type(module).__name__} without features")
        return module.cpu().eval()

    def _fitted(self, network: Architecture, start: Parameters) -> Parameters:
        x, y = self.auxiliary
        batches = draw_batches(len(y), _BATCH, steps=_STEPS, generator=child(self.seed, "encoder", "batches"))
        job = Job(party="encoder", parameters=start, x=x, targets=y, batches=batches)
        with torch.enable_grad():
            fit = Fit(lr=_RATE, optimizer="adam", objective=objective_of(task_of(y)))
            return Trainer(network, self.execution).fit([job], fit)[0].parameters
