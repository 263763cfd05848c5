"""The report as JSON, schema `fdaudit-report/1`: the page's statements, beside the result behind them.

Guarantees:
  * it contains every number of the page: in the result, or in the times beside it;
  * the verdict, its reasons and every finding are the page's own, from the same calls.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, Literal, TypeVar

from pydantic import Field

from fdaudit.config import Config
from fdaudit.result import Level, Result
from fdaudit.storage.files import indented

from ..judgement.judgement import findings_of, standings_of
from .annex import annex
from .matrix import MatrixLine, attack_matrix
from .sign_off import Provenance
from .summary import Summary, summarise

__all__ = [
    "SCHEMA",
    "AnnexPart",
    "FindingPart",
    "FrontFindingPart",
    "FrontPart",
    "MatrixPart",
    "ReportDocument",
    "Said",
    "StandingPart",
    "Verdict",
    "WorstRecordPart",
    "document",
    "json_schema",
    "to_json",
]

SCHEMA: Final = "fdaudit-report/1"
_UNKNOWN = Provenance()


class Said(Config):
    """A sentence of the report; `cell` is the id of the result's cell behind it, if there is one."""

    text: str
    because: str = ""
    cautions: tuple[str, ...] = ()
    cell: str | None = None


class FrontFindingPart(Config):
    """A finding of the front page; `cell` is the id of the result's cell behind it."""

    severity: str
    because: str
    goals: tuple[str, ...]
    level: Level
    adversaries: tuple[str, ...]
    what: str
    affected: str
    evidence: str
    remedy: Said
    effect: str
    cell: str


class FrontPart(Config):
    """The front page: findings with severity and remedy, what ε may be stated, and what was not tested."""

    findings: tuple[FrontFindingPart, ...]
    claims: tuple[str, ...]
    untested: tuple[str, ...]


class Verdict(Config):
    """The conclusion, its reasons, and the actions."""

    level: Level
    headline: str
    standing: str
    reasons: tuple[Said, ...]
    actions: tuple[Said, ...]


class StandingPart(Config):
    """An adversary's level for one goal; `inherited` names the adversary with the finding, if it is another one."""

    adversary: str
    goal: str
    level: Level
    cell: str | None = None
    inherited: str = ""


class FindingPart(Config):
    """The finding of one cell."""

    cell: str
    level: Level
    measured: str
    because: str
    cautions: tuple[str, ...] = ()
    worst_target: str | None = None


class WorstRecordPart(Config):
    """The worst result for a single record."""

    value: float
    unit: str
    what: str


class MatrixPart(Config):
    """A line of the attack matrix: values of the deciding figure, or None."""

    cell: str
    figure: str
    mean: float | None
    worst: float | None
    baseline: float | None
    baseline_name: str
    worst_record: WorstRecordPart | None


class AnnexPart(Config):
    """One piece of evidence that a document asks for."""

    document: str
    asked: str
    provided: Literal["yes", "in part", "no"]
    what: str
    where: tuple[str, ...] = ()


class ReportDocument(Config):
    """A security report."""

    schema_name: Literal["fdaudit-report/1"] = Field(alias="schema")
    verdict: Verdict
    front: FrontPart
    adversaries: tuple[StandingPart, ...] = ()
    findings: tuple[FindingPart, ...]
    matrix: tuple[MatrixPart, ...]
    annex: tuple[AnnexPart, ...]
    timings: dict[str, float]
    ended: str = ""
    signed_by: str = ""
    result: Result


def document(
    result: Result,
    timings: Mapping[str, float],
    provenance: Provenance = _UNKNOWN,
) -> ReportDocument:
    """Return the report of a result; pure.

    Args:
        result: the result, or its public variant.
        timings: seconds by cell id or by stage.
        provenance: the day of the result, and the signer of a page that is passed on.
    """
    findings, summary = findings_of(result), summarise(result)
    standings, parts = [], []
    for standing in standings_of(result, findings):
        cell = None if standing.finding is None else standing.finding.cell.id
        standings.append(_part(StandingPart, standing, cell=cell))
    for finding in findings:
        worst = None if finding.worst is None else finding.worst.target
        parts.append(_part(FindingPart, finding, cell=finding.cell.id, worst_target=worst))
    of_front = []
    for shown in summary.front.findings:
        remedy = Said(text=shown.remedy.do, because=shown.remedy.why)
        of_front.append(_part(FrontFindingPart, shown, remedy=remedy, cell=shown.strongest.cell.id))
    items = list[AnnexPart]()
    for item in annex(result):
        items.append(_part(AnnexPart, item, document=item.document.name))
    return ReportDocument.model_construct(
        schema_name=SCHEMA,
        verdict=_verdict(summary, result),
        front=_part(FrontPart, summary.front, findings=tuple(of_front)),
        adversaries=tuple(standings),
        findings=tuple(parts),
        matrix=tuple(map(_line, attack_matrix(findings))),
        annex=tuple(items),
        timings=dict(timings),
        ended=provenance.ended,
        signed_by=provenance.signed_by,
        result=result,
    )


def to_json(made: ReportDocument) -> str:
    """Return the document as JSON text: members sorted, all values finite."""
    value = made.model_dump(mode="json", by_alias=True)
    return indented(value) + "\n"


def json_schema() -> dict[str, Any]:
    """Return the published schema (JSON Schema, draft 2020-12)."""
    head = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": f"A security report ({SCHEMA})",
    }
    return ReportDocument.model_json_schema(by_alias=True, mode="serialization") | head


P = TypeVar("P", bound=Config)


def _part(kind: type[P], source: object, **changes: Any) -> P:
    """Return a part with an object's members of the same names, and with those that are given here."""
    same = dict[str, Any]()
    for name in kind.model_fields:
        if name not in changes:
            same[name] = getattr(source, name)
    return kind(**same, **changes)


def _verdict(summary: Summary, result: Result) -> Verdict:
    reasons = []
    for reason in summary.reasons:
        cell = result.cells[reason.number - 1].id if reason.number else None
        reasons.append(_part(Said, reason, cell=cell))
    actions = list[Said]()
    for action in summary.actions:
        actions.append(Said(text=action.do, because=action.why))
    return _part(Verdict, summary, reasons=tuple(reasons), actions=tuple(actions))


def _line(line: MatrixLine) -> MatrixPart:
    record = None if line.record is None else _part(WorstRecordPart, line.record)
    mean, worst = line.mean and line.mean.value, line.worst and line.worst.value
    cell = line.finding.cell.id
    return _part(MatrixPart, line, cell=cell, mean=mean, worst=worst, worst_record=record)
