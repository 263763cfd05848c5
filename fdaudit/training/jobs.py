"""What the training core is asked for, and what it gives back."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

import torch
from torch import Tensor, nn

from fdaudit.config import Config
from fdaudit.errors import TrainingDivergedError
from fdaudit.training.objectives import Objective
from fdaudit.training.private_step import Guard

__all__ = ["Fit", "Fitted", "Job", "Parameters", "draw_batches", "finite", "parameters_of"]

Parameters = dict[str, Tensor]
"""Named floating-point parameters and buffers of a model."""


class Fit(Config):
    """How one model is fitted."""

    lr: float
    final_lr: float | None = None
    optimizer: Literal["sgd", "adam"] = "sgd"
    momentum: float = 0.0
    weight_decay: float = 0.0
    objective: Objective = "cross-entropy"
    temperature: float = 1.0
    mu: float = 0.0


@dataclass(frozen=True, kw_only=True, eq=False)
class Job:
    """One model to fit.

    Attributes:
        party: whose model it is, for error messages.
        parameters: where it starts; never changed.
        x: (n, c, h, w) inputs.
        targets: (n,) classes, or (n, C): weights of the classes (objective `cross-entropy`), of 1, 0 and -1 for
            unknown (`binary-cross-entropy`), probabilities (`kl`: rows sum to 1; `binary-kl`: each by itself)
            or logits (`l1`, `l2`).
        batches: index tensors into `x`, one for each step.
        anchor: FedProx's reference parameters, where `mu` is positive.
        seed: for dropout.
        moments: what the optimiser remembers of earlier steps, as `Fitted.moments` has it, or nothing yet. Left
            out, it starts afresh and what it remembers is not kept.
        guard: the training defence under which the records are used; it draws the batches itself, in place of
            `batches`.
    """

    party: str
    parameters: Mapping[str, Tensor]
    x: Tensor
    targets: Tensor
    batches: Sequence[Tensor]
    anchor: Mapping[str, Tensor] | None = None
    seed: int = 0
    moments: Mapping[str, Tensor] | None = None
    guard: Guard | None = None


@dataclass(frozen=True, eq=False)
class Fitted:
    """A fitted model.

    Attributes:
        parameters: its parameters and buffers, or its gradient.
        losses: its mean loss before each step (steps,). Under a guard the sum over the records drawn by the public
            number that their gradients are divided by. The auditor's: nothing that a guard promises covers it.
        moments: the optimiser's, where they were asked for.
        batches: the numbers of the records that each step used; the auditor's as well.
    """

    parameters: Parameters
    losses: Tensor
    moments: dict[str, Tensor] = field(default_factory=dict)
    batches: Sequence[Tensor] = ()


def parameters_of(module: nn.Module) -> Parameters:
    """Copies of a module's floating-point parameters and buffers, contiguous, by name."""
    named = module.state_dict()
    return {
        name: t.detach().clone(memory_format=torch.contiguous_format)
        for name, t in named.items()
        if t.is_floating_point()
    }


def draw_batches(
    n: int,
    batch_size: int,
    *,
    steps: int | None = None,
    epochs: int | None = None,
    generator: torch.Generator,
) -> tuple[Tensor, ...]:
    """Index batches of local SGD over `n` records, reshuffled every pass.

    With `epochs`, each pass ends with the smaller last batch. With `steps`, every batch is full
    (`min(batch_size, n)`) and passes follow each other until there are enough.
    """
    if (steps is None) == (epochs is None):
        raise ValueError(f"draw_batches: steps = {steps} and epochs = {epochs}. Give exactly one.")
    if epochs is not None:
        return tuple(
            b for _ in range(epochs) for b in torch.randperm(n, generator=generator).split(batch_size)
        )
    size, batches = min(batch_size, n), list[Tensor]()
    while len(batches) < (steps or 0):
        order = torch.randperm(n, generator=generator)
        batches += [b for b in order.split(size) if len(b) == size]
    return tuple(batches[:steps])


def finite(jobs: Sequence[Job], fitted: list[Fitted]) -> list[Fitted]:
    """What was fitted, unless a loss became NaN or infinite.

    Under a guard losses must not decide whether a run stops, being the records' own: its noisy result does.

    Raises:
        TrainingDivergedError: one did.
    """
    for job, result in zip(jobs, fitted, strict=True):
        if job.guard is not None:
            numbers = torch.cat([t.flatten() for t in result.parameters.values()])
            wrong = numbers[~torch.isfinite(numbers)]
            if len(wrong):
                raise TrainingDivergedError(job.party, job.guard.steps, float(wrong[0]))
            continue
        wrong = (~torch.isfinite(result.losses)).nonzero()
        if len(wrong):
            raise TrainingDivergedError(job.party, int(wrong[0]), result.losses[wrong[0]].item())
    return fitted
