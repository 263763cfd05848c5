"""Read the records that an auditor brings to a recording: the key of a design, or lists of the auditor's own.

`records.npz` holds the records: images or rows of a table `x`, if the auditor has them, and labels `y`. `records.json`
says which of them each client holds, which of these are candidates, and which no client holds. See `docs/design.md`.

Guarantees:
  * nothing in the two files is trusted: sizes, names, types and rows are checked before a value is used;
  * no row stands in two lists, except that candidates stand in their own client's records as well;
  * with coins, the lists, the site's numbering and the arrays are those that the commitment was made for.
"""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fdaudit.data.files import read_arrays
from fdaudit.data.raw import as_images, as_labels, as_vectors, same_count
from fdaudit.data.resize import to_unit
from fdaudit.errors import DataError, IntegrityError
from fdaudit.storage.digests import canonical
from fdaudit.storage.files import commitment, load_json
from fdaudit.tasks import labels_of

__all__ = [
    "ARRAYS",
    "LISTS",
    "MATCHED_PAIRS",
    "SALT_BYTES",
    "SCHEMA",
    "BroughtRecords",
    "ClientRecords",
    "TossedCoins",
    "array_digests",
    "commit",
    "read_records",
]

LISTS = "records.json"
ARRAYS = "records.npz"
SCHEMA = "fdaudit-records/1"
MATCHED_PAIRS = "matched-pairs"
SALT_BYTES = 32

_SHARED = ("auxiliary", "public", "test")
_CLIENT = re.compile(r"client/(0|[1-9][0-9]{0,3})")
_DIGEST = re.compile("[0-9a-f]{64}")
_MADE = "Use the files that `fdaudit design` wrote, or follow docs/design.md."


@dataclass(frozen=True, eq=False)
class ClientRecords:
    """One client's rows of `records.npz`, int64.

    Attributes:
        records: (n,) the site's own record number i is row `records[i]`. It trains on these without `non_members`.
        members: (p,) candidates that it trains on.
        non_members: (q,) candidates that it leaves out. With coins, `members[i]` and `non_members[i]` are pair i.
    """

    records: Tensor
    members: Tensor
    non_members: Tensor

    def to_json(self) -> dict[str, list[int]]:
        """Return the three lists."""
        return {name: getattr(self, name).tolist() for name in ("records", "members", "non_members")}


@dataclass(frozen=True)
class TossedCoins:
    """The draw of the candidates before the training: one fair coin for each pair.

    Attributes:
        kind: `matched-pairs`.
        commitment: SHA-256, in hexadecimal, that could be published before the training.
        images: whether it was made for the images too; if not, for the labels and lists only.
        salt: the secret part of the commitment.
    """

    kind: str
    commitment: str
    images: bool
    salt: bytes = field(repr=False)


@dataclass(frozen=True, eq=False)
class BroughtRecords:
    """The records that an auditor brings. Tensors of rows are int64 and index `x` and `y`.

    Attributes:
        x: images (n, c, h, w) float32 in [0, 1], or rows (n, d) float32; None if they were not brought.
        y: (n,) int64 classes, or (n, C) of the multi-label task.
        clients: by party, in the order of their numbers.
        design: None if no coins were tossed: the audit is observational.
        auxiliary: rows that an adversary is assumed to hold.
        public: rows that every party holds.
        test: rows to measure accuracy.
    """

    x: Tensor | None
    y: Tensor
    clients: Mapping[str, ClientRecords]
    design: TossedCoins | None
    auxiliary: Tensor
    public: Tensor
    test: Tensor


def array_digests(arrays: Mapping[str, NDArray[Any]]) -> dict[str, str]:
    """Return the SHA-256 of each array's dtype, shape and little-endian bytes."""
    digests = {}
    for name, array in arrays.items():
        little = np.ascontiguousarray(array.astype(array.dtype.newbyteorder("<"), copy=False))
        digest = hashlib.sha256(canonical([little.dtype.name, list(little.shape)]))
        digest.update(little.data)
        digests[name] = digest.hexdigest()
    return digests


def commit(salt: bytes, clients: Mapping[str, ClientRecords], digests: Mapping[str, str]) -> str:
    """Return the commitment to a design: which rows each client has, which it leaves out, and what they hold.

    The rows alone would bind nothing: an auditor could exchange two records between their rows after the training.

    Args:
        salt: 32 random bytes. Without them, no guess of the coins can be confirmed.
        clients: the rows of each client.
        digests: those of the arrays, see `array_digests`.
    """
    lists = {party: client.to_json() for party, client in clients.items()}
    return commitment(salt, canonical({"arrays": dict(digests), "clients": lists}))


def read_records(lists: Path, arrays: Path, span: tuple[float, float] = (0.0, 1.0)) -> BroughtRecords:
    """Return the records that an auditor brings.

    Args:
        lists: the file `records.json`.
        arrays: the file `records.npz`.
        span: the range that floats may be in, as the card states it; images are mapped from it to [0, 1].

    Raises:
        DataError: a file is absent, damaged or too large, or a list in it cannot be true.
        IntegrityError: the commitment was made for other lists or arrays.
    """
    try:
        content = load_json(lists)
    except IntegrityError as error:
        raise DataError(lists.name, str(lists), f"cannot be used ({error})", _MADE) from None
    value = _object(lists.name, content, ("schema", "clients", "design"), _SHARED)
    if value["schema"] != SCHEMA:
        raise DataError(f"{lists.name}: schema", value["schema"], f"is not {SCHEMA!r}", _MADE)
    if type(value["clients"]) is not dict:
        raise DataError(f"{lists.name}: clients", value["clients"], "names no clients", _MADE)
    stored = read_arrays(arrays, ("x", "y"), arrays.name, follow=False)
    if "y" not in stored:
        raise DataError(arrays.name, str(arrays), "lacks y", "Store the labels of all records as y.")
    y = as_labels(stored["y"], arrays.name, "y")
    x = None
    if "x" in stored:
        x = _records(stored["x"], arrays.name, span)
        same_count(x, y, arrays.name, str(arrays))
    clients: dict[str, ClientRecords] = {}
    for party, own in value["clients"].items():
        clients[party] = _client(lists.name, party, own, len(y))
    clients = dict(sorted(clients.items(), key=lambda item: int(item[0].partition("/")[2])))
    shared: dict[str, Tensor] = {}
    for name in _SHARED:
        shared[name] = _rows(value.get(name, []), len(y), f"{lists.name}: {name}")
    _refuse_shared_rows(lists.name, clients, shared, len(y))
    design = None
    if value["design"] is not None:
        for party, client in clients.items():
            _refuse_unmatched(f"{lists.name}: clients.{party}", client, y)
        design = _design(lists, value["design"], clients, array_digests(stored))
    return BroughtRecords(x=x, y=y, clients=clients, design=design, **shared)


def _records(array: NDArray[Any], field: str, span: tuple[float, float]) -> Tensor:
    """Return images (n, c, h, w) in [0, 1], or rows (n, d) of a table; float32.

    Raises:
        DataError: the array is neither.
    """
    if array.ndim == 2:
        return as_vectors(array, field, "x")
    ranges = f"in [{span[0]:g}, {span[1]:g}], as `preprocess.range` of the card says, or in [0, 1]"
    if span == (0.0, 1.0):
        ranges = "in [0, 1], or state their range as `preprocess.range` in the card"
    remedy = (
        f"Store the images before they are normalised, as uint8 or floats {ranges}. Undo `Normalize` by x * std + mean,"
        " and state both under `preprocess` in the card."
    )
    return to_unit(as_images(array, field, "x", span, remedy))


def _object(
    where: str, value: object, needed: tuple[str, ...], allowed: tuple[str, ...] = ()
) -> dict[str, Any]:
    """Return a JSON object that has all needed fields, and no others but the allowed ones."""
    if not isinstance(value, dict):
        raise DataError(where, value, "is no object with named fields", _MADE)
    missing = [name for name in needed if name not in value]
    if missing:
        raise DataError(where, sorted(value), f"lacks {', '.join(missing)}", _MADE)
    for unknown in sorted(value.keys() - {*needed, *allowed}):
        raise DataError(where, unknown, "is no field of it", f"It has {', '.join((*needed, *allowed))}.")
    return value


def _rows(value: object, total: int, where: str) -> Tensor:
    """Return a list of different rows as int64."""
    if type(value) is not list:
        raise DataError(where, value, "is no list of rows", "Give a list of row numbers.")
    for row in value:
        if type(row) is not int or not 0 <= row < total:
            raise DataError(where, row, f"is no row of {ARRAYS}", f"Give rows from 0 to {total - 1}.")
    if len(set(value)) < len(value):
        twice, _ = Counter(value).most_common(1)[0]
        raise DataError(where, twice, "stands twice in the list", "Name each row once.")
    return torch.tensor(value, dtype=torch.int64)


def _client(file: str, party: str, value: object, total: int) -> ClientRecords:
    if not _CLIENT.fullmatch(party):
        raise DataError(f"{file}: clients", party, "is no client", "Name them client/0, client/1, ….")
    where = f"{file}: clients.{party}"
    names = ("records", "members", "non_members")
    needed: tuple[str, ...] = ("records",)
    if isinstance(value, dict) and not value.keys().isdisjoint(("members", "non_members")):
        needed = names
    own = _object(where, value, needed)
    lists: dict[str, Tensor] = {}
    for name in names:
        lists[name] = _rows(own.get(name, []), total, f"{where}.{name}")
    client = ClientRecords(**lists)
    both = client.members[torch.isin(client.members, client.non_members)]
    if len(both):
        problem = "is a member and a non-member"
        raise DataError(f"{where}.members", int(both[0]), problem, "Name it in one of the two lists.")
    other = client.members[~torch.isin(client.members, client.records)]
    if len(other):
        problem = "is not among the client's records"
        raise DataError(f"{where}.members", int(other[0]), problem, "A client trains on its members: add it.")
    return client


def _refuse_shared_rows(
    file: str, clients: Mapping[str, ClientRecords], shared: Mapping[str, Tensor], total: int
) -> None:
    """Refuse a row that two clients hold, or that a client and another list hold, or two other lists."""
    lists = dict[str, Tensor]()
    for party, client in clients.items():
        lists[f"clients.{party}"] = torch.cat((client.records, client.non_members)).unique()
    lists.update(shared)
    names = list(lists)
    owner = torch.full((total,), -1)
    for number, rows in enumerate(lists.values()):
        for row in rows[owner[rows] >= 0].tolist():
            problem = f"stands in {names[int(owner[row])]} as well"
            raise DataError(f"{file}: {names[number]}", row, problem, "Remove it from one of them.")
        owner[rows] = number


def _refuse_unmatched(where: str, client: ClientRecords, y: Tensor) -> None:
    if len(client.members) != len(client.non_members):
        problem = f"has {len(client.members)} rows, and non_members has {len(client.non_members)}"
        raise DataError(f"{where}.members", "the list", problem, "Give one of each for every pair.")
    other = client.non_members[~torch.isin(client.non_members, client.records)]
    if len(other):
        problem, remedy = "is not among the client's records", "With coins, a site holds both: add it."
        raise DataError(f"{where}.non_members", int(other[0]), problem, remedy)
    if not labels_of(y).paired_alike:  # a pair may have two label sets, where no other record has the same
        return
    unlike = (y[client.members] != y[client.non_members]).nonzero().flatten()
    for i in unlike.tolist():
        pair = [int(client.members[i]), int(client.non_members[i])]
        problem = f"is a pair of classes {int(y[pair[0]])} and {int(y[pair[1]])}"
        raise DataError(f"{where}, pair {i}", pair, problem, _MADE)


def _design(
    path: Path, value: object, clients: Mapping[str, ClientRecords], digests: Mapping[str, str]
) -> TossedCoins:
    """Return the design, after a check of its commitment."""
    where = f"{path.name}: design"
    design = _object(where, value, ("kind", "salt", "commitment"))
    if design["kind"] != MATCHED_PAIRS:
        raise DataError(f"{where}.kind", design["kind"], f"is not {MATCHED_PAIRS!r}", _MADE)
    for name in ("salt", "commitment"):
        if type(design[name]) is not str or not _DIGEST.fullmatch(design[name]):
            problem = f"is not {SALT_BYTES} bytes in hexadecimal"
            raise DataError(f"{where}.{name}", design[name], problem, _MADE)
    salt = bytes.fromhex(design["salt"])
    # A site that keeps its images may have labels only when the coins are tossed, and add the images later.
    for covered in (digests, {"y": digests["y"]}):
        if commit(salt, clients, covered) == design["commitment"]:
            return TossedCoins(MATCHED_PAIRS, design["commitment"], "x" in covered, salt)
    raise IntegrityError(
        [f"{path.name} does not match its commitment: its lists, or the records in {ARRAYS}, were changed"]
    )
