"""Training under a gradient rule: a step uses private records only through one clipped and noisy sum.

Guarantees:
  * records enter a step only through `GradientRule.clipped`, each by its own gradient;
  * the records of a step and the noise on their sum come from a secret, never from the run's seed;
  * so do all numbers that the network draws in a step, whatever layer or function draws them;
  * a record with a NaN or infinite gradient adds nothing, and does not stop the run.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from fdaudit.models.network import Network
from fdaudit.parallel.randomness import forked_randomness, seeded_randomness
from fdaudit.rng import SecretStream
from fdaudit.training.separation import coupling
from fdaudit.types import GradientRule

__all__ = ["Guard", "Step", "per_sample_gradients", "unfit"]

_ENTRIES = {"cpu": 2**21, "cuda": 2**27}
"""Gradient entries held at once by kind of device: fixed, so that parts do not depend on free memory. On a CPU, few
enough that memory is reused; new pages take longer than all the arithmetic."""


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
        free = {n: p for n, p in module.named_parameters() if p.requires_grad}
        total = {n: torch.zeros_like(p, dtype=torch.float64) for n, p in free.items()}
        entries = _ENTRIES.get(next(iter(free.values())).device.type, _ENTRIES["cpu"])
        part = max(entries // sum(p.numel() for p in free.values()), 1)
        loss = torch.zeros(())
        with seeded_randomness(self._draws, _accelerators(free)):
            for drawn in batch.split(part) if len(batch) else ():
                found = losses(drawn)
                found.backward()  # not for `inputs` alone: hooks fire where a layer's own input gets its gradient
                loss = loss + found.detach().cpu()
                for name, clipped in self.rule.clipped(_taken(free, len(drawn))).items():
                    total[name] += clipped
        noisy = self.rule.noised(total, self.noise)
        gradient = {n: noisy[n].to(p.dtype) for n, p in free.items()}
        return Step(gradient, batch, loss / self.rule.expected_batch)


def _accelerators(parameters: Mapping[str, Tensor]) -> list[torch.device]:
    """Return the GPUs on which these parameters lie."""
    return list({p.device: None for p in parameters.values() if p.device.type == "cuda"})


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
        yield
    finally:
        hooked.to_standard_module()


def unfit(
    module: nn.Module, input_shape: tuple[int, ...], *, tried: bool = False, words: int = 0
) -> str | None:
    """Return why a network cannot be trained by per-sample gradients, or None if it can.

    The network is tested as described in `fdaudit.training.separation`. If others share its extractor, its parts are
    tested too.

    Args:
        module: a network of the caller's own.
        input_shape: (c, h, w) of an image, or (L,) of a text.
        words: size of the vocabulary; 0 for images.
        tried: whether the trials are known to pass; tests check this for every network of the zoo.

    Returns:
        A layer with its name, or the failure in passes over random images.
    """
    for name, layer in module.named_modules():
        if isinstance(layer, nn.modules.batchnorm._BatchNorm):
            return f"its layer {name} is a {type(layer).__name__}, which mixes the records of a batch"
        own = [n for n, _ in layer.named_buffers(recurse=False)]
        if own and any(p.requires_grad for p in layer.parameters(recurse=False)):
            return f"its layer {name} keeps {', '.join(own)}, which no gradient rule covers"
    free = {n: p for n, p in module.named_parameters() if p.requires_grad}
    try:
        with per_sample_gradients(module), forked_randomness():
            x = torch.zeros(2, *input_shape)
            x = x.long() if words else x.requires_grad_()
            module.train()(x).sum().backward()
            _taken(free, 2)
    except (RuntimeError, NotImplementedError, AttributeError, ValueError) as error:
        return f"gradients of single records cannot be had ({str(error).partition(chr(10))[0].rstrip('. ')})"
    return None if tried else _coupled(module, input_shape, words)


def _coupled(module: nn.Module, input_shape: tuple[int, ...], words: int) -> str | None:
    """Return how a network mixes or remembers records, or None. Test a shared extractor with its head as well."""
    ways = [module]
    if isinstance(module, Network) and type(module).forward is not Network.forward:
        ways.append(nn.Sequential(module.extractor, module.head))
    try:
        return next((found for way in ways if (found := coupling(way, input_shape, _gradients, words))), None)
    except Exception as error:  # a network may be foreign code and raise any error
        reason = str(error).partition(chr(10))[0].rstrip(". ")
        what = "texts" if words else "images"
        return f"a pass over a batch of 1 to 5 {what} fails ({type(error).__name__}: {reason})"


def _gradients(
    module: nn.Module, x: Tensor, loss: Callable[[Tensor], Tensor]
) -> tuple[Tensor, dict[str, Tensor]]:
    """Return outputs for images x (n, c, h, w), and by parameter the per-sample gradients (n, *shape) of a loss."""
    with per_sample_gradients(module):
        output = module(x)
        loss(output).backward()
        return output, _taken({n: p for n, p in module.named_parameters() if p.requires_grad}, len(x))


def _taken(free: dict[str, nn.Parameter], records: int) -> dict[str, Tensor]:
    """Take the records' gradients (b, *shape) from the parameters; a parameter without gradients has zeros."""
    found = {}
    for name, parameter in free.items():
        own = parameter.grad_sample  # type: ignore[attr-defined]
        parameter.grad_sample = parameter.grad = None  # type: ignore[attr-defined]
        if isinstance(own, list):
            raise ValueError(f"{name} met a batch twice before its gradients were taken")
        if own is not None and len(own) != records:
            raise ValueError(f"{name} has {len(own)} gradients of {records} records")
        found[name] = torch.zeros(records, *parameter.shape, device=parameter.device) if own is None else own
    return found
