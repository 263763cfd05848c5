"""What message defences share: which tensors of a message they treat, and what a sender may say of its values.

Helper tensors tell a defence about the values beside them. `z_max` () is a range that the parties agreed on; the
quantiser takes it out of the message. Two come together where a sender averages what clients sent: `client_share` (C,)
or (), the largest share that any one client has in each value, and `client_bound` (), B' of the ±B' to which the
averaged values were all clipped beforehand. Both are public numbers. Noise takes them out of the message and may then
speak for each client alone. They hold for the average as the sender made it and for nothing that is made of it:
whatever else changes values drops them.
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
"""What a message is about, not what it says: noise on a sample's number would name another sample."""


Settings = TypeVar("Settings", bound=Config)


class Configured(Generic[Settings]):
    """A defence on messages: its settings, and how it describes itself beside each message that it treats.

    `fixed_size` says that messages of one shape come out in one size, whatever their values are.
    """

    name: ClassVar[str]
    fixed_size: ClassVar[bool] = True

    def __init__(self, config: Settings) -> None:
        self.config = config

    def describe(self) -> Mapping[str, Any]:
        """Name and parameters."""
        return {"name": self.name, **self.config.model_dump()}


class NoiseConfig(Config):
    """What the settings of every additive noise have in common."""

    public_index: bool = False
    """The samples that `index` names are chosen without private data. Otherwise the choice goes out as it is, and no
    guarantee is claimed."""


def values_of(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The tensors that say something; neither helpers nor `index`."""
    return {n: t for n, t in without_shares(tensors).items() if n not in _LEFT_ALONE}


def without_shares(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The message without what its sender says of an average."""
    return {n: t for n, t in tensors.items() if n not in (CLIENT_SHARE, CLIENT_BOUND)}


def unclaimed(tensors: Mapping[str, Tensor], public_index: bool) -> NoGuarantee | None:
    """The reason why nothing can be claimed for a message whose values are clipped and noised, where there is one."""
    bare = sorted(tensors.keys() & {*_LEFT_ALONE} - ({"index"} if public_index else set()))
    if bare:
        return NoGuarantee(reason=f"{' and '.join(bare)} of the message goes out without noise")
    if not sum(t.numel() for t in values_of(tensors).values()):
        return NoGuarantee(reason="a message without values has nothing to add noise to")
    return None


def finite(sent: Tensor) -> Tensor:
    """The values in double precision; what is no number counts as nought: it would go through any noise unchanged."""
    return sent.double().nan_to_num(nan=0.0, posinf=0.0, neginf=0.0)


def norm(tensors: Iterable[Tensor]) -> float:
    """The ℓ2 norm of all values together, in double precision."""
    squares = [t.double().square().sum().cpu() for t in tensors]
    return float(torch.stack([torch.zeros((), dtype=torch.float64), *squares]).sum().sqrt())


def noised(sent: Tensor, clipped: Tensor, drawn: Tensor) -> Tensor:
    """The sum in the dtype that was sent; whole numbers are rounded, not cut."""
    made = clipped + drawn.to(sent.device)
    return (made if sent.is_floating_point() else made.round()).to(sent.dtype)


@dataclass(frozen=True, kw_only=True)
class Moved:
    """How far the change of a unit moves a message of values within ±B, in units of 2B.

    Attributes:
        l1: in the ℓ1 norm.
        l2: in the ℓ2 norm.
        covers: what may change: everything, or the messages of each client alone.
    """

    l1: float
    l2: float
    covers: tuple[str, ...]


def moved(name: str, tensors: Mapping[str, Tensor], bound: float, grid: int | None = None) -> Moved:
    """What `client_share` makes of the values of a message; without it every value may move by 2B.

    An average moves by at most 2B'ω where one client has a share ω, and within ±B by at most 2B: that is 2B times the
    lesser of ωB'/B and 1.

    Args:
        name: of the defence, for its errors.
        tensors: the message; at least one value.
        bound: B, to which the defence clips every value.
        grid: on a grid of so many steps in 2B, to which values are rounded after they have moved, a value moves by
            whole steps. None: no grid.

    Raises:
        ProtocolError: the shares lie outside (0, 1], do not fit the values, or come without their bound.
    """
    values = values_of(tensors)
    count = sum(t.numel() for t in values.values())
    if CLIENT_SHARE not in tensors:
        return Moved(l1=float(count), l2=float(count) ** 0.5, covers=("data", "messages"))
    share = (_share(name, tensors, values) * (float(tensors[CLIENT_BOUND]) / bound)).clamp_max(1.0)
    if grid is not None:
        # Values less than m + 1 steps apart are rounded to numbers at most m + 1 apart; a whole number of steps may
        # come out a rounding too large.
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
    said = tensors.get(CLIENT_BOUND)
    if said is None or said.numel() != 1 or not 0 < float(said) < float("inf"):
        problem = f"{name}: {CLIENT_SHARE} comes without the bound of what was averaged."
        raise ProtocolError(f"{problem} Send {CLIENT_BOUND}, positive and finite, along.")
    return share
