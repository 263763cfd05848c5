"""Run a protocol over a watched wire, to its end or to a round, and keep what it sent."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fdaudit.adversary.view import View, view_of
from fdaudit.config import validate
from fdaudit.defenses import REGISTRY as DEFENSES
from fdaudit.federation.protocol import Common, FederatedProtocol, PartyData, ProtocolConfig, Round
from fdaudit.federation.rehearsal import kinds_of, parties_of, setting_of
from fdaudit.storage.files import decode, encode
from fdaudit.testing.federation import common, records
from fdaudit.transcript.messages import ALL, DATA, Message
from fdaudit.transcript.payloads import read_payload
from fdaudit.transcript.transcript import LOG, Position, Transcript, read_messages
from fdaudit.transcript.wire import Delivery, Wire

__all__ = ["SECRET", "Attached", "ProtocolRun", "Resume", "ancestry", "own_defenses", "run_protocol"]

SECRET = b"a secret of the auditor, not the seed"
Resume = tuple[int, bytes, Position]
"""The next round, the encoded state after the round before, and the end of the record there."""
Attached = Mapping[tuple[str, str], Sequence[Any]]
"""Defences by (kind, sender role), in the order in which they act."""


def _unchanged(delivery: Delivery) -> Delivery:
    return delivery


class _Watched(Wire):
    """A wire that remembers what it delivered, and may alter deliveries."""

    alter: Callable[[Delivery], Delivery] = staticmethod(_unchanged)
    delivered: list[tuple[Delivery, dict[str, Tensor]]]

    def send(self, *args: Any, **kwargs: Any) -> Delivery | None:
        """Send, and keep a copy of what arrives."""
        delivery = super().send(*args, **kwargs)
        if delivery is None:
            return None
        delivery = self.alter(delivery)
        copies: dict[str, Tensor] = {}
        for name, tensor in delivery.items():
            copies[name] = tensor.clone()
        self.delivered.append((delivery, copies))
        return delivery


@dataclass
class ProtocolRun:
    """One run of a protocol.

    Attributes:
        folder: the record.
        parties: every party.
        clients: the records that the clients were given.
        rounds: what the protocol yielded.
        states: its encoded state after each round.
        positions: the end of the record after each round.
        delivered: what the wire delivered, each with a copy made at that time.
        protocol: the protocol, after its last round.
        setting: what it was given.
    """

    folder: Path
    parties: tuple[str, ...]
    clients: Mapping[str, PartyData]
    rounds: list[Round] = field(default_factory=list)
    states: list[bytes] = field(default_factory=list)
    positions: list[Position] = field(default_factory=list)
    delivered: list[tuple[Delivery, dict[str, Tensor]]] = field(default_factory=list)
    protocol: Any = None
    setting: Any = None

    @cached_property
    def messages(self) -> list[Message]:
        """The messages on record, in order."""
        return list(read_messages(self.folder))

    @property
    def log(self) -> bytes:
        """Return the record's log."""
        return (self.folder / LOG).read_bytes()

    def payload(self, message: Message) -> bytes:
        """Return a message's tensors as they were recorded."""
        return read_payload(self.folder, message)

    def tensors(self, message: Message) -> dict[str, Tensor]:
        """Return a message's tensors."""
        return decode(self.payload(message))

    def view(self, adversary: str) -> View:
        """Return what an adversary, for example `server`, saw of this run."""
        settings = self.protocol.config.model_dump(mode="json")
        own = {k: (d.x, d.y) for k, d in self.clients.items()}
        return view_of(self.folder, adversary, parties=self.parties, hyperparameters=settings, own_data=own)


def own_defenses(config: ProtocolConfig) -> dict[tuple[str, str], tuple[Any, ...]]:
    """Return the protocol's own defences, attached as a run attaches them."""
    attached: dict[tuple[str, str], tuple[Any, ...]] = {}
    for entry in config.defenses():
        cls = DEFENSES.load(entry.name)
        key = (str(entry.kind), entry.sender)
        attached[key] = (*attached.get(key, ()), cls(validate(cls.Config, entry.params)))
    return attached


def run_protocol(
    folder: Path,
    protocol: type[FederatedProtocol],
    config: ProtocolConfig,
    *,
    shared: Common | None = None,
    clients: Mapping[str, PartyData] | None = None,
    seed: int = 5,
    stop_after: int | None = None,
    resume: Resume | None = None,
    alter: Callable[[Delivery], Delivery] = _unchanged,
    defenses: Attached | None = None,
    **wire_options: Any,
) -> ProtocolRun:
    """Run a protocol and return the run.

    Args:
        folder: where the record is written; a new one, unless the run is resumed.
        protocol: the protocol's class.
        config: its settings.
        shared: the public inputs of all parties; default: `common()`.
        clients: records by client; default: `records()`.
        seed: the run's seed.
        stop_after: the last round to run; default: all.
        resume: where to go on from.
        alter: changes what is delivered, after it was recorded.
        defenses: defences that act before the protocol's own.
        wire_options: further options of `Wire`, such as `outages` or `withheld`.
    """
    shared = shared or common()
    clients = dict(clients or records())
    parties = parties_of(protocol, config, len(clients))
    attached = own_defenses(config)
    for key, earlier in (defenses or {}).items():
        attached[key] = (*earlier, *attached.get(key, ()))
    first, state, start = resume or (0, b"", None)
    run = ProtocolRun(folder, parties, clients)
    with Transcript(folder, secret=SECRET, start=start) as transcript:
        wire = _Watched(
            transcript,
            parties=parties,
            kinds=kinds_of(protocol),
            device=torch.device(shared.execution.device),
            secret=SECRET,
            defenses=attached,
            withholdable=protocol.card.withholdable,
            **wire_options,
        )
        wire.alter, wire.delivered = alter, run.delivered
        run.setting = setting_of(protocol, shared, clients, wire, seed)
        run.protocol = protocol(config, run.setting)
        if state:
            run.protocol.state = decode(state)
        for progress in run.protocol.rounds(first):
            run.rounds.append(progress)
            run.states.append(encode(run.protocol.state))
            run.positions.append(transcript.position)
            if progress.index == stop_after:
                break
    return run


def ancestry(messages: Sequence[Message]) -> list[tuple[frozenset[str], frozenset[int]]]:
    """Return for each message, by its declared inputs, whose data and which messages it depends on, itself included."""
    ancestors: list[tuple[frozenset[str], frozenset[int]]] = []
    for message in messages:
        inputs = message.inputs
        if inputs == ALL:
            earlier: list[int] = []
            for other in messages[: message.seq]:
                if message.sender in other.parties():
                    earlier.append(other.seq)
            inputs = (DATA, *earlier)
        data = {message.sender} if DATA in inputs else set()
        behind = {message.seq}
        for seq in inputs:
            if isinstance(seq, int):
                data |= ancestors[seq][0]
                behind |= ancestors[seq][1]
        ancestors.append((frozenset(data), frozenset(behind)))
    return ancestors
