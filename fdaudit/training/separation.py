"""Tests that a network does not mix the records of a batch, which DP-SGD relies on.

A clipped sum bounds the effect of one record only under two conditions: the record does not change another record's
gradient, and the network stores nothing of it. Both are tested on random images, or texts of random words, in
training mode.

Tests:
  * one image of a batch of 2, 3 or 5 is replaced: outputs and gradients of all other images stay the same;
  * an image alone has the same output and gradient as in a batch;
  * a pass changes no buffer and no parameter;
  * the same images have the same outputs after other images, in training and in evaluation mode;
  * random numbers come from PyTorch's global generator in the state that it was given, and each record has its own:
    other numbers for one image leave all other outputs as they are.

The last test matters because only secret, separate draws make the order of records irrelevant. If two records share a
draw, or if draws can be guessed, removing one record changes the draws of those after it.

The tests cannot find a coupling that random images do not trigger: at certain values, in batches above 5, after many
steps, or below a relative size of 1e-8. They also cannot find effects outside PyTorch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from fdaudit.models.network import trainable_parameters
from fdaudit.parallel.randomness import generator_states, seeded_randomness

__all__ = ["Gradients", "coupling", "mixing_layer", "random_inputs", "restored_buffers", "trial_loss"]

Gradients = Callable[[nn.Module, Tensor, Callable[[Tensor], Tensor]], tuple[Tensor, dict[str, Tensor]]]
"""Maps a network, images (n, c, h, w) and a loss of outputs to the outputs, and by parameter gradients (n, *shape)."""

_TRIED = ((2, 1.0), (3, 0.1), (5, 10.0))
"""Batches with the scale of their images."""
_ENTRIES = 1 << 22
"""Largest number of gradient entries of a batch of more than 2 images. For larger networks only the outputs of such a
batch are tested."""
_CLOSE = {torch.float64: 1e-8, torch.float32: 1e-3}
"""Relative differences that rounding may explain."""

_MARK = 8_105_226_641_733_019_842
"""The seed of the trials: no network sets this one by chance."""

_Tensors = dict[str, Tensor]


def coupling(
    module: nn.Module, input_shape: tuple[int, ...], gradients: Gradients, words: int = 0
) -> str | None:
    """Return how a network mixes or remembers the records of a batch, or None if no test shows it.

    Args:
        module: a network of the caller's own; its weights become float64 if it supports that.
        input_shape: (c, h, w) of an image, or (L,) of a text.
        gradients: how per-sample gradients are taken in training.
        words: size of the vocabulary; 0 for images.

    Raises:
        Exception: any error that the network raises on a batch of 1 to 5 images.
    """
    dtype = _precise(module, input_shape, words)
    for n, scale in _TRIED:
        x = random_inputs(n, input_shape, 1, words)
        other = random_inputs(n, input_shape, 2, words)
        if not words:
            x = x.to(dtype) * scale
            other = 3 * other.to(dtype) * scale
        problem = _CouplingTest(module, gradients, _CLOSE[dtype], n).problem(x, other)
        if problem is not None:
            return problem
    return None


def mixing_layer(module: nn.Module, x: Tensor, other: Tensor) -> str | None:
    """Return the innermost layer that makes an output of one record depend on another record, or None.

    The first of x (n, ...) is replaced. The layer found is the first whose outputs for the rest change although its
    inputs for the rest do not.

    Args:
        module: a network, tried in training mode. Its buffers are restored.
        x: records (n, ...).
        other: records of the same shape.
    """
    with restored_buffers(module):
        layers = _rows_by_layer(module, x)
        changed_layers = _rows_by_layer(module, torch.cat([other[:1], x[1:]]))
    for layer, changed in zip(layers, changed_layers, strict=False):
        has_equal_inputs = _alike(layer.inputs, changed.inputs)
        if has_equal_inputs and layer.outputs and not _alike(layer.outputs, changed.outputs):
            return f"its layer {layer.name} is a {layer.kind}, which mixes the records of a batch"
    return None


@contextmanager
def restored_buffers(module: nn.Module) -> Iterator[None]:
    """Give a network's buffers their values back after passes that do not fail."""
    buffers = {name: buffer.clone() for name, buffer in module.named_buffers()}
    yield
    with torch.no_grad():
        for name, buffer in module.named_buffers():
            buffer.copy_(buffers[name])


class _LayerRows(NamedTuple):
    """What a layer reads and returns of all records but the first."""

    name: str
    kind: str
    inputs: list[Tensor]
    outputs: list[Tensor]


def _rows_by_layer(module: nn.Module, x: Tensor) -> list[_LayerRows]:
    """Return the rows of each layer below the network's top, in the order in which the layers end."""
    by_layer: list[_LayerRows] = []

    def rest(value: object) -> list[Tensor]:
        rows: list[Tensor] = []
        for t in _tensors(value):
            if t.shape[:1] == (len(x),):
                rows.append(t[1:].detach())
        return rows

    def leave(name: str, layer: nn.Module, inputs: Any, output: Any) -> None:
        by_layer.append(_LayerRows(name, type(layer).__name__, rest(inputs), rest(output)))

    with ExitStack() as hooks:
        for name, layer in module.named_modules():
            if name:
                hooks.enter_context(layer.register_forward_hook(partial(leave, name)))
        with torch.no_grad(), _fixed_draws():
            module.train()(x)
    return by_layer


def _alike(rows: Sequence[Tensor], others: Sequence[Tensor]) -> bool:
    if not rows:
        return False
    return all(torch.allclose(a, b, rtol=1e-4, atol=1e-6) for a, b in zip(rows, others, strict=True))


class _CouplingTest:
    """The tests on one batch."""

    def __init__(self, module: nn.Module, gradients: Gradients, close: float, size: int) -> None:
        self._module, self._gradients, self._close = module, gradients, close
        free = trainable_parameters(module)
        fits = size == 2 or size * sum(p.numel() for p in free.values()) <= _ENTRIES
        self._free = free if fits else {}

    def problem(self, x: Tensor, other: Tensor) -> str | None:
        """Return the failure when one of `other` replaces an image of x (n, c, h, w), or None."""
        every = range(len(x))
        state, evaluated = _copied(self._module), self._evaluated(x)
        if (draws := self._draws(x)) is not None:
            return draws
        base = self._trained(x)
        if len(base["output"]) != len(x):
            return f"it makes {len(base['output'])} outputs of {len(x)} images"
        if (name := _changed(state, self._module)) is not None:
            return f"a pass changes its {name}, which no gradient rule covers"
        if (name := self._differs(base, self._trained(x), every)) is not None:
            reason = "it keeps what it met, or has a generator of its own"
            return f"its {name} differs in two passes over the same images: {reason}"
        for j in (0, len(x) - 1):
            replaced = self._trained(torch.cat([x[:j], other[j : j + 1], x[j + 1 :]]))
            rest = [i for i in every if i != j]
            if (name := self._differs(base, replaced, rest)) is not None:
                return f"its {name} of one image depends on another image of the batch"
        trained_later, evaluated_later = self._trained(x), self._evaluated(x)
        if self._differs(base, trained_later, every) or self._differs(evaluated, evaluated_later, every):
            return "its output depends on images that it met before"
        # Each image alone and in the batch. Draws are constant, because they depend on batch size.
        with _Constant():  # type: ignore[no-untyped-call]
            together = self._plain(x)
            for i in range(len(x)):
                row = {name: rows[i : i + 1] for name, rows in together.items()}
                if (name := self._differs(row, self._plain(x[i : i + 1]), [0])) is not None:
                    return f"its {name} of one image depends on the size of the batch"
        return None

    def _draws(self, x: Tensor) -> str | None:
        """Return how the random numbers of a pass over x (n, c, h, w) could be guessed or are shared, or None."""
        with _fixed_draws():
            before = generator_states()
            with _RandomOperations(len(x)) as watch:
                base = {"output": self._module.train()(x).detach().clone()}
            after = generator_states()
        if watch.problem or after[1:] != before[1:]:
            return watch.problem or (
                "its output depends on Python's or NumPy's generator, which all records of a batch share: use "
                "PyTorch's, with numbers for each record"
            )
        if not watch.draws or len(base["output"]) != len(x):
            return None
        for j in (0, len(x) - 1):
            with _fixed_draws(), _RandomOperations(len(x), j):
                tensors = {"output": self._module.train()(x).detach().clone()}
            rest = [i for i in range(len(x)) if i != j]
            if self._differs(base, tensors, rest) is not None:
                return "its output of one image depends on random numbers drawn for another"
        return None

    def _trained(self, x: Tensor) -> _Tensors:
        """Return outputs and per-sample gradients, from the same draws each time."""
        self._module.train()
        with _fixed_draws():
            if not self._free:
                return {"output": self._module(x).detach().clone()}
            texts_or_images = x.clone().requires_grad_(x.is_floating_point())
            output, gradients = self._gradients(self._module, texts_or_images, trial_loss)
        sketches = {f"gradient of {n}": _sketch(g) for n, g in gradients.items()}
        return {"output": output.detach().clone()} | sketches

    def _plain(self, x: Tensor) -> _Tensors:
        """Return outputs and gradients, one record at a time by plain differentiation."""
        with _fixed_draws():
            output = self._module.train()(x)
        tensors = {"output": output.detach()}
        if not self._free:
            return tensors
        gradient_of = partial(
            torch.autograd.grad,
            inputs=list(self._free.values()),
            retain_graph=True,
            allow_unused=True,
            materialize_grads=True,
        )
        by_record = [gradient_of(trial_loss(row)) for row in output.split(1)]
        for name, gradients in zip(self._free, zip(*by_record, strict=True), strict=True):
            tensors[f"gradient of {name}"] = _sketch(torch.stack(gradients))
        return tensors

    def _evaluated(self, x: Tensor) -> _Tensors:
        with _fixed_draws(), torch.no_grad():
            return {"output": self._module.eval()(x).clone()}

    def _differs(
        self, one: Mapping[str, Tensor], two: Mapping[str, Tensor], rows: Sequence[int]
    ) -> str | None:
        """Return the name of the first output or gradient that differs in these rows by more than rounding.

        The tolerance is relative to the rows and to all gradients, because a bias before a norm has only rounding
        errors.
        """
        largest = 0.0
        for name, tensor in one.items():
            if name != "output":
                largest = max(largest, _size(tensor))
        index = list(rows)
        for name, tensor in one.items():
            if len(tensor) != len(two[name]):
                return name
            a, b = tensor[index], two[name][index]
            if a.shape != b.shape or bool((a.isfinite() != b.isfinite()).any()):
                return name
            around = _size(tensor) if name == "output" else largest
            slack = self._close * max(_size(a), _size(b)) + 1e-3 * self._close * around
            if _size(_finite(a) - _finite(b)) > slack:
                return name
        return None


def _sketch(gradients: Tensor) -> Tensor:
    """Return some entries, one weighted sum and the norm of each record's gradient (n, *shape); small ones in full."""
    flat = gradients.flatten(1)
    size = flat.shape[1]
    if size <= 1024:
        return flat.clone()
    summed = flat @ torch.linspace(0.5, 1.5, size, dtype=flat.dtype)
    return torch.cat([flat[:, :: size // 512], summed[:, None], flat.norm(dim=1, keepdim=True)], 1)


def _finite(t: Tensor) -> Tensor:
    return t.nan_to_num(0.0, 0.0, 0.0)


def _size(t: Tensor) -> float:
    """Return the largest finite value."""
    return float(_finite(t).abs().max()) if t.numel() else 0.0


class _Constant(TorchDispatchMode):  # type: ignore[misc, unused-ignore]
    """Makes random operations return one constant, so that a record meets the same draws in a batch of any size."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run an operation, and replace its random values."""
        result = func(*args, **(kwargs or {}))
        if torch.Tag.nondeterministic_seeded not in func.tags:
            return result
        if func is torch.ops.aten.native_dropout.default:
            return args[0].clone(), torch.ones_like(result[1])
        for tensor in _tensors(result):
            tensor.fill_(0.5 if tensor.is_floating_point() else 0)
        return result


class _RandomOperations(TorchDispatchMode):  # type: ignore[misc, unused-ignore]
    """Watches the random operations of a pass over `records` records.

    Args:
        records: the number of records.
        changed: a record whose random numbers are replaced by others, or None.

    Attributes:
        draws: how many random operations there were.
        problem: why a draw is not a secret one for each record; empty otherwise.
    """

    def __init__(self, records: int, changed: int | None = None) -> None:
        super().__init__()  # type: ignore[no-untyped-call, unused-ignore]
        self._records, self._changed = records, changed
        self.draws, self.problem = 0, ""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run an operation. Check its generator and its shape, if it is a random one."""
        kwargs = kwargs or {}
        random = torch.Tag.nondeterministic_seeded in func.tags
        if random:
            generators = [torch.default_generator]
            for argument in (*args, *kwargs.values()):
                if isinstance(argument, torch.Generator):
                    generators.append(argument)
            if any(g.initial_seed() != _MARK for g in generators):
                self.problem = "it has a generator of its own or sets a seed, so its draws can be guessed"
        result = func(*args, **kwargs)
        if not random:
            return result
        self.draws += 1
        for tensor in _tensors(result):
            if not tensor.numel():
                continue
            # The first dimension must count records, or equal blocks of one record each.
            size = tensor.shape[0] if tensor.dim() else 1
            if size % self._records:
                self.problem = self.problem or (
                    "the records of a batch share its random numbers: draw a tensor whose first dimension counts "
                    "records"
                )
            elif self._changed is not None:
                block = size // self._records
                rows = tensor.narrow(0, self._changed * block, block)
                if tensor.dtype == torch.bool:
                    rows.copy_(~rows)
                elif tensor.is_floating_point():
                    rows.copy_(1 - rows)
                else:
                    rows.zero_()
        return result


def _tensors(result: Any) -> list[Tensor]:
    """Return the tensors among the results of an operation."""
    results = result if isinstance(result, tuple | list) else (result,)
    return [one for one in results if isinstance(one, Tensor)]


def trial_loss(output: Tensor) -> Tensor:
    """Return a sum over records in which every output has its own weight."""
    flat = output.flatten(1)
    weights = torch.linspace(0.5, 1.5, flat.shape[1], dtype=flat.dtype)
    return (flat * weights + flat.square() / 2).sum()


def _precise(module: nn.Module, input_shape: tuple[int, ...], words: int) -> torch.dtype:
    """Return float64 if the network supports it, otherwise float32."""
    try:
        with _fixed_draws(), torch.no_grad():
            state = {n: t.clone() for n, t in module.state_dict().items()}
            output = module.double().eval()(random_inputs(2, input_shape, 0, words))
            module.load_state_dict(state)
        if output.dtype == torch.float64:
            return torch.float64
        module.float()
    except Exception:  # a network may have constants of its own in float32
        module.float()
    return torch.float32


def random_inputs(n: int, input_shape: tuple[int, ...], seed: int, words: int = 0) -> Tensor:
    """Return random images (n, c, h, w), float64, or texts (n, L) of random words."""
    generator = torch.Generator().manual_seed(seed)
    if words:
        return torch.randint(words, (n, *input_shape), generator=generator)
    return torch.rand(n, *input_shape, generator=generator, dtype=torch.float64)


def _copied(module: nn.Module) -> _Tensors:
    """Return copies of all buffers and parameters."""
    tensors: _Tensors = {}
    for name, buffer in module.named_buffers():
        tensors[f"buffer {name}"] = buffer.detach().clone()
    for name, parameter in module.named_parameters():
        tensors[f"parameter {name}"] = parameter.detach().clone()
    return tensors


def _changed(before: Mapping[str, Tensor], module: nn.Module) -> str | None:
    """Return the name of the first buffer or parameter that has changed, or None."""
    after = _copied(module)
    for name in sorted({*before, *after}):
        if name not in before or name not in after:
            return name
        a, b = before[name], after[name]
        if a.dtype != b.dtype or not torch.equal(a.nan_to_num(), b.nan_to_num()):
            return name
    return None


@contextmanager
def _fixed_draws() -> Iterator[None]:
    """Fix the global generators. A network that draws from another generator is refused as one with memory."""
    with seeded_randomness(_MARK):
        yield
