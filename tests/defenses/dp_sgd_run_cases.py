"""Protocols under DP-SGD, run."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fdaudit.defenses import REGISTRY as DEFENSES
from fdaudit.protocols import REGISTRY

from fdaudit.config import validate
from fdaudit.testing.running import ProtocolRun
from fdaudit.transcript.messages import ALL, DATA, Message

from ..helpers.protocol_cases import configured, run

SETTINGS = {"clip": 0.5, "noise_multiplier": 0.5, "sample_rate": 0.5}


def training(name: str, params: Mapping[str, Any] | None = None, *, only: str | None = None, **changes: Any):
    """DP-SGD on all that a protocol's clients train, or on one thing of it."""
    cls, trains = DEFENSES.load("dp-sgd"), REGISTRY.load(name).card.trains
    config = validate(cls.Config, {**SETTINGS, **changes})
    own = configured(name, params or {})
    return {of: cls(config, getattr(own, field)) for of, field in trains.items() if only in (None, of)}


def defended(folder, name, params=None, **kwargs) -> ProtocolRun:
    return run(folder, name, params or {}, training=training(name, params), **kwargs)


def releases(ran: ProtocolRun) -> list[Message]:
    return [m for m in ran.messages if m.kind == "release"]


def declares_release(ran: ProtocolRun, message: Message) -> bool:
    """Whether a message stands on releases, and neither on records nor on all that its sender held."""
    if message.inputs == ALL or DATA in message.inputs or message.kind == "release":
        return False
    return any(ran.messages[i].kind == "release" for i in message.inputs if i != DATA)
