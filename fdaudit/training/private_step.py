"""Training under a gradient rule: a step uses private records only through one clipped and noisy sum.

Guarantees:
  * records enter a step only through `GradientRule.clipped`, each by its own gradient;
  * the records of a step and the noise on their sum come from a secret, never from the run's seed;
  * so do all numbers that the network draws in a step, whatever layer or function draws them;
  * a record with a NaN or infinite gradient adds nothing, and does not stop the run.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from fdaudit.errors import one_line
from fdaudit.models.network import Network, trainable_parameters
from fdaudit.parallel.randomness import forked_randomness, seeded_randomness
from fdaudit.rng import SecretStream
from fdaudit.training.separation import coupling, mixing_layer, random_inputs, trial_loss
from fdaudit.types import GradientRule

__all__ = ["Guard", "Step", "per_sample_gradients", "unfit"]

_ENTRIES = {"cpu": 2**21, "cuda": 2**27}
"""Gradient entries held at once by kind of device: fixed, so that parts do not depend on free memory. On a CPU, few
enough that memory is reused; new pages take longer than all the arithmetic."""

_TRIED = 3
"""Records of a trial's batch."""
_SAME = 1e-3
"""Relative difference of two gradients that rounding explains."""


@dataclass(frozen=True, eq=False)
class Step:
    """One step under a guard.

    Attributes:
        gradient: by parameter name: the noisy sum divided by the public batch size.
        batch: the numbers (b,) of the records drawn; for the auditor only.
        loss: the sum of their losses divided by the public batch size (); for the auditor only.
    """

    gradient: dict[str, Tensor]
    batch: Tensor
    loss: Tensor


@dataclass(frozen=True, eq=False)
class Guard:
    """A gradient rule with the secret coins of one training and its number of steps."""

    rule: GradientRule
    noise: SecretStream
    steps: int = 1
    _draws: SecretStream = field(init=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_draws", self.noise.branch("draws of the network"))

    def step(self, module: nn.Module, records: int, losses: Callable[[Tensor], Tensor]) -> Step:
        """Return the gradient of one step. Call this inside `per_sample_gradients(module)`.

        Args:
            module: the network, in training mode.
            records: number of records.
            losses: the sum () of the losses of the records with these numbers (b,); each record's loss may
                depend on no other record.
        """
        batch = self.rule.draw(records, self.noise)
        free = trainable_parameters(module)
        total: dict[str, Tensor] = {}
        size = 0
        gpus: list[torch.device] = []
        for name, parameter in free.items():
            total[name] = torch.zeros_like(parameter, dtype=torch.float64)
            size += parameter.numel()
            if parameter.device.type == "cuda" and parameter.device not in gpus:
                gpus.append(parameter.device)
        device = next(iter(free.values())).device
        part = max(_ENTRIES.get(device.type, _ENTRIES["cpu"]) // size, 1)
        loss = torch.zeros((), device=device)
        with seeded_randomness(self._draws, gpus):
            for chunk in batch.split(part) if len(batch) else ():
                chunk_losses = losses(chunk)
                # Not for `inputs` alone: hooks fire where a layer's own input gets its gradient.
                chunk_losses.backward()
                loss = loss + chunk_losses.detach()
                for name, clipped in self.rule.clipped(_taken(free, len(chunk))).items():
                    total[name] += clipped
        noisy = self.rule.noised(total, self.noise)
        gradient = {n: noisy[n].to(p.dtype) for n, p in free.items()}
        return Step(gradient, batch, loss / self.rule.expected_batch)


@contextmanager
def per_sample_gradients(module: nn.Module) -> Iterator[None]:
    """Make backward passes through `module` store each record's gradient with its parameters, by Opacus' hooks.

    Images must themselves require gradients (`requires_grad_`): a layer's hook fires where its own input gets its
    gradient. Token numbers cannot; for an embedding the gradient of its output suffices, and PyTorch's warning that
    this is all there is is silenced. Losses must be sums over records.

    Raises:
        NotImplementedError: a trainable layer has buffers (BatchNorm): its outputs mix records.
    """
    from opacus.grad_sample import GradSampleModule  # takes two seconds, so import it only when needed

    warnings.filterwarnings("ignore", message="Full backward hook is firing when gradients")
    hooked = GradSampleModule(module, loss_reduction="sum")
    try:
        with sdpa_kernel(SDPBackend.MATH):  # other kernels draw numbers, if for no use
            yield
    finally:
        hooked.to_standard_module()


def unfit(
    module: nn.Module, input_shape: tuple[int, ...], *, tried: bool = False, words: int = 0
) -> str | None:
    """Return why a network cannot be trained by per-sample gradients, or None if it can.

    No list of layers decides. One pass shows a layer that mixes records, one backward pass shows whether the records'
    gradients add up to the batch's, and `fdaudit.training.separation` tests the rest. If others share its extractor,
    its parts are tested too.

    Args:
        module: a network of the caller's own.
        input_shape: (c, h, w) of an image, or (L,) of a text.
        words: size of the vocabulary; 0 for images.
        tried: whether the trials are known to pass; tests check this for every network of the zoo.

    Returns:
        A layer or parameter with its name, or the failure in passes over random images.
    """
    for name, layer in module.named_modules():
        own = [n for n, _ in layer.named_buffers(recurse=False)]
        trains = any(p.requires_grad for p in layer.parameters(recurse=False))
        if own and trains and not isinstance(layer, nn.modules.batchnorm._BatchNorm):
            return f"its layer {name} keeps {', '.join(own)}, which no gradient rule covers"
    try:
        with forked_randomness(), sdpa_kernel(SDPBackend.MATH):
            x = random_inputs(_TRIED, input_shape, 0, words)
            other = random_inputs(_TRIED, input_shape, 1, words)
            if not words:
                x, other = x.float(), other.float()
            if (mixing := mixing_layer(module, x, other)) is not None:
                return mixing
            problem = _misses_gradient(module, x)
    except Exception as error:  # of foreign code, or of a layer that Opacus does not know
        with forked_randomness(), sdpa_kernel(SDPBackend.MATH):
            return _unknown_layer(module, x, error)
    if tried:
        return problem
    with sdpa_kernel(SDPBackend.MATH):  # a network that keeps what it met misses a part of its gradient too
        return _coupled(module, input_shape, words) or problem


def _misses_gradient(module: nn.Module, x: Tensor) -> str | None:
    """Return a parameter whose gradients of single records do not add up to that of the batch x (n, ...), or None.

    A layer's hook does not see a weight that is used by a function as well, and takes a part for the whole.
    """
    free = trainable_parameters(module)
    module.train()
    with seeded_randomness(0):
        loss = trial_loss(module(x))
        whole = torch.autograd.grad(loss, list(free.values()), allow_unused=True, materialize_grads=True)
    with seeded_randomness(0):
        _, single = _gradients(module, x.clone().requires_grad_(x.is_floating_point()), trial_loss)
    largest = max(float(g.norm()) for g in whole)
    for (name, own), g in zip(single.items(), whole, strict=True):
        if float((own.sum(0) - g).norm()) > _SAME * (float(g.norm()) + _SAME * largest):
            problem = f"its {name} gets a part of its gradient only, when records are taken one by one"
            return f"{problem}: call its layer, in place of a function that uses the weight"
    return None


def _unknown_layer(module: nn.Module, x: Tensor, error: Exception) -> str:
    """Return the first layer without which gradients of single records can be had; the error if there is none."""
    reason = one_line(error)
    free = list(trainable_parameters(module).values())
    try:
        for name, layer in module.named_modules():
            own = [p for p in layer.parameters(recurse=False) if p.requires_grad]
            if not own:
                continue
            for parameter in free:
                parameter.requires_grad_(any(parameter is one for one in own))
            try:
                _gradients(module.train(), x.clone().requires_grad_(x.is_floating_point()), trial_loss)
            except Exception:  # of foreign code, or of Opacus
                where = f"layer {name}" if name else "top"
                return f"its {where}, {type(layer).__name__}, gives no gradients of single records ({reason})"
            finally:
                for parameter in free:
                    parameter.requires_grad_(True)
    finally:
        module.zero_grad()
    return f"gradients of single records cannot be had ({reason})"


def _coupled(module: nn.Module, input_shape: tuple[int, ...], words: int) -> str | None:
    """Return how a network mixes or remembers records, or None. Test a shared extractor with its head as well."""
    ways = [module]
    if isinstance(module, Network) and type(module).forward is not Network.forward:
        ways.append(nn.Sequential(module.extractor, module.head))
    try:
        for way in ways:
            problem = coupling(way, input_shape, _gradients, words)
            if problem is not None:
                return problem
    except Exception as error:  # a network may be foreign code and raise any error
        what = "texts" if words else "images"
        return f"a pass over a batch of 1 to 5 {what} fails ({one_line(error)})"
    return None


def _gradients(
    module: nn.Module, x: Tensor, loss: Callable[[Tensor], Tensor]
) -> tuple[Tensor, dict[str, Tensor]]:
    """Return outputs for images x (n, c, h, w), and by parameter the per-sample gradients (n, *shape) of a loss."""
    with per_sample_gradients(module):
        output = module(x)
        loss(output).backward()
        return output, _taken(trainable_parameters(module), len(x))


def _taken(free: dict[str, nn.Parameter], records: int) -> dict[str, Tensor]:
    """Take the records' gradients (b, *shape) from the parameters; a parameter without gradients has zeros."""
    gradients = {}
    for name, parameter in free.items():
        own = parameter.grad_sample  # type: ignore[attr-defined]
        parameter.grad_sample = parameter.grad = None  # type: ignore[attr-defined]
        if isinstance(own, list):
            raise ValueError(f"{name} met a batch twice before its gradients were taken")
        if own is None:
            own = torch.zeros(records, *parameter.shape, device=parameter.device)
        if len(own) != records:
            raise ValueError(f"{name} has {len(own)} gradients of {records} records")
        gradients[name] = own
    return gradients
