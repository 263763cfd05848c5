"""The section of one attack cell: its figures, its drawings, and the pictures of its victims."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from markupsafe import Markup

from fdaudit.result import Controls, Image, Target
from fdaudit.types import Figure

from ..drawings.figures import ForestRow, forest_chart, roc_chart, shares_chart
from ..drawings.images import data_uri
from ..goals import RULES
from ..goals.rule import by_name
from ..judgement.verdict import Finding
from ..text import clip, label, level_text

__all__ = [
    "IMAGES_SHOWN",
    "SHARES_SHOWN",
    "VICTIMS_SHOWN",
    "CellView",
    "FigureRow",
    "Picture",
    "SharesView",
    "Victim",
    "cell_view",
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
    notes: tuple[int, ...]


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


def cell_view(finding: Finding, directory: Path, also: Sequence[Finding], prefix: str = "") -> CellView:
    """Return the section of a cell.

    Args:
        finding: the cell's finding.
        directory: the run directory; image paths in the result are read below it.
        also: the findings of other adversaries with the same result.
        prefix: keeps the identifiers of drawings apart that a page shows twice.

    Raises:
        UsageError: an image's path leaves `directory` or names no small PNG.
    """
    cell, number = finding.cell, finding.number
    worst_name, worst_figures = "", tuple[Figure, ...]()
    if finding.worst is not None:
        worst_name, worst_figures = finding.worst.target, finding.worst.figures
    curves, sizes = [], list[int]()
    for target in cell.targets:
        if target.roc is not None:
            curves.append((target.target, target.roc))
            if target.roc.nonmembers is not None:
                sizes.append(target.roc.nonmembers)
    title = f"{clip(cell.attack, 60)} by {clip(cell.adversary, 60)}"
    axis, forest = _forest(finding, f"{prefix}forest{number}", title)
    roc = Markup("")
    if curves:
        roc = roc_chart(curves, worst_name, f"{prefix}roc{number}", f"ROC of {title}")
    rows, notes = _rows(cell.figures, worst_figures)
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


def _rows(
    summary: Sequence[Figure], worst: Sequence[Figure]
) -> tuple[tuple[FigureRow, ...], tuple[str, ...]]:
    """Return the mean's figures beside the worst victim's, and their notes: what several rows say stands once.

    `NAME_mean` and `NAME_worst` share the row of NAME.
    """
    means, worsts, missing = dict[str, Figure](), dict[str, Figure](), set[str]()
    for figure in summary:
        if figure.name.endswith("_worst"):
            worsts[figure.name.removesuffix("_worst")] = figure
        else:
            means[figure.name.removesuffix("_mean")] = figure
    for figure in worst:
        worsts[figure.name] = figure
    names = dict.fromkeys([*means, *worsts])
    for name, figure in means.items():
        if figure.value is None:
            missing.add(name)
    for base in missing:
        for derived in missing.intersection((f"{base}_prior", f"{base}_gain")):
            del names[derived]  # its reason stands once, in the measure's own row
    rows = []
    notes = dict[str, int]()
    for name in names:
        mean, at_worst = means.get(name), worsts.get(name)
        numbers = list[int]()
        for clause in dict.fromkeys(_clauses(mean, at_worst)):
            numbers.append(notes.setdefault(clause, len(notes) + 1))
        rows.append(FigureRow(name=name, mean=mean, worst=at_worst, notes=tuple(numbers)))
    return tuple(rows), tuple(notes)


def _clauses(mean: Figure | None, worst: Figure | None) -> Iterator[str]:
    """Yield the notes of a row: the method of its interval, what was counted, why there is no figure."""
    for figure in (mean, worst):
        if figure is None:
            continue
        if figure.value is None:
            yield f"unavailable: {clip(figure.unavailable, 400).partition('. ')[0].rstrip('.')}"
        elif figure is mean:
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
    cell = finding.cell
    controls = cell.controls or Controls()
    series: list[tuple[str, str, Sequence[Figure]]] = [("All victims", "mean", cell.figures)]
    for target in cell.targets:
        who = f"{target.target} (worst)" if target is finding.worst else target.target
        series.append((who, "victim", target.figures))
    for text, control in (
        ("Expected (rehearsal)", controls.power),
        ("Positive control", controls.positive),
        ("Negative control", controls.negative),
    ):
        if control is not None:
            series.append((text, "control", control.figures))
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
