"""Attachment of a spec's and a protocol's defences: to messages by kind and sender, to training by its target."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, cast

import torch

from fdaudit import defenses
from fdaudit.config import validate
from fdaudit.errors import SpecError, nearest
from fdaudit.federation.protocol import FederatedProtocol, ProtocolConfig, applies, has_public_index
from fdaudit.training.private_step import unfit
from fdaudit.transcript.wire import Defense, ReceiptCheck, acts_in_training
from fdaudit.types import DefenseSpec, GradientRule, Trained

if TYPE_CHECKING:
    from fdaudit.config import Config
    from fdaudit.federation.networks import Networks
    from fdaudit.models import Architecture
    from fdaudit.spec.schema import DefenseEntry, ModelSpec

__all__ = ["Attached", "attach", "refuse_untrainable"]


@dataclass(frozen=True, eq=False)
class Attached:
    """Built defences.

    Attributes:
        messages: defences by (kind, sender role), in the order in which they act.
        training: gradient rules by the trained object.
        entries: the spec's field of each training defence, by the trained object.
        checks: what clients check of messages that they receive, by (kind, sender role).
    """

    messages: Mapping[tuple[str, str], tuple[Defense, ...]]
    training: Mapping[Trained, GradientRule]
    entries: Mapping[Trained, str]
    checks: Mapping[tuple[str, str], tuple[ReceiptCheck, ...]] = field(default_factory=dict)


def attach(
    asked: Sequence[DefenseEntry], protocol: type[FederatedProtocol], config: ProtocolConfig, clients: int
) -> Attached:
    """Return the defences that a spec asks for, followed by those of the protocol's own settings.

    Args:
        asked: the spec's defences.
        protocol: the protocol, with its messages.
        config: its settings.
        clients: number of clients.

    Raises:
        SpecError: a defence would act on nothing, twice, or where it does not belong.
    """
    messages: dict[tuple[str, str], tuple[Defense, ...]] = {}
    training: dict[Trained, GradientRule] = {}
    entries: dict[Trained, str] = {}
    checks: dict[tuple[str, str], tuple[ReceiptCheck, ...]] = {}
    listed = [(f"defenses.{n}", DefenseSpec(**entry.model_dump())) for n, entry in enumerate(asked)]
    listed += [(f"protocol.defenses.{entry.kind}", entry) for entry in config.defenses()]
    for where, entry in listed:
        cls = defenses.REGISTRY.load(entry.name, f"{where}.name")
        defenses.REGISTRY.called(entry.name, f"{where}.name")
        if cls.card.at != entry.at:
            problem = f"acts at {cls.card.at}, not at {entry.at}"
            raise SpecError(
                f"{where}.name", entry.name, problem, f"Set at to {cls.card.at!r}, or choose another."
            )
        if entry.at == "receipt":
            sends = _refuse_unsent(where, entry, protocol, config)
            kind = str(entry.kind)
            if not any("client" in m["to"] for m in sends if m["kind"] == kind):
                problem = f"goes to no client in {protocol.card.name}, and clients check what they receive"
                raise SpecError(
                    f"{where}.kind", kind, problem, "Name a kind that the server sends to clients."
                )
            _refuse_unfit(where, kind, entry, cls, protocol, {kind})
            check = cast("type[ReceiptCheck]", cls)(validate(cls.Config, entry.params, f"{where}.params"))
            checks[kind, entry.sender] = (*checks.get((kind, entry.sender), ()), check)
            continue
        if not acts_in_training(cls):
            key, defense = _on_messages(where, entry, protocol, config, cls, clients)
            messages[key] = (*messages.get(key, ()), defense)
            continue
        of: Trained = entry.of or "model"
        if of in training:
            problem = "is the second defence on one training"
            raise SpecError(f"{where}.name", entry.name, problem, "Keep one of them.")
        training[of], entries[of] = _in_training(where, entry, of, protocol, config, cls), where
    _refuse_recast(listed, messages)
    return Attached(messages, training, entries, checks)


def _refuse_recast(
    entries: Sequence[tuple[str, DefenseSpec]], messages: Mapping[tuple[str, str], tuple[Defense, ...]]
) -> None:
    """Refuse a public index on others' messages if a defence changes the kind of the clients' answers."""
    recasting = []
    for (_, sender), attached in messages.items():
        if sender == "client":
            recasting += [defense.card.name for defense in attached if defense.card.makes]
    if not recasting:
        return
    for where, entry in entries:
        is_relayed = entry.sender != "client" and entry.kind != "vote_counts"
        if is_relayed and entry.params.get("public_index"):
            problem = f"is no promise of the protocol where {recasting[0]} changes what clients answer"
            raise SpecError(
                f"{where}.params.public_index", True, problem, "Leave it out, or remove one of them."
            )


def _on_messages(
    where: str,
    entry: DefenseSpec,
    protocol: type[FederatedProtocol],
    config: ProtocolConfig,
    cls: type[Defense],
    clients: int,
) -> tuple[tuple[str, str], Defense]:
    sends = _refuse_unsent(where, entry, protocol, config)
    declared = [m for m in protocol.card.declared_messages if m["from"] == entry.sender]
    # Messages that one setting chooses between replace each other.
    settings = [m.get("when", {}).keys() for m in sends if m["kind"] == entry.kind]
    readable = [m for m in declared if m in sends or m.get("when", {}).keys() in settings]
    _refuse_unfit(where, str(entry.kind), entry, cls, protocol, {m["kind"] for m in readable})
    params = validate(cls.Config, entry.params, f"{where}.params")
    _refuse_unfounded(where, params, clients, config)
    _refuse_public_index(where, params, entry, protocol, config)
    return (str(entry.kind), entry.sender), cls(params)


def _refuse_unsent(
    where: str, entry: DefenseSpec, protocol: type[FederatedProtocol], config: ProtocolConfig
) -> list[Mapping[str, Any]]:
    """Refuse a kind of message that the sender never sends; return the declarations of all that it sends."""
    declared = [m for m in protocol.card.declared_messages if m["from"] == entry.sender]
    sends = [m for m in declared if applies(m.get("when", {}), config)]
    kinds = sorted({m["kind"] for m in sends if "made_of" not in m})
    if entry.kind is None or entry.kind not in kinds:
        # A defence on a message that is never sent would silently protect nothing.
        problem = f"is never sent by a {entry.sender} in {protocol.card.name} with these settings"
        raise SpecError(f"{where}.kind", entry.kind, problem, nearest(str(entry.kind), kinds or ["nothing"]))
    return sends


def _refuse_unfounded(where: str, params: Config, clients: int, config: ProtocolConfig) -> None:
    """Refuse a defence that relies on a random draw of one client if the protocol does not declare the draw."""
    claimed, candidates = getattr(params, "drawn_from", 1), config.drawn_from(clients)
    if claimed in (1, candidates):
        return
    subject, allowed = "every client is", "1"
    if candidates > 1:
        subject, allowed = f"one of {candidates} clients is", f"{candidates} or 1"
    problem = f"is not what these settings do: {subject} asked a step"
    raise SpecError(f"{where}.params.drawn_from", claimed, problem, f"Set it to {allowed}.")


def _refuse_public_index(
    where: str, params: Config, entry: DefenseSpec, protocol: type[FederatedProtocol], config: ProtocolConfig
) -> None:
    """Refuse a defence that calls an index public if the protocol's card does not promise it."""
    claims_public = getattr(params, "public_index", False)
    if claims_public and not has_public_index(protocol, config, str(entry.kind), entry.sender):
        message = f"{entry.kind} of a {entry.sender} in {protocol.card.name} with these settings"
        problem = f"is not what the protocol declares of {message}: private data may decide the index"
        remedy = (
            "Set it to false, or choose settings under which every sample that was asked about is answered."
        )
        raise SpecError(f"{where}.params.public_index", True, problem, remedy)


def _refuse_unfit(
    where: str,
    kind: str,
    entry: DefenseSpec,
    cls: type[Defense],
    protocol: type[FederatedProtocol],
    read: Collection[str],
) -> None:
    """Refuse a defence on a kind that it cannot treat, or whose output kind no party reads."""
    accepts = cls.card.accepts
    if accepts and kind not in accepts:
        problem = f"is no kind that {entry.name} can treat"
        raise SpecError(f"{where}.kind", kind, problem, f"It treats: {', '.join(accepts)}.")
    output = cls.card.makes or kind
    if output not in read:
        problem = f"makes {output} of {kind}, which {protocol.card.name} cannot read from a {entry.sender}"
        raise SpecError(f"{where}.name", entry.name, problem, "Choose another defence.")


def _in_training(
    where: str,
    entry: DefenseSpec,
    of: Trained,
    protocol: type[FederatedProtocol],
    config: ProtocolConfig,
    cls: type[GradientRule],
) -> GradientRule:
    trains: Mapping[str, str] = {**protocol.card.trains, **protocol.card.averages}
    if of not in trains:
        problem = f"is nothing that clients of {protocol.card.name} train by themselves"
        remedy = f"They train: {', '.join(trains)}." if trains else "Remove it, or choose another protocol."
        raise SpecError(f"{where}.of", of, problem, remedy)
    return cls(validate(cls.Config, entry.params, f"{where}.params"), getattr(config, trains[of]))


def _unfit(network: Architecture) -> str | None:
    module = network.build(torch.Generator().manual_seed(0))
    return unfit(module, network.input_shape, tried=not network.imported, words=network.words)


def refuse_untrainable(
    attached: Attached, model: ModelSpec, client_models: Sequence[ModelSpec], networks: Networks
) -> None:
    """Refuse a training defence on a network that does not give separate gradients for each record.

    Args:
        attached: the defences.
        model: what the spec says of the shared network.
        client_models: what it says of the clients' own.
        networks: these networks.

    Raises:
        SpecError: a network is unsuitable; the error names the layer, and the replacement if the model has one.
    """
    if "model" not in attached.training:
        return
    pairs = zip(client_models, networks.clients, strict=True) if networks.clients else ()
    listed = [(f"client_models.{n}", entry, network) for n, (entry, network) in enumerate(pairs)]
    for where, entry, network in listed or [("model", model, networks.shared)]:
        problem = _unfit(network)
        if problem is not None:
            name = attached.training["model"].describe()["name"]
            remedy = f"Choose a network without it, or remove {attached.entries['model']}."
            if network.params.get("norm") == "batch":
                remedy = f"Set {where}.params.norm to 'group'."
            raise SpecError(f"{where}.name", entry.name, f"cannot be trained by {name}: {problem}", remedy)
