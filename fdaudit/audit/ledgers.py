"""The books of a run: its transcript, its possible oracle answers, and the protocol's declarations on its messages."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from fdaudit.accounting.exact import rounded_up
from fdaudit.accounting.ledger import Books, Ledger
from fdaudit.handout.oracle_access import finished, oracle_answers
from fdaudit.planning.message_sizes import fixed_sizes
from fdaudit.transcript.log import read_log
from fdaudit.transcript.messages import role

if TYPE_CHECKING:
    from fdaudit.planning.case import Case
    from fdaudit.planning.run_directory import RunDirectory

__all__ = ["books_of", "table", "views_of"]


def books_of(run: RunDirectory) -> Books:
    """Return a run prepared for the ledger of any adversary, including the queries that each could make."""
    plan, messages = run.plan, read_log(run.path / "transcript").messages
    messages = tuple(plan.charged(messages))
    reveals = {(m["kind"], m["from"]): m["reveals"] for m in plan.declared_messages if "reveals" in m}
    return Books(
        messages,
        plan.parties,
        transport=plan.charged_transport,
        choices=plan.spec.privacy,
        reveals=reveals,
        records=min((n for k in plan.clients if (n := len(plan.records(k)[1]))), default=None),
        oracles=oracle_answers(plan, messages, finished=finished(plan, run.vault)),
        fixed_sizes=fixed_sizes(plan),
        assumptions=_assumptions(plan),
        pooled=plan.clients[0] if plan.protocol.pools_data else "",
    )


def _assumptions(plan: Case) -> tuple[str, ...]:
    """Return the assumptions that a run's settings add to those of every ledger."""
    found: tuple[str, ...] = plan.protocol_config.assumptions()
    if plan.origin == "recording":
        found = (*found, "Every message is on record: the operator of the recorded system asserts it.")
    preset = plan.spec.preset
    if preset is None or preset.name == "as-published" or preset.sample_rate is not None:
        return found
    if not any(entry.name == "dp-sgd" for entry in plan.spec.defenses):
        return found
    return (
        *found,
        "The preset's sampling rate follows from the number of all clients' records, which is public.",
    )


def views_of(plan: Case) -> tuple[str, ...]:
    """Return the adversaries whose ledgers are shown: every non-client party and the spec's adversaries."""
    return tuple(dict.fromkeys([*(p for p in plan.parties if role(p) != "client"), *plan.spec.adversaries]))


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
