"""A recording as a case: what a record, its card and the records that an auditor brings say of a foreign federation.

Guarantees:
  * nothing that only the record or the card states lowers an ε: inputs and events count if the card names who answers
    for them, and otherwise every message counts as computed from all that its sender held;
  * what was not brought is in `lacks`. An attack that needs it is not applicable, and says what to bring.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from fdaudit.adversary.view import members_of
from fdaudit.config import validate
from fdaudit.data import ClientSplit, Dataset, Splits, class_table
from fdaudit.data.raw import image_origins
from fdaudit.errors import SpecError
from fdaudit.events import Event, event_from_json
from fdaudit.federation.defenses import attach
from fdaudit.federation.networks import Networks
from fdaudit.federation.protocol import FederatedProtocol, ProtocolConfig, applies, labels_public
from fdaudit.limits import MOST_TABLE
from fdaudit.parallel.memory import refuse_forecast
from fdaudit.planning.attacks import plan_attacks
from fdaudit.planning.brought import ARRAYS, LISTS, BroughtRecords, read_records
from fdaudit.planning.card_protocol import Recorded, known_protocol, protocol_of
from fdaudit.planning.ladder import ASSUMED, lacking_parts, needed_by
from fdaudit.planning.plan import Plan, execution_of, networks_named
from fdaudit.recording.truth import SITES, read_sites
from fdaudit.spec.card import Card, load_card
from fdaudit.spec.code import own_digest
from fdaudit.spec.schema import AuxiliarySpec, DatasetSpec, ModelSpec, Spec
from fdaudit.spec.trust import refuse_code
from fdaudit.storage.answered import record_names
from fdaudit.storage.cache import digest_of
from fdaudit.storage.vault import Secrets, Vault
from fdaudit.transcript.log import read_log
from fdaudit.transcript.messages import ALL, Message, role

if TYPE_CHECKING:
    from torch import Tensor

    from fdaudit.adversary.attack_plan import AttackPlan
    from fdaudit.transcript.wire import Defense

__all__ = [
    "BROUGHT",
    "USES",
    "RecordedPlan",
    "by_party",
    "recorded_plan",
    "recorded_spec",
    "recording_in",
]

BROUGHT, USES = "brought", "truth/uses"
"""Where a vault keeps the records that were brought, and the records behind messages."""

_HELD = 16
"""Bytes of memory for each parameter of a network: its weight, a gradient, a copy and what an optimiser keeps."""
_PLACEHOLDER = ModelSpec(name="mlp", params={"widths": []})
"""Stands where no network was named; no attack gets it."""


@dataclass(frozen=True, kw_only=True, eq=False)
class _Labels(Dataset):
    """Records whose images were not brought: one black pixel stands for each.

    Attributes:
        shape: (channels, height, width) of their images.
    """

    shape: tuple[int, int, int]

    @property
    def input_shape(self) -> tuple[int, int, int]:
        """Return (channels, height, width) of one image."""
        return self.shape


@dataclass(frozen=True, eq=False, kw_only=True)
class RecordedPlan(Plan):
    """A recording, resolved.

    Attributes:
        card: the system's card.
        all_parties: every party of the record; `world` is last, if the record names it.
        brought: records that the auditor holds.
    """

    card: Card
    all_parties: tuple[str, ...]
    brought: BroughtRecords | None

    @property
    def parties(self) -> tuple[str, ...]:
        """Return every party of the record. What is published outside the record, `world` has not seen here."""
        return self.all_parties

    @cached_property
    def declared_messages(self) -> list[Mapping[str, Any]]:
        """Return the protocol's declarations, with what the card says of them."""
        facts = {(m.kind, m.sender): m for m in self.card.messages}
        found = list[Mapping[str, Any]]()
        for declared in self.protocol.messages:
            if applies(declared.get("when", {}), self.protocol_config):
                said = facts.get((declared["kind"], declared["from"]))
                found.append(
                    declared if said is None or not said.reveals else {**declared, "reveals": said.reveals}
                )
        return found

    @property
    def settings(self) -> dict[str, Any]:
        """Return the public settings of the system, as views show them."""
        values = self.protocol_config.model_dump(mode="json")
        if issubclass(self.protocol, Recorded):
            values = {name: value for name, value in values.items() if value is not None}
        described = [
            {"kind": kind, "sender": sender, "described": dict(said)}
            for (sent, sender), acting in self.defenses.items()
            for kind, said in _described_as(sent, acting)
        ]
        return {**values, **({"defenses": described} if described else {})}

    @cached_property
    def stand_in(self) -> tuple[type[FederatedProtocol], ProtocolConfig] | None:
        """Return the protocol that rehearsals run, with its settings; None if the card names none."""
        if not issubclass(self.protocol, Recorded):
            return self.protocol, self.protocol_config
        if self.card.stand_in is None:
            return None
        return known_protocol(self.card.stand_in, "card.stand_in")

    @property
    def initial_seed(self) -> int | None:
        """Return the seed of the public initial weights, if the card states one."""
        return self.card.initial_seed

    def numbered(self, client: str) -> Tensor:
        """Return the rows (n,) of a client's records by the numbers that it gives them itself."""
        known = None if self.brought is None else self.brought.clients.get(client)
        return torch.zeros(0, dtype=torch.int64) if known is None else known.records

    @cached_property
    def record_names(self) -> tuple[str, ...]:
        """Return by row the names under which answers about the brought records are counted."""
        return () if self.brought is None else record_names(self.brought.x, self.brought.y)

    def names_of(self, client: str) -> list[str]:
        """Return the names of a client's records, as `record_names` has them."""
        return [self.record_names[row] for row in self.numbered(client).tolist()]

    def victims(self, adversary: str) -> tuple[str, ...]:
        """Return the attacked clients: the first ones outside the adversary whose records were brought, if any were."""
        members = adversary.split("+")
        others = [k for k in self.clients if k not in members]
        known = [k for k in others if len(self.numbered(k))]
        return tuple(known or others)[: self.spec.victims]

    def lacking(self, attack: AttackPlan) -> str:
        """Return what an attack needs and was not brought, as a sentence; empty if nothing."""
        return self._bring(name for name in needed_by(attack.card) if name in self.lacks)

    def advice(self, attack: AttackPlan) -> str:
        """Return what an attack assumes and was not brought, as a sentence; empty if nothing."""
        assumed = dict.fromkeys(ASSUMED[a] for a in attack.card["assumes"] if a in ASSUMED)
        return self._bring(name for name in assumed if name in self.lacks)

    def _bring(self, names: Iterator[str]) -> str:
        told = "; ".join(self.lacks[name] for name in names)
        return f"bring {told}" if told else ""

    @property
    def charged_transport(self) -> str:
        """Return the transport as the ledger may read it: plain, unless someone answers for its encryption."""
        return self.card.transport if self.card.transport_attested_by is not None else "plain"

    def charged(self, messages: Sequence[Message]) -> Sequence[Message]:
        """Return messages as the ledger may read them: with inputs and events that somebody answers for."""
        events: dict[tuple[str, str], Event] = {
            (a.kind, a.sender): event_from_json(a.event) for a in self.card.attested
        }
        attested = self.card.inputs_attested_by is not None
        return [
            replace(
                m,
                inputs=m.inputs if attested else ALL,
                fields={},  # one of them says that a message is an exact sum, and nobody answers for that
                event=events.get((m.kind, role(m.sender))),
                defenses=(),
            )
            for m in messages
        ]


def _described_as(kind: str, acting: Sequence[Defense]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield the descriptions of a message's defences, each with the kind in which the message arrives."""
    arrives = kind
    for defense in acting:
        arrives = getattr(defense, "makes", arrives)
    for defense in acting:
        yield arrives, defense.describe()


def recorded_spec(card: Card, parties: Sequence[str], audit: Mapping[str, Any]) -> Spec:
    """Return the spec of a recording's audit.

    Args:
        card: the system's card.
        parties: every party of the record.
        audit: settings of the audit itself, by their names in a spec.

    Raises:
        SpecError: the audit names what the record decides, or a setting is wrong.
    """
    for field in audit:
        if field in Spec.model_fields and field not in _AUDIT:
            problem = "is decided by the record and its card"
            raise SpecError(
                field, audit[field], problem, f"Settings of an audit are {', '.join(sorted(_AUDIT))}."
            )
    clients = sum(role(party) == "client" for party in parties)
    usual = [a for a in ("server", "aggregator", "client/0", "world") if a in parties]
    value: dict[str, Any] = {
        "name": card.name,
        "clients": clients,
        "victims": min(2, clients),
        "adversaries": [*usual, "eavesdropper"],
        "references": [],
        "dataset": DatasetSpec(name="recording").model_dump(mode="json"),
        "model": (card.model or _PLACEHOLDER).model_dump(mode="json"),
        "client_models": [m.model_dump(mode="json") for m in card.client_models],
        "protocol": card.protocol.model_dump(mode="json"),
        "defenses": [d.model_dump(mode="json") for d in card.defenses],
        "transport": card.transport,
        "oracles": card.oracles,
        "release": card.release,
        **audit,
    }
    return validate(Spec, value)


_AUDIT = frozenset(
    {
        "adversaries",
        "attacks",
        "auxiliary",
        "compile",
        "device",
        "gates",
        "memory_format",
        "power",
        "precision",
        "privacy",
        "profile",
        "queries",
        "seed",
        "strategy",
        "threads",
        "victims",
    }
)


def recorded_plan(
    card: Card,
    spec: Spec,
    secrets: Secrets,
    parties: Sequence[str],
    messages: Sequence[Message],
    brought: BroughtRecords | None,
    *,
    uses: bool,
) -> RecordedPlan:
    """Resolve a recording to a plan; write nothing.

    Args:
        card: the system's card.
        spec: the audit's settings, from `recorded_spec`.
        secrets: seed and secret of the audit.
        parties: every party of the record.
        messages: the record's messages.
        brought: records that the auditor holds, if any.
        uses: whether the truth names the records behind messages.

    Raises:
        SpecError: the card does not fit itself, the record or the records.
    """
    ordered = _ordered(parties)
    protocol, config = protocol_of(card, ordered, messages)
    clients = tuple(p for p in ordered if role(p) == "client")
    if (entries := len(clients) * card.classes) > MOST_TABLE:
        problem = f"makes {entries:,} entries, one a client and class, more than {MOST_TABLE:,}"
        raise SpecError("card.classes", card.classes, problem, "Correct it, or leave out clients.")
    dataset, splits = _records(card, clients, brought)
    lacks = lacking_parts(
        card, brought, uses=uses, stands_in=card.stand_in is not None or not issubclass(protocol, Recorded)
    )
    if "auxiliary" in lacks:
        spec = spec.model_copy(update={"auxiliary": AuxiliarySpec(inversion="none", others="none")})
    for number, claim in enumerate(card.claims):
        _refuse_stranger(f"card.claims.{number}.adversary", claim.adversary, ordered)
    for name in spec.adversaries:
        _refuse_stranger("adversaries", name, ordered)
    networks = _networks(card, spec)
    largest = max(networks.distinct, key=lambda network: network.parameters)
    refuse_forecast("card.model.name", largest.name, _HELD * largest.parameters)
    rehearsed = protocol if card.stand_in is None else known_protocol(card.stand_in, "card.stand_in")[0]
    execution = execution_of(spec, networks)
    resolved = spec.model_copy(update=execution.settings)
    attached = attach(spec, protocol, config)
    head = messages[-1].sha256 if messages else ""
    return RecordedPlan(
        spec=resolved,
        secrets=secrets,
        dataset=dataset,
        splits=splits,
        networks=networks,
        public=dataset.x[splits.proxy],
        public_labels=dataset.y[splits.proxy] if labels_public(rehearsed) else None,
        execution=execution,
        protocol=protocol,
        protocol_config=config,
        references=(),
        defenses=attached.messages,
        training=attached.training,
        attacks=plan_attacks(spec),
        identity=digest_of(
            {
                "spec": resolved.digest(),
                "card": card.model_dump(mode="json"),
                "head": head,
                "seed": secrets.working_seed,
                "data": dataset.sha256() if len(dataset.y) else "",
                "code": [own_digest(), *(n.source for n in networks.distinct)],
            }
        ),
        origin="recording",
        lacks=lacks,
        design="observational" if brought is None or brought.design is None else "matched-pairs",
        claims=card.claims,
        card=card,
        all_parties=ordered,
        brought=brought,
    )


def recording_in(run: Path, spec: Spec, secrets: Secrets, about: Mapping[str, Any]) -> RecordedPlan:
    """Return the plan of an imported recording.

    Args:
        run: its run directory, which was checked against its manifest.
        spec: the spec in it.
        secrets: the secrets in its vault.
        about: what its manifest says of the recording.

    Raises:
        SpecError: its card names untrusted code, or does not fit.
    """
    card = load_card(run / "card.yaml")
    refuse_code(card.model_dump(mode="json"), "card")
    vault = Vault(run / "vault")
    held = vault.directory / BROUGHT
    brought = read_records(held / LISTS, held / ARRAYS) if (held / LISTS).is_file() else None
    if brought is not None and (held / SITES).is_file():
        brought = by_party(brought, read_sites(held / SITES))
    return recorded_plan(
        card,
        spec,
        secrets,
        about["parties"],
        read_log(run / "transcript").messages,
        brought,
        uses=vault.has(USES),
    )


def by_party(brought: BroughtRecords, sites: Mapping[str, str | int]) -> BroughtRecords:
    """Return records under the parties of a record, where `sites.json` names the site of each party.

    A framework may number its clients in another order than the records do. A site called `2` or `client/2` is client/2
    of `records.json`. If the names are others, such as a framework's node numbers, both count in the same order.

    Args:
        brought: records by the client's name in `records.json`.
        sites: the name of each party's site.
    """
    named = {party: f"client/{str(site).removeprefix('client/')}" for party, site in sites.items()}
    known = {party: site for party, site in named.items() if site in brought.clients}
    if not known or len(set(known.values())) < len(known) or known.keys() != named.keys():
        return brought
    return replace(brought, clients={party: brought.clients[site] for party, site in known.items()})


# -- details ------------------------------------------------------------------------------------------------------


def _ordered(parties: Sequence[str]) -> tuple[str, ...]:
    """Return parties in the order of a run: server, aggregator, the clients by number, `world` if it is one."""
    clients = sorted((p for p in parties if role(p) == "client"), key=lambda p: int(p.partition("/")[2]))
    first = [p for p in ("server", "aggregator") if p in parties]
    if clients != [f"client/{k}" for k in range(len(clients))]:
        found = ", ".join(clients) or "none"
        raise SpecError(
            "record.parties", found, "are not client/0 to the last without a gap", "Name them so."
        )
    return (*first, *clients, *(["world"] if "world" in parties else []))


def _refuse_stranger(field: str, name: str, parties: Sequence[str]) -> None:
    try:
        members_of(name, parties)
    except SpecError as error:
        raise SpecError(field, name, error.problem, error.remedy) from None


def _records(card: Card, clients: Sequence[str], brought: BroughtRecords | None) -> tuple[Dataset, Splits]:
    """Return the brought records as a dataset with its splits; both empty if there are none."""
    none = torch.zeros(0, dtype=torch.int64)
    y = none if card.task == "single-label" else none.reshape(0, card.classes)
    if brought is not None:
        y = brought.y
        if brought.x is not None and tuple(brought.x.shape[1:]) != card.input_shape:
            found = "x".join(map(str, brought.x.shape[1:]))
            problem = f"differs from the brought records, which are {found}"
            raise SpecError("card.input_shape", list(card.input_shape), problem, "Correct one of them.")
        if (y.ndim == 2) != (card.task == "multi-label") or (y.ndim == 2 and y.shape[1] != card.classes):
            problem = f"differs from the brought records, whose labels are {tuple(y.shape)}"
            raise SpecError("card.task", card.task, problem, "Correct one of them.")
        if y.ndim == 1 and len(y) and int(y.max()) >= card.classes:
            problem = f"is too few: the brought records have a label {int(y.max())}"
            raise SpecError("card.classes", card.classes, problem, "Correct one of them.")
        for stranger in sorted(brought.clients.keys() - set(clients)):
            raise SpecError(
                "records.json", stranger, "is no client of the record", "Name the record's parties."
            )
    made = []
    for client in clients:
        known = None if brought is None else brought.clients.get(client)
        if known is None:
            made.append(ClientSplit(train=none, members=none, non_members=none))
            continue
        train = known.records[~torch.isin(known.records, known.non_members)].sort().values
        made.append(ClientSplit(train=train, members=known.members, non_members=known.non_members))
    named: dict[str, Any] = {
        "name": "recording",
        "y": y,
        "classes": card.classes,
        "provenance": f"Records that were brought to the audit of {card.name}.",
    }
    if brought is None or brought.x is None:
        dataset: Dataset = _Labels(x=torch.zeros(len(y), 1, 1, 1), shape=card.input_shape, **named)
    else:  # the memory layout changes the last bits of convolutions
        x = brought.x.clone(memory_format=torch.contiguous_format)
        dataset = Dataset(x=x, origins=image_origins(x) if x.dim() == 4 else None, **named)
    rows = {
        name: none if brought is None else getattr(brought, source)
        for name, source in (("proxy", "public"), ("auxiliary", "auxiliary"), ("test", "test"))
    }
    return dataset, Splits(
        clients=tuple(made), class_table=class_table(y, [c.train for c in made], card.classes), **rows
    )


def _networks(card: Card, spec: Spec) -> Networks:
    try:
        shape = card.input_shape if card.model is not None else (1, 1, 1)  # nothing reads the placeholder
        return networks_named(spec, shape, card.classes)
    except SpecError as error:
        raise SpecError(f"card.{error.field}", error.value, error.problem, error.remedy) from None
