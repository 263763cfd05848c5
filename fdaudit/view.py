"""The view: what a stated adversary saw and knows by its role, and nothing else.

Guarantees:
  * a view holds the messages that a member sent or received, and no other message's tensors or line;
  * an exported view lies in a directory of its own, where every other message is the SHA-256 of its line: the
    lines carry random salts, so the hash hides them;
  * each visible line is checked against the line before it, visible or hidden. A hidden line does not show what
    it chains to, so a visible line right before it is vouched for by the run's own transcript alone;
  * an eavesdropper on an encrypted transport sees sizes and order only.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fdaudit.encoding import readable
from fdaudit.errors import IntegrityError, SpecError, nearest
from fdaudit.messages import GENESIS, Message, canonical
from fdaudit.payloads import PAYLOADS, payload_name, read_payload
from fdaudit.storage import decode, load_json, load_tensors, save_json, save_tensors, write_atomically
from fdaudit.transcript import LOG, read_lines, read_messages

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["EAVESDROPPER", "View", "export_view", "members_of", "open_view", "view_log", "view_of"]

EAVESDROPPER = "eavesdropper"
_SCHEMA = "fdaudit-view/1"


def members_of(name: str, parties: Sequence[str]) -> tuple[str, ...]:
    """The members of an adversary's name: `server`, `client/3`, `eavesdropper`, or `server+client/3`.

    Raises:
        SpecError: a member is not a party of the federation.
    """
    members = tuple(name.split("+"))
    known = [*parties, EAVESDROPPER]
    for member in members:
        if member not in known:
            raise SpecError("adversary", name, f"names {member!r}, not a party", nearest(member, known))
    return members


def _sees(message: Message, members: Iterable[str], transport: str) -> bool:
    inside = message.parties()
    sent = any(r != message.sender for r in message.receivers)
    return any(m in inside or (m == EAVESDROPPER and sent and transport == "plain") for m in members)


@dataclass(frozen=True, kw_only=True, eq=False)
class View:
    """What one adversary saw.

    Attributes:
        name: the adversary, for example `server` or `server+client/3`.
        members: its parties.
        parties: every party of the federation; who takes part is public.
        hyperparameters: the protocol's public configuration.
        messages: what a member sent or received, in order; read their tensors with `tensors`.
        own_data: by member, the records (x, y) that are its own.
        sizes: for an eavesdropper on an encrypted transport, bytes of each message in order.
    """

    name: str
    members: tuple[str, ...]
    parties: tuple[str, ...]
    hyperparameters: Mapping[str, Any]
    messages: tuple[Message, ...]
    own_data: Mapping[str, tuple[Tensor, Tensor]] = field(default_factory=dict)
    sizes: tuple[int, ...] = ()
    directory: Path = field(repr=False)

    def select(
        self, kind: str | None = None, sender: str | None = None, round: int | None = None
    ) -> tuple[Message, ...]:
        """The messages of a kind, a sender, a round, in order of `seq`."""
        return tuple(
            m
            for m in self.messages
            if kind in (None, m.kind) and sender in (None, m.sender) and round in (None, m.round)
        )

    def tensors(self, message: Message) -> dict[str, Tensor]:
        """The tensors of a message of this view, quantised ones as floats, checked against its digest.

        Raises:
            IntegrityError: the payload is damaged, or was recorded as a digest only.
        """
        return readable(decode(read_payload(self.directory, message)))


def view_of(
    transcript: Path,
    name: str,
    *,
    parties: Sequence[str],
    hyperparameters: Mapping[str, Any],
    transport: str = "plain",
    own_data: Mapping[str, tuple[Tensor, Tensor]] | None = None,
) -> View:
    """The view of an adversary on a transcript.

    Args:
        transcript: the transcript's directory.
        name: the adversary.
        parties: every party of the federation.
        hyperparameters: the protocol's public configuration.
        transport: `plain` or `encrypted`.
        own_data: records by party; those of members are put in the view.
    """
    members = members_of(name, parties)
    messages = tuple(m for m in read_messages(transcript) if _sees(m, members, transport))
    sizes: tuple[int, ...] = ()
    if EAVESDROPPER in members and transport == "encrypted":
        sizes = tuple(m.bytes_on_wire for m in read_messages(transcript) if _sees(m, members, "plain"))
    return View(
        name=name,
        members=members,
        parties=tuple(parties),
        hyperparameters=dict(hyperparameters),
        messages=messages,
        own_data={k: v for k, v in (own_data or {}).items() if k in members},
        sizes=sizes,
        directory=transcript,
    )


def export_view(view: View, directory: Path, *, links: bool = True) -> None:
    """Writes a view as a directory of its own; other messages appear as hashes of their lines only.

    Args:
        view: a view on a run's transcript.
        directory: a new directory; nothing in it leads back to the run.
        links: whether payloads may be hard links to the run's own files; not where somebody may write to them.
    """
    (directory / PAYLOADS).mkdir(parents=True)
    shown: dict[str, list[Message]] = {}
    for message in view.messages:
        if message.payload is not None:
            shown.setdefault(payload_name(message), []).append(message)
    for name, messages in shown.items():
        _copy_payloads(view.directory, directory, name, messages, links)
    write_atomically(directory / LOG, view_log(view))
    for party, (x, y) in view.own_data.items():
        save_tensors(directory / f"own-{party.replace('/', '-')}.safetensors", {"x": x, "y": y})
    card = {
        "schema": _SCHEMA,
        "name": view.name,
        "members": list(view.members),
        "parties": list(view.parties),
        "hyperparameters": dict(view.hyperparameters),
        "sizes": list(view.sizes),
        "own_data": sorted(view.own_data),
    }
    save_json(directory / "view.json", card)


def view_log(view: View) -> bytes:
    """The log of a view as it is exported: its own messages' lines, and of every other message its line's hash."""
    mine = {m.seq for m in view.messages}
    lines = []
    for seq, line in enumerate(read_lines(view.directory / LOG)):
        if seq not in mine:
            line = canonical({"seq": seq, "line_sha256": hashlib.sha256(line).hexdigest()})
        lines.append(line + b"\n")
    return b"".join(lines)


def _copy_payloads(source: Path, target: Path, name: str, messages: Sequence[Message], links: bool) -> None:
    """A hard link to a file whose payloads are all of these messages, since it is never written again.

    Of a file that they share with others only their own bytes are copied; what lies between is left empty.
    """
    if _end(messages) == (source / name).stat().st_size:
        try:
            if not links:
                raise OSError
            os.link(source / name, target / name)
        except OSError:
            shutil.copyfile(source / name, target / name)
        return
    with (target / name).open("wb") as file:
        for message in messages:
            file.seek((message.payload or {})["offset"])
            file.write(read_payload(source, message))


def _end(messages: Iterable[Message]) -> int:
    """Where payloads of one file end that lie end to end from its beginning; -1 where they do not."""
    end = 0
    for where in (message.payload or {} for message in messages):
        if where["offset"] != end or where["length"] < 0:
            return -1
        end += where["length"]
    return end


def open_view(directory: Path) -> View:
    """Opens an exported view and checks its chain.

    Raises:
        IntegrityError: the directory is not an exported view, or its chain is broken.
    """
    try:
        card = load_json(directory / "view.json")
        if card["schema"] != _SCHEMA:
            raise ValueError(f"schema {card['schema']!r}")
        members, parties = tuple(map(str, card["members"])), tuple(map(str, card["parties"]))
        own = {}
        for party in card["own_data"]:
            if party not in parties:
                raise ValueError(f"own data of {party!r}, who is no party")
            tensors = load_tensors(directory / f"own-{party.replace('/', '-')}.safetensors")
            own[party] = (tensors["x"], tensors["y"])
        return View(
            name=str(card["name"]),
            members=members,
            parties=parties,
            hyperparameters=dict(card["hyperparameters"]),
            messages=tuple(_visible(directory / LOG)),
            own_data=own,
            sizes=tuple(int(s) for s in card["sizes"]),
            directory=directory,
        )
    except (KeyError, TypeError, ValueError, AttributeError, RecursionError, OSError) as error:
        raise IntegrityError([f"{directory.name} is no exported view, or a damaged one: {error}"]) from None


def _visible(log: Path) -> Iterator[Message]:
    """The messages whose lines the view holds; hidden ones still count in the chain."""
    previous = GENESIS
    *lines, rest = log.read_bytes().split(b"\n")
    if rest:
        raise IntegrityError([f"{log.name} does not end with a newline"])
    for seq, line in enumerate(lines):
        if line.startswith(b'{"line_sha256":'):
            hidden = _hidden(line)
            previous, found = hidden["line_sha256"], hidden["seq"]
        else:
            message = Message.from_line(line)
            if message.previous != previous:
                raise IntegrityError([f"{log.name} line {seq + 1}: does not chain to the line before"])
            previous, found = hashlib.sha256(line).hexdigest(), message.seq
            yield message
        if found != seq:
            raise IntegrityError([f"{log.name} line {seq + 1}: seq is {found}, not {seq}"])


def _hidden(line: bytes) -> dict[str, Any]:
    """A hidden message's line of an exported view: its `seq` and the SHA-256 of what stood there."""
    value = json.loads(line)
    if set(value) != {"line_sha256", "seq"} or not isinstance(value["line_sha256"], str):
        raise ValueError("a hidden line has fields other than seq and line_sha256")
    return dict(value)
