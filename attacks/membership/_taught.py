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
from fdaudit.training.trainer import Job, Parameters, Trainer, draw_batches, parameters_of

from .._shadows import Recipe, many_at_once, parts_of, recipe_of

if TYPE_CHECKING:
    from fdaudit.adversary.knowledge import Knowledge
    from fdaudit.adversary.view import View

__all__ = ["tables_of_shadows", "tables_sent", "teachers_of"]

_KIND = "class_prototypes"


def tables_sent(view: View, sender: str, receiver: str | None = None) -> dict[int, Tensor]:
    """Return a party's tables (C, C), float64, by round: those to one receiver, or to anybody."""
    return {
        m.round: view.tensors(m)["values"].double().cpu()
        for m in view.select(kind=_KIND, sender=sender)
        if m.payload is not None and (receiver is None or receiver in m.receivers)
    }


def teachers_of(view: View, client: str, rounds: int, classes: int) -> list[Tensor]:
    """Return the teacher (C, C) that a client has in each round: the last table sent to it before, else zeros.

    If no table to this client is in view, those to the adversary stand for it: means over mostly the same clients.
    """
    sent: dict[int, Tensor] = {}
    for sender in dict.fromkeys(m.sender for m in view.select(kind=_KIND)):
        if not sender.startswith("client/"):
            sent |= tables_sent(view, sender, client) or tables_sent(view, sender)
    found, last = [], torch.zeros(classes, classes)
    for now in range(rounds):
        found.append(last)
        last = sent[now].float() if now in sent else last
    return found


def tables_of_shadows(
    knowledge: Knowledge,
    x: Tensor,
    y: Tensor,
    held: Tensor,
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
        held: (m, n) bool; row i marks the records of shadow i.
        teachers: R tables (C, C), one for each round's training.
        training: the public configuration, with γ as `gamma` and `share`.
        only_right: average correctly predicted records only, as PLS does.
        most_steps: of one shadow in one round.
        seed: of the initial weights and the batches.

    Raises:
        TrainingDivergedError: a shadow's loss became NaN or infinite.
    """
    network, train = knowledge.architecture, many_at_once(knowledge)
    if network is None or train is None:
        raise ValueError("tables_of_shadows: no network or training core. Ask `missing` first.")
    once = {**training, "rounds": 1, "warm_up_steps": 0}
    recipe = recipe_of(once, y, records=int(held.sum(1).max()), most_steps=most_steps)
    fit = recipe.fit.model_copy(update={"final_lr": training.get("final_lr")})
    recipe = recipe.model_copy(update={"fit": fit})
    gamma, share = float(training.get("gamma", 1.0)), str(training.get("share", "soft"))
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

    def made(rows: range) -> dict[str, Tensor]:
        models = [parameters_of(network.build(child(seed, "taught", k, "start"))) for k in rows]
        records = [held[k].nonzero().squeeze(1) for k in rows]
        tables = []
        for now, teacher in enumerate(teachers):
            targets = mixed_targets(y, teacher, gamma)
            models = _trained(train, models, x, targets, records, recipe, rows, seed, now)
            tables.append(_tables(train, models, x, y, records, share, only_right, len(teacher)))
        return {"tables": torch.stack(tables, 1)}

    parts = parts_of(len(held))
    works = {}
    for rows in parts:
        some = {"held": held[rows.start : rows.stop], "teachers": torch.stack(list(teachers))}
        works[digest_of({**card, "rows": [rows.start, rows.stop]}, x, y, some)] = partial(made, rows)
    return torch.cat([part["tables"] for part in remembered_parts(works)])


def _trained(
    train: Trainer,
    models: Sequence[Parameters],
    x: Tensor,
    targets: Tensor,
    records: Sequence[Tensor],
    recipe: Recipe,
    numbers: Sequence[int],
    seed: int,
    now: int,
) -> list[Parameters]:
    """Return the models after one round's training, each on its own rows of (x, targets)."""
    jobs = []
    for k, model, mine in zip(numbers, models, records, strict=True):
        draws = child(seed, "taught", now, k, "batches")
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
                seed=child_seed(seed, "taught", now, k, "dropout"),
            )
        )
    return [{n: t.detach().cpu() for n, t in f.parameters.items()} for f in train.fit(jobs, recipe.fit)]


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
    found = []
    for model, mine in zip(models, records, strict=True):
        predicted, labels = predictions(train.predict(model, x[mine]), share), y[mine].cpu()
        if only_right:
            right = predicted.argmax(1) == labels
            predicted, labels = predicted[right], labels[right]
        found.append(mean_by_class(predicted, labels, classes))
    return torch.stack(found)
