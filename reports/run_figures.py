"""The figures that stand for a run where several are set side by side: its utility, and its leakage."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from fdaudit.result import Cell, FinalUtility, Result
from fdaudit.tasks import LABELS, TASKS
from fdaudit.transcript.messages import role
from fdaudit.types import Figure

__all__ = [
    "LineUtility",
    "StrongestFigure",
    "final_figure",
    "measure_of",
    "reference_lines",
    "strongest_figure",
    "utility",
]

_MEASURES = tuple(dict.fromkeys(labels.figure for labels in LABELS.values()))


@dataclass(frozen=True, kw_only=True)
class LineUtility:
    """Final test accuracy, mAUC or Dice of one line: the server's model, the clients' mean and the worst client.

    Attributes:
        line: the protocol or reference line.
        server: the server's model; None if it has none.
        mean: mean over clients with their own model, a fraction; None if there is none.
        worst: the worst of these clients.
        worst_party: that client's name.
        clients: number of clients with their own model.
    """

    line: str
    server: Figure | None
    mean: float | None
    worst: Figure | None
    worst_party: str
    clients: int

    @property
    def best(self) -> float | None:
        """Return the value that represents the line in a drawing: the server's model, else the clients' mean."""
        return self.mean if self.server is None else self.server.value


def measure_of(result: Result) -> str:
    """Return the measure of a run's utility."""
    return TASKS[result.run.task].labels.measure


def reference_lines(result: Result) -> tuple[str, ...]:
    """Return the lines other than the protocol's own with a final utility, in their order."""
    lines = dict.fromkeys(final.line for final in result.utility.final)
    lines.pop(result.run.protocol, None)
    return tuple(lines)


def utility(final: Iterable[FinalUtility], line: str) -> LineUtility:
    """Return the final utility of one line, from all final figures of a run."""
    figures: dict[str, Figure] = {}
    for entry in final:
        if entry.line == line and entry.figure.name in _MEASURES:
            figures[entry.party] = entry.figure
    clients: dict[str, Figure] = {}
    for party, figure in figures.items():
        if role(party) == "client" and figure.value is not None:
            clients[party] = figure
    worst = min(clients, key=lambda p: clients[p].value or 0.0, default="")
    mean = None
    if clients:
        mean = sum(f.value or 0.0 for f in clients.values()) / len(clients)
    return LineUtility(
        line=line,
        server=figures.get("server"),
        mean=mean,
        worst=clients.get(worst),
        worst_party=worst,
        clients=len(clients),
    )


def final_figure(result: Result) -> Figure | None:
    """Return the utility of the server's model, or the mean of the clients'."""
    line = utility(result.utility.final, result.run.protocol)
    if line.server is not None or line.mean is None:
        return line.server
    return Figure(name=measure_of(result), value=line.mean, unit="fraction", n=line.clients)


@dataclass(frozen=True, kw_only=True)
class StrongestFigure:
    """The figure of the attack that reached most, over all victims together, and its cell.

    Attributes:
        cell: the attack by its adversary.
        figure: its figure.
        among: number of cells with this figure, of which it is the extreme one.
    """

    cell: Cell
    figure: Figure
    among: int


def strongest_figure(result: Result, goal: str, name: str, *, least: bool = False) -> StrongestFigure | None:
    """Return the largest figure of a name over the attacks with a goal that ran; None if none has it.

    Args:
        result: the result.
        goal: of the attacks.
        name: of the figure, over all victims together; else the mean of the victims' own figures.
        least: whether the smallest figure is the strongest.
    """
    candidates: list[tuple[float, Cell, Figure]] = []
    for cell in result.tests:
        if cell.goal == goal:
            figure = _over_victims(cell, name)
            if figure is not None and figure.value is not None:
                candidates.append((figure.value, cell, figure))
    if not candidates:
        return None
    strongest = min if least else max
    _, cell, figure = strongest(candidates, key=lambda candidate: candidate[0])
    return StrongestFigure(cell=cell, figure=figure, among=len(candidates))


def _over_victims(cell: Cell, name: str) -> Figure | None:
    """Return a cell's figure over all victims together, else the mean of the victims' own; None if it has neither."""
    for figure in cell.figures:
        if figure.name == name:
            return figure
    values: list[float] = []
    unit: str | None = None
    for target in cell.targets:
        for figure in target.figures:
            if figure.name == name and unit is None:
                unit = figure.unit
            if figure.name == name and figure.value is not None:
                values.append(figure.value)
    if not values:
        return None
    return Figure(name=name, value=math.fsum(values) / len(values), unit=unit or "", n=len(values))
