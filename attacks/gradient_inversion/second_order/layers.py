"""One layer's operations in a pass, and the change of its values and derivatives while its weights move.

The derivative in the images of ⟨G, g⟩, with G the loss's gradient in the weights and g fixed, is R{dL/dx}: the change
of the loss's derivative at the images while the weights move along g. Four passes compute it without a graph of
another pass: values forwards, dL/dz backwards, R{z} forwards, R{dL/dz} backwards. Every batch has its own direction g.

Source: Pearlmutter 1994, "Fast exact multiplication by the Hessian", which defines the operator R{·}.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

__all__ = [
    "RELU",
    "SIGMOID",
    "TANH",
    "Activation",
    "Maybe",
    "Pass",
    "WeightedPass",
    "activated",
    "added",
    "linear",
    "mapped",
    "operated",
    "reshaped",
]

Maybe = Tensor | None
"""None stands for zeros."""


def mapped(linear_map: Callable[[Tensor], Tensor], v: Maybe) -> Maybe:
    """Return a linear map of a tensor: it maps zeros to zeros."""
    if v is None:
        return None
    return linear_map(v)


def added(a: Maybe, b: Maybe) -> Maybe:
    """Return a + b."""
    if a is None:
        return b
    if b is None:
        return a
    return a + b


class Pass(ABC):
    """One operation in one pass of N images: R batches of B. It keeps only the values that its later steps read."""

    @abstractmethod
    def forward(self) -> Tensor:
        """Return the output, (N, ...)."""

    @abstractmethod
    def backward(self, s: Tensor) -> Sequence[Maybe]:
        """Map dL/d(output) to dL/d(input), input by input."""

    @abstractmethod
    def forward_along(self, t: Sequence[Maybe]) -> Maybe:
        """Map R{input}, input by input, to R{output}; after `backward`."""

    @abstractmethod
    def backward_along(self, r: Maybe) -> Sequence[Maybe]:
        """Map R{dL/d(output)} to R{dL/d(input)}, input by input.

        If R{input} is zero, this may be called after the first pass.
        """


# -- without weights ----------------------------------------------------------------------------------------


def reshaped(a: Tensor, output: Tensor) -> Pass:
    """Return the pass of an operation that gives the values of `a` another shape."""
    return _Reshaped(a, output)


class _Reshaped(Pass):
    def __init__(self, a: Tensor, output: Tensor) -> None:
        self._shape, self._out = a.shape, output

    def forward(self) -> Tensor:
        return self._out

    def backward(self, s: Tensor) -> Sequence[Maybe]:
        return (s.reshape(self._shape),)

    def forward_along(self, t: Sequence[Maybe]) -> Maybe:
        return mapped(lambda u: u.reshape(self._out.shape), t[0])

    def backward_along(self, r: Maybe) -> Sequence[Maybe]:
        return (mapped(lambda u: u.reshape(self._shape), r),)


class Activation(NamedTuple):
    """A function φ of single values whose derivatives follow from its output, a = φ(z).

    Attributes:
        of: φ.
        times: (g, a) to φ'(z) g.
        bend: a to φ''(z) / φ'(z); None if φ'' is zero.
    """

    of: Callable[[Tensor], Tensor]
    times: Callable[[Tensor, Tensor], Tensor]
    bend: Callable[[Tensor], Tensor] | None


RELU = Activation(torch.relu, lambda g, a: torch.ops.aten.threshold_backward(g, a, 0), None)
SIGMOID = Activation(torch.sigmoid, torch.ops.aten.sigmoid_backward, lambda a: 1 - 2 * a)
TANH = Activation(torch.tanh, torch.ops.aten.tanh_backward, lambda a: -2 * a)


def activated(activation: Activation, z: Tensor) -> Pass:
    """Return the pass of an activation."""
    return _Activated(activation, z)


class _Activated(Pass):
    def __init__(self, activation: Activation, z: Tensor) -> None:
        self._activation, self._a = activation, activation.of(z)
        self._s: Maybe = None
        self._t: Maybe = None

    def forward(self) -> Tensor:
        return self._a

    def backward(self, s: Tensor) -> Sequence[Maybe]:
        if self._activation.bend is not None:
            self._s = s
        return (self._times_slope(s),)

    def forward_along(self, t: Sequence[Maybe]) -> Maybe:
        out = mapped(self._times_slope, t[0])
        if self._activation.bend is not None:
            self._t = out
        return out

    def backward_along(self, r: Maybe) -> Sequence[Maybe]:
        # R{φ'(z) s} = φ'(z) R{s} + φ''(z) R{z} s, where φ'' R{z} = (φ''/φ') R{a}.
        out = mapped(self._times_slope, r)
        bend = self._activation.bend
        if bend is None or self._s is None or self._t is None:
            return (out,)
        return (added(bend(self._a).mul_(self._t).mul_(self._s), out),)

    def _times_slope(self, g: Tensor) -> Tensor:
        return self._activation.times(g, self._a)


def operated(inputs: Sequence[Tensor], output: Tensor) -> Pass:
    """Return the pass of any operation without weights, by autograd; inputs are leaves of the output's graph."""
    return _Operated(inputs, output)


class _Operated(Pass):
    def __init__(self, inputs: Sequence[Tensor], output: Tensor) -> None:
        self._inputs, self._out = inputs, output
        self._s: Maybe = None
        self._input_signals: Sequence[Maybe] = [None] * len(inputs)
        self._bent: Sequence[Maybe] = [None] * len(inputs)

    def forward(self) -> Tensor:
        return self._out.detach()

    def backward(self, s: Tensor) -> Sequence[Maybe]:
        self._s = s.detach().requires_grad_()
        with torch.enable_grad():
            self._input_signals = torch.autograd.grad(
                self._out, self._inputs, self._s, create_graph=True, allow_unused=True
            )
        return [mapped(Tensor.detach, f) for f in self._input_signals]

    def forward_along(self, t: Sequence[Maybe]) -> Maybe:
        # With f = Jᵀs: d⟨f, t⟩ is J t in s, and what bends in the inputs.
        signals, directions = [], []
        for f, u in zip(self._input_signals, t, strict=True):
            if f is not None and f.requires_grad and u is not None:
                signals.append(f)
                directions.append(u)
        if not signals or self._s is None:
            return None
        leaves = [self._s, *self._inputs]
        out, *self._bent = torch.autograd.grad(
            signals, leaves, directions, retain_graph=True, allow_unused=True
        )
        return out

    def backward_along(self, r: Maybe) -> Sequence[Maybe]:
        if r is None:
            return self._bent
        gradients = torch.autograd.grad(self._out, self._inputs, r, retain_graph=True, allow_unused=True)
        return [added(f, b) for f, b in zip(gradients, self._bent, strict=True)]


# -- with weights -------------------------------------------------------------------------------------------


class WeightedPass(Pass):
    """A layer whose weights all batches share; each has its own gradient G in them, and its own direction g."""

    @abstractmethod
    def receive(self, s: Tensor) -> None:
        """Store dL/d(output); call this before the other methods."""

    @abstractmethod
    def gradients(self) -> tuple[Tensor, Tensor]:
        """Return G: in the weights (R, values), and in the bias (R, outputs)."""

    @abstractmethod
    def products(self, weight: Tensor, bias: Maybe) -> tuple[Tensor, Tensor]:
        """Return ⟨G, T⟩ and ‖G‖², (R,) each, for a target T like `gradients`; `bias` is None if the layer has none."""

    @abstractmethod
    def move(self, weight: Tensor, bias: Maybe) -> None:
        """Set g, in the form of `gradients`."""

    @abstractmethod
    def move_by_products(self, dot: Tensor, square: Tensor) -> None:
        """Set g to the derivative in G of dot ⟨G, T⟩ + square ‖G‖², (R,) each, with the T of `products`."""


def linear(a: Tensor, R: int, weight: Tensor, bias: Maybe) -> WeightedPass:
    """Return the pass of W a + b, for inputs (N, ..., I) in R batches."""
    return _Linear(a, R, weight, bias)


class _Linear(WeightedPass):
    """A linear layer's pass; G and g are not written out if only products are needed.

    With G = sᵀa of one batch: ⟨G, T⟩ = Σ s ∘ (a Tᵀ) and ‖G‖² = Σ (s sᵀ) ∘ (a aᵀ); the bias is a column of ones in a.
    """

    def __init__(self, a: Tensor, R: int, weight: Tensor, bias: Maybe) -> None:
        self._weight, self._bias = weight, bias
        self._whole, self._a = a, a.reshape(R, -1, a.shape[-1])
        self._gs: Callable[[Tensor, Tensor], Tensor]
        """Of s and a; large, and read last of all."""

    def forward(self) -> Tensor:
        return F.linear(self._whole, self._weight, self._bias)

    def receive(self, s: Tensor) -> None:
        self._s = s.reshape(*self._a.shape[:2], -1)

    def backward(self, s: Tensor) -> Sequence[Maybe]:
        return (s @ self._weight,)

    def gradients(self) -> tuple[Tensor, Tensor]:
        return torch.bmm(self._s.mT, self._a).flatten(1), self._s.sum(1)

    def products(self, weight: Tensor, bias: Maybe) -> tuple[Tensor, Tensor]:
        a, s = self._a, self._s
        self._aa = _gram(a)
        self._ss = _gram(s)
        if self._bias is not None:
            self._aa = self._aa + 1
        T = weight.view(len(a), *self._weight.shape)
        if weight.stride(0) == 0:  # one T for all (restarts of one message) is one product of matrices
            self._target = T[0]
            self._aT = F.linear(a, T[0], mapped(lambda b: b[0], bias))
        else:
            self._target = T
            self._aT = torch.bmm(a, T.mT)
            if bias is not None:
                self._aT += bias[:, None]
        dot = (s * self._aT).sum((1, 2))
        square = (self._aa * self._ss).sum((1, 2))
        return dot, square

    def move(self, weight: Tensor, bias: Maybe) -> None:
        g = weight.view(len(self._a), *self._weight.shape)
        self._ga = torch.bmm(self._a, g.mT)
        self._gs = lambda s, _: torch.bmm(s, g)
        if bias is not None:
            self._ga += bias[:, None]

    def move_by_products(self, dot: Tensor, square: Tensor) -> None:
        # With g = dot T + 2 square sᵀa: a gᵀ = dot a Tᵀ + 2 square (a aᵀ) s, and s g = dot s T + 2 square (s sᵀ) a.
        dot = dot.view(-1, 1, 1)
        twice = 2 * square.view(-1, 1, 1)
        self._ga = _add(self._aT * dot, self._aa * twice, self._s)
        target, ss = self._target, self._ss
        self._gs = lambda s, a: _add((s * dot) @ target, ss * twice, a)

    def forward_along(self, t: Sequence[Maybe]) -> Maybe:
        moved = self._ga.view(*self._whole.shape[:-1], -1)
        if t[0] is None:
            return moved
        return moved + F.linear(t[0], self._weight)

    def backward_along(self, r: Maybe) -> Sequence[Maybe]:
        moved = self._gs(self._s, self._a).view(-1, self._a.shape[2])
        if r is not None:
            moved.addmm_(r.reshape(len(moved), -1), self._weight)
        return (moved.view_as(self._whole),)


def _gram(v: Tensor) -> Tensor:
    """Return v vᵀ of each (R, M, n): (R, M, M)."""
    if v.shape[1] == 1:
        return v.square().sum(2, keepdim=True)
    return torch.bmm(v, v.mT)


def _add(out: Tensor, gram: Tensor, v: Tensor) -> Tensor:
    """Add gram v of each, (R, M, n), to `out`."""
    if gram.shape[1] == 1:
        return out.addcmul_(gram, v)
    return out.baddbmm_(gram, v)
