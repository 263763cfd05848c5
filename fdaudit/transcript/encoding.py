"""Wire format of quantised values: packed integers and their grid.

A defence that rounds the tensor `values` to a grid sends three tensors instead. `values:codes` holds the numbers of the
grid points with the fewest bits possible. `values:grid` holds the lowest point and the step. `values:layout` holds the
bits of a code and the tensor's shape. `readable` returns the same floats to every reader of the record: a receiver, an
adversary's view, an attack.

Guarantees:
  * n values on a grid of p points take n·ceil(log2 p) bits, rounded up to whole bytes;
  * `readable(packed(...))` returns the grid's own floats, bit for bit, for every reader;
  * damaged codes are detected, never read as a tensor of another shape.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from fdaudit.errors import IntegrityError
from fdaudit.limits import TENSOR_BYTES

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from fdaudit.types import TensorInfo

__all__ = [
    "MOST_BITS",
    "STATES",
    "EvenGrid",
    "Naming",
    "is_counter",
    "numbered",
    "packed",
    "readable",
    "shapes_of",
    "weights_of",
]

MOST_BITS = 16
"""The most bits that a code may have."""

_AT_ONCE = 1 << 20
"""Codes unpacked at once, which takes many times the memory of their values; a multiple of 8."""
_PARTS = ("codes", "grid", "layout")

STATES = ("exp_avg", "exp_avg_sq", "max_exp_avg_sq", "momentum_buffer", "step")
"""The states that PyTorch's Adam and SGD keep of a parameter."""


@dataclass(frozen=True)
class EvenGrid:
    """Evenly spaced values: code j stands for `lowest + j·step`, for j from 0 to `points - 1`."""

    lowest: float
    step: float
    points: int

    @property
    def bits(self) -> int:
        """Return the bits of one code: ceil(log2 points), at least 1."""
        return max((self.points - 1).bit_length(), 1)

    def values(self, codes: Tensor, dtype: torch.dtype | None = None) -> Tensor:
        """Return the values of codes, computed in double precision; float32 unless `dtype` is given."""
        import torch

        return (self.lowest + codes.double() * self.step).to(dtype or torch.float32)


def packed(name: str, codes: Tensor, grid: EvenGrid) -> dict[str, Tensor]:
    """Return the tensors that replace the tensor `name`, with every value as a code.

    Raises:
        ValueError: the grid has more points than `MOST_BITS` bits can number.
    """
    import torch

    if grid.bits > MOST_BITS:
        raise ValueError(f"packed: {grid.points} grid points need {grid.bits} bits. Use at most {MOST_BITS}.")
    flat = codes.detach().cpu().reshape(-1).numpy().astype(np.uint16)
    planes = np.empty((len(flat), grid.bits), dtype=np.uint8)
    for bit in range(grid.bits):
        planes[:, bit] = (flat >> (grid.bits - 1 - bit)) & 1
    return {
        f"{name}:codes": torch.from_numpy(np.packbits(planes)),
        f"{name}:grid": torch.tensor([grid.lowest, grid.step], dtype=torch.float64),
        f"{name}:layout": torch.tensor([grid.bits, *codes.shape], dtype=torch.int32),
    }


def readable(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the tensors of a message with every quantised one as float32 under its own name.

    Raises:
        IntegrityError: codes, grid and layout of a quantised tensor do not match.
    """
    by_name: dict[str, Tensor] = {}
    for name, tensor in tensors.items():
        base, mark, part = name.rpartition(":")
        if not mark or part not in _PARTS:
            by_name[name] = tensor
        elif part == "codes":
            by_name[base] = _unpacked(base, tensors)
    return dict(sorted(by_name.items()))


@dataclass(frozen=True)
class Naming:
    """How the names of tensors on record follow from those of a network; by default they are the same.

    Attributes:
        prefix: what stands before them, such as `module.`.
        names: by the name on record, the network's name of a tensor.
    """

    prefix: str = ""
    names: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def of(cls, settings: Mapping[str, Any]) -> Naming:
        """Return what public settings say."""
        return cls(str(settings.get("prefix", "")), dict(settings.get("names", {})))

    def own(self, name: str) -> str:
        """Return the network's name of a tensor on record; of an optimiser's state, `STATE/` and the parameter's."""
        state, mark, parameter = name.partition("/")
        if mark and state in STATES and name not in self.names:
            return f"{state}/{self.own(parameter)}"
        return self.names.get(name, name.removeprefix(self.prefix))


_SAME = Naming()


def numbered(names: Iterable[str]) -> bool:
    """Return whether names of tensors are numbers from 0, as a plain list of arrays has them."""
    distinct = set(names)
    return bool(distinct) and distinct == set(map(str, range(len(distinct))))


def shapes_of(tensors: Mapping[str, TensorInfo], naming: Naming = _SAME) -> dict[str, tuple[int, ...] | None]:
    """Return the readable tensors' shapes by the network's names.

    A quantised one has None, as its line tells only its codes' shape.
    """
    shapes: dict[str, tuple[int, ...] | None] = {}
    for name, info in tensors.items():
        base, mark, part = name.rpartition(":")
        if mark and part in _PARTS:
            shapes[naming.own(base)] = None
        else:
            shapes[naming.own(name)] = info.shape
    return shapes


def is_counter(name: str) -> bool:
    """Return whether a tensor is BatchNorm's counter of batches, on which no prediction depends."""
    return name.rpartition(".")[2] == "num_batches_tracked"


def weights_of(tensors: Mapping[str, Tensor], naming: Naming = _SAME) -> dict[str, Tensor]:
    """Return the readable tensors of a message by the network's names, in single precision, without counters.

    Recorded systems send counters, other precisions and names such as `module.fc.weight`; fdaudit's own send none.
    """
    weights = {}
    for name, tensor in readable(tensors).items():
        own = naming.own(name)
        if is_counter(own):
            continue
        if tensor.is_floating_point():
            tensor = tensor.float()
        weights[own] = tensor
    return weights


def _unpacked(name: str, tensors: Mapping[str, Tensor]) -> Tensor:
    import torch

    try:
        codes = tensors[f"{name}:codes"]
        lowest, step = map(float, tensors[f"{name}:grid"])
        bits, *shape = map(int, tensors[f"{name}:layout"])
        count = math.prod(shape)  # exact: a product that wraps around would agree with no codes at all
        if not 1 <= bits <= MOST_BITS or min(shape, default=0) < 0 or codes.dtype != torch.uint8:
            raise ValueError(f"{bits} bits a code, shape {shape}")
        if count * 4 > TENSOR_BYTES.most:
            raise ValueError(f"unpacked it has {TENSOR_BYTES.refusal(count * 4)}")
        if codes.ndim != 1 or len(codes) != -(-count * bits // 8):
            raise ValueError(f"{len(codes)} bytes hold no {count} codes of {bits} bits")
        if not (np.isfinite([lowest, step]).all() and step > 0):
            raise ValueError(f"a grid from {lowest} by {step}")
    except (KeyError, ValueError, TypeError) as error:
        raise IntegrityError([f"quantised tensor {name!r} is damaged: {error}"]) from None
    values = torch.empty(count, dtype=torch.float32)
    data, points = codes.cpu().numpy(), EvenGrid(lowest, step, 1 << bits)
    for begin in range(0, count, _AT_ONCE):
        n = min(_AT_ONCE, count - begin)
        first, length = begin * bits // 8, -(-n * bits // 8)
        planes = np.unpackbits(data[first : first + length], count=n * bits).reshape(n, bits)
        numbers = np.zeros(n, dtype=np.int32)
        for bit in range(bits):
            numbers = (numbers << 1) | planes[:, bit]
        values[begin : begin + n] = points.values(torch.from_numpy(numbers))
    return values.reshape(shape)
