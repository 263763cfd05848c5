"""Gates: bounds that a spec sets on a run's figures, compared with what was measured."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar

from fdaudit.goals import GOALS
from fdaudit.result.cell import Cell
from fdaudit.result.claims import LedgerEntry
from fdaudit.result.part import Audience, Part, Shown
from fdaudit.result.run_card import FinalUtility

__all__ = ["Gate", "check_gates", "utility_of"]


class Gate(Part):
    """A bound that the spec sets on a figure."""

    _audience: ClassVar[Audience] = "public"

    name: str
    threshold: float
    value: Annotated[float | None, Shown("auditor", instead=None)]
    """The worst value of any victim or view; None if nothing was measured, or the worst ε is infinite."""
    passed: bool
    at_least: bool = False
    """Whether the figure must be at least the threshold; left out, at most."""
    inconclusive_for: tuple[str, ...] = ()
    """Adversaries for whom every cell that measured the figure is inconclusive; the gate then fails."""
    left_out_for: tuple[str, ...] = ()
    """Adversaries for whom a budget of time left out an attack that might exceed the threshold; the gate then fails."""

    @property
    def exceeded(self) -> bool:
        """Return whether a measured value misses the threshold. A gate that shows nothing fails without one."""
        return self.value is not None and not _keeps(self.value, self.threshold, self.at_least)


@dataclass(frozen=True)
class _Bound:
    """The figure of a gate, with an upper limit, or a lower limit if small values leak."""

    goal: str
    figure: str
    at_least: bool = False


_GATES = {
    name: _Bound(goal.name, gate.figure, gate.at_least)
    for goal in GOALS.values()
    for name, gate in goal.gates.items()
}
_EPSILON = "epsilon"
"""The gate on the ledger."""
_UTILITY, _DROP = "utility", "utility_drop"
"""The gates on the final models. All gates but these and the ledger's are on attacks' figures."""


def check_gates(
    thresholds: Mapping[str, float | None],
    cells: Sequence[Cell],
    ledger: Sequence[LedgerEntry] = (),
    final: Sequence[FinalUtility] = (),
    protocol: str = "",
) -> tuple[Gate, ...]:
    """Compare each gate of the spec with the worst value of any victim in any cell, or of any view in the ledger.

    A gate that no cell could measure fails, because the threshold was not shown to hold. The attack of an inconclusive
    cell does not work even in its own control, so such a cell can break a gate and cannot keep one: a gate also fails
    if some adversary has inconclusive cells of its goal and no others, or one that a budget of time left out. A gate on
    ε fails if ε is infinite for some view; its value is then None. The gates on utility compare the server's model, or
    the worst client's if the server has none; a drop against `standalone` fails if no one trained alone.

    Args:
        thresholds: by the gate's name; None if the spec sets none.
        cells: the run's cells.
        ledger: the run's ledgers.
        final: the utility of all final models.
        protocol: its line among them.
    """
    gates = []
    for name, threshold in thresholds.items():
        if threshold is None:
            continue
        if name == _EPSILON:
            finite = [entry.epsilon for entry in ledger if entry.epsilon is not None]
            worst = max(finite) if finite and len(finite) == len(ledger) else None
            passed = _keeps(worst, threshold, at_least=False)
            gates.append(Gate(name=name, threshold=threshold, value=worst, passed=passed))
        elif name in (_UTILITY, _DROP):
            gates.append(_utility_gate(name, threshold, final, protocol))
        else:
            gates.append(_attack_gate(name, threshold, cells))
    return tuple(gates)


def _attack_gate(name: str, threshold: float, cells: Sequence[Cell]) -> Gate:
    bound = _GATES[name]
    values = list[float]()
    measured, conclusive, untested = set[str](), set[str](), set[str]()
    for cell in cells:
        if cell.goal != bound.goal:
            continue
        if cell.status == "not-tested":
            untested.add(cell.adversary)
        for target in cell.targets:
            for figure in target.figures:
                if figure.name == bound.figure and figure.value is not None:
                    values.append(figure.value)
                    measured.add(cell.adversary)
                    if cell.status == "run":
                        conclusive.add(cell.adversary)
    worst = (min if bound.at_least else max)(values, default=None)
    unproven = measured - conclusive
    return Gate(
        name=name,
        threshold=threshold,
        value=worst,
        passed=_keeps(worst, threshold, bound.at_least) and not unproven and not untested,
        at_least=bound.at_least,
        inconclusive_for=tuple(sorted(unproven)),
        left_out_for=tuple(sorted(untested)),
    )


def _keeps(worst: float | None, threshold: float, at_least: bool) -> bool:
    """Return whether a worst value keeps a gate. A value that was not measured keeps none."""
    if worst is None:
        return False
    return worst >= threshold if at_least else worst <= threshold


def _utility_gate(name: str, threshold: float, final: Sequence[FinalUtility], protocol: str) -> Gate:
    own, alone = _by_party(final, protocol), _by_party(final, "standalone")
    at_least = name == _UTILITY
    if at_least:
        worst = utility_of(final, protocol)
    elif "server" in own:
        worst = sum(alone.values()) / len(alone) - own["server"] if alone else None
    else:
        drops = list[float]()
        for party, value in own.items():
            if party in alone:
                drops.append(alone[party] - value)
        worst = max(drops, default=None)
    passed = _keeps(worst, threshold, at_least)
    return Gate(name=name, threshold=threshold, value=worst, passed=passed, at_least=at_least)


def utility_of(final: Sequence[FinalUtility], protocol: str) -> float | None:
    """Return the utility of the server's final model, or of the worst client's if the server has none.

    Args:
        final: the utility of all final models.
        protocol: the protocol's line among them.
    """
    own = _by_party(final, protocol)
    return own["server"] if "server" in own else min(own.values(), default=None)


def _by_party(final: Sequence[FinalUtility], line: str) -> dict[str, float]:
    """Return the accuracy, mAUC or Dice coefficient of each final model of a line that has one."""
    values = dict[str, float]()
    for row in final:
        if row.line == line and row.figure.value is not None:
            values[row.party] = row.figure.value
    return values
