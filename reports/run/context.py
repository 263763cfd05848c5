"""Context of the templates: the result, its findings, and drawings made from both."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import Any

import yaml
from markupsafe import Markup

from fdaudit.goals import GOALS
from fdaudit.kinds import KINDS
from fdaudit.result import Cell, Exposure, Result
from fdaudit.transcript.messages import role

from ..drawings.class_bands import class_bands
from ..drawings.diagram import diagram
from ..drawings.figures import utility_chart
from ..goals import RULES
from ..grouping import grouped
from ..judgement.correction import groups
from ..judgement.judgement import findings_of
from ..judgement.severity import SEVERITIES
from ..judgement.tried import HOW_TO_TRY, effect_words, utility_words
from ..judgement.verdict import LEVELS, Finding
from ..run_figures import measure_of
from ..text import amount, clip, detectable, joined, spans
from .annex import annex
from .cells import cell_view
from .findings import lines
from .front import released
from .matrix import attack_matrix, grid
from .sign_off import SIGNATURES, Provenance, SignOff, Word, glossary, sign_off
from .summary import Summary, summarise

__all__ = [
    "ExposureRow",
    "build",
]


@dataclass(frozen=True, kw_only=True)
class ExposureRow:
    """An exposure row, and every party whose row is the same."""

    parties: tuple[str, ...]
    row: Exposure
    holds: str


def build(
    result: Result,
    directory: Path,
    timings: Mapping[str, float],
    provenance: Provenance,
) -> dict[str, Any]:
    """Return the templates' context.

    Args:
        result: the result, or its public variant.
        directory: the run directory; image paths in the result are read below it.
        timings: seconds by cell id or by stage.
        provenance: the day of the result, and the signer of a page that is passed on.

    Raises:
        UsageError: an image's path leaves `directory` or names no small PNG.
    """
    block = sign_off(result, provenance)
    findings, summary = findings_of(result), summarise(result)
    words = glossary(_front_texts(summary), explained=summary.front.scales)
    summary = _with_room(summary, block, words)
    remedies = {f.remedy.do for f in summary.front.findings}
    with_result = [f for f in findings if f.cell.status == "run" or f.cell.targets]
    cells = [cell_view(f, directory, also) for f, *also in grouped(with_result, _attack_and_result).values()]
    tops = {f.strongest.number: f.strongest for f in summary.front.findings}
    top_cells = {number: cell_view(f, directory, (), "finding-") for number, f in tops.items()}
    pictures = {c.finding.number: c.victims[0].pictures[0] for c in cells if c.victims}
    ids, ledger = {cell.id for cell in result.cells}, result.ledger or ()
    stated, caution = _release(result)
    return {
        "result": result,
        "run": result.run,
        "findings": findings,
        "summary": summary,
        "sign_off": block,
        "signatures": SIGNATURES,
        "signed_by": provenance.signed_by,
        "glossary": words,
        "rules": RULES,
        "release": stated,
        "release_caution": caution,
        "matrix": attack_matrix(findings),
        "thumbnails": pictures,
        "shown": top_cells,
        "marks": _MARKS,
        "grid": grid(findings),
        "warnings": tuple(_warnings(result)),
        "effect_words": effect_words,
        "how_to_try": _how_to_try(result, summary),
        "utility_changed": utility_words,
        "other_actions": [a for a in summary.actions if a.do not in remedies],
        "only_appendix": False,
        "appendix_file": "appendix.html",
        "main_file": "index.html",
        "places": {level: place for place, level in enumerate(LEVELS)},
        "annex": grouped(annex(result), lambda item: item.document),
        "cells": cells,
        "outcomes": list(grouped(findings, _outcome_row).values()),
        "means": {goal.name: goal.learnt for goal in GOALS.values()},
        "roles": {
            "world": "has the released model" if released(result) else "is given no model",
            "eavesdropper": "on the network",
        },
        "class_bands": class_bands(result.class_table or ()),
        "diagram": diagram(result.exposure, result.run.clients),
        "exposure": _exposure(result.exposure),
        "ledger_assumptions": dict.fromkeys(chain.from_iterable(e.assumptions for e in ledger)),
        "ledger_warnings": dict.fromkeys(chain.from_iterable(e.warnings for e in ledger)),
        "utility_chart": _utility(result),
        "utility_measure": measure_of(result),
        "utility_words": _utility_words(result),
        "tested": result.family,
        "detectable": _detectable(result),
        "confined": _confined(result),
        "intervals": sum(_deciding_intervals(view.finding.cell) for view in cells),
        "timings": timings,
        "stages": {name: seconds for name, seconds in timings.items() if name not in ids},
        "spec_text": yaml.safe_dump(result.run.spec, sort_keys=False, allow_unicode=True, width=96),
    }


_SIGNATURE = 5
"""Printed lines of the two signatures and of the space around the block above it."""


def _with_room(summary: Summary, block: SignOff, words: Sequence[Word]) -> Summary:
    """Return the summary with room on its printed page for the sign-off and the glossary."""
    texts = [" " * block.length, " ".join(f"{w.word}: {w.meaning}; " for w in words)]
    above = summary.front.above + lines("notes", *texts) + _SIGNATURE
    return replace(summary, front=replace(summary.front, above=above))


def _front_texts(summary: Summary) -> Iterable[str]:
    """Yield the texts of the front page in which a word of the trade may stand."""
    yield summary.headline
    yield summary.standing
    yield summary.actions[0].do
    yield from summary.front.claims
    yield from summary.front.untested
    for finding in summary.front.shown:
        yield from (finding.what, finding.evidence, finding.remedy.do)


def _how_to_try(result: Result, summary: Summary) -> str:
    """Return how the effect of remedies is measured, if it can be and was not; else an empty text."""
    if result.remedies or not result.auditor_only or result.run.recording is not None:
        return ""
    for finding in summary.front.findings:
        if finding.severity in SEVERITIES[:2] and finding.remedy.tries:
            return HOW_TO_TRY
    return ""


_RELEASES = {
    "internal": "Internal: the trained models stay with the parties.",
    "api": "API: others may ask a trained model, and not hold it.",
    "public-weights": "Public weights: anyone may hold the trained model.",
}


def _release(result: Result) -> tuple[str, str]:
    """Return the destination of the model, and what the audit did not test about it."""
    stated = result.run.release
    if stated is None:
        return "Not stated in the spec.", "Assume the model will be public."
    caution = ""
    if stated != "internal" and all(c.adversary != "world" for c in result.tests):
        caution = "No attack ran on what such a release shows to the world."
    return _RELEASES[stated], caution


def _confined(result: Result) -> list[str]:
    """Return how attacks' processes were confined: one line if all were alike, else one for each way."""
    alike = dict[str, list[str]]()
    for cell in result.cells:
        if cell.confinement is not None:
            way = f"confined by {joined(cell.confinement.held) or 'nothing'}"
            if missing := "; ".join(f"{layer} ({why})" for layer, why in cell.confinement.missing.items()):
                way += f"; not confined here by {missing}"
            alike.setdefault(way, []).append(cell.id)
    if len(alike) < 2:
        return [f"Attacks were {way}." for way in alike]
    most = max(alike, key=lambda way: len(alike[way]))
    others = [f"{joined(cells)}: {way}." for way, cells in alike.items() if way != most]
    return [f"Attacks were {most}, except these cells.", *others]


def _detectable(result: Result) -> str:
    """Return a sentence with the least AUC that would have been significant in every cell."""
    by_coins = result.family.by_coins if result.family else None
    if by_coins is None:
        return "No membership figure was tested."
    if by_coins.floor is None:
        return (
            "In some cells not even a perfect attack would have been significant: this run has too few coins."
        )
    return f"This run {detectable(by_coins.floor, by_coins.floor_one_victim)}."


_MARKS: Mapping[str, str] = {
    "leak": "leak",
    "partial": "partial",
    "possible": "possible",
    "none-seen": "none",
    "inconclusive": "open",
    "not-tested": "not tested",
    "failed": "failed",
    "not-applicable": "–",
    "not-requested": "not asked",
}
"""The levels in the coverage table, in a word."""


def _warnings(result: Result) -> Iterator[tuple[str, str]]:
    """Yield head and text of what makes the figures of this run less than they seem."""
    for warning in result.utility.warnings:
        yield "The model learnt little.", clip(warning, 300)
    rounds = result.run.rounds
    silent = []
    for silence in result.run.silences:
        party, silent_rounds = clip(silence.party, 60), silence.rounds
        silent.append(f"{party} in {len(silent_rounds)} of {rounds} ({spans(silent_rounds)})")
    if silent:
        text = f"Silent: {joined(silent)}. Rounds count from 0 and went on without what did not arrive."
        yield "Not every client answered.", text


def _attack_and_result(finding: Finding) -> str:
    """Return what the findings of one attack with the same result have in common."""
    cell = finding.cell
    if not cell.figures:
        return repr(finding.number)
    return repr((cell.attack, finding.level, cell.params, cell.figures, cell.targets, cell.controls))


def _outcome_row(finding: Finding) -> tuple[object, ...]:
    """Return a finding's row in the table of outcomes: adversaries without a result for one reason share a row."""
    cell = finding.cell
    if cell.status == "run" or cell.targets or cell.queries is not None:
        return (finding.number,)
    return cell.attack, cell.goal, cell.protocol, finding.level, finding.because


def _deciding_intervals(cell: Cell) -> int:
    """Return how many intervals of a cell's figures decide its verdict."""
    rule, count = RULES.get(cell.goal), 0
    if rule is None:
        return 0
    for _, figures, _ in groups(cell):
        for figure in figures:
            also = bool(rule.also_deciding) and figure.name.startswith(rule.also_deciding)
            if figure.low is not None and (also or figure.name.removesuffix("_mean") == rule.figure):
                count += 1
    return count


def _utility(result: Result) -> Markup:
    if not result.utility.curve:
        return Markup("")
    title = f"Test {measure_of(result)} by round, a line for each party"
    return utility_chart(result.utility.curve, "utility", title)


def _utility_words(result: Result) -> str:
    """Return each line's final figures in one sentence: its server's model, and its clients' least and greatest."""
    parts = []
    for line, same in grouped(result.utility.final, lambda final: final.line).items():
        name, by_party = clip(line, 40), dict[str, float | None]()
        for final in same:
            if final.figure.name in ("accuracy", "mean_auc", "dice"):
                by_party[final.party] = final.figure.value
        server = by_party.pop("server", None)
        if server is not None:
            parts.append(f"{name}'s server reaches {amount(server, 'fraction')}")
        values = [value for value in by_party.values() if value is not None]
        if len(values) == 1:
            parts.append(f"{name} reaches {amount(values[0], 'fraction')}")
        elif values:
            low, high = amount(min(values), "fraction"), amount(max(values), "fraction")
            parts.append(f"{name}'s {len(values)} clients lie between {low} and {high}")
    measure = measure_of(result)
    if not parts:
        return f"No final {measure} is on record."
    return f"At the end {joined(parts)} test {measure}."


def _exposure(rows: Iterable[Exposure]) -> tuple[ExposureRow, ...]:
    """Merge rows that differ only in the party's number."""
    merged = []
    for same in grouped(rows, lambda row: str({**row.model_dump(), "party": role(row.party)})).values():
        kind = KINDS.get(same[0].kind)
        holds = kind.text if kind else ""
        merged.append(ExposureRow(parties=tuple(row.party for row in same), row=same[0], holds=holds))
    return tuple(merged)
