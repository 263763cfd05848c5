"""The books of a run: its transcript, its possible oracle answers, and the protocol's declarations on its messages.

Opening a case loads its networks and its dataset. So the vault keeps the terms of the ledger, and they are read without
the case.

Guarantees:
  * kept terms count only for the manifest and the version of fdaudit that they were made with;
  * a file of terms that is damaged, or sealed with another vault's secret, counts as missing;
  * terms that follow from code of others are not kept.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from fdaudit import defenses, protocols
from fdaudit.accounting.accounts import rounded_up
from fdaudit.accounting.ledger import Books, Groups, Ledger, OracleAnswers
from fdaudit.config import Config, validate
from fdaudit.errors import FdauditError
from fdaudit.planning.message_sizes import fixed_sizes
from fdaudit.spec.code import own_digest
from fdaudit.spec.privacy import PrivacySpec
from fdaudit.spec.schema import load_spec
from fdaudit.spec.trust import refuse_code
from fdaudit.storage.digests import canonical
from fdaudit.storage.files import load_json, save_json
from fdaudit.storage.vault import Vault
from fdaudit.transcript.log import read_log
from fdaudit.transcript.manifest import read_manifest
from fdaudit.transcript.messages import Message, role

if TYPE_CHECKING:
    from fdaudit.planning.case import Case
    from fdaudit.scoring.run_directory import RunDirectory

__all__ = ["books_of", "keep_terms", "kept_books", "table"]

_KEPT = "ledger.json"


class _Answers(Config):
    """The answers of one oracle, as `OracleAnswers`."""

    message: str
    """Its line."""
    asked_by: tuple[str, ...]
    heard_by: tuple[str, ...]
    queries: int


class _Terms(Config):
    """The terms of a ledger: the arguments of `Books`, except the messages and the spec's choices."""

    _one_line: ClassVar[bool] = False

    parties: tuple[str, ...]
    transport: str
    reveals: tuple[tuple[str, str, str], ...]
    """Kind, role of the sender, and the raw data in words."""
    records: int | None
    oracles: tuple[_Answers, ...]
    fixed_sizes: tuple[tuple[str, str], ...]
    assumptions: tuple[str, ...]
    pooled: str
    groups: tuple[int, str] | None
    notes: tuple[str, ...]
    views: tuple[str, ...]

    @classmethod
    def of(cls, run: RunDirectory, messages: Sequence[Message]) -> _Terms:
        """Return the terms of a run, from its case."""
        from fdaudit.handout.oracle_access import finished, oracle_answers

        case = run.case
        answers = []
        for oracle in oracle_answers(case, messages, finished=finished(case, run.vault)):
            line = oracle.message.to_line().decode("ascii").rstrip("\n")
            asked_by, heard_by = tuple(sorted(oracle.asked_by)), tuple(sorted(oracle.heard_by))
            answers.append(
                _Answers(message=line, asked_by=asked_by, heard_by=heard_by, queries=oracle.queries)
            )
        counts = [len(case.records(client)[1]) for client in case.clients]
        reveals = []
        for m in case.declared_messages:
            if "reveals" in m:
                reveals.append((m["kind"], m["from"], m["reveals"]))
        others = [party for party in case.parties if role(party) != "client"]
        return cls(
            parties=case.parties,
            transport=case.charged_transport,
            reveals=tuple(reveals),
            records=min(filter(None, counts), default=None),
            oracles=tuple(answers),
            fixed_sizes=tuple(sorted(fixed_sizes(case))),
            assumptions=_assumptions(case),
            pooled=case.clients[0] if case.protocol.card.pools_data else "",
            groups=_groups(case),
            notes=_rare_classes(case),
            views=tuple(dict.fromkeys([*others, *case.spec.adversaries])),
        )

    def books(self, messages: Sequence[Message], choices: PrivacySpec) -> Books:
        """Return the books of a run with these messages."""
        oracles = []
        for oracle in self.oracles:
            answers = OracleAnswers(
                message=Message.from_line(oracle.message.encode("ascii")),
                asked_by=frozenset(oracle.asked_by),
                heard_by=frozenset(oracle.heard_by),
                queries=oracle.queries,
            )
            oracles.append(answers)
        groups = None
        if self.groups is not None:
            largest, apart = self.groups
            groups = Groups(largest=largest, apart=apart)
        return Books(
            messages,
            self.parties,
            transport=self.transport,
            choices=choices,
            reveals={(kind, sender): words for kind, sender, words in self.reveals},
            records=self.records,
            oracles=oracles,
            fixed_sizes=self.fixed_sizes,
            assumptions=self.assumptions,
            pooled=self.pooled,
            groups=groups,
            notes=self.notes,
            views=self.views,
        )


def books_of(run: RunDirectory) -> Books:
    """Return a run prepared for the ledger of any adversary, including the queries that each could make."""
    messages = tuple(run.case.charged(run.messages))
    return _Terms.of(run, messages).books(messages, run.case.spec.privacy)


def keep_terms(run: RunDirectory) -> None:
    """Write the terms of a sealed run's ledger into its vault.

    Those of a recording are not kept, nor those that follow from a protocol or a defence of others.
    """
    spec = run.case.spec
    own = protocols.REGISTRY.owns(spec.protocol.name) and all(
        defenses.REGISTRY.owns(entry.name) for entry in spec.defenses
    )
    if run.case.origin == "recording" or not own:
        return
    value = {"of": _basis(run.path), "terms": _Terms.of(run, run.messages).model_dump(mode="json")}
    seal = run.vault.secrets.commit("ledger", canonical(value))
    save_json(run.vault.directory / _KEPT, {**value, "seal": seal})


def kept_books(path: Path) -> Books | None:
    """Return the books of a run whose record is unchanged, from its vault; None if it keeps no terms that still hold.

    Raises:
        SpecError: the run's spec names code that is not trusted.
    """
    vault = Vault(path / "vault")
    if not (vault.directory / _KEPT).is_file():
        return None
    spec = load_spec(path / "spec.yaml")
    refuse_code(spec.model_dump(mode="json"), "spec")
    try:
        value = load_json(vault.directory / _KEPT)
        seal = value.pop("seal")
        if value["of"] != _basis(path) or seal != vault.secrets.commit("ledger", canonical(value)):
            return None
        terms = validate(_Terms, value["terms"])
    except (FdauditError, AttributeError, KeyError, TypeError, ValueError):
        return None
    return terms.books(read_log(path / "transcript").messages, spec.privacy)


def _basis(path: Path) -> str:
    """Return a digest of what the terms of a run follow from: its manifest, and fdaudit's code."""
    return hashlib.sha256(canonical({"manifest": read_manifest(path), "code": own_digest()})).hexdigest()


def _groups(case: Case) -> tuple[int, str] | None:
    """Return the arguments of `Groups` for the clients' records; None if the dataset states none."""
    import torch

    groups, splits = case.dataset.groups, case.splits
    if groups is None:
        return None
    public = groups[torch.cat([splits.proxy, splits.auxiliary])]
    largest, apart, owners = 1, "", dict[int, str]()
    for client, split in zip(case.clients, splits.clients, strict=True):
        of_client, counts = groups[split.train].unique(return_counts=True)
        largest = max([largest, *counts.tolist()])
        for group in of_client.tolist():
            owner = owners.setdefault(group, client)
            if owner != client and not apart:
                apart = f"records of one group lie with {owner} and with {client}"
        if len(of_client) and bool(torch.isin(of_client, public).any()) and not apart:
            apart = f"records of one group lie with {client} and among proxy or auxiliary data"
    return largest, apart


def _rare_classes(case: Case) -> tuple[str, ...]:
    """Return a warning if the number of classes, which shapes every network, hangs on a single record of a file."""
    from_labels = case.dataset.task.labels.one_class  # other forms of labels name all classes
    if case.origin == "recording" or ":" not in case.dataset.name or not from_labels:
        return ()
    lone = (case.splits.class_table.sum(0) == 1).nonzero().flatten().tolist()
    if not lone:
        return ()
    outputs = case.dataset.classes
    warning = (
        f"Class {lone[0]} occurs in one record of the clients only, and a file without it may give the networks fewer "
        f"than {outputs} outputs. Every ε takes the number of classes as public, fixed without the records."
    )
    return (warning,)


def _assumptions(case: Case) -> tuple[str, ...]:
    """Return the assumptions that a run's settings add to those of every ledger."""
    assumptions = list(case.protocol_config.assumptions())
    if case.origin == "recording":
        assumptions.append("Every message is on record: the operator of the recorded system asserts it.")
    if case.networks is not None and any(network.imported for network in case.networks.distinct):
        assumptions.append(
            "What an imported network reads from files, or imports by a computed name, is the same in all runs."
        )
    preset = case.spec.preset
    by_preset = preset is not None and preset.name == "private" and preset.sample_rate is None
    if by_preset and any(entry.name == "dp-sgd" for entry in case.spec.defenses):
        assumptions.append(
            "The preset's sampling rate follows from the number of all clients' records, which is public."
        )
    return tuple(assumptions)


def table(ledgers: Sequence[Ledger]) -> list[str]:
    """Return ledgers as lines for a terminal: ε by adversary, then the reason and the contributions."""
    lines = [f"{'adversary':<20} {'ε':>12}  {'δ':<8} {'worst client':<13} unit, relation"]
    assumptions: dict[str, None] = {}  # in their order
    for entry in ledgers:
        value = rounded_up(entry.epsilon)
        stated = f"{entry.unit}, {entry.relation}"
        lines.append(
            f"{entry.view:<20} {value:>12}  {entry.delta:<8g} {entry.victim or 'nobody':<13} {stated}"
        )
        lines += [f"    {line}" for line in _details(entry)]
        assumptions |= dict.fromkeys(entry.assumptions)
    return [*lines, "", "Assumed", *(f"  {line}" for line in assumptions)]


def _details(entry: Ledger) -> Iterator[str]:
    if entry.cause:
        yield f"because of {entry.cause}"
    for part in entry.contributions:
        what = f"{part.kind} of {part.sender}: {part.charges} times {part.mechanism}"
        yield f"{what}, ε {rounded_up(part.epsilon)} alone"
    if entry.finite and entry.epsilon > 0:
        yield f"by {entry.accountant}"
        exact = [(entry.gdp, "GDP"), (entry.zcdp, "zCDP")]
        figures = [f"{rounded_up(figure)}-{name}" for figure, name in exact if figure]
        if figures:
            yield f"{' and '.join(figures)}, exact"
    if entry.sampling:
        yield f"sampling {entry.sampling}"
    if entry.entry.withstands:
        yield f"holds even if {' or '.join(entry.entry.withstands)} depart from the protocol"
    for case in entry.against:
        if case.holds:
            continue
        line = f"{case.condition}, no ε may be stated"
        if case.epsilon is not None:
            line = f"{case.condition}, ε is {rounded_up(case.epsilon)}"
        if case.why:
            line += f": {case.why}"
        yield line
