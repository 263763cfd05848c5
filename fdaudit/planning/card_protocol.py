"""The protocol of a recorded system: one that fdaudit knows, or a description of what is on record."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from fdaudit import protocols
from fdaudit.config import validate
from fdaudit.errors import ProtocolError, SpecError
from fdaudit.federation.protocol import (
    RELEASED_MODEL,
    FederatedProtocol,
    ProtocolConfig,
    Round,
    Setting,
    applies,
)
from fdaudit.kinds import MODELS, UNDECLARED
from fdaudit.registry import ProtocolCard
from fdaudit.spec.card import Card, Facts, MessageFacts
from fdaudit.spec.schema import ProtocolSpec
from fdaudit.spec.trust import IMPORT
from fdaudit.transcript.messages import Message, role

if TYPE_CHECKING:
    from torch import Tensor

    from fdaudit.training.trainer import Parameters

__all__ = ["Recorded", "RecordedConfig", "known_protocol", "protocol_of"]


class RecordedConfig(ProtocolConfig, Facts):
    """The public settings of a system that fdaudit does not know."""

    rounds: int = 1
    """Number of rounds on record."""
    upload: str | None = None
    """The kind in which clients send models or updates."""


class Recorded:
    """A system that another program ran; it cannot be run here."""

    card: ClassVar[ProtocolCard]
    Config: ClassVar[type[ProtocolConfig]] = RecordedConfig

    state: dict[str, Tensor]

    def __init__(self, config: Any, setting: Setting) -> None:
        raise ProtocolError(f"{self.card.name} is on record only: fdaudit cannot run it.")

    def rounds(self, start: int) -> Iterator[Round]:
        """Refuse to run."""
        raise NotImplementedError

    def released(self) -> Parameters | None:
        """Refuse to answer."""
        raise NotImplementedError


def known_protocol(entry: ProtocolSpec, field: str) -> tuple[type[FederatedProtocol], ProtocolConfig]:
    """Return a protocol that a card names, with its settings.

    Raises:
        SpecError: it is not known, or is untrusted code, or a setting is wrong.
    """
    cls = protocols.REGISTRY.load(entry.name, f"{field}.name")
    return cls, validate(cls.Config, entry.params, f"{field}.params")


def protocol_of(
    card: Card, parties: Sequence[str], messages: Sequence[Message]
) -> tuple[type[FederatedProtocol], ProtocolConfig]:
    """Return the protocol that the card names, or a class that describes the record of an unknown one."""
    stated = card.training.model_dump(exclude_defaults=True)
    if card.protocol.name.startswith(IMPORT) or card.protocol.name in protocols.REGISTRY.names():
        for field, value in (("training", stated), ("stand_in", card.stand_in)):
            if value:
                problem = f"is given for {card.protocol.name}, which fdaudit knows"
                remedy = "State its settings under protocol.params, or give your loop a name of its own."
                raise SpecError(f"card.{field}", value, problem, remedy)
        cls, config = known_protocol(card.protocol, "card.protocol")
        declared = set[tuple[str, str]]()
        for entry in cls.card.declared_messages:
            if applies(entry.get("when", {}), config):
                declared.add((entry["kind"], entry["from"]))
        for message in messages:
            kind, sender = message.kind, role(message.sender)
            if (kind, sender) not in declared and kind not in UNDECLARED:
                problem = (
                    f"sends no {kind} from a {sender} with these settings, and message {message.seq} is one"
                )
                remedy = (
                    "Correct the settings, or give the system a name of its own and its facts under training."
                )
                raise SpecError("card.protocol.name", cls.card.name, problem, remedy)
        return cls, config
    if card.stand_in is not None:
        known_protocol(card.stand_in, "card.stand_in")
    if card.protocol.params:
        problem = f"is given for {card.protocol.name!r}, which fdaudit does not know"
        raise SpecError(
            "card.protocol.params", dict(card.protocol.params), problem, "State them under training."
        )
    kinds = [m.kind for m in messages if role(m.sender) == "client"]
    rounds = len({m.round for m in messages})
    upload = None
    for model in MODELS:
        if model in kinds:
            upload = model
            break
    values = {**stated, "rounds": max(1, rounds), "upload": upload}
    return _described(card, parties, messages), validate(RecordedConfig, values, "card.training")


def _described(card: Card, parties: Sequence[str], messages: Sequence[Message]) -> type[FederatedProtocol]:
    """Return a class that describes the record of a system that fdaudit does not know."""
    facts: dict[tuple[str, str], MessageFacts] = {(m.kind, m.sender): m for m in card.messages}
    to: dict[tuple[str, str], set[str]] = {}
    for message in messages:
        to.setdefault((message.kind, role(message.sender)), set()).update(map(role, message.receivers))
    for kind, sender in facts.keys() - to.keys():
        problem = f"describes {kind} from a {sender}, of which the record has none"
        raise SpecError("card.messages", kind, problem, "Correct it, or remove it.")
    declared = []
    for (kind, sender), receivers in to.items():
        entry = {"kind": kind, "from": sender, "to": ", ".join(sorted(receivers)), "what": ""}
        stated = facts.get((kind, sender))
        if stated is not None:
            entry["what"] = stated.what
            if stated.fixed_size:
                entry["index"] = "public"
        declared.append(entry)
    published = any(m.kind == "model_parameters" and "world" in m.receivers for m in messages)
    roles: dict[str, None] = {}
    for party in parties:
        if party != "world":
            roles[role(party)] = None
    described = ProtocolCard(
        name=card.protocol.name,
        source="a recording",
        roles=tuple(roles),
        messages=tuple(declared),
        trust=tuple(card.trust),
        oracles=(RELEASED_MODEL,) if published else (),
        differences=(),
        withholdable=(),
        pools_data=False,
        heterogeneous=True,
        needs_public=False,
        tasks=("single-label", "multi-label"),
    )
    doc = f"{card.name}: a system that fdaudit did not run."
    return type("Recorded", (Recorded,), {"__doc__": doc, "card": described})
