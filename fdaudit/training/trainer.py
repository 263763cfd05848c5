"""The training core: the one place where models are fitted, distilled and asked for predictions.

Every protocol and every shadow model uses a `Trainer`. The strategy decides how many models advance together. `loop`
fits each separately, on a CPU in as many threads as allowed. `stacked` advances all models of one architecture at once
under `torch.func.vmap`, unless different shapes prevent it or the network's rehearsal (`fdaudit.training.replicas`)
did not stack. The choice follows fixed rules (see `Execution.resolve`), never timing or free memory, so a run's bytes
do not depend on machine load.

Guarantees:
  * both strategies compute the same steps, on whole batches or on their parts in turn; they agree to float
    tolerance;
  * jobs fitted side by side give the same bits as jobs in turn on one thread;
  * no global random state is read or left changed; a network that draws numbers, by any function, draws from the
    job's own seed;
  * a NaN or infinite loss stops the run and names the party, the step and the value;
  * a job with a guard uses its records only through that guard.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from functools import partial
from typing import TypeVar

import torch
from torch import Tensor, nn
from torch.func import grad_and_value, vmap

from fdaudit.models.network import call_with, trainable_parameters
from fdaudit.parallel.randomness import generator_states, seeded_randomness
from fdaudit.parallel.threads import side_by_side
from fdaudit.rng import SecretStream, child
from fdaudit.training.execution import Execution
from fdaudit.training.jobs import Fit, Fitted, Job, Parameters, draw_batches, finite, parameters_of
from fdaudit.training.objectives import ClientStep
from fdaudit.training.optimizers import annealed, moments_of, optimizer_of, restore_moments
from fdaudit.training.private_step import Guard, Step, per_sample_gradients
from fdaudit.training.replicas import Buildable, Copy, Traits, rehearsed

__all__ = [
    "Buildable",
    "Fit",
    "Fitted",
    "Job",
    "Parameters",
    "Trainer",
    "draw_batches",
    "parameters_of",
]

_PREDICT_BATCH = 1024

Piece = TypeVar("Piece")
Result = TypeVar("Result")


class Trainer:
    """Trains and evaluates models of one architecture.

    Args:
        architecture: builds the network.
        execution: device, threads, strategy and memory format.

    Raises:
        SpecError: its rehearsal shows that it cannot be trained.
    """

    def __init__(self, architecture: Buildable, execution: Execution) -> None:
        self.execution = execution
        self.device = torch.device(execution.device)
        self._gpus = [self.device] if self.device.type == "cuda" else []
        self._format = torch.contiguous_format
        if execution.memory_format == "channels_last":
            self._format = torch.channels_last
        self.architecture = architecture
        self._mixed = execution.precision == "bfloat16"
        self._copies = [self._build()]
        self._module, self._named = self._copies[0].module, self._copies[0].named
        self._trainable = frozenset(trainable_parameters(self._module))
        self._traits = Traits.of(self._module, rehearsed(architecture, self.device), execution)
        if self._traits.compiled:
            self._copies = [Copy(self._module, compiled=True)]

    @property
    def keeps_statistics(self) -> bool:
        """Return whether training changes buffers too, as with BatchNorm."""
        return rehearsed(self.architecture, self.device).keeps

    # -- fitting --------------------------------------------------------------------------------------------

    def fit(self, jobs: Sequence[Job], fit: Fit) -> list[Fitted]:
        """Fit every job's model by the same rule; the jobs' own parameters are unchanged.

        Raises:
            TrainingDivergedError: a loss became NaN or infinite.
        """
        if self.execution.strategy == "stacked" and len(jobs) > 1 and self._stack_together(jobs):
            return finite(jobs, self._fit_stacked(jobs, fit))
        return finite(jobs, self._by_themselves(partial(self._fit_one, fit=fit), jobs))

    def _fit_one(self, copy: Copy, job: Job, fit: Fit) -> Fitted:
        if job.guard is not None:
            return self._fit_guarded(copy, job, job.guard, fit)
        copy.load(job.parameters)
        copy.module.train()
        free = self._free(copy)
        optimizer = _optimizer(list(free.values()), fit)
        restore_moments(optimizer, free, job.moments or {})
        x, targets = job.x.to(self.device), job.targets.to(self.device)
        anchor = self._anchor(job, fit)
        losses, draws = [], _augmenting(job)
        with self.randomness(job.seed):
            for step, batch in enumerate(_moved(job.batches, self.device)):
                near = None
                if anchor is not None:
                    near = fit.mu / 2 * _distance(copy.named, anchor)
                optimizer.zero_grad(set_to_none=True)
                losses.append(self._backward(copy, x, targets, batch, near, fit, draws))
                if fit.step.clips:
                    gradients: Parameters = {}
                    for name, parameter in free.items():
                        if parameter.grad is not None:
                            gradients[name] = parameter.grad
                    for name, gradient in fit.clipped(gradients).items():
                        free[name].grad = gradient
                _set_rate(optimizer, fit, step, len(job.batches))
                optimizer.step()
        moments = {} if job.moments is None else moments_of(optimizer, free)
        return Fitted(copy.unload(), _table(losses), moments, job.batches)

    def _backward(
        self,
        copy: Copy,
        x: Tensor,
        targets: Tensor,
        batch: Tensor,
        near: Tensor | None,
        fit: Fit,
        draws: torch.Generator,
    ) -> Tensor:
        """Add the gradient of a batch's mean loss, and of `near`, to the parameters' gradients. Return the loss."""
        parts = batch.chunk(self._traits.parts(len(batch), x))
        losses = list[Tensor]()
        part_targets: Sequence[Tensor] = ()
        for number, part in enumerate(parts):
            inputs = self._images(fit.augmented(_rows(x, part), draws))
            logits = self._logits(copy.forward, inputs)
            if not part_targets:  # a weighted mean has its weights from the whole batch
                batch_targets = fit.targets(_rows(targets, batch), logits.shape[1])
                part_targets = batch_targets.split(list(map(len, parts)))
            loss = fit.loss(logits, part_targets[number])
            if len(parts) > 1:  # every objective is a mean over records
                loss = loss * (len(part) / len(batch))
            losses.append(loss.detach())
            if near is not None:
                loss = loss + near
                near = None
            loss.backward()
        return torch.stack(losses).sum() if len(parts) > 1 else losses[0]

    def _fit_guarded(self, copy: Copy, job: Job, guard: Guard, fit: Fit) -> Fitted:
        """Fit along noisy gradients. FedProx's term, weight decay and momentum do not depend on the records."""
        copy.load(job.parameters)
        free = self._free(copy)
        optimizer = _optimizer(list(free.values()), fit)
        restore_moments(optimizer, free, job.moments or {})
        anchor = self._anchor(job, fit)
        losses, batches = list[Tensor](), list[Tensor]()
        for number, step in enumerate(self._guarded_steps(copy, job, guard, fit)):
            for name, tensor in free.items():
                near = 0 if anchor is None else fit.mu * (tensor.detach() - anchor[name])
                tensor.grad = step.gradient[name] + near
            _set_rate(optimizer, fit, number, guard.steps)
            optimizer.step()
            losses.append(step.loss)
            batches.append(step.batch)
        moments = {} if job.moments is None else moments_of(optimizer, free)
        return Fitted(copy.unload(), _table(losses), moments, batches)

    def _guarded_steps(self, copy: Copy, job: Job, guard: Guard, fit: Fit) -> Iterator[Step]:
        """Yield the guard's steps, each computed at the current parameters."""
        copy.module.train()
        if fit.step != ClientStep():
            problem = "a rule on records' gradients has its own clip and a mean loss. Leave out the step's."
            raise ValueError(problem)
        draws = _augmenting(job)
        x, targets = job.x.to(self.device), job.targets.to(self.device)

        def losses(records: Tensor) -> Tensor:  # every objective is a mean over records
            inputs = self._images(fit.augmented(_rows(x, records), draws))
            inputs.requires_grad_(inputs.is_floating_point())
            return fit.loss(copy.module(inputs), _rows(targets, records)) * len(records)

        with per_sample_gradients(copy.module):
            for _ in range(guard.steps):
                yield guard.step(copy.module, len(x), losses)

    def _fit_stacked(self, jobs: Sequence[Job], fit: Fit) -> list[Fitted]:
        free, buffers, proximal = Parameters(), Parameters(), Parameters()
        for name in self._named:
            stacked = torch.stack([job.parameters[name].to(self.device) for job in jobs])
            if name in self._trainable:
                free[name] = stacked.requires_grad_()
            else:
                buffers[name] = stacked
        optimizer = _optimizer(list(free.values()), fit)
        if fit.mu:
            anchors = [anchor for job in jobs if (anchor := self._anchor(job, fit)) is not None]
            for name in free:
                proximal[name] = torch.stack([anchor[name] for anchor in anchors])
        inputs = [job.x.to(self.device) for job in jobs]
        targets = [job.targets.to(self.device) for job in jobs]
        batches = [_moved(job.batches, self.device) for job in jobs]
        draws = list(map(_augmenting, jobs))
        self._module.train()

        def one_model(
            w: Parameters, rest: Parameters, anchor: Parameters, x: Tensor, y: Tensor
        ) -> tuple[Tensor, Tensor]:
            logits = self._logits(partial(call_with, self._module, {**w, **rest}), x)
            plain = fit.loss(logits, fit.targets(y, logits.shape[1]))
            if not anchor:
                return plain, plain
            return plain + fit.mu / 2 * _distance(w, anchor), plain

        advance = vmap(grad_and_value(one_model, has_aux=True))
        losses = []
        for step, indices in enumerate(zip(*batches, strict=True)):
            x, y = _stacked_rows(inputs, indices), _stacked_rows(targets, indices)
            if fit.augmentation is not None:
                x = torch.stack([fit.augmented(images, own) for images, own in zip(x, draws, strict=True)])
            detached = {name: tensor.detach() for name, tensor in free.items()}
            gradients, (_, plain) = advance(detached, buffers, proximal, x, y)
            gradients = fit.clipped(gradients, len(jobs))
            for name, tensor in free.items():
                tensor.grad = gradients[name]
            _set_rate(optimizer, fit, step, len(jobs[0].batches))
            optimizer.step()
            losses.append(plain.detach())
        table = torch.stack(losses).cpu() if losses else torch.zeros(0, len(jobs))
        tensors = free | buffers
        fitted = []
        for k, job in enumerate(jobs):
            parameters = {name: tensors[name][k].detach().clone() for name in self._named}
            fitted.append(Fitted(parameters, table[:, k], batches=job.batches))
        return fitted

    def gradients(self, jobs: Sequence[Job], fit: Fit) -> list[Fitted]:
        """Return for each job the gradient of its first batch's mean loss with respect to the trainable parameters.

        Under a guard, return the gradient of the guard's single step.

        Raises:
            TrainingDivergedError: a loss is NaN or infinite.
        """
        return finite(jobs, self._by_themselves(partial(self._gradient, fit=fit), jobs))

    def _gradient(self, copy: Copy, job: Job, fit: Fit) -> Fitted:
        copy.load(job.parameters)
        if job.guard is not None:
            (step,) = self._guarded_steps(copy, job, replace(job.guard, steps=1), fit)
            return Fitted(step.gradient, step.loss.reshape(1).cpu(), batches=[step.batch])
        copy.module.train()
        batch = job.batches[0]
        x = self._images(fit.augmented(_rows(job.x, batch), _augmenting(job)))
        targets = _rows(job.targets, batch).to(self.device)
        with self.randomness(job.seed):
            logits = copy.module(x)
            loss = fit.loss(logits, fit.targets(targets, logits.shape[1]))
        free = self._free(copy)
        values = torch.autograd.grad(loss, list(free.values()), materialize_grads=True)
        clipped = fit.clipped(dict(zip(free, values, strict=True)))
        gradient: Parameters = {}
        for name, tensor in clipped.items():
            gradient[name] = tensor.contiguous()
        return Fitted(gradient, loss.detach().reshape(1).cpu(), batches=[batch])

    def _by_themselves(self, work: Callable[[Copy, Job], Fitted], jobs: Sequence[Job]) -> list[Fitted]:
        """Run every job separately; on a CPU in as many threads as allowed."""
        before = generator_states()
        workers = self._workers(len(jobs))
        if workers <= 1:
            fitted = list(map(partial(work, self._copies[0]), jobs))
        else:
            for _ in range(workers - len(self._copies)):
                self._copies.append(self._build())
            fitted = side_by_side(work, jobs, self._copies[:workers])
        if generator_states() != before and not self._traits.random:
            # Only on these records the network draws numbers: fit again, each job from its own seed.
            self._traits = replace(self._traits, random=True, stackable=False, coupled=True)
            return self._by_themselves(work, jobs)
        return fitted

    # -- asking ---------------------------------------------------------------------------------------------

    @torch.no_grad()
    def predict(self, parameters: Mapping[str, Tensor], x: Tensor) -> Tensor:
        """Return logits (n, C) of one model for samples (n, c, h, w), on the CPU.

        A network that draws random numbers here too gets the same ones in every call. They are no secret.
        """
        self._copies[0].load(parameters)
        self._module.eval()
        size = int(min(_PREDICT_BATCH, self._traits.at_once(x)))
        logits: list[Tensor] = []
        with seeded_randomness(0, self._gpus) if self._traits.draws_answers else nullcontext():
            for part in x.split(size):
                images = self._images(part)
                logits.append(self._module(images).cpu())
            return torch.cat(logits)

    # -- lending --------------------------------------------------------------------------------------------

    def network(self, parameters: Mapping[str, Tensor]) -> nn.Module:
        """Return a new network with these parameters for the caller, on the device, in training mode.

        It serves purposes that the core does not: gradients with respect to inputs, and losses that involve other
        parties.
        """
        copy = self._build()
        copy.load(parameters)
        return copy.module

    def apart(self, work: Callable[[Piece], Result], pieces: Sequence[Piece]) -> list[Result]:
        """Apply the caller's function to each piece; on a CPU in as many threads as allowed.

        Args:
            work: changes nothing that the work on another piece reads.
            pieces: the inputs.
        """
        workers = self._workers(len(pieces))
        if workers <= 1:
            return list(map(work, pieces))
        return side_by_side(lambda _, piece: work(piece), pieces, [None] * workers)

    @contextmanager
    def randomness(self, source: int | SecretStream) -> Iterator[None]:
        """Give the global generators, from which a network may draw, a state from `source`. Restore them afterwards.

        Networks that draw nothing are left alone, so that threads need not take turns.
        """
        if not self._traits.random:
            yield
            return
        with seeded_randomness(source, self._gpus):
            yield

    # -- details --------------------------------------------------------------------------------------------

    def _stack_together(self, jobs: Sequence[Job]) -> bool:
        """Return whether jobs differ in numbers alone: in no shape, and without guards or moments."""
        if any(job.moments is not None or job.guard is not None for job in jobs):
            return False
        shapes = set[tuple[object, ...]]()
        for job in jobs:
            shapes.add((job.x.shape[1:], job.targets.shape[1:], *map(len, job.batches)))
        return len(shapes) == 1 and self._traits.stackable

    def _workers(self, pieces: int) -> int:
        # Draws come from the global generators, and compilers are no friends of threads: such work takes turns.
        if self._traits.random or self._traits.compiled or self.device.type != "cpu":
            return 1
        return min(self.execution.threads, pieces)

    def _build(self) -> Copy:
        network = self.architecture.build(torch.Generator().manual_seed(0))
        return Copy(network.to(self.device).to(memory_format=self._format))

    def _logits(self, forward: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
        """Return a network's logits for images (n, c, h, w) on the device during training; float32."""
        if not self._mixed:
            return forward(x)
        with torch.autocast(self.device.type, dtype=torch.bfloat16):
            return forward(x).float()

    def _images(self, x: Tensor) -> Tensor:
        x = x.to(self.device)
        return x.contiguous(memory_format=self._format) if x.dim() == 4 else x

    def _free(self, copy: Copy) -> dict[str, Tensor]:
        free: Parameters = {}
        for name, tensor in copy.named.items():
            if name in self._trainable:
                free[name] = tensor
        return free

    def _anchor(self, job: Job, fit: Fit) -> Parameters | None:
        if not fit.mu:
            return None
        if job.anchor is None:
            raise ValueError(f"{job.party}: mu = {fit.mu} needs an anchor. Give the parameters to stay near.")
        anchor: Parameters = {}
        for name in self._named:
            if name in self._trainable:
                anchor[name] = job.anchor[name].to(self.device)
        return anchor


def _optimizer(tensors: list[Tensor], fit: Fit) -> torch.optim.Optimizer:
    return optimizer_of(
        fit.optimizer,
        tensors,
        fit.lr,
        momentum=fit.momentum,
        betas=fit.betas,
        weight_decay=fit.weight_decay,
    )


def _set_rate(optimizer: torch.optim.Optimizer, fit: Fit, step: int, steps: int) -> None:
    optimizer.param_groups[0]["lr"] = annealed(fit.lr, fit.final_lr, step, steps)


def _moved(batches: Sequence[Tensor], device: torch.device) -> Sequence[Tensor]:
    """Return index batches on a device, moved at once: the host waits for the device at every transfer."""
    if device.type == "cpu" or not batches:
        return batches
    together = torch.cat(list(batches)).to(device)
    parts: Sequence[Tensor] = together.split([len(batch) for batch in batches])
    return parts


def _augmenting(job: Job) -> torch.Generator:
    """Return what draws how the images of a job are changed."""
    return child(job.seed, "augmentation")


def _rows(tensor: Tensor, index: Tensor) -> Tensor:
    """Return `tensor[index]`, three times as fast on a CPU."""
    return tensor.index_select(0, index.to(tensor.device))


def _stacked_rows(tensors: Sequence[Tensor], batches: Sequence[Tensor]) -> Tensor:
    """Return the batch (b, ...) of each tensor (n, ...), stacked; one gather if all are the same tensor."""
    first = tensors[0]
    if all(tensor is first for tensor in tensors):
        together: Tensor = _rows(first, torch.cat(list(batches))).unflatten(0, (len(batches), -1))
        return together
    stacked: list[Tensor] = []
    for tensor, batch in zip(tensors, batches, strict=True):
        stacked.append(_rows(tensor, batch))
    return torch.stack(stacked)


def _distance(a: Mapping[str, Tensor], b: Mapping[str, Tensor]) -> Tensor:
    """Return the squared ℓ2 distance between the tensors b and those of the same names in a."""
    squares: list[Tensor] = []
    for name, tensor in b.items():
        squares.append((a[name] - tensor).square().sum())
    return torch.stack(squares).sum()


def _table(losses: Sequence[Tensor]) -> Tensor:
    return torch.stack(list(losses)).cpu() if losses else torch.zeros(0)
