"""The one byte string of a JSON value, of which digests are taken."""

from __future__ import annotations

import json
from typing import Any

__all__ = ["canonical"]


def canonical(value: Any) -> bytes:
    """The one byte string a JSON value has here: ASCII, sorted keys, no spaces, no NaN, no newline."""
    return _CANONICAL.encode(value).encode()


_CANONICAL = json.JSONEncoder(sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False)
