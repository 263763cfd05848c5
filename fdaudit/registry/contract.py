"""The contract of each entry-point group: the card and the methods of a class, and their checks."""

from __future__ import annotations

import re
from collections.abc import Mapping
from inspect import Signature, signature

from fdaudit.errors import SpecError
from fdaudit.registry.cards import (
    AttackCard,
    CardError,
    DefenseCard,
    DeviationCard,
    ExtensionCard,
    ProtocolCard,
    SimpleProtocolCard,
)
from fdaudit.registry.source import COMPUTED, UNREADABLE, StatedCard, line_of, source_of
from fdaudit.spec.trust import IMPORT

__all__ = ["CARDS", "METHODS", "refusal", "refuse_broken", "stated_card"]

_SAFE = re.compile(r"[a-z0-9][a-z0-9-]{0,63}")

CARDS: Mapping[str, tuple[type[ExtensionCard], ...]] = {
    "fdaudit.attacks": (AttackCard,),
    "fdaudit.protocols": (ProtocolCard, SimpleProtocolCard),
    "fdaudit.defenses": (DefenseCard,),
    "fdaudit.deviations": (DeviationCard,),
}
"""The cards of each entry-point group, the usual one first."""
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
    "fdaudit.deviations": {"__init__": ("config", "knowledge"), "sends": ("draft", "generator")},
}
"""The methods of a class of each group, with the names of their arguments after `self`."""
_ON_RECEIPT: Mapping[str, tuple[str, ...]] = {"__init__": ("config",), "describe": (), "refuses": ("copies",)}
_IN_TRAINING: Mapping[str, tuple[str, ...]] = {
    "__init__": ("config", "batch_size"),
    "describe": (),
    "steps": ("length",),
    "draw": ("records", "noise"),
    "clipped": ("per_sample",),
    "noised": ("total", "noise"),
    "event": ("steps",),
}


def stated_card(group: str, name: str, target: str, stated: StatedCard | None) -> ExtensionCard:
    """Return the card that a class states.

    Raises:
        SpecError: it states none, or one that is no call with literals, or whose fields are wrong.
    """
    kinds = {card.__name__: card for card in CARDS[group]}
    example = f"{CARDS[group][0].__name__}(name=…, …)"
    if stated is None:
        raise refusal(group, name, target, f"has no card, which is {example}")
    names = set[str]()
    for cards in CARDS.values():
        for kind in cards:
            names.add(kind.__name__)
    if stated.called in names - kinds.keys():
        raise refusal(
            group, name, target, f"has a card of another kind, {stated.called}, where {example} belongs"
        )
    if stated.called not in kinds:
        raise refusal(group, name, target, f"computes card, which must be {example} with plain literals")
    for field, value in stated.fields.items():
        if value is COMPUTED:
            raise refusal(group, name, target, f"computes {field}, which must be a plain literal")
    try:
        card = kinds[stated.called].of(stated.fields)
    except CardError as error:
        raise refusal(group, name, target, str(error)) from None
    if name.startswith(IMPORT) and not _SAFE.fullmatch(card.name):
        problem = f"calls itself {card.name!r}, which is no name of small letters, digits and hyphens"
        raise refusal(group, name, target, problem)
    if card.name != name and not name.startswith(IMPORT):
        raise refusal(group, name, target, f"calls itself {card.name!r}")
    return card


def refuse_broken(
    group: str, name: str, target: str, card: ExtensionCard, members: Mapping[str, object], whole: bool
) -> None:
    """Refuse a class without a method of its contract; `whole` if methods of other modules are among `members`."""
    at = card.at if isinstance(card, DefenseCard) else ""
    contract = {"training": _IN_TRAINING, "receipt": _ON_RECEIPT}.get(at, METHODS[group])
    for method, arguments in contract.items():
        member = members.get(method)
        if member is None and (not whole or method == "__init__"):
            continue
        call = f"{method}(self{''.join(f', {a}' for a in arguments)})"
        if member is None:
            raise refusal(group, name, target, f"has no method {call}")
        if member is not COMPUTED and not _takes(member, arguments):
            raise refusal(group, name, target, f"has a method {method} that is not called as {call}")
    if whole and "Config" not in members:
        raise refusal(group, name, target, "has no Config, the class of its settings")


def _takes(method: object, arguments: tuple[str, ...]) -> bool:
    """Return whether a function, or the signature read from its source, can be called with `self` and these."""
    try:
        parameters = method if isinstance(method, Signature) else signature(method)  # type: ignore[arg-type]
        parameters.bind(None, *arguments)
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
