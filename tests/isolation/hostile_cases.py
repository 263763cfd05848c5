"""The hostile plug-in, installed as far as Python can tell."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from fdaudit import attacks

from ..helpers.importable import importable


@contextmanager
def hostile_package(site: Path) -> Iterator[None]:
    """Install the package `hostile_extras` with its entry point into a folder."""
    package, here = site / "hostile_extras", Path(__file__).parent
    package.mkdir()
    (package / "__init__.py").touch()
    shutil.copyfile(here / "hostile_plugin.py", package / "attack.py")
    shutil.copyfile(here / "hostile_behaviours.py", package / "behaviours.py")
    info = site / "hostile_extras-0.1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: hostile-extras\nVersion: 0.1.0\n")
    (info / "entry_points.txt").write_text("[fdaudit.attacks]\nhostile = hostile_extras.attack:Hostile\n")
    with importable(site, "hostile_extras"):
        attacks.REGISTRY.__dict__.pop("_targets", None)
        yield
    attacks.REGISTRY.__dict__.pop("_targets", None)
