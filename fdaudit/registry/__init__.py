"""Protocols, attacks, defences and deviations by name, loaded late; their cards."""

from fdaudit.registry.cards import (
    AttackCard,
    DefenseCard,
    DeviationCard,
    ExtensionCard,
    ProtocolCard,
    SimpleProtocolCard,
)
from fdaudit.registry.contract import CARDS, METHODS
from fdaudit.registry.registry import Registry, loaded, room_of

__all__ = [
    "CARDS",
    "METHODS",
    "AttackCard",
    "DefenseCard",
    "DeviationCard",
    "ExtensionCard",
    "ProtocolCard",
    "Registry",
    "SimpleProtocolCard",
    "loaded",
    "room_of",
]
