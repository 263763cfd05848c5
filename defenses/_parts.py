"""Shared parts of message defences: the tensors that they treat, and a sender's statements about its values.

Helper tensors describe the values beside them. `z_max` () is a range that the parties agreed on. The quantiser removes
it from the message. Two helpers occur together when a sender averages clients' values: `client_share` (C,) or () is the
largest share of any client in each value, and `client_bound` () is B': all averaged values were clipped to ±B' before.
Both are public numbers. Noise removes them from the message and may then make a claim for each client alone. They hold
for the average as the sender made it. Any other defence that changes values drops them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Generic, TypeVar

import torch
from torch import Tensor

from fdaudit.config import Config
from fdaudit.errors import ProtocolError
from fdaudit.events import NoGuarantee
from fdaudit.registry import DefenseCard

__all__ = [
    "Configured",
    "Moved",
    "NoiseConfig",
    "Settings",
    "finite",
    "moved",
    "noised",
    "norm",
    "unclaimed",
    "values_of",
    "without_shares",
]

CLIENT_SHARE, CLIENT_BOUND = "client_share", "client_bound"
_LEFT_ALONE = ("index", "z_max")
"""Tensors that identify a message's samples: noise on a sample's number would name another sample."""


Settings = TypeVar("Settings", bound=Config)


class Configured(Generic[Settings]):
    """Base of a defence on messages: its settings, and its description beside each treated message."""

    card: ClassVar[DefenseCard]

    def __init__(self, config: Settings) -> None:
        self.config = config

    def describe(self) -> Mapping[str, Any]:
        """Return name and parameters."""
        return {"name": self.card.name, **self.config.model_dump()}


class NoiseConfig(Config):
    """Common settings of additive noise."""

    public_index: bool = False
    """Private data do not decide the samples in `index`. If false, the choice is sent unprotected, and no guarantee is
    claimed.
    """


def values_of(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the tensors that carry values; neither helpers nor `index`."""
    values = without_shares(tensors)
    for name in _LEFT_ALONE:
        values.pop(name, None)
    return values


def without_shares(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the message without its sender's statements about an average."""
    message = dict(tensors)
    message.pop(CLIENT_SHARE, None)
    message.pop(CLIENT_BOUND, None)
    return message


def unclaimed(tensors: Mapping[str, Tensor], public_index: bool) -> NoGuarantee | None:
    """Return why no guarantee can be claimed for a clipped and noised message, or None."""
    bare = sorted(tensors.keys() & {*_LEFT_ALONE})
    if public_index and "index" in bare:
        bare.remove("index")
    if bare:
        return NoGuarantee(reason=f"{' and '.join(bare)} of the message goes out without noise")
    if not sum(t.numel() for t in values_of(tensors).values()):
        return NoGuarantee(reason="a message without values has nothing to add noise to")
    return None


def finite(sent: Tensor) -> Tensor:
    """Return the values in double precision; NaN and infinity become 0, because noise would not change them."""
    return sent.double().nan_to_num(nan=0.0, posinf=0.0, neginf=0.0)


def norm(tensors: Iterable[Tensor]) -> float:
    """Return the ℓ2 norm of all values together, in double precision."""
    squares = [torch.zeros((), dtype=torch.float64)]
    for tensor in tensors:
        values = tensor.double()
        squares.append(values.square().sum().cpu())
    return float(torch.stack(squares).sum().sqrt())


def noised(sent: Tensor, clipped: Tensor, drawn: Tensor) -> Tensor:
    """Return the sum in the dtype that was sent; whole numbers are rounded, to int64: a narrower type would wrap."""
    total = clipped + drawn.to(sent.device)
    return total.to(sent.dtype) if sent.is_floating_point() else total.round().long()


@dataclass(frozen=True, kw_only=True)
class Moved:
    """Distance by which the change of a unit moves a message of values within ±B, in units of 2B.

    Attributes:
        l1: in the ℓ1 norm.
        l2: in the ℓ2 norm.
        covers: the data that may change: everything, or the messages of each client alone.
    """

    l1: float
    l2: float
    covers: tuple[str, ...]


def moved(name: str, tensors: Mapping[str, Tensor], bound: float, grid: int | None = None) -> Moved:
    """Return how far a unit moves the values, given `client_share`; without it every value may move by 2B.

    If one client has a share ω, an average moves by at most 2B'ω, and within ±B by at most 2B. That is 2B times the
    lesser of ωB'/B and 1.

    Args:
        name: the defence's name, for errors.
        tensors: the message; at least one value.
        bound: B, to which the defence clips every value.
        grid: number of grid steps in 2B. Values are rounded to the grid after they have moved, so they move by
            whole steps. None: no grid.

    Raises:
        ProtocolError: the shares are outside (0, 1], do not fit the values, or come without their bound.
    """
    values = values_of(tensors)
    count = sum(t.numel() for t in values.values())
    if CLIENT_SHARE not in tensors:
        return Moved(l1=float(count), l2=float(count) ** 0.5, covers=("data", "messages"))
    share = _share(name, tensors, values) * (float(tensors[CLIENT_BOUND]) / bound)
    share = share.clamp_max(1.0)
    if grid is not None:
        # Values less than m + 1 steps apart are rounded to numbers at most m + 1 apart; rounding may make a whole
        # number of steps slightly too large.
        share = ((share * grid + 1e-6 * grid).floor() + 1).clamp_max(grid) / grid
    each = count // share.numel()
    return Moved(
        l1=each * float(share.sum()),
        l2=float(each * share.square().sum()) ** 0.5,
        covers=("each-client",),
    )


def _share(name: str, tensors: Mapping[str, Tensor], values: Mapping[str, Tensor]) -> Tensor:
    share = tensors[CLIENT_SHARE].double().cpu()
    if share.dim() > 1 or not share.numel() or not bool(((share > 0) & (share <= 1)).all()):
        raise ProtocolError(f"{name}: {CLIENT_SHARE} must be () or (C,) of shares above 0 and up to 1.")
    if share.dim() and any(t.shape[-1:] != share.shape for t in values.values()):
        shapes = [tuple(t.shape) for t in values.values()]
        raise ProtocolError(f"{name}: {len(share)} shares of a client do not fit values of shapes {shapes}.")
    bound = tensors.get(CLIENT_BOUND)
    if bound is None or bound.numel() != 1 or not 0 < float(bound) < float("inf"):
        problem = f"{name}: {CLIENT_SHARE} comes without the bound of what was averaged."
        raise ProtocolError(f"{problem} Send {CLIENT_BOUND}, positive and finite, along.")
    return share
