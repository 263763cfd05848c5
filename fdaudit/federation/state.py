"""State kept between rounds: one flat mapping, by party and by name."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from fdaudit.federation.local_training import Basis
from fdaudit.transcript.messages import ALL, DATA

__all__ = ["basis_of", "copies_of", "keep_basis", "put", "take"]

_RECORDS = -1
"""Number of the party's own records in a stored basis, whose other numbers are those of messages."""


def put(state: dict[str, Tensor], prefix: str, tensors: Mapping[str, Tensor]) -> None:
    """Store tensors under `prefix`, replacing everything there."""
    for key in list(state):
        if key.startswith(prefix):
            del state[key]
    for name, tensor in tensors.items():
        state[f"{prefix}{name}"] = tensor


def take(state: Mapping[str, Tensor], prefix: str) -> dict[str, Tensor]:
    """Return the tensors under `prefix`, by the rest of their names."""
    tensors: dict[str, Tensor] = {}
    for name, tensor in state.items():
        if name.startswith(prefix):
            tensors[name.removeprefix(prefix)] = tensor
    return tensors


def copies_of(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return a copy of every tensor, by name."""
    return {name: tensor.clone() for name, tensor in tensors.items()}


def keep_basis(state: dict[str, Tensor], party: str, basis: Basis) -> None:
    """Store the inputs of a party's model; store nothing if the inputs are all that it holds."""
    state.pop(f"{party}/basis", None)
    if basis != ALL:
        numbers = [_RECORDS if source == DATA else int(source) for source in basis]
        state[f"{party}/basis"] = torch.tensor(numbers, dtype=torch.int64)


def basis_of(state: Mapping[str, Tensor], party: str) -> Basis:
    """Return the stored inputs of a party's model; all that it holds if nothing is stored."""
    numbers = state.get(f"{party}/basis")
    if numbers is None:
        return ALL
    return tuple(DATA if number == _RECORDS else number for number in numbers.tolist())
