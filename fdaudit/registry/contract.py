"""The contract of each entry-point group: the attributes and methods of a class, in tables, and their checks."""

from __future__ import annotations

import re
from collections.abc import Mapping
from inspect import Signature, signature
from typing import Any

from fdaudit.errors import SpecError, nearest
from fdaudit.goals import GOALS
from fdaudit.kinds import KINDS, is_kind
from fdaudit.registry.source import COMPUTED, UNREADABLE, line_of, source_of
from fdaudit.spec.trust import IMPORT

__all__ = ["METHODS", "REQUIRED", "refusal", "refuse_broken"]

_SAFE = re.compile(r"[a-z0-9][a-z0-9-]{0,63}")

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


def refuse_broken(group: str, name: str, target: str, members: Mapping[str, object], whole: bool) -> None:
    """Refuse a class whose members break the contract; `whole` if methods of other modules are among them."""
    required = REQUIRED[group]
    for attribute, kind in {**required, **_OPTIONAL[group]}.items():
        if attribute not in members and attribute in required:
            raise refusal(group, name, target, f"has no {attribute}, which is {kind}")
        value = members.get(attribute)
        if value is COMPUTED and attribute in required:
            raise refusal(group, name, target, f"computes {attribute}, which must be a plain literal")
        if attribute in members and value is not COMPUTED and not _is(kind, value):
            raise refusal(group, name, target, f"has {attribute} {value!r:.60}, which is not {kind}")
    if name.startswith(IMPORT) and not _SAFE.fullmatch(str(members["name"])):
        problem = f"calls itself {members['name']!r}, which is no name of small letters, digits and hyphens"
        raise refusal(group, name, target, problem)
    if members["name"] != name and not name.startswith(IMPORT):
        raise refusal(group, name, target, f"calls itself {members['name']!r}")
    problem = _wrong_word(group, members)
    if problem:
        raise refusal(group, name, target, problem)
    in_training = group == "fdaudit.defenses" and members.get("at") == "training"
    for method, arguments in (_IN_TRAINING if in_training else METHODS[group]).items():
        found = members.get(method)
        if found is None and (not whole or method == "__init__"):
            continue
        shown = f"{method}(self{''.join(f', {a}' for a in arguments)})"
        if found is None:
            raise refusal(group, name, target, f"has no method {shown}")
        if found is not COMPUTED and not _takes(found, arguments):
            raise refusal(group, name, target, f"has a method {method} that is not called as {shown}")
    if whole and "Config" not in members:
        raise refusal(group, name, target, "has no Config, the class of its settings")


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


def refusal(group: str, name: str, target: str, problem: str) -> SpecError:
    """Return an error with the class's file and line, if there is one."""
    module, _, attribute = target.partition(":")
    try:
        path, source = source_of(module)
        place = f" ({path}, line {line_of(source, attribute)})"
    except UNREADABLE:
        place = ""
    problem, dot, hint = problem.partition(". ")
    room = group.rpartition(".")[2]
    end = "Correct the class." if name.startswith(IMPORT) else "Correct the class, or uninstall its package."
    remedy = f"{hint}{' ' * bool(dot)}{end}"
    field = room if name.startswith(IMPORT) else f"{room}.{name}"
    return SpecError(field, target, f"{problem}{place}", remedy)
