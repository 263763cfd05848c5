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
from fdaudit.training.trainer import Fit, Job, Parameters, Trainer, draw_batches
from fdaudit.transcript.samples import sample_index

from .._shadows import Recipe, by_model, many_at_once, parts_of, recipe_of
from ._answers import Recorded, recorded

if TYPE_CHECKING:
    from fdaudit.adversary.knowledge import Knowledge
    from fdaudit.adversary.view import View

    from ._matched import Matched

__all__ = ["Answered", "Lesson", "answered_in_rounds", "followed", "lesson_of"]

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
class Answered:
    """A client's answers of one round, and what it learnt between these and its answers before.

    Attributes:
        answers: of the round.
        lessons: of the rounds since the answers before.
    """

    answers: Recorded
    lessons: tuple[Lesson, ...] = ()


def answered_in_rounds(view: View, knowledge: Knowledge, most: int, rounds: int) -> dict[str, list[Answered]]:
    """Return each client's answers of its first rounds, by client.

    A client is followed from the federation's first round, as long as every ensemble that it was sent is in view.
    Of a client that cannot be followed to any answer, the answers of its first round with any are returned.

    Args:
        view: the adversary's view.
        knowledge: with the public samples, where there are any.
        most: samples of one round, at most.
        rounds: with answers, at most.
    """
    found: dict[str, list[Answered]] = {}
    learnt: dict[str, list[Lesson]] = {m.sender: [] for m in view.messages}
    first = min((m.round for m in view.messages), default=0)
    for now in range(first, max((m.round for m in view.messages), default=-1) + 1):
        answers = recorded(view, knowledge, most, round=now)
        for client in list(learnt):
            if client in answers:
                one = Answered(answers=answers[client], lessons=tuple(learnt[client]))
                found.setdefault(client, []).append(one)
                learnt[client] = []
            lesson = lesson_of(view, knowledge, client, now)
            if lesson is None or len(found.get(client, ())) == rounds:
                del learnt[client]
            else:
                learnt[client].append(lesson)
        if not learnt:
            break
    begun = recorded(view, knowledge, most, first=True)
    return {client: found.get(client) or [Answered(answers=one)] for client, one in begun.items()}


def followed(
    knowledge: Knowledge,
    made: Matched,
    lessons: Sequence[Lesson],
    *,
    training: Mapping[str, Any],
    most_steps: int,
    seed: int,
) -> Matched:
    """Return the shadows after they have learnt what their victim learnt: distillation, and steps on their own records.

    Args:
        knowledge: with the network and a training core.
        made: its shadows as they answered last.
        lessons: of the rounds since then.
        training: the public configuration.
        most_steps: of one model and round on its own records.
        seed: of batches.

    Raises:
        TrainingDivergedError: a shadow's loss became NaN or infinite.
    """
    x, y = made.pool
    held = [row.nonzero().squeeze(1) for row in made.held]
    own = {**training, "rounds": 1, "warm_up_steps": 0}
    recipe = recipe_of(own, y, records=max(len(row) for row in held), most_steps=most_steps)
    recipe = recipe.model_copy(
        update={"fit": recipe.fit.model_copy(update={"final_lr": training.get("final_lr")})}
    )
    for lesson in lessons:
        made = replace(
            made, models=_taught(knowledge, x, y, held, made.models, lesson, recipe, training, seed)
        )
    return made


def lesson_of(view: View, knowledge: Knowledge, client: str, now: int) -> Lesson | None:
    """Return what a client learnt from in a round; None where the view or the configuration does not tell."""
    public, samples = view.hyperparameters, knowledge.public
    told = isinstance(public.get("lr"), (int, float)) and isinstance(public.get("batch_size"), int)
    sent = [m for m in view.select(kind="ensemble_labels", round=now) if client in m.receivers]
    if samples is None or not told or not public.get("distill_steps") or len(sent) != 1:
        return None
    if sent[0].payload is None:
        return None
    tensors = view.tensors(sent[0])
    index, values = sample_index(tensors), tensors["values"].cpu().float()
    known = (index >= 0) & (index < len(samples))
    index, values = index[known], values[known]
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
    train, network = many_at_once(knowledge), knowledge.architecture
    if train is None or network is None:
        raise ValueError("followed: no network or training core. Ask `missing` first.")
    distilled = Recipe(
        fit=_distillation(training),
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

    def made(rows: range) -> dict[str, Tensor]:
        now, mine = models[rows.start : rows.stop], held[rows.start : rows.stop]
        everything = [torch.arange(len(lesson.x))] * len(rows)
        own = partial(_fitted, train, x, y, mine, recipe, rows, seed, (lesson.round, "own"))
        taught = partial(
            _fitted, train, lesson.x, lesson.targets, everything, distilled, rows,
            seed, (lesson.round, "distilled"),
        )  # fmt: skip
        now = taught(own(now)) if local_first else own(taught(now))
        return {f"{k:05d}/{name}": t for k, one in zip(rows, now, strict=True) for name, t in one.items()}

    works = {}
    for rows in parts_of(len(models)):
        some = models[rows.start : rows.stop]
        mine = {f"{k}": held[k] for k in rows}
        stacked = {name: torch.stack([model[name] for model in some]) for name in some[0]}
        part = {**card, "rows": [rows.start, rows.stop]}
        digest = digest_of(part, x, y, mine, stacked, lesson.x, lesson.targets)
        works[digest] = partial(made, rows)
    tensors = {name: t for part in remembered_parts(works) for name, t in part.items()}
    return by_model(tensors, len(models))


def _distillation(training: Mapping[str, Any]) -> Fit:
    """Return how a client fits an ensemble: class scores by their mean absolute error, shares by cross-entropy."""
    return Fit(
        lr=float(training.get("distill_lr") or training["lr"]),
        momentum=float(training.get("momentum") or 0),
        objective="l1" if training.get("share") == "logits" else "cross-entropy",
    )


def _fitted(
    train: Trainer,
    x: Tensor,
    targets: Tensor,
    held: Sequence[Tensor],
    recipe: Recipe,
    numbers: Sequence[int],
    seed: int,
    stage: tuple[int, str],
    models: Sequence[Parameters],
) -> list[Parameters]:
    """Return models fitted each to its own rows of (x, targets), as a recipe says."""
    jobs = []
    for k, model, mine in zip(numbers, models, held, strict=True):
        draws = child(seed, "followed", *stage, k, "batches")
        drawn = draw_batches(
            len(mine), recipe.batch_size, steps=recipe.steps, epochs=recipe.epochs, generator=draws
        )
        jobs.append(
            Job(
                party=f"shadow {k}",
                parameters=model,
                x=x,
                targets=targets,
                batches=[mine[b] for b in drawn[: recipe.most_steps]],
                seed=child_seed(seed, "followed", *stage, k, "dropout"),
            )
        )
    return [{n: t.detach().cpu() for n, t in f.parameters.items()} for f in train.fit(jobs, recipe.fit)]
