"""Explanations of protocols, attacks and defences from their own declarations, without importing them.

The terminal and the pages below `docs/protocols/` print the same sections. Who sees what is derived from the declared
messages, never written by hand.
"""

from __future__ import annotations

import ast
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fdaudit import attacks, defenses, protocols
from fdaudit.errors import UsageError, nearest
from fdaudit.kinds import KINDS, OWN_KIND
from fdaudit.registry import Registry, room_of
from fdaudit.spec.trust import IMPORT
from fdaudit.types import ONLY_SINGLE_LABEL

__all__ = ["Section", "Sight", "card", "sections", "sights", "text", "when"]

_ROOMS = {"protocol": protocols.REGISTRY, "attack": attacks.REGISTRY, "defence": defenses.REGISTRY}
_TASKS = {
    "single-label": "one label",
    "multi-label": "several labels",
    "segmentation": "masks",
    "text": "texts",
}
_TITLES = {
    "source": "Source",
    "goal": "Goal",
    "needs": "Needs one of",
    "reads": "Also reads",
    "assumes": "Assumes the adversary knows",
    "oracle": "Asks an oracle for",
    "control": "Positive control",
    "profiles": "Profiles",
    "protects": "Protects",
    "tasks": "Tasks",
}


@dataclass(frozen=True, kw_only=True)
class Sight:
    """The messages of a protocol that an adversary in one position sees.

    Attributes:
        position: `server`, `each client`, `aggregator`, `eavesdropper` or `world`.
        receives: kinds that it receives, in the order of the declaration.
        sends: kinds that it sends.
        asks: oracles that it may ask.
    """

    position: str
    receives: tuple[str, ...] = ()
    sends: tuple[str, ...] = ()
    asks: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Section:
    """A titled list of sentences or declarations."""

    title: str
    items: tuple[str, ...]


def card(name: str) -> dict[str, Any]:
    """Return everything that a class declares of itself, as plain data; a protocol's also with `sees`, derived from it.

    Raises:
        UsageError: no protocol, attack or defence has that name.
    """
    group = room_of(name) if name.startswith(IMPORT) else ""
    for room, registry in _ROOMS.items():
        if name in registry.names() or registry.group == group:
            assumed = {} if room == "defence" else {"tasks": ONLY_SINGLE_LABEL}
            found = {"room": room, "name": name, **assumed, **registry.describe(name, "NAME")}
            if not registry.owns(name):
                found |= _told_by(registry, name)
            if room == "protocol" and "messages" in found:
                found["sees"] = {s.position: _plain_sight(s) for s in sights(found)}
            return found
    known = [n for registry in _ROOMS.values() for n in registry.names()]
    raise UsageError("NAME", name, "is not known", nearest(name, known))


def _told_by(registry: Registry[Any], name: str) -> dict[str, Any]:
    """Return where a class from outside is, and its file's settings: there is no page about it in `docs`."""
    path, line, source = registry.place(name)
    return {"file": f"{path}, line {line}", "settings": _settings(source)}


def _settings(source: str) -> dict[str, str]:
    """Return the settings of the classes `…Config` of a file: by name, the value and the docstring below it."""
    found = {}
    for node in ast.parse(source).body:
        if not isinstance(node, ast.ClassDef) or not node.name.endswith("Config"):
            continue
        for field, below in zip(node.body, [*node.body[1:], None], strict=True):
            if not isinstance(field, ast.AnnAssign) or not isinstance(field.target, ast.Name):
                continue
            told = isinstance(below, ast.Expr) and isinstance(below.value, ast.Constant)
            doc = str(below.value.value) if told else ""  # type: ignore[union-attr]
            value = "" if field.value is None else f" = {ast.unparse(field.value)}"
            found[field.target.id] = (
                f"{ast.unparse(field.annotation)}{value}: {' '.join(doc.split())}".rstrip(": ")
            )
    return found


def _plain_sight(sight: Sight) -> dict[str, list[str]]:
    return {"receives": list(sight.receives), "sends": list(sight.sends), "asks": list(sight.asks)}


def sights(found: Mapping[str, Any]) -> tuple[Sight, ...]:
    """Return what each position sees, derived from a protocol's declared messages and oracles.

    Messages that depend on a setting count as sent. An eavesdropper hears every message that leaves its sender, unless
    the transport is encrypted. A client sees what it sent and received itself, not what other clients did. Nothing is
    returned for a class without declared messages: what it sends is not known before it runs.
    """
    if "messages" not in found:
        return ()
    sent = [(m["kind"], m["from"], _receivers(m)) for m in found["messages"]]
    seen = [
        Sight(
            position="each client" if role == "client" else role,
            receives=_once(kind for kind, _, to in sent if role in to),
            sends=_once(kind for kind, sender, _ in sent if sender == role),
            asks=_once(o["name"] for o in found["oracles"] if role in o["available_to"]),
        )
        for role in (*found["roles"], "eavesdropper", "world")
    ]
    return tuple(
        Sight(position=s.position, receives=_once(kind for kind, _, _ in sent), asks=s.asks)
        if s.position == "eavesdropper"
        else s
        for s in seen
    )


def _receivers(message: Mapping[str, Any]) -> tuple[str, ...]:
    return tuple(r.strip() for r in message["to"].split(","))


def _once(kinds: Iterator[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(kinds))


def sections(found: Mapping[str, Any], mark: str = "") -> tuple[Section, ...]:
    """Return a protocol's declaration as titled lists; names of kinds and settings are enclosed in `mark`s."""
    return tuple(
        section
        for section in (
            Section(title="Roles", items=tuple(_role(r, found, mark) for r in found["roles"])),
            Section(title="Needs", items=tuple(_needs(found))),
            Section(title="Who sees what", items=tuple(_sight(s, mark) for s in sights(found))),
            Section(title="Trust assumptions", items=tuple(found["trust"])),
            Section(title="Oracles", items=tuple(_oracle(o, mark) for o in found["oracles"])),
            Section(title="Initial weights", items=tuple(_starts(found.get("starts")))),
            Section(title="Training defences act on", items=tuple(found.get("trains", {}))),
            Section(title="Can do without", items=tuple(f"{mark}{k}{mark}" for k in found["withholdable"])),
            Section(title="Deviations from the paper", items=tuple(found["deviations"])),
            Section(title="Privacy", items=tuple(_privacy(found.get("privacy"), mark))),
        )
        if section.items
    )


def _privacy(privacy: Mapping[str, Any] | None, mark: str) -> Iterator[str]:
    """Yield the paper's claim, the ledger's finding, and the effect of `preset: private`; nothing if undeclared."""
    if privacy is None:
        return
    yield f"The paper claims: {privacy['claims']}"
    for view, kind in privacy["finds"].items():
        yield f"The ledger finds, as published: {view} ∞, by {mark}{kind}{mark} first."
    if not privacy["finds"]:
        yield "The ledger finds, as published: nothing reaches another party."
    if "private" not in privacy:
        yield f"There is no preset {mark}private{mark}."
        return
    yield f"Preset {mark}private{mark}: {'; '.join(_combination(privacy['private'], mark)) or 'nothing is needed'}."


def _combination(private: Mapping[str, Any], mark: str) -> Iterator[str]:
    if private["training"]:
        yield f"{mark}dp-sgd{mark} on the clients' {' and '.join(private['training'])}"
    if noise := private.get("noise"):
        yield f"{mark}{noise['name']}{mark} on {mark}{noise['kind']}{mark} of each {noise['sender']}"
    for name, value in private["params"].items():
        yield f"{mark}{name}: {json.dumps(value)}{mark}"
    if private["withhold"]:
        yield f"withheld: {', '.join(f'{mark}{kind}{mark}' for kind in private['withhold'])}"


def _starts(starts: Mapping[str, str] | None) -> Iterator[str]:
    """Yield whose initial weights clients train from, and its source; nothing if undeclared."""
    if starts is None:
        return
    if starts["weights"] == "broadcast":
        yield f"Broadcast by the server, so every party knows them. {starts['source']}"
    else:
        yield f"Each client's own, which no other party knows. {starts['source']}"


def _role(role: str, found: Mapping[str, Any], mark: str) -> str:
    only = when({"when": found.get("roles_when", {}).get(role, {})}, mark)
    return f"{role}, only with {only}" if only else role


def _needs(found: Mapping[str, Any]) -> Iterator[str]:
    if found["pools_data"]:
        yield "One party that holds everybody's records."
    elif found["heterogeneous"]:
        yield "A network for each client; they may differ."
    else:
        yield "One network for all clients and the server."
    yield f"Records with {' or '.join(_TASKS.get(t, t) for t in found.get('tasks', ONLY_SINGLE_LABEL))}."
    if found["needs_public"]:
        labels = "labelled" if found.get("needs_labels") else "unlabelled"
        yield f"Public, {labels} samples that every party holds."
    else:
        yield "No public samples."


def _sight(sight: Sight, mark: str) -> str:
    def listed(kinds: Sequence[str]) -> str:
        return ", ".join(f"{mark}{k}{mark}" for k in kinds)

    parts = []
    if sight.position == "eavesdropper":
        parts.append(
            f"overhears {listed(sight.receives)}; sizes and order only where the transport is encrypted"
        )
    elif sight.receives:
        parts.append(f"receives {listed(sight.receives)}")
    if sight.sends:
        whose = "its own " if sight.position == "each client" else ""
        parts.append(f"sends {whose}{listed(sight.sends)}")
    if sight.asks:
        parts.append(f"may ask {listed(sight.asks)}")
    if sight.position == "eavesdropper" and not sight.receives:
        parts = ["nothing: no message is sent"]
    return f"{sight.position}: {'; '.join(parts) or 'nothing'}"


def _oracle(oracle: Mapping[str, Any], mark: str) -> str:
    asked, answers = ", ".join(oracle["available_to"]), " or ".join(oracle["answers"])
    return f"{mark}{oracle['name']}{mark}: answers {answers} labels to {asked}"


def text(found: dict[str, Any]) -> str:
    """Return the card as text for a terminal."""
    lines = [f"{found['name']} ({found['room']})", "", found["doc"].strip(), ""]
    if found["room"] == "protocol":
        undeclared = [
            "  not declared: a rehearsal before each run finds them, and its report says who saw what"
        ]
        declared = [*map(_message, found["messages"] or [{}])] if "messages" in found else undeclared
        lines += ["Messages", *declared, ""]
        for section in sections(found):
            lines += [section.title, *(f"  {item}" for item in section.items), ""]
        if "file" not in found:
            # A protocol's own defences depend on its settings, which only its code knows; the docs page has run it.
            lines += ["Settings, own defences", f"  docs/protocols/{found['name']}.md", ""]
    if "file" in found:
        listed = [f"  {name}: {told}" for name, told in found["settings"].items()]
        lines += [*(["Settings", *listed, ""] if listed else []), "File", f"  {found['file']}", ""]
    if found.get("page"):
        lines += ["Page", f"  {found['page']}", ""]
    for key, title in _TITLES.items():
        if found.get(key) and (found["room"], key) != ("protocol", "tasks"):
            lines += [title, *(f"  {line}" for line in _plain(found[key])), ""]
    return "\n".join(lines).rstrip()


def _message(message: Mapping[str, Any]) -> str:
    if not message:
        return "  none"
    kind = KINDS.get(message["kind"])
    head = f"  {message['from']} -> {message['to']}: {message['kind']} ({message['what']})"
    only = f"\n      only with {when(message)}" if when(message) else ""
    return f"{head}\n      {kind.text if kind else OWN_KIND}{only}"


def when(message: Mapping[str, Any], mark: str = "") -> str:
    """Return the settings and the defence under which a declared message is sent; empty if it always is."""
    settings = message.get("when", {})
    conditions = [f"{mark}{name}: {json.dumps(value)}{mark}" for name, value in settings.items()]
    if "made_of" in message:
        conditions.append(f"a defence that makes it of {mark}{message['made_of']}{mark}")
    return ", ".join(conditions)


def _plain(value: object) -> list[str]:
    if isinstance(value, dict):
        return [f"{k}: {', '.join(_plain(v)) or 'as configured'}" for k, v in value.items()]
    if isinstance(value, (list, tuple)):
        return [line if isinstance(v, str) else ", ".join(_plain(v)) for v in value for line in [str(v)]]
    return [str(value)]
