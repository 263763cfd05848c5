"""Read what a recorder wrote beside a record: the records behind each message, and the site of each party."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from fdaudit.errors import IntegrityError, UsageError
from fdaudit.limits import JSON_BYTES, TABLE_BYTES, read_file
from fdaudit.names import name_problem
from fdaudit.storage.files import parse_json

__all__ = ["NODES", "NOTES", "REPLIES", "SITES", "USES", "joined_notes", "read_sites", "read_uses"]

USES, SITES = "uses.jsonl", "sites.json"
NOTES, REPLIES, NODES = "notes.jsonl", "replies.jsonl", "nodes.json"
"""What the adapters of frameworks write: at a site, and at the server."""
_MOST = 1 << 40
"""No number of a record reaches this."""
_WRITTEN = "Use the file that the recorder wrote."


def read_uses(path: Path) -> dict[int, tuple[int, ...]]:
    """Return by message `seq` the sender's own numbers of the records behind it, in the order of their use.

    Raises:
        UsageError: the file cannot be read, or a line is something else.
    """
    uses: dict[int, tuple[int, ...]] = {}
    for where, value in _lines(path):
        if value.keys() != {"seq", "records"} or not _is_count(value["seq"]):
            raise UsageError(where, str(value)[:60], "does not give seq and records", _WRITTEN)
        records = _records(where, value["records"])
        if value["seq"] in uses:
            raise UsageError(where, value["seq"], "is a message named before", "Name each message once.")
        uses[value["seq"]] = records
    return uses


def joined_notes(
    replies: Path, notes: Sequence[Path], nodes: Path | None
) -> tuple[dict[int, tuple[int, ...]], dict[str, str | int]]:
    """Join the notes of sites with those of the server, which name each reply by the same key.

    Args:
        replies: the server's file: the key and the party of each recorded reply.
        notes: the sites' files: the records behind each reply. Those of other runs are left out.
        nodes: the server's file with the framework's name of each party.

    Returns:
        By message `seq` the sender's own numbers of the records behind it, and the site of each party. A party that no
        note names keeps the framework's name.

    Raises:
        UsageError: a file cannot be read or holds something else, a reply is noted twice, or one party's replies are
            noted by two sites.
    """
    by_reply = _read_notes(notes)
    uses, sites = dict[int, tuple[int, ...]](), dict[str, str | int]()
    for where, value in _lines(replies):
        if value.keys() != {"party", "reply", "seq"} or not _is_count(value["seq"]):
            raise UsageError(where, str(value)[:60], "does not give party, reply and seq", _WRITTEN)
        if value["reply"] not in by_reply:
            continue
        seq, party = value["seq"], str(value["party"])
        site, uses[seq] = by_reply[value["reply"]]
        first = sites.setdefault(party, site)
        if first != site:
            problem = f"is a reply of {party[:60]}, which sites {first!r} and {site!r} noted"
            raise UsageError(where, seq, problem, "Name a site by one name.")
    if nodes is None:
        return uses, sites
    return uses, {**read_sites(nodes), **sites}


def _read_notes(paths: Sequence[Path]) -> dict[str, tuple[str, tuple[int, ...]]]:
    """Return by the key of each reply the site that noted it and the records behind it."""
    by_reply: dict[str, tuple[str, tuple[int, ...]]] = {}
    for path in paths:
        for where, value in _lines(path):
            if value.keys() != {"records", "reply", "site"} or not isinstance(value["reply"], str):
                raise UsageError(where, str(value)[:60], "does not give records, reply and site", _WRITTEN)
            reply, site = value["reply"], value["site"]
            if problem := name_problem(site):
                raise UsageError(where, str(site)[:60], problem, _WRITTEN)
            if reply in by_reply:
                raise UsageError(where, reply[:60], "is a reply noted before", "Give each note once.")
            by_reply[reply] = (site, _records(where, value["records"]))
    return by_reply


def _lines(path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the JSON objects of a file, one a line, each with its place; a kill may leave a part of the last line."""
    try:
        data = read_file(path, TABLE_BYTES)
    except OSError as error:
        problem = f"cannot be read ({error.strerror})"
        raise UsageError(path.name, str(path), problem, "Give the file.") from None
    if path.name != USES:
        data = data[: data.rfind(b"\n") + 1]
    for number, line in enumerate(data.splitlines(), start=1):
        where = f"{path.name} line {number}"
        try:
            value = parse_json(line)
        except (IntegrityError, ValueError) as error:
            raise UsageError(where, str(line[:60]), f"is no JSON ({error})", _WRITTEN) from None
        if not isinstance(value, dict):
            raise UsageError(where, str(value)[:60], "is no object with named fields", _WRITTEN)
        yield where, value


def _records(where: str, value: object) -> tuple[int, ...]:
    if not isinstance(value, list) or not all(map(_is_count, value)):
        raise UsageError(where, str(value)[:60], "are no numbers of records", _WRITTEN)
    return tuple(value)


def read_sites(path: Path) -> Mapping[str, str | int]:
    """Return the site or node behind each party.

    Raises:
        UsageError: the file cannot be read, or holds something else.
    """
    try:
        value = parse_json(read_file(path, JSON_BYTES))
    except (OSError, IntegrityError, ValueError) as error:
        raise UsageError(path.name, str(path), f"cannot be read ({error})", _WRITTEN) from None
    if not isinstance(value, dict) or not all(type(site) in (str, int) for site in value.values()):
        raise UsageError(path.name, type(value).__name__, "does not give a site for each party", _WRITTEN)
    for name in (*value, *value.values()):
        if isinstance(name, str) and (problem := name_problem(name)):
            raise UsageError(path.name, name, problem, _WRITTEN)
    return value


def _is_count(value: object) -> bool:
    return type(value) is int and 0 <= value < _MOST
