"""Count what a site has answered about its records, beside the truth and once more for the user of the machine.

Guarantees:
  * counts are by record. A record is named by its content, so neither a party's name nor a row's number changes its
    count;
  * a charge is on disk in both places before the caller goes on;
  * the larger of the two counts holds. A ledger that is removed, exchanged or left behind by a copy of the truth
    lowers no count while the other place remains;
  * a second asker waits until the first one has its answer.

If both files are removed, or the truth is copied to another machine, counting starts at zero: no file can notice that.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import Field

from fdaudit.config import Config, validate
from fdaudit.errors import IntegrityError, RunError, SpecError
from fdaudit.storage.cache import private_directory, state_directory
from fdaudit.storage.digests import canonical
from fdaudit.storage.files import load_json, write_atomically
from fdaudit.storage.locks import writing

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["LEDGER", "Answered", "answered_at", "note_handed_out", "record_names"]

LEDGER = "answered.json"
_SCHEMA = "fdaudit-answered/1"
_PRIVATE = 0o600

Name = Annotated[str, Field(pattern=r"^[0-9a-f]{32}$")]
Count = Annotated[int, Field(ge=1)]
Sha256 = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]


class _Request(Config):
    """One answered request."""

    goal: str
    """What it guessed."""
    guesses: Sha256
    """SHA-256 of the file of guesses."""


class _LedgerContent(Config):
    """The content of a ledger."""

    schema_name: Literal["fdaudit-answered/1"] = Field(alias="schema")
    """Version of this format."""
    truth: Sha256 | None
    """Digest of the names of all records of the truth beside it; None for the user's own ledger."""
    counts: dict[str, dict[Name, Count]]
    """By goal, how often each record was answered for."""
    handed_out: tuple[Name, ...]
    """Records of parties whose candidates for membership were handed out."""
    requests: tuple[_Request, ...]
    """What was answered, in order."""


@dataclass
class _OpenLedger:
    """A ledger in memory, and its file."""

    path: Path
    truth: str | None
    counts: dict[str, dict[str, int]] = field(default_factory=dict)
    handed_out: set[str] = field(default_factory=set)
    requests: list[dict[str, str]] = field(default_factory=list)

    @classmethod
    def read(cls, path: Path, truth: str | None) -> _OpenLedger:
        """Return the ledger of a file, or an empty one if there is none."""
        if not path.exists() and not path.is_symlink():
            return cls(path, truth)
        try:
            content = validate(_LedgerContent, load_json(path), LEDGER)
        except SpecError as error:
            raise IntegrityError([f"{path} is damaged: {error}"]) from None
        if content.truth != truth:
            problem = (
                "was kept for other records. Put the one of these records back, or use a truth of its own"
            )
            raise IntegrityError([f"{path} {problem}"])
        counts = {goal: dict(by_record) for goal, by_record in content.counts.items()}
        requests = [request.model_dump(mode="json") for request in content.requests]
        return cls(path, truth, counts, set(content.handed_out), requests)

    def of(self, goal: str, records: Iterable[str]) -> int:
        counts = self.counts.get(goal, {})
        return max((counts.get(record, 0) for record in records), default=0)

    def raise_to(self, goal: str, record: str, count: int) -> None:
        counts = self.counts.setdefault(goal, {})
        counts[record] = max(counts.get(record, 0), count)

    def write(self) -> None:
        value: dict[str, Any] = {
            "schema": _SCHEMA,
            "truth": self.truth,
            "counts": self.counts,
            "handed_out": sorted(self.handed_out),
            "requests": self.requests,
        }
        try:
            write_atomically(self.path, canonical(value) + b"\n", mode=_PRIVATE)
        except OSError as error:
            problem = f"cannot be written ({error.strerror}), and nothing is answered without it"
            raise RunError("ledger", str(self.path), problem, "Make its directory writable.") from None


class Answered:
    """The two ledgers of a site while they are locked.

    Args:
        beside: the ledger beside the truth.
        own: the ledger of the user of this machine.
    """

    def __init__(self, beside: _OpenLedger, own: _OpenLedger) -> None:
        self._beside, self._own = beside, own

    def asked(self, goal: str, records: Collection[str]) -> int:
        """Return how often the most asked of these records was answered for."""
        return max(self._beside.of(goal, records), self._own.of(goal, records))

    def elsewhere(self, goal: str, records: Collection[str]) -> int:
        """Return how many answers the ledger beside the truth lacks, for the record that it lacks most of."""
        own, beside = self._own.counts.get(goal, {}), self._beside.counts.get(goal, {})
        most = 0
        for record in records:
            most = max(most, own.get(record, 0) - beside.get(record, 0))
        return most

    def handed_out(self, records: Iterable[str]) -> bool:
        """Return whether some of these records belong to a party whose candidates were handed out."""
        return not (self._beside.handed_out | self._own.handed_out).isdisjoint(records)

    def charge(self, goal: str, records: Iterable[str], guesses: str) -> None:
        """Count one more answer for each of these records. Call before the answer is computed.

        Args:
            goal: what is guessed.
            records: the records' names.
            guesses: SHA-256 of the file of guesses.

        Raises:
            RunError: a ledger cannot be written.
        """
        for record in set(records):
            count = self.asked(goal, (record,)) + 1
            for ledger in (self._beside, self._own):
                ledger.raise_to(goal, record, count)
        self._beside.requests.append({"goal": goal, "guesses": guesses})
        counted = chain.from_iterable(self._beside.counts.values())
        self._beside.handed_out |= self._own.handed_out.intersection(counted)
        self._beside.write()
        self._own.write()


@contextmanager
def answered_at(truth: Path, records: Collection[str]) -> Iterator[Answered]:
    """Lock and read the ledgers of a truth; wait for another asker to end.

    Args:
        truth: the directory of the truth that holds its records.
        records: the names of all its records.

    Raises:
        IntegrityError: a ledger is damaged, or the one beside the truth was kept for other records.
        RunError: a directory cannot be locked.
    """
    digest = hashlib.sha256(canonical(sorted(records))).hexdigest()
    account = _account()
    with writing(truth, wait=True), writing(account, wait=True):
        yield Answered(_OpenLedger.read(truth / LEDGER, digest), _OpenLedger.read(account / LEDGER, None))


def note_handed_out(records: Iterable[str]) -> None:
    """Note in the user's ledger whose candidates were handed out. No guess about these records is scored from then on.

    Raises:
        IntegrityError: the ledger is damaged.
        RunError: it cannot be written.
    """
    account = _account()
    with writing(account, wait=True):
        ledger = _OpenLedger.read(account / LEDGER, None)
        ledger.handed_out |= set(records)
        ledger.write()


def record_names(x: Tensor | None, y: Tensor) -> tuple[str, ...]:
    """Return a name for each record: a digest of its content, or of its row where only labels are there.

    Args:
        x: images (n, …), or None.
        y: labels (n, …).
    """
    labels = [row.numpy().tobytes() for row in y]
    if x is None:
        together = hashlib.sha256(b"".join(labels)).digest()
        contents = [together + row.to_bytes(8, "big") for row in range(len(labels))]
    else:
        contents = []
        for image, label in zip(x, labels, strict=True):
            contents.append(image.contiguous().numpy().tobytes() + label)
    names = []
    for content in contents:
        digest = hashlib.sha256(content).hexdigest()
        names.append(digest[:32])
    return tuple(names)


def _account() -> Path:
    folder = state_directory() / "answered"
    for private in (
        folder.parent,
        folder,
    ):  # in this order: a parent that is made on the way is open to others
        os.close(private_directory(private, "XDG_STATE_HOME"))
    return folder
