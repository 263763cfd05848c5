"""Read what a class declares from its source, without importing it or running its code."""

from __future__ import annotations

import ast
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.machinery import ModuleSpec
from inspect import Parameter, Signature
from pathlib import Path
from typing import Any

from fdaudit.errors import FdauditError

__all__ = [
    "COMPUTED",
    "UNREADABLE",
    "Described",
    "StatedCard",
    "described",
    "found_module",
    "line_of",
    "source_of",
]

COMPUTED = object()
"""Stands for a value that the source does not state as a literal."""

_MOST_NAMES = 100
"""Most names that are followed to spell out one field."""

UNREADABLE = (FdauditError, OSError, SyntaxError, UnicodeDecodeError)
"""The errors of a module whose source cannot be found, read or parsed."""


@dataclass(frozen=True)
class StatedCard:
    """The call `card = AttackCard(name="…", …)` in a class.

    Attributes:
        called: name of the card's class; empty if `card` is anything but a call with keywords.
        fields: by keyword, the value, or `COMPUTED` if it is no literal.
    """

    called: str
    fields: Mapping[str, Any]


@dataclass(frozen=True, eq=False)
class Described:
    """The docstring, card and members of a class, read from its source.

    Attributes:
        doc: its docstring.
        card: its own card; None if it states none.
        members: by name, the signature of each method, its own or inherited, and `COMPUTED` for every other member.
        whole: whether the sources of all base classes were found, so that there are no other members.
    """

    doc: str
    card: StatedCard | None
    members: Mapping[str, object]
    whole: bool


@cache
def described(module: str, source: str, name: str) -> Described:
    """Return what a class states.

    Bases are followed into other modules by their `from … import`, without running code.
    """
    classes: dict[str, ast.ClassDef] = {}
    for node in _parsed(source).body:
        if isinstance(node, ast.ClassDef):
            classes[node.name] = node
    members: dict[str, object] = {}
    whole = True
    for base in reversed(classes[name].bases):
        inherited = _inherited(module, source, base.id) if isinstance(base, ast.Name) else None
        if inherited is None:
            whole = False
            continue
        whole = whole and inherited.whole
        members |= inherited.members
    card = None
    for statement in classes[name].body:
        if isinstance(statement, ast.FunctionDef):
            computed = bool(statement.decorator_list)
            members[statement.name] = COMPUTED if computed else _signature(statement.args)
        elif isinstance(statement, ast.ClassDef):
            members[statement.name] = COMPUTED
        elif (assigned := _assigned(statement)) is not None:
            members[assigned[0]] = COMPUTED
            if assigned[0] == "card":
                card = _stated(module, source, assigned[1])
    return Described(ast.get_docstring(classes[name]) or "", card, members, whole)


def _stated(module: str, source: str, node: ast.expr) -> StatedCard:
    """Return the card that an expression states."""
    if not isinstance(node, ast.Call) or node.args or any(k.arg is None for k in node.keywords):
        return StatedCard("", {})
    called = ""
    if isinstance(node.func, ast.Name):
        called = node.func.id
    if isinstance(node.func, ast.Attribute):
        called = node.func.attr
    fields: dict[str, Any] = {}
    for keyword in node.keywords:
        if keyword.arg is not None:
            fields[keyword.arg] = _literal(module, source, keyword.value)
    return StatedCard(called, fields)


def _inherited(module: str, source: str, name: str) -> Described | None:
    """Return a base class, here or where it is imported from; None if its source is not found."""
    if any(isinstance(node, ast.ClassDef) and node.name == name for node in _parsed(source).body):
        return described(module, source, name)
    origin = _origin(module, source, name)
    return None if origin is None else _inherited(*origin)


def _origin(module: str, source: str, name: str) -> tuple[str, str, str] | None:
    """Return the module that a name is imported from, that module's source, and the name there.

    None if no `from … import` names it, or the source is not found. The standard library is not searched.
    """
    for node in _parsed(source).body:
        if not isinstance(node, ast.ImportFrom):
            continue
        original = None
        for alias in node.names:
            if name == (alias.asname or alias.name):
                original = alias.name
                break
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
    for node in _parsed(source).body:
        if isinstance(node, ast.ClassDef) and node.name == name:
            return node.lineno
    return 1


def source_of(module: str) -> tuple[str, str]:
    """Return the file of a module, and its text."""
    spec = found_module(module)
    if spec is None or spec.origin is None:
        raise FdauditError(f"module {module} is not installed")
    return spec.origin, Path(spec.origin).read_text(encoding="utf-8")


def found_module(module: str) -> ModuleSpec | None:
    """Return the location of a module without importing its parent packages, which may load torch or foreign code."""
    parts = module.split(".")
    loaded = len(parts) - 1
    while loaded and ".".join(parts[:loaded]) not in sys.modules:
        loaded -= 1
    path = getattr(sys.modules.get(".".join(parts[:loaded])), "__path__", None)
    spec = None
    for n in range(loaded + 1, len(parts) + 1):
        if path is None and n > 1:
            return None
        spec = None
        for finder in sys.meta_path:
            if hasattr(finder, "find_spec"):
                spec = finder.find_spec(".".join(parts[:n]), path, None)
            if spec is not None:
                break
        path = spec.submodule_search_locations if spec else None
    return spec


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
            here = self._module, self._source
            place: tuple[str, str, str] | None = (*here, node.id)
            while place is not None and self._left:
                self._left -= 1
                self._module, self._source, original = place
                literals = dict(filter(None, map(_assigned, _parsed(self._source).body)))
                if original in literals:
                    value = self.value(literals[original])
                    self._module, self._source = here
                    return value
                place = _origin(self._module, self._source, original)
            raise ValueError(f"no literal is called {node.id}")
        if isinstance(node, ast.Tuple):
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
        if isinstance(node, ast.Dict) and None not in node.keys:
            keys = []
            for key in node.keys:
                if key is not None:
                    keys.append(ast.literal_eval(key))
            return dict(zip(keys, map(self.value, node.values), strict=True))
        return ast.literal_eval(node)


def _signature(arguments: ast.arguments) -> Signature:
    """Return a function's signature with its arguments' kinds, and whether they have defaults."""
    positional = [a.arg for a in (*arguments.posonlyargs, *arguments.args)]
    required = len(positional) - len(arguments.defaults)
    parameters = []
    for name in positional[:required]:
        parameters.append(Parameter(name, Parameter.POSITIONAL_ONLY))
    for name in positional[required:]:
        parameters.append(Parameter(name, Parameter.POSITIONAL_ONLY, default=None))
    if arguments.vararg:
        parameters.append(Parameter(arguments.vararg.arg, Parameter.VAR_POSITIONAL))
    for a, default in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True):
        parameters.append(
            Parameter(a.arg, Parameter.KEYWORD_ONLY, default=None if default else Parameter.empty)
        )
    return Signature(parameters)
