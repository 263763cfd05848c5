"""Normalisation layers: BatchNorm, GroupNorm and LayerNorm, with the change of their values along a direction.

A layer subtracts the mean of a group of values, divides by their standard deviation, then scales and shifts. In
training, BatchNorm's groups are a channel of all images of one batch. Other batches that are folded into the same pass
do not enter.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

import torch
from torch import Tensor, nn

from .layers import Maybe, Pass, WeightedPass, mapped

__all__ = ["NORMALISATIONS", "normalised"]

_BATCH_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)
NORMALISATIONS = (*_BATCH_NORMS, nn.GroupNorm, nn.LayerNorm)
"""The classes that `normalised` handles. A subclass may compute anything and is not among them."""


def normalised(layer: nn.Module, a: Tensor, R: int, tensors: Callable[[str], Maybe]) -> Pass:
    """Return the pass of a normalisation layer for images (R*B, ...).

    Args:
        layer: of one of `NORMALISATIONS`.
        a: the layer's input.
        R: number of batches.
        tensors: the layer's parameter or buffer by its own name, None without one.
    """
    own: Sequence[int] = (1,)
    core: _Core
    if isinstance(layer, nn.GroupNorm):
        groups = layer.num_groups
        core = _Standardised(a, lambda v: v.unflatten(1, (groups, -1)).flatten(2), (2,), layer.eps)
    elif isinstance(layer, nn.LayerNorm):
        own = range(a.dim() - len(layer.normalized_shape), a.dim())
        core = _Standardised(a, lambda v: v, tuple(own), layer.eps)
    else:
        mean, variance = tensors("running_mean"), tensors("running_var")
        eps = float(layer.eps)  # type: ignore[arg-type]
        if layer.training or mean is None or variance is None:
            if a.dim() == 2:
                core = _Standardised(a, lambda v: v.unflatten(0, (R, -1)), (1,), eps)
            else:
                core = _Standardised(a, lambda v: v.unflatten(0, (R, -1)).flatten(3), (1, 3), eps)
        else:
            pixels = [1] * (a.dim() - 2)
            wide = (1, -1, *pixels)
            core = _Fixed(a, mean.view(wide), (variance + eps).rsqrt().view(wide))
    weight = tensors("weight")
    if weight is None:
        return _Plain(core)
    return _Scaled(core, R, own, weight, tensors("bias"))


class _Core(Protocol):
    """The part without weights; the methods are those of `Pass` for its only input."""

    values: Tensor

    def backward(self, s: Tensor) -> Tensor: ...

    def forward_along(self, t: Tensor) -> Tensor: ...

    def backward_along(self, r: Tensor) -> Tensor: ...


class _Fixed:
    """Normalisation by constants, as BatchNorm's in evaluation."""

    def __init__(self, a: Tensor, mean: Tensor, scale: Tensor) -> None:
        self._scale = scale
        self.values = (a - mean) * scale

    def backward(self, s: Tensor) -> Tensor:
        return s * self._scale

    def forward_along(self, t: Tensor) -> Tensor:
        return t * self._scale

    def backward_along(self, r: Tensor) -> Tensor:
        return r * self._scale


class _Standardised:
    """Each group less its mean, over its standard deviation σ.

    With m(.) the mean over a group and P(v) = v - m(v) - x m(x v) for the standardised x, the derivative maps s to
    P(s)/σ. Along a direction t of the input, R{x} = P(t)/σ and R{1/σ} = -m(x t)/σ².

    Args:
        a: the input.
        grouped: views a tensor like the input so that a group's values lie along `dims`.
        dims: the dimensions of a group.
        eps: added to the variance.
    """

    def __init__(
        self, a: Tensor, grouped: Callable[[Tensor], Tensor], dims: tuple[int, ...], eps: float
    ) -> None:
        self._grouped, self._dims, self._shape = grouped, dims, a.shape
        wide = grouped(a)
        variance, mean = torch.var_mean(wide, dims, correction=0, keepdim=True)
        self._inverse = (variance + eps).rsqrt()
        self._x = (wide - mean) * self._inverse
        self.values = self._x.reshape(a.shape)
        self._signal: Maybe = None
        self._moved: Maybe = None

    def _mean(self, v: Tensor) -> Tensor:
        return v.mean(self._dims, keepdim=True)

    def _projected(self, v: Tensor) -> Tensor:
        return v - self._mean(v) - self._x * self._mean(self._x * v)

    def backward(self, s: Tensor) -> Tensor:
        self._signal = self._grouped(s)
        self._input_signal = self._projected(self._signal) * self._inverse
        return self._input_signal.reshape(self._shape)

    def forward_along(self, t: Tensor) -> Tensor:
        wide = self._grouped(t)
        self._stretch = self._mean(self._x * wide) * self._inverse
        self._moved = self._projected(wide) * self._inverse
        return self._moved.reshape(self._shape)

    def backward_along(self, r: Tensor) -> Tensor:
        # R{P(s)/σ} = (P(R{s}) - R{x} m(x s) - x m(R{x} s)) / σ + P(s) R{1/σ}, and P(s) R{1/σ} = -(P(s)/σ) m(x t)/σ.
        out = self._projected(self._grouped(r))
        if self._signal is None or self._moved is None:
            return (out * self._inverse).reshape(self._shape)
        out = out - self._moved * self._mean(self._x * self._signal)
        out = out - self._x * self._mean(self._moved * self._signal)
        out = out * self._inverse - self._input_signal * self._stretch
        return out.reshape(self._shape)


class _Plain(Pass):
    """A normalisation without a scale and a shift."""

    def __init__(self, core: _Core) -> None:
        self._core, self._moves = core, False

    def forward(self) -> Tensor:
        return self._core.values

    def backward(self, s: Tensor) -> Sequence[Maybe]:
        return (self._core.backward(s),)

    def forward_along(self, t: Sequence[Maybe]) -> Maybe:
        self._moves = t[0] is not None
        return mapped(self._core.forward_along, t[0])

    def backward_along(self, r: Maybe) -> Sequence[Maybe]:
        if r is None:
            if not self._moves:
                return (None,)
            r = torch.zeros_like(self._core.values)
        return (self._core.backward_along(r),)


class _Scaled(WeightedPass):
    """A normalisation, then a scale and perhaps a shift.

    Args:
        core: the normalisation.
        R: number of batches.
        own: the dimensions of the input along which the scale varies.
        weight: the scale.
        bias: the shift.
    """

    _s: Tensor
    _g: Tensor
    _g_bias: Maybe

    def __init__(self, core: _Core, R: int, own: Sequence[int], weight: Tensor, bias: Maybe) -> None:
        shape = core.values.shape
        self._core, self._R = core, R
        # Weights are shaped to be multiplied with the input; their gradients are sums over all other dimensions.
        self._wide = [1] * len(shape)
        self._summed_over = [1]
        for d, size in enumerate(shape):
            if d in own:
                self._wide[d] = size
            elif d > 0:
                self._summed_over.append(d + 1)  # dimension 0 is split into batches and images
        self._weight = weight.view(self._wide)
        self._bias = mapped(lambda b: b.view(self._wide), bias)

    def forward(self) -> Tensor:
        out = self._core.values * self._weight
        if self._bias is None:
            return out
        return out + self._bias

    def receive(self, s: Tensor) -> None:
        self._s = s

    def backward(self, s: Tensor) -> Sequence[Maybe]:
        return (self._core.backward(s * self._weight),)

    def gradients(self) -> tuple[Tensor, Tensor]:
        return self._summed(self._s * self._core.values), self._summed(self._s)

    def _summed(self, v: Tensor) -> Tensor:
        """Return sums over the images and repetitions of each batch, (R, values)."""
        summed: Tensor = v.unflatten(0, (self._R, -1)).sum(self._summed_over)
        return summed.flatten(1)

    def products(self, weight: Tensor, bias: Maybe) -> tuple[Tensor, Tensor]:
        G, G_bias = self.gradients()
        self._pairs = [(G, weight)]
        if bias is not None:
            self._pairs.append((G_bias, bias))
        dot, square = weight.new_zeros(self._R), weight.new_zeros(self._R)
        for gradient, target in self._pairs:
            dot = dot + (gradient * target).sum(1)
            square = square + gradient.square().sum(1)
        return dot, square

    def move(self, weight: Tensor, bias: Maybe) -> None:
        self._g = self._spread(weight)
        self._g_bias = mapped(self._spread, bias)

    def move_by_products(self, dot: Tensor, square: Tensor) -> None:
        directions = []
        for G, T in self._pairs:
            direction = dot[:, None] * T + 2 * square[:, None] * G
            directions.append(direction)
        self.move(directions[0], directions[1] if len(directions) > 1 else None)

    def _spread(self, g: Tensor) -> Tensor:
        """Return a direction (R, values) for each image, shaped to be multiplied with the input."""
        images = len(self._core.values) // self._R
        return g.reshape(self._R, 1, *self._wide[1:]).expand(-1, images, *self._wide[1:]).flatten(0, 1)

    def forward_along(self, t: Sequence[Maybe]) -> Maybe:
        out = self._core.values * self._g
        if self._g_bias is not None:
            out = out + self._g_bias
        if t[0] is None:
            return out
        return out + self._core.forward_along(t[0]) * self._weight

    def backward_along(self, r: Maybe) -> Sequence[Maybe]:
        signal = self._s * self._g
        if r is not None:
            signal = signal + r * self._weight
        return (self._core.backward_along(signal),)
