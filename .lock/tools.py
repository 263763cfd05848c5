"""What the scripts of the lock share: the lock files, and the tools of the extra `dev` that read them."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

FOLDER = Path(__file__).parent


def locks() -> list[Path]:
    """Return the lock files, one for each platform."""
    return sorted(FOLDER.glob("*.txt"))


def tool(name: str) -> str | None:
    """Return the path of a tool, of this environment first; None if it is not installed."""
    own = Path(sys.executable).parent / name
    return str(own) if own.is_file() else shutil.which(name)
