"""Packages that a test installs as far as Python can tell."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def importable(site: Path, package: str) -> Iterator[None]:
    """Put a folder first on the search path; forget its package at the end."""
    sys.path.insert(0, str(site))
    importlib.invalidate_caches()
    yield
    sys.path.remove(str(site))
    for name in [n for n in sys.modules if n.partition(".")[0] == package]:
        del sys.modules[name]
