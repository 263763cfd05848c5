"""The case of a recording: what a record, its card and the records that an auditor brings say of a foreign federation.

Guarantees:
  * nothing that only the record or the card states lowers an ε: inputs and events count if the card names who answers
    for them, and otherwise every message counts as computed from all that its sender held;
  * what was not brought is no part of the case. An attack that needs it is not applicable, and says what to bring.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from fdaudit.config import validate
from fdaudit.data import ClientSplit, Dataset, Splits, class_table
from fdaudit.data.datasets import data_root
from fdaudit.data.raw import image_origins
from fdaudit.errors import SpecError
from fdaudit.federation.defenses import attach
from fdaudit.federation.networks import Networks
from fdaudit.federation.protocol import FederatedProtocol, ProtocolConfig, applies
from fdaudit.kinds import MODELS
from fdaudit.limits import MOST_TABLE
from fdaudit.models.network import matches
from fdaudit.models.normalization import Normalization
from fdaudit.parallel.memory import refuse_forecast
from fdaudit.planning.attacks import plan_attacks
from fdaudit.planning.brought import ARRAYS, LISTS, BroughtRecords, ClientRecords, read_records
from fdaudit.planning.card_protocol import Recorded, known_protocol, protocol_of
from fdaudit.planning.case import Case
from fdaudit.planning.ladder import ImportedSystem, parts_not_brought
from fdaudit.planning.refusals import refuse_strangers
from fdaudit.planning.simulated import execution_of, networks_named
from fdaudit.recording.truth import SITES, read_sites
from fdaudit.spec.card import Card, PreprocessFacts, load_card
from fdaudit.spec.code import own_digest
from fdaudit.spec.schema import AuxiliarySpec, DatasetSpec, ModelSpec, Spec
from fdaudit.spec.trust import refuse_code
from fdaudit.storage.cache import digest_of
from fdaudit.storage.vault import Secrets, Vault
from fdaudit.tasks import TASKS
from fdaudit.training.objectives import loss_digest, refuse_unusable
from fdaudit.transcript.encoding import numbered
from fdaudit.transcript.log import read_log
from fdaudit.transcript.messages import Message, role

if TYPE_CHECKING:
    from fdaudit.transcript.wire import Defense

__all__ = [
    "BROUGHT",
    "USES",
    "by_party",
    "recorded_case",
    "recorded_spec",
    "recording_in",
]

BROUGHT, USES = "brought", "truth/uses"
"""Where a vault keeps the records that were brought, and the records behind messages."""

_HELD = 16
"""Bytes of memory for each parameter of a network: its weight, a gradient, a copy and what an optimiser keeps."""
_PLACEHOLDER = ModelSpec(name="mlp", params={"widths": []})
"""Stands where no network was named; no attack gets it."""


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
            remedy = f"Settings of an audit are {', '.join(sorted(_AUDIT))}."
            raise SpecError(field, audit[field], problem, remedy)
    clients = sum(role(party) == "client" for party in parties)
    adversaries = []
    for adversary in ("server", "aggregator", "client/0", "world"):
        if adversary in parties:
            adversaries.append(adversary)
    value: dict[str, Any] = {
        "name": card.name,
        "clients": clients,
        "victims": min(2, clients),
        "adversaries": [*adversaries, "eavesdropper"],
        "references": [],
        "dataset": DatasetSpec(name="recording").model_dump(mode="json"),
        "model": (card.model or _PLACEHOLDER).model_dump(mode="json"),
        "client_models": [m.model_dump(mode="json") for m in card.client_models],
        "protocol": card.protocol.model_dump(mode="json"),
        "defenses": [d.model_dump(mode="json") for d in card.defenses],
        "transport": card.transport,
        "oracles": card.oracles,
        "release": card.release,
        "profile": "quick",
        **audit,
    }
    return validate(Spec, value)


_AUDIT = frozenset(
    {
        "adversaries",
        "attacks",
        "audit",
        "auxiliary",
        "compile",
        "device",
        "gates",
        "loss",
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


def recorded_case(
    card: Card,
    spec: Spec,
    secrets: Secrets,
    parties: Sequence[str],
    messages: Sequence[Message],
    brought: BroughtRecords | None,
    *,
    uses: bool,
    not_finite: Collection[int] = (),
) -> Case:
    """Return the case of a recording; write nothing.

    Args:
        card: the system's card.
        spec: the audit's settings, from `recorded_spec`.
        secrets: seed and secret of the audit.
        parties: every party of the record.
        messages: the record's messages.
        brought: records that the auditor holds, if any.
        uses: whether the truth names the records behind messages.
        not_finite: numbers of messages with NaN or infinite values.

    Raises:
        SpecError: the card does not fit itself, the record or the records.
    """
    ordered = _ordered(parties)
    protocol, config = protocol_of(card, ordered, messages)
    clients = tuple(p for p in ordered if role(p) == "client")
    entries = len(clients) * card.classes
    if entries > MOST_TABLE:
        problem = f"makes {entries:,} entries, one a client and class, more than {MOST_TABLE:,}"
        raise SpecError("card.classes", card.classes, problem, "Correct it, or leave out clients.")
    dataset, splits = _records(card, clients, brought)
    stand_in = _stand_in(card, protocol, config)
    not_brought = parts_not_brought(card, brought, uses=uses, stands_in=stand_in is not None)
    if "auxiliary" in not_brought:
        spec = spec.model_copy(update={"auxiliary": AuxiliarySpec(inversion="none", others="none")})
    adversaries = [(f"card.claims.{n}.adversary", claim.adversary) for n, claim in enumerate(card.claims)]
    adversaries += [("adversaries", name) for name in spec.adversaries]
    refuse_strangers(adversaries, ordered)
    networks = _networks(card, spec)
    loss = _own_loss(card, spec, networks)
    execution = execution_of(spec, networks)
    resolved = spec.model_copy(update=execution.settings)
    attached = attach(spec.defenses, protocol, config, spec.clients)
    rehearsed, _ = stand_in or (protocol, config)
    public, labels = torch.zeros(0, *card.input_shape), dataset.y[:0]
    if not dataset.x.is_meta:
        public, labels = dataset.x[splits.proxy], dataset.y[splits.proxy]
    settings = _settings(card, protocol, config, attached.messages)
    settings |= _names(card, networks, messages)
    settings |= loss
    code = [own_digest()]
    if networks is not None:
        code += [network.source for network in networks.distinct]
    if spec.loss is not None:
        code.append(loss_digest(spec.loss))
    content = {
        "spec": resolved.digest(),
        "card": card.model_dump(mode="json"),
        "head": messages[-1].sha256 if messages else "",
        "seed": secrets.working_seed,
        "data": dataset.sha256() if len(dataset.y) else "",
        "code": code,
    }
    return Case(
        spec=resolved,
        secrets=secrets,
        dataset=dataset,
        splits=splits,
        networks=networks,
        public=public,
        public_labels=labels if rehearsed.card.needs_labels else None,
        execution=execution,
        protocol=protocol,
        protocol_config=config,
        settings=settings,
        stand_in=None if networks is None else stand_in,  # a rehearsal trains networks
        parties=ordered,
        declared_messages=_declared_messages(card, protocol, config),
        initial_seed=card.initial_seed,
        defenses=attached.messages,
        training=attached.training,
        attacks=plan_attacks(spec),
        identity=digest_of(content),
        imported=ImportedSystem(
            card=card, brought=brought, not_brought=not_brought, not_finite=frozenset(not_finite)
        ),
    )


def recording_in(run: Path, spec: Spec, secrets: Secrets, about: Mapping[str, Any]) -> Case:
    """Return the case of an imported recording.

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
    folder = vault.directory / BROUGHT
    records = None
    if (folder / LISTS).is_file():
        records = read_records(folder / LISTS, folder / ARRAYS, card.image_range)
        if (folder / SITES).is_file():
            records = by_party(records, read_sites(folder / SITES))
    return recorded_case(
        card,
        spec,
        secrets,
        about["parties"],
        read_log(run / "transcript").messages,
        records,
        uses=vault.has(USES),
        not_finite=about.get("not_finite", ()),
    )


def by_party(brought: BroughtRecords, sites: Mapping[str, str | int]) -> BroughtRecords:
    """Return records under the parties of a record, where `sites.json` names the site of each party.

    A framework may number its clients in another order than the records do. A site called `2` or `client/2` is client/2
    of `records.json`. If the names are others, such as a framework's node numbers, both count in the same order.

    Args:
        brought: records by the client's name in `records.json`.
        sites: the name of each party's site.
    """
    names = {party: f"client/{str(site).removeprefix('client/')}" for party, site in sites.items()}
    is_named_so = all(name in brought.clients for name in names.values())
    if not names or not is_named_so or len(set(names.values())) < len(names):
        return brought
    clients: dict[str, ClientRecords] = {}
    for party, name in names.items():
        clients[party] = brought.clients[name]
    return replace(brought, clients=clients)


# -- details ------------------------------------------------------------------------------------------------------


def _ordered(parties: Sequence[str]) -> tuple[str, ...]:
    """Return parties in the order of a run: server, aggregator, the clients by number, `world` if it is one."""
    clients = [party for party in parties if role(party) == "client"]
    clients.sort(key=lambda party: int(party.partition("/")[2]))
    expected = [f"client/{k}" for k in range(len(clients))]
    if clients != expected:
        names = ", ".join(clients) or "none"
        problem = "are not client/0 to the last without a gap"
        raise SpecError("record.parties", names, problem, "Name them so.")
    ordered = []
    for party in ("server", "aggregator", *clients, "world"):
        if party in parties:
            ordered.append(party)
    return tuple(ordered)


def _records(card: Card, clients: Sequence[str], brought: BroughtRecords | None) -> tuple[Dataset, Splits]:
    """Return the brought records as a dataset with its splits; both empty if there are none."""
    none = torch.zeros(0, dtype=torch.int64)
    labels = TASKS[card.task].labels
    shape = labels.shape(card.classes, card.input_shape)
    if brought is None:
        y = none.reshape(0, *shape)
        brought = BroughtRecords(x=None, y=y, clients={}, design=None, auxiliary=none, public=none, test=none)
    x, y = brought.x, brought.y
    if x is not None and tuple(x.shape[1:]) != card.input_shape:
        size = "x".join(map(str, x.shape[1:]))
        problem = f"differs from the brought records, which are {size}"
        raise SpecError("card.input_shape", list(card.input_shape), problem, "Correct one of them.")
    if tuple(y.shape[1:]) != shape:
        problem = f"differs from the brought records, whose labels are {tuple(y.shape)}"
        raise SpecError("card.task", card.task, problem, "Correct one of them.")
    if labels.one_class and len(y) and int(y.max()) >= card.classes:
        problem = f"is too few: the brought records have a label {int(y.max())}"
        raise SpecError("card.classes", card.classes, problem, "Correct one of them.")
    for stranger in sorted(brought.clients.keys() - set(clients)):
        problem, remedy = "is no client of the record", "Name the record's parties."
        raise SpecError("records.json", stranger, problem, remedy)
    unknown = ClientRecords(records=none, members=none, non_members=none)
    splits = []
    for client in clients:
        own = brought.clients.get(client, unknown)
        train = own.records[~torch.isin(own.records, own.non_members)].sort().values
        splits.append(ClientSplit(train=train, members=own.members, non_members=own.non_members))
    origins = None
    if x is None:
        x = torch.empty(len(y), *card.input_shape, device="meta")
    else:
        # The memory layout changes the last bits of convolutions.
        x = x.clone(memory_format=torch.contiguous_format)
        if x.dim() == 4:
            origins = image_origins(x)
    dataset = Dataset(
        name="recording",
        x=x,
        y=y,
        classes=card.classes,
        origins=origins,
        columns=tuple(one.column for one in card.columns),
        provenance=f"Records that were brought to the audit of {card.name}.",
    )
    return dataset, Splits(
        clients=tuple(splits),
        class_table=class_table(y, [split.train for split in splits], card.classes),
        proxy=brought.public,
        auxiliary=brought.auxiliary,
        test=brought.test,
    )


def _networks(card: Card, spec: Spec) -> Networks | None:
    """Return the networks that a card names; None if it names none."""
    if card.model is None:
        return None
    try:
        networks = networks_named(
            spec.model, spec.client_models, data_root(spec.dataset.root), card.input_shape, card.classes
        )
    except SpecError as error:
        raise SpecError(f"card.{error.field}", error.value, error.problem, error.remedy) from None
    largest = max(networks.distinct, key=lambda network: network.parameters)
    refuse_forecast("card.model.name", largest.name, _HELD * largest.parameters)
    # The networks take images in [0, 1], do what clients do to images, and freeze what they freeze.
    normalization, patterns = None, card.training.frozen
    if card.preprocess is not None and card.preprocess != PreprocessFacts():
        normalization = Normalization.of(**card.preprocess.channels, span=card.preprocess.range)
    as_used = []
    for network in (networks.shared, *networks.clients):
        as_used.append(replace(network, normalization=normalization, frozen=patterns))
    networks = Networks(as_used[0], tuple(as_used[1:]))
    names = {name for network in networks.distinct for name in network.parameter_shapes}
    for pattern in patterns:
        if not any(matches(name, pattern) for name in names):
            examples = ", ".join(sorted(names)[:3])
            problem = f"is no parameter of the network, which has {examples}, …"
            raise SpecError("card.training.frozen", pattern, problem, "Correct it: names have no `prefix`.")
    if patterns and not all(network.trained_parameters for network in networks.distinct):
        problem = "leaves nothing to train"
        raise SpecError("card.training.frozen", list(patterns), problem, "Leave out what clients train.")
    return networks


def _own_loss(card: Card, spec: Spec, networks: Networks | None) -> dict[str, Any]:
    """Return the setting of the loss that the user names, after it was tried on each network; empty without one."""
    if spec.loss is None:
        return {}
    if networks is None:
        raise SpecError("loss", spec.loss, "needs a network", "Name it under `model` in the card.")
    if card.training.loss is not None:
        problem = "is given, and the card states training.loss"
        raise SpecError("loss", spec.loss, problem, "Keep one of them.")
    one_class = TASKS[card.task].labels.one_class
    for network in networks.distinct:
        refuse_unusable(spec.loss, network, one_class=one_class)
    return {"loss": {"function": spec.loss}}


def _stand_in(
    card: Card, protocol: type[FederatedProtocol], config: ProtocolConfig
) -> tuple[type[FederatedProtocol], ProtocolConfig] | None:
    """Return the protocol that rehearsals run, with its settings; None if the card names none."""
    if not issubclass(protocol, Recorded):
        return protocol, config
    if card.stand_in is None:
        return None
    cls, settings = known_protocol(card.stand_in, "card.stand_in")
    stated: dict[str, Any] = {}
    for name in ("loss", "clip", "betas"):  # of the training, which a stand-in has in common with the system
        value = getattr(card.training, name)
        if value is not None and name in cls.Config.model_fields and name not in settings.model_fields_set:
            stated[name] = value
    return cls, settings.model_copy(update=stated)


def _declared_messages(
    card: Card, protocol: type[FederatedProtocol], config: ProtocolConfig
) -> list[Mapping[str, Any]]:
    """Return the protocol's declarations, with what the card says of them."""
    facts = {(m.kind, m.sender): m for m in card.messages}
    messages = list[Mapping[str, Any]]()
    for declared in protocol.card.declared_messages:
        if applies(declared.get("when", {}), config):
            message = dict(declared)
            stated = facts.get((declared["kind"], declared["from"]))
            if stated is not None and stated.reveals:
                message["reveals"] = stated.reveals
            messages.append(message)
    return messages


def _settings(
    card: Card,
    protocol: type[FederatedProtocol],
    config: ProtocolConfig,
    defenses: Mapping[tuple[str, str], tuple[Defense, ...]],
) -> dict[str, Any]:
    """Return the public settings of the system, as views show them."""
    values = config.model_dump(mode="json")
    if issubclass(protocol, Recorded):
        for name, value in list(values.items()):
            if value in (None, []):
                del values[name]
        if values.get("accumulate", 1) > 1:  # a step's records are the batch that attacks read
            values["micro_batch"] = values["batch_size"]
            values["batch_size"] *= values["accumulate"]
    described: list[dict[str, Any]] = []
    for (kind, sender), acting in defenses.items():
        for defense in acting:  # the message arrives in the kind that the last one makes
            kind = defense.card.makes or kind
        for defense in acting:
            described.append({"kind": kind, "sender": sender, "described": dict(defense.describe())})
    if described:
        values["defenses"] = described
    if card.prefix is not None:
        values["prefix"] = card.prefix
    return values


def _names(card: Card, networks: Networks | None, messages: Sequence[Message]) -> dict[str, Any]:
    """Return the network's name of each tensor by its name on record, if the card says that they differ.

    Raises:
        SpecError: the record has no numbered model of as many tensors.
    """
    if card.names is None or networks is None:
        return {}
    if isinstance(card.names, dict):
        return {"names": dict(card.names)}
    totals = set[int]()
    for message in messages:
        if message.kind in MODELS and numbered(message.tensors):
            totals.add(len(message.tensors))
    sizes = sorted(totals)
    shapes = networks.shared.tensor_shapes
    orders = {len(names): names for names in (list(networks.shared.parameter_shapes), list(shapes))}
    if len(sizes) != 1 or sizes[0] not in orders:
        recorded = " and ".join(map(str, sizes)) or "no numbered"
        counts = " or ".join(map(str, sorted(orders)))
        problem = f"needs models of {counts} tensors, as the network has, and the record has {recorded}"
        raise SpecError("card.names", card.names, problem, "Name the tensors one by one, or correct `model`.")
    by_number: dict[str, str] = {}
    for i, name in enumerate(orders[sizes[0]]):
        by_number[str(i)] = name
    return {"names": by_number}
