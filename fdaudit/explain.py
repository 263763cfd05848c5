"""Explains a protocol, an attack or a defence from its own declaration, without importing it."""

from __future__ import annotations

from typing import Any

from fdaudit import attacks, defenses, protocols
from fdaudit.errors import UsageError, nearest
from fdaudit.messages import KINDS
from fdaudit.types import ONLY_SINGLE_LABEL

__all__ = ["card", "text"]

_ROOMS = {"protocol": protocols.REGISTRY, "attack": attacks.REGISTRY, "defence": defenses.REGISTRY}
_TITLES = {
    "source": "Source",
    "roles": "Roles",
    "trust": "Trust assumptions",
    "oracles": "Oracles",
    "deviations": "Deviations from the paper",
    "withholdable": "Can do without",
    "tasks": "Tasks",
    "goal": "Goal",
    "needs": "Needs one of",
    "assumes": "Assumes the adversary knows",
    "oracle": "Asks an oracle for",
    "control": "Positive control",
    "profiles": "Profiles",
    "protects": "Protects",
}


def card(name: str) -> dict[str, Any]:
    """Everything a class declares of itself, as plain data.

    Raises:
        UsageError: no protocol, attack or defence has that name.
    """
    for room, registry in _ROOMS.items():
        if name in registry.names():
            assumed = {} if room == "defence" else {"tasks": ONLY_SINGLE_LABEL}
            return {"room": room, "name": name, **assumed, **registry.describe(name)}
    known = [n for registry in _ROOMS.values() for n in registry.names()]
    raise UsageError("NAME", name, "is not known", nearest(name, known))


def text(found: dict[str, Any]) -> str:
    """The card as text for a terminal."""
    lines = [f"{found['name']} ({found['room']})", "", found["doc"].strip(), ""]
    if found["room"] == "protocol":
        lines += ["Messages"] + [_message(m) for m in found.get("messages", ())] + [""]
    for key, title in _TITLES.items():
        value = found.get(key)
        if value:
            plain = [_oracle(o) for o in value] if key == "oracles" else _plain(value)
            lines += [title, *(f"  {line}" for line in plain), ""]
    return "\n".join(lines).rstrip()


def _message(message: dict[str, Any]) -> str:
    head = f"  {message['from']} -> {message['to']}: {message['kind']} ({message['what']})"
    return f"{head}\n      {KINDS[message['kind']]}"


def _oracle(oracle: dict[str, Any]) -> str:
    asked, answers = ", ".join(oracle["available_to"]), " or ".join(oracle["answers"])
    return f"{oracle['name']}: answers {answers} labels to {asked}"


def _plain(value: Any) -> list[str]:
    if isinstance(value, dict):
        return [f"{k}: {', '.join(_plain(v)) or 'as configured'}" for k, v in value.items()]
    if isinstance(value, (list, tuple)):
        return [line if isinstance(v, str) else ", ".join(_plain(v)) for v in value for line in [str(v)]]
    return [str(value)]
