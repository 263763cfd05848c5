"""Shadows that go on from round to round as their victim does: they learn from the ensembles that it was sent."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from fdaudit.rng import child, child_seed
from fdaudit.storage.cache import digest_of, remembered_parts
from fdaudit.training.trainer import Fit, Parameters
from fdaudit.transcript.samples import sample_index

from .._shadows import Recipe, by_model, fit_models, many_at_once, numbered, parts_of, recipe_of
from ._answers import RecordedAnswers, recorded

if TYPE_CHECKING:
    from fdaudit.adversary.knowledge import Knowledge
    from fdaudit.adversary.view import View

    from ._matched import Matched

__all__ = ["FollowedAnswers", "Lesson", "answered_in_rounds", "distillation_of", "followed", "lesson_of"]

_LOCAL_FIRST = "predict-first"
"""The order in which a client takes its local steps between its answers and its distillation."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Lesson:
    """The ensemble of one round, as a client received it.

    Attributes:
        round: its number.
        x: (s, c, h, w) the public samples.
        targets: (s, C) what the client distils for each; s may be 0.
    """

    round: int
    x: Tensor
    targets: Tensor


@dataclass(frozen=True, kw_only=True, eq=False)
class FollowedAnswers:
    """A client's answers of one round, and what it learnt between these and its answers before.

    Attributes:
        answers: of the round.
        lessons: of the rounds since the answers before.
    """

    answers: RecordedAnswers
    lessons: tuple[Lesson, ...] = ()


def answered_in_rounds(
    view: View, knowledge: Knowledge, most: int, rounds: int
) -> dict[str, list[FollowedAnswers]]:
    """Return each client's answers of its first rounds, by client.

    A client is followed from the federation's first round, as long as every ensemble that it was sent is in view.
    Of a client that cannot be followed to any answer, the answers of its first round with any are returned.

    Args:
        view: the adversary's view.
        knowledge: with the public samples, where there are any.
        most: samples of one round, at most.
        rounds: with answers, at most.
    """
    by_client: dict[str, list[FollowedAnswers]] = {}
    learnt: dict[str, list[Lesson]] = {m.sender: [] for m in view.messages}
    first = min((m.round for m in view.messages), default=0)
    for now in range(first, max((m.round for m in view.messages), default=-1) + 1):
        answers = recorded(view, knowledge, most, round=now)
        for client in list(learnt):
            if client in answers:
                one = FollowedAnswers(answers=answers[client], lessons=tuple(learnt[client]))
                by_client.setdefault(client, []).append(one)
                learnt[client] = []
            lesson = lesson_of(view, knowledge, client, now)
            if lesson is None or len(by_client.get(client, ())) == rounds:
                del learnt[client]
            else:
                learnt[client].append(lesson)
        if not learnt:
            break
    first_answers = recorded(view, knowledge, most, first=True)
    return {
        client: by_client.get(client) or [FollowedAnswers(answers=one)]
        for client, one in first_answers.items()
    }


def followed(
    knowledge: Knowledge,
    shadows: Matched,
    lessons: Sequence[Lesson],
    *,
    training: Mapping[str, Any],
    most_steps: int,
    seed: int,
) -> Matched:
    """Return the shadows after they have learnt what their victim learnt: distillation, and steps on their own records.

    Args:
        knowledge: with the network and a training core.
        shadows: its shadows as they answered last.
        lessons: of the rounds since then.
        training: the public configuration.
        most_steps: of one model and round on its own records.
        seed: of batches.

    Raises:
        TrainingDivergedError: a shadow's loss became NaN or infinite.
    """
    x, y = shadows.pool
    records = [row.nonzero().squeeze(1) for row in shadows.held]
    own = {**training, "rounds": 1, "warm_up_steps": 0}
    recipe = recipe_of(own, y, records=max(map(len, records)), most_steps=most_steps)
    recipe = recipe.model_copy(
        update={"fit": recipe.fit.model_copy(update={"final_lr": training.get("final_lr")})}
    )
    for lesson in lessons:
        shadows = replace(
            shadows, models=_taught(knowledge, x, y, records, shadows.models, lesson, recipe, training, seed)
        )
    return shadows


def lesson_of(view: View, knowledge: Knowledge, client: str, now: int) -> Lesson | None:
    """Return what a client learnt from in a round; None where the view or the configuration does not tell."""
    public, samples = view.hyperparameters, knowledge.public
    configured = isinstance(public.get("lr"), (int, float)) and isinstance(public.get("batch_size"), int)
    messages = [m for m in view.select(kind="ensemble_labels", round=now) if client in m.receivers]
    if samples is None or not configured or not public.get("distill_steps") or len(messages) != 1:
        return None
    if messages[0].payload is None:
        return None
    tensors = view.tensors(messages[0])
    index = sample_index(tensors)
    values = tensors["values"].cpu().float()
    valid = (index >= 0) & (index < len(samples))
    index = index[valid]
    values = values[valid]
    if "selector" in public:  # Selective-FD's clients make distributions of what a defence left
        values = values.clamp_min(0)
        values = values / values.sum(1, keepdim=True).clamp_min(torch.finfo(torch.float32).tiny)
    return Lesson(round=now, x=samples[index], targets=values)


def _taught(
    knowledge: Knowledge,
    x: Tensor,
    y: Tensor,
    held: Sequence[Tensor],
    models: list[Parameters],
    lesson: Lesson,
    recipe: Recipe,
    training: Mapping[str, Any],
    seed: int,
) -> list[Parameters]:
    """Return models after one round; blocks of them come from the cache."""
    train = many_at_once(knowledge)
    network = knowledge.architecture
    if train is None or network is None:
        raise ValueError("followed: no network or training core. Ask `missing` first.")
    distilled = Recipe(
        fit=distillation_of(training),
        batch_size=int(training.get("distill_batch_size") or max(len(lesson.x), 1)),
        steps=int(training["distill_steps"]) if len(lesson.x) else 0,
    )
    local_first = training.get("order") == _LOCAL_FIRST
    card = {
        "what": "followed shadows",
        "network": network.described,
        "execution": train.execution.described,
        "own": recipe.model_dump(mode="json"),
        "distilled": distilled.model_dump(mode="json"),
        "local first": local_first,
        "round": lesson.round,
        "seed": seed,
    }

    def fit_block(rows: range) -> dict[str, Tensor]:
        now = models[rows.start : rows.stop]
        mine = held[rows.start : rows.stop]
        everything = [torch.arange(len(lesson.x))] * len(rows)

        def draws(stage: str) -> tuple[list[torch.Generator], list[int]]:
            batches = [child(seed, "followed", lesson.round, stage, k, "batches") for k in rows]
            dropout = [child_seed(seed, "followed", lesson.round, stage, k, "dropout") for k in rows]
            return batches, dropout

        def own(models: Sequence[Parameters]) -> list[Parameters]:
            return fit_models(train, models, x, y, mine, recipe, rows, *draws("own"))

        def taught(models: Sequence[Parameters]) -> list[Parameters]:
            return fit_models(
                train, models, lesson.x, lesson.targets, everything, distilled, rows, *draws("distilled")
            )

        now = taught(own(now)) if local_first else own(taught(now))
        return numbered(rows, now)

    works = {}
    for rows in parts_of(len(models)):
        some = models[rows.start : rows.stop]
        mine = {f"{k}": held[k] for k in rows}
        stacked = {}
        for name in some[0]:
            stacked[name] = torch.stack([model[name] for model in some])
        part = {**card, "rows": [rows.start, rows.stop]}
        digest = digest_of(part, x, y, mine, stacked, lesson.x, lesson.targets)
        works[digest] = partial(fit_block, rows)
    return by_model(remembered_parts(works), len(models))


def distillation_of(training: Mapping[str, Any]) -> Fit:
    """Return how an ensemble is fitted: class scores by their mean absolute error, shares by cross-entropy."""
    return Fit(
        lr=float(training.get("distill_lr") or training["lr"]),
        momentum=float(training.get("momentum") or 0),
        objective="l1" if training.get("share") == "logits" else "cross-entropy",
    )
