"""The files that attack processes need: Python, its libraries, and the packages that fdaudit knows of."""

from __future__ import annotations

import sys
import sysconfig
from importlib.machinery import PathFinder
from importlib.metadata import entry_points
from pathlib import Path

__all__ = ["devices", "readable"]

_SYSTEM = (
    *("/usr", "/lib", "/lib32", "/lib64", "/bin", "/opt/cuda", "/etc/ld.so.cache", "/etc/ld.so.preload"),
    *("/etc/localtime", "/etc/alternatives", "/etc/nsswitch.conf", "/etc/passwd", "/etc/ssl/openssl.cnf"),
    *("/proc/cpuinfo", "/proc/meminfo", "/proc/stat", "/proc/driver", "/proc/sys/vm", "/sys"),
)
_ITSELF = "/proc/self"
"""The process's own files. The path names the process that opens it, so it must not be resolved earlier."""
_DEV = Path("/dev")
_DEVICES = ("null", "zero", "full", "random", "urandom", "nvidia*", "dri", "kfd")
_GROUPS = ("fdaudit.attacks", "fdaudit.defenses", "fdaudit.protocols")


def readable() -> list[str]:
    """Return the files and directories to be read; of the user's directories, only those of packages."""
    found = [Path(path) for path in _SYSTEM]
    found += [Path(p) for p in (sys.prefix, sys.base_prefix, sys.exec_prefix, sysconfig.get_path("stdlib"))]
    found += [Path(p) for p in sys.path if _is_site(Path(p))]
    names = {"fdaudit"} | {e.value.partition(":")[0] for group in _GROUPS for e in entry_points(group=group)}
    for name in names:
        found += _package(name.partition(".")[0])
    for name, module in list(sys.modules.items()):
        if name.startswith("__editable__"):  # the folders of editable packages, as setuptools records them
            found += [Path(path) for path in getattr(module, "MAPPING", {}).values()]
    for path in sys.path:
        found += _importable(Path(path))
    return [_ITSELF, *sorted({str(path.resolve()) for path in found if path.exists()})]


def devices() -> list[str]:
    """Return the devices to be read and written, and what their drivers write; shared memory is not among them.

    CUDA does not start if it cannot name its threads, which it does in the process's own directory of `/proc`.
    """
    found = sorted(path for name in _DEVICES for path in _DEV.glob(name))
    own = [_ITSELF] if any(path.match("nvidia*") for path in found) else []
    return [*map(str, found), *own]


def _is_site(path: Path) -> bool:
    """Return whether a directory of the search path holds only installed packages."""
    return path.name in ("site-packages", "dist-packages", "lib-dynload") or path.suffix == ".zip"


def _importable(path: Path) -> list[Path]:
    """Return the packages and modules of a source directory, without its other files."""
    if not path.is_dir() or _is_site(path):
        return []
    return [
        p for p in path.iterdir() if p.suffix in (".py", ".so", ".egg-info") or (p / "__init__.py").is_file()
    ]


def _package(name: str) -> list[Path]:
    """Return the places of a package or a module, without importing it."""
    spec = PathFinder.find_spec(name)
    if spec is None:
        return []
    places = list(spec.submodule_search_locations or ())
    return [Path(p) for p in places or ([spec.origin] if spec.origin else [])]
