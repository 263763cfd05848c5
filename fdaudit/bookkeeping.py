"""The books of a run: its transcript, what was asked of oracles, and what the protocol says of its messages."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from fdaudit.accounting.exact import rounded_up
from fdaudit.accounting.ledger import Books, Ledger
from fdaudit.federation import applies
from fdaudit.messages import ALL, Message, role
from fdaudit.storage import load_json
from fdaudit.transcript import read_messages

if TYPE_CHECKING:
    from fdaudit.plan import Plan

__all__ = ["books_of", "table", "views_of"]


def books_of(plan: Plan, run: Path) -> Books:
    """A run made ready for the ledger of any adversary.

    Whoever asked an oracle has the answers, which are computed from the released model or from clients' own.
    """
    messages = list(read_messages(run / "transcript"))
    messages += list(_answers(messages, run))
    sent = [m for m in plan.protocol.messages if applies(m.get("when", {}), plan.protocol_config)]
    reveals = {(m["kind"], m["from"]): m["reveals"] for m in sent if "reveals" in m}
    return Books(
        messages,
        plan.parties,
        transport=plan.spec.transport,
        choices=plan.spec.privacy,
        reveals=reveals,
        records=min(len(plan.records(k)[1]) for k in plan.clients),
    )


def _answers(messages: list[Message], run: Path) -> Iterator[Message]:
    """One message for each adversary's answers from each model; what is computed from them alone costs nothing more.

    A client's model is worth what its trainings on record are, however many answers there are; without any on
    record, its data. Noise on the answers themselves is not counted in their favour.
    """
    cells = [load_json(path) for path in sorted((run / "attacks").glob("*.json"))]
    spent = (
        (c["adversary"], q)
        for c in cells
        for q in (c.get("queries"), (c.get("canaries") or {}).get("queries"))
    )
    asked = dict.fromkeys(
        (adversary, whose)
        for adversary, q in spent
        if q and q.get("spent")
        for whose in q.get("asked", ["oracle"])
    )
    released = [m for m in messages if m.kind == "model_parameters" and "world" in m.receivers]
    parties = {p for m in messages for p in m.parties()} | {"world"}
    for number, (asker, whose) in enumerate(asked):
        if whose == "oracle":
            sender, behind = released[-1].sender if released else "server", [m.seq for m in released[-1:]]
        else:
            sender, behind = whose, [m.seq for m in messages if m.kind == "release" and m.sender == whose]
        yield Message(
            seq=len(messages) + number,
            round=messages[-1].round if messages else 0,
            step=0,
            sender=sender,
            receivers=tuple(p for p in asker.split("+") if p in parties),
            kind="oracle_answer",
            inputs=tuple(behind) or ALL,
        )


def views_of(plan: Plan) -> tuple[str, ...]:
    """Whose ledgers are shown: every party that is no client, and the spec's adversaries."""
    return tuple(dict.fromkeys([*(p for p in plan.parties if role(p) != "client"), *plan.spec.adversaries]))


def table(ledgers: Sequence[Ledger]) -> list[str]:
    """Ledgers as lines for a terminal: ε by adversary, then why and from what."""
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
