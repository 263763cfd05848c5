"""Shadows that go on from round to round as their victim does.

They learn from the ensembles that it was sent, or towards the tables of mean predictions by class.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from fdaudit.rng import child, child_seed
from fdaudit.training.class_means import mean_by_class, mixed_targets, predictions
from fdaudit.training.trainer import Fit, Parameters, Trainer, parameters_of
from fdaudit.transcript.samples import sample_index

from .._shadows import Recipe, by_model, fit_models, fitted_in_parts, network_and_core, numbered, recipe_of
from .._uploads import with_payload
from ._answers import RecordedAnswers, recorded
from ._study import Study

if TYPE_CHECKING:
    from fdaudit.adversary.knowledge import Knowledge
    from fdaudit.adversary.view import View
    from fdaudit.transcript.messages import Message
__all__ = [
    "FollowedAnswers",
    "Lesson",
    "answered_in_rounds",
    "distillation_of",
    "followed",
    "lesson_of",
    "tables_of_shadows",
    "tables_sent",
    "teachers_of",
]

_TABLES = "class_prototypes"
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


class _Stretch(NamedTuple):
    """One stretch of the shadows' training: each model learns its rows of some samples and targets, by one recipe."""

    name: str
    x: Tensor
    targets: Tensor
    rows: Sequence[Tensor]
    recipe: Recipe


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
    evidence: dict[str, list[FollowedAnswers]] = {}
    for client, earliest in first_answers.items():
        evidence[client] = by_client.get(client) or [FollowedAnswers(answers=earliest)]
    return evidence


def followed(
    knowledge: Knowledge,
    study: Study,
    lessons: Sequence[Lesson],
    *,
    training: Mapping[str, Any],
    most_steps: int,
    seed: int,
) -> Study:
    """Return the study after its shadows have learnt what their client learnt: distillation, and steps on own records.

    Args:
        knowledge: with the network and a training core.
        study: its shadows as they answered last.
        lessons: of the rounds since then.
        training: the public configuration.
        most_steps: of one model and round on its own records.
        seed: of batches.

    Raises:
        TrainingDivergedError: a shadow's loss became NaN or infinite.
    """
    for lesson in lessons:
        study = replace(study, models=_after(lesson, knowledge, study, training, most_steps, seed))
    return study


def _after(
    lesson: Lesson,
    knowledge: Knowledge,
    study: Study,
    training: Mapping[str, Any],
    most_steps: int,
    seed: int,
) -> list[Parameters]:
    """Return the shadows' models after one round; blocks of them come from the cache."""
    train, network = network_and_core(knowledge)
    x, y = study.pool
    models = study.models
    records = study.records
    distilled = Recipe(
        fit=distillation_of(training),
        batch_size=int(training.get("distill_batch_size") or max(len(lesson.x), 1)),
        steps=int(training["distill_steps"]) if len(lesson.x) else 0,
    )
    stages = [
        _Stretch(
            "distilled", lesson.x, lesson.targets, [torch.arange(len(lesson.x))] * len(models), distilled
        ),
        _Stretch("own", x, y, records, _one_round(training, y, records, most_steps)),
    ]
    if training.get("order") == _LOCAL_FIRST:
        stages.reverse()
    card = {
        "what": "followed shadows",
        "network": network.described,
        "execution": train.execution.described,
        "stages": [[stage.name, stage.recipe.model_dump(mode="json")] for stage in stages],
        "round": lesson.round,
        "seed": seed,
    }

    def tensors(rows: range) -> list[Tensor | Mapping[str, Tensor]]:
        held = {f"{k}": records[k] for k in rows}
        return [x, y, held, numbered(rows, models[rows.start : rows.stop]), lesson.x, lesson.targets]

    def fit_block(rows: range) -> dict[str, Tensor]:
        fitted = models[rows.start : rows.stop]
        for name, samples, targets, learnt, recipe in stages:
            mine = learnt[rows.start : rows.stop]
            batches = [child(seed, "followed", lesson.round, name, k, "batches") for k in rows]
            dropout = [child_seed(seed, "followed", lesson.round, name, k, "dropout") for k in rows]
            fitted = fit_models(train, fitted, samples, targets, mine, recipe, rows, batches, dropout)
        return numbered(rows, fitted)

    return by_model(fitted_in_parts(card, len(models), tensors, fit_block), len(models))


def lesson_of(view: View, knowledge: Knowledge, client: str, now: int) -> Lesson | None:
    """Return what a client learnt from in a round; None where the view or the configuration does not tell."""
    public, samples = view.hyperparameters, knowledge.public
    configured = isinstance(public.get("lr"), (int, float)) and isinstance(public.get("batch_size"), int)
    messages: list[Message] = []
    for m in view.select(kind="ensemble_labels", round=now):
        if client in m.receivers:
            messages.append(m)
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


def distillation_of(training: Mapping[str, Any]) -> Fit:
    """Return how an ensemble is fitted: class scores by their mean absolute error, shares by cross-entropy."""
    return Fit(
        lr=float(training.get("distill_lr") or training["lr"]),
        momentum=float(training.get("momentum") or 0),
        objective="l1" if training.get("share") == "logits" else "cross-entropy",
    )


# -- tables of mean predictions by class ------------------------------------------------------------------------------


def tables_sent(view: View, sender: str, receiver: str | None = None) -> dict[int, Tensor]:
    """Return a party's tables (C, C), float64, by round: those to one receiver, or to any."""
    tables = {}
    for message in with_payload(view.select(kind=_TABLES, sender=sender)):
        if receiver is None or receiver in message.receivers:
            tables[message.round] = view.tensors(message)["values"].double().cpu()
    return tables


def teachers_of(view: View, client: str, rounds: int, classes: int) -> list[Tensor]:
    """Return the teacher (C, C) that a client has in each round: the last table sent to it before, else zeros.

    If no table to this client is in view, those to the adversary stand for it: means over mostly the same clients.
    """
    tables: dict[int, Tensor] = {}
    for sender in dict.fromkeys(m.sender for m in view.select(kind=_TABLES)):
        if not sender.startswith("client/"):
            tables |= tables_sent(view, sender, client) or tables_sent(view, sender)
    teachers = []
    last = torch.zeros(classes, classes)
    for now in range(rounds):
        teachers.append(last)
        last = tables[now].float() if now in tables else last
    return teachers


def tables_of_shadows(
    knowledge: Knowledge,
    study: Study,
    teachers: Sequence[Tensor],
    *,
    training: Mapping[str, Any],
    only_right: bool,
    most_steps: int,
    seed: int,
) -> Tensor:
    """Return the tables (m, R, C, C) that shadows would have sent in R rounds; blocks of them come from the cache.

    A shadow trains on its own records, towards the teacher that its client was sent. Its table of each round is made by
    the functions that the protocols use.

    Args:
        knowledge: with the network and a training core.
        study: says which records each shadow holds.
        teachers: R tables (C, C), one for each round's training.
        training: the public configuration, with γ as `gamma` and `share`.
        only_right: average correctly predicted records only, as PLS does.
        most_steps: of one shadow in one round.
        seed: of the initial weights and the batches.

    Raises:
        TrainingDivergedError: a shadow's loss became NaN or infinite.
    """
    train, network = network_and_core(knowledge)
    x, y = study.pool
    records = study.records
    recipe = _one_round(training, y, records, most_steps)
    gamma = float(training.get("gamma", 1.0))
    share = str(training.get("share", "soft"))
    card = {
        "what": "tables of shadows",
        "network": network.described,
        "execution": train.execution.described,
        "recipe": recipe.model_dump(mode="json"),
        "gamma": gamma,
        "share": share,
        "only right": only_right,
        "seed": seed,
    }

    def tensors(rows: range) -> list[Tensor]:
        return [x, y, study.held[rows.start : rows.stop], torch.stack(list(teachers))]

    def fit_block(rows: range) -> dict[str, Tensor]:
        models = [parameters_of(network.build(child(seed, "taught", k, "start"))) for k in rows]
        mine = records[rows.start : rows.stop]
        tables = []
        for now, teacher in enumerate(teachers):
            targets = mixed_targets(y, teacher, gamma)
            draws = [child(seed, "taught", now, k, "batches") for k in rows]
            dropout = [child_seed(seed, "taught", now, k, "dropout") for k in rows]
            models = fit_models(train, models, x, targets, mine, recipe, rows, draws, dropout)
            tables.append(_tables(train, models, x, y, mine, share, only_right, len(teacher)))
        return {"tables": torch.stack(tables, 1)}

    parts = fitted_in_parts(card, len(records), tensors, fit_block)
    return torch.cat([part["tables"] for part in parts])


def _tables(
    train: Trainer,
    models: Sequence[Parameters],
    x: Tensor,
    y: Tensor,
    records: Sequence[Tensor],
    share: str,
    only_right: bool,
    classes: int,
) -> Tensor:
    """Return each model's table (m, C, C) for its own records."""
    tables = []
    for model, mine in zip(models, records, strict=True):
        predicted = predictions(train.predict(model, x[mine]), share)
        labels = y[mine].cpu()
        if only_right:
            right = predicted.argmax(1) == labels
            predicted = predicted[right]
            labels = labels[right]
        tables.append(mean_by_class(predicted, labels, classes))
    return torch.stack(tables)


def _one_round(training: Mapping[str, Any], y: Tensor, records: Sequence[Tensor], most_steps: int) -> Recipe:
    """Return how shadows train on their own records in one round."""
    once = {**training, "rounds": 1, "warm_up_steps": 0}
    recipe = recipe_of(once, y, records=max(map(len, records)), most_steps=most_steps)
    fit = recipe.fit.model_copy(update={"final_lr": training.get("final_lr")})
    return recipe.model_copy(update={"fit": fit})
