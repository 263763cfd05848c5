"""Context of the templates: the result, its findings, and drawings made from both."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import Any

import yaml
from markupsafe import Markup

from fdaudit.goals import GOALS
from fdaudit.kinds import KINDS
from fdaudit.result import Cell, Exposure, Image, Result, Target
from fdaudit.tasks import TASKS
from fdaudit.transcript.messages import role
from fdaudit.types import Figure

from ..drawings.class_bands import class_bands
from ..drawings.diagram import diagram
from ..drawings.figures import ForestRow, forest_chart, roc_chart, shares_chart, utility_chart
from ..drawings.images import data_uri
from ..goals import RULES
from ..goals.rule import by_name
from ..grouping import grouped
from ..judgement.correction import groups
from ..judgement.judgement import findings_of
from ..judgement.severity import SEVERITIES
from ..judgement.tried import HOW_TO_TRY, effect_words, utility_words
from ..judgement.verdict import LEVELS, Finding
from ..text import amount, clip, detectable, joined, label, level_text, spans
from .annex import annex
from .findings import lines
from .front import released
from .matrix import attack_matrix, grid
from .sign_off import SIGNATURES, Provenance, SignOff, Word, glossary, sign_off
from .summary import Summary, summarise

__all__ = [
    "IMAGES_SHOWN",
    "SHARES_SHOWN",
    "VICTIMS_SHOWN",
    "CellView",
    "ExposureRow",
    "FigureRow",
    "Picture",
    "Release",
    "SharesView",
    "Victim",
    "build",
]

IMAGES_SHOWN = 24
"""Images shown of one victim: the first in the result's order, never chosen by quality."""

VICTIMS_SHOWN = 3
"""Number of victims of a cell whose images are shown: the worst, then the first in the result's order."""

SHARES_SHOWN = 6
"""Number of victims whose class shares are drawn: the worst, then the first in the result's order."""


@dataclass(frozen=True, kw_only=True)
class FigureRow:
    """One figure of a cell: all victims beside the worst one; `notes` are the numbers of its notes under the table."""

    name: str
    mean: Figure | None
    worst: Figure | None
    notes: tuple[int, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Picture:
    """One image ready to show; the sources are data URIs."""

    truth: str
    guess: str
    prior: str | None
    image: Image


@dataclass(frozen=True, kw_only=True)
class Victim:
    """One victim of a cell with its pictures; `left_out` counts hidden ones."""

    target: Target
    worst: bool
    pictures: tuple[Picture, ...]
    left_out: int

    @property
    def ranked(self) -> bool:
        """Return whether a picture has a rank in a gallery."""
        return any(p.image.rank is not None for p in self.pictures)


@dataclass(frozen=True, kw_only=True)
class SharesView:
    """The class shares of one victim, drawn."""

    target: str
    worst: bool
    chart: Markup


@dataclass(frozen=True, kw_only=True)
class CellView:
    """One attack cell in the form of its section.

    `notes` are those of its rows, each once; `also` holds the cells of other adversaries with the same result.
    """

    finding: Finding
    rows: tuple[FigureRow, ...]
    notes: tuple[str, ...]
    victims: tuple[Victim, ...]
    forest: Markup
    forest_axis: str
    roc: Markup
    nonmembers: int | None
    shares: tuple[SharesView, ...]
    also: tuple[Finding, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Release:
    """Destination of the model, and what the audit did not test about it."""

    stated: str
    caution: str = ""


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
    cells = [_cell(f, directory, also) for f, *also in grouped(with_result, _attack_and_result).values()]
    tops = {f.strongest.number: f.strongest for f in summary.front.findings}
    top_cells = {number: _cell(f, directory, (), "finding-") for number, f in tops.items()}
    pictures = {c.finding.number: c.victims[0].pictures[0] for c in cells if c.victims}
    ids, ledger = {cell.id for cell in result.cells}, result.ledger or ()
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
        "release": _release(result),
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
        "appendix": "",
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
        "utility_measure": _measured(result),
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
    grave = [f for f in summary.front.findings if f.severity in SEVERITIES[:2] and f.remedy.tries]
    if not grave or result.remedies or not result.auditor_only or result.run.recording is not None:
        return ""
    return HOW_TO_TRY


_RELEASES = {
    "internal": "Internal: the trained models stay with the parties.",
    "api": "API: others may ask a trained model, and not hold it.",
    "public-weights": "Public weights: anyone may hold the trained model.",
}


def _release(result: Result) -> Release:
    """Return the spec's release, compared with the adversaries whose views were attacked."""
    stated = result.run.release
    if stated is None:
        return Release(stated="Not stated in the spec.", caution="Assume the model will be public.")
    caution = ""
    if stated != "internal" and all(c.adversary != "world" for c in result.tests):
        caution = "No attack ran on what such a release shows to the world."
    return Release(stated=_RELEASES[stated], caution=caution)


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


@dataclass(frozen=True, kw_only=True)
class _Warned:
    """Something that a reader must know before the findings."""

    head: str
    text: str


def _warnings(result: Result) -> Iterable[_Warned]:
    """Yield what makes the figures of this run less than they seem."""
    for warning in result.utility.warnings:
        yield _Warned(head="The model learnt little.", text=clip(warning, 300))
    rounds = result.run.rounds
    silent = []
    for silence in result.run.silences:
        party, silent_rounds = clip(silence.party, 60), silence.rounds
        silent.append(f"{party} in {len(silent_rounds)} of {rounds} ({spans(silent_rounds)})")
    if silent:
        yield _Warned(
            head="Not every client answered.",
            text=f"Silent: {joined(silent)}. Rounds count from 0 and went on without what did not arrive.",
        )


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


def _cell(finding: Finding, directory: Path, also: Sequence[Finding], prefix: str = "") -> CellView:
    """Return a cell's view; `prefix` keeps the identifiers of drawings apart that a page shows twice."""
    cell, number = finding.cell, finding.number
    worst_name, worst_figures = "", tuple[Figure, ...]()
    if finding.worst is not None:
        worst_name, worst_figures = finding.worst.target, finding.worst.figures
    curves = [(target.target, target.roc) for target in cell.targets if target.roc is not None]
    sizes = [curve.nonmembers for _, curve in curves if curve.nonmembers is not None]
    title = f"{clip(cell.attack, 60)} by {clip(cell.adversary, 60)}"
    axis, forest = _forest(finding, f"{prefix}forest{number}", title)
    roc = Markup("")
    if curves:
        roc = roc_chart(curves, worst_name, f"{prefix}roc{number}", f"ROC of {title}")
    rows, notes = _noted(_rows(cell.figures, worst_figures))
    return CellView(
        finding=finding,
        rows=rows,
        notes=notes,
        victims=_victims(finding, directory),
        forest=forest,
        forest_axis=axis,
        roc=roc,
        nonmembers=min(sizes, default=None),
        shares=_shares(finding, f"{prefix}shares{number}"),
        also=tuple(also),
    )


def _shares(finding: Finding, name: str) -> tuple[SharesView, ...]:
    """Return the first victims' class shares, the worst victim's first."""
    views: list[SharesView] = []
    for target in sorted(finding.cell.targets, key=lambda target: target is not finding.worst):
        shares = target.shares
        if shares is not None and len(views) < SHARES_SHOWN:
            title = f"Class shares of {clip(target.target, 60)}: true, guessed, and the prior's"
            chart = shares_chart(shares.truth, shares.guess, shares.prior, f"{name}-{len(views)}", title)
            views.append(SharesView(target=target.target, worst=target is finding.worst, chart=chart))
    return tuple(views)


def _rows(summary: Sequence[Figure], worst: Sequence[Figure]) -> tuple[FigureRow, ...]:
    """Return the mean's figures beside the worst victim's; `NAME_mean` and `NAME_worst` share the row of NAME."""
    means = {f.name.removesuffix("_mean"): f for f in summary if not f.name.endswith("_worst")}
    worsts = {f.name.removesuffix("_worst"): f for f in summary if f.name.endswith("_worst")}
    worsts |= {f.name: f for f in worst}
    names = dict.fromkeys([*means, *worsts])
    missing = {name for name, figure in means.items() if figure.value is None}
    for base in missing:
        for derived in missing.intersection((f"{base}_prior", f"{base}_gain")):
            del names[derived]  # its reason stands once, in the measure's own row
    return tuple(FigureRow(name=name, mean=means.get(name), worst=worsts.get(name)) for name in names)


def _noted(rows: Sequence[FigureRow]) -> tuple[tuple[FigureRow, ...], tuple[str, ...]]:
    """Return the rows with the numbers of their notes, and the notes: what several rows say stands once."""
    notes = dict[str, int]()
    numbered = []
    for row in rows:
        clauses = dict.fromkeys(_clauses(row))
        numbers = tuple(notes.setdefault(clause, len(notes) + 1) for clause in clauses)
        numbered.append(replace(row, notes=numbers))
    return tuple(numbered), tuple(notes)


def _clauses(row: FigureRow) -> Iterable[str]:
    """Yield the notes of a row: the method of its interval, what was counted, why there is no figure."""
    for figure in (row.mean, row.worst):
        if figure is None:
            continue
        if figure.value is None:
            yield f"unavailable: {clip(figure.unavailable, 400).partition('. ')[0].rstrip('.')}"
        elif figure is row.mean:
            if method := level_text(figure):
                yield method
            yield from filter(None, clip(figure.note, 400).split("; "))


def _victims(finding: Finding, directory: Path) -> tuple[Victim, ...]:
    """Return the first victims with images, the worst first, the others in the result's order."""
    victims = []
    pictured = [target for target in finding.cell.targets if target.images]
    for target in sorted(pictured, key=lambda t: t is not finding.worst)[:VICTIMS_SHOWN]:
        pictures = []
        for image in target.images[:IMAGES_SHOWN]:
            truth, guess = data_uri(directory, image.truth), data_uri(directory, image.guess)
            prior = None if image.prior is None else data_uri(directory, image.prior)
            pictures.append(Picture(truth=truth, guess=guess, prior=prior, image=image))
        worst, left_out = target is finding.worst, len(target.images) - len(pictures)
        victims.append(Victim(target=target, worst=worst, pictures=tuple(pictures), left_out=left_out))
    return tuple(victims)


def _forest(finding: Finding, name: str, title: str) -> tuple[str, Markup]:
    """Return the axis and drawing of the deciding figure (mean, victims, controls); empty if none has a value."""
    rule = RULES.get(finding.cell.goal)
    if rule is None:
        return "", Markup("")
    cell, controls = finding.cell, finding.cell.controls
    series: list[tuple[str, str, Sequence[Figure]]] = [("All victims", "mean", cell.figures)]
    for target in cell.targets:
        who = f"{target.target} (worst)" if target is finding.worst else target.target
        series.append((who, "victim", target.figures))
    if controls and controls.power:
        series.append(("Expected (rehearsal)", "control", controls.power.figures))
    if controls and controls.positive:
        series.append(("Positive control", "control", controls.positive.figures))
    if controls and controls.negative:
        series.append(("Negative control", "control", controls.negative.figures))
    rows, unit = [], ""
    for text, kind, figures in series:
        figure = by_name(figures, rule.figure)
        if figure is not None and figure.value is not None:
            unit = figure.unit
            rows.append(ForestRow(name=text, value=figure.value, low=figure.low, high=figure.high, role=kind))
    if not rows:
        return "", Markup("")
    axis = label(rule.figure)
    if unit and unit != "fraction":
        axis += f" ({clip(unit, 12)})"
    return axis, forest_chart(rows, rule.chance, axis, name, f"{axis} of {title}")


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
    title = f"Test {_measured(result)} by round, a line for each party"
    return utility_chart(result.utility.curve, "utility", title)


def _measured(result: Result) -> str:
    """Return the measure of utility, by the run's task."""
    return TASKS[result.run.task].labels.measure


def _utility_words(result: Result) -> str:
    """Return each line's final figures in one sentence: its server's model, and its clients' least and greatest."""
    parts = []
    for line, same in grouped(result.utility.final, lambda final: final.line).items():
        shares = [final for final in same if final.figure.name in ("accuracy", "mean_auc", "dice")]
        name, by_party = clip(line, 40), {final.party: final.figure.value for final in shares}
        server = by_party.pop("server", None)
        if server is not None:
            parts.append(f"{name}'s server reaches {amount(server, 'fraction')}")
        values = [value for value in by_party.values() if value is not None]
        if len(values) == 1:
            parts.append(f"{name} reaches {amount(values[0], 'fraction')}")
        elif values:
            low, high = amount(min(values), "fraction"), amount(max(values), "fraction")
            parts.append(f"{name}'s {len(values)} clients lie between {low} and {high}")
    measure = _measured(result)
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
