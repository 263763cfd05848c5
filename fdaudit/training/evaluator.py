"""An evaluator: the auditor's own network, which classifies reconstructed images.

Guarantees:
  * it is trained only on test records, which no party trains on and no adversary receives;
  * its architecture differs from all that the federation trains;
  * no attack receives it.
"""

from __future__ import annotations

from functools import cached_property

import torch
from torch import Tensor

from fdaudit.errors import SpecError
from fdaudit.models import Architecture, Network, architecture
from fdaudit.rng import child
from fdaudit.spec.schema import ModelSpec
from fdaudit.training.encoder import fitted
from fdaudit.training.execution import Execution

__all__ = ["Evaluator"]

_CANDIDATES = (
    ModelSpec(name="cnn-3-3"),
    ModelSpec(name="cnn-5-3"),
    ModelSpec(name="mlp", params={"widths": [256]}),
    ModelSpec(name="mlp-1024-1024"),
)
"""Candidate networks. The first that fits the images and that the federation does not train is used."""
_STEPS = 400
_MOST = 5000
"""Largest number of test records that it is trained on."""
_NOISE = (0.0, 0.1, 0.2)
"""Standard deviations of Gaussian noise on training records, because reconstructions are not clean images."""
_PART = 1024


class Evaluator:
    """Classifies images (c, h, w) and computes their features: those before the last linear layers.

    Args:
        records: test records (x, y), y (n,).
        classes: number of classes.
        taken: names of the networks that the federation trains.
        execution: how training runs.
        seed: the seed of its initial weights, batches and noise.
    """

    def __init__(
        self,
        records: tuple[Tensor, Tensor],
        *,
        classes: int,
        taken: frozenset[str],
        execution: Execution,
        seed: int,
    ) -> None:
        x, y = records
        every = max(1, -(-len(y) // _MOST))
        self.records, self.classes = (x[::every], y[::every]), classes
        self._taken, self._execution, self._seed = taken, execution, seed

    @cached_property
    def architecture(self) -> Architecture:
        """Return its network's architecture."""
        x, _ = self.records
        shape = (int(x.shape[1]), int(x.shape[2]), int(x.shape[3]))
        *first, last = (c for c in _CANDIDATES if c.name not in self._taken)
        for candidate in first:
            try:
                return architecture(candidate, shape, self.classes)
            except SpecError:  # the images are too small for it
                continue
        return architecture(last, shape, self.classes)

    @property
    def name(self) -> str:
        """Return the network's name and its training data, in words."""
        return f"a {self.architecture.name} trained on {len(self.records[1])} test records"

    @torch.no_grad()
    def classify(self, x: Tensor) -> Tensor:
        """Return the predicted class (n,) of each image (n, c, h, w)."""
        classes: list[Tensor] = []
        for part in x.float().cpu().split(_PART):
            logits = self._network(part)
            classes.append(logits.argmax(1))
        return torch.cat(classes)

    @torch.no_grad()
    def features(self, x: Tensor) -> Tensor:
        """Return features (n, d) of images (n, c, h, w)."""
        parts = x.float().cpu().split(_PART)
        return torch.cat(list(map(self._network.features, parts)))

    @cached_property
    def _network(self) -> Network:
        x, y = self.records
        draws = child(self._seed, "evaluator", "noise")
        noisy: list[Tensor] = []
        for deviation in _NOISE:
            noise = deviation * torch.randn(x.shape, generator=draws)
            noisy.append((x + noise).clamp(0, 1))
        records = torch.cat(noisy), y.repeat(len(_NOISE))
        return fitted("evaluator", self.architecture, records, _STEPS, self._execution, self._seed)
