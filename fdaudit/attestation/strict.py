"""JSON from strangers: one document in canonical form, of bounded size, or damage that is named.

Guarantees:
  * what is read is written again to the same bytes, so no key stands twice, no number has two spellings and
    nothing lies between the parts;
  * nothing deep, long or malformed ends in another error than `IntegrityError`.
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
"""What an envelope or a listing may hold: a hundred thousand files take some 20 MB."""

_HEXADECIMAL = frozenset("0123456789abcdef")


def read_bounded(path: Path) -> bytes:
    """The bytes of a regular file that is no link.

    Raises:
        IntegrityError: it is missing, no regular file, too large, or cannot be read.
    """
    try:
        found = path.lstat()
        if not stat.S_ISREG(found.st_mode):
            raise IntegrityError([f"{path.name} is no regular file"])
        if found.st_size > MOST_BYTES:
            raise IntegrityError(
                [f"{path.name} has {found.st_size:,} bytes; at most {MOST_BYTES:,} are read"]
            )
        with path.open("rb") as file:
            return file.read(MOST_BYTES)
    except FileNotFoundError:
        raise IntegrityError([f"{path.name} is missing"]) from None
    except OSError as error:
        raise IntegrityError([f"{path.name} cannot be read ({error.strerror})"]) from None


def parse_canonical(data: bytes, name: str, *, end: bytes = b"\n") -> Any:
    """The value of canonical JSON.

    Args:
        data: canonical bytes followed by `end`.
        name: what it is, for messages.
        end: what must follow the document.

    Raises:
        IntegrityError: it is no JSON, or not in canonical form.
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
    """Whether it is a SHA-256 in lower-case hexadecimal."""
    return isinstance(value, str) and len(value) == 64 and _HEXADECIMAL.issuperset(value)
