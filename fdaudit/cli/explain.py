"""Explanations of protocols, attacks, defences and deviations from their own declarations, without importing them.

The terminal and the pages below `docs/protocols/` print the same sections. Who sees what is derived from the declared
messages, never written by hand.
"""

from __future__ import annotations

import ast
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from fdaudit import attacks, defenses, deviations, protocols
from fdaudit.errors import UsageError, nearest
from fdaudit.kinds import KINDS, OWN_KIND
from fdaudit.registry import ExtensionCard, ProtocolCard, Registry, room_of
from fdaudit.spec.trust import IMPORT
from fdaudit.tasks import TASKS

__all__ = ["Explanation", "Section", "Sight", "explained", "sections", "sights", "text", "when"]

_ROOMS: Mapping[str, Registry[Any, ExtensionCard]] = {
    "protocol": protocols.REGISTRY,
    "attack": attacks.REGISTRY,
    "defence": defenses.REGISTRY,
    "deviation": deviations.REGISTRY,
}
_FAILS = (
    "What a client is sent can make its training fail, and noise on its answer does not hide that none comes"
)
"""Why noise on a message is no answer to a party that departs from the protocol."""
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
    "roles": "Who can",
    "changes": "Changes messages of kind",
    "read_by": "Attacks that read more by it",
    "noticed": "What a receiver could notice",
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


@dataclass(frozen=True, kw_only=True)
class Explanation:
    """Everything that a class states of itself.

    Attributes:
        room: `protocol`, `attack`, `defence` or `deviation`.
        card: its card.
        doc: its docstring.
        file: for a class from outside, its file and line: there is no page about it in `docs`.
        settings: for a class from outside, the settings in its file: by name, the value and the docstring; else None.
    """

    room: str
    card: ExtensionCard
    doc: str
    file: str = ""
    settings: Mapping[str, str] | None = None

    def plain(self) -> dict[str, Any]:
        """Return the explanation as JSON values; a protocol's also with `sees`, derived from its messages."""
        plain = {"room": self.room, "doc": self.doc, **asdict(self.card)}
        if self.settings is not None:
            plain |= {"file": self.file, "settings": self.settings}
        if isinstance(self.card, ProtocolCard) and self.card.messages is not None:
            plain["sees"] = sees = {}
            for sight in sights(self.card):
                receives, sends, asks = list(sight.receives), list(sight.sends), list(sight.asks)
                sees[sight.position] = {"receives": receives, "sends": sends, "asks": asks}
        return plain


def explained(name: str) -> Explanation:
    """Return the explanation of a protocol, an attack, a defence or a deviation.

    Raises:
        UsageError: nothing has that name.
    """
    group = room_of(name) if name.startswith(IMPORT) else ""
    for room, registry in _ROOMS.items():
        if name in registry.names() or registry.group == group:
            explanation = Explanation(
                room=room, card=registry.describe(name, "NAME"), doc=registry.doc(name, "NAME")
            )
            if registry.owns(name):
                return explanation
            path, line, source = registry.place(name)
            return replace(explanation, file=f"{path}, line {line}", settings=_settings(source))
    names = [n for registry in _ROOMS.values() for n in registry.names()]
    raise UsageError("NAME", name, "is not known", nearest(name, names))


def _settings(source: str) -> dict[str, str]:
    """Return the settings of the classes `…Config` of a file: by name, the value and the docstring below it."""
    settings = {}
    for node in ast.parse(source).body:
        if not isinstance(node, ast.ClassDef) or not node.name.endswith("Config"):
            continue
        for setting, below in zip(node.body, [*node.body[1:], None], strict=True):
            if not isinstance(setting, ast.AnnAssign) or not isinstance(setting.target, ast.Name):
                continue
            documented = isinstance(below, ast.Expr) and isinstance(below.value, ast.Constant)
            doc = str(below.value.value) if documented else ""  # type: ignore[union-attr]
            words = ast.unparse(setting.annotation)
            if setting.value is not None:
                words += f" = {ast.unparse(setting.value)}"
            settings[setting.target.id] = f"{words}: {' '.join(doc.split())}".rstrip(": ")
    return settings


def sights(card: ProtocolCard) -> tuple[Sight, ...]:
    """Return what each position sees, derived from a protocol's declared messages and oracles.

    Messages that depend on a setting count as sent. An eavesdropper hears every message that leaves its sender, unless
    the transport is encrypted. A client sees what it sent and received itself, not what other clients did. Nothing is
    returned for a class without declared messages: what it sends is not known before it runs.
    """
    if card.messages is None:
        return ()
    messages = []
    for message in card.messages:
        receivers = {name.strip() for name in message["to"].split(",")}
        messages.append((message["kind"], message["from"], receivers))
    rows = []
    for role in (*card.roles, "eavesdropper", "world"):
        # Each kind once, in the order of the declaration.
        receives, sends, asks = dict[str, None](), dict[str, None](), dict[str, None]()
        for kind, sender, receivers in messages:
            if role == "eavesdropper" or role in receivers:
                receives[kind] = None
            if role != "eavesdropper" and role == sender:
                sends[kind] = None
        for oracle in card.oracles:
            if role in oracle["available_to"]:
                asks[oracle["name"]] = None
        position = "each client" if role == "client" else role
        rows.append(Sight(position=position, receives=tuple(receives), sends=tuple(sends), asks=tuple(asks)))
    return tuple(rows)


def sections(card: ProtocolCard, mark: str = "") -> tuple[Section, ...]:
    """Return a protocol's declaration as titled lists; names of kinds and settings are enclosed in `mark`s."""
    roles = list[str]()
    for role in card.roles:
        only = when({"when": card.roles_when.get(role, {})}, mark)
        roles.append(f"{role}, only with {only}" if only else role)
    oracles = list[str]()
    for oracle in card.oracles:
        askers, answers = ", ".join(oracle["available_to"]), " or ".join(oracle["answers"])
        oracles.append(f"{mark}{oracle['name']}{mark}: answers {answers} labels to {askers}")
    every_section = (
        Section(title="Roles", items=tuple(roles)),
        Section(title="Needs", items=tuple(_needs(card))),
        Section(title="Who sees what", items=tuple(_sight(s, mark) for s in sights(card))),
        Section(title="Trust assumptions", items=card.trust),
        Section(title="Oracles", items=tuple(oracles)),
        Section(title="Initial weights", items=tuple(_starts(card.starts))),
        Section(title="Training defences act on", items=tuple(card.trains)),
        Section(title="Can do without", items=tuple(f"{mark}{k}{mark}" for k in card.withholdable)),
        Section(title="Differences from the paper", items=card.differences),
        Section(title="Settings by preset", items=tuple(_stated(card.settings, mark))),
        Section(title="What a party that departs from it could send", items=tuple(_active(card, mark))),
        Section(title="Privacy", items=tuple(_privacy(card.privacy, mark))),
        Section(title="What holds if a party departs from it", items=tuple(_withstands(card, mark))),
    )
    return tuple(section for section in every_section if section.items)


def _active(card: ProtocolCard, mark: str) -> Iterator[str]:
    """Yield what each role could send otherwise, and the shipped deviations with the attacks that read more by them."""
    for role in card.roles:
        kinds = dict[str, None]()
        for message in card.declared_messages:
            if message["from"] == role and "made_of" not in message:
                kinds[f"{mark}{message['kind']}{mark}"] = None
        if kinds:
            yield f"{role}: any {', '.join(kinds)}"
        for name in deviations.REGISTRY.names():
            deviation = deviations.REGISTRY.describe(name)
            copies = list[str]()
            for kind in deviation.changes:
                if kind in card.copies.get(role, ()):
                    copies.append(f"{mark}{kind}{mark}")
            if copies and role in deviation.roles:
                readers = ", ".join(f"{mark}{reader}{mark}" for reader in deviation.read_by)
                yield f"{role}: {mark}{name}{mark} in its {', '.join(copies)}, for {readers}"


def _withstands(card: ProtocolCard, mark: str) -> Iterator[str]:
    """Yield whom the ε of the private preset needs to be honest, and of the noise that hides whole clients.

    These are the ledger's own answers for these settings (`Ledger.against`), said before a run; a test compares them.
    """
    senders = {m["from"] for m in card.declared_messages}
    others = [f"the {role}" for role in card.roles if role in senders - {"client"}]
    private, clients = card.privacy.get("private"), card.privacy.get("clients")
    if private and private["training"]:
        yield f"Preset {mark}private{mark}: its ε, if {' or '.join([*others, 'other clients'])} depart"
    elif private and private.get("noise"):
        yield f"Preset {mark}private{mark}: no ε. {_FAILS}"
    if clients and clients["sender"] == "client":
        yield f"{mark}{clients['name']}{mark} on {mark}{clients['kind']}{mark}: no ε. {_FAILS}"
    elif clients:
        rest = [who for who in others if who != f"the {clients['sender']}"]
        who = " or ".join([*rest, "other clients"])
        where = f"{mark}{clients['name']}{mark} on {mark}{clients['kind']}{mark}"
        yield f"{where}: its ε, if {who} depart; none if the {clients['sender']} does, which adds the noise"
    if not (private or clients):
        yield "Nothing: no ε can be claimed"


def _privacy(privacy: Mapping[str, Any], mark: str) -> Iterator[str]:
    """Yield the paper's claim, the ledger's finding, and the effect of `preset: private`; nothing if undeclared."""
    if not privacy:
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


def _stated(settings: Mapping[str, Mapping[str, Any]], mark: str) -> Iterator[str]:
    """Yield what a paper and its authors' code state of the settings, one preset after the other."""
    for preset, stated in settings.items():
        pairs = (f"{mark}{name}: {json.dumps(value)}{mark}" for name, value in stated.items())
        yield f"Preset {mark}{preset}{mark}: {', '.join(pairs)}."


def _combination(private: Mapping[str, Any], mark: str) -> Iterator[str]:
    if private["training"]:
        yield f"{mark}dp-sgd{mark} on the clients' {' and '.join(private['training'])}"
    noise = private.get("noise")
    if noise:
        yield f"{mark}{noise['name']}{mark} on {mark}{noise['kind']}{mark} of each {noise['sender']}"
    for name, value in private["params"].items():
        yield f"{mark}{name}: {json.dumps(value)}{mark}"
    if private["withhold"]:
        yield f"withheld: {', '.join(f'{mark}{kind}{mark}' for kind in private['withhold'])}"
    for name, value in private.get("tuned", {}).items():
        yield f"{mark}{name}: {json.dumps(value)}{mark} unless the spec says otherwise"


def _starts(starts: Mapping[str, str]) -> Iterator[str]:
    """Yield whose initial weights clients train from, and its source; nothing if undeclared."""
    if not starts:
        return
    if starts["weights"] == "broadcast":
        yield f"Broadcast by the server, so every party knows them. {starts['source']}"
    else:
        yield f"Each client's own, which no other party knows. {starts['source']}"


def _needs(card: ProtocolCard) -> Iterator[str]:
    if card.pools_data:
        yield "One party that holds everybody's records."
    elif card.heterogeneous:
        yield "A network for each client; they may differ."
    else:
        yield "One network for all clients and the server."
    tasks = [TASKS[name].words if name in TASKS else name for name in card.tasks]
    yield f"Records with {' or '.join(tasks)}."
    if card.needs_public:
        labels = "labelled" if card.needs_labels else "unlabelled"
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


def text(found: Explanation) -> str:
    """Return an explanation as text for a terminal."""
    card, stated = found.card, asdict(found.card)
    lines = [f"{card.name} ({found.room})", "", found.doc.strip(), ""]
    if isinstance(card, ProtocolCard):
        del stated["tasks"], stated["roles"]  # sections say them
        lines += ["Messages", *_messages(card), ""]
        for section in sections(card):
            lines += [section.title, *(f"  {item}" for item in section.items), ""]
        if not found.file:
            # A protocol's own defences depend on its settings, which only its code knows; the docs page has run it.
            lines += ["Settings, own defences", f"  docs/protocols/{card.name}.md", ""]
    if found.settings:
        lines += ["Settings", *(f"  {name}: {words}" for name, words in found.settings.items()), ""]
    if found.file:
        lines += ["File", f"  {found.file}", ""]
    if card.page:
        lines += ["Page", f"  {card.page}", ""]
    for key, title in _TITLES.items():
        if stated.get(key):
            lines += [title, *(f"  {line}" for line in _plain(stated[key])), ""]
    return "\n".join(lines).rstrip()


def _messages(card: ProtocolCard) -> list[str]:
    if card.messages is None:
        return ["  not declared: a rehearsal before each run finds them, and its report says who saw what"]
    lines = []
    for message in card.messages:
        kind = KINDS.get(message["kind"])
        lines.append(f"  {message['from']} -> {message['to']}: {message['kind']} ({message['what']})")
        lines.append(f"      {kind.text if kind else OWN_KIND}")
        conditions = when(message)
        if conditions:
            lines.append(f"      only with {conditions}")
    return lines or ["  none"]


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
        return [item if isinstance(item, str) else ", ".join(_plain(item)) for item in value]
    return [str(value)]
