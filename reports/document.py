"""The report as JSON, schema `fdaudit-report/1`: the page's statements, beside the result behind them.

Guarantees:
  * it contains every number of the page: in the result, or in the times beside it;
  * the verdict, its reasons and every finding are the page's own, from the same calls.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, Literal

from pydantic import Field

from fdaudit.config import Config
from fdaudit.result import Level, Result
from fdaudit.storage.files import indented

from .annex import annex
from .front import Front
from .inheritance import Standing
from .judgement import findings_of, standings_of
from .matrix import MatrixLine, attack_matrix
from .sign_off import Provenance
from .summary import Summary, summarise
from .verdict import Finding

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
    return ReportDocument.model_construct(
        schema_name=SCHEMA,
        verdict=_verdict(summary, result),
        front=_front(summary.front),
        adversaries=tuple(map(_standing, standings_of(result, findings))),
        findings=tuple(map(_finding, findings)),
        matrix=tuple(map(_line, attack_matrix(findings))),
        annex=tuple(
            AnnexPart(
                document=i.document.name, asked=i.asked, provided=i.provided, what=i.what, where=i.where
            )
            for i in annex(result)
        ),
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


def _front(front: Front) -> FrontPart:
    return FrontPart(
        findings=tuple(
            FrontFindingPart(
                severity=f.severity,
                because=f.because,
                goals=f.goals,
                level=f.level,
                adversaries=f.adversaries,
                what=f.what,
                affected=f.affected,
                evidence=f.evidence,
                remedy=Said(text=f.remedy.do, because=f.remedy.why),
                effect=f.effect,
                cell=f.strongest.cell.id,
            )
            for f in front.findings
        ),
        claims=front.claims,
        untested=front.untested,
    )


def _verdict(summary: Summary, result: Result) -> Verdict:
    return Verdict(
        level=summary.level,
        headline=summary.headline,
        standing=summary.standing,
        reasons=tuple(
            Said(
                text=r.text,
                because=r.because,
                cautions=r.cautions,
                cell=result.cells[r.number - 1].id if r.number else None,
            )
            for r in summary.reasons
        ),
        actions=tuple(Said(text=a.do, because=a.why) for a in summary.actions),
    )


def _standing(standing: Standing) -> StandingPart:
    return StandingPart(
        adversary=standing.adversary,
        goal=standing.goal,
        level=standing.level,
        cell=None if standing.finding is None else standing.finding.cell.id,
        inherited=standing.inherited,
    )


def _finding(finding: Finding) -> FindingPart:
    return FindingPart(
        cell=finding.cell.id,
        level=finding.level,
        measured=finding.measured,
        because=finding.because,
        cautions=finding.cautions,
        worst_target=finding.worst.target if finding.worst else None,
    )


def _line(line: MatrixLine) -> MatrixPart:
    record = None
    if line.record is not None:
        record = WorstRecordPart(value=line.record.value, unit=line.record.unit, what=line.record.what)
    return MatrixPart(
        cell=line.finding.cell.id,
        figure=line.figure,
        mean=line.mean.value if line.mean else None,
        worst=line.worst.value if line.worst else None,
        baseline=line.baseline,
        baseline_name=line.baseline_name,
        worst_record=record,
    )
