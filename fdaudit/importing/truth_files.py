"""Gather the truth of an import from one directory or several: the recorder's, those of sites, and an auditor's own.

An auditor's records are `records.npz` with `records.json`. Sites have a file each, `client-SITE.npz`, in which x is
what the network gets. Both become the same: the rows of all clients, and which rows are whose.

Guarantees:
  * a file of one kind is given once;
  * nothing in the files is trusted: what is gathered is checked as if an auditor had written it;
  * gathered files lie in a scratch directory that ends with the block.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fdaudit.data.files import read_arrays
from fdaudit.errors import DataError, RunError
from fdaudit.limits import DATA_BYTES
from fdaudit.planning.brought import ARRAYS, LISTS, SCHEMA, BroughtRecords, read_records
from fdaudit.planning.recorded import by_party
from fdaudit.recording.truth import NODES, NOTES, REPLIES, SITES, USES, joined_notes, read_sites, read_uses
from fdaudit.spec.card import Card
from fdaudit.storage.files import write_atomically
from fdaudit.storage.scratch import scratch
from fdaudit.transcript.messages import role

__all__ = ["TruthFiles", "home_of_records", "truth_files"]

_SHARED = ("auxiliary", "public", "test")
_SITE = "client-"
_ROUNDING = 1e-4
"""Part of the range of images by which rounding may move them."""


@dataclass(frozen=True)
class TruthFiles:
    """The files of the truth by name: `uses.jsonl`, `sites.json`, `records.json`, `records.npz`, where they are there.

    Attributes:
        files: their paths.
        span: lowest and highest value of images, as the card states it.
        notes: what was left out, one sentence each.
    """

    files: Mapping[str, Path]
    span: tuple[float, float]
    notes: tuple[str, ...] = ()

    def brought(self) -> BroughtRecords | None:
        """Return the records that were brought, by the record's parties."""
        if LISTS not in self.files:
            return None
        records = read_records(self.files[LISTS], self.files[ARRAYS], self.span)
        return by_party(records, _sites(self.files))

    def uses(self) -> dict[int, tuple[int, ...]] | None:
        """Return the records behind messages."""
        if USES not in self.files:
            return None
        return read_uses(self.files[USES])


@contextmanager
def truth_files(directories: Sequence[Path], card: Card, parties: Sequence[str]) -> Iterator[TruthFiles]:
    """Yield the files of the truth. Notes of sites are joined with the server's, and files of sites put together.

    Args:
        directories: of the truth.
        card: the system's card.
        parties: every party of the record.

    Raises:
        UsageError: a directory or a file is missing, given twice, or wrong.
    """
    files, sites, notes = _found(directories)
    with scratch("truth") as folder:
        left_out: tuple[str, ...] = ()
        if REPLIES in files:
            # Join the notes of sites with the server's, as the two files that a recorder writes.
            uses, site_of = joined_notes(files[REPLIES], notes, files.get(NODES))
            if SITES in files:
                site_of = dict(read_sites(files[SITES]))
            if notes:
                lines = ""
                for seq, records in uses.items():
                    lines += json.dumps({"seq": seq, "records": records}) + "\n"
                files[USES] = folder / USES
                write_atomically(files[USES], lines.encode())
            files[SITES] = folder / SITES
            write_atomically(files[SITES], json.dumps(site_of).encode())
        if sites:
            left_out = _put_together(files, sites, card, parties, folder)
        parts = {}
        for name in (USES, SITES, LISTS, ARRAYS):
            if name in files:
                parts[name] = files[name]
        yield TruthFiles(parts, card.image_range, left_out)


def home_of_records(directories: Sequence[Path]) -> Path:
    """Return the first directory of a truth that holds records; there is one, as `truth_files` found them."""
    for directory in directories:
        if (directory / ARRAYS).exists() or any(directory.glob(f"{_SITE}*.npz")):
            break
    return directory


def _found(directories: Sequence[Path]) -> tuple[dict[str, Path], dict[str, Path], list[Path]]:
    """Return the files that may be given once by their names, the files of sites by their sites, and all notes."""
    files, sites, notes = dict[str, Path](), dict[str, Path](), list[Path]()
    for directory in directories:
        if not directory.is_dir():
            raise RunError("truth", str(directory), "is no directory", "Give the directory of a truth.")
        site_files = sorted(directory.glob(f"{_SITE}*.npz"))
        once = [USES, SITES, LISTS, ARRAYS, REPLIES, NODES]
        if site_files:
            once += [f"{name}.npz" for name in _SHARED]
        for name in once:
            path = directory / name
            if path.exists():
                _give_once(directory, files, name, path)
        for path in site_files:
            _give_once(directory, sites, path.stem.removeprefix(_SITE), path)
        if (directory / NOTES).exists():
            notes.append(directory / NOTES)
    for one, other in ((LISTS, ARRAYS), (ARRAYS, LISTS)):
        if one in files and other not in files:
            problem = f"has {one} and no {other}"
            raise RunError("truth", str(files[one].parent), problem, "Give both: see docs/import.md.")
    if sites and LISTS in files:
        problem = f"has {LISTS}, and {next(iter(sites.values()))} has records as well"
        raise RunError("truth", str(files[LISTS].parent), problem, "Leave one of them out.")
    if notes and REPLIES not in files:
        problem = f"has {NOTES}, and no directory has the server's {REPLIES}"
        raise RunError("truth", str(notes[0].parent), problem, "Give the server's truth as well.")
    if REPLIES in files and USES in files:
        problem = f"has {USES}, and {files[REPLIES]} is there as well"
        raise RunError("truth", str(files[USES].parent), problem, "Leave one of them out.")
    return files, sites, notes


def _give_once(directory: Path, files: dict[str, Path], name: str, path: Path) -> None:
    if name in files:
        problem = f"holds {path.name}, which {files[name].parent} holds as well"
        raise RunError("truth", str(directory), problem, "Give each file once.")
    files[name] = path


# -- files of sites -----------------------------------------------------------------------------------------------


def _put_together(
    files: dict[str, Path], sites: Mapping[str, Path], card: Card, parties: Sequence[str], folder: Path
) -> tuple[str, ...]:
    """Put the records of sites together, as the two files that an auditor writes; return what was left out."""
    site_of = _sites(files)
    arrays = _FileRecords(card)
    lists: dict[str, Any] = {"schema": SCHEMA, "clients": {}, "design": None}
    others = dict(sites)
    for party in parties:
        if role(party) != "client":
            continue
        site = str(site_of.get(party, party)).removeprefix("client/")
        if site in others:
            rows, held_out = arrays.add(others.pop(site))
            lists["clients"][party] = _client(rows, held_out)
    if not lists["clients"]:
        names = []
        for path in list(sites.values())[:3]:
            name = path.name
            names.append(name)
        problem = "is of no client of the record"
        raise DataError(
            "truth", ", ".join(names), problem, "Name the files by the sites, or the clients' numbers."
        )
    for name in _SHARED:
        if f"{name}.npz" in files:
            lists[name], _ = arrays.add(files.pop(f"{name}.npz"))
    files[LISTS], files[ARRAYS] = folder / LISTS, folder / ARRAYS
    write_atomically(files[LISTS], json.dumps(lists).encode())
    arrays.write(files[ARRAYS])
    files.pop(SITES, None)  # the lists are by party now
    return tuple(f"{path.name} is of no client of the record, and left out." for path in others.values())


def _sites(files: Mapping[str, Path]) -> Mapping[str, str | int]:
    """Return the site behind each party, if a file says so."""
    if SITES not in files:
        return {}
    return read_sites(files[SITES])


def _client(rows: list[int], held_out: list[int]) -> dict[str, list[int]]:
    """Return a client's lists. As many of its records as it held out are the members, evenly from first to last."""
    trained = sorted(set(rows) - set(held_out))
    if not held_out or not trained:
        return {"records": rows}
    count = min(len(trained), len(held_out))
    members = [trained[i * len(trained) // count] for i in range(count)]
    return {"records": rows, "members": members, "non_members": held_out}


class _FileRecords:
    """The records of all files, images with channels last."""

    def __init__(self, card: Card) -> None:
        self._card = card
        self._x: list[NDArray[Any]] = []
        self._y: list[NDArray[Any]] = []
        self._count, self._bytes = 0, 0

    def add(self, file: Path) -> tuple[list[int], list[int]]:
        """Add a file's records; return their rows, and the rows of those that were held out."""
        arrays = read_arrays(file, ("x", "y", "held_out"), file.name, follow=False)
        if "y" not in arrays or "x" not in arrays:
            raise DataError(file.name, str(file), "lacks x or y", "Store both.")
        x, y = arrays["x"], arrays["y"]
        if len(x) != len(y) or not len(y):
            problem = f"has {len(x)} x and {len(y)} y"
            raise DataError(file.name, str(file), problem, "Store one label for each record.")
        if x.dtype.kind == "f" and not np.isfinite(x).all():
            raise DataError(file.name, "x", "holds NaN or infinite values", "Remove or repair those records.")
        stored = self._stored(file.name, x)
        self._bytes += stored.nbytes
        if self._bytes > DATA_BYTES.most:
            problem = f"and the files of other sites have {DATA_BYTES.refusal(self._bytes)}"
            raise DataError(file.name, str(file), problem, "Give fewer records.")
        self._x.append(stored)
        self._y.append(y)
        rows = list(range(self._count, self._count + len(y)))
        self._count += len(y)
        held_out = []
        if "held_out" in arrays:
            held_out = arrays["held_out"].ravel().tolist()
        if not all(type(i) is int and 0 <= i < len(y) for i in held_out):
            raise DataError(file.name, "held_out", "names no rows of x", "Give rows of the file.")
        return rows, [rows[i] for i in held_out]

    def write(self, path: Path) -> None:
        """Write the arrays of all files."""
        try:
            x, y = np.concatenate(self._x), np.concatenate(self._y)
        except ValueError as error:
            problem = f"do not fit each other ({error})"
            raise DataError("truth", "the files of sites", problem, "Store records of one shape.") from None
        with path.open("wb") as file:
            np.savez(file, x=x, y=y)

    def _stored(self, name: str, x: NDArray[Any]) -> NDArray[Any]:
        """Return inputs (n, …) of the network as images (n, h, w, c), or as rows (n, d) of a table."""
        shape = tuple(self._card.input_shape)
        allowed = {shape, (math.prod(shape),)}
        if shape[0] == 1:
            allowed.add(shape[1:])
        if x.shape[1:] not in allowed:
            problem = f"has records of shape {x.shape[1:]}, and the card's input_shape is {list(shape)}"
            raise DataError(name, "x", problem, "Correct the card, or store x as the network gets it.")
        records = x.reshape(len(x), *shape)
        if len(shape) == 1:
            return records
        if records.dtype.kind == "f":
            before, preprocess = "", self._card.preprocess
            if preprocess is not None:  # what clients had before they did to it what the card says
                before = " before `preprocess` of the card"
                mean, std = preprocess.channels.values()
                records = records * np.reshape(std, (-1, 1, 1)) + np.reshape(mean, (-1, 1, 1))
            low, high = self._card.image_range
            least, most = float(records.min()), float(records.max())
            room = _ROUNDING * (high - low)
            if least < low - room or most > high + room:
                problem = f"was in [{least:.6g}, {most:.6g}]{before}, and images are in [{low:g}, {high:g}]"
                remedy = "State under `preprocess` in the card what clients do to images before the network."
                raise DataError(name, "x", problem, remedy)
            records = records.clip(low, high)
        return np.moveaxis(records, 1, 3)
