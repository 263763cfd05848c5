"""Rows of the refutation suite: what the ledger claims of a view, and what ε is at least there."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import torch

import fdaudit
from fdaudit.accounting.ledger import Ledger
from fdaudit.adversary.view import EAVESDROPPER
from fdaudit.audit.ledgers import books_of
from fdaudit.audit.run import Run
from fdaudit.metrics import epsilon_lower_bound
from fdaudit.planning.message_sizes import fixed_sizes
from fdaudit.transcript.messages import role
from fdaudit.transcript.transcript import read_messages

from .refutation_attacks import Attacker, Scores
from .refutation_cases import ADVERSARIES, Case

__all__ = ["CONFIDENCE", "Row", "row_of", "rows_of", "sizes_differ", "table"]

_MOST_BOUNDS = 2000
"""At most so many bounds are computed in the whole suite; they share one level."""
CONFIDENCE = 1 - 0.05 / _MOST_BOUNDS
"""Of each bound: where every claim holds, the whole suite contradicts any with a probability of 5 % at most."""
ENCRYPTED = "eavesdropper, encrypted"


@dataclass(frozen=True, kw_only=True)
class Row:
    """One view of one case.

    Attributes:
        case: its name.
        adversary: whose view.
        claimed: ε by the ledger, at its δ.
        relation: that the claim is stated for.
        bound: what ε is at least, by the strongest attack.
        attack: its name.
        bounds: how many bounds were computed.
        power: the bound that a perfect attack would have shown on the same coins.
        cause: why ε is infinite.
    """

    case: str
    adversary: str
    claimed: float
    relation: str
    bound: float = 0.0
    attack: str = "none"
    bounds: int = 0
    power: float = 0.0
    cause: str = ""

    @property
    def verdict(self) -> str:
        """Return the conclusion about the claim."""
        if math.isinf(self.claimed):
            return "nothing claimed"
        if self.bound > self.claimed:
            return "CONTRADICTED"
        if not self.bounds:
            return "not attacked"
        return "consistent" if self.power > self.claimed else "inconclusive"


def rows_of(case: Case, directory: Path) -> list[Row]:
    """Run a case and attack every view of it; a second run with other data tells whether fixed sizes are fixed."""
    run = fdaudit.run(dict(case.spec), directory / "run")
    attacker = Attacker(run)
    found = [row_of(case, attacker, view) for view in _views(run)]
    twin = fdaudit.run(dict(case.spec), directory / "twin")
    return [*found, _overheard(case, run, twin)]


def sizes_differ(run: Run, twin: Run) -> list[tuple[str, str]]:
    """Return the kinds and senders of messages whose size is declared fixed and differs between two runs."""
    fixed = fixed_sizes(run.case)
    # Secret coins decide how many clients take part, whatever the data: then only the sizes count, not their number.
    by_coins = "updates" in run.case.training and run.case.protocol_config.fraction == 1

    def sizes(of: Run) -> dict[tuple[str, str], list[int]]:
        found: dict[tuple[str, str], list[int]] = {}
        for m in read_messages(of.directory / "transcript"):
            if (m.kind, role(m.sender)) in fixed and m.receivers:
                found.setdefault((m.kind, role(m.sender)), []).append(m.bytes_on_wire)
        return {key: sorted(set(all_)) for key, all_ in found.items()} if by_coins else found

    mine, others = sizes(run), sizes(twin)
    return sorted(key for key in mine.keys() | others.keys() if mine.get(key) != others.get(key))


def table(rows: list[Row]) -> str:
    """Return rows as `docs/results/ledger-under-attack.csv` has them, those with an infinite ε left out."""
    text = io.StringIO()
    lines = csv.writer(text, lineterminator="\n")
    lines.writerow(
        ["Run", "Adversary", "ε claimed", "ε at least", "Perfect attack", "Strongest attack", "Verdict"]
    )
    for r in rows:
        if math.isfinite(r.claimed):
            figures = (f"{figure:.3g}" for figure in (r.claimed, r.bound, r.power))
            lines.writerow([r.case, r.adversary, *figures, _shown(r), r.verdict])
    return text.getvalue()


def _shown(row: Row) -> str:
    """Return the attack that showed something, or how many showed nothing."""
    return row.attack if row.bound > 0 else f"none of {row.bounds}"


def _views(run: Run) -> Iterator[str]:
    known = {*run.case.parties, "world", EAVESDROPPER}
    for name in ADVERSARIES:
        members = name.split("+")
        if known >= set(members) and "client/0" not in members:
            yield name


def row_of(case: Case, attacker: Attacker, view: str) -> Row:
    """Return the row of one view of a run."""
    entry = attacker.run.ledger(view)
    blank = _blank(case, view, entry)
    if not entry.finite or not entry.victim:
        return blank
    scores = attacker.scores(view)
    bounds = {name: _bound(scores, name, entry) for name in scores.of}
    best = max(bounds, key=lambda name: bounds[name], default="none")
    return replace(
        blank, bound=bounds.get(best, 0.0), attack=best, bounds=len(bounds), power=_power(scores, entry)
    )


def _overheard(case: Case, run: Run, twin: Run) -> Row:
    """Return the row of an eavesdropper on an encrypted transport: a fixed size that varies refutes any ε."""
    encrypted = replace(run.case, spec=run.case.spec.model_copy(update={"transport": "encrypted"}))
    entry = books_of(replace(run.opened, case=encrypted)).ledger(
        EAVESDROPPER, delta=encrypted.spec.privacy.delta
    )
    blank = _blank(case, ENCRYPTED, entry)
    if not entry.finite:
        return blank
    differing = sizes_differ(run, twin)
    bound = math.inf if differing else 0.0
    return replace(blank, bound=bound, attack="sizes of two runs", bounds=1, power=math.inf)


def _blank(case: Case, view: str, entry: Ledger) -> Row:
    return Row(
        case=case.name, adversary=view, claimed=entry.epsilon, relation=entry.relation, cause=entry.cause
    )


def _bound(scores: Scores, name: str, entry: Ledger) -> float:
    return epsilon_lower_bound(
        scores.of[name].numpy(),
        scores.member.numpy(),
        entry.delta,
        CONFIDENCE,
        "coin-flips" if scores.pair is None else "matched-pairs",
        entry.relation,
        pair=scores.pair,
    )


def _power(scores: Scores, entry: Ledger) -> float:
    """Return the bound that perfect scores would have shown."""
    perfect = replace(scores, of={"perfect": scores.member.double() + _ranks(len(scores.member))})
    return max(_bound(perfect, "perfect", entry), 0.0)


def _ranks(n: int) -> torch.Tensor:
    return torch.arange(n).double() / (2 * n)
