"""What outlives a round lies in one flat mapping, by party and by name."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor

__all__ = ["put", "take"]


def put(state: dict[str, Tensor], prefix: str, tensors: Mapping[str, Tensor]) -> None:
    """Keeps tensors under `prefix`, in place of all that was there."""
    for name in [n for n in state if n.startswith(prefix)]:
        del state[name]
    state.update({f"{prefix}{n}": t for n, t in tensors.items()})


def take(state: Mapping[str, Tensor], prefix: str) -> dict[str, Tensor]:
    """The tensors under `prefix`, by the rest of their names."""
    return {n.removeprefix(prefix): t for n, t in state.items() if n.startswith(prefix)}
