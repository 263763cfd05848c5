"""The contract of a learning task: what its records are, and what they are labelled with."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import TYPE_CHECKING

from fdaudit.tasks.inputs import Inputs
from fdaudit.tasks.labels import Labels

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["Task"]


@dataclass(frozen=True, kw_only=True)
class Task:
    """A learning task: a form of inputs with a form of labels.

    Attributes:
        name: as protocols and attacks declare it, and as results name it.
        words: what its records have, for people.
        inputs: the form of its inputs.
        labels: the form of its labels.
    """

    name: str
    words: str
    inputs: Inputs
    labels: Labels

    def known_groups(self, y: Tensor, sites: Tensor | None) -> Tensor | None:
        """Return the group (n,) of each record that a guess of it may use: its class, or the site of a mask.

        None if a guess may use neither: several labels a record, texts, or masks without sites.
        """
        if not self.inputs.compared_by_group:
            return None
        if self.labels.dense:
            return sites
        if self.labels.one_class:
            return y
        return None

    def unmet(self, able: Collection[Task]) -> str:
        """Return why an attack on the tasks `able`, of which this is none, does not apply to it."""
        inputs = dict.fromkeys(task.inputs.plural for task in able)
        if self.inputs.plural in inputs:
            return self.labels.needed
        return f"the attack works on {' and '.join(inputs)}, not on {self.inputs.plural}"
