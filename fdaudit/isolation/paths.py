"""The files that attack processes need: Python, its libraries, and the packages that fdaudit knows of."""

from __future__ import annotations

import os
import sys
import sysconfig
from importlib.machinery import PathFinder
from importlib.metadata import entry_points
from pathlib import Path

__all__ = ["devices", "has_accelerator", "readable"]

_SYSTEM = (
    *("/lib", "/lib32", "/lib64", "/bin", "/opt/cuda", "/etc/ld.so.cache", "/etc/ld.so.preload"),
    *("/etc/localtime", "/etc/alternatives", "/etc/nsswitch.conf", "/etc/passwd", "/etc/ssl/openssl.cnf"),
    *("/proc/cpuinfo", "/proc/meminfo", "/proc/stat", "/proc/driver", "/proc/sys/vm", "/sys"),
)
_PREFIXES = ("/usr", "/usr/local")
_OF_PREFIX = ("bin", "cuda*", "include", "lib*", "pyvenv.cfg", "sbin", "share")
"""What is read below a prefix of programs. A user may keep a run below the rest, such as `/usr/src/app`."""
_ITSELF = "/proc/self"
"""The process's own files. The path names the process that opens it, so it must not be resolved earlier."""
_DEV = Path("/dev")
_ACCELERATORS = ("nvidia*", "dri", "kfd")
_DEVICES = ("null", "zero", "full", "random", "urandom", *_ACCELERATORS)
_GROUPS = ("fdaudit.attacks", "fdaudit.defenses", "fdaudit.deviations", "fdaudit.protocols")
_OF_A_RUN = frozenset({"manifest.json", "secrets.json", "messages.jsonl", "vault"})
"""A directory with one of these below it is no package: it holds a run or a record."""
_CODE = (".py", ".so", ".egg-info")


def readable() -> list[str]:
    """Return the files and directories to be read; of the user's directories, only those of packages.

    A directory that only looks like a package because it is in the working directory or another source directory is
    not among them, nor is a package that holds a run.
    """
    stdlib = Path(sysconfig.get_path("stdlib"))
    paths = [*map(Path, _SYSTEM), stdlib, Path(__file__).parents[1]]
    for prefix in map(Path, (*_PREFIXES, sys.prefix, sys.base_prefix, sys.exec_prefix)):
        for name in _OF_PREFIX:
            paths += prefix.glob(name)
    plugins = set[str]()
    for group in _GROUPS:
        for plugin in entry_points(group=group):
            module = plugin.value.partition(":")[0]
            plugins.add(module.partition(".")[0])
    for name in sorted(plugins):
        paths += _package(name)
    for name, finder in list(sys.modules.items()):
        if name.startswith("__editable__"):  # the folders of editable packages, as setuptools records them
            folders = getattr(finder, "MAPPING", {}).values()
            paths += filter(_is_importable, map(Path, folders))
    for folder in map(Path, sys.path):
        if _is_site(folder):
            paths.append(folder)
        elif folder.is_dir() and folder != stdlib:  # a source directory: only its packages and modules
            paths += filter(_is_importable, folder.iterdir())
    names = set[str]()
    for path in paths:
        if path.exists():
            name = str(path.absolute())
            names |= {name, os.path.realpath(name)}
    return [_ITSELF, *sorted(names)]


def devices() -> list[str]:
    """Return the devices to be read and written, and what their drivers write; shared memory is not among them.

    CUDA does not start if it cannot name its threads, which it does in the process's own directory of `/proc`.
    """
    paths: list[Path] = []
    for name in _DEVICES:
        paths += _DEV.glob(name)
    names = list(map(str, sorted(paths)))
    if any(path.match("nvidia*") for path in paths):
        names.append(_ITSELF)
    return names


def has_accelerator() -> bool:
    """Return whether this machine has a device whose driver needs more than files."""
    return any(True for name in _ACCELERATORS for _ in _DEV.glob(name))


def _is_site(path: Path) -> bool:
    """Return whether a directory of the search path holds only installed packages."""
    return path.name in ("site-packages", "dist-packages", "lib-dynload") or path.suffix == ".zip"


def _is_importable(place: Path) -> bool:
    """Return whether a path is a module, or a package by its `__init__.py`, and holds no run."""
    if place.suffix in _CODE:
        return place.is_file() or not _holds_run(place)
    return (place / "__init__.py").is_file() and not _holds_run(place)


def _holds_run(place: Path) -> bool:
    """Return whether a run or a record is in a directory or below it."""
    return any(_OF_A_RUN.intersection((*folders, *files)) for _, folders, files in os.walk(place))


def _package(name: str) -> list[Path]:
    """Return the places of a package or a module, without importing it.

    A package without `__init__.py` counts only where packages are installed: elsewhere any directory would be one.
    """
    spec = PathFinder.find_spec(name)
    if spec is None:
        return []
    if spec.origin is None:
        places: list[Path] = []
        for place in map(Path, spec.submodule_search_locations or ()):
            if _is_site(place.parent) and not _holds_run(place):
                places.append(place)
        return places
    if spec.submodule_search_locations is None:
        return [Path(spec.origin)]
    return list(filter(_is_importable, map(Path, spec.submodule_search_locations)))
