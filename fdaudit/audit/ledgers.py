"""The books of a run: its transcript, its possible oracle answers, and the protocol's declarations on its messages."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import torch

from fdaudit.accounting.accounts import rounded_up
from fdaudit.accounting.ledger import Books, Groups, Ledger
from fdaudit.handout.oracle_access import finished, oracle_answers
from fdaudit.planning.message_sizes import fixed_sizes
from fdaudit.transcript.messages import role

if TYPE_CHECKING:
    from fdaudit.planning.case import Case
    from fdaudit.scoring.run_directory import RunDirectory

__all__ = ["books_of", "table", "views_of"]


def books_of(run: RunDirectory) -> Books:
    """Return a run prepared for the ledger of any adversary, including the queries that each could make."""
    case = run.case
    messages = tuple(case.charged(run.messages))
    reveals = {(m["kind"], m["from"]): m["reveals"] for m in case.declared_messages if "reveals" in m}
    return Books(
        messages,
        case.parties,
        transport=case.charged_transport,
        choices=case.spec.privacy,
        reveals=reveals,
        records=min((n for k in case.clients if (n := len(case.records(k)[1]))), default=None),
        oracles=oracle_answers(case, messages, finished=finished(case, run.vault)),
        fixed_sizes=fixed_sizes(case),
        assumptions=_assumptions(case),
        pooled=case.clients[0] if case.protocol.card.pools_data else "",
        groups=_groups(case),
        notes=_rare_classes(case),
    )


def _groups(case: Case) -> Groups | None:
    """Return the groups of the clients' records; None if the dataset states none."""
    groups, splits = case.dataset.groups, case.splits
    if groups is None:
        return None
    public = groups[torch.cat([splits.proxy, splits.auxiliary])]
    largest, apart, owners = 1, "", dict[int, str]()
    for client, split in zip(case.clients, splits.clients, strict=True):
        held, counts = groups[split.train].unique(return_counts=True)
        largest = max(largest, *counts.tolist()) if len(counts) else largest
        for group in held.tolist():
            if (owner := owners.setdefault(group, client)) != client and not apart:
                apart = f"records of one group lie with {owner} and with {client}"
        if len(held) and bool(torch.isin(held, public).any()) and not apart:
            apart = f"records of one group lie with {client} and among proxy or auxiliary data"
    return Groups(largest=largest, apart=apart)


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
    found: tuple[str, ...] = case.protocol_config.assumptions()
    if case.origin == "recording":
        found = (*found, "Every message is on record: the operator of the recorded system asserts it.")
    distinct = () if case.networks is None else case.networks.distinct
    if any(network.imported for network in distinct):
        fixed = "What an imported network reads from files, or imports by a computed name, is the same in all runs."
        found = (*found, fixed)
    preset = case.spec.preset
    if preset is None or preset.name == "as-published" or preset.sample_rate is not None:
        return found
    if not any(entry.name == "dp-sgd" for entry in case.spec.defenses):
        return found
    return (
        *found,
        "The preset's sampling rate follows from the number of all clients' records, which is public.",
    )


def views_of(case: Case) -> tuple[str, ...]:
    """Return the adversaries whose ledgers are shown: every non-client party and the spec's adversaries."""
    return tuple(dict.fromkeys([*(p for p in case.parties if role(p) != "client"), *case.spec.adversaries]))


def table(ledgers: Sequence[Ledger]) -> list[str]:
    """Return ledgers as lines for a terminal: ε by adversary, then the reason and the contributions."""
    lines = [f"{'adversary':<20} {'ε':>12}  {'δ':<8} {'worst client':<13} unit, relation"]
    for entry in ledgers:
        value = rounded_up(entry.epsilon)
        stated = f"{entry.unit}, {entry.relation}"
        lines.append(
            f"{entry.view:<20} {value:>12}  {entry.delta:<8g} {entry.victim or 'nobody':<13} {stated}"
        )
        lines += [f"    {line}" for line in _details(entry)]
    assumed = dict.fromkeys(line for entry in ledgers for line in entry.assumptions)
    return [*lines, "", "Assumed", *(f"  {line}" for line in assumed)]


def _details(entry: Ledger) -> Iterator[str]:
    if entry.cause:
        yield f"because of {entry.cause}"
    for part in entry.contributions:
        what = f"{part.kind} of {part.sender}: {part.charges} times {part.mechanism}"
        yield f"{what}, ε {rounded_up(part.epsilon)} alone"
    if entry.finite and entry.epsilon > 0:
        yield f"by {entry.accountant}"
        exact = [(entry.gdp, "GDP"), (entry.zcdp, "zCDP")]
        if told := [f"{rounded_up(figure)}-{name}" for figure, name in exact if figure]:
            yield f"{' and '.join(told)}, exact"
    if entry.sampling:
        yield f"sampling {entry.sampling}"
