"""Digests of content: the canonical byte string of a JSON value, and SHA-256 of values and tensors."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["canonical", "content_digest"]


def canonical(value: object) -> bytes:
    """Return the canonical bytes of a JSON value: ASCII, sorted keys, no spaces, no NaN, no newline."""
    return _CANONICAL.encode(value).encode()


_CANONICAL = json.JSONEncoder(sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False)


def content_digest(card: Mapping[str, Any], *tensors: Tensor | Mapping[str, Tensor]) -> str:
    """Return the SHA-256 of a card of JSON values and of tensors, with their types and shapes.

    Args:
        card: JSON values.
        tensors: in order; in a mapping the names count as well.
    """
    import torch

    digest = hashlib.sha256(canonical(dict(card)))
    for part in tensors:
        by_name = part if isinstance(part, Mapping) else {"": part}
        for name, tensor in sorted(by_name.items()):
            plain = tensor.detach().cpu().contiguous()
            digest.update(canonical([name, str(plain.dtype), list(plain.shape)]))
            digest.update(plain.flatten().view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()
