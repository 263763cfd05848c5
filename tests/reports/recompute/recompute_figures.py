"""What claims about cells of every goal have in common: figures by name, means, proportions and the worst victim."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from . import recompute_statistics as statistics
from .recompute_claims import Claims, Path
from .recompute_evidence import Evidence

Interval = tuple[float, float] | None


class CellClaims:
    """What the cells of every goal have in common: figures by name, and how a mean is claimed."""

    def __init__(self, claims: Claims, evidence: Evidence, path: Path, cell: Any) -> None:
        self.claims, self.evidence, self.path, self.cell = claims, evidence, path, cell
        self.targets = [t["target"] for t in cell["targets"]]

    def groups(self) -> Iterable[tuple[Path, Any, list[str]]]:
        """Each holder of figures: its path, its figures, and the victims they are about; single victims first."""
        for k, target in enumerate(self.cell["targets"]):
            yield (*self.path, "targets", k), target["figures"], [target["target"]]
        yield self.path, self.cell["figures"], self.targets

    def at(self, path: Path, figures: Sequence[Any], name: str) -> Path:
        """The path of the figure of that name, which there is one of."""
        places = [k for k, figure in enumerate(figures) if figure["name"] == name]
        if len(places) != 1:
            self.claims.wrong.append(f"{path}: {len(places)} figures are called {name}")
            return (*path, "figures", name)
        return (*path, "figures", places[0])

    def mean(self, where: Path, values: Sequence[float], ends: Interval, slack: float) -> None:
        """A mean of values with its interval."""
        self.claims.equal((*where, "value"), float(np.mean(values)), absolute=slack)
        self.claims.equal((*where, "n"), len(values))
        self.ends(where, ends, slack)

    def seed(self, what: str, victims: Sequence[str]) -> int:
        """Of the draws of what is measured of these victims, the same in every cell."""
        return self.evidence.seed("score", what, *victims)

    def ends(self, where: Path, ends: Interval, slack: float = 1e-12) -> None:
        if ends is None:
            return
        for name, end in zip(("low", "high"), ends, strict=True):
            self.claims.equal((*where, name), end, absolute=slack)
        self.claims.equal((*where, "confidence"), 0.95)

    def exact(self, where: Path, k: int, n: int, value: float | None = None) -> None:
        """A proportion with Clopper and Pearson's interval."""
        self.claims.equal((*where, "value"), k / n if value is None else value)
        self.claims.equal((*where, "n"), n)
        self.exact_ends(where, k, n)

    def exact_ends(self, where: Path, k: int, n: int) -> None:
        for name, value in zip(("low", "high"), statistics.exact_interval(k, n), strict=True):
            self.claims.equal((*where, name), value, relative=1e-7)
        self.claims.equal((*where, "confidence"), 0.95)

    def worst(self, name: str, highest: bool) -> None:
        """`NAME_worst`: the figure of the victim for whom it is the worst, its ends and its n with it."""
        where = self.at(self.path, self.cell["figures"], f"{name}_worst")
        found = [f for t in self.cell["targets"] for f in t["figures"] if f["name"] == name]
        held = [f for f in found if f["value"] is not None]
        if held:
            worst = (max if highest else min)(held, key=lambda f: f["value"])
            for part in ("value", "low", "high", "n", "confidence"):
                if worst[part] is not None:
                    self.claims.equal((*where, part), worst[part])
