"""A network that one party trains step by step, for protocols with losses of their own.

The `Trainer` fits classifiers. Generators and discriminators learn one step at a time, from losses that involve other
parties. A learner keeps such a network together with its optimiser across rounds.

Guarantees:
  * a learner restored from `state()` continues bit for bit like the original;
  * a NaN or infinite loss stops the run and names the party, the step and the value. A gradient that is passed in
    directly is checked in the same way.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from fdaudit.config import Config
from fdaudit.errors import TrainingDivergedError
from fdaudit.models.network import trainable_parameters
from fdaudit.training.optimizers import BETAS, OptimizerName, moments_of, optimizer_of, restore_moments

if TYPE_CHECKING:
    from fdaudit.training.trainer import Parameters

__all__ = ["Learner", "Optimizer"]


class Optimizer(Config):
    """The optimiser settings of a learner's network."""

    lr: float
    name: OptimizerName = "adam"
    momentum: float = 0.0
    betas: tuple[float, float] = BETAS
    weight_decay: float = 0.0

    def build(self, parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
        """Return the optimiser over `parameters`."""
        return optimizer_of(
            self.name,
            parameters,
            self.lr,
            momentum=self.momentum,
            betas=self.betas,
            weight_decay=self.weight_decay,
        )


class Learner:
    """One party's network and its optimiser.

    Args:
        party: its owner, for error messages.
        module: the network; the learner's own from now on.
        optimizer: how it is optimised.
        device: its device.

    Attributes:
        module: call it to get outputs that carry gradients.
        steps: number of steps taken.
    """

    def __init__(
        self, party: str, module: nn.Module, optimizer: Optimizer, device: torch.device | str = "cpu"
    ) -> None:
        self.party, self.steps, self._rate = party, 0, optimizer.lr
        self.module = module.to(device)
        self._trainable = trainable_parameters(self.module)
        self._optimizer = optimizer.build(list(self._trainable.values()))

    def step(self, loss: Tensor, lr: float | None = None) -> float:
        """Take one step that reduces `loss` (); return the loss.

        Args:
            loss: the loss to minimise; other leaves of its graph get no gradient from this.
            lr: this step's learning rate, if a schedule sets it; default: the optimiser's own.

        Raises:
            TrainingDivergedError: the loss is NaN or infinite.
        """
        value = float(loss.detach())
        if not torch.isfinite(loss.detach()):
            raise TrainingDivergedError(self.party, self.steps, value)
        self._optimizer.zero_grad(set_to_none=True)
        # Without `inputs` the loss's samples would accumulate gradients that are not needed.
        loss.backward(inputs=list(self._trainable.values()))
        self._advance(lr)
        return value

    def descend(self, gradient: Mapping[str, Tensor], lr: float | None = None) -> None:
        """Take one step along a given gradient, by parameter name.

        Args:
            gradient: of every trainable parameter.
            lr: this step's learning rate, if a schedule sets it; default: the optimiser's own.

        Raises:
            TrainingDivergedError: the gradient is NaN or infinite.
        """
        for name, parameter in self._trainable.items():
            wrong = gradient[name][~torch.isfinite(gradient[name])]
            if len(wrong):
                raise TrainingDivergedError(self.party, self.steps, float(wrong[0]))
            parameter.grad = gradient[name].to(parameter)
        self._advance(lr)

    def _advance(self, lr: float | None) -> None:
        for group in self._optimizer.param_groups:
            group["lr"] = self._rate if lr is None else lr
        self._optimizer.step()
        self.steps += 1

    # -- what outlives a round ------------------------------------------------------------------------------

    def parameters(self) -> Parameters:
        """Return copies of the floating-point parameters and buffers by name, on the CPU."""
        parameters: Parameters = {}
        for name, tensor in self.module.state_dict().items():
            if tensor.is_floating_point():
                parameters[name] = tensor.detach().cpu().clone()
        return parameters

    def load(self, parameters: Mapping[str, Tensor]) -> None:
        """Load weights; keep the optimiser's moments.

        Raises:
            KeyError: a parameter or buffer is absent.
        """
        with torch.no_grad():
            for name, tensor in self.module.state_dict(keep_vars=True).items():
                if tensor.is_floating_point():
                    tensor.copy_(parameters[name])

    def state(self) -> dict[str, Tensor]:
        """Return weights (`w/…`), the optimiser's moments (`m/…`) and the step count, by name, on the CPU."""
        tensors: dict[str, Tensor] = {}
        for name, weight in self.parameters().items():
            tensors[f"w/{name}"] = weight
        for name, moment in moments_of(self._optimizer, self._trainable).items():
            tensors[f"m/{name}"] = moment
        tensors["steps"] = torch.tensor(self.steps)
        return tensors

    def restore(self, state: Mapping[str, Tensor]) -> None:
        """Load a result of `state`."""
        weights: dict[str, Tensor] = {}
        moments: dict[str, Tensor] = {}
        for name, tensor in state.items():
            if name.startswith("w/"):
                weights[name.removeprefix("w/")] = tensor
            elif name.startswith("m/"):
                moments[name.removeprefix("m/")] = tensor
        self.load(weights)
        self.steps = int(state["steps"])
        self._optimizer.state.clear()
        restore_moments(self._optimizer, self._trainable, moments)
