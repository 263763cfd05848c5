"""The structure of every network in the zoo (an extractor, then a head), and helpers to build networks."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from fnmatch import fnmatchcase
from typing import Any, TypeVar, cast

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.overrides import TorchFunctionMode

from fdaudit.errors import UsageError
from fdaudit.parallel.randomness import seeded_randomness

__all__ = [
    "Network",
    "call_with",
    "feature_width",
    "for_trial",
    "group_norm",
    "inputs_of",
    "last_layer",
    "matches",
    "moved",
    "seed_from",
    "seeded",
    "trainable_parameters",
]

M = TypeVar("M", bound=nn.Module)

_FEW_WEIGHTS, _FEW_VALUES = 1 << 20, 1 << 14
"""The most weights of a module, and the most values of a record, with which it is tried on the CPU."""


class Network(nn.Module):
    """Maps images (n, c, h, w) to logits (n, classes) by way of features (n, d).

    Guarantees:
      * works under `torch.func.functional_call` and `vmap`: no in-place activation, no control flow on values
        (BatchNorm excepted, whose running statistics `vmap` cannot update).

    Attributes:
        extractor: images to features (n, d). Convolutional networks: all before the first fully connected
            layer. Multilayer perceptrons: all before the last.
        head: features to logits.
    """

    def __init__(self, extractor: nn.Module, head: nn.Module) -> None:
        super().__init__()
        self.extractor = extractor
        self.head = head

    def features(self, x: Tensor) -> Tensor:
        """Return features (n, d) of images (n, c, h, w)."""
        return cast(Tensor, self.extractor(x))

    def forward(self, x: Tensor) -> Tensor:
        """Return logits (n, classes) of images (n, c, h, w)."""
        return cast(Tensor, self.head(self.extractor(x)))


def feature_width(extractor: nn.Module, input_shape: tuple[int, ...], *, whole: bool = False) -> int:
    """Return the number d of features that `extractor` computes, on any device, from one image of `input_shape`.

    Args:
        extractor: the network's first part.
        input_shape: (c, h, w) of an image, or (L,) of a text.
        whole: whether it reads whole numbers, as of tokens.

    Raises:
        RuntimeError: the image is too small for the layers.
    """
    extractor = for_trial(extractor, input_shape)
    weight = next(extractor.parameters(), None)
    dtype = torch.int64 if whole else torch.float32
    record = torch.zeros(1, *input_shape, dtype=dtype, device=None if weight is None else weight.device)
    with torch.no_grad(), record.device:
        return int(extractor(record).shape[1])


def for_trial(module: nn.Module, input_shape: tuple[int, ...]) -> nn.Module:
    """Return a module whose outputs on blank records have the right shapes; values count for nothing.

    Of a small module on the meta device this is a copy on the CPU, with zeros for weights. To run a module on the meta
    device, PyTorch loads its compiler, which takes a process longer than `import torch`.

    Args:
        module: it is left as it is.
        input_shape: of a record.
    """
    tensors = [*module.parameters(), *module.buffers()]
    small = sum(t.numel() for t in tensors) <= _FEW_WEIGHTS and math.prod(input_shape) <= _FEW_VALUES
    if not small or not any(t.is_meta for t in tensors):
        return module
    copies: dict[int, Any] = {}
    for tensor in tensors:
        zeros = torch.zeros(tensor.shape, dtype=tensor.dtype, device="cpu")
        copies[id(tensor)] = nn.Parameter(zeros) if isinstance(tensor, nn.Parameter) else zeros
    return copy.deepcopy(module, copies)


def group_norm(channels: int) -> nn.GroupNorm:
    """GroupNorm in at most 32 groups (Wu and He 2018) of at least 4 channels."""
    most = min(32, max(channels // 4, 1))
    groups = most
    while channels % groups:
        groups -= 1
    return nn.GroupNorm(groups, channels)


def seed_from(generator: torch.Generator) -> int:
    """Return a seed for initial weights: one draw from `generator`."""
    return int(torch.randint(2**63 - 1, (), generator=generator, device=generator.device))


def seeded(seed: int, make: Callable[[], M]) -> M:
    """Return what `make` builds, with initial weights drawn from `seed`.

    Guarantees:
      * equal seeds give equal weights, independent of the global random state;
      * the global random state stays as it was, on every device.
    """
    with seeded_randomness(seed):
        return make()


class _Twice(TorchFunctionMode):
    """Computes `hardsigmoid` (Howard et al. 2019), for which PyTorch has no second derivative, from what has one."""

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        if func is F.hardsigmoid:
            return F.relu6(args[0] + 3) / 6
        return func(*args, **(kwargs or {}))


def call_with(module: nn.Module, tensors: Mapping[str, Tensor], x: Tensor) -> Tensor:
    """Return a module's output for x with these parameters and buffers in place of its own; differentiable twice.

    This is `torch.func.functional_call` for any network. A weight that two layers share, and a layer with two names,
    count under their first name. PyTorch's own handling of ties puts a layer with two names back together wrongly.
    Its fast attention and its `hardsigmoid` cannot be differentiated twice, so others are chosen.

    Args:
        module: the network; unchanged, with its buffers.
        tensors: by name; what is not among them keeps its value. Unchanged, even if a pass in training overwrites
            buffers.
        x: (n, ...) records.
    """
    names: dict[int, str] = {}
    placed: dict[str, Tensor] = {}
    for path, layer in module.named_modules():
        for own, tensor in (*layer._parameters.items(), *layer._buffers.items()):
            name = f"{path}.{own}" if path else own
            first = names.setdefault(id(tensor), name)
            if tensor is not None and first in tensors:
                placed[name] = tensors[first]
            if layer.training and own in layer._buffers and tensor is not None:
                placed[name] = placed.get(name, tensor).clone()  # a pass in training may overwrite it
    with sdpa_kernel(SDPBackend.MATH), _Twice():
        output: Tensor = functional_call(module, placed, (x,), tie_weights=False)
    return output


def last_layer(module: nn.Module, x: Tensor) -> tuple[str, str | None]:
    """Return the names of the weight and of the bias (None without one) of the linear layer that answers.

    Args:
        module: the network.
        x: (n, ...) records to try it on; two are used.

    Raises:
        UsageError: no linear layer's outputs are the network's answers.
    """
    outputs: dict[str, Tensor] = {}

    def keep(name: str) -> Callable[[nn.Module, object, Tensor], None]:
        return lambda _, inputs, output: outputs.update({name: output})

    linear, hooks = dict[str, nn.Linear](), []
    for name, layer in module.named_modules():
        if isinstance(layer, nn.Linear):
            linear[name] = layer
            hooks.append(layer.register_forward_hook(keep(name)))
    try:
        with torch.no_grad():
            buffers = {name: buffer.clone() for name, buffer in module.named_buffers()}
            answers = call_with(module, buffers, x[:2])
    finally:
        for hook in hooks:
            hook.remove()
    for name in reversed(outputs):
        if outputs[name].shape == answers.shape and torch.equal(outputs[name], answers):
            prefix = f"{name}." if name else ""
            return f"{prefix}weight", None if linear[name].bias is None else f"{prefix}bias"
    problem = "does not end in a linear layer"
    raise UsageError("module", type(module).__name__, problem, "Give the labels to the attack.")


@contextmanager
def inputs_of(layer: nn.Module) -> Iterator[list[Tensor]]:
    """Collect the first input of each call of a layer, while the block runs."""
    inputs: list[Tensor] = []
    hook = layer.register_forward_pre_hook(lambda _, given: inputs.append(given[0]))
    try:
        yield inputs
    finally:
        hook.remove()


def matches(name: str, pattern: str) -> bool:
    """Return whether a tensor's name fits a pattern: its name, the name of a layer around it, or as `features.*`."""
    return fnmatchcase(name, pattern) or name.startswith(f"{pattern}.")


def trainable_parameters(module: nn.Module) -> dict[str, nn.Parameter]:
    """Return the parameters that training changes, by name."""
    trainable = dict[str, nn.Parameter]()
    for name, parameter in module.named_parameters():
        if parameter.requires_grad:
            trainable[name] = parameter
    return trainable


def moved(tensors: Mapping[str, Tensor], device: torch.device | str) -> dict[str, Tensor]:
    """Return tensors on a device, by name."""
    return {name: tensor.to(device) for name, tensor in tensors.items()}
