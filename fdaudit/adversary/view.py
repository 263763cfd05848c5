"""The view: everything that a given adversary saw and knows by its role, and nothing more.

Guarantees:
  * a view holds the messages that a member sent or received, and no other message's tensors or line;
  * an exported view is in a directory of its own. It shows every other message only as the SHA-256 of its line: lines
    carry random salts, so the hash reveals nothing. Payloads of others leave no gap and no length;
  * an exported view shares no file with the run: changes to the export never change the run's record;
  * `view.json` lists the digest of every other file and its own. A view with a byte changed, or with a file added or
    removed, is refused. A view with a rewritten list is a different view, with a different `view_digest`;
  * an eavesdropper on an encrypted transport sees only sizes and order.
"""

from __future__ import annotations

import hashlib
import json
import os
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fdaudit.errors import IntegrityError, SpecError, nearest, reason_of
from fdaudit.limits import JSON_BYTES, LINE_BYTES, TENSOR_BYTES, open_file
from fdaudit.storage.digests import canonical
from fdaudit.storage.files import decode, encode, write_atomically
from fdaudit.transcript.encoding import Naming, weights_of
from fdaudit.transcript.log import read_log
from fdaudit.transcript.messages import GENESIS, Message, role
from fdaudit.transcript.payloads import PAYLOADS, payload_name, placed, read_payload
from fdaudit.transcript.transcript import LOG, read_lines

if TYPE_CHECKING:
    from torch import Tensor

__all__ = [
    "EAVESDROPPER",
    "View",
    "export_view",
    "is_exported",
    "members_of",
    "open_view",
    "view_digest",
    "view_of",
]

EAVESDROPPER = "eavesdropper"
_SCHEMA = "fdaudit-view/2"
_CARD = "view.json"
_CARD_TYPES: Mapping[str, type] = {
    "schema": str,
    "name": str,
    "members": list,
    "parties": list,
    "hyperparameters": dict,
    "sizes": list,
    "own_data": list,
    "files": dict,
}
_CHUNK = 1 << 20


def members_of(name: str, parties: Sequence[str]) -> tuple[str, ...]:
    """Return the members of an adversary's name: `server`, `client/3`, `eavesdropper`, or `server+client/3`.

    Raises:
        SpecError: a member is not a party of the federation.
    """
    members = tuple(name.split("+"))
    everyone = [*parties, EAVESDROPPER]
    for member in members:
        if member not in everyone:
            excerpt = member if len(member) <= 60 else f"{member[:57]}..."
            raise SpecError("adversary", name, f"names {excerpt!r}, not a party", nearest(member, everyone))
    return members


@dataclass(frozen=True, kw_only=True, eq=False)
class View:
    """The messages, data and settings that one adversary saw.

    Attributes:
        name: the adversary, for example `server` or `server+client/3`.
        members: its parties.
        parties: every party of the federation; participation is public.
        hyperparameters: the protocol's public configuration.
        messages: messages that a member sent or received, in order; read their tensors with `tensors`.
        own_data: by member, its own records (x, y).
        sizes: for an eavesdropper on an encrypted transport, bytes of each message in order.
        originals: by number the messages on record that attacks read as another kind, see `with_every_class`.
        known_terms: by number of a sum that attacks read as one client's upload, its other terms: see
            `with_single_terms`.
    """

    name: str
    members: tuple[str, ...]
    parties: tuple[str, ...]
    hyperparameters: Mapping[str, Any]
    messages: tuple[Message, ...]
    own_data: Mapping[str, tuple[Tensor, Tensor]] = field(default_factory=dict)
    sizes: tuple[int, ...] = ()
    originals: Mapping[int, Message] = field(default_factory=dict, repr=False)
    known_terms: Mapping[int, tuple[Message, ...]] = field(default_factory=dict, repr=False)
    directory: Path = field(repr=False)

    @property
    def naming(self) -> Naming:
        """Return what public settings say of the names of the network's tensors."""
        return Naming.of(self.hyperparameters)

    def select(
        self, kind: str | None = None, sender: str | None = None, round: int | None = None
    ) -> tuple[Message, ...]:
        """Return the messages of a kind, a sender and a round, in order of `seq`; None selects all."""
        matches: list[Message] = []
        for m in self.messages:
            if kind in (None, m.kind) and sender in (None, m.sender) and round in (None, m.round):
                matches.append(m)
        return tuple(matches)

    def tensors(self, message: Message) -> dict[str, Tensor]:
        """Return the tensors of a message of this view after a check of its digest, as `weights_of` reads them.

        Raises:
            IntegrityError: the payload is damaged, or was recorded as a digest only.
            ValueError: an answer about the most likely classes names one twice, or one that does not exist.
        """
        # The same message may have another place in the file of another view, or of the transcript.
        place = bisect_left(self.messages, message.seq, key=lambda m: m.seq)
        own = message
        if place < len(self.messages) and self.messages[place] == message:
            own = self.messages[place]
        tensors = weights_of(decode(read_payload(self.directory, own)), self.naming)
        for term in self.known_terms.get(message.seq, ()):
            known = self.tensors(term)
            tensors = {name: tensor - known[name] for name, tensor in tensors.items()}
        if message.seq not in self.originals:
            return tensors
        from fdaudit.adversary.top_answers import every_class

        return every_class(tensors, message.kind, message.tensors["values"].shape[1])

    def defenses_of(self, message: Message) -> tuple[Mapping[str, Any], ...]:
        """Return the defences on a message: those on record or, of a recorded system, those that its card states.

        An answer about the k most likely classes has `top-answers` before them.
        """
        stated = self.hyperparameters.get("defenses", ())
        original = self.originals.get(message.seq, message)
        key = (original.kind, role(message.sender))
        defenses = list(message.defenses)
        if not defenses:
            for entry in stated:
                if (entry["kind"], entry["sender"]) == key:
                    defenses.append(entry["described"])
        if original is message:
            return tuple(defenses)
        return ({"name": "top-answers", "k": original.tensors["classes"].shape[1]}, *defenses)


def view_of(
    transcript: Path,
    name: str,
    *,
    parties: Sequence[str],
    hyperparameters: Mapping[str, Any],
    transport: str = "plain",
    own_data: Mapping[str, tuple[Tensor, Tensor]] | None = None,
    without: Collection[int] = (),
) -> View:
    """Return the view of an adversary on a transcript.

    Args:
        transcript: the transcript's directory.
        name: the adversary.
        parties: every party of the federation.
        hyperparameters: the protocol's public configuration.
        transport: `plain` or `encrypted`.
        own_data: records by party; those of members are put in the view.
        without: numbers of messages that are left out, because they hold no finite values.
    """
    members = members_of(name, parties)
    log = read_log(transcript)
    messages, sizes = log.of(members), tuple[int, ...]()
    if EAVESDROPPER in members:
        own = {message.seq for message in messages}
        overheard = []
        for message in log.messages:
            on_wire = any(receiver != message.sender for receiver in message.receivers)
            if on_wire or message.seq in own:
                overheard.append(message)
        if transport == "plain":
            messages = tuple(overheard)
        elif transport == "encrypted":
            sizes = tuple(message.bytes_on_wire for message in overheard)
    return View(
        name=name,
        members=members,
        parties=tuple(parties),
        hyperparameters=dict(hyperparameters),
        messages=tuple(m for m in messages if m.seq not in without),
        own_data={k: v for k, v in (own_data or {}).items() if k in members},
        sizes=sizes,
        directory=transcript,
    )


def export_view(view: View, directory: Path) -> str:
    """Write a view to a directory of its own; other messages appear only as hashes of their lines.

    Args:
        view: a view of a run's transcript.
        directory: a new directory; no file in it links to the run.

    Returns:
        The view's digest, as `view_digest` gives it.
    """
    (directory / PAYLOADS).mkdir(parents=True)
    files = {}
    for name, parts in _contents(view):
        with (directory / name).open("xb") as file:
            files[name] = _entry(parts, file.write)
    card = _card(view, files)
    write_atomically(directory / _CARD, card, sync=False)
    return hashlib.sha256(card).hexdigest()


def view_digest(view: View) -> str:
    """Return the SHA-256 of the `view.json` of the view's export, which covers every file in it."""
    files = {name: _entry(parts, len) for name, parts in _contents(view)}
    return hashlib.sha256(_card(view, files)).hexdigest()


def _contents(view: View) -> Iterator[tuple[str, Iterable[bytes]]]:
    """Yield the files of an export except `view.json`: the name, and the parts to be written."""
    yield LOG, _log(view)
    for party, (x, y) in view.own_data.items():
        yield _own_name(party), [encode({"x": x, "y": y})]
    by_member: dict[str, list[Message]] = {}
    for message in view.messages:
        if message.payload is not None:
            by_member.setdefault(payload_name(message), []).append(message)
    for name, messages in by_member.items():
        yield name, (read_payload(view.directory, message) for message in messages)


def _log(view: View) -> Iterator[bytes]:
    """Yield the log of an export line by line: the view's own lines, and hashes of all other lines."""
    mine = {m.seq for m in view.messages}
    for seq, line in enumerate(read_lines(view.directory / LOG)):
        if seq not in mine:
            line = canonical({"seq": seq, "line_sha256": hashlib.sha256(line).hexdigest()})
        yield line + b"\n"


def _entry(parts: Iterable[bytes], write: Callable[[bytes], object]) -> dict[str, Any]:
    """Write a file's parts; return its size and SHA-256."""
    digest, size = hashlib.sha256(), 0
    for part in parts:
        write(part)
        digest.update(part)
        size += len(part)
    return {"size": size, "sha256": digest.hexdigest()}


def _own_name(party: str) -> str:
    """Return the name of the file of a member's own records in an export."""
    return f"own-{party.replace('/', '-')}.safetensors"


def _card(view: View, files: Mapping[str, Mapping[str, Any]]) -> bytes:
    """Return an export's `view.json`: one canonical line with the digests of all other files and of itself."""
    body = {
        "schema": _SCHEMA,
        "name": view.name,
        "members": list(view.members),
        "parties": list(view.parties),
        "hyperparameters": dict(view.hyperparameters),
        "sizes": list(view.sizes),
        "own_data": sorted(view.own_data),
        "files": files,
    }
    return canonical({**body, "self": hashlib.sha256(canonical(body)).hexdigest()}) + b"\n"


# -- an exported view -------------------------------------------------------------------------------------------


def is_exported(view: View) -> bool:
    """Return whether a view is in a directory of its own, not in a run's transcript."""
    return (view.directory / _CARD).is_file()


def open_view(directory: Path, sha256: str | None = None) -> View:
    """Open an exported view after checking every byte against `view.json`.

    Args:
        directory: a directory that `export_view` wrote.
        sha256: the digest that `export_view` returned; a view with another digest is refused.

    Raises:
        IntegrityError: the directory is not an exported view, or was changed.
    """
    try:
        card = _read_card(directory, sha256)
        files = card["files"]
        _refuse_strays(directory, files)
        messages = tuple(placed(_visible(_content(directory, LOG, files[LOG]))))
        lengths = Counter[str]()
        for message in messages:
            if message.payload is not None:
                lengths[payload_name(message)] += message.payload["length"]
        own = {party: _own_name(party) for party in card["own_data"]}
        if files.keys() != {LOG, *own.values(), *lengths}:
            raise ValueError("its files are not those of its messages and members")
        for name, length in lengths.items():
            if files[name]["size"] != length:
                raise ValueError(f"{name} is not as long as the payloads in it")
            for _ in _pieces(directory, name, files[name]):
                pass
        own_data: dict[str, tuple[Tensor, Tensor]] = {}
        for party, name in own.items():
            tensors = decode(_content(directory, name, files[name]))
            own_data[party] = (tensors["x"], tensors["y"])
        return View(
            name=card["name"],
            members=tuple(card["members"]),
            parties=tuple(card["parties"]),
            hyperparameters=card["hyperparameters"],
            messages=messages,
            own_data=own_data,
            sizes=tuple(card["sizes"]),
            directory=directory,
        )
    except (KeyError, TypeError, ValueError, AttributeError, RecursionError, OSError) as error:
        reason = reason_of(error)
        raise IntegrityError([f"{directory.name} is no exported view, or a damaged one: {reason}"]) from None


def _read_card(directory: Path, sha256: str | None) -> dict[str, Any]:
    """Return the fields of `view.json`, after a check of their types."""
    with open_file(directory / _CARD, JSON_BYTES, follow=False) as file:
        data = file.read(JSON_BYTES.most)
    if sha256 not in (None, hashlib.sha256(data).hexdigest()):
        raise ValueError(f"{_CARD} does not have the digest that was handed out")
    card = json.loads(data)
    if card["schema"] != _SCHEMA:
        raise ValueError(f"its schema is {card['schema']!r}, not {_SCHEMA}")
    body = {name: value for name, value in card.items() if name != "self"}
    if canonical(card) + b"\n" != data or hashlib.sha256(canonical(body)).hexdigest() != card["self"]:
        raise ValueError(f"{_CARD} does not match its own digest")
    if {name: type(value) for name, value in body.items()} != _CARD_TYPES:
        raise TypeError(f"{_CARD} has other fields than an exported view")
    texts = [*card["parties"], *card["members"], *card["own_data"]]
    if not all(type(text) is str for text in texts) or not all(type(n) is int for n in card["sizes"]):
        raise TypeError(f"{_CARD} names parties by something other than text, or sizes other than numbers")
    for entry in card["files"].values():
        if {name: type(value) for name, value in entry.items()} != {"size": int, "sha256": str}:
            raise TypeError(f"{_CARD} does not list the size and sha256 of every file")
    everyone = {*card["parties"], EAVESDROPPER}
    if card["name"].split("+") != card["members"] or not everyone.issuperset(card["members"]):
        raise ValueError(f"its members are not the parties that {card['name'][:80]!r} names")
    if not set(card["own_data"]) <= set(card["members"]):
        raise ValueError("it holds records of somebody who is no member")
    return body


def _refuse_strays(directory: Path, files: Mapping[str, Any]) -> None:
    """Raise unless the directory holds exactly these files and `view.json`, all of them regular."""
    paths = set[str]()
    for folder in ("", f"{PAYLOADS}/"):
        with os.scandir(directory / folder) as entries:
            for entry in entries:
                name = folder + entry.name
                if name == PAYLOADS and entry.is_dir(follow_symlinks=False):
                    continue
                if name != _CARD and name not in files:
                    raise ValueError(f"{name[:80]!r} is listed nowhere")
                if not entry.is_file(follow_symlinks=False):
                    raise ValueError(f"{name} is no regular file")
                paths.add(name)
    missing = files.keys() - paths
    if missing:
        raise ValueError(f"{min(missing)[:80]!r} is missing")


def _content(directory: Path, name: str, entry: Mapping[str, Any]) -> bytes:
    """Return the content of a file as a whole."""
    if entry["size"] > TENSOR_BYTES.most:
        raise ValueError(f"{name} has {TENSOR_BYTES.refusal(entry['size'])}")
    return b"".join(_pieces(directory, name, entry))


def _pieces(directory: Path, name: str, entry: Mapping[str, Any]) -> Iterator[bytes]:
    """Yield a file piece by piece; raise at the end if its digest is not the listed one."""
    digest = hashlib.sha256()
    with open_file(directory / name, follow=False) as file:
        if os.fstat(file.fileno()).st_size != entry["size"]:
            raise ValueError(f"{name} is not as long as {_CARD} says")
        while piece := file.read(_CHUNK):
            digest.update(piece)
            yield piece
    if digest.hexdigest() != entry["sha256"]:
        raise ValueError(f"{name} does not match its digest in {_CARD}")


def _visible(log: bytes) -> Iterator[Message]:
    """Yield the messages whose lines the view holds; hidden lines still count in the chain."""
    previous = GENESIS
    *lines, rest = log.split(b"\n")
    if rest:
        raise IntegrityError([f"{LOG} does not end with a newline"])
    for seq, line in enumerate(lines):
        if len(line) > LINE_BYTES.most:
            raise IntegrityError([f"{LOG} has {LINE_BYTES.refusal(len(line))}"])
        if line.startswith(b'{"line_sha256":'):
            hidden = json.loads(line)
            if set(hidden) != {"line_sha256", "seq"} or not isinstance(hidden["line_sha256"], str):
                raise ValueError("a hidden line has fields other than seq and line_sha256")
            previous, number = hidden["line_sha256"], hidden["seq"]
        else:
            message = Message.from_line(line)
            if message.previous != previous:
                raise IntegrityError([f"{LOG} line {seq + 1}: does not chain to the line before"])
            previous, number = hashlib.sha256(line).hexdigest(), message.seq
            yield message
        if number != seq:
            raise IntegrityError([f"{LOG} line {seq + 1}: seq is {number}, not {seq}"])
