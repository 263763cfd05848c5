"""Checks of a record against its card and its truth: what they contradict, what is odd, and what nothing can check."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from fdaudit.errors import SpecError
from fdaudit.events import Composed, Gaussian, event_from_json
from fdaudit.importing.message_check import (
    refuse_other_tensors,
    refuse_strange_classes,
    refuse_varied_sizes,
)
from fdaudit.kinds import KINDS, MODELS
from fdaudit.names import visible
from fdaudit.planning.message_sizes import fixed_sizes
from fdaudit.spec.card import MessageFacts
from fdaudit.storage.files import decode
from fdaudit.transcript.encoding import STATES, Naming, is_counter, numbered, readable, shapes_of
from fdaudit.transcript.messages import ALL, DATA, Message, role
from fdaudit.transcript.payloads import read_payload

if TYPE_CHECKING:
    from fdaudit.planning.case import Case

__all__ = [
    "asserted",
    "contradictions",
    "first_of",
    "not_finite",
    "oddities",
    "prefix_of",
    "refuse_false_card",
]

Uses = Mapping[int, Sequence[int]]
Shapes = Mapping[str, tuple[int, ...]]

_MOST_SHOWN = 20
"""Contradictions that are listed one by one."""
_UNDESCRIBED = MessageFacts.model_fields["what"].default


def refuse_false_card(case: Case, transcript: Path, messages: Sequence[Message]) -> None:
    """Refuse a card that the record contradicts.

    Raises:
        SpecError: the number of clients or classes, the shape of images, the network or the number of rounds cannot be
            true.
    """
    card = case.system.card
    if card.clients is not None and card.clients != len(case.clients):
        problem = f"differs from the record, which names {len(case.clients)} clients"
        raise SpecError("card.clients", card.clients, problem, "Correct it, or leave it out.")
    rounds = len({m.round for m in messages})
    planned = card.training.rounds
    if planned is not None and planned < rounds:
        problem = f"is less than the {rounds} rounds on record"
        raise SpecError("card.training.rounds", planned, problem, "Correct it.")
    _refuse_false_attestation(case, messages)
    refuse_other_tensors(card.classes, messages)
    refuse_strange_classes(card.classes, transcript, messages)
    refuse_varied_sizes(card, fixed_sizes(case), messages)
    classes, shape = card.classes, card.input_shape
    networks: dict[int, Shapes] = {}  # by identity: clients share networks
    for message in messages:
        if message.kind in KINDS:
            sizes = KINDS[message.kind].sizes(shapes_of(message.tensors))
            contradiction = None
            if sizes.get("C", classes) != classes:
                contradiction = f"has {sizes['C']} entries a row"
            elif message.kind == "hard_labels" and message.payload is not None:
                values = readable(decode(read_payload(transcript, message))).get("values")
                if values is not None and values.numel() and (most := int(values.long().max())) >= classes:
                    contradiction = f"has a label {most}"
            if contradiction is not None:
                problem = f"cannot be true: message {message.seq}, {message.kind}, {contradiction}"
                raise SpecError("card.classes", classes, problem, "Correct it.")
            on_record = tuple(map(sizes.get, "chw"))
            if None not in on_record and on_record != shape:
                images = "x".join(map(str, on_record))
                problem = f"cannot be true: message {message.seq}, {message.kind}, holds images of {images}"
                raise SpecError("card.input_shape", list(shape), problem, "Correct it.")
        if message.kind in MODELS and card.model is not None:
            party = message.sender if role(message.sender) == "client" else "server"
            network = case.named_networks.of(party)
            if id(network) not in networks:
                networks[id(network)] = network.tensor_shapes
            _refuse_other_network(networks[id(network)], network.name, Naming.of(case.settings), message)


def _refuse_false_attestation(case: Case, messages: Sequence[Message]) -> None:
    """Refuse an attested defence of messages that are not there, or of a sender drawn from more than all clients."""
    kinds = {(m.kind, role(m.sender)) for m in messages}
    for number, attested in enumerate(case.system.card.attested):
        field = f"card.attested.{number}"
        if (attested.kind, attested.sender) not in kinds:
            problem = f"is attested of a {attested.sender}, and the record has no such message"
            raise SpecError(f"{field}.kind", attested.kind, problem, "Correct it, or remove it.")
        event = event_from_json(attested.event)
        parts = event.parts if isinstance(event, Composed) else (event,)
        for part in parts:
            if isinstance(part, Gaussian) and part.drawn_from > len(case.clients):
                problem = f"is more than the {len(case.clients)} clients of the record"
                raise SpecError(f"{field}.event.drawn_from", part.drawn_from, problem, "Correct it.")


def _refuse_other_network(network: Shapes, name: str, naming: Naming, message: Message) -> None:
    """Refuse a network whose tensors are not those of a model on record."""
    for tensor, info in message.tensors.items():
        own = naming.own(tensor)
        due = network.get(own)
        if is_counter(own) or due == tuple(info.shape):
            continue
        remedy = "Name the network that the system trains, with its parameters."
        if due is None:
            names = ", ".join(list(network)[:3])
            problem = f"does not fit message {message.seq}: it has no tensor {tensor[:60]!r}, but {names}, …"
            if prefix := prefix_of(list(message.tensors), network):
                remedy = f"The names on record begin with {prefix!r}: state `prefix: {prefix}` in the card."
            elif numbered(message.tensors):
                remedy = "The names on record are numbers: state `names: by-position` in the card."
            elif {*STATES} & {*tensor.split("/"), *tensor.split(".")}:
                remedy = "Record an optimiser's state as messages of its own, of the kind optimizer_state."
        else:
            shapes = f"{tuple(info.shape)}, not {due}"
            problem = f"does not fit message {message.seq}: {tensor[:60]!r} is {shapes}"
        raise SpecError("card.model", name, problem, remedy)


def prefix_of(sent: Sequence[str], network: Shapes) -> str:
    """Return what stands before a network's names in all names of a model on record; empty if they do not fit so."""
    for name in network:
        if sent[0].endswith(f".{name}"):
            prefix = sent[0].removesuffix(name)
            if all(other.removeprefix(prefix) in network or is_counter(other) for other in sent):
                return prefix
    return ""


def contradictions(case: Case, messages: Sequence[Message], uses: Uses | None) -> list[str]:
    """Return what the truth contradicts in the record's lines or in its card, one sentence each."""
    sentences: list[str] = []
    for seq, records in (uses or {}).items():
        if seq >= len(messages):
            sentences.append(f"uses.jsonl names message {seq}, and the record has {len(messages)}")
            continue
        message = messages[seq]
        if role(message.sender) != "client":
            sender = f"{message.sender} sent, no client"
            sentences.append(f"uses.jsonl names records behind message {seq}, which {sender}")
        else:
            # Inputs may reach the sender's data through a release inside the sender.
            if (
                message.inputs != ALL
                and DATA not in message.inputs
                and not any(
                    isinstance(i, int)
                    and messages[i].kind == "release"
                    and messages[i].sender == message.sender
                    for i in message.inputs
                )
            ):
                problem = "declares inputs without the sender's data, and uses.jsonl names records behind it"
                narrow = "its inputs are declared too narrow"
                sentences.append(f"message {seq} of {message.sender} {problem}: {narrow}")
            total = len(case.numbered(message.sender))
            if total and records and max(records) >= total:
                use = f"record {max(records)} of {message.sender}, which has {total}"
                sentences.append(f"uses.jsonl: message {seq} used {use}")
            elif total:
                sentences += _left_out_but_used(case, message, records)
        sentences += _too_many(case.settings, message, records)
    if len(sentences) > _MOST_SHOWN:
        sentences = [*sentences[:_MOST_SHOWN], f"and {len(sentences) - _MOST_SHOWN} more of the like"]
    return sentences


def _left_out_but_used(case: Case, message: Message, records: Sequence[int]) -> Iterator[str]:
    """Yield a sentence if a message used a record that the coins left out of the training."""
    split = case.splits.clients[int(message.sender.partition("/")[2])]
    rows = case.numbered(message.sender)[torch.tensor(records, dtype=torch.int64)]
    used = rows[torch.isin(rows, split.non_members)]
    if len(used):
        yield f"message {message.seq} of {message.sender} used {len(used)} records that its coins left out"


def _too_many(settings: Mapping[str, Any], message: Message, records: Sequence[int]) -> Iterator[str]:
    """Yield a sentence if more records are behind an upload than its steps can hold."""
    size, steps = settings.get("batch_size"), settings.get("local_steps")
    if message.kind == "gradient":
        steps = 1
    if message.kind in MODELS and size is not None and steps is not None and len(records) > size * steps:
        most = f"{steps} steps of {size} records, as the card says, use at most {size * steps}"
        yield f"uses.jsonl names {len(records)} records behind message {message.seq}: {most}"


def not_finite(transcript: Path, messages: Sequence[Message]) -> dict[int, str]:
    """Return by number the messages that hold NaN or infinite values, each with a sentence that counts them.

    No attack reads such a message: a single NaN reaches every result that it is used for.
    """
    sentences = {}
    for message in messages:
        if message.payload is None:
            continue
        counts = []
        for name, tensor in readable(decode(read_payload(transcript, message))).items():
            if tensor.is_floating_point() and (count := int((~torch.isfinite(tensor)).sum())):
                counts.append(f"{count} of {tensor.numel()} values of {visible(name)[:60]}")
        if counts:
            problem = f"is not finite: {first_of(counts, 3)}. It is left out, and attacks read the others."
            sentences[message.seq] = f"Message {message.seq} of {message.sender}, {message.kind}, {problem}"
    return sentences


def first_of(words: Sequence[str], most: int) -> str:
    """Return the first words with commas, and a sign if there are more."""
    shown = list(words[:most])
    if len(words) > most:
        shown.append("…")
    return ", ".join(shown)


def _missing_rounds(messages: Sequence[Message]) -> Iterator[str]:
    """Yield a sentence for the first clients and kinds that miss a round in which other clients send the kind."""
    rounds_of: dict[str, set[int]] = {}  # of each kind
    sent_in: dict[tuple[str, str], set[int]] = {}  # by client and kind
    asked_in: dict[str, set[int]] = {}  # by the party that received a message
    for message in messages:
        if role(message.sender) == "client":
            rounds_of.setdefault(message.kind, set()).add(message.round)
            sent_in.setdefault((message.sender, message.kind), set()).add(message.round)
        else:
            for party in message.receivers:
                asked_in.setdefault(party, set()).add(message.round)
    shown = 0
    for sender, kind in sorted(sent_in):
        if kind == "silence":
            continue
        if shown == _MOST_SHOWN:
            yield "Other senders may miss messages too; only the first are listed."
            return
        missing = rounds_of[kind] - sent_in[sender, kind] - sent_in.get((sender, "silence"), set())
        why = "it was not asked, it was silent, or a message is missing"
        if sender in asked_in:  # clients are sampled: whoever received nothing in a round owes nothing
            missing &= asked_in[sender]
            why = "it received a message in that round, and it was silent or its answer is missing"
        if missing:
            numbers = first_of(list(map(str, sorted(missing))), 5)
            yield f"{sender} sends no {kind} in round {numbers}, in which others do: {why}."
            shown += 1


def oddities(case: Case, messages: Sequence[Message]) -> list[str]:
    """Return what looks like a missing message, one sentence each."""
    card = case.system.card
    sentences = list(_missing_rounds(messages))
    planned, closed = card.training.rounds, len({m.round for m in messages})
    if planned is not None and planned > closed:
        on_record = f"{closed} are on record: attacks and ledger cover these."
        sentences.append(f"The card plans {planned} rounds, and {on_record}")
    if unread := sorted({m.kind for m in messages} - KINDS.keys()):
        sentences.append(f"No attack reads {', '.join(unread)}: what these messages tell is not measured.")
    published = any(m.kind == "model_parameters" and "world" in m.receivers for m in messages)
    if published and card.release == "api":
        sentences.append(
            "The card says that others ask the model and do not hold it, and the record hands its weights to the world."
            " Attacks by the world hold them."
        )
    heard = {party for m in messages for party in m.parties()}
    never = [client for client in case.clients if client not in heard]
    fate = "is named in the record and neither sends nor receives a message."
    sentences += [f"{client} {fate}" for client in never[:_MOST_SHOWN]]
    if len(never) > _MOST_SHOWN:
        sentences.append(f"{len(never) - _MOST_SHOWN} more clients neither send nor receive a message.")
    coins = case.system.coins
    if coins is not None and not coins.images:
        sentences.append(
            "The coins were tossed for the labels: the commitment does not cover the images that were added."
        )
    if any(bool(m.defenses) or m.event is not None for m in messages) and not card.attested:
        sentences.append(
            "Messages state defences. Nobody answers for them in the card, so the ledger ignores them."
        )
    return sentences


def asserted(case: Case, messages: Sequence[Message]) -> list[str]:
    """Return what the recorder asserts and nothing here can check, one sentence each."""
    card = case.system.card
    who = card.asserted_by[:1].upper() + card.asserted_by[1:]
    sentences = [
        f"{who} asserts that every message is on record. A message that was never recorded leaves no trace.",
        f"{who} asserts who sent and received each message, and the kind of each.",
        "The federation is assumed to have computed with the recorded bytes.",
    ]
    stated = []
    for name, value in sorted(case.settings.items()):
        if value is not None and name not in ("rounds", "upload", "defenses", "prefix", "names"):
            stated.append(f"{name} = {value}")
    if stated:
        sentences.append(f"The card states {', '.join(stated)}.")
    if card.preprocess is not None:
        low, high = card.preprocess.range
        scaled = "".join(f", {name} {list(v)}" for name, v in card.preprocess.channels.items())
        sentences.append(f"The card states that networks get images in [{low:g}, {high:g}]{scaled}.")
    if card.model is not None:
        evidence = "no tensor on record shows it"
        if any(message.kind in MODELS for message in messages):
            evidence = "names and shapes of its tensors fit, its layers are asserted"
        sentences.append(f"The network is {card.model.name}: {evidence}.")
    if card.inputs_attested_by:
        sentences.append(f"{card.inputs_attested_by} answers for the inputs of the messages.")
    else:
        sentences.append(
            "Inputs that messages declare are ignored: each message counts as computed from all that its sender held."
        )
    if card.transport == "encrypted":
        consequence = "nobody answers for it, so the ledger reads it as plain"
        if card.transport_attested_by:
            rests = "an eavesdropper's ε rests on that, and on sizes that tell nothing"
            consequence = f"{card.transport_attested_by} answers for it: {rests}"
        sentences.append(f"{who} asserts that the transport is encrypted; {consequence}.")
    if (coins := case.system.coins) is not None:
        digest = f"{coins.commitment[:12]}…"
        sentences.append(
            f"{who} asserts that the coins were tossed before the training. Compare their commitment, {digest}, with"
            " the one that was published then."
        )
        sentences.append(
            "That each site left out the records on its list is checked only where uses.jsonl names records."
        )
    for stated_message in card.messages:
        if stated_message.what != _UNDESCRIBED:
            of = f"{stated_message.kind} of a {stated_message.sender}"
            sentences.append(f"{who} says of {of}: {stated_message.what}.")
    for attested in card.attested:
        defence = f"the defence on {attested.kind} of a {attested.sender}"
        sentences.append(f"{attested.by} answers for {defence}; nothing here tests it.")
    if card.attested:
        sentences.append(
            "An attested defence lowers ε in the ledger as if it were true. Its attacks' figures do not depend on it."
        )
    return [*sentences, *card.trust]
