"""The joint ledger: ε of several runs whose views one recipient holds.

Guarantees:
  * runs are matched record by record if they split one dataset, otherwise by the worst client of each;
  * a record that one run protects and another hands out is found by its source, whatever size or vocabulary a run has;
  * runs that draw from one stream of randomness are refused: noise that two releases share protects neither;
  * a record that one run protects and another gives to adversaries has no ε.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import chain
from typing import TYPE_CHECKING, Any

import numpy as np

from fdaudit.accounting.accounts import Accounts, dearest
from fdaudit.accounting.costs import epsilon
from fdaudit.accounting.joint import Holders, Joint, joined
from fdaudit.accounting.ledger import Ledger
from fdaudit.accounting.profile import Profile, profile, with_delta
from fdaudit.audit.run import Run
from fdaudit.errors import RunError, UsageError
from fdaudit.events import Relation, Unit
from fdaudit.result import AgainstActive
from fdaudit.transcript.manifest import read_manifest
from fdaudit.transcript.transcript import read_messages

if TYPE_CHECKING:
    from torch import Tensor

    from fdaudit.planning.case import Case

__all__ = ["JointLedger", "JointRuns", "Share", "joint", "joint_entry"]

_ADAPTIVE = (
    "Each run was set up without private data, except for what earlier runs had released to the adversary."
)
_MATCHED = "The runs split one dataset: a record is charged for every client that holds it."
_APART = "The runs split one dataset and no record is in two of them: the dearest run counts alone."
_UNMATCHED = (
    "The runs' data differ: one {unit} may be that of any client in each run, once in each at most. "
    "The dearest combination of clients counts."
)


@dataclass(frozen=True, kw_only=True)
class Share:
    """The share of one run in the worst record's cost.

    Attributes:
        run: its name.
        client: the client that holds the record in this run; empty if none does.
        epsilon: the record's cost in this run only, at the joint ledger's δ.
    """

    run: str
    client: str
    epsilon: float


@dataclass(frozen=True, kw_only=True)
class JointLedger(Ledger):
    """The ledger of several runs that one recipient holds.

    Attributes:
        runs: each run's share for the worst record.
    """

    runs: tuple[Share, ...] = ()


class JointRuns:
    """Several runs with one recipient.

    Args:
        runs: two or more finished runs.

    Attributes:
        names: names of the runs' directories, or their paths if two have the same name.

    Raises:
        RunError: there is only one run, or a run is given twice or shares its noise with another.
    """

    def __init__(self, runs: Sequence[Run]) -> None:
        if len(runs) < 2:
            directory = str(runs[0].directory) if runs else None
            remedy = "Give two runs or more, or use the run's own ledger."
            raise RunError("run", directory, "stands alone", remedy)
        self._runs = tuple(runs)
        self.names = tuple(run.directory.resolve().name for run in runs)
        if len(set(self.names)) < len(runs):
            self.names = tuple(str(run.directory) for run in runs)
        names_by_head = dict[str, str]()
        for run, name in zip(self._runs, self.names, strict=True):
            head = str(read_manifest(run.directory)["head"])
            earlier = names_by_head.get(head)
            names_by_head[head] = name
            if earlier is None:
                continue
            problem = "is given twice" if earlier == name else f"has the same record as {earlier}"
            remedy = "Give each run once: its copy tells nothing new."
            raise RunError("run", str(run.directory), problem, remedy)
        names_by_salt = dict[str, str]()
        for run, name in zip(self._runs, self.names, strict=True):
            first = next(iter(read_messages(run.directory / "transcript")), None)
            if first is None or not first.salt:
                continue
            if first.salt in names_by_salt:  # salts and noise come from one key
                problem = f"draws its noise from the same stream as {names_by_salt[first.salt]}"
                remedy = "Run one of them anew: noise that two releases share protects neither."
                raise RunError("run", str(run.directory), problem, remedy)
            names_by_salt[first.salt] = name

    @cached_property
    def views(self) -> tuple[str, ...]:
        """Return the adversaries whose ledgers every run shows."""
        first, *others = (run.views for run in self._runs)
        views = []
        for view in first:
            if all(view in other for other in others):
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
        """Return the joint ε of all runs' views for the worst record, or why none can be claimed.

        Args:
            view: an adversary, the same in every run.
            delta: δ; default: that of the first run's spec.
            unit: `record` or `client`; default: that of the first run's spec.
            relation: `add-or-remove` or `replace-one`; default: that of the first run's ledger.

        Raises:
            SpecError: a run has no such party, or δ is out of range.
            UsageError: clients cannot be matched between the runs.
        """
        if delta is None:
            delta = self._cases[0].spec.privacy.delta
        with_delta(delta)  # refuses a δ out of range
        accounts = self._joined(view, delta, unit, relation)
        warnings: dict[str, None] = {}  # in their order
        for run in self._runs:
            warnings |= dict.fromkeys(run.books.warnings(delta, accounts.accounts.unit))
        entry = joint_entry(accounts, self.names, delta, tuple(warnings))
        return replace(entry, against=tuple(self._against(entry, accounts)))

    def _against(self, entry: JointLedger, accounts: Joint) -> Iterator[AgainstActive]:
        """Yield what is left of a joint ε if parties of one role depart from the protocol in every run."""
        if not entry.finite or not entry.epsilon:
            return
        asking = [run.books.asking for run in self._runs]
        for name in dict.fromkeys(chain.from_iterable(asking)):
            group = [parties.get(name, ()) for parties in asking]
            yield self._left(entry, name, [group])
        victims = dearest(accounts.accounts, entry.victim, entry.delta)
        groups = []
        for victim in victims:
            others = []  # by run the clients that do not hold the record, without members of the adversary
            for run, holder in zip(self._runs, accounts.holders[victim], strict=True):
                clients = run.books.clients(entry.view)
                # Where a bound stands for too many combinations (`joined`), the run's own worst client holds it.
                if holder is not None and holder not in clients:
                    alone = run.books.ledger(
                        entry.view, delta=entry.delta, unit=entry.unit, relation=entry.relation
                    )
                    holder = alone.victim
                others.append(tuple(client for client in clients if client != holder))
            groups.append(others)
        most = max(map(len, groups[0]))
        if not most:
            return
        every = self._left(entry, "client", groups)
        if not every.holds and most > 1:
            first_ones = [others[:1] for others in groups[0]]
            one = self._left(entry, "client", [first_ones])
            yield one
            if one.epsilon is None:
                return
        yield every

    def _left(
        self, entry: JointLedger, name: str, groups: Sequence[Sequence[tuple[str, ...]]]
    ) -> AgainstActive:
        """Return what is left of a joint ε at worst if one of these groups of parties, by run, departs."""
        ledgers = []
        for away in groups:
            accounts = self._joined(entry.view, entry.delta, entry.unit, entry.relation, away)
            ledgers.append(joint_entry(accounts, self.names, entry.delta, ()))
        worst = max(ledgers, key=lambda one: one.epsilon)
        return entry.left(name, max(map(len, groups[0])), worst)

    def profile(
        self,
        view: str = "server",
        *,
        delta: float | None = None,
        unit: Unit | None = None,
        relation: Relation | None = None,
    ) -> Profile:
        """Return the joint ε of all runs at many δ; `delta` is one of them.

        Args:
            view: an adversary, the same in every run.
            delta: as `ledger` takes it.
            unit: as `ledger` takes it.
            relation: as `ledger` takes it.
        """
        if delta is None:
            delta = self._cases[0].spec.privacy.delta
        deltas = with_delta(delta)
        return profile(self._joined(view, delta, unit, relation).accounts, deltas)

    def _joined(
        self,
        view: str,
        delta: float,
        unit: Unit | None,
        relation: Relation | None,
        away: Sequence[Sequence[str]] = (),
    ) -> Joint:
        """Return the joint accounts, if by run the parties in `away` depart from the protocol."""
        unit = unit or self._cases[0].spec.privacy.unit
        if unit == "group":
            problem = "is not matched between runs"
            raise UsageError("unit", unit, problem, "Ask for the unit record, or client.")
        holders = self._holders
        if unit == "client" and any(None in held or len(set(held)) > 1 for held in holders or ()):
            problem = "has no meaning here: the runs split one dataset between clients in different ways"
            raise UsageError("unit", unit, problem, "Ask for the unit record.")
        of_runs = list[Accounts]()
        for number, run in enumerate(self._runs):
            books = run.books
            if away and away[number]:
                books = books.if_departed(away[number])
            accounts = books.accounts(view, unit=unit, relation=relation or books.choices.relation)
            relation = accounts.relation
            # Without ε for clients whose records another run gives to adversaries.
            charges, causes = dict(accounts.charges), dict(accounts.causes)
            for client, why in self._handed_out[number].items():
                if client in charges:
                    del charges[client]
                    causes[client] = why
            of_runs.append(replace(accounts, charges=charges, causes=causes))
        joint = joined(of_runs, self.names, holders, delta)
        if holders is None:
            matching = _UNMATCHED.format(unit=unit)
        elif any(len(held) - held.count(None) > 1 for held in holders):
            matching = _MATCHED
        else:
            matching = _APART
        assumptions = (*joint.accounts.assumptions, _ADAPTIVE, matching)
        return replace(joint, accounts=replace(joint.accounts, assumptions=assumptions))

    @property
    def _cases(self) -> tuple[Case, ...]:
        return tuple(run.case for run in self._runs)

    @cached_property
    def _one_dataset(self) -> bool:
        """Return whether an index means the same record in every run; canaries are records that a run makes itself."""
        if any(case.spec.canaries is not None for case in self._cases):
            return False
        return len({case.dataset.sha256() for case in self._cases}) == 1

    @cached_property
    def _holders(self) -> tuple[Holders, ...] | None:
        """Return every combination of clients that hold one record; None if records cannot be matched."""
        if not self._one_dataset:
            return None
        table = np.full((len(self._cases[0].dataset.x), len(self._cases)), -1)
        for column, case in enumerate(self._cases):
            for client, split in enumerate(case.splits.clients):
                table[split.train.numpy(), column] = client
        names = dict(enumerate(f"client/{k}" for k in range(table.max() + 1)))
        rows = np.unique(table[(table >= 0).any(axis=1)], axis=0)
        combinations = []
        for row in rows.tolist():
            holders = map(names.get, row)
            combinations.append(tuple(holders))
        return tuple(combinations)

    @cached_property
    def _handed_out(self) -> tuple[dict[str, str], ...]:
        """Return, by run, the clients whose records another run uses as proxy or auxiliary data, and the reason."""
        public_of_runs = [self._public(case) for case in self._cases]
        handed_out = []
        for number, case in enumerate(self._cases):
            reasons: dict[str, str] = {}
            for client, split in zip(case.clients, case.splits.clients, strict=True):
                own = self._identified(case, split.train)
                for other, public in enumerate(public_of_runs):
                    shared = len(own & public)
                    if other != number and shared:
                        of_other = f"proxy or auxiliary data of {self.names[other]}"
                        reasons.setdefault(client, f"{shared} records of {client} are {of_other}")
            handed_out.append(reasons)
        return tuple(handed_out)

    def _public(self, case: Case) -> set[Any]:
        import torch

        from fdaudit.data import load_dataset

        index = torch.cat([case.splits.proxy, case.splits.auxiliary])
        public = self._identified(case, index)
        if self._one_dataset:
            return public
        if case.origin == "simulation" and case.spec.public_dataset is not None:
            other = load_dataset(case.spec.public_dataset, case.secrets.truth("public-dataset"))
            public |= _identities(other.x, other.origins)
        return public | _identities(case.public, None)

    def _identified(self, case: Case, index: Tensor) -> set[Any]:
        """Return records by their indices if the runs split one dataset, else by what their source stores.

        A run may number words in its own way, cut texts or resize images. So records of different runs are compared as
        they were before, and as they are after that.
        """
        if self._one_dataset:
            return set(index.tolist())
        dataset = case.dataset
        if case.missing("images"):  # records without images cannot be told apart
            return {None} if len(index) else set()
        origins = dataset.origins
        if origins is not None:
            origins = origins[index]
        return _identities(dataset.x[index], origins)


def joint_entry(joint: Joint, names: Sequence[str], delta: float, warnings: tuple[str, ...]) -> JointLedger:
    """Return the ledger of joint accounts, with each run's share for the worst record.

    Args:
        joint: the joint accounts of the runs.
        names: of the runs.
        delta: δ.
        warnings: reasons why the figure says less than it seems to.
    """
    priced = profile(joint.accounts, np.array([delta]), distributions=False)
    victim = priced.clients[0]
    holders = joint.holders.get(victim, (None,) * len(names))
    parts = joint.shares.get(victim, ({},) * len(names))
    shares = []
    for name, client, charges in zip(names, holders, parts, strict=True):
        cost = epsilon(charges, delta).value
        shares.append(Share(run=name, client=client or "", epsilon=cost))
    return JointLedger(
        view=priced.view,
        epsilon=float(priced.epsilons[0]),
        delta=delta,
        unit=priced.unit,
        relation=priced.relation,
        victim=victim,
        cause=priced.cause,
        accountant=priced.accountants[0],
        assumptions=priced.assumptions,
        warnings=warnings,
        gdp=priced.gdp,
        zcdp=priced.zcdp,
        runs=() if priced.cause else tuple(shares),
    )


def joint(runs: Sequence[Run]) -> JointRuns:
    """Return several finished runs as the joint view of one recipient.

    Args:
        runs: two or more, each released to the same recipient.

    Raises:
        RunError: there is only one run, or a run is given twice or shares its noise with another.
    """
    return JointRuns(runs)


def _identities(x: Tensor, origins: Tensor | None) -> set[Any]:
    """Return records (n, …) by their values, and by their origins (n, 2) if these are known."""
    identities: set[Any] = {record.numpy().tobytes() for record in x}
    if origins is not None:
        identities.update(map(tuple, origins.tolist()))
    return identities
