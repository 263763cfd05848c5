"""Whether a protocol's card, and the inputs of its messages, are true to what it sends."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from fdaudit.federation.protocol import FederatedProtocol, PartyData, ProtocolConfig, has_public_index
from fdaudit.kinds import KINDS, UNDECLARED
from fdaudit.tasks import Task
from fdaudit.testing.extensions import fail
from fdaudit.testing.federation import CLASSES, altered, records_of
from fdaudit.testing.running import ProtocolRun, ancestry
from fdaudit.transcript.encoding import shapes_of
from fdaudit.transcript.messages import ALL, DATA, role
from fdaudit.transcript.transcript import verify_transcript
from fdaudit.transcript.wire import Outage

__all__ = ["changed_messages", "check_dependence", "check_messages"]

_OTHER = "client/1"
"""The client whose records are exchanged."""


def check_messages(
    name: str, protocol: type[FederatedProtocol], config: ProtocolConfig, run: ProtocolRun
) -> None:
    """Check that the record is sound, and that every message is declared, well formed and of known inputs."""
    end = run.positions[-1]
    problems = verify_transcript(run.folder, head=end.head, count=end.seq)
    if problems:
        fail(name, f"leaves a damaged record: {problems[0]}")
    declared = set()
    for entry in protocol.card.declared_messages:
        for receiver in entry["to"].split(","):
            declared.add((entry["kind"], entry["from"], receiver.strip()))
    image = run.setting.input_shape if len(run.setting.input_shape) == 3 else ()
    known = {"C": CLASSES, **dict(zip("chw", image, strict=False))}
    for message in run.messages:
        for receiver in message.receivers:
            sent = (message.kind, role(message.sender), role(receiver))
            if sent not in declared and message.kind not in UNDECLARED:
                fail(name, "sends {} from {} to {}, which its card does not declare.".format(*sent))
        kind = KINDS.get(message.kind)
        if kind is not None:
            if misfit := kind.misfit(shapes_of(message.tensors), known):
                fail(name, f"sends a message that is not {message.kind}: {misfit}.")
            for tensor in kind.tensors:
                info = message.tensors.get(tensor.name)
                if info is not None and tensor.whole and info.dtype[0] not in "IU":
                    fail(name, f"sends {message.kind} with {tensor.name} that are not whole numbers.")
        if message.inputs == ALL:
            continue
        for source in message.inputs:
            if source == DATA:
                if role(message.sender) != "client":
                    fail(
                        name,
                        f"declares records as an input of {message.kind} from {message.sender}, who has none.",
                    )
            elif message.sender not in run.messages[int(source)].parties():
                fail(name, f"declares an input of {message.kind} that {message.sender} did not hold.")


def changed_messages(one: ProtocolRun, two: ProtocolRun) -> set[int] | None:
    """Return the numbers of the messages whose tensors differ; None if the runs send other messages at all."""
    if len(one.messages) != len(two.messages):
        return None
    numbers = set[int]()
    for a, b in zip(one.messages, two.messages, strict=True):
        if (a.sender, a.receivers, a.kind) != (b.sender, b.receivers, b.kind):
            return None
        if one.payload(a) != two.payload(b):
            numbers.add(a.seq)
    return numbers


def check_dependence(
    name: str,
    protocol: type[FederatedProtocol],
    config: ProtocolConfig,
    task: Task,
    run: Callable[..., ProtocolRun],
    whole: ProtocolRun,
) -> None:
    """Check that one client's records change only messages that declare them, and nothing if that client is silent.

    Args:
        name: of the protocol.
        protocol: its class.
        config: its settings.
        task: its learning task.
        run: runs it under a label.
        whole: its undisturbed run.
    """
    if protocol.card.pools_data:
        return
    others = altered(records_of(task), _OTHER)
    moved = run("other-records", clients=others)
    changed = changed_messages(whole, moved)
    if changed is None:
        fail(name, "lets private records decide who sends what; let public settings or the seed decide.")
    reached = ancestry(whole.messages)
    for seq in sorted(changed):
        if _OTHER not in reached[seq][0]:
            message = whole.messages[seq]
            problem = f"sends {message.kind} from {message.sender} that depends on the records of {_OTHER}"
            fail(
                name,
                f"{problem} and does not declare it; send what one party tells another through the wire.",
            )
    anew = run("new-records", clients=records_of(task, seed=1))
    if changed_messages(whole, anew) is None:
        fail(name, "lets private records decide who sends what; let public settings or the seed decide.")
    _check_sizes(name, whole, anew)
    _check_public_index(name, protocol, config, whole, anew)
    if any(has_public_index(protocol, config, m["kind"], m["from"]) for m in protocol.card.declared_messages):
        same = records_of(task)
        data = same[_OTHER]
        first_twice = PartyData(torch.cat([data.x, data.x[:1]]), torch.cat([data.y, data.y[:1]]))
        more = run("more-records", clients={**same, _OTHER: first_twice})
        # Passes over more records may take more messages. Then no message has a counterpart.
        if changed_messages(whole, more) is not None:
            _check_public_index(name, protocol, config, whole, more)
    _check_silent_records(name, config, run, {"here": records_of(task), "changed": others})


def _check_sizes(name: str, one: ProtocolRun, two: ProtocolRun) -> None:
    """Kinds of fixed size have the same size for other records."""
    for a, b in zip(one.messages, two.messages, strict=True):
        fixed = a.kind in KINDS and KINDS[a.kind].fixed_size
        if fixed and (a.tensors, a.bytes_on_wire) != (b.tensors, b.bytes_on_wire):
            fail(
                name,
                f"sends {a.kind} whose size depends on private records, although the kind has a fixed size.",
            )


def _check_public_index(
    name: str,
    protocol: type[FederatedProtocol],
    config: ProtocolConfig,
    one: ProtocolRun,
    two: ProtocolRun,
) -> None:
    """Public indices, and the rows of their messages, are the same for other records."""
    for a, b in zip(one.messages, two.messages, strict=True):
        if not has_public_index(protocol, config, a.kind, role(a.sender)):
            continue
        first, second = one.tensors(a), two.tensors(b)
        if a.tensors != b.tensors:
            fail(
                name, f"lets private records decide the rows of {a.kind}, whose index its card calls public."
            )
        if "index" in first and not torch.equal(first["index"], second["index"]):
            fail(name, f"lets private records decide the index of {a.kind}, which its card calls public.")


def _check_silent_records(
    name: str, config: ProtocolConfig, run: Callable[..., ProtocolRun], records: dict[str, Any]
) -> None:
    """The records of a client that never sends change nothing for others."""
    silence = [Outage(party=_OTHER, first=0, last=config.rounds - 1)]
    one, two = (
        run(f"silent-records-{label}", clients=clients, outages=silence) for label, clients in records.items()
    )
    problem = f"lets the records of {_OTHER} reach others although that client is silent"
    if changed_messages(one, two) != set():
        fail(name, f"{problem}; parties may exchange data through the wire only.")
    for a, b in zip(one.rounds, two.rounds, strict=True):
        for party in a.models.keys() - {_OTHER}:
            if any(not t.equal(b.models[party][n]) for n, t in a.models[party].items()):
                fail(name, f"{problem}; parties may exchange data through the wire only.")
