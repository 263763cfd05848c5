"""Jobs for the training core, and their results."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn import functional

from fdaudit.config import Config
from fdaudit.errors import TrainingDivergedError
from fdaudit.training.objectives import ClientStep, Objective, loss_function
from fdaudit.training.optimizers import BETAS, OptimizerName
from fdaudit.training.private_step import Guard

__all__ = [
    "Augmentation",
    "Fit",
    "Fitted",
    "Job",
    "Parameters",
    "draw_batches",
    "finite",
    "mean_losses",
    "parameters_of",
]

Parameters = dict[str, Tensor]
"""Named floating-point parameters and buffers of a model."""


class Augmentation(Config):
    """How images of a batch are changed before each step, each image by its own draws."""

    shift: int = Field(0, ge=0, le=64)
    """Largest shift to each side, in pixels; zeros come in. A random crop of images padded by so much."""
    flip: bool = False
    """Mirror every other image, left to right, by a fair coin."""
    cutout: int = Field(0, ge=0, le=512)
    """Side of a square of zeros around a random pixel (DeVries & Taylor 2017)."""

    def of(self, x: Tensor, draws: torch.Generator) -> Tensor:
        """Return changed images (n, c, h, w).

        Args:
            x: the images.
            draws: a generator on the CPU.
        """
        (n, _, height, width), side = x.shape, self.shift
        if side:
            place = torch.randint(2 * side + 1, (2, n), generator=draws).to(x.device)
            padded = functional.pad(x, (side,) * 4)
            rows = (place[0, :, None] + torch.arange(height, device=x.device)).view(n, 1, height, 1)
            columns = (place[1, :, None] + torch.arange(width, device=x.device)).view(n, 1, 1, width)
            images = torch.arange(n, device=x.device).view(n, 1, 1, 1)
            channels = torch.arange(x.shape[1], device=x.device).view(1, -1, 1, 1)
            x = padded[images, channels, rows, columns]
        if self.flip:
            coins = torch.randint(2, (n, 1, 1, 1), generator=draws).bool().to(x.device)
            x = torch.where(coins, x.flip(-1), x)
        if self.cutout:
            centre = torch.rand(2, n, generator=draws).to(x.device)
            half = self.cutout // 2
            inside = []
            for size, middle in ((height, centre[0]), (width, centre[1])):
                distance = torch.arange(size, device=x.device) - (middle[:, None] * size).long()
                inside.append((-half <= distance) & (distance < half))
            rows_inside, columns_inside = inside
            square = rows_inside[:, :, None] & columns_inside[:, None, :]
            x = x.masked_fill(square[:, None], 0.0)
        return x


class Fit(Config):
    """The settings of one model's training."""

    lr: float
    final_lr: float | None = None
    optimizer: OptimizerName = "sgd"
    betas: tuple[float, float] = BETAS
    momentum: float = 0.0
    weight_decay: float = 0.0
    objective: Objective = "cross-entropy"
    temperature: float = 1.0
    mu: float = 0.0
    step: ClientStep = ClientStep()
    """Settings of cross-entropy, which other objectives ignore, and clipping of each step's gradient."""
    augmentation: Augmentation | None = None
    """How images are changed before each step. None: not at all."""

    def augmented(self, x: Tensor, draws: torch.Generator) -> Tensor:
        """Return the images (n, c, h, w) of a step."""
        return x if self.augmentation is None else self.augmentation.of(x, draws)

    def loss(self, logits: Tensor, targets: Tensor) -> Tensor:
        """Return the mean loss () of a batch or of a part of it, toward targets as `targets` returns them."""
        return loss_function(self.objective, self.temperature)(logits, targets)

    def targets(self, y: Tensor, classes: int) -> Tensor:
        """Return labels y (B, ...) of a whole batch as the targets of its loss.

        Their loss is a mean over the records, also over those of a part of the batch.
        """
        if self.objective != "cross-entropy" or self.step.plain:
            return y
        return self.step.targets(y, classes)

    def clipped(self, gradients: Mapping[str, Tensor], models: int = 0) -> Mapping[str, Tensor]:
        """Return gradients as the optimiser gets them.

        Args:
            gradients: of one model by name; or with a first dimension of as many `models`.
            models: their number; 0 for gradients of one model.
        """
        if not self.step.clips:
            return gradients
        shape = (models, -1) if models else (-1,)
        # A norm is that of the whole gradient: all parameters side by side.
        flat = [gradient.reshape(shape) for gradient in gradients.values()]
        whole = self.step.clipped(torch.cat(flat, -1))
        parts = whole.split([part.shape[-1] for part in flat], -1)
        clipped = {}
        for (name, gradient), part in zip(gradients.items(), parts, strict=True):
            clipped[name] = part.reshape(gradient.shape)
        return clipped


@dataclass(frozen=True, kw_only=True, eq=False)
class Job:
    """One model to fit.

    Attributes:
        party: the model's owner, for error messages.
        parameters: its initial parameters; never changed.
        x: (n, c, h, w) inputs.
        targets: (n,) classes, or (n, C): weights of the classes (objective `cross-entropy`), labels of 1, 0 and -1 for
            unknown (`binary-cross-entropy`), probabilities (`kl`: rows sum to 1; `binary-kl`: each class separately)
            or logits (`l1`, `l2`). For segmentation, masks (n, h, w) (`cross-entropy-dice`), or probabilities or logits
            (n, C, h, w) (`dice`, `kl`, `l2`).
        batches: index tensors into `x`, one for each step.
        anchor: FedProx's reference parameters, if `mu` is positive.
        seed: for dropout.
        moments: the optimiser's state from earlier steps, as in `Fitted.moments`, or an empty mapping. If omitted, the
            optimiser starts from zero and its state is not returned.
        guard: the training defence under which the records are used; it draws the batches itself and ignores
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
        losses: its mean loss before each step (steps,). Under a guard: the sum over the drawn records, divided by the
            guard's public batch size. For the auditor only; the guard's guarantee does not cover it.
        moments: the optimiser's state, if requested.
        batches: the numbers of the records that each step used; for the auditor only.
    """

    parameters: Parameters
    losses: Tensor
    moments: dict[str, Tensor] = field(default_factory=dict)
    batches: Sequence[Tensor] = ()


def parameters_of(module: nn.Module) -> Parameters:
    """Return copies of a module's floating-point parameters and buffers, contiguous, by name."""
    parameters = {}
    for name, tensor in module.state_dict().items():
        if tensor.is_floating_point():
            parameters[name] = tensor.detach().clone(memory_format=torch.contiguous_format)
    return parameters


def draw_batches(
    n: int,
    batch_size: int,
    *,
    steps: int | None = None,
    epochs: int | None = None,
    generator: torch.Generator,
) -> tuple[Tensor, ...]:
    """Return index batches of local SGD over `n` records, reshuffled every pass.

    With `epochs`, each pass ends with the smaller last batch. With `steps`, every batch is full
    (`min(batch_size, n)`) and passes are repeated until there are enough.
    """
    if (steps is None) == (epochs is None):
        raise ValueError(f"draw_batches: steps = {steps} and epochs = {epochs}. Give exactly one.")
    batches = list[Tensor]()
    if epochs is not None:
        for _ in range(epochs):
            batches += torch.randperm(n, generator=generator).split(batch_size)
        return tuple(batches)
    size = min(batch_size, n)
    while len(batches) < (steps or 0):
        order = torch.randperm(n, generator=generator)
        for batch in order.split(size):
            if len(batch) == size:
                batches.append(batch)
    return tuple(batches[:steps])


def mean_losses(jobs: Sequence[Job], fitted: Sequence[Fitted]) -> dict[str, float]:
    """Return the mean of the losses of each job's training, by party."""
    means: dict[str, float] = {}
    for job, result in zip(jobs, fitted, strict=True):
        means[job.party] = float(result.losses.mean())
    return means


def finite(jobs: Sequence[Job], fitted: list[Fitted]) -> list[Fitted]:
    """Return the fitted models, or raise if a loss became NaN or infinite.

    Under a guard, losses are derived from private records, so they must not decide whether a run stops. The noisy
    result decides.

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
