"""The annex for compliance: the evidence that four documents ask for, and whether and where a run provides it.

The items are in our words, under the documents' own headings. `docs/compliance.md` lists their sources. The annex
certifies nothing.

Guarantees:
  * an item is provided only because of something in the result, which its text names;
  * items that a run cannot provide are listed too.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence, Sized
from dataclasses import dataclass
from typing import Literal

from fdaudit.result import Cell, LedgerEntry, Result

from ..text import amount, clip, joined, only_if

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
_RANDOMNESS = re.compile("noise|random", re.IGNORECASE)
_NO_ATTACK = "No attack ran."


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
    yield _if_any(
        EDPB,
        "Context in which the model is released",
        release,
        what=f"Stated in the spec: {release}.",
        otherwise="The spec leaves `release` out.",
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
    yield _if_any(
        EDPB,
        "Regurgitation of training data",
        generated,
        what=f"Generators were held against training records by {_named(generated)}.",
        otherwise="No attack on a generator's output ran; classifiers put out no records.",
        where=("cells",),
        lack_in=("coverage",),
        provided="in part",
    )
    yield _attacked(
        EDPB, "Model inversion and reconstruction", result, ("reconstruction", "text-reconstruction")
    )


def _dp(result: Result) -> Iterator[Item]:
    finite = result.bounds
    views, needs = list[str](), dict[str, None]()
    for e in finite:
        views.append(clip(e.adversary, 40))
        needs.update(dict.fromkeys(e.needs))
    where = ("ledger",)
    provided: Provided = "in part"
    what = "No view has a finite ε that rests on noise; the ledger says why."
    if finite:
        provided = "yes"
        what = f"A finite ε with its δ for {joined(views)}; for every other view ∞, or nothing private in it."
    yield _if_any(
        DP,
        "Privacy parameters ε and δ",
        result.ledger,
        what=what,
        otherwise="The result holds no ledger.",
        where=where,
        provided=provided,
    )
    headings = ("Unit of privacy", "Neighbouring data sets (relation)", "Composition", "Sampling")
    yield from _terms(DP, finite, headings)
    yield _tuning(DP, finite)
    trust: Provided = "yes" if result.assumptions else "in part"
    yield Item(
        document=DP,
        asked="Trust model",
        provided=trust,
        what="ε is stated for each adversary's view by itself, beside what the protocol takes for granted."
        f"{only_if(needs)}",
        where=("ledger", "threats"),
    )
    yield _randomness(finite)
    checked = [c for c in result.checks if c.verdict in ("contradicted", "consistent")]
    yield _if_any(
        DP,
        "Empirical check of the implementation",
        checked,
        what=f"{len(checked)} claims were held against attacks that could have contradicted them.",
        otherwise="No claim was held against an attack that could have contradicted it.",
        where=where,
    )


def _terms(document: Document, finite: Sequence[LedgerEntry], headings: Sequence[str]) -> Iterator[Item]:
    """Yield the terms of the ledger's finite ε under a document's headings, in the order of `terms`."""
    terms = (
        [e.unit for e in finite],
        [e.relation for e in finite],
        [e.accountant for e in finite],
        [e.sampling for e in finite],
    )
    for heading, values in zip(headings, terms, strict=True):
        yield _stated(document, heading, values)


def _stated(document: Document, asked: str, values: Iterable[str]) -> Item:
    """Return an item with the distinct values that the ledger states; an empty value states nothing."""
    distinct = dict[str, None]()
    for value in values:
        if value:
            distinct[clip(value, 160)] = None
    return _if_any(
        document,
        asked,
        distinct,
        what=f"{'; '.join(distinct)}.",
        otherwise="No finite ε states one.",
        where=("ledger",),
    )


def _tuning(document: Document, finite: Sequence[LedgerEntry]) -> Item:
    choices = list[str]()
    for e in finite:
        for line in e.assumptions:
            if line.startswith(_CHOSEN):
                choices.append(line)
    provided: Provided = "in part"
    what = "A run is charged as it ran. That its settings were fixed without private data is an assumption."
    if choices:
        provided, what = "yes", clip(choices[0], 240)
    return _if_any(
        document,
        "Cost of tuning",
        finite,
        what=what,
        otherwise="No finite ε states one.",
        where=("ledger",),
        provided=provided,
    )


def _dp_fy(result: Result) -> Iterator[Item]:
    """Yield the items of the checklist for reporting a guarantee: setting, definition, accounting, transparency."""
    finite = result.bounds
    views, mechanisms, statements = list[str](), list[str](), list[str]()
    outputs, needs = list[str](), dict[str, None]()
    for e in finite:
        view = clip(e.adversary, 40)
        views.append(view)
        outputs.append(f"all that {view} sees")
        statements.append(f"({amount(e.epsilon or 0.0)}, {amount(e.delta or 0.0)})-DP")
        needs.update(dict.fromkeys(e.needs))
        for c in e.contributions:
            mechanisms.append(f"{c.kind} of {c.sender} ({c.mechanism})")
    yield _if_any(
        DP_FY,
        "DP setting: who must be trusted",
        finite,
        what=f"ε is stated for the views of {joined(views)}; parties outside a view are trusted to hide what they "
        f"see.{only_if(needs)}",
        otherwise="No view has a finite ε.",
        where=("ledger", "threats"),
    )
    headings = ("Unit of privacy", "Adjacency definition", "Type of accounting", "Accounting assumptions")
    yield _stated(DP_FY, "Data accesses that are covered", mechanisms)
    yield _stated(DP_FY, "Final mechanism output", outputs)
    yield from _terms(DP_FY, finite, headings)
    yield _stated(DP_FY, "Formal DP statement", statements)
    yield _tuning(DP_FY, finite)
    yield Item(
        document=DP_FY,
        asked="Transparency and verifiability",
        provided="yes",
        what="The ledger follows from the recorded messages, which anybody with the run can check and price again.",
        where=("ledger", "reproduce"),
    )


def _randomness(finite: Sequence[LedgerEntry]) -> Item:
    lines = list[str]()
    for entry in finite:
        for line in entry.assumptions:
            if _RANDOMNESS.search(line):
                lines.append(line)
    provided: Provided = "in part"
    what = "The mechanisms are named; the ledger says nothing of their randomness."
    if lines:
        provided, what = "yes", " ".join(clip(line, 240) for line in dict.fromkeys(lines))
    return _if_any(
        DP,
        "Source of randomness and arithmetic",
        finite,
        what=what,
        otherwise="No finite ε rests on noise.",
        where=("ledger",),
        provided=provided,
    )


def _aml(result: Result) -> Iterator[Item]:
    cells = result.tests
    departures = [f"{one.party} by {one.name}" for one in result.run.departures]
    active = "Adversaries are passive."
    if departures:
        active = f"From the protocol depart: {joined(departures)}. All others are passive."
    goals = joined(dict.fromkeys(c.goal.replace("-", " ") for c in cells))
    yield _if_any(
        AML,
        "Attacker's goals and objectives",
        cells,
        what=f"Each attack names its goal: {goals}.",
        otherwise=_NO_ATTACK,
        where=("cells",),
    )
    yield Item(
        document=AML,
        asked="Attacker's capabilities",
        provided="yes",
        what=f"What each adversary sees and may ask; queries spent by each attack. {active}",
        where=("exposure", "cells"),
    )
    yield _if_any(
        AML,
        "Attacker's knowledge",
        cells,
        what="Each attack lists what it is assumed to know besides its view.",
        otherwise=_NO_ATTACK,
        where=("cells",),
    )
    yield _attacked(AML, "Data reconstruction", result, ("reconstruction", "text-reconstruction"))
    yield _attacked(AML, "Membership inference", result, ("membership",))
    yield _attacked(AML, "Model extraction", result, ("model-extraction",))
    yield _if_any(
        AML,
        "Property inference",
        _ran(result, ("label-distribution",)),
        what="Class shares of clients only; other properties are not in scope.",
        otherwise="Not in scope.",
        where=("cells", "coverage"),
        lack_in=("coverage",),
        provided="in part",
    )


def _iso(result: Result) -> Iterator[Item]:
    cells = result.tests
    yield Item(
        document=ISO,
        asked="Threat modelling (6.2)",
        provided="in part",
        what="Adversaries, their views and their knowledge. Motives and security practices are not known to a run.",
        where=("exposure", "coverage"),
    )
    yield _if_any(
        ISO,
        "Maximum or average risk (7.3.2)",
        cells,
        what="Averages over victims stand beside the worst victim and, where an attack speaks of single ones, the "
        "worst record.",
        otherwise=_NO_ATTACK,
        where=("cells",),
    )
    yield _if_any(
        ISO,
        "Adversarial testing (8.2.3)",
        cells,
        what=f"{len(cells)} attack cells ran, with positive and negative controls; the others give their reasons.",
        otherwise=_NO_ATTACK,
        where=("cells", "coverage"),
    )
    defenses = set[str]()
    for row in result.exposure:
        defenses.update(row.defenses)
    yield _if_any(
        ISO,
        "Mitigation (8.3)",
        defenses,
        what=f"Measured with {joined(clip(d, 60) for d in sorted(defenses))} in place.",
        otherwise="No defence stood on any message.",
        where=("exposure",),
        provided="in part",
    )
    yield Item(
        document=ISO,
        asked="Governance (9)",
        provided="no",
        what="Roles, procedures and response to incidents are an organisation's, not a run's.",
    )


def _attacked(document: Document, asked: str, result: Result, goals: tuple[str, ...]) -> Item:
    ran = _ran(result, goals)
    return _if_any(
        document,
        asked,
        ran,
        what=f"Tried by {_named(ran)}.",
        otherwise="No such attack applied, or none was asked for.",
        where=("cells",),
        lack_in=("coverage",),
    )


def _if_any(
    document: Document,
    asked: str,
    evidence: Sized | None,
    *,
    what: str,
    otherwise: str,
    where: tuple[str, ...],
    lack_in: tuple[str, ...] = (),
    provided: Provided = "yes",
) -> Item:
    """Return an item that is provided if there is any `evidence`.

    `otherwise` says why there is none, and `lack_in` has the sections that show it, if not those of `where`.
    """
    if not evidence:
        provided, what, where = "no", otherwise, lack_in or where
    return Item(document=document, asked=asked, provided=provided, what=what, where=where)


def _ran(result: Result, goals: tuple[str, ...], within: str = "") -> list[Cell]:
    cells = list[Cell]()
    for cell in result.tests:
        if cell.goal in goals and within in cell.attack:
            cells.append(cell)
    return cells


def _named(cells: Sequence[Cell]) -> str:
    return joined(dict.fromkeys(clip(c.attack, 40) for c in cells))
