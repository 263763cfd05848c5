"""Attachment of a spec's and a protocol's defences: to messages by kind and sender, to training by its target."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

import torch

from fdaudit import defenses
from fdaudit.config import Config, validate
from fdaudit.errors import SpecError, nearest
from fdaudit.federation.networks import Networks
from fdaudit.federation.protocol import FederatedProtocol, ProtocolConfig, applies, has_public_index
from fdaudit.spec.schema import DefenseEntry, ModelSpec
from fdaudit.training.private_step import unfit
from fdaudit.transcript.wire import Defense, ReceiptCheck
from fdaudit.types import DefenseSpec, GradientRule, Trained

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
    listed += [(f"protocol.defenses.{spec.kind}", spec) for spec in config.defenses()]
    for where, spec in listed:
        cls = defenses.REGISTRY.load(spec.name, f"{where}.name")
        defenses.REGISTRY.called(spec.name, f"{where}.name")
        entry = _Entry(where, spec, cls, protocol, config)
        key = (str(spec.kind), spec.sender)
        if cls.card.at != spec.at:
            problem = f"acts at {cls.card.at}, not at {spec.at}"
            raise entry.refusal("name", spec.name, problem, f"Set at to {cls.card.at!r}, or choose another.")
        if spec.at == "receipt":
            checks[key] = (*checks.get(key, ()), entry.receipt_check())
        elif spec.at == "message":
            messages[key] = (*messages.get(key, ()), entry.message_defense(clients))
        else:
            of: Trained = spec.of or "model"
            if of in training:
                problem = "is the second defence on one training"
                raise entry.refusal("name", spec.name, problem, "Keep one of them.")
            training[of], entries[of] = entry.gradient_rule(of), where
    _refuse_recast(listed, messages)
    return Attached(messages, training, entries, checks)


def _refuse_recast(
    listed: Sequence[tuple[str, DefenseSpec]], messages: Mapping[tuple[str, str], tuple[Defense, ...]]
) -> None:
    """Refuse a public index on others' messages if a defence changes the kind of the clients' answers."""
    recasting: list[str] = []
    for (_, sender), attached in messages.items():
        for defense in attached:
            if sender == "client" and defense.card.makes:
                recasting.append(defense.card.name)
    for where, spec in listed:
        is_relayed = spec.sender != "client" and spec.kind != "vote_counts"
        if recasting and is_relayed and spec.params.get("public_index"):
            field = f"{where}.params.public_index"
            problem = f"is no promise of the protocol where {recasting[0]} changes what clients answer"
            raise SpecError(field, True, problem, "Leave it out, or remove one of them.")


@dataclass(frozen=True, eq=False)
class _Entry:
    """A listed defence and the protocol that it is attached to; its methods build the defence, or refuse it.

    Attributes:
        where: the user's field, for errors.
        spec: the defence's name, place and settings.
        cls: its class.
        protocol: the protocol, with its messages.
        config: the protocol's settings.
    """

    where: str
    spec: DefenseSpec
    cls: type[Defense]
    protocol: type[FederatedProtocol]
    config: ProtocolConfig

    def refusal(self, field: str, value: object, problem: str, remedy: str) -> SpecError:
        return SpecError(f"{self.where}.{field}", value, problem, remedy)

    def receipt_check(self) -> ReceiptCheck:
        spec, name = self.spec, self.protocol.card.name
        if not any("client" in m["to"] for m in self._sends() if m["kind"] == spec.kind):
            problem = f"goes to no client in {name}, and clients check what they receive"
            remedy = "Name a kind that the server sends to clients."
            raise self.refusal("kind", spec.kind, problem, remedy)
        self._refuse_unfit({str(spec.kind)})
        return cast("type[ReceiptCheck]", self.cls)(self._settings())

    def message_defense(self, clients: int) -> Defense:
        sends = self._sends()
        # Messages that one setting chooses between replace each other.
        conditions: list[Collection[str]] = []
        for m in sends:
            if m["kind"] == self.spec.kind:
                conditions.append(m.get("when", {}).keys())
        readable = set()
        for m in self._declared():
            if m in sends or m.get("when", {}).keys() in conditions:
                readable.add(m["kind"])
        self._refuse_unfit(readable)
        settings, sender, kind = self._settings(), self.spec.sender, str(self.spec.kind)
        # A defence may rely on a random draw of one client only if the protocol declares the draw.
        claimed, candidates = getattr(settings, "drawn_from", 1), self.config.drawn_from(clients)
        if claimed not in (1, candidates):
            subject, allowed = "every client is", "1"
            if candidates > 1:
                subject, allowed = f"one of {candidates} clients is", f"{candidates} or 1"
            problem = f"is not what these settings do: {subject} asked a step"
            raise self.refusal("params.drawn_from", claimed, problem, f"Set it to {allowed}.")
        # It may call an index public only if the protocol's card promises it.
        claims_public = getattr(settings, "public_index", False)
        if claims_public and not has_public_index(self.protocol, self.config, kind, sender):
            message = f"{kind} of a {sender} in {self.protocol.card.name} with these settings"
            problem = f"is not what the protocol declares of {message}: private data may decide the index"
            remedy = "Set it to false, or choose settings under which every sample that was asked about is answered."
            raise self.refusal("params.public_index", True, problem, remedy)
        return self.cls(settings)

    def gradient_rule(self, of: Trained) -> GradientRule:
        card = self.protocol.card
        trains: Mapping[str, str] = {**card.trains, **card.averages}
        if of not in trains:
            problem = f"is nothing that clients of {card.name} train by themselves"
            remedy = "Remove it, or choose another protocol."
            if trains:
                remedy = f"They train: {', '.join(trains)}."
            raise self.refusal("of", of, problem, remedy)
        batch_size = getattr(self.config, trains[of])
        return cast("type[GradientRule]", self.cls)(self._settings(), batch_size)

    def _settings(self) -> Config:
        return validate(self.cls.Config, self.spec.params, f"{self.where}.params")

    def _declared(self) -> list[Mapping[str, Any]]:
        messages: list[Mapping[str, Any]] = []
        for m in self.protocol.card.declared_messages:
            if m["from"] == self.spec.sender:
                messages.append(m)
        return messages

    def _sends(self) -> list[Mapping[str, Any]]:
        """Refuse a kind of message that the sender never sends; return the declarations of all that it sends."""
        sender, kind = self.spec.sender, self.spec.kind
        sends: list[Mapping[str, Any]] = []
        kinds: set[str] = set()
        for m in self._declared():
            if not applies(m.get("when", {}), self.config):
                continue
            sends.append(m)
            if "made_of" not in m:
                kinds.add(m["kind"])
        if kind not in kinds:
            # A defence on a message that is never sent would silently protect nothing.
            problem = f"is never sent by a {sender} in {self.protocol.card.name} with these settings"
            raise self.refusal("kind", kind, problem, nearest(str(kind), sorted(kinds) or ["nothing"]))
        return sends

    def _refuse_unfit(self, readable: Collection[str]) -> None:
        """Refuse a defence on a kind that it cannot treat, or whose output kind no party reads."""
        spec, kind, accepts = self.spec, str(self.spec.kind), self.cls.card.accepts
        if accepts and kind not in accepts:
            problem = f"is no kind that {spec.name} can treat"
            raise self.refusal("kind", kind, problem, f"It treats: {', '.join(accepts)}.")
        output = self.cls.card.makes or kind
        if output not in readable:
            protocol = self.protocol.card.name
            problem = f"makes {output} of {kind}, which {protocol} cannot read from a {spec.sender}"
            raise self.refusal("name", spec.name, problem, "Choose another defence.")


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
        module = network.build(torch.Generator().manual_seed(0))
        problem = unfit(module, network.input_shape, tried=not network.imported, words=network.words)
        if problem is not None:
            name = attached.training["model"].describe()["name"]
            remedy = f"Choose a network without it, or remove {attached.entries['model']}."
            if network.params.get("norm") == "batch":
                remedy = f"Set {where}.params.norm to 'group'."
            raise SpecError(f"{where}.name", entry.name, f"cannot be trained by {name}: {problem}", remedy)
