"""Simulation of a client's local training, step by step and differentiable in its images.

Guarantees:
  * for the true images, labels and batches the simulated update is the client's own, up to rounding;
  * momentum, weight decay and the proximal term enter each step as in PyTorch's SGD and FedProx;
  * Adam and AdamW step as PyTorch's do, from moments of zero.

Adam's first step is almost the sign of the gradient, g / (|g| + ε), whose derivative is zero nearly everywhere. A
search therefore smooths its own steps: g / √(g² + (κ r)²) with the root mean square r of each tensor's gradient.
Measured on single digits and a strided network at a rate of 0.001, in dB of PSNR: 20 with gradients in place of steps,
27 with κ = 1, 34 with κ = 0.1.

Sources: Geiping et al. 2020, section 6 ("federated averaging"); Kingma & Ba 2015; Loshchilov & Hutter 2019.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from itertools import chain

import torch
from torch import Tensor, nn
from torch.func import grad, vmap

from fdaudit.errors import UsageError
from fdaudit.models.network import call_with
from fdaudit.training.objectives import ClientStep
from fdaudit.training.optimizers import BETAS, OptimizerName

from .gradients import PLAIN, GradientMap, Simulator, Strategy, expanded, flatten, trained_and_frozen

__all__ = ["SMOOTHING", "ClientSteps", "UpdateMap", "gradient_of_update", "schedule"]

_State = tuple[Tensor, Tensor]
"""Adam's moments of one parameter; SGD's velocity, twice."""

SMOOTHING = 0.1
"""κ of a search."""
_EPSILON = 1e-8
"""PyTorch's default for Adam."""


@dataclass(frozen=True, kw_only=True)
class ClientSteps:
    """The local training that an adversary simulates.

    Attributes:
        lr: learning rate.
        optimizer: `sgd`, `adam` or `adamw`, with PyTorch's defaults for all that is not said here.
        betas: decay rates of Adam's moments.
        batches: for each step, positions of its images among those of the round.
        momentum: PyTorch's SGD momentum, without dampening, from a zero buffer.
        weight_decay: ℓ2 penalty, added to each gradient times the weights. AdamW subtracts it from the weights.
        mu: FedProx's proximal weight towards the starting model.
        step: how a step's gradient is made.
    """

    lr: float
    batches: tuple[tuple[int, ...], ...]
    optimizer: OptimizerName = "sgd"
    betas: tuple[float, float] = BETAS
    momentum: float = 0.0
    weight_decay: float = 0.0
    mu: float = 0.0
    step: ClientStep = PLAIN

    def __post_init__(self) -> None:
        if not self.lr > 0:
            raise UsageError("lr", self.lr, "is not positive", "Give the clients' learning rate.")
        if not self.batches or not all(self.batches):
            raise UsageError(
                "batches", self.batches, "has no step, or an empty one", "Name each step's images."
            )

    @property
    def images(self) -> int:
        """Return the number of distinct images in the steps."""
        return 1 + max(chain.from_iterable(self.batches))

    @property
    def adaptive(self) -> bool:
        """Return whether an update is no sum of gradients, because each entry has a rate of its own."""
        return self.optimizer != "sgd"

    @property
    def gain(self) -> float:
        """Return −(sum of applied gradients) per unit of mean gradient: Σ over steps of lr times momentum's echo."""
        steps = len(self.batches)
        if self.adaptive:
            return self.lr * steps
        total: float = 0
        for step in range(steps):
            for age in range(step + 1):
                total += self.momentum**age
        return self.lr * total


def schedule(
    n: int | None, batch_size: int, *, steps: int | None = None, epochs: int | None = None
) -> tuple[tuple[int, ...], ...]:
    """Return the images of each local step, as far as an adversary can know.

    Images are numbered in the order of their first use, which one pass determines completely. The client reshuffles
    later passes, which the adversary does not see. They are assumed to repeat the first.

    Args:
        n: the client's records, or None if unknown (then steps never meet a record twice).
        batch_size: records a step.
        steps: number of steps, all of full batches; or
        epochs: passes, each ending with the remaining records.

    Raises:
        UsageError: neither or both of steps and epochs are given, or epochs without n.
    """
    if (steps is None) == (epochs is None):
        raise UsageError("steps", steps, f"with epochs = {epochs} is not one of the two", "Give exactly one.")
    if steps is not None:
        size, steps_in_pass = batch_size, steps
        if n is not None:
            size = min(batch_size, n)
            steps_in_pass = n // size
        batches = []
        for step in range(steps):
            first = step % steps_in_pass * size
            batches.append(tuple(range(first, first + size)))
        return tuple(batches)
    if n is None:
        raise UsageError("n", n, "is not known, but epochs depend on it", "Give the client's sample count.")
    one_pass = []
    for first in range(0, n, batch_size):
        batch = range(first, min(first + batch_size, n))
        one_pass.append(tuple(batch))
    return tuple(one_pass) * int(epochs or 0)


def gradient_of_update(
    update: Mapping[str, Tensor], start: Mapping[str, Tensor], training: ClientSteps
) -> dict[str, Tensor]:
    """Return the mean gradient that an update applied: exact after one step, an average over steps after more.

    Of Adam it is a mean of its normalised steps: after one step, the gradient's sign wherever it is not tiny.
    """
    gradient = {}
    for name, delta in update.items():
        gradient[name] = -delta / training.gain - training.weight_decay * start[name]
    return gradient


class UpdateMap(Simulator):
    """Maps R guessed rounds of local training to their updates.

    Args:
        module: the architecture.
        tensors: parameters, and buffers, of the model that the client started from.
        training: the steps to simulate.
        smoothing: κ, which smooths the steps of Adam for a search; 0 simulates them exactly.
        strategy: `loop` or `vmap`; default: `vmap` from four on, and for a single step as `GradientMap`.

    Raises:
        UsageError: as for `GradientMap`.
    """

    def __init__(
        self,
        module: nn.Module,
        tensors: Mapping[str, Tensor],
        training: ClientSteps,
        strategy: Strategy | None = None,
        smoothing: float = 0.0,
    ) -> None:
        self.parameters, self._buffers = trained_and_frozen(module, tensors)
        self.names, self.training = tuple(self.parameters), training
        self._module, self._strategy, self._smoothing = module, strategy, smoothing
        self._gradients = GradientMap(module, tensors, step=training.step)

    def __call__(self, x: Tensor, y: Tensor) -> Tensor:
        """Return updates (R, P) after training on images x (R, n, c, h, w) with labels y (R, n)."""
        cfg = self.training
        if len(cfg.batches) == 1 and self._strategy is None:  # from gradients of all problems at once
            index = torch.tensor(cfg.batches[0], device=x.device)
            gradients = self._gradients(x[:, index], y[:, index])
            sizes = [self.parameters[name].numel() for name in self.names]
            parts = []
            for name, step in zip(self.names, gradients.split(sizes, 1), strict=True):
                decay = cfg.weight_decay * self.parameters[name].reshape(-1)
                if cfg.optimizer != "adamw":  # AdamW's decay has no part in its moments
                    step = step + decay
                if cfg.adaptive:
                    step = vmap(self._first_adam_step)(step)
                if cfg.optimizer == "adamw":
                    step = decay + step
                parts.append(-cfg.lr * step)
            return torch.cat(parts, 1)
        if self._strategy == "vmap" or (self._strategy is None and len(x) >= 4):
            updates: Tensor = vmap(self._update)(x, y, expanded(self._buffers, len(x)))
            return updates
        rows = []
        for images, labels in zip(x, y, strict=True):
            row = self._update(images, labels, self._buffers)
            rows.append(row)
        return torch.stack(rows)

    def _first_adam_step(self, g: Tensor) -> Tensor:
        return self._adam_step(g, None, 1)[0]

    def _loss(self, w: Mapping[str, Tensor], x: Tensor, y: Tensor, buffers: Mapping[str, Tensor]) -> Tensor:
        return self.training.step.loss(partial(call_with, self._module, {**w, **buffers}), x, y)

    def _update(self, x: Tensor, y: Tensor, buffers: Mapping[str, Tensor]) -> Tensor:
        """Return the update (P,) of one client."""
        cfg, w_0 = self.training, self.parameters
        w = dict(w_0)
        state: dict[str, _State] = {}
        for t, batch in enumerate(cfg.batches, 1):
            index = torch.tensor(batch, device=x.device)
            gradient = grad(self._loss)(w, x[index], y[index], buffers)
            # Clients clip after `backward`, which adds the proximal term's gradient.
            for name, g in gradient.items():
                gradient[name] = g + cfg.mu * (w[name] - w_0[name])
            gradient = self._clipped(gradient)
            after = {}
            for name, weight in w.items():
                g = gradient[name]
                remaining = 1.0  # share of the weights after decoupled decay
                if cfg.optimizer == "adamw":
                    remaining = 1 - cfg.lr * cfg.weight_decay
                else:
                    g = g + cfg.weight_decay * weight
                if cfg.adaptive:
                    step, state[name] = self._adam_step(g, state.get(name), t)
                else:
                    step = g
                    if name in state:
                        step = cfg.momentum * state[name][0] + g
                    state[name] = (step, step)
                after[name] = remaining * weight - cfg.lr * step
            w = after
        changes = []
        for name in self.names:
            change = w[name] - w_0[name]
            changes.append(change.reshape(-1))
        return torch.cat(changes)

    def _adam_step(self, g: Tensor, moments: _State | None, t: int) -> tuple[Tensor, _State]:
        """Return Adam's t-th step, counted from 1, before the learning rate, and the moments after it."""
        if moments is None:
            moments = torch.zeros_like(g), torch.zeros_like(g)
        beta1, beta2 = self.training.betas
        first = beta1 * moments[0] + (1 - beta1) * g
        second = beta2 * moments[1] + (1 - beta2) * g.square()
        square = second / (1 - beta2**t)
        if self._smoothing:
            # Never zero, where the derivative of the root is infinite.
            square = square + self._smoothing**2 * square.mean() + _EPSILON**2
        step = first / (1 - beta1**t) / (square.sqrt() + _EPSILON)
        return step, (first, second)

    def _clipped(self, gradient: dict[str, Tensor]) -> dict[str, Tensor]:
        """Return a step's gradient as the optimiser gets it."""
        if not self.training.step.clips:
            return gradient
        sizes = [gradient[name].numel() for name in self.names]
        whole = self.training.step.clipped(flatten(gradient, self.names))
        clipped = {}
        for name, part in zip(self.names, whole.split(sizes), strict=True):
            clipped[name] = part.view_as(gradient[name])
        return clipped
