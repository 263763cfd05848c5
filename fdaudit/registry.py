"""Map names to classes that load late: listing and explaining a class do not run its code."""

from __future__ import annotations

import ast
import importlib
import re
import sys
from collections.abc import Mapping
from copy import deepcopy
from functools import cache, cached_property
from importlib.machinery import ModuleSpec
from importlib.metadata import entry_points
from inspect import Parameter, Signature, signature
from pathlib import Path
from typing import Any, Generic, TypeVar

from fdaudit.errors import FdauditError, SpecError, nearest, plugin_line
from fdaudit.goals import GOALS
from fdaudit.spec.code import imported_digest
from fdaudit.spec.trust import IMPORT, refuse_untrusted
from fdaudit.types import KINDS, is_kind

__all__ = ["METHODS", "REQUIRED", "Registry", "loaded", "room_of"]

_SAFE = re.compile(r"[a-z0-9][a-z0-9-]{0,63}")

T_co = TypeVar("T_co", covariant=True)
_TEXTS, _RECORDS = "a tuple of texts", "a tuple of mappings"
REQUIRED: Mapping[str, Mapping[str, str]] = {
    "fdaudit.attacks": {
        **dict.fromkeys(("name", "goal", "source"), "text"),
        **dict.fromkeys(("needs", "assumes"), _TEXTS),
        "profiles": "a mapping",
    },
    "fdaudit.protocols": {
        **dict.fromkeys(("name", "source"), "text"),
        **dict.fromkeys(("roles", "trust", "deviations", "withholdable"), _TEXTS),
        "oracles": _RECORDS,
        **dict.fromkeys(("pools_data", "heterogeneous", "needs_public"), "true or false"),
    },
    "fdaudit.defenses": {"name": "text"},
}
"""The literal attributes that a class of each entry-point group must have, with their types in words."""
_OPTIONAL: Mapping[str, Mapping[str, str]] = {
    "fdaudit.attacks": {
        "oracle": "text or None",
        **dict.fromkeys(("reads", "tasks"), _TEXTS),
        "control": "a mapping",
        "work": "a mapping",
        "page": "text",
    },
    "fdaudit.protocols": {
        **dict.fromkeys(("roles_when", "privacy", "trains", "averages", "generator", "starts"), "a mapping"),
        "messages": _RECORDS,
        "needs_labels": "true or false",
        "page": "text",
        "tasks": _TEXTS,
    },
    "fdaudit.defenses": {
        **dict.fromkeys(("source", "protects", "at", "makes", "page"), "text"),
        "accepts": _TEXTS,
        "fixed_size": "true or false",
    },
}
METHODS: Mapping[str, Mapping[str, tuple[str, ...]]] = {
    "fdaudit.attacks": {
        "__init__": ("config",),
        "applicable": ("view", "knowledge", "task"),
        "run": ("view", "knowledge", "task", "generator"),
    },
    "fdaudit.protocols": {"__init__": ("config", "setting"), "rounds": ("start",), "released": ()},
    "fdaudit.defenses": {
        "__init__": ("config",),
        "describe": (),
        "release": ("kind", "tensors", "noise"),
    },
}
"""The methods of a class of each group, with the names of their arguments after `self`."""
_IN_TRAINING: Mapping[str, tuple[str, ...]] = {
    "__init__": ("config", "batch_size"),
    "describe": (),
    "steps": ("length",),
    "draw": ("records", "noise"),
    "clipped": ("per_sample",),
    "noised": ("total", "noise"),
    "event": ("steps",),
}
_COMPUTED = object()
"""Stands for an attribute whose value the source does not state as a literal."""


def loaded(target: str, group: str = "", name: str = "") -> Any:
    """Return the class that `"module:Class"` names; this runs its module's code.

    Raises:
        SpecError: it cannot be loaded, or breaks the contract of `group`.
    """
    module, _, attribute = target.partition(":")
    if group not in REQUIRED:
        return getattr(importlib.import_module(module), attribute)
    try:
        found = getattr(importlib.import_module(module), attribute)
        if not isinstance(found, type):
            raise TypeError(f"{attribute} is no class")
    except (Exception, SystemExit) as error:  # foreign code may raise anything
        told = f"{type(error).__name__}: {error}" if plugin_line(error) else str(error)
        raise _refusal(group, name, target, f"cannot be loaded ({told}{plugin_line(error)})") from error
    members = {m: getattr(found, m) for m in dir(found) if hasattr(found, m)}
    settings = members.get("Config")
    base: type = importlib.import_module("fdaudit.config").Config
    if settings is not None and not (isinstance(settings, type) and issubclass(settings, base)):
        raise _refusal(group, name, target, "has a Config that is no class below fdaudit.config.Config")
    _refuse_broken(group, name, target, members, True)
    return found


def _refuse_broken(group: str, name: str, target: str, members: Mapping[str, object], whole: bool) -> None:
    """Refuse a class whose members break the contract; `whole` if methods of other modules are among them."""
    required = REQUIRED[group]
    for attribute, kind in {**required, **_OPTIONAL[group]}.items():
        if attribute not in members and attribute in required:
            raise _refusal(group, name, target, f"has no {attribute}, which is {kind}")
        value = members.get(attribute)
        if value is _COMPUTED and attribute in required:
            raise _refusal(group, name, target, f"computes {attribute}, which must be a plain literal")
        if attribute in members and value is not _COMPUTED and not _is(kind, value):
            raise _refusal(group, name, target, f"has {attribute} {value!r:.60}, which is not {kind}")
    if name.startswith(IMPORT) and not _SAFE.fullmatch(str(members["name"])):
        problem = f"calls itself {members['name']!r}, which is no name of small letters, digits and hyphens"
        raise _refusal(group, name, target, problem)
    if members["name"] != name and not name.startswith(IMPORT):
        raise _refusal(group, name, target, f"calls itself {members['name']!r}")
    problem = _wrong_word(group, members)
    if problem:
        raise _refusal(group, name, target, problem)
    in_training = group == "fdaudit.defenses" and members.get("at") == "training"
    for method, arguments in (_IN_TRAINING if in_training else METHODS[group]).items():
        found = members.get(method)
        if found is None and (not whole or method == "__init__"):
            continue
        shown = f"{method}(self{''.join(f', {a}' for a in arguments)})"
        if found is None:
            raise _refusal(group, name, target, f"has no method {shown}")
        if found is not _COMPUTED and not _takes(found, arguments):
            raise _refusal(group, name, target, f"has a method {method} that is not called as {shown}")
    if whole and "Config" not in members:
        raise _refusal(group, name, target, "has no Config, the class of its settings")


def _wrong_word(group: str, members: Mapping[str, Any]) -> str:
    """Return what is wrong with words of a closed vocabulary, or nothing."""
    if group == "fdaudit.attacks":
        if members["goal"] not in GOALS:
            return f"has the unknown goal {members['goal']!r}. {nearest(members['goal'], GOALS)}"
        missing = [
            p for p in ("quick", "standard", "full") if not _is("a mapping", members["profiles"].get(p))
        ]
        return f"has no settings in profiles for {', '.join(missing)}" if missing else ""
    if group == "fdaudit.protocols":
        for attribute, keys in (("messages", {"kind", "from", "to"}), ("oracles", {"name", "available_to"})):
            for record in members.get(attribute, ()):
                if missing := sorted(keys - record.keys()):
                    return f"has an entry of {attribute} without {', '.join(missing)}"
        unknown = [m["kind"] for m in members.get("messages", ()) if not is_kind(m["kind"])]
        if unknown:
            problem = f"has messages of the unknown kind {unknown[0]!r}"
            return f"{problem}. Give it a namespace, as in acme/bank. {nearest(unknown[0], KINDS)}"
    return ""


def _is(kind: str, value: object) -> bool:
    """Return whether a value has a type that is given in words."""
    if kind in (_TEXTS, _RECORDS):
        part = str if kind == _TEXTS else Mapping
        return isinstance(value, tuple) and all(isinstance(v, part) for v in value)
    if kind == "text or None":
        return value is None or isinstance(value, str)
    return isinstance(value, {"text": str, "a mapping": Mapping, "true or false": bool}[kind])


def _takes(method: object, arguments: tuple[str, ...]) -> bool:
    """Return whether a function, or the signature read from its source, can be called with `self` and these."""
    try:
        found = method if isinstance(method, Signature) else signature(method)  # type: ignore[arg-type]
        found.bind(None, *arguments)
    except (TypeError, ValueError):
        return False
    return True


def _refusal(group: str, name: str, target: str, problem: str) -> SpecError:
    """Return an error with the class's file and line, if there is one."""
    module, _, attribute = target.partition(":")
    try:
        path, source = _source(module)
        lines = (
            n.lineno for n in ast.parse(source).body if isinstance(n, ast.ClassDef) and n.name == attribute
        )
        place = f" ({path}, line {next(lines, 1)})"
    except (FdauditError, OSError, SyntaxError, UnicodeDecodeError):
        place = ""
    problem, dot, hint = problem.partition(". ")
    room = group.rpartition(".")[2]
    end = "Correct the class." if name.startswith(IMPORT) else "Correct the class, or uninstall its package."
    remedy = f"{hint}{' ' * bool(dot)}{end}"
    field = room if name.startswith(IMPORT) else f"{room}.{name}"
    return SpecError(field, target, f"{problem}{place}", remedy)


class Registry(Generic[T_co]):
    """The public names of one extension point. `import:module:Class` names a class that no package registers.

    Guarantees:
      * a duplicate name, from fdaudit or an installed package, is an error;
      * `describe` parses the class's source for its docstring and literal attributes and imports neither it
        nor torch;
      * a class that breaks the contract of its group is an error with its file and line. `describe` finds what
        the class's own module shows, and `load` all of it.

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

    def load(self, name: str, field: str | None = None) -> type[T_co]:
        """Return the class behind a name.

        Raises:
            SpecError: the name is unknown, or untrusted code; `field` is the spec's field that gave it. Or the class
                breaks its contract.
        """
        refuse_untrusted(name, field or _field_of(self.group))
        found: type[T_co] = loaded(self.target(name, field), self.group, name)
        return found

    def target(self, name: str, field: str | None = None) -> str:
        """Return the location of the class behind a name, as `"module:Class"`; import nothing.

        Raises:
            SpecError: the name is unknown; `field` is the spec's field that gave it.
        """
        where = field or _field_of(self.group)
        if name.startswith(IMPORT):
            return _import_target(name, where)
        if name not in self._targets:
            raise SpecError(where, name, "is not known", nearest(name, self._targets))
        return self._targets[name]

    def called(self, name: str, field: str | None = None) -> str:
        """Return the public name of a class: a registered name as it is; for `import:`, what the class calls itself.

        Raises:
            SpecError: the name is unknown, or an imported class has the name of a registered one.
        """
        if not name.startswith(IMPORT):
            return name
        found = str(self.describe(name, field)["name"])
        if found in self._targets:
            problem = f"calls itself {found!r}, which is {self._targets[found]}"
            raise SpecError(field or self.group, name, problem, "Give the class another name.")
        return found

    def source(self, name: str) -> tuple[str, ...]:
        """Return the SHA-256 of the code of a class that is not fdaudit's own: its file and all that it imports."""
        return () if self.owns(name) else (imported_digest(self.target(name).partition(":")[0]),)

    def place(self, name: str) -> tuple[str, int, str]:
        """Return the file of a class, the line where it begins, and the file's text; import nothing.

        Raises:
            SpecError: the name is unknown, or the file cannot be read.
        """
        target = self.target(name, "NAME")
        module, _, attribute = target.partition(":")
        try:
            path, source = _source(module)
            body = ast.parse(source).body
        except (FdauditError, OSError, SyntaxError, UnicodeDecodeError) as error:
            raise _refusal(self.group, name, target, f"cannot be read ({error})") from error
        lines = (n.lineno for n in body if isinstance(n, ast.ClassDef) and n.name == attribute)
        return path, next(lines, 1), source

    def owns(self, name: str) -> bool:
        """Return whether a name is fdaudit's own and not an installed package's."""
        return name in self._own

    def describe(self, name: str, field: str | None = None) -> dict[str, Any]:
        """Return the class's docstring (key `doc`) and every class attribute that is a plain literal.

        Raises:
            SpecError: the name is unknown, or the class's own module shows that it breaks its contract.
        """
        target = self.target(name, field)
        module, _, attribute = target.partition(":")
        try:
            doc, members, whole = _described(module, _source(module)[1], attribute)
        except (FdauditError, OSError, SyntaxError, UnicodeDecodeError, KeyError) as error:
            raise _refusal(self.group, name, target, f"cannot be read ({error})") from error
        if self.group in REQUIRED:
            _refuse_broken(self.group, name, target, members, whole)
        literals = {n: v for n, v in members.items() if v is not _COMPUTED and not isinstance(v, Signature)}
        return deepcopy({"doc": doc, **literals})


def _field_of(group: str) -> str:
    return group.rpartition(".")[2].removesuffix("s")


def _import_target(name: str, where: str) -> str:
    """Return the `"module:Class"` that `import:module:Class` names; import nothing."""
    target = name.removeprefix(IMPORT)
    module, _, attribute = target.partition(":")
    if not (attribute.isidentifier() and all(part.isidentifier() for part in module.split("."))):
        raise SpecError(where, name, "is no import path", "Write import:package.module:Class.")
    if _found(module) is None:
        remedy = "Add its folder to PYTHONPATH, or correct the name."
        raise SpecError(where, name, f"names a module {module} that is not found", remedy)
    return target


def room_of(name: str) -> str:
    """Return the entry-point group that a class named by `import:` seems made for, by what it declares."""
    module, _, attribute = _import_target(name, "NAME").partition(":")
    try:
        members = _described(module, _source(module)[1], attribute)[1]
    except (FdauditError, OSError, SyntaxError, UnicodeDecodeError, KeyError) as error:
        raise SpecError("NAME", name, f"cannot be read ({error})", "Name a class in a Python file.") from None
    if "goal" in members:
        return "fdaudit.attacks"
    return "fdaudit.protocols" if {"messages", "rounds"} & members.keys() else "fdaudit.defenses"


@cache
def _described(module: str, source: str, name: str) -> tuple[str, dict[str, Any], bool]:
    """Return a class's docstring, its members with those it inherits, and whether these are all.

    Bases are followed into other modules by their `from … import`, without running code.
    """
    tree = ast.parse(source)
    classes = {node.name: node for node in tree.body if isinstance(node, ast.ClassDef)}
    members: dict[str, Any] = {}
    whole = True
    for base in reversed(classes[name].bases):
        inherited = None
        if isinstance(base, ast.Name):
            inherited = _inherited(module, source, base.id)
        whole = whole and inherited is not None and inherited[1]
        members |= inherited[0] if inherited else {}
    members |= _members(classes[name])
    return ast.get_docstring(classes[name]) or "", members, whole


def _inherited(module: str, source: str, name: str) -> tuple[dict[str, Any], bool] | None:
    """Return the members of a base class, here or where it is imported from; None if its source is not found."""
    tree = ast.parse(source)
    if any(isinstance(node, ast.ClassDef) and node.name == name for node in tree.body):
        return _described(module, source, name)[1:]
    for node in tree.body:
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
            return _inherited(place, _source(place)[1], original)
        except (FdauditError, OSError, SyntaxError, UnicodeDecodeError):
            return None
    return None


def _source(module: str) -> tuple[str, str]:
    """Return the file of a module, and its text."""
    spec = _found(module)
    if spec is None or spec.origin is None:
        raise FdauditError(f"module {module} is not installed")
    return spec.origin, Path(spec.origin).read_text(encoding="utf-8")


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


def _members(node: ast.ClassDef) -> dict[str, Any]:
    """Return a class's literal attributes, the signatures of its methods, and `_COMPUTED` for all others."""
    found: dict[str, Any] = {}
    for statement in node.body:
        if isinstance(statement, ast.FunctionDef):
            found[statement.name] = _COMPUTED if statement.decorator_list else _signature(statement.args)
            continue
        if isinstance(statement, ast.ClassDef):
            found[statement.name] = _COMPUTED
            continue
        if isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name):
            name, value = statement.target.id, statement.value
        elif isinstance(statement, ast.Assign) and isinstance(statement.targets[0], ast.Name):
            name, value = statement.targets[0].id, statement.value
        else:
            continue
        if value is None:  # an annotation alone
            continue
        try:
            found[name] = ast.literal_eval(value)
        except ValueError:
            found[name] = _COMPUTED
    return found


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
