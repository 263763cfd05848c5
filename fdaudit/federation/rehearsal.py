"""Rehearsals: a protocol run on substitute data, for an adversary's shadow runs and for controls."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import cast

import torch
from torch import Tensor

from fdaudit.adversary.view import View, view_of
from fdaudit.errors import ProtocolError
from fdaudit.federation.networks import Networks
from fdaudit.federation.protocol import Common, FederatedProtocol, PartyData, ProtocolConfig, Setting, applies
from fdaudit.kinds import UNDECLARED
from fdaudit.rng import SecretStream, child, child_seed
from fdaudit.storage.files import written_whole
from fdaudit.storage.scratch import scratch
from fdaudit.training.trainer import Parameters
from fdaudit.transcript.log import read_log
from fdaudit.transcript.messages import role
from fdaudit.transcript.transcript import Transcript
from fdaudit.transcript.wire import Defense, Delivery, Deviant, ReceiptCheck, Wire
from fdaudit.types import GradientRule, Trained

__all__ = [
    "NoWire",
    "kinds_of",
    "networks_of",
    "parties_of",
    "rehearse",
    "roles_of",
    "set_up",
    "setting_of",
    "with_messages",
]


class NoWire(Wire):
    """A wire that carries no messages and no defences: for a reference line, or for a protocol that is only set up."""

    def __init__(self) -> None:
        self.training = {}

    def begin(self, round: int, step: int = 0) -> None:
        """Do nothing."""

    def send(
        self, sender: str, receivers: Sequence[str], kind: str, *_: object, **__: object
    ) -> Delivery | None:
        """Refuse to send."""
        raise ProtocolError(f"{sender} sent {kind} where nothing may be sent.")


def kinds_of(protocol: type[FederatedProtocol]) -> list[str] | None:
    """Return the message kinds that a protocol declares; None if it declares no messages."""
    if protocol.card.messages is None:
        return None
    return sorted({m["kind"] for m in protocol.card.messages} | UNDECLARED)


def roles_of(protocol: type[FederatedProtocol], config: ProtocolConfig) -> tuple[str, ...]:
    """Return the roles that take part with these settings, in the order of their declaration."""
    conditions = protocol.card.roles_when
    roles: list[str] = []
    for name in protocol.card.roles:
        if applies(conditions.get(name, {}), config):
            roles.append(name)
    return tuple(roles)


def parties_of(protocol: type[FederatedProtocol], config: ProtocolConfig, clients: int) -> tuple[str, ...]:
    """Return every party that takes part with these settings, in the order of the roles; `world` comes last."""
    parties = [r for r in roles_of(protocol, config) if r != "client"]
    parties += [f"client/{k}" for k in range(clients)]
    return (*parties, "world")


def networks_of(protocol: type[FederatedProtocol], networks: Networks) -> Networks:
    """Return the networks of this protocol's parties; the holder of pooled data trains the shared network."""
    return Networks(networks.shared) if protocol.card.pools_data else networks


def setting_of(
    protocol: type[FederatedProtocol],
    common: Common,
    clients: Mapping[str, PartyData],
    wire: Wire,
    seed: int,
) -> Setting:
    """Return the protocol's inputs; if it pools data, one client has all records and the shared network."""
    if not protocol.card.pools_data:
        return common.setting(clients, wire, seed)
    x = torch.cat([data.x for data in clients.values()])
    y = torch.cat([data.y for data in clients.values()])
    alone = replace(common, networks=networks_of(protocol, common.networks))
    return alone.setting({"client/0": PartyData(x, y)}, wire, seed)


def set_up(
    protocol: type[FederatedProtocol],
    config: ProtocolConfig,
    common: Common,
    clients: Sequence[str],
    seed: int,
) -> FederatedProtocol:
    """Return the protocol without records and wire: a check of its settings, and access to what it released.

    Raises:
        SpecError: the protocol refuses its settings for these networks and images.
    """
    config.fits(len(clients))
    nobody = {k: PartyData(torch.zeros(0), torch.zeros(0)) for k in clients}
    return protocol(config, setting_of(protocol, common, nobody, NoWire(), seed))


def with_messages(
    protocol: type[FederatedProtocol], config: ProtocolConfig, common: Common, clients: int
) -> type[FederatedProtocol]:
    """Return a protocol with its `messages`; if it declares none, with those that a short rehearsal sends.

    The rehearsal has at most two rounds and random records. A kind that only a real run sends is refused there by the
    wire, so a declaration that is found in this way never hides a message.
    """
    if protocol.card.messages is not None:
        return protocol
    brief = config
    if "rounds" in type(config).model_fields:
        brief = config.model_copy(update={"rounds": min(config.rounds, 2)})
    network, records = common.networks.shared, []
    n = max(2 * network.classes, 16)  # every class occurs
    for k in range(clients):
        draws = child(0, "rehearsal", "records", k)
        x = network.random_inputs(n, draws)
        y = common.task.labels.stand_ins(n, network.classes, network.input_shape, draws)
        records.append((x, y))
    with scratch("rehearsal") as folder:
        transcript = folder / "transcript"
        rehearse(transcript, protocol=protocol, config=brief, common=common, data=records, seed=0)
        messages = read_log(transcript).messages
    receiving: dict[tuple[str, str], list[str]] = {}
    for message in messages:
        if message.kind not in UNDECLARED:
            roles = receiving.setdefault((message.kind, role(message.sender)), [])
            roles += map(role, message.receivers)
    declared = []
    for (kind, sender), roles in receiving.items():
        names = ", ".join(dict.fromkeys(roles))
        declared.append({"kind": kind, "from": sender, "to": names, "what": "found in a rehearsal"})
    card = replace(protocol.card, messages=tuple(declared))
    own = {"card": card, "__doc__": protocol.__doc__, "__module__": protocol.__module__}
    return cast("type[FederatedProtocol]", type(protocol.__name__, (protocol,), own))


def rehearse(
    folder: Path,
    *,
    protocol: type[FederatedProtocol],
    config: ProtocolConfig,
    common: Common,
    data: Sequence[tuple[Tensor, Tensor]],
    seed: int,
    adversary: str = "server",
    defenses: Mapping[tuple[str, str], Sequence[Defense]] | None = None,
    training: Mapping[Trained, GradientRule] | None = None,
    withheld: Sequence[str] = (),
    transport: str = "plain",
    deviants: Mapping[str, Deviant] | None = None,
    checks: Mapping[tuple[str, str], Sequence[ReceiptCheck]] | None = None,
    models: dict[str, Parameters] | None = None,
) -> View:
    """Run a protocol from start to end and return an adversary's view of it.

    Args:
        folder: the transcript's directory, which must outlive the view: a new one, or one that an equal rehearsal
            filled.
        protocol: the protocol's class.
        config: its settings.
        common: networks, training and public samples, which all parties have.
        data: records (x, y) of each client.
        seed: seed of this rehearsal.
        adversary: the adversary whose view is returned.
        defenses: defences by (kind, sender role).
        training: training defences, by the trained object.
        withheld: kinds that are not sent.
        transport: what an eavesdropper sees of it.
        deviants: the parties that deviate, by name.
        checks: what clients check of messages that they receive, by (kind, sender role).
        models: receives each party's last model, if the protocol runs.
    """
    # The secret follows from the seed: a rehearsal hides nothing and must be reproducible.
    key = child_seed(seed, "rehearsal", "secret").to_bytes(8, "big") * 2
    secret = SecretStream(key, "rehearsal").bytes(32)
    parties = parties_of(protocol, config, len(data))
    records, own_data = {}, {}
    for k, (x, y) in enumerate(data):
        name = f"client/{k}"
        if deviants and name in deviants:
            x, y = deviants[name].trains_on(x, y)
        records[name] = PartyData(x, y)
        own_data[name] = (x, y)
    if not folder.exists():
        with written_whole(folder) as unfinished, Transcript(unfinished, secret=secret) as transcript:
            wire = Wire(
                transcript,
                parties=parties,
                kinds=kinds_of(protocol),
                device=torch.device(common.execution.device),
                secret=secret,
                defenses=defenses,
                training=training,
                withheld=withheld,
                withholdable=protocol.card.withholdable,
                deviants=deviants,
                checks=checks,
            )
            setting = setting_of(protocol, common, records, wire, seed)
            for round in protocol(config, setting).rounds(0):
                if models is not None:
                    models.update(round.models)
    return view_of(
        folder,
        adversary,
        parties=parties,
        hyperparameters=config.model_dump(mode="json"),
        transport=transport,
        own_data=own_data,
    )
