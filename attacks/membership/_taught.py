"""Shadows of a client that learns from mean predictions by class, and the tables that they would have sent.

A shadow trains as its victim does, round after round: on its own records, towards the teacher that the victim was
sent. Its table of each round is made by the functions that the protocols use.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from fdaudit.rng import child, child_seed
from fdaudit.storage.cache import digest_of, remembered_parts
from fdaudit.training.class_means import mean_by_class, mixed_targets, predictions
from fdaudit.training.trainer import Parameters, Trainer, parameters_of

from .._shadows import fit_models, many_at_once, parts_of, recipe_of
from .._uploads import with_payload

if TYPE_CHECKING:
    from fdaudit.adversary.knowledge import Knowledge
    from fdaudit.adversary.view import View

__all__ = ["tables_of_shadows", "tables_sent", "teachers_of"]

_KIND = "class_prototypes"


def tables_sent(view: View, sender: str, receiver: str | None = None) -> dict[int, Tensor]:
    """Return a party's tables (C, C), float64, by round: those to one receiver, or to anybody."""
    tables = {}
    for message in with_payload(view.select(kind=_KIND, sender=sender)):
        if receiver is None or receiver in message.receivers:
            tables[message.round] = view.tensors(message)["values"].double().cpu()
    return tables


def teachers_of(view: View, client: str, rounds: int, classes: int) -> list[Tensor]:
    """Return the teacher (C, C) that a client has in each round: the last table sent to it before, else zeros.

    If no table to this client is in view, those to the adversary stand for it: means over mostly the same clients.
    """
    tables: dict[int, Tensor] = {}
    for sender in dict.fromkeys(m.sender for m in view.select(kind=_KIND)):
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
    x: Tensor,
    y: Tensor,
    masks: Tensor,
    teachers: Sequence[Tensor],
    *,
    training: Mapping[str, Any],
    only_right: bool,
    most_steps: int,
    seed: int,
) -> Tensor:
    """Return the tables (m, R, C, C) of shadows over R rounds; blocks of them come from the cache.

    Args:
        knowledge: with the network and a training core.
        x: (n, c, h, w) records.
        y: (n,) their classes.
        masks: (m, n) bool; row i marks the records of shadow i.
        teachers: R tables (C, C), one for each round's training.
        training: the public configuration, with γ as `gamma` and `share`.
        only_right: average correctly predicted records only, as PLS does.
        most_steps: of one shadow in one round.
        seed: of the initial weights and the batches.

    Raises:
        TrainingDivergedError: a shadow's loss became NaN or infinite.
    """
    network = knowledge.architecture
    train = many_at_once(knowledge)
    if network is None or train is None:
        raise ValueError("tables_of_shadows: no network or training core. Ask `missing` first.")
    once = {**training, "rounds": 1, "warm_up_steps": 0}
    recipe = recipe_of(once, y, records=int(masks.sum(1).max()), most_steps=most_steps)
    fit = recipe.fit.model_copy(update={"final_lr": training.get("final_lr")})
    recipe = recipe.model_copy(update={"fit": fit})
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

    def fit_block(rows: range) -> dict[str, Tensor]:
        models = [parameters_of(network.build(child(seed, "taught", k, "start"))) for k in rows]
        records = [masks[k].nonzero().squeeze(1) for k in rows]
        tables = []
        for now, teacher in enumerate(teachers):
            targets = mixed_targets(y, teacher, gamma)
            draws = [child(seed, "taught", now, k, "batches") for k in rows]
            dropout = [child_seed(seed, "taught", now, k, "dropout") for k in rows]
            models = fit_models(train, models, x, targets, records, recipe, rows, draws, dropout)
            tables.append(_tables(train, models, x, y, records, share, only_right, len(teacher)))
        return {"tables": torch.stack(tables, 1)}

    parts = parts_of(len(masks))
    works = {}
    for rows in parts:
        some = {"held": masks[rows.start : rows.stop], "teachers": torch.stack(list(teachers))}
        works[digest_of({**card, "rows": [rows.start, rows.stop]}, x, y, some)] = partial(fit_block, rows)
    return torch.cat([part["tables"] for part in remembered_parts(works)])


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
