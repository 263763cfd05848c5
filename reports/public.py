"""The public variant of a result, for readers who may not see the clients' records.

The author of an attack knows its score for each candidate. Each exact figure is then an equation in the scores' unknown
truth, and a few dozen equations have one solution. A public page therefore contains verdicts, and for each
adversary and goal one coarse figure if a leak was found.

Guarantees:
  * figures of single victims, curves, intervals, p-values, counts of candidates and exact scores are removed;
  * an attack that found no leak has no figure at all, so random scores receive no information;
  * images, class counts and class shares are removed;
  * text written by a run, a file or an error is removed: reasons are of a closed set, and paths are taken out;
  * guesses from outside show as one outcome for each adversary and goal, for any number of guesses;
  * `withheld` names everything that was left out;
  * its cells are judged as in the whole result, but a possible leak is told as what it is after correction. So no leak
    is graver or milder on a public page;
  * which of several leaks is named does not follow from figures that are finer than the public ones;
  * a field of the result is removed unless its class or the field itself is marked as public.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from fdaudit.result import Cell, Controls, Level, Result, RunCard, Utility, public_part, read
from fdaudit.types import Figure

from .coarse import coarse, two_digits
from .goals import RULES
from .goals.rule import by_name
from .judgement.inheritance import LEAKS
from .judgement.judgement import findings_of, judgement_of
from .judgement.verdict import Finding, by_view, strongest
from .local_names import HIDDEN, is_local, named, settings, without_paths

__all__ = ["OUTSIDE", "WITHHELD", "public"]

WITHHELD = (
    "true and reconstructed images",
    "records of each class at each client",
    "true and guessed class shares",
    "figures of single victims, curves, intervals, p-values and numbers of candidates",
    "scores, but for a rounded one of all victims together where an adversary's gravest attack found a leak",
    "how far each set of guesses from outside came: one outcome stands for all of an adversary and goal",
    "reasons in the run's own words, notes and times",
    "where the data lie on the auditor's machine",
)
"""Parts that leak by themselves, or could."""

OUTSIDE = "external-"
"""Prefix of the names of attacks that ran outside and were handed in as guesses."""

_REASONS: Mapping[str, str] = {
    "not-applicable": "The attack cannot be tried on what this adversary sees.",
    "not-requested": "The spec does not ask for this attack.",
    "not-tested": "This attack was not run: no time was left for it, or it was still to come.",
    "inconclusive": "A control failed, or the attack has not shown that it can find anything.",
    "failed": "The attack stopped with an error, which the auditor's report shows.",
}
_BECAUSE: Mapping[Level, str] = {
    "leak": "By the rule of its goal this is a leak.",
    "partial": "By the rule of its goal this is a partial leak.",
    "none-seen": "No leak was found that holds after correction, and the attack's positive control passed.",
}
_CAUTION = "This attack, with this budget, found nothing. A stronger one may."
_CONTROLS: Mapping[str, str] = {
    "positive": "The same attack where it must succeed",
    "negative": "The same attack where it must find nothing",
    "power": "The same attack in a rehearsal of the run",
}
_CHECKED: Mapping[str, str] = {
    "contradicted": "Attacks show more than was claimed.",
    "consistent": "Attacks that could have contradicted the claim did not.",
    "inconclusive": "No attack here could have contradicted the claim.",
    "nothing-claimed": "No finite ε is claimed.",
    "not-checked": "Nothing was there to check it with.",
}
_LIMITS = (
    "One run with one seed: verdicts speak of these records and victims, not of other partitions or seeds.",
    "Parties were honest but curious; an adversary that deviates from the protocol may learn more.",
    "An attack that found nothing bounds nothing: a stronger one may exist.",
    "Figures are rounded so that no single record shows in them; verdicts were reached on the exact ones.",
    "A second public page of this run, with other outcomes, would tell more than the two pages by themselves.",
)
_DIGITS = 2


def public(result: Result) -> Result:
    """Return the result without parts that reveal records or membership, with the judgement for its readers.

    Cells are not judged again from the coarse figures.
    """
    findings = _one_for_all_outside(list(map(_after_correction, findings_of(result))))
    leaks: list[Finding] = []
    for finding in findings:
        if finding.level in LEAKS:
            leaks.append(finding)
    gravest = list(map(strongest, by_view(leaks).values()))  # their figures alone may be public
    # The ledger's ε is public, and of other gates the outcome alone: they state what an attack measured.
    gates = [gate if gate.name == "epsilon" else public_part(gate) for gate in result.gates]
    checks = []
    for check in result.checks:
        reason = _CHECKED[check.verdict]
        checks.append(public_part(check).model_copy(update={"reason": reason}))
    twin = result.twin
    if twin is not None:
        utility, honest = twin.utility, twin.honest_utility
        sides = {"utility": utility and _plain(utility), "honest_utility": honest and _plain(honest)}
        twin = public_part(twin).model_copy(update=sides)
    changed = public_part(result).model_copy(
        update={
            "auditor_only": False,
            "withheld": WITHHELD,
            "utility": _utility(result.utility),
            "exposure": tuple(e.model_copy(update={"bytes": two_digits(e.bytes)}) for e in result.exposure),
            "wire": tuple(w.model_copy(update={"bytes": two_digits(w.bytes)}) for w in result.wire),
            "cells": tuple(_cell(f.cell, with_figure=f in gravest) for f in findings),
            "judgement": None,
            "gates": tuple(gates),
            "checks": tuple(checks),
            "limits": _LIMITS,
            "run": _run(result.run),
            "twin": twin,
        }
    )
    public_result = read(without_paths(changed.plain()))
    public_findings = []
    for number, (finding, cell) in enumerate(zip(findings, public_result.cells, strict=True), start=1):
        public_findings.append(_finding(finding, cell, number))
    return public_result.model_copy(update={"judgement": judgement_of(public_result, public_findings)})


def _after_correction(finding: Finding) -> Finding:
    """Return a possible leak as what it is after correction: which of many tests stand out alone tells coins."""
    if finding.level != "possible":
        return finding
    controls = finding.cell.controls or Controls()
    works = controls.positive is not None and controls.positive.passed
    powerful = controls.power is None or controls.power.passed
    if works and powerful and not finding.blind:
        return replace(finding, level="none-seen")
    return replace(finding, level="inconclusive")


def _one_for_all_outside(findings: Sequence[Finding]) -> list[Finding]:
    """Keep the gravest of the guesses from outside for each adversary and goal, under a shared name.

    Each set of guesses is a question about the truth, and its outcome an answer. Many answers reveal the truth.
    """
    outside: list[Finding] = []
    merged: list[Finding] = []
    for finding in findings:
        if finding.cell.attack.startswith(OUTSIDE):
            outside.append(finding)
        else:
            merged.append(finding)
    for (_, goal), group in by_view(outside).items():
        gravest = strongest(group) or group[0]
        bare = gravest.cell.model_copy(
            update={
                "attack": f"{OUTSIDE}guesses-{goal}",
                "source": "guesses from outside",
                "assumes": (),
                "params": {},
                "figures": (),
                "targets": (),
            }
        )
        merged.append(replace(gravest, cell=bare))
    return merged


def _cell(cell: Cell, *, with_figure: bool) -> Cell:
    """Return a cell with a reason of a closed set, without paths, and with one coarse figure if it may be public."""
    changes: dict[str, Any] = {
        "reason": _REASONS.get(cell.status, ""),
        "params": settings(cell.params),
        "figures": coarse(cell.goal, cell.figures) if with_figure else (),
    }
    part = public_part(cell)
    if part.controls is not None:
        controls = {}
        for name, what in _CONTROLS.items():
            control = getattr(part.controls, name)
            controls[name] = control and control.model_copy(update={"what": what})
        changes["controls"] = Controls(**controls)
    return part.model_copy(update=changes)


def _utility(utility: Utility) -> Utility:
    """Return utility in whole per cents, without intervals and counts, which would sharpen them."""
    curve = []
    for point in utility.curve:
        rounded = {name: _rounded(getattr(point, name)) for name in _UTILITIES}
        curve.append(point.model_copy(update=rounded))
    final = [line.model_copy(update={"figure": _plain(line.figure)}) for line in utility.final]
    warnings = ("The final model is near chance.",) if utility.warnings else ()
    return Utility(curve=tuple(curve), final=tuple(final), warnings=warnings)


def _plain(figure: Figure) -> Figure:
    if figure.value is None:
        return Figure(name=figure.name, value=None, unit=figure.unit, unavailable="not measured")
    return Figure(name=figure.name, value=_rounded(figure.value), unit=figure.unit)


_UTILITIES = ("accuracy", "mean_auc", "dice", "macro_f1", "mean_iou")


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, _DIGITS)


def _run(run: RunCard) -> RunCard:
    changes: dict[str, Any] = {
        "name": settings(run.name),
        "dataset": named(run.dataset),
        "dataset_provenance": HIDDEN if is_local(run.dataset) else run.dataset_provenance,
        "spec": settings(run.spec),
    }
    audit = run.spec.get("audit")
    if isinstance(audit, dict):  # a person's words for the front page; paths go later
        words: dict[str, str | None] = {}
        for name, value in audit.items():
            if isinstance(value, str | None):
                words[name] = value
        changes["spec"]["audit"] = words
    return public_part(run).model_copy(update=changes)


def _finding(whole: Finding, cell: Cell, number: int) -> Finding:
    """Return the finding of a public cell: level, certainty and kind of leak as judged, and the coarse figure."""
    level, rule, key = whole.level, RULES.get(cell.goal), None
    measured = "No figure is shown." if cell.status == "run" else ""
    if rule is not None:
        key = by_name(cell.figures, rule.figure)
    if rule is not None and key is not None:
        value = f"about {key.value:g}"
        if key.unit != "fraction":
            value += f" {key.unit}"
        measured = f"{rule.frame.format(value)} over all victims."
    return Finding(
        number=number,
        cell=cell,
        level=level,
        measured=measured,
        because=_BECAUSE.get(level) or _REASONS[level],
        cautions=(_CAUTION,) if level == "none-seen" else (),
        key=key,
        certain=whole.certain,
        of_classes=whole.of_classes,
    )
