"""Oracle access: the models that an adversary may ask under a run's settings, and the cost of their answers.

Guarantees:
  * the right to ask follows from the protocol's card, the run's settings and its record, never from an attack's
    questions: auditing a run does not change its ε;
  * an adversary gets a client's answer only if it receives the messages in which clients answer;
  * answers are charged as computed from the message that published the model; if no message did, as computed from
    everything that the model was fitted on.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import TYPE_CHECKING

import torch

from fdaudit.accounting.ledger import OracleAnswers, may_ask
from fdaudit.events import Composed, Event, Mechanism, NoGuarantee
from fdaudit.federation.local_training import joined
from fdaudit.kinds import ANSWERS
from fdaudit.rng import SecretStream
from fdaudit.storage.vault import Vault
from fdaudit.transcript.encoding import readable
from fdaudit.transcript.messages import ALL, Inputs, Message, role

if TYPE_CHECKING:
    from torch import Tensor

    from fdaudit.adversary.forms import Forms
    from fdaudit.planning.case import Case

__all__ = [
    "RELEASED",
    "Access",
    "accesses",
    "answered_by",
    "defended_answers",
    "exposed",
    "finished",
    "oracle_answers",
    "published",
]

RELEASED = "released-model"
"""Kinds of message in which clients answer samples."""


@dataclass(frozen=True, kw_only=True)
class Access:
    """One oracle of a run.

    Attributes:
        name: name in the protocol's declaration.
        asked_by: roles that may ask.
        heard_by: roles that receive the answers.
        answers: answers of the released model: `soft`, `hard`. Clients answer in `kind`.
        kind: the kind of message in which clients answer; None for the released model.
    """

    name: str
    asked_by: frozenset[str]
    heard_by: frozenset[str]
    answers: tuple[str, ...]
    kind: str | None = None

    @property
    def available_to(self) -> tuple[str, ...]:
        """Return the roles that can both ask and receive answers; if there are none, the coalitions that can."""
        alone = self.asked_by & self.heard_by
        coalitions = map("+".join, product(sorted(self.asked_by), sorted(self.heard_by)))
        return tuple(sorted(alone)) or tuple(coalitions)

    def open_to(self, members: Collection[str], transport: str) -> bool:
        """Return whether an adversary with these members can ask and receives the answers."""
        return may_ask(members, self.asked_by, self.heard_by, transport)


def accesses(case: Case) -> tuple[Access, ...]:
    """Return the oracles that exist under a run's settings, those on clients' models first.

    There are none if the spec disables oracles. The oracle on the released model exists if the settings have a model
    published, even if it is withheld. An oracle on clients' models exists if clients answer samples.
    """
    if not case.spec.oracles:
        return ()
    oracles = []
    for declared in case.protocol.card.oracles:
        asked_by = frozenset(map(role, declared["available_to"]))
        kind, heard_by = None, asked_by
        if declared["name"] != RELEASED:
            clients_answers = answered_by(case)
            if clients_answers is None:
                continue
            kind, heard_by = clients_answers
        oracles.append(
            Access(
                name=declared["name"],
                asked_by=asked_by,
                heard_by=heard_by,
                answers=tuple(declared["answers"]),
                kind=kind,
            )
        )
    return tuple(sorted(oracles, key=lambda access: access.kind is None))


def answered_by(case: Case) -> tuple[str, frozenset[str]] | None:
    """Return the kind of message in which clients answer samples, and its receiving roles; None without one."""
    receivers_by_kind: dict[str, set[str]] = {}
    for declared in case.declared_messages:
        if declared["from"] == "client" and declared["kind"] in ANSWERS:
            receivers_by_kind.setdefault(str(declared["kind"]), set()).update(declared["to"].split(", "))
    for kind, receivers in receivers_by_kind.items():
        return kind, frozenset(receivers)
    return None


def finished(case: Case, vault: Vault) -> bool:
    """Return whether a run reached its last round; a run that its budget ended did not."""
    checkpoint = vault.load_round()
    rounds: int = case.protocol_config.rounds
    return checkpoint is not None and checkpoint["round"] == rounds - 1


def published(messages: Sequence[Message], forms: Forms | None = None) -> Message | None:
    """Return the last message that published a whole model, or None; a part of a model answers nothing."""
    for message in reversed(messages):
        if message.kind != "model_parameters" or "world" not in message.receivers:
            continue
        if forms is None or not forms.misfit(message):
            return message
    return None


def defended_answers(
    case: Case, kind: str, logits: Tensor, noise: SecretStream, z_max: Tensor | None = None
) -> tuple[Tensor, Event | None]:
    """Return clients' answers after the defences on their messages, with their event.

    Args:
        case: the run's case.
        kind: the kind of message in which clients answer.
        logits: (n, C) of a client's model.
        noise: randomness of the defences.
        z_max: () range of logits that the parties agreed on, if they did.

    Returns:
        Probabilities (n, C) or classes (n,), and the first guarantee in the order in which the defences act.
    """
    values = {"logits": logits, "soft_labels": logits.softmax(1), "hard_labels": logits.argmax(1)}[kind]
    tensors: Mapping[str, Tensor] = {"index": torch.arange(len(logits)), "values": values}
    if z_max is not None and kind == "logits":
        tensors = {**tensors, "z_max": z_max}
    event: Event | None = None
    for defense in case.defenses.get((kind, "client"), ()):
        released = defense.release(kind, tensors, noise)
        kind, tensors = released.kind, readable(released.tensors)
        if event is None or isinstance(event, NoGuarantee):
            event = released.event
    answers = tensors["values"]
    if not answers.is_floating_point():  # classes, in whatever type a defence sends them
        answers = answers.long()
    elif kind == "logits":
        answers = answers.float().softmax(1)
    return answers, event


def oracle_answers(case: Case, messages: Sequence[Message], *, finished: bool = True) -> list[OracleAnswers]:
    """Return all answers that each oracle of a run may give, as messages that follow the record.

    Args:
        case: the run's case.
        messages: the whole record.
        finished: whether the run reached its last round. A run that its budget ended never deployed its model, so its
            model cannot be asked.
    """
    last_round = messages[-1].round if messages else 0
    answers: list[OracleAnswers] = []
    for access in sorted(accesses(case), key=lambda access: access.kind is not None):
        if access.kind is None:
            drafts = _of_released(case, messages, finished)
        else:
            drafts = _of_clients(case, access.kind, messages)
        for draft in drafts:
            message = replace(draft, seq=len(messages) + len(answers), round=last_round)
            answers.append(
                OracleAnswers(
                    message=message,
                    asked_by=access.asked_by,
                    heard_by=access.heard_by,
                    queries=case.spec.query_budget,
                )
            )
    return answers


def exposed(case: Case, members: Collection[str]) -> dict[str, Event | None]:
    """Return the parties whose own models an adversary may ask, each with the event of all possible answers.

    This is known before the run. A released model is included if its message is withheld or its sender will be silent
    in the last round. A published model answers from its message, which costs nothing more.
    """
    events: dict[str, Event | None] = {}
    for access in accesses(case):
        if not access.open_to(members, case.spec.transport):
            continue
        if access.kind is not None:
            events |= dict.fromkeys(case.clients, _of_budget(case, access.kind))
            continue
        last: int = case.protocol_config.rounds - 1
        for party in _holders(case):
            silent = any(o.party == party and o.first <= last <= o.last for o in case.outages)
            if silent or "model_parameters" in case.spec.withhold:  # it does not publish its model
                events[party] = None
    for member in members:
        events.pop(member, None)
    return events


def _holders(case: Case) -> tuple[str, ...]:
    """Return the holders of the model that the settings publish; empty if they publish none."""
    for declared in case.declared_messages:
        if declared["kind"] != "model_parameters" or "world" not in declared["to"].split(", "):
            continue
        if declared["from"] != "client":
            return (str(declared["from"]),)
        return case.clients[:1] if case.protocol.card.pools_data else case.clients
    return ()


def _of_released(case: Case, messages: Sequence[Message], finished: bool) -> Iterator[Message]:
    """Yield the answers of the released model: from the message that published it, or from its holder."""
    last = published(messages, case.forms)
    if last is not None:
        yield _draft(last.sender, (last.seq,))
    elif finished:
        for party in _holders(case):
            yield _draft(party, _fitted_on(party, messages))


def _of_clients(case: Case, kind: str, messages: Sequence[Message]) -> Iterator[Message]:
    """Yield the answers of each client's own model, with the inputs of its training and the noise on each answer."""
    event = _of_budget(case, kind)
    for party in case.clients:
        # An answer depends on at least the inputs of the client's answers in the run.
        of_answers: list[Inputs] = []
        for message in messages:
            if message.sender == party and message.kind == kind:
                of_answers.append(message.inputs)
        inputs = joined(_fitted_on(party, messages), *of_answers)
        yield _draft(party, inputs, event)


def _fitted_on(party: str, messages: Sequence[Message]) -> Inputs:
    """Return the inputs of a party's own model: its private trainings and received messages, or all that it holds."""
    trainings = set[int]()
    for message in messages:
        if message.kind != "release" or message.sender != party:
            continue
        for defense in message.defenses:
            if defense.get("of") == "model":
                trainings.add(message.seq)
    if not trainings:
        return ALL
    received = {message.seq for message in messages if party in message.receivers}
    return tuple(sorted(trainings | received))


def _of_budget(case: Case, kind: str) -> Event | None:
    """Return the event of all answers within the budget, asked one sample at a time: the most expensive way."""
    logits = torch.zeros(1, case.dataset.classes)
    _, event = defended_answers(case, kind, logits, SecretStream(bytes(32), "event of one answer"))
    if event is None or isinstance(event, NoGuarantee):
        return event
    budget = case.spec.query_budget
    if not isinstance(event, Composed):
        return replace(event, count=event.count * budget)
    parts: list[Mechanism] = []
    for part in event.parts:
        count = part.count * budget
        parts.append(replace(part, count=count))
    return Composed(parts=tuple(parts)) if len(parts) > 1 else parts[0]


def _draft(sender: str, inputs: Inputs, event: Event | None = None) -> Message:
    return Message(
        seq=0,
        round=0,
        step=0,
        sender=sender,
        receivers=(),
        kind="oracle_answer",
        inputs=inputs,
        event=event,
    )
