"""The training core's copies of a network, and its rehearsal: trials that show how it may be trained.

A user's network may hold any layer. No list of layer classes decides what it supports: it is tried on random inputs,
before anything is written. A trial draws nothing from the caller's generators and changes no network that is used
later.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.func import grad, vmap

from fdaudit.errors import SpecError, one_line, plugin_line
from fdaudit.models.network import call_with, trainable_parameters
from fdaudit.parallel.randomness import forked_randomness, generator_states
from fdaudit.storage.digests import canonical
from fdaudit.training.execution import Execution
from fdaudit.training.jobs import Parameters
from fdaudit.training.separation import restored_buffers

__all__ = ["Buildable", "Copy", "NetworkBehavior", "Traits", "rehearsed", "silence_draws"]

_PIXELS = 100_000
"""Pixels of the images that a CPU with `channels_last` convolutions processes fastest at once: values between layers
stay in its caches. `benchmarks/training_strategy.py` measures it again."""
_SAME = 1e-3
"""Relative difference of two gradients that rounding explains."""
_TRIED = 4
"""Records of a trial's batch."""


class Buildable(Protocol):
    """A factory of networks: an `Architecture`, or a stand-in in a test."""

    @property
    def described(self) -> Mapping[str, object]:
        """Return everything that determines the network, as JSON values."""
        ...

    @property
    def source(self) -> str:
        """Return a digest of the code that is not fdaudit's; "" if there is none."""
        ...

    def build(self, generator: torch.Generator) -> nn.Module:
        """Return a network with initial weights drawn from `generator`."""
        ...

    def random_inputs(self, n: int, generator: torch.Generator) -> Tensor:
        """Return n random records that the network accepts."""
        ...


class Copy:
    """A copy of a network for one thread, with its floating-point parameters and buffers by name.

    Args:
        module: the network.
        compiled: whether its forward pass is compiled.
    """

    def __init__(self, module: nn.Module, compiled: bool = False) -> None:
        self.module = module
        self.forward: Callable[[Tensor], Tensor] = torch.compile(module) if compiled else module
        self.named: dict[str, Tensor] = {}
        self._counters: list[tuple[Tensor, Tensor]] = []
        for name, tensor in module.state_dict(keep_vars=True).items():
            if tensor.is_floating_point():
                self.named[name] = tensor
            else:
                self._counters.append((tensor, tensor.clone()))

    def load(self, parameters: Mapping[str, Tensor]) -> None:
        """Load parameters and buffers; counters begin again, so that no earlier job matters."""
        with torch.no_grad():
            for name, tensor in self.named.items():
                tensor.copy_(parameters[name])
            for counter, initial in self._counters:
                counter.copy_(initial)

    def unload(self) -> Parameters:
        """Return contiguous copies of parameters and buffers."""
        copies: Parameters = {}
        for name, tensor in self.named.items():
            copies[name] = tensor.detach().clone(memory_format=torch.contiguous_format)
        return copies


@dataclass(frozen=True, kw_only=True)
class NetworkBehavior:
    """What trials on random inputs show of a network.

    Attributes:
        contiguous_only: it fails on images in the memory format `channels_last`.
        random: a pass in training draws from a global generator.
        draws_answers: a pass in evaluation does too.
        keeps: a pass in training changes buffers, such as BatchNorm's running statistics.
        coupled: a batch's gradient is not the mean of its parts' gradients, or a pass changes buffers.
        single: it can be trained on a batch of one record.
        trials: further trials.
    """

    contiguous_only: bool
    random: bool
    draws_answers: bool
    keeps: bool
    coupled: bool
    single: bool
    trials: _Trials = field(repr=False)

    @cached_property
    def stackable(self) -> bool:
        """Return whether many models may be trained as one under `vmap`.

        It can neither give each model its own seed nor change buffers in place. The trial loads PyTorch's compiler,
        which takes a process longer than `import torch`: only a core that stacks models asks for it.
        """
        if self.random or self.keeps:
            return False
        with self.trials.apart():
            return self.trials.stacks()


_rehearsals: dict[bytes, NetworkBehavior] = {}


def rehearsed(network: Buildable, device: torch.device | str = "cpu") -> NetworkBehavior:
    """Return what trials show of a network; equal networks are tried once in a process.

    Args:
        network: builds it.
        device: where it will be trained.

    Raises:
        SpecError: it has nothing to train, cannot be trained on four records, or returns probabilities.
    """
    key = canonical([network.described, network.source, str(device)])
    if key not in _rehearsals:
        trials = _Trials(network, torch.device(device))
        with trials.apart():
            _rehearsals[key] = trials.rehearsal()
    return _rehearsals[key]


def silence_draws(module: nn.Module, x: Tensor) -> None:
    """Put layers that draw random numbers into evaluation, until a pass in training draws none or no layer is left."""
    states = dict[nn.Module, Any]()
    drawing = list[nn.Module]()  # in one pass, without those that have a part that draws

    def enter(layer: nn.Module, _: Any) -> None:
        states[layer] = generator_states()

    def leave(layer: nn.Module, *_: Any) -> None:
        inside = any(part in drawing for part in layer.modules())
        if layer.training and not inside and generator_states() != states[layer]:
            drawing.append(layer)

    with forked_randomness():
        while True:
            drawing.clear()
            with ExitStack() as hooks, restored_buffers(module), torch.no_grad():
                for layer in module.modules():
                    hooks.enter_context(layer.register_forward_pre_hook(enter))
                    hooks.enter_context(layer.register_forward_hook(leave))
                module(x)
            if not drawing:
                break
            for layer in drawing:
                layer.training = False


class _Trials:
    """The trials of one network."""

    def __init__(self, network: Buildable, device: torch.device) -> None:
        self._network, self._device = network, device
        self._x = network.random_inputs(_TRIED, torch.Generator().manual_seed(0)).to(device)

    @contextmanager
    def apart(self) -> Iterator[None]:
        """Leave the states of random generators as they are, and no warning of foreign code: it comes in training."""
        accelerators = [self._device] if self._device.type == "cuda" else []
        with forked_randomness(accelerators), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield

    def rehearsal(self) -> NetworkBehavior:
        """Carry them out, within `apart`.

        Raises:
            SpecError: the network cannot be trained.
        """
        module = self._built()
        if not any(p.requires_grad for p in module.parameters()):
            raise self._refusal("has no parameter that can be trained", "Unfreeze one.")
        before = {name: buffer.clone() for name, buffer in module.named_buffers()}
        states = generator_states()
        try:
            gradient = _gradient(module, self._x)
        except Exception as error:  # of foreign code
            self._refuse_several_answers()
            problem = f"cannot be trained on {_TRIED} records ({_failure_of(module, self._x)})"
            raise self._refusal(problem + plugin_line(error), "Correct its `forward`.") from error
        random = generator_states() != states
        with torch.no_grad():
            answers = self._built()(self._x)
        total = answers.sum(1)
        if bool((answers >= 0).all()) and torch.allclose(total, torch.ones_like(total), atol=1e-5):
            # The softmax of a softmax is another model.
            problem = "returns probabilities: its answers to random records are positive and sum to 1"
            raise self._refusal(problem, "Make it return logits, without the softmax at its end.")
        after = dict(module.named_buffers())
        keeps = before.keys() != after.keys() or not all(torch.equal(before[n], after[n]) for n in after)
        coupled = random or keeps or not self._is_mean_of_parts(gradient)
        return NetworkBehavior(
            contiguous_only=self._x.dim() == 4 and not self._runs(self._x, torch.channels_last),
            random=random,
            draws_answers=self._draws_answers(),
            keeps=keeps,
            coupled=coupled,
            single=self._runs(self._x[:1]),
            trials=self,
        )

    def _built(self) -> nn.Module:
        return self._network.build(torch.Generator().manual_seed(0)).to(self._device).train()

    def _runs(self, x: Tensor, memory_format: torch.memory_format = torch.contiguous_format) -> bool:
        """Return whether a new copy can be trained on records x, in this memory format."""
        module = self._built()
        if x.dim() == 4:
            module, x = module.to(memory_format=memory_format), x.contiguous(memory_format=memory_format)
        try:
            _gradient(module, x)
        except Exception:  # of foreign code
            return False
        return True

    def _draws_answers(self) -> bool:
        """Return whether a pass in evaluation draws; one that fails counts as one that does."""
        module, before = self._built().eval(), generator_states()
        try:
            with torch.no_grad():
                module(self._x)
        except Exception:  # of foreign code
            return True
        return generator_states() != before

    def _is_mean_of_parts(self, gradient: Parameters) -> bool:
        """Return whether a batch's gradient is the mean of those of its halves."""
        try:
            half, rest = self._x.chunk(2)
            first, second = _gradient(self._built(), half), _gradient(self._built(), rest)
        except Exception:  # of foreign code
            return False
        mean: Parameters = {}
        for name in gradient:
            mean[name] = (first[name] + second[name]) / 2
        return _close(mean, gradient)

    def stacks(self) -> bool:
        """Return whether two models under `vmap` get the gradient that each gets alone; within `apart`."""
        gradient = _gradient(self._built(), self._x)
        module = self._built()
        tensors = Copy(module).named
        if len(set(map(id, tensors.values()))) < len(tensors):
            return False  # stacked, the names of one weight would come apart
        rest: Parameters = {}
        for name, tensor in tensors.items():
            if name not in gradient:
                rest[name] = tensor.detach()

        def loss(w: Parameters, x: Tensor) -> Tensor:
            return _trial_loss(call_with(module, {**w, **rest}, x))

        try:
            twice = {n: torch.stack([tensors[n].detach()] * 2) for n in gradient}
            with warnings.catch_warnings():
                # An operation that `vmap` repeats for each model gains nothing: refuse it.
                warnings.simplefilter("error")
                stacked = vmap(grad(loss))(twice, torch.stack([self._x] * 2))
        except Exception:  # of foreign code, or of an operation that `vmap` lacks
            return False
        first: Parameters = {}
        second: Parameters = {}
        for name, both in stacked.items():
            first[name], second[name] = both[0], both[1]
        return _close(first, gradient) and _close(second, gradient)

    def _refuse_several_answers(self) -> None:
        """Refuse a network that returns no tensor in training, such as one with auxiliary heads."""
        try:
            with torch.no_grad():
                answers = self._built()(self._x)
        except Exception:  # of foreign code; the caller reports it
            return
        if not isinstance(answers, Tensor):
            problem = f"returns a {type(answers).__name__} in training, not a tensor of logits"
            remedy = "Make its `forward` return the logits alone, without auxiliary answers."
            raise self._refusal(problem, remedy)

    def _refusal(self, problem: str, remedy: str) -> SpecError:
        name = self._network.described.get("name", type(self._network).__name__)
        return SpecError("model.name", name, problem, remedy)


def _failure_of(module: nn.Module, x: Tensor) -> str:
    """Return the error of a pass over records x and its gradient, with the layer in which it arises."""
    entered: list[str] = []

    def enter(name: str, *_: object) -> None:
        entered.append(name)

    def leave(*_: object) -> None:
        entered.pop()

    with ExitStack() as hooks:
        for name, layer in module.named_modules():
            hooks.enter_context(layer.register_forward_pre_hook(partial(enter, name)))
            hooks.enter_context(layer.register_forward_hook(leave))
        try:
            _gradient(module, x)
        except Exception as error:  # of foreign code
            where = f"layer {entered[-1]}: " if entered and entered[-1] else ""
            return where + one_line(error)
    return "a second pass does not fail"


def _gradient(module: nn.Module, x: Tensor) -> Parameters:
    """Return the gradient of a trial's loss by parameter; zeros for parameters that it does not use."""
    free = trainable_parameters(module)
    loss = _trial_loss(module(x))
    gradients = torch.autograd.grad(loss, list(free.values()), materialize_grads=True)
    return dict(zip(free, gradients, strict=True))


def _trial_loss(z: Tensor) -> Tensor:
    """Return the mean cross-entropy of logits (n, C, ...) toward the first class."""
    return (z.logsumexp(1) - z[:, 0]).mean()


def _close(a: Mapping[str, Tensor], b: Mapping[str, Tensor]) -> bool:
    """Return whether two sets of tensors differ by no more than rounding."""
    gap = size = 0.0
    for name, tensor in b.items():
        gap += float((a[name] - tensor).square().sum())
        size += float(tensor.square().sum())
    return gap <= _SAME**2 * size


@dataclass(frozen=True, kw_only=True)
class Traits:
    """How the core trains a network: what its rehearsal shows, with this execution.

    Attributes:
        random: a pass in training draws from a global generator.
        draws_answers: a pass in evaluation does too.
        compiled: its forward pass is compiled, for one shape at a time.
        stackable: many models may be trained as one under `vmap`.
        coupled: a batch's loss is not the mean of its parts' losses.
        cached: small parts of a batch run faster than the whole batch.
    """

    random: bool
    draws_answers: bool
    compiled: bool
    stackable: bool
    coupled: bool
    cached: bool

    @classmethod
    def of(cls, module: nn.Module, shown: NetworkBehavior, execution: Execution) -> Traits:
        """Return how to train a network that showed this in its rehearsal."""
        on_processor = torch.device(execution.device).type == "cpu"
        has_convolutions = any(isinstance(layer, nn.Conv2d) for layer in module.modules())
        return cls(
            random=shown.random,
            draws_answers=shown.draws_answers,
            compiled=execution.compile and not shown.random,  # what is compiled draws otherwise
            stackable=execution.strategy == "stacked" and shown.stackable,
            coupled=shown.coupled,
            cached=on_processor and execution.memory_format == "channels_last" and has_convolutions,
        )

    def parts(self, records: int, x: Tensor) -> int:
        """Return the number of parts into which a step splits a batch of `records` images like `x` (n, c, h, w)."""
        if self.coupled or self.compiled:
            return 1
        return max(1, round(records / self.at_once(x)))

    def at_once(self, x: Tensor) -> float:
        """Return the number of images like `x` (n, c, h, w) that run fastest together; infinity for whole batches."""
        if not self.cached:
            return math.inf
        return max(1.0, _PIXELS // math.prod(x.shape[2:]))
