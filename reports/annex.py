"""The annex for compliance: the evidence that four documents ask for, and whether and where a run provides it.

The items are in our words, under the documents' own headings. `docs/compliance.md` lists their sources. The annex
certifies nothing.

Guarantees:
  * an item is provided only because of something in the result, which its text names;
  * items that a run cannot provide are listed too.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from fdaudit.result import Cell, LedgerEntry, Result

from .text import amount, clip, joined

__all__ = ["DOCUMENTS", "Document", "Item", "annex"]

Provided = Literal["yes", "in part", "no"]


@dataclass(frozen=True, kw_only=True)
class Document:
    """A document that asks for evidence: its short name, its title with the date, and its address."""

    name: str
    title: str


EDPB = Document(
    name="EDPB Opinion 28/2024",
    title="European Data Protection Board, Opinion 28/2024 on certain data protection aspects related to "
    "the processing of personal data in the context of AI models, adopted on 17 December 2024",
)
DP = Document(
    name="NIST SP 800-226",
    title="National Institute of Standards and Technology, Guidelines for Evaluating Differential Privacy Guarantees, "
    "March 2025, doi:10.6028/NIST.SP.800-226",
)
DP_FY = Document(
    name="How to DP-fy ML",
    title="Ponomareva, Hazimeh, Kurakin, Xu, Denison, McMahan, Vassilvitskii, Chien & Thakurta, How to DP-fy ML: A "
    "Practical Guide to Machine Learning with Differential Privacy, JAIR 77, 2023",
)
AML = Document(
    name="NIST AI 100-2",
    title="National Institute of Standards and Technology, Adversarial Machine Learning: A Taxonomy and Terminology of "
    "Attacks and Mitigations, NIST AI 100-2e2025, March 2025, doi:10.6028/NIST.AI.100-2e2025",
)
ISO = Document(
    name="ISO/IEC 27559",
    title="ISO/IEC 27559:2022, Privacy enhancing data de-identification framework; clause numbers are those of its "
    "table of contents",
)
DOCUMENTS = (EDPB, DP, DP_FY, AML, ISO)
_CHOSEN = "The setting was chosen from"


@dataclass(frozen=True, kw_only=True)
class Item:
    """One piece of evidence.

    Attributes:
        document: the document that asks for it.
        asked: the evidence asked for.
        provided: whether this run provides it.
        what: the evidence, or why there is none.
        where: ids of the report's sections that contain it.
    """

    document: Document
    asked: str
    provided: Provided
    what: str
    where: tuple[str, ...] = ()

    @property
    def how(self) -> str:
        """Return "test" if an attack was run for it, else "list": what was sent, stated or assumed."""
        return "test" if "cells" in self.where and self.provided != "no" else "list"


def annex(result: Result) -> tuple[Item, ...]:
    """Return every item, in the documents' order; pure."""
    return (*_edpb(result), *_dp(result), *_dp_fy(result), *_aml(result), *_iso(result))


def _edpb(result: Result) -> Iterator[Item]:
    release = result.run.release
    yield Item(
        document=EDPB,
        asked="Context in which the model is released",
        provided="yes" if release else "no",
        what=f"Stated in the spec: {release}." if release else "The spec leaves `release` out.",
        where=("system",),
    )
    yield _attacked(EDPB, "Membership inference", result, ("membership",))
    yield Item(
        document=EDPB,
        asked="Attribute inference",
        provided="no",
        what="Not in scope. Class shares of clients are attacked, which are no attribute of a person.",
        where=("coverage",),
    )
    yield Item(
        document=EDPB,
        asked="Exfiltration",
        provided="in part",
        what="The exposure table lists every message that left a client. Theft from a party's machine is not in scope.",
        where=("exposure",),
    )
    generated = _ran(result, ("membership", "reconstruction"), "generator")
    yield Item(
        document=EDPB,
        asked="Regurgitation of training data",
        provided="in part" if generated else "no",
        what=f"Generators were held against training records by {_named(generated)}."
        if generated
        else "No attack on a generator's output ran; classifiers put out no records.",
        where=("cells",) if generated else ("coverage",),
    )
    yield _attacked(
        EDPB, "Model inversion and reconstruction", result, ("reconstruction", "text-reconstruction")
    )


def _dp(result: Result) -> Iterator[Item]:
    entries = result.ledger or ()
    finite = [e for e in entries if e.epsilon is not None and e.contributions]
    bounded = joined(clip(e.adversary, 40) for e in finite)
    where = ("ledger",)
    yield Item(
        document=DP,
        asked="Privacy parameters ε and δ",
        provided="yes" if finite else "in part" if entries else "no",
        what=(
            f"A finite ε with its δ for {bounded}; for every other view ∞, or nothing private in it."
            if finite
            else "No view has a finite ε that rests on noise; the ledger says why."
        )
        if entries
        else "The result holds no ledger.",
        where=where,
    )
    stated = [
        ("Unit of privacy", [e.unit for e in finite if e.unit]),
        ("Neighbouring data sets (relation)", [e.relation for e in finite if e.relation]),
        ("Composition", [e.accountant for e in finite if e.accountant]),
        ("Sampling", [e.sampling for e in finite if e.sampling]),
    ]
    for asked, values in stated:
        distinct = list(dict.fromkeys(clip(v, 160) for v in values))
        yield Item(
            document=DP,
            asked=asked,
            provided="yes" if distinct else "no",
            what=f"{'; '.join(distinct)}." if distinct else "No finite ε states one.",
            where=where,
        )
    yield _tuning(DP, finite)
    yield Item(
        document=DP,
        asked="Trust model",
        provided="yes" if result.assumptions else "in part",
        what="ε is stated for each adversary's view by itself, beside what the protocol takes for granted.",
        where=("ledger", "threats"),
    )
    yield _randomness(finite)
    checked = [c for c in result.checks if c.verdict in ("contradicted", "consistent")]
    yield Item(
        document=DP,
        asked="Empirical check of the implementation",
        provided="yes" if checked else "no",
        what=f"{len(checked)} claims were held against attacks that could have contradicted them."
        if checked
        else "No claim was held against an attack that could have contradicted it.",
        where=where,
    )


def _tuning(document: Document, finite: Sequence[LedgerEntry]) -> Item:
    stated = [line for e in finite for line in e.assumptions if line.startswith(_CHOSEN)]
    return Item(
        document=document,
        asked="Cost of tuning",
        provided="yes" if stated else "in part" if finite else "no",
        what=clip(stated[0], 240)
        if stated
        else "A run is charged as it ran. That its settings were fixed without private data is an assumption."
        if finite
        else "No finite ε states one.",
        where=("ledger",),
    )


def _dp_fy(result: Result) -> Iterator[Item]:
    """Yield the items of the checklist for reporting a guarantee: setting, definition, accounting, transparency."""
    finite = [e for e in result.ledger or () if e.epsilon is not None and e.contributions]
    views = joined(clip(e.adversary, 40) for e in finite)
    yield Item(
        document=DP_FY,
        asked="DP setting: who must be trusted",
        provided="yes" if finite else "no",
        what=f"ε is stated for the views of {views}; parties outside a view are trusted to hide what they see."
        if finite
        else "No view has a finite ε.",
        where=("ledger", "threats"),
    )
    mechanisms = [f"{c.kind} of {c.sender} ({c.mechanism})" for e in finite for c in e.contributions]
    stated = (
        ("Data accesses that are covered", mechanisms),
        ("Final mechanism output", [f"all that {clip(e.adversary, 40)} sees" for e in finite]),
        ("Unit of privacy", [e.unit for e in finite if e.unit]),
        ("Adjacency definition", [e.relation for e in finite if e.relation]),
        ("Type of accounting", [e.accountant for e in finite if e.accountant]),
        ("Accounting assumptions", [e.sampling for e in finite if e.sampling]),
        (
            "Formal DP statement",
            [f"({amount(e.epsilon or 0.0)}, {amount(e.delta or 0.0)})-DP" for e in finite],
        ),
    )
    for asked, values in stated:
        distinct = list(dict.fromkeys(clip(v, 160) for v in values))
        yield Item(
            document=DP_FY,
            asked=asked,
            provided="yes" if distinct else "no",
            what=f"{'; '.join(distinct)}." if distinct else "No finite ε states one.",
            where=("ledger",),
        )
    yield _tuning(DP_FY, finite)
    yield Item(
        document=DP_FY,
        asked="Transparency and verifiability",
        provided="yes",
        what="The ledger follows from the recorded messages, which anybody with the run can check and price again.",
        where=("ledger", "reproduce"),
    )


def _randomness(finite: Sequence[LedgerEntry]) -> Item:
    lines = [
        line for e in finite for line in e.assumptions if "noise" in line.lower() or "random" in line.lower()
    ]
    return Item(
        document=DP,
        asked="Source of randomness and arithmetic",
        provided="yes" if lines else "in part" if finite else "no",
        what=" ".join(clip(line, 240) for line in dict.fromkeys(lines))
        if lines
        else "The mechanisms are named; the ledger says nothing of their randomness."
        if finite
        else "No finite ε rests on noise.",
        where=("ledger",),
    )


def _aml(result: Result) -> Iterator[Item]:
    cells = [c for c in result.cells if c.status == "run"]
    yield Item(
        document=AML,
        asked="Attacker's goals and objectives",
        provided="yes" if cells else "no",
        what=f"Each attack names its goal: {joined(dict.fromkeys(c.goal.replace('-', ' ') for c in cells))}."
        if cells
        else "No attack ran.",
        where=("cells",),
    )
    yield Item(
        document=AML,
        asked="Attacker's capabilities",
        provided="yes",
        what="What each adversary sees and may ask; queries spent by each attack. Adversaries are passive.",
        where=("exposure", "cells"),
    )
    yield Item(
        document=AML,
        asked="Attacker's knowledge",
        provided="yes" if cells else "no",
        what="Each attack lists what it is assumed to know besides its view." if cells else "No attack ran.",
        where=("cells",),
    )
    yield _attacked(AML, "Data reconstruction", result, ("reconstruction", "text-reconstruction"))
    yield _attacked(AML, "Membership inference", result, ("membership",))
    yield _attacked(AML, "Model extraction", result, ("model-extraction",))
    shares = bool(_ran(result, ("label-distribution",)))
    yield Item(
        document=AML,
        asked="Property inference",
        provided="in part" if shares else "no",
        what="Class shares of clients only; other properties are not in scope."
        if shares
        else "Not in scope.",
        where=("cells", "coverage") if shares else ("coverage",),
    )


def _iso(result: Result) -> Iterator[Item]:
    cells = [c for c in result.cells if c.status == "run"]
    yield Item(
        document=ISO,
        asked="Threat modelling (6.2)",
        provided="in part",
        what="Adversaries, their views and their knowledge. Motives and security practices are not known to a run.",
        where=("exposure", "coverage"),
    )
    yield Item(
        document=ISO,
        asked="Maximum or average risk (7.3.2)",
        provided="yes" if cells else "no",
        what="Averages over victims stand beside the worst victim and, where an attack speaks of single ones, the "
        "worst record."
        if cells
        else "No attack ran.",
        where=("cells",),
    )
    yield Item(
        document=ISO,
        asked="Adversarial testing (8.2.3)",
        provided="yes" if cells else "no",
        what=f"{len(cells)} attack cells ran, with positive and negative controls; the others give their reasons."
        if cells
        else "No attack ran.",
        where=("cells", "coverage"),
    )
    defended = sorted({d for row in result.exposure for d in row.defenses})
    yield Item(
        document=ISO,
        asked="Mitigation (8.3)",
        provided="in part" if defended else "no",
        what=f"Measured with {joined(clip(d, 60) for d in defended)} in place."
        if defended
        else "No defence stood on any message.",
        where=("exposure",),
    )
    yield Item(
        document=ISO,
        asked="Governance (9)",
        provided="no",
        what="Roles, procedures and response to incidents are an organisation's, not a run's.",
    )


def _attacked(document: Document, asked: str, result: Result, goals: tuple[str, ...]) -> Item:
    ran = _ran(result, goals)
    return Item(
        document=document,
        asked=asked,
        provided="yes" if ran else "no",
        what=f"Tried by {_named(ran)}." if ran else "No such attack applied, or none was asked for.",
        where=("cells",) if ran else ("coverage",),
    )


def _ran(result: Result, goals: tuple[str, ...], within: str = "") -> list[Cell]:
    return [c for c in result.cells if c.status == "run" and c.goal in goals and within in c.attack]


def _named(cells: Sequence[Cell]) -> str:
    return joined(dict.fromkeys(clip(c.attack, 40) for c in cells))
