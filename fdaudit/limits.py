"""Limits on the size of inputs and requests, so that no file or spec exhausts memory or runs forever.

Guarantees:
  * an oversized file is refused before it is read; a pipe, a device or a folder is refused without blocking;
  * every limit on files can be raised by an environment variable, which the refusal names.
"""

from __future__ import annotations

import errno
import os
import stat
from dataclasses import dataclass
from io import BufferedReader
from pathlib import Path

from fdaudit.errors import UsageError

__all__ = [
    "DATA_BYTES",
    "FILE_LIMITS",
    "JSON_BYTES",
    "LINE_BYTES",
    "LOG_BYTES",
    "MOST_CANDIDATES",
    "MOST_CLIENTS",
    "MOST_COUNT",
    "MOST_DIMENSIONS",
    "MOST_HISTORY",
    "MOST_INNER",
    "MOST_NETWORKS",
    "MOST_PARAMETERS",
    "MOST_PARTS",
    "MOST_QUERIES",
    "MOST_ROUNDS",
    "MOST_ROW",
    "MOST_TABLE",
    "MOST_TEXT",
    "MOST_YAML_DEPTH",
    "MOST_YAML_VALUES",
    "PIXELS",
    "TABLE_BYTES",
    "TENSOR_BYTES",
    "YAML_BYTES",
    "Limit",
    "open_file",
    "read_file",
]

MOST_CLIENTS = 10_000
MOST_ROUNDS = 1_000_000
MOST_QUERIES = 1_000_000_000
MOST_CANDIDATES = 1_000_000
MOST_INNER = 4_096
"""Latent dimensions, or the width of a generator, a discriminator or a decoder."""
MOST_PARAMETERS = 1_000_000_000
"""Parameters of one network."""
MOST_COUNT = 1_000_000_000
"""Whole numbers in a configuration that have no other limit."""
MOST_TABLE = 10_000_000
"""Entries of a table that a file's numbers span: clients by classes, or the values of one image."""
MOST_ROW = 65_536
"""Entries of the vector of one row of a table."""
MOST_DIMENSIONS = 16
"""Dimensions of a tensor."""
MOST_PARTS = 16
"""Different mechanisms that are composed: parts of one event, or of all claims in a card."""
MOST_HISTORY = 1_000
"""Entries of an accountant's history."""
MOST_NETWORKS = 32
"""Different networks of one federation."""
MOST_TEXT = 20_000
"""Characters of one value in a YAML file."""
MOST_YAML_DEPTH = 64
MOST_YAML_VALUES = 100_000
"""Values of a YAML file after its aliases are expanded; nine lines of aliases can expand to a billion."""


@dataclass(frozen=True)
class Limit:
    """A limit that an environment variable can raise.

    Attributes:
        variable: the environment variable.
        default: the limit if the variable is not set.
        what: the counted things, as a noun.
    """

    variable: str
    default: int
    what: str

    @property
    def most(self) -> int:
        """Return the current limit.

        Raises:
            UsageError: the variable holds no whole number.
        """
        text = os.environ.get(self.variable)
        if text is None:
            return self.default
        if not (text.isascii() and text.isdigit() and len(text) < _MOST_DIGITS):
            raise UsageError(self.variable, text, "is no whole number", f"Set it to {self.default}, say.")
        return int(text)

    def refusal(self, found: int) -> str:
        """Return a clause that states the excess and how to raise the limit."""
        return f"{found:,} {self.what}, and at most {self.most:,} are read ({self.variable} raises that)"


_MOST_DIGITS = 19

YAML_BYTES = Limit("FDAUDIT_MOST_YAML_BYTES", 1 << 20, "bytes of YAML")
JSON_BYTES = Limit("FDAUDIT_MOST_JSON_BYTES", 64 << 20, "bytes of JSON")
LINE_BYTES = Limit("FDAUDIT_MOST_LINE_BYTES", 256 << 10, "bytes in one line of a log")
LOG_BYTES = Limit("FDAUDIT_MOST_LOG_BYTES", 1 << 30, "bytes of log")
TENSOR_BYTES = Limit("FDAUDIT_MOST_TENSOR_BYTES", 1 << 30, "bytes of tensors")
TABLE_BYTES = Limit("FDAUDIT_MOST_TABLE_BYTES", 256 << 20, "bytes of CSV")
DATA_BYTES = Limit("FDAUDIT_MOST_DATA_BYTES", 1 << 30, "bytes of data, unpacked")
PIXELS = Limit("FDAUDIT_MOST_PIXELS", 1 << 25, "pixels in one image")

FILE_LIMITS = (
    YAML_BYTES,
    JSON_BYTES,
    LINE_BYTES,
    LOG_BYTES,
    TENSOR_BYTES,
    TABLE_BYTES,
    DATA_BYTES,
    PIXELS,
)
"""All limits that can be raised."""


def open_file(path: Path, limit: Limit | None = None, *, follow: bool = True) -> BufferedReader:
    """Open a regular file for reading; never block on a pipe.

    Args:
        path: the file.
        limit: the most bytes that it may have.
        follow: whether the last part of the path may be a link.

    Raises:
        OSError: the file cannot be opened, is not regular, or has more bytes than `limit`; `strerror` says which.
    """
    flags = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | (0 if follow else os.O_NOFOLLOW)
    try:
        descriptor = os.open(path, flags)
    except OSError as error:
        if error.errno == errno.ELOOP and path.is_symlink():
            raise OSError(errno.ELOOP, "it is a link, no regular file", str(path)) from None
        raise
    status = os.fstat(descriptor)
    problem = None
    if stat.S_ISDIR(status.st_mode):
        problem = (errno.EISDIR, os.strerror(errno.EISDIR))
    elif not stat.S_ISREG(status.st_mode):
        problem = (errno.EINVAL, "it is no regular file")
    elif limit is not None and status.st_size > limit.most:
        problem = (errno.EFBIG, f"it has {limit.refusal(status.st_size)}")
    if problem is not None:
        os.close(descriptor)
        raise OSError(*problem, str(path))
    return os.fdopen(descriptor, "rb")


def read_file(path: Path, limit: Limit) -> bytes:
    """Return the bytes of a regular file, at most `limit` even if it grows meanwhile.

    Raises:
        OSError: as `open_file`.
    """
    with open_file(path, limit) as file:
        return file.read(limit.most)
