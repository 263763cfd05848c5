"""Read what a recorder wrote beside a record: the records behind each message."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from fdaudit.errors import IntegrityError, UsageError
from fdaudit.limits import JSON_BYTES, TABLE_BYTES, read_file
from fdaudit.names import name_problem
from fdaudit.storage.files import parse_json

__all__ = ["SITES", "USES", "read_sites", "read_uses"]

USES, SITES = "uses.jsonl", "sites.json"
_MOST = 1 << 40
"""No number of a record reaches this."""


def read_uses(path: Path) -> dict[int, tuple[int, ...]]:
    """Return by message `seq` the sender's own numbers of the records behind it, in the order of their use.

    Raises:
        UsageError: the file cannot be read, or a line is something else.
    """
    found: dict[int, tuple[int, ...]] = {}
    try:
        lines = read_file(path, TABLE_BYTES).splitlines()
    except OSError as error:
        raise UsageError(
            path.name, str(path), f"cannot be read ({error.strerror})", "Give the file."
        ) from None
    for number, line in enumerate(lines, start=1):
        where = f"{path.name} line {number}"
        try:
            value = parse_json(line)
        except (IntegrityError, ValueError) as error:
            raise UsageError(where, str(line[:60]), f"is no JSON ({error})", _WRITTEN) from None
        named = isinstance(value, dict) and value.keys() == {"seq", "records"}
        if not named or not _is_count(value["seq"]) or type(value["records"]) is not list:
            raise UsageError(where, str(value)[:60], "does not give seq and records", _WRITTEN)
        if not all(map(_is_count, value["records"])):
            raise UsageError(where, str(value["records"])[:60], "are no numbers of records", _WRITTEN)
        if value["seq"] in found:
            raise UsageError(where, value["seq"], "is a message named before", "Name each message once.")
        found[value["seq"]] = tuple(value["records"])
    return found


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
    for name in (*value, *(site for site in value.values() if isinstance(site, str))):
        if problem := name_problem(name):
            raise UsageError(path.name, name, problem, _WRITTEN)
    return value


_WRITTEN = "Use the file that the recorder wrote."


def _is_count(value: object) -> bool:
    return type(value) is int and 0 <= value < _MOST
