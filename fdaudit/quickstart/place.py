"""The directory of a quickstart, checked before any library is loaded."""

from __future__ import annotations

from pathlib import Path

from fdaudit.errors import RunError

__all__ = ["PROTOCOLS", "refuse_occupied"]

PROTOCOLS = ("fedavg", "fedkd", "selective-fd", "fediod", "dafkd")
"""The runs in their order; the first one trains the reference lines for all."""


def refuse_occupied(out: Path, resume: bool, first: str = PROTOCOLS[0]) -> None:
    """Refuse a directory that holds anything, or with `resume` anything but a quickstart.

    Args:
        out: the directory.
        resume: whether a quickstart is to be continued there.
        first: the name of its first run.

    Raises:
        RunError: it does; nothing was written.
    """
    if not out.is_dir():
        if out.exists() or out.is_symlink():
            raise RunError("out", str(out), "is not a directory", "Choose another directory.")
        return
    if not any(out.iterdir()):
        return
    if not resume:
        raise RunError("out", str(out), "exists already", "Choose another directory, or add --resume.")
    if not (out / first).is_dir():
        raise RunError("out", str(out), "holds no quickstart", "Choose another directory.")
