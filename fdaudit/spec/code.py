"""Digests of the code that decides what a run computes: fdaudit itself, and imported modules with all that they import.

Runs that share a secret may have one draw of noise only if they are one run. Otherwise the difference of two releases
shows the difference of what the noise should hide. So the key of a run's noise covers its code.

Guarantees:
  * an edit of a module, or of any file that it imports by name, directly or not, changes its digest;
  * so does another version of an installed package among these imports.

Files that a module reads, and modules that it imports by a computed name, are not found.
"""

from __future__ import annotations

import ast
import hashlib
import importlib.util
import sys
from collections.abc import Iterator
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path

from fdaudit.storage.digests import canonical

__all__ = ["imported_digest", "own_digest"]

_OURS = ("fdaudit", "fdaudit.defenses", "fdaudit.deviations", "fdaudit.protocols")
_LIBRARIES = ("fdaudit", "numpy", "torch")
_INSTALLED = {"site-packages", "dist-packages"}


@cache
def own_digest() -> str:
    """Return the SHA-256 of fdaudit's own source files and of the versions of the libraries that compute with it."""
    versions = {name: version(name) for name in _LIBRARIES}
    for package in _OURS:
        for folder in ((spec := find_spec(package)) and spec.submodule_search_locations) or ():
            for path in Path(folder).rglob("*.py"):
                versions[f"{package}/{path.relative_to(folder).as_posix()}"] = _digest(path)
    return hashlib.sha256(canonical(versions)).hexdigest()


def imported_digest(module: str) -> str:
    """Return the SHA-256 of a module's file and of every file that it imports by name; "" without a file.

    Installed packages count by their versions.
    """
    digests, pending = dict[str, str](), [module]
    while pending:
        name = pending.pop()
        top = name.partition(".")[0]
        if name in digests or top in sys.stdlib_module_names or top == "fdaudit":
            continue
        path = _file(name)
        if path is None:
            digests[name] = ""
        elif _INSTALLED.isdisjoint(path.parts) or name == module:
            digests[name] = _digest(path)
            package = name if path.name == "__init__.py" else name.rpartition(".")[0]
            pending += _imports(path, package)
        else:
            try:
                digests[name] = version(top)
            except PackageNotFoundError:  # no distribution has the name: its module's digest stands for it
                top_file = _file(top)
                digests[name] = "" if top_file is None else _digest(top_file)
        pending += [parent] if (parent := name.rpartition(".")[0]) else []
    if not digests[module]:
        return ""
    usable = dict[str, str]()
    for name, digest in digests.items():
        if digest:
            usable[name] = digest
    return hashlib.sha256(canonical(usable)).hexdigest()


def _digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def _file(module: str) -> Path | None:
    """Return the source file of a module, or None if it has none or cannot be found."""
    loaded = sys.modules.get(module)
    origin = getattr(loaded, "__file__", None)
    if loaded is None:
        try:
            spec = find_spec(module)
        except (ImportError, AttributeError, ValueError):  # of a name that is no module
            return None
        origin = None if spec is None else spec.origin
    path = None if origin is None else Path(origin)
    return path if path is not None and path.is_file() else None


def _imports(path: Path, package: str) -> Iterator[str]:
    """Yield the names of the modules that a file may import, anywhere in it; of `from a import b` both a and a.b."""
    try:
        tree = ast.parse(path.read_bytes())
    except (SyntaxError, ValueError):  # no Python source: a compiled extension
        return
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield alias.name
        elif isinstance(node, ast.ImportFrom):
            try:
                base = importlib.util.resolve_name("." * node.level + (node.module or ""), package or None)
            except ImportError:
                continue
            yield base
            for alias in node.names:
                if alias.name != "*":
                    yield f"{base}.{alias.name}"
