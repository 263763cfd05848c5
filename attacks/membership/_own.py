"""Answers of a client's model about its candidates, beside those of its shadows."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from fdaudit.storage.cache import computed_once

from .._shadows import numbered, stacked_logits
from .._target_model import asked
from ._case import probabilities
from ._coins import pairs_of
from ._ridge import Own
from ._statistics import confidence
from ._treatment import Treatment, treatments

if TYPE_CHECKING:
    from collections.abc import Mapping

    from fdaudit.adversary.knowledge import Knowledge
    from fdaudit.adversary.view import View
    from fdaudit.training.trainer import Parameters, Trainer
    from fdaudit.types import AttackTask, Challenge

    from ._matched import Matched

__all__ = ["FLOOR", "centred_logs", "logits_of", "own_answers", "stranger"]

FLOOR = 1e-6
"""Smallest probability before a logarithm."""
_MORE_STRANGE = 2.0
"""How much worse than a client's first answers shadows may explain others of it that are read with them."""
_MOST_KEPT = 1 << 25
"""Bytes of logits that are cached; larger ones would take the room of the shadows themselves."""
_REPEATS = 4
"""Questions about the same candidate, if answers have noise."""


def own_answers(
    view: View,
    knowledge: Knowledge,
    task: AttackTask,
    challenge: Challenge,
    shadows: Matched,
    first: tuple[Tensor, Tensor, float],
    *,
    paired: bool,
) -> list[Own]:
    """Return what a client's model answers about its candidates, if it can be asked and is the one that answered.

    Both the logits of each candidate and its confidence count.

    Args:
        view: the adversary's view.
        knowledge: with a training core.
        task: with an oracle of the client's model.
        challenge: the client's candidates.
        shadows: of its model.
        first: values (m, d) of shadows and (d,) of the client's other answers, and the variance of their noise.
        paired: whether one candidate of each matched pair is a member.
    """
    target, _ = asked("soft", view, knowledge, task, challenge.target, own=False)
    if target is None or target.of is None or target.remaining < len(task.challenges) * len(challenge.y):
        return []
    treated = treatments(view, challenge.target)
    affordable = target.remaining // len(challenge.y) // len(task.challenges)
    times = max(1, min(_REPEATS, affordable)) if treated.noisy else 1
    heard = torch.stack([target(challenge.x).double() for _ in range(times)]).mean(0)
    mine = treated.probabilities(heard) if treated != Treatment() else heard
    theirs = torch.stack([probabilities(knowledge, model, challenge.x).double() for model in shadows.models])
    floor = max(treated.floor, FLOOR)
    evidence = []
    for how in (centred_logs, lambda p, floor: _confidence(p, challenge.y, floor)):
        a = how(theirs, floor)
        b = how(mine, floor)
        if stranger((a.flatten(1), b.flatten(), 0.0), first):
            return []
        evidence.append(
            Own(theirs=_by_coin(a, challenge, paired), mine=_by_coin(b[None], challenge, paired)[0])
        )
    return evidence


def stranger(others: tuple[Tensor, Tensor, float], first: tuple[Tensor, Tensor, float]) -> bool:
    """Return whether shadows explain other answers of a client much worse than its first ones.

    Each is the values (m, d) of shadows and (d,) of the client, and the variance of their noise. First answers that are
    alike by chance set no stricter limit: a shadow of one's own has a strangeness of about 1.
    """
    return _strangeness(*others) > _MORE_STRANGE * max(1.0, _strangeness(*first))


def _strangeness(theirs: Tensor, mine: Tensor, noise: float) -> float:
    """Return how far answers (d,) are from those of shadows (m, d), in the variance of these; about 1 if alike."""
    centre = theirs.double().mean(0)
    spread = (theirs.double() - centre).square().sum() / max(len(theirs) - 1, 1)
    return float((mine.double() - centre).square().sum() / (spread + noise * len(mine)).clamp_min(1e-300))


def centred_logs(p: Tensor, floor: float) -> Tensor:
    """Return the logarithms (..., n, C) of probabilities, less their mean."""
    logs = p.clamp_min(floor).log()
    return logs - logs.mean(-1, keepdim=True)


def logits_of(knowledge: Knowledge, train: Trainer, models: list[Parameters], x: Tensor) -> Tensor:
    """Return the logits (m, s, C) of shadows, cached: several attacks and adversaries ask for the same ones."""
    if 4 * len(models) * len(x) * knowledge.classes > _MOST_KEPT:
        return stacked_logits(train, models, x)
    card = {"what": "logits of shadows", **knowledge.described}
    tensors: list[Tensor | Mapping[str, Tensor]] = [x, numbered(range(len(models)), models)]
    return computed_once(card, tensors, lambda _: {"logits": stacked_logits(train, models, x)})["logits"]


def _confidence(p: Tensor, y: Tensor, floor: float) -> Tensor:
    """Return the logit-scaled confidence (..., n, 1) of probabilities (..., n, C)."""
    rows = [confidence(one, y, floor) for one in p.reshape(-1, *p.shape[-2:])]
    return torch.stack(rows).reshape(*p.shape[:-1], 1)


def _by_coin(values: Tensor, challenge: Challenge, paired: bool) -> Tensor:
    """Return by coin (m, k, e) what answers (m, n, e) say of its candidates: both of a pair, or one."""
    pairs = pairs_of(challenge) if paired else None
    return values if pairs is None else values[:, pairs].flatten(2)
