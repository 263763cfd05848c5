"""What outlives a round lies in one flat mapping, by party and by name."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor

from fdaudit.federation.local_training import Basis, basis_from_tensor, basis_to_tensor
from fdaudit.transcript.messages import ALL

__all__ = ["basis_of", "keep_basis", "put", "take"]


def put(state: dict[str, Tensor], prefix: str, tensors: Mapping[str, Tensor]) -> None:
    """Keeps tensors under `prefix`, in place of all that was there."""
    for name in [n for n in state if n.startswith(prefix)]:
        del state[name]
    state.update({f"{prefix}{n}": t for n, t in tensors.items()})


def take(state: Mapping[str, Tensor], prefix: str) -> dict[str, Tensor]:
    """The tensors under `prefix`, by the rest of their names."""
    return {n.removeprefix(prefix): t for n, t in state.items() if n.startswith(prefix)}


def keep_basis(state: dict[str, Tensor], party: str, basis: Basis) -> None:
    """Keeps what a party's model was made from; of a model made from all that it holds nothing is kept."""
    if basis != ALL:
        state[f"{party}/basis"] = basis_to_tensor(basis)


def basis_of(state: Mapping[str, Tensor], party: str) -> Basis:
    """What a party's model was made from, as it was kept; all that it holds where nothing was."""
    kept = state.get(f"{party}/basis")
    return ALL if kept is None else basis_from_tensor(kept)
