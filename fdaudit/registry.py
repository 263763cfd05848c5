"""Map names to classes that load late: listing and explaining a class do not run its code."""

from __future__ import annotations

import ast
import importlib
import sys
from collections.abc import Mapping
from copy import deepcopy
from functools import cache, cached_property
from importlib.machinery import ModuleSpec
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

from fdaudit.errors import FdauditError, SpecError, nearest

__all__ = ["Registry", "loaded"]


def loaded(target: str) -> Any:
    """Return the class that `"module:Class"` names; this runs its module's code."""
    module, _, attribute = target.partition(":")
    return getattr(importlib.import_module(module), attribute)


class Registry:
    """The public names of one extension point.

    Guarantees:
      * a duplicate name, from fdaudit or an installed package, is an error;
      * `describe` parses the class's source for its docstring and literal attributes and imports neither it
        nor torch.

    Args:
        group: entry-point group through which installed packages add names, such as `fdaudit.protocols`.
        mapping: public name to `"module:Class"`.
    """

    def __init__(self, group: str, mapping: Mapping[str, str]) -> None:
        self.group, self._own = group, dict(mapping)

    @cached_property
    def _targets(self) -> dict[str, str]:
        targets = dict(self._own)
        for entry in entry_points(group=self.group):
            if entry.name in targets:
                raise FdauditError(
                    f"{self.group}: {entry.name!r} is both {targets[entry.name]} and {entry.value}. "
                    "Uninstall or rename one of them."
                )
            targets[entry.name] = entry.value
        return targets

    def names(self) -> list[str]:
        """Return all public names, sorted."""
        return sorted(self._targets)

    def load(self, name: str, field: str | None = None) -> Any:
        """Return the class behind a name.

        Raises:
            SpecError: the name is unknown; `field` is the spec's field that gave it.
        """
        return loaded(self.target(name, field))

    def target(self, name: str, field: str | None = None) -> str:
        """Return the location of the class behind a name, as `"module:Class"`; import nothing.

        Raises:
            SpecError: the name is unknown; `field` is the spec's field that gave it.
        """
        if name not in self._targets:
            where = field or self.group.rpartition(".")[2].removesuffix("s")
            raise SpecError(where, name, "is not known", nearest(name, self._targets))
        return self._targets[name]

    def owns(self, name: str) -> bool:
        """Return whether a name is fdaudit's own and not an installed package's."""
        return name in self._own

    def describe(self, name: str, field: str | None = None) -> dict[str, Any]:
        """Return the class's docstring (key `doc`) and every class attribute that is a plain literal."""
        module, _, attribute = self.target(name, field).partition(":")
        return deepcopy(_described(_source(module), attribute))


@cache
def _described(source: str, name: str) -> dict[str, Any]:
    """Return the docstring and literal attributes of a class, including those inherited within its module."""
    classes = {node.name: node for node in ast.parse(source).body if isinstance(node, ast.ClassDef)}
    described: dict[str, Any] = {}
    for base in classes[name].bases:
        if isinstance(base, ast.Name) and base.id in classes:
            described |= _literals(classes[base.id])
    described |= _literals(classes[name])
    return {"doc": ast.get_docstring(classes[name]) or "", **described}


def _source(module: str) -> str:
    spec = _found(module)
    if spec is None or spec.origin is None:
        raise FdauditError(f"module {module} is not installed")
    return Path(spec.origin).read_text(encoding="utf-8")


def _found(module: str) -> ModuleSpec | None:
    """Return the location of a module without importing its parent packages, which may load torch or foreign code."""
    parts = module.split(".")
    loaded = next((n for n in range(len(parts) - 1, 0, -1) if ".".join(parts[:n]) in sys.modules), 0)
    path = getattr(sys.modules.get(".".join(parts[:loaded])), "__path__", None)
    spec = None
    for n in range(loaded + 1, len(parts) + 1):
        if path is None and n > 1:
            return None
        finders = (f for f in sys.meta_path if hasattr(f, "find_spec"))
        found = (f.find_spec(".".join(parts[:n]), path, None) for f in finders)
        spec = next((s for s in found if s is not None), None)
        path = spec.submodule_search_locations if spec else None
    return spec


def _literals(node: ast.ClassDef) -> dict[str, Any]:
    found = {}
    for statement in node.body:
        if isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name):
            name, value = statement.target.id, statement.value
        elif isinstance(statement, ast.Assign) and isinstance(statement.targets[0], ast.Name):
            name, value = statement.targets[0].id, statement.value
        else:
            continue
        try:
            found[name] = ast.literal_eval(value) if value is not None else None
        except ValueError:
            continue
    return found
