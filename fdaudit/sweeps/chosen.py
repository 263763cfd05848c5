"""ε of a run that was chosen from a sweep by results: the charges of all runs of the sweep, composed.

Guarantees:
  * every run that was carried out counts, with its own charges, whether its results were good or bad;
  * a run without a guarantee, a failed run, and a run whose charges are not known leave no ε to claim.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

from fdaudit.accounting.accounts import Accounts, accounts_from_json, accounts_to_json
from fdaudit.accounting.joint import joined
from fdaudit.accounting.profile import with_delta
from fdaudit.audit.joint_ledger import JointLedger, joint_entry
from fdaudit.audit.run import Run
from fdaudit.errors import IntegrityError, RunError, UsageError
from fdaudit.events import Relation, Unit
from fdaudit.result import read
from fdaudit.result.gates import utility_of
from fdaudit.storage.files import load_json, save_json
from fdaudit.sweeps.index import ACCOUNTS, Choice, Index, SweepEntry, TunedEpsilon, read_index
from fdaudit.transcript.manifest import read_manifest

__all__ = ["ChosenRun", "choose", "note_accounts"]

_FIXED = "Who takes part, the schedule and every"
_NO_DEPARTURE = "What is left of ε if a party departs from the protocol is not computed for a chosen run."
_OTHERS = "Who takes part, the schedule and every other setting were fixed without private data."


def note_accounts(directory: Path, records: str) -> None:
    """Write the accounts of a finished run beside its result.

    Args:
        directory: the run.
        records: a name that runs on the same records in the same hands share.
    """
    run = Run(directory)
    case = run.case
    value = {
        "records": records,
        "hands_out": bool(len(case.splits.proxy) + len(case.splits.auxiliary)),
        "delta": case.spec.privacy.delta,
        "accounts": [accounts_to_json(run.accounts(view)) for view in run.views],
    }
    save_json(directory / ACCOUNTS, value, indent=1)


@dataclass(frozen=True, kw_only=True)
class _Kept:
    """The content of one run's accounts file."""

    records: str
    hands_out: bool
    delta: float
    accounts: Mapping[str, Accounts]

    @classmethod
    def read(cls, path: Path) -> _Kept:
        """Return the accounts of a run.

        Raises:
            IntegrityError: the file is damaged.
        """
        value = load_json(path)
        kinds: Mapping[str, type] = {"records": str, "hands_out": bool, "delta": float, "accounts": list}
        fits = isinstance(value, dict) and value.keys() == kinds.keys()
        if not fits or any(type(value[name]) is not kind for name, kind in kinds.items()):
            raise IntegrityError([f"{path.name} does not have the fields {', '.join(kinds)}"])
        views = list(map(accounts_from_json, value["accounts"]))
        return cls(**{**value, "accounts": {entry.view: entry for entry in views}})


class ChosenRun:
    """A run of a sweep, as one of all the runs from which it was chosen.

    Args:
        sweep: the sweep's directory.
        run: the chosen run, or a copy of it.

    Raises:
        RunError: the directory holds no sweep, or the run is none of it.
        IntegrityError: a file of the sweep is damaged.
    """

    def __init__(self, sweep: Path, run: Path) -> None:
        self._sweep = sweep
        self._entries: list[SweepEntry] = []
        for entry in read_index(sweep).runs:
            if entry.status in ("done", "failed"):
                self._entries.append(entry)
        head = read_manifest(run)["head"]
        for entry in self._entries:
            if entry.status == "done" and read_manifest(self._place(entry.key))["head"] == head:
                return
        problem = f"is no finished run of {sweep}"
        raise RunError("run", str(run), problem, "Give a run below the sweep's own directory `runs`.")

    @property
    def count(self) -> int:
        """Return the number of runs that were carried out."""
        return len(self._entries)

    @property
    def views(self) -> tuple[str, ...]:
        """Return the adversaries of whom every finished run has accounts."""
        first, *others = (kept.accounts for kept in self._kept.values())
        common = set(first).intersection(*others)
        views: list[str] = []
        for view in first:
            if view in common:
                views.append(view)
        return tuple(views)

    def ledger(
        self,
        view: str = "server",
        *,
        delta: float | None = None,
        unit: Unit | None = None,
        relation: Relation | None = None,
    ) -> JointLedger:
        """Return ε of all runs together, or why none can be claimed; arguments as for `Run.ledger`.

        Raises:
            SpecError: δ is out of range.
            UsageError: the sweep's ledgers have another unit or relation.
        """
        runs = list(self._kept.values())
        if delta is None:
            delta = runs[0].delta
        with_delta(delta)  # refuses a δ out of range
        accounts = [one.accounts[view] for one in runs if view in one.accounts]
        for field, value in (("unit", unit), ("relation", relation)):
            stated = {getattr(one, field) for one in accounts}
            if value is not None and stated != {value}:
                problem = f"is not that of the sweep's ledgers ({', '.join(sorted(stated))})"
                raise UsageError(field, value, problem, f"Set privacy.{field} in the grid's base.")
        cause = self._unknown(view)
        if cause:
            unknown = JointLedger(
                view=view,
                epsilon=math.inf,
                delta=delta,
                unit="record",
                relation="replace-one",
                cause=cause,
                assumptions=(),
            )
            if not accounts:
                return unknown
            one = accounts[0]
            assumed = self._assumed(one.assumptions)
            return replace(unknown, unit=one.unit, relation=one.relation, assumptions=assumed)
        names = list(self._kept)
        holders = None
        if len({one.records for one in runs}) == 1:
            clients: dict[str, None] = {}  # in their order
            for one in accounts:
                clients |= dict.fromkeys([*one.charges, *one.causes])
            holders = [(client,) * len(names) for client in clients]
        joint = joined(accounts, names, holders, delta)
        whole = replace(joint.accounts, assumptions=self._assumed(joint.accounts.assumptions))
        return joint_entry(replace(joint, accounts=whole), names, delta, ())

    @cached_property
    def _kept(self) -> dict[str, _Kept]:
        """Return the accounts of the finished runs that have them, by the run in words."""
        runs = {}
        for entry in self._entries:
            path = self._place(entry.key) / ACCOUNTS
            if entry.status == "done" and path.is_file():
                runs[entry.called] = _Kept.read(path)
        if not runs:
            problem = "has no run with accounts"
            raise RunError("sweep", str(self._sweep), problem, "Run the sweep anew with this version.")
        return runs

    def _unknown(self, view: str) -> str:
        """Return why the runs cannot be composed, or an empty text."""
        for entry in self._entries:
            run = self._kept.get(entry.called)
            if run is None and entry.status == "failed":
                return f"{entry.called}: it failed, and what it released is not known"
            if run is None:
                return f"{entry.called}: it has no {ACCOUNTS}, because an earlier version carried it out"
            if view not in run.accounts:
                return f"{entry.called} has no accounts of {view}"
        kept_runs = list(self._kept.values())
        claims: set[tuple[str, str]] = set()
        for one in kept_runs:
            claims.add((one.accounts[view].unit, one.accounts[view].relation))
        if len(claims) > 1:
            return (
                "the runs state ε for different units or relations: set privacy.relation in the grid's base"
            )
        if len({one.records for one in kept_runs}) > 1 and any(one.hands_out for one in kept_runs):
            return (
                "the runs split the records differently, so that one run may hand out what another protects: "
                "choose among runs of one seed"
            )
        return ""

    def _assumed(self, assumptions: tuple[str, ...]) -> tuple[str, ...]:
        lines = [line for line in assumptions if not line.startswith(_FIXED)]
        chosen = (
            f"The setting was chosen from {len(self._entries)} runs by what each released; all are charged."
        )
        return (*lines, _OTHERS, chosen, _NO_DEPARTURE)

    def _place(self, key: str) -> Path:
        return self._sweep / "runs" / key


def choose(sweep: Path, index: Index) -> Choice | None:
    """Return the run of the grid with the largest utility, and ε of all runs; None if no run has a utility.

    Args:
        sweep: the sweep's directory.
        index: its index.
    """
    best: tuple[float, str] | None = None
    for entry in index.runs:
        if entry.status == "done" and entry.in_grid:
            result = read(load_json(sweep / "runs" / entry.key / "result.json"))
            value = utility_of(result.utility.final, result.run.protocol)
            if value is not None and (best is None or value > best[0]):
                best = value, entry.key
    if best is None:
        return None
    value, key = best
    run = ChosenRun(sweep, sweep / "runs" / key)
    ledger = []
    for view in run.views:
        claim = run.ledger(view)
        epsilon = claim.epsilon if math.isfinite(claim.epsilon) else None
        ledger.append(TunedEpsilon(adversary=view, epsilon=epsilon, delta=claim.delta, cause=claim.cause))
    return Choice(key=key, value=value, runs=run.count, ledger=tuple(ledger))
