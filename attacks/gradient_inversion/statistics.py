"""Statistics of a client's batches that BatchNorm leaves in an uploaded model.

In training, BatchNorm normalises a batch by its own mean and variance, and moves its running statistics towards them:
new = (1 - m) old + m batch, with the layer's momentum m. A model before and after one step therefore shows the mean and
variance of the batch in every channel of every BatchNorm. They are exact up to rounding, and no defence of gradients
acts on them.

Source: Yin et al. 2021 (GradInversion), which penalises the distance to statistics of all data, as eq. 10.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch.func import vmap

from fdaudit.models.network import call_with, moved

from .gradients import expanded
from .second_order.tracing import named

if TYPE_CHECKING:
    from .uploads import Upload

__all__ = ["BatchStatistics", "LayerStatistics", "read_statistics", "shown_statistics"]

_LEAST_VARIANCE = 1e-5
"""Smallest variance that a distance is measured in; PyTorch's own addition to variances."""


@dataclass(frozen=True, kw_only=True, eq=False)
class LayerStatistics:
    """The statistics of M batches at one BatchNorm.

    Attributes:
        mean: (M, C) of each channel.
        variance: (M, C) of each channel, divided by the number of values less one, as PyTorch keeps it.
    """

    mean: Tensor
    variance: Tensor


class BatchStatistics:
    """Measures how far guessed batches are from the statistics of the batches behind M messages.

    It is a `Penalty` of a search.

    Args:
        module: the architecture, in the mode of a client's training.
        tensors: parameters and buffers of the model that the clients started from.
        layers: the statistics, by the name of a BatchNorm.
        weight: factor on the distance.
    """

    def __init__(
        self,
        module: nn.Module,
        tensors: Mapping[str, Tensor],
        layers: Mapping[str, LayerStatistics],
        weight: float = 1.0,
    ) -> None:
        self._module = module
        self._tensors = {name: t.detach() for name, t in tensors.items()}
        self.layers, self._weight = dict(layers), weight

    @classmethod
    def of(
        cls, module: nn.Module, tensors: Mapping[str, Tensor], x: Tensor, names: Iterable[str]
    ) -> BatchStatistics:
        """Return the statistics of M batches of images (M, n, c, h, w) at some layers."""
        layers: dict[str, LayerStatistics] = {}
        nothing = cls(module, tensors, {})
        with torch.no_grad():
            inputs = nothing._inputs(x, tuple(names))
        for name, (mean, variance) in inputs.items():
            layers[name] = LayerStatistics(mean=mean, variance=variance)
        return cls(module, tensors, layers)

    def repeated(self, times: int) -> BatchStatistics:
        """Return the statistics with each row `times` times in succession."""
        return self._rearranged(lambda t: t.repeat_interleave(times, 0))

    def tiled(self, times: int) -> BatchStatistics:
        """Return the statistics with all rows `times` times in succession."""
        return self._rearranged(lambda t: t.repeat(times, 1))

    def _rearranged(self, arrange: Callable[[Tensor], Tensor]) -> BatchStatistics:
        layers = {}
        for name, layer in self.layers.items():
            layers[name] = LayerStatistics(mean=arrange(layer.mean), variance=arrange(layer.variance))
        return BatchStatistics(self._module, self._tensors, layers, self._weight)

    def weighted(self, weight: float) -> BatchStatistics:
        """Return the statistics with another factor on their distance."""
        return BatchStatistics(self._module, self._tensors, self.layers, weight)

    def __call__(self, x: Tensor, rows: slice = slice(None)) -> Tensor:
        """Return the weighted mean distance over layers and channels, in variances, (R,) of images (R, B, c, h, w).

        Args:
            x: images; the distance is differentiable in them.
            rows: the rows of the statistics that they are compared with.
        """
        total = x.new_zeros(len(x))
        for name, (mean, variance) in self._inputs(x, tuple(self.layers)).items():
            true_mean, true_variance = self.layers[name].mean[rows], self.layers[name].variance[rows]
            spread = _deviation(variance) - _deviation(true_variance)
            gap = (mean - true_mean).square() + spread.square()
            total = total + (gap / true_variance.clamp_min(_LEAST_VARIANCE)).mean(1)
        return self._weight * total / len(self.layers)

    def _inputs(self, x: Tensor, names: Sequence[str]) -> dict[str, tuple[Tensor, Tensor]]:
        """Return mean and variance (R, C) of the inputs of layers, by name."""
        buffers = {}
        for name, own in self._module.named_buffers():
            buffers[name] = self._tensors.get(name, own).detach().to(x.device)
        statistics: dict[str, tuple[Tensor, Tensor]] = {}
        if len(x) == 1:  # five times as fast as a batch of one under `vmap`
            for name, (mean, variance) in self._of_batch(names, x[0], buffers).items():
                statistics[name] = mean[None], variance[None]
            return statistics
        statistics = vmap(partial(self._of_batch, names))(x, expanded(buffers, len(x)))
        return statistics

    def _of_batch(
        self, names: Sequence[str], x: Tensor, buffers: Mapping[str, Tensor]
    ) -> dict[str, tuple[Tensor, Tensor]]:
        """Return mean and variance (C,) of the inputs of layers for one batch."""
        statistics: dict[str, tuple[Tensor, Tensor]] = {}

        def read(name: str, inputs: tuple[Tensor, ...]) -> None:
            dims = [0, *range(2, inputs[0].dim())]
            variance, mean = torch.var_mean(inputs[0], dims, correction=1)
            statistics[name] = mean, variance

        hooks = []
        for name in names:
            layer = self._module.get_submodule(name)
            hooks.append(layer.register_forward_pre_hook(lambda _, inputs, name=name: read(name, inputs)))
        try:
            call_with(self._module, {**self._tensors, **buffers}, x)
        finally:
            for hook in hooks:
                hook.remove()
        return statistics


def _deviation(variance: Tensor) -> Tensor:
    return variance.clamp_min(0).add(_LEAST_VARIANCE).sqrt()


def read_statistics(
    module: nn.Module, start: Mapping[str, Tensor], change: Mapping[str, Tensor]
) -> dict[str, LayerStatistics]:
    """Return the statistics of the batch of a single step, by the name of a BatchNorm whose statistics were sent.

    Layers without running statistics, or with a cumulative average in place of a momentum, are left out.

    Args:
        module: the architecture, in the mode in which the client trained.
        start: parameters and buffers before the step.
        change: what the step added to them.

    Returns:
        One row for each layer: M is 1.
    """
    layers = {}
    for name, layer in module.named_modules():
        if not isinstance(layer, nn.modules.batchnorm._BatchNorm) or not layer.training or not layer.momentum:
            continue
        names = named(name, "running_mean"), named(name, "running_var")
        if not all(n in start and n in change for n in names):
            continue
        if not change[names[0]].any():  # unchanged statistics were frozen
            continue
        mean, variance = (start[n] + change[n] / layer.momentum for n in names)
        layers[name] = LayerStatistics(mean=mean[None], variance=variance[None])
    return layers


def shown_statistics(upload: Upload, module: nn.Module) -> dict[str, LayerStatistics]:
    """Return `read_statistics` of an undefended upload of one step; nothing for others."""
    if len(upload.training.batches) > 1 or upload.defenses or not upload.change:
        return {}
    device = next(module.parameters()).device
    return read_statistics(module, moved(upload.start, device), moved(upload.change, device))
