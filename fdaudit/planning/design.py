"""Toss the coins of an audit before the training of a federation that another system runs.

Guarantees:
  * both records of a pair are of one class and one site, and a fair coin decides which of them the site leaves out;
  * the coins come from a fresh secret, which is not kept: only the key and each site's own list say how they fell;
  * a site is handed its own records and the numbers of those it leaves out, and nothing about other sites' coins;
  * the directory appears with everything in it, or not at all.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fdaudit.data.splits import split_client
from fdaudit.errors import DataError, RunError
from fdaudit.planning.brought import (
    ARRAYS,
    LISTS,
    MATCHED_PAIRS,
    SALT_BYTES,
    SCHEMA,
    ClientRecords,
    array_digests,
    commit,
)
from fdaudit.planning.site_records import DesignSpec, SiteRecords, load_site_records
from fdaudit.rng import SecretStream
from fdaudit.storage.digests import canonical
from fdaudit.storage.files import save_json, sync_path, write_atomically, written_whole
from fdaudit.storage.locks import make_private
from fdaudit.storage.vault import Secrets
from fdaudit.tasks import labels_of

__all__ = ["DesignSpec", "MadeDesign", "make_design"]

_PUBLIC = "public.npz"
"""The public samples, in the order of the key. Messages number them from 0."""


@dataclass(frozen=True)
class MadeDesign:
    """A design on disk.

    Attributes:
        directory: the design's directory.
        commitment: SHA-256 that binds the auditor to the coins.
        records: number of records that each site holds, by party.
        pairs: number of pairs, by party; the site leaves out as many records.
        asked: number of pairs that the fraction asks for, by party.
        handed_records: whether `sites/` holds records; if not, the sites have them already.
        images: whether the key holds images.
        public: number of public records in `public.npz`; 0 if there is no such file.
    """

    directory: Path
    commitment: str
    records: Mapping[str, int]
    pairs: Mapping[str, int]
    asked: Mapping[str, int]
    handed_records: bool
    images: bool
    public: int


def make_design(data: str, out: Path, spec: DesignSpec) -> MadeDesign:
    """Share out records if need be, draw matched pairs, toss their coins, and write a design directory.

    Args:
        data: a dataset as in a spec, or a directory that holds `client-0.npz`, `client-1.npz`, ….
        out: the directory; must not exist.
        spec: everything else.

    Raises:
        UsageError: the data or an option are unfit, or the directory exists; nothing was written.
    """
    if out.exists() or out.is_symlink():
        raise RunError("out", str(out), "exists already", "Choose another directory.")
    stream = Secrets.draw().truth("design")
    source = load_site_records(data, spec, stream)
    asked, records, pairs = dict[str, int](), dict[str, int](), dict[str, int]()
    clients, lists = dict[str, ClientRecords](), dict[str, dict[str, list[int]]]()
    for number, rows in enumerate(source.sites):
        party = f"client/{number}"
        asked[party] = int(spec.fraction * len(rows) / 2 + 1e-9)
        own = _client(party, rows, source, asked[party], spec.fraction, stream)
        records[party], pairs[party] = len(own.records), len(own.members)
        clients[party], lists[party] = own, own.to_json()
    salt, arrays = os.urandom(SALT_BYTES), source.arrays()
    commitment = commit(salt, clients, array_digests(arrays))
    design = MadeDesign(
        directory=out,
        commitment=commitment,
        records=records,
        pairs=pairs,
        asked=asked,
        handed_records=not source.own_files,
        images=source.x is not None,
        public=0 if source.own_files else len(source.shared["public"]),
    )
    key: dict[str, Any] = {
        "schema": SCHEMA,
        "clients": lists,
        "design": {"kind": MATCHED_PAIRS, "salt": salt.hex(), "commitment": commitment},
    }
    for name, rows in source.shared.items():
        key[name] = rows.tolist()
    with written_whole(out) as folder:
        _write_public(folder, design, source.name, spec.fraction)
        _write_sites(folder / "sites", clients, source, commitment)
        if design.public:
            _write_arrays(folder / _PUBLIC, {"x": source.arrays(source.shared["public"])["x"]})
        _private_folder(folder / "truth")
        _write_private_json(folder / "truth" / LISTS, key)
        _write_arrays(folder / "truth" / ARRAYS, arrays)
    sync_path(out.parent)
    return design


def _client(
    party: str, rows: Tensor, held: SiteRecords, pairs: int, fraction: float, stream: SecretStream
) -> ClientRecords:
    if not pairs:
        problem = f"gives no pair of {party}'s {len(rows)} records"
        raise DataError("fraction", fraction, problem, "Raise it, or give the site more records.")
    if labels_of(held.y).paired_alike and int(torch.bincount(held.y[rows]).max()) < 2:
        problem = f"gives {party} no two records of one class"
        raise DataError("DATA", held.name, problem, "Use fewer sites, more data, or another partition.")
    number = int(party.partition("/")[2])
    split = split_client(number, rows.sort().values, held.y, held.classes, pairs, stream)
    return ClientRecords(rows, split.members, split.non_members)


def _write_public(folder: Path, made: MadeDesign, name: str, fraction: float) -> None:
    value = {
        "schema": "fdaudit-design/1",
        "data": name,
        "sites": len(made.pairs),
        "fraction": fraction,
        "pairs": dict(made.pairs),
        "commitment": made.commitment,
    }
    save_json(folder / "design.json", value)


def _write_sites(
    folder: Path, clients: Mapping[str, ClientRecords], held: SiteRecords, commitment: str
) -> None:
    """Write what each site is handed. Its record numbers count from 0 in the order of its own file."""
    _private_folder(folder)
    for party, own in clients.items():
        path = folder / f"{party.replace('/', '-')}.json"
        # Ascending, so that the order tells nothing of the pairs.
        leave_out = torch.isin(own.records, own.non_members).nonzero().flatten()
        value = {
            "schema": "fdaudit-leave-out/1",
            "party": party,
            "records": len(own.records),
            "leave_out": leave_out.tolist(),
            "commitment": commitment,
        }
        _write_private_json(path, value)
        if not held.own_files:
            _write_arrays(path.with_suffix(".npz"), held.arrays(own.records))


def _private_folder(folder: Path) -> None:
    make_private(folder)
    write_atomically(folder / ".gitignore", b"*\n")


def _write_private_json(path: Path, value: object) -> None:
    write_atomically(path, canonical(value) + b"\n", mode=0o600)


def _write_arrays(path: Path, arrays: Mapping[str, Any]) -> None:
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        np.savez(file, **arrays)
        file.flush()
        os.fsync(file.fileno())
