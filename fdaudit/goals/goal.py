"""The contract of a goal: its guess, its figures and its words."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from fdaudit.goals.guess import Guess
from fdaudit.types import ImportPart

__all__ = ["Goal", "Threshold"]


@dataclass(frozen=True, kw_only=True)
class Threshold:
    """A threshold of the spec on one figure of each victim.

    Attributes:
        figure: the name of the figure.
        explained: what the threshold means, in a sentence of the spec's reference.
        at_least: whether the threshold is the least value allowed; else it is the largest.
        least: the least threshold that a spec may set; None for any.
        most: the largest threshold that a spec may set; None for any.
    """

    figure: str
    explained: str
    at_least: bool = False
    least: float | None = None
    most: float | None = None


@dataclass(frozen=True, kw_only=True)
class Goal:
    """The aim of an attack: one object for each.

    `fdaudit/scoring/goals/` checks and scores its guesses, and `reports/goals/` judges its figures.

    Attributes:
        name: as attacks declare it, for example `label-distribution`.
        guess: the class of its guesses.
        learnt: what an adversary learns, as a noun clause.
        scale: how to read the figure that decides, as a clause.
        figures: what people read for each of its figures, by name.
        settled_by: what a run needs more of to settle a possible leak.
        impact: the harm to those whom the data are about if the adversary succeeds, from 1 to 4.
        scored_with: the parts of an import without which guesses cannot be scored (`fdaudit.planning.ladder`).
        classes_scored_with: the same for guesses about classes, if they need other parts.
        gates: by their name in the spec.
        challenged: whether the attack is given candidates, and secret coins decided which of them were trained on.
        on_released: whether a guess may be about the released model, which is no victim's.
        shows: the records that a guess shows: `images`, `rows`, `texts`, or empty if it shows none.
        at_sites: whether a site can score guesses by its own records alone.
    """

    name: str
    guess: type[Guess]
    learnt: str
    scale: str
    figures: Mapping[str, str]
    settled_by: str = "records"
    impact: int
    scored_with: tuple[ImportPart, ...]
    classes_scored_with: tuple[ImportPart, ...] = ()
    gates: Mapping[str, Threshold] = field(default_factory=dict)
    challenged: bool = False
    on_released: bool = False
    shows: str = ""
    at_sites: bool = False

    @property
    def words(self) -> str:
        """Return the goal's name in words."""
        return self.name.replace("-", " ")

    @property
    def key(self) -> str:
        """Return the goal's name as a field of a file."""
        return self.name.replace("-", "_")
