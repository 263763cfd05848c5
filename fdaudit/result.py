"""Results: scores of a guess, a cell of the coverage table, and the `result.json` behind reports."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from fdaudit.goals import GOALS
from fdaudit.storage.tree import make_folder
from fdaudit.transcript.messages import ALL, DATA, Message, role
from fdaudit.types import Figure

__all__ = [
    "SCHEMA",
    "Cell",
    "Confinement",
    "Control",
    "TargetResult",
    "cell_directory",
    "derived_from_data",
    "exposure",
    "figure_json",
    "figures_of",
    "gates",
    "noted",
    "plain_name",
    "told_anew",
]

SCHEMA = "fdaudit-result/1"
Status = Literal["run", "not-applicable", "not-requested", "inconclusive", "failed"]


def figure_json(figure: Figure) -> dict[str, Any]:
    """Return a figure as a JSON object."""
    return asdict(figure)


@dataclass(frozen=True, kw_only=True)
class Control:
    """A control of one attack.

    Attributes:
        what: the target of the control, and the expected result.
        passed: whether the result was as expected.
        figures: what was measured.
    """

    what: str
    passed: bool
    figures: tuple[Figure, ...] = ()

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Control:
        """Return the control that `to_json` made `value` from."""
        return cls(what=value["what"], passed=value["passed"], figures=figures_of(value["figures"]))

    def to_json(self) -> dict[str, Any]:
        """Return a JSON object."""
        return {"what": self.what, "passed": self.passed, "figures": [figure_json(f) for f in self.figures]}


@dataclass(frozen=True, kw_only=True)
class TargetResult:
    """The result of an attack on one victim.

    Attributes:
        target: the victim.
        messages: `seq` of the messages that were inverted.
        figures: what was measured.
        images: true images beside guessed ones.
        roc: of a membership attack.
        shares: of a label-distribution attack, class shares (C,) by `truth`, `guess` and `prior`.
    """

    target: str
    messages: tuple[int, ...] = ()
    figures: tuple[Figure, ...] = ()
    images: tuple[Mapping[str, Any], ...] = ()
    roc: Mapping[str, Sequence[float]] | None = None
    shares: Mapping[str, Sequence[float]] | None = None

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> TargetResult:
        """Return the result that `to_json` made `value` from."""
        named = {**value, "figures": figures_of(value["figures"])}
        return cls(**{**named, "messages": tuple(value["messages"]), "images": tuple(value["images"])})

    def to_json(self) -> dict[str, Any]:
        """Return a JSON object."""
        return {
            "target": self.target,
            "messages": list(self.messages),
            "figures": [figure_json(f) for f in self.figures],
            "images": [dict(i) for i in self.images],
            "roc": None if self.roc is None else {k: list(v) for k, v in self.roc.items()},
            "shares": None if self.shares is None else {k: list(v) for k, v in self.shares.items()},
        }


@dataclass(frozen=True, kw_only=True)
class Confinement:
    """How the processes of a cell's attacks were confined.

    Attributes:
        held: the layers that held for all of them.
        missing: the layers that did not, each with the reason.
    """

    held: tuple[str, ...]
    missing: Mapping[str, str]

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Confinement:
        """Return the confinement that `to_json` made `value` from."""
        return cls(held=tuple(value["held"]), missing=dict(value["missing"]))

    def to_json(self) -> dict[str, Any]:
        """Return a JSON object."""
        return {"held": list(self.held), "missing": dict(self.missing)}


@dataclass(frozen=True, kw_only=True)
class Cell:
    """One protocol x adversary x attack cell: its result, or the reason why it was not run.

    `needs` names what the attack can start from: kinds of messages, or an oracle; empty for guesses from outside.
    `reads` names the kinds of messages that it uses besides, where they are in view.
    `canaries` says how a membership attack scored canaries, or why it scored none. It is None if the run has no
    canaries for it. `confinement` says which layers confined the attack's processes; None if none was started.
    """

    protocol: str
    adversary: str
    attack: str
    goal: str
    source: str
    status: Status
    reason: str = ""
    assumes: tuple[str, ...] = ()
    needs: tuple[str, ...] = ()
    reads: tuple[str, ...] = ()
    params: Mapping[str, Any] = field(default_factory=dict)
    queries: Mapping[str, Any] | None = None
    figures: tuple[Figure, ...] = ()
    targets: tuple[TargetResult, ...] = ()
    controls: Mapping[str, Control] = field(default_factory=dict)
    canaries: Mapping[str, Any] | None = None
    confinement: Confinement | None = None

    @property
    def id(self) -> str:
        """Return `adversary/attack`, unique in a run."""
        return f"{self.adversary}/{self.attack}"

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Cell:
        """Return the cell that `to_json` made `value` from."""
        plain = {
            k: v
            for k, v in value.items()
            if k not in ("id", "figures", "targets", "controls", "assumes", "needs", "reads", "confinement")
        }
        confined = value.get("confinement")
        return cls(
            **plain,
            assumes=tuple(value["assumes"]),
            needs=tuple(value.get("needs", ())),
            reads=tuple(value.get("reads", ())),
            figures=figures_of(value["figures"]),
            targets=tuple(TargetResult.from_json(t) for t in value["targets"]),
            controls={name: Control.from_json(c) for name, c in (value["controls"] or {}).items()},
            confinement=None if confined is None else Confinement.from_json(confined),
        )

    def to_json(self) -> dict[str, Any]:
        """Return a JSON object."""
        return {
            "id": self.id,
            "protocol": self.protocol,
            "adversary": self.adversary,
            "attack": self.attack,
            "goal": self.goal,
            "source": self.source,
            "status": self.status,
            "reason": self.reason,
            "assumes": list(self.assumes),
            "needs": list(self.needs),
            **({"reads": list(self.reads)} if self.reads else {}),
            "params": dict(self.params),
            "queries": None if self.queries is None else dict(self.queries),
            "figures": [figure_json(f) for f in self.figures],
            "targets": [t.to_json() for t in self.targets],
            "controls": {k: c.to_json() for k, c in self.controls.items()} or None,
            **({} if self.canaries is None else {"canaries": dict(self.canaries)}),
            **({} if self.confinement is None else {"confinement": self.confinement.to_json()}),
        }


def noted(figure: Figure, note: str, name: str = "auc") -> Figure:
    """Add the attack's note about its guess to the figure `name`; return other figures unchanged."""
    if figure.name != name or not note:
        return figure
    return replace(figure, note="; ".join(filter(None, [figure.note, note])))


def plain_name(cell: str) -> str:
    """Return a cell's id as part of a file name."""
    return cell.replace("/", "-").replace("+", "_")


def cell_directory(run: Path, cell: str) -> Path:
    """Return the directory of a cell's own files."""
    path = run / "attacks" / plain_name(cell)
    for folder in (path.parent, path):
        make_folder(folder)
    return path


def figures_of(values: Iterable[Mapping[str, Any]]) -> tuple[Figure, ...]:
    """Return the figures that `figure_json` made `values` from."""
    return tuple(Figure(**value) for value in values)


def derived_from_data(messages: Iterable[Message]) -> frozenset[int]:
    """Return the `seq` of every message that some client's raw data may have reached, by its `inputs`.

    A message without declared inputs counts as reached if its sender is a client or holds such a message.
    """
    reached: set[int] = set()
    holders: set[str] = set()
    for m in messages:
        if m.inputs == ALL:
            private = role(m.sender) == "client" or m.sender in holders
        else:
            private = any(i == DATA or i in reached for i in m.inputs)
        if private:
            reached.add(m.seq)
            holders.update(m.receivers)
    return frozenset(reached)


def told_anew(log: Sequence[Message], view: Iterable[int], private: frozenset[int]) -> frozenset[int]:
    """Return the `seq` of a view's private messages that are computed from more than the view's other messages.

    The mean of answers tells nothing new to those who see every answer. A message is new if raw data reached it
    directly or through a private message that is not in the view.

    Args:
        log: all messages of a run, in order.
        view: `seq` of the messages that an adversary saw.
        private: `seq` of the messages that raw data may have reached.
    """
    seen, held, found = frozenset(view), dict[str, set[int]](), set[int]()
    for m in log:
        if m.seq in seen & private:
            data = DATA in m.inputs or (m.inputs == ALL and role(m.sender) == "client")
            sources = held.get(m.sender, set()) if m.inputs == ALL else {i for i in m.inputs if i != DATA}
            if data or (sources & private) - seen:
                found.add(m.seq)
        for party in {m.sender, *m.receivers}:
            held.setdefault(party, set()).add(m.seq)
    return frozenset(found)


def exposure(
    messages: Sequence[Message],
    party: str,
    private: frozenset[int],
    misfit: Callable[[Message], str] = lambda _: "",
    anew: frozenset[int] | None = None,
) -> list[dict[str, Any]]:
    """Return the messages that one adversary saw: counts, bytes and record kept, by kind, direction and sender role.

    Args:
        messages: those of the adversary's view.
        party: the adversary's name.
        private: `seq` of the messages that raw data may have reached.
        misfit: returns why no attack reads a message, or an empty text.
        anew: `seq` of those that are computed from more than the view's other messages; None for all.
    """
    members = set(party.split("+"))
    rows: dict[tuple[str, str, str], dict[str, Any]] = {}
    for m in messages:
        direction = (
            "sent" if m.sender in members else "received" if members & set(m.receivers) else "overheard"
        )
        empty = {"count": 0, "bytes": 0, "kept": set(), "defenses": set(), "private": False, "unread": ""}
        empty |= {"derived": True}
        row = rows.setdefault((m.kind, direction, role(m.sender)), empty)
        row["count"] += 1
        row["bytes"] += m.bytes_on_wire
        row["kept"].add("digest" if m.payload is None else "full")
        row["defenses"] |= {str(d.get("name")) for d in m.defenses}
        row["private"] |= m.seq in private
        row["derived"] &= anew is not None and m.seq not in anew
        row["unread"] = row["unread"] or misfit(m)
    return [
        {
            "party": party,
            "kind": kind,
            "direction": direction,
            "count": row["count"],
            "bytes": row["bytes"],
            "senders": [sender],
            "recorded": row["kept"].pop() if len(row["kept"]) == 1 else "partial",
            "defenses": sorted(row["defenses"]),
            "private": row["private"],
            "unread": row["unread"],
            "derived": row["derived"],
        }
        for (kind, direction, sender), row in sorted(rows.items())
    ]


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


def gates(
    thresholds: Mapping[str, float | None],
    cells: Sequence[Mapping[str, Any]],
    ledger: Sequence[Mapping[str, Any]] = (),
    final: Sequence[Mapping[str, Any]] = (),
    protocol: str = "",
) -> list[dict[str, Any]]:
    """Compare each gate of the spec with the worst value of any victim in any cell, or of any view in the ledger.

    A gate that no cell could measure fails, because the threshold was not shown to hold. The attack of an inconclusive
    cell does not work even in its own control, so such a cell can break a gate and cannot keep one: a gate also fails
    if some adversary has inconclusive cells of its goal and no others. A gate on ε fails if ε is infinite for some
    view; its value is then None. The gates on utility compare the server's model, or the worst client's if the server
    has none; a drop against `standalone` fails if nobody trained alone.

    Args:
        thresholds: by the gate's name; None if the spec sets none.
        cells: the run's cells, as JSON objects.
        ledger: the run's ledgers, as JSON objects; an infinite ε is None.
        final: the utility of all final models, as JSON objects.
        protocol: its line among them.
    """
    rows = []
    for name, threshold in thresholds.items():
        if threshold is None:
            continue
        if name == _EPSILON:
            rows.append(_epsilon_gate(threshold, [entry["epsilon"] for entry in ledger]))
            continue
        if name in (_UTILITY, _DROP):
            rows.append(_utility_gate(name, threshold, final, protocol))
            continue
        bound = _GATES[name]
        measured = [(cell, values) for cell in cells if (values := _measured(cell, bound))]
        worst = (min if bound.at_least else max)((v for _, values in measured for v in values), default=None)
        unproven = _adversaries(cell for cell, _ in measured) - _adversaries(
            cell for cell, _ in measured if cell["status"] == "run"
        )
        kept = worst is not None and (worst >= threshold if bound.at_least else worst <= threshold)
        row = {"name": name, "threshold": threshold, "value": worst, "passed": kept and not unproven}
        rows.append({**row, "at_least": bound.at_least, "inconclusive_for": sorted(unproven)})
    return rows


def _measured(cell: Mapping[str, Any], bound: _Bound) -> list[float]:
    """Return the figure that a gate compares, for each victim of a cell that has it."""
    targets = cell["targets"] if cell["goal"] == bound.goal else ()
    figures = (f for target in targets for f in target["figures"])
    return [f["value"] for f in figures if f["name"] == bound.figure and f["value"] is not None]


def _adversaries(cells: Iterable[Mapping[str, Any]]) -> set[str]:
    return {cell["adversary"] for cell in cells}


def _epsilon_gate(threshold: float, claimed: Sequence[float | None]) -> dict[str, Any]:
    finite = [epsilon for epsilon in claimed if epsilon is not None]
    worst = max(finite) if finite and len(finite) == len(claimed) else None
    kept = worst is not None and worst <= threshold
    return {"name": _EPSILON, "threshold": threshold, "value": worst, "passed": kept, "at_least": False}


def _utility_gate(
    name: str, threshold: float, final: Sequence[Mapping[str, Any]], protocol: str
) -> dict[str, Any]:
    own, alone = _by_party(final, protocol), _by_party(final, "standalone")
    if name == _UTILITY:
        values = [own["server"]] if "server" in own else [*own.values()]
        worst = min(values, default=None)
    elif "server" in own:
        worst = sum(alone.values()) / len(alone) - own["server"] if alone else None
    else:
        worst = max((alone[party] - value for party, value in own.items() if party in alone), default=None)
    at_least = name == _UTILITY
    kept = worst is not None and (worst >= threshold if at_least else worst <= threshold)
    return {"name": name, "threshold": threshold, "value": worst, "passed": kept, "at_least": at_least}


def _by_party(final: Sequence[Mapping[str, Any]], line: str) -> dict[str, float]:
    """Return the accuracy, mAUC or Dice coefficient of each final model of a line that has one."""
    rows = (row for row in final if row["line"] == line and row["figure"]["value"] is not None)
    return {row["party"]: float(row["figure"]["value"]) for row in rows}
