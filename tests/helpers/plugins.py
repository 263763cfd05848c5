"""Attacks as installed packages."""

from __future__ import annotations

import importlib
import shutil
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from fdaudit import attacks


@contextmanager
def installed(site: Path, package: str, modules: Mapping[str, Path], entry: str) -> Iterator[None]:
    """Install a package with one attack, as far as Python can tell; its modules are copies of these files."""
    name = package.replace("_", "-")
    folder, info = site / package, site / f"{name}-0.1.0.dist-info"
    folder.mkdir(parents=True)
    info.mkdir()
    (folder / "__init__.py").touch()
    for module, source in modules.items():
        shutil.copyfile(source, folder / f"{module}.py")
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 0.1.0\n")
    (info / "entry_points.txt").write_text(f"[fdaudit.attacks]\n{entry}\n")
    sys.path.insert(0, str(site))
    importlib.invalidate_caches()
    attacks.REGISTRY.__dict__.pop("_targets", None)
    try:
        yield
    finally:
        sys.path.remove(str(site))
        attacks.REGISTRY.__dict__.pop("_targets", None)
