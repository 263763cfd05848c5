"""Images of a run as data URIs: read only from below the run directory, and only if they are small PNGs.

Guarantees:
  * no path leaves the directory: not by `..`, not by being absolute, not by a symbolic link;
  * a file that is not a PNG, or is larger than `LIMIT`, is refused.
"""

from __future__ import annotations

import base64
from pathlib import Path

from fdaudit.errors import UsageError

__all__ = ["LIMIT", "data_uri"]

LIMIT = 1 << 20
"""Bytes; images of a reconstruction are far smaller."""

_SIGNATURE = b"\x89PNG\r\n\x1a\n"


def data_uri(directory: Path, relative: str) -> str:
    """Return the PNG at `relative` below `directory` as a `data:` URI.

    Raises:
        UsageError: the path leaves the directory, or names no readable small PNG.
    """
    remedy = "Give the path of a PNG below the run directory."
    try:
        root = directory.resolve(strict=True)
        path = (root / relative).resolve(strict=True)
    except (OSError, ValueError, RuntimeError):
        raise UsageError("image", relative, "can't be found", remedy) from None
    if Path(relative).is_absolute() or not path.is_relative_to(root):
        raise UsageError("image", relative, "leaves the run directory", remedy)
    if not path.is_file() or path.stat().st_size > LIMIT:
        raise UsageError("image", relative, f"is no file of at most {LIMIT:,} bytes", remedy)
    content = path.read_bytes()
    if not content.startswith(_SIGNATURE):
        raise UsageError("image", relative, "is not a PNG", remedy)
    return f"data:image/png;base64,{base64.b64encode(content).decode('ascii')}"
