"""A task encoder: features learnt from auxiliary data alone, for Fréchet distances and attacks in feature space."""

from __future__ import annotations

from functools import cached_property

import torch
from torch import Tensor

from fdaudit.models import Architecture, Network, architecture
from fdaudit.rng import child
from fdaudit.spec.schema import ModelSpec
from fdaudit.storage.cache import computed_once
from fdaudit.tasks import labels_of
from fdaudit.training.execution import Execution
from fdaudit.training.trainer import Fit, Job, Parameters, Trainer, draw_batches, parameters_of

__all__ = ["TaskEncoder", "fitted"]

_MODEL = ModelSpec(name="cnn-strided")
_STEPS, _BATCH, _RATE = 150, 64, 0.001


class TaskEncoder:
    """Maps images (n, c, h, w) to features (n, d): all but the head of a small classifier.

    The classifier (`cnn-strided`) is fitted to the auxiliary records by 150 steps of Adam at first use. Its features
    are specific to this task, so distances between them are not FID and are not called FID.

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
        """Return features (n, d) on the CPU."""
        return self._network.features(x.cpu())

    @cached_property
    def _network(self) -> Network:
        x, _ = self.auxiliary
        network = architecture(_MODEL, (int(x.shape[1]), int(x.shape[2]), int(x.shape[3])), self.classes)
        return fitted("encoder", network, self.auxiliary, _STEPS, self.execution, self.seed)


def fitted(
    what: str,
    network: Architecture,
    records: tuple[Tensor, Tensor],
    steps: int,
    execution: Execution,
    seed: int,
) -> Network:
    """Fit a network to records by Adam, on the CPU and ready for use; repeated calls fit once.

    Args:
        what: names it, and its draws.
        network: a network of the zoo.
        records: (x, y), y (n,) or (n, C).
        steps: of 64 records each.
        execution: how training runs.
        seed: the seed of its initial weights and batches.
    """
    x, y = records
    module = network.build(child(seed, what, "initial"))
    start = parameters_of(module)

    def fit_once(_: torch.Generator) -> Parameters:
        batches = draw_batches(len(y), _BATCH, steps=steps, generator=child(seed, what, "batches"))
        job = Job(party=what, parameters=start, x=x, targets=y, batches=batches)
        fit = Fit(lr=_RATE, optimizer="adam", objective=labels_of(y).objective)
        with torch.enable_grad():
            return Trainer(network, execution).fit([job], fit)[0].parameters

    card = {"what": what, "network": network.described, "steps": steps, "seed": seed}
    card["execution"] = execution.described
    module.load_state_dict(computed_once(card, [start, x, y], fit_once), strict=False)
    if not isinstance(module, Network):
        raise TypeError(f"the {what}'s model is a {type(module).__name__} without features")
    return module.cpu().eval()
