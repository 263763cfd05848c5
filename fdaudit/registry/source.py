"""Read what a class declares from its source, without importing it or running its code."""

from __future__ import annotations

import ast
import sys
from functools import cache
from importlib.machinery import ModuleSpec
from inspect import Parameter, Signature
from pathlib import Path
from typing import Any

from fdaudit.errors import FdauditError

__all__ = ["COMPUTED", "UNREADABLE", "described", "found_module", "line_of", "source_of"]

COMPUTED = object()
"""Stands for an attribute whose value the source does not state as a literal."""

_MOST_NAMES = 100
"""Most names that are followed to spell out one attribute."""

UNREADABLE = (FdauditError, OSError, SyntaxError, UnicodeDecodeError)
"""The errors of a module whose source cannot be found, read or parsed."""


@cache
def described(module: str, source: str, name: str) -> tuple[str, dict[str, Any], bool]:
    """Return a class's docstring, its members with those it inherits, and whether these are all.

    Bases are followed into other modules by their `from … import`, without running code.
    """
    tree = _parsed(source)
    classes = {node.name: node for node in tree.body if isinstance(node, ast.ClassDef)}
    members: dict[str, Any] = {}
    whole = True
    for base in reversed(classes[name].bases):
        inherited = None
        if isinstance(base, ast.Name):
            inherited = _inherited(module, source, base.id)
        whole = whole and inherited is not None and inherited[1]
        members |= inherited[0] if inherited else {}
    members |= _members(module, source, classes[name])
    return ast.get_docstring(classes[name]) or "", members, whole


def _inherited(module: str, source: str, name: str) -> tuple[dict[str, Any], bool] | None:
    """Return the members of a base class, here or where it is imported from; None if its source is not found."""
    if any(isinstance(node, ast.ClassDef) and node.name == name for node in _parsed(source).body):
        return described(module, source, name)[1:]
    origin = _origin(module, source, name)
    return None if origin is None else _inherited(*origin)


def _origin(module: str, source: str, name: str) -> tuple[str, str, str] | None:
    """Return the module that a name is imported from, that module's source, and the name there.

    None if no `from … import` names it, or the source is not found. The standard library is not searched.
    """
    for node in _parsed(source).body:
        if not isinstance(node, ast.ImportFrom):
            continue
        original = next((a.name for a in node.names if name == (a.asname or a.name)), None)
        if original is None:
            continue
        package = module.split(".")[: -node.level] if node.level else []
        place = ".".join([*package, *(node.module.split(".") if node.module else [])])
        if place.partition(".")[0] in sys.stdlib_module_names:
            return None
        try:
            return place, source_of(place)[1], original
        except UNREADABLE:
            return None
    return None


@cache
def _parsed(source: str) -> ast.Module:
    return ast.parse(source)


def line_of(source: str, name: str) -> int:
    """Return the line where a class begins; 1 if the module's source does not define it."""
    lines = (n.lineno for n in _parsed(source).body if isinstance(n, ast.ClassDef) and n.name == name)
    return next(lines, 1)


def source_of(module: str) -> tuple[str, str]:
    """Return the file of a module, and its text."""
    spec = found_module(module)
    if spec is None or spec.origin is None:
        raise FdauditError(f"module {module} is not installed")
    return spec.origin, Path(spec.origin).read_text(encoding="utf-8")


def found_module(module: str) -> ModuleSpec | None:
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


def _members(module: str, source: str, node: ast.ClassDef) -> dict[str, Any]:
    """Return a class's literal attributes, the signatures of its methods, and `COMPUTED` for all others."""
    found: dict[str, Any] = {}
    for statement in node.body:
        if isinstance(statement, ast.FunctionDef):
            found[statement.name] = COMPUTED if statement.decorator_list else _signature(statement.args)
            continue
        if isinstance(statement, ast.ClassDef):
            found[statement.name] = COMPUTED
            continue
        assigned = _assigned(statement)
        if assigned is not None:
            name, value = assigned
            found[name] = _literal(module, source, value)
    return found


def _assigned(statement: ast.stmt) -> tuple[str, ast.expr] | None:
    """Return the name and the expression of an assignment; None for other statements, and annotations alone."""
    target: ast.expr
    value: ast.expr | None
    if isinstance(statement, ast.AnnAssign):
        target, value = statement.target, statement.value
    elif isinstance(statement, ast.Assign):
        target, value = statement.targets[0], statement.value
    else:
        return None
    return (target.id, value) if isinstance(target, ast.Name) and value is not None else None


def _literal(module: str, source: str, node: ast.expr) -> Any:
    """Return the value of a literal, in which names may stand for literals of a module; `COMPUTED` for all others."""
    try:
        return _Literals(module, source).value(node)
    except (TypeError, ValueError):
        return COMPUTED


class _Literals:
    """Evaluates literals of a module with the names for other literals in them, also in `(*NAME, …)`.

    A name is assigned at the top of the module, or imported by `from … import` from where it is. At most `_MOST_NAMES`
    names are followed, so that names of names end.
    """

    def __init__(self, module: str, source: str) -> None:
        self._module, self._source = module, source
        self._left = _MOST_NAMES

    def value(self, node: ast.expr) -> Any:
        """Return the value of an expression.

        Raises:
            ValueError: it is not a literal.
        """
        if isinstance(node, ast.Name):
            return self._named(node.id)
        if isinstance(node, ast.Tuple):
            return self._tuple(node)
        if isinstance(node, ast.Dict) and None not in node.keys:
            keys = [ast.literal_eval(key) for key in node.keys if key is not None]
            return dict(zip(keys, map(self.value, node.values), strict=True))
        return ast.literal_eval(node)

    def _tuple(self, node: ast.Tuple) -> tuple[Any, ...]:
        values: list[Any] = []
        for element in node.elts:
            if not isinstance(element, ast.Starred):
                values.append(self.value(element))
                continue
            inner = self.value(element.value)
            if not isinstance(inner, tuple):
                raise ValueError("only a tuple is unpacked")
            values += inner
        return tuple(values)

    def _named(self, name: str) -> Any:
        here = self._module, self._source
        place: tuple[str, str, str] | None = (*here, name)
        while place is not None and self._left:
            self._left -= 1
            self._module, self._source, original = place
            given = dict(filter(None, map(_assigned, _parsed(self._source).body)))
            if original in given:
                value = self.value(given[original])
                self._module, self._source = here
                return value
            place = _origin(self._module, self._source, original)
        raise ValueError(f"no literal is called {name}")


def _signature(arguments: ast.arguments) -> Signature:
    """Return a function's signature with its arguments' kinds, and whether they have defaults."""
    positional = [a.arg for a in (*arguments.posonlyargs, *arguments.args)]
    required = len(positional) - len(arguments.defaults)
    made = [
        Parameter(a, Parameter.POSITIONAL_ONLY, default=Parameter.empty if n < required else None)
        for n, a in enumerate(positional)
    ]
    if arguments.vararg:
        made.append(Parameter(arguments.vararg.arg, Parameter.VAR_POSITIONAL))
    for a, default in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True):
        made.append(Parameter(a.arg, Parameter.KEYWORD_ONLY, default=None if default else Parameter.empty))
    return Signature(made)
