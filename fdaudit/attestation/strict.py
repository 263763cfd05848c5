"""JSON from untrusted sources: one document in canonical form and of bounded size, else an error that names the defect.

Guarantees:
  * accepted input is written back to the same bytes: no duplicate key, no alternative spelling of a number, and
    nothing between the parts;
  * deep, long or malformed input raises only `IntegrityError`.
"""

from __future__ import annotations

import json
import stat
from pathlib import Path
from typing import Any

from fdaudit.errors import IntegrityError
from fdaudit.storage.digests import canonical

__all__ = ["MOST_BYTES", "is_digest", "parse_canonical", "read_bounded"]

MOST_BYTES = 64 << 20
"""Most bytes of an envelope or a listing: a hundred thousand files take about 20 MB."""

_HEXADECIMAL = frozenset("0123456789abcdef")


def read_bounded(path: Path) -> bytes:
    """Return the bytes of a regular file that is not a link.

    Raises:
        IntegrityError: it is missing, not a regular file, too large, or unreadable.
    """
    try:
        status = path.lstat()
        if not stat.S_ISREG(status.st_mode):
            raise IntegrityError([f"{path.name} is no regular file"])
        if status.st_size > MOST_BYTES:
            raise IntegrityError(
                [f"{path.name} has {status.st_size:,} bytes; at most {MOST_BYTES:,} are read"]
            )
        with path.open("rb") as file:
            return file.read(MOST_BYTES)
    except FileNotFoundError:
        raise IntegrityError([f"{path.name} is missing"]) from None
    except OSError as error:
        raise IntegrityError([f"{path.name} cannot be read ({error.strerror})"]) from None


def parse_canonical(data: bytes, name: str, *, end: bytes = b"\n") -> Any:
    """Return the value of canonical JSON.

    Args:
        data: canonical bytes followed by `end`.
        name: name of the document, for messages.
        end: what must follow the document.

    Raises:
        IntegrityError: it is not JSON, or not in canonical form.
    """
    try:
        value = json.loads(data)
        same = canonical(value) + end == data
    except (ValueError, RecursionError) as error:
        raise IntegrityError([f"{name} is not JSON: {str(error)[:200]}"]) from None
    if not same:
        raise IntegrityError([f"{name} is not in canonical form"])
    return value


def is_digest(value: object) -> bool:
    """Return whether a value is a SHA-256 in lower-case hexadecimal."""
    return isinstance(value, str) and len(value) == 64 and _HEXADECIMAL.issuperset(value)
