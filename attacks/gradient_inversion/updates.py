"""Simulation of a client's local training, step by step and differentiable in its images.

Guarantees:
  * for the true images, labels and batches the simulated update is the client's own, up to rounding;
  * momentum, weight decay and the proximal term enter each step as in PyTorch's SGD and FedProx.

Source: Geiping et al. 2020, section 6 ("federated averaging").
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap

from fdaudit.errors import UsageError

from .gradients import Simulator, Strategy, _split

__all__ = ["LocalSGD", "UpdateMap", "gradient_of_update", "schedule"]


@dataclass(frozen=True, kw_only=True)
class LocalSGD:
    """The local training that an adversary simulates.

    Attributes:
        lr: learning rate.
        batches: for each step, positions of its images among those of the round.
        momentum: PyTorch's SGD momentum, without dampening, from a zero buffer.
        weight_decay: ℓ2 penalty, added to each gradient times the weights.
        mu: FedProx's proximal weight towards the starting model.
    """

    lr: float
    batches: tuple[tuple[int, ...], ...]
    momentum: float = 0.0
    weight_decay: float = 0.0
    mu: float = 0.0

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
        return 1 + max(i for batch in self.batches for i in batch)

    @property
    def gain(self) -> float:
        """Return −(sum of applied gradients) per unit of mean gradient: Σ over steps of lr times momentum's echo."""
        steps = len(self.batches)
        return self.lr * sum(self.momentum**j for s in range(steps) for j in range(s + 1))


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
        size = batch_size if n is None else min(batch_size, n)
        a_pass = steps if n is None else n // size
        return tuple(tuple(range(s % a_pass * size, (s % a_pass + 1) * size)) for s in range(steps))
    if n is None:
        raise UsageError("n", n, "is not known, but epochs depend on it", "Give the client's sample count.")
    one = tuple(tuple(range(i, min(i + batch_size, n))) for i in range(0, n, batch_size))
    return one * int(epochs or 0)


def gradient_of_update(
    update: Mapping[str, Tensor], start: Mapping[str, Tensor], training: LocalSGD
) -> dict[str, Tensor]:
    """Return the mean gradient that an update applied: exact after one step, an average over steps after more."""
    return {
        name: -delta / training.gain - training.weight_decay * start[name] for name, delta in update.items()
    }


class UpdateMap(Simulator):
    """Maps R guessed rounds of local training to their updates.

    Args:
        module: the architecture.
        tensors: parameters, and buffers, of the model that the client started from.
        training: the steps to simulate.
        strategy: `loop` or `vmap`; default: `vmap` from four on.

    Raises:
        UsageError: as for `GradientMap`.
    """

    def __init__(
        self,
        module: nn.Module,
        tensors: Mapping[str, Tensor],
        training: LocalSGD,
        strategy: Strategy | None = None,
    ) -> None:
        self.parameters, self._buffers = _split(module, tensors)
        self.names, self.training = tuple(self.parameters), training
        self._module, self._strategy = module, strategy

    def __call__(self, x: Tensor, y: Tensor) -> Tensor:
        """Return updates (R, P) after training on images x (R, n, c, h, w) with labels y (R, n)."""
        if (self._strategy or ("vmap" if len(x) >= 4 else "loop")) == "vmap":
            updates: Tensor = vmap(self._update)(x, y)
            return updates
        return torch.stack([self._update(xr, yr) for xr, yr in zip(x, y, strict=True)])

    def _loss(self, w: Mapping[str, Tensor], x: Tensor, y: Tensor) -> Tensor:
        return F.cross_entropy(functional_call(self._module, {**w, **self._buffers}, (x,)), y)

    def _update(self, x: Tensor, y: Tensor) -> Tensor:
        """Return the update (P,) of one client."""
        cfg, w_0 = self.training, self.parameters
        w = dict(w_0)
        velocity: dict[str, Tensor] = {}
        for batch in cfg.batches:
            index = torch.tensor(batch, device=x.device)
            g = grad(self._loss)(w, x[index], y[index])
            for name in w:
                d = g[name] + cfg.weight_decay * w[name] + cfg.mu * (w[name] - w_0[name])
                velocity[name] = cfg.momentum * velocity[name] + d if name in velocity else d
            w = {name: w[name] - cfg.lr * velocity[name] for name in w}
        return torch.cat([(w[name] - w_0[name]).reshape(-1) for name in self.names])
