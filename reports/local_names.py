"""Removal of local names from public text: paths and data locations of the auditor's machine.

Guarantees:
  * every absolute path, path from a home directory, path with a backslash and URL of a file is replaced;
  * a setting that names a place is replaced completely.
"""

from __future__ import annotations

import re
from typing import Any

__all__ = ["HIDDEN", "is_local", "named", "settings", "without_paths"]

HIDDEN = "(withheld)"
"""Replacement of a removed name."""

_LOCAL = ("npz:", "folder:", "import:")
_PARTY = re.compile(r"(client/\d+|server|aggregator|world|eavesdropper)(\+(client/\d+|server|aggregator))*")
_WORDS = re.compile(r"[^/\\~]*")
_PATH = re.compile(
    r"(?<![\w.)/])(?:[A-Za-z]:[\\/]|\.{0,2}/|~[\w.-]*/)[^\s'\"`<>|;,]+"  # /x, ./x, ../x, ~/x, C:\x
    r"|[^\s'\"`<>|;,]*\\[^\s'\"`<>|;,]*"  # whatever has a backslash
    r"|\b(?:file|s3|gs|gcs|az|abfs|ssh|sftp|smb|hdfs)://[^\s'\"`<>|;,]*"
)


def is_local(dataset: str) -> bool:
    """Return whether a dataset's name states where its files are."""
    return dataset.startswith(_LOCAL)


def named(dataset: str) -> str:
    """Return a dataset's name; for one in a file, only its sort."""
    return f"{dataset.partition(':')[0]}:{HIDDEN}" if is_local(dataset) else dataset


def settings(value: Any, member: str = "") -> Any:
    """Return settings without places: any `root`, and any text with a slash that is not a party's name."""
    if isinstance(value, dict):
        return {settings(k): settings(v, k) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [settings(v, member) for v in value]
    if not isinstance(value, str):
        return value
    plain = _PARTY.fullmatch(value) or _WORDS.fullmatch(value)
    return named(value) if plain and member != "root" else HIDDEN


def without_paths(value: Any) -> Any:
    """Return a plain object with every path in its texts and keys replaced."""
    if isinstance(value, dict):
        return {without_paths(k): without_paths(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return list(map(without_paths, value))
    return _PATH.sub(HIDDEN, value) if isinstance(value, str) else value
