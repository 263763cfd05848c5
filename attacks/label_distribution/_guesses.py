"""Shared parts of attacks on class shares: which victims can be read, and a guess for every victim."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from fdaudit.goals.label_distribution import LabelDistribution
from fdaudit.types import Applicability

if TYPE_CHECKING:
    from fdaudit.adversary.knowledge import Knowledge
    from fdaudit.adversary.view import View
    from fdaudit.transcript.messages import Message

__all__ = ["can_rehearse", "guesses", "sent_by", "uniform"]


def sent_by(view: View, targets: Sequence[str], kinds: Sequence[str]) -> Applicability:
    """Check that a message of one of these kinds from one of these clients is in view, with its payload."""
    messages: list[Message] = []
    for m in view.messages:
        if m.kind in kinds and m.sender in targets:
            messages.append(m)
    if not targets:
        return Applicability(False, "every client belongs to the adversary: nobody is left to be attacked")
    if not messages:
        names = " or ".join([", ".join(kinds[:-1]), kinds[-1]])
        return Applicability(False, f"no {names} of a victim in view")
    if all(m.payload is None for m in messages):
        return Applicability(False, "what the victims sent was recorded as digests only")
    return Applicability(True)


def can_rehearse(knowledge: Knowledge) -> Applicability:
    """Check that an adversary can calibrate on shadow clients: with labelled records, and the protocol to run."""
    if knowledge.auxiliary is None or knowledge.rehearse is None:
        return Applicability(False, "auxiliary records and a rehearsal of the protocol are needed")
    if len(knowledge.auxiliary[1].unique()) < 2:
        return Applicability(False, "the auxiliary records are all of one class")
    return Applicability(True)


def uniform(classes: int) -> Tensor:
    """Return (C,) equal shares: the guess about a client that was not observed."""
    return torch.full((classes,), 1 / classes, dtype=torch.float64)


def guesses(
    targets: Sequence[str], shares: Callable[[str], Tensor | None], classes: int
) -> tuple[LabelDistribution, ...]:
    """Return one guess a victim: its `shares` (C,), or equal shares if nothing could be read."""
    distributions = []
    for target in targets:
        pi = shares(target)
        if pi is None:
            pi = uniform(classes)
        distributions.append(LabelDistribution(target=target, distribution=pi))
    return tuple(distributions)
