"""The canonical byte string of a JSON value, for digests."""

from __future__ import annotations

import json

__all__ = ["canonical"]


def canonical(value: object) -> bytes:
    """Return the canonical bytes of a JSON value: ASCII, sorted keys, no spaces, no NaN, no newline."""
    return _CANONICAL.encode(value).encode()


_CANONICAL = json.JSONEncoder(sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False)
