"""Protocols, attacks and defences by name, loaded late."""

from fdaudit.registry.contract import METHODS, REQUIRED
from fdaudit.registry.registry import Registry, loaded, room_of

__all__ = ["METHODS", "REQUIRED", "Registry", "loaded", "room_of"]
