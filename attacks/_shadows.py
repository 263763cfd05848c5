"""Shadow models: networks that an adversary trains on records whose membership it knows.

Guarantees:
  * models are trained in blocks, and processes that need the same models share the blocks;
  * half of the models hold any given record, and a model is fitted only to the records it holds;
  * equal records, masks, settings, network and seed are trained once (`fdaudit.storage.cache`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from fdaudit.config import Config
from fdaudit.errors import TrainingDivergedError, UsageError
from fdaudit.rng import child, child_seed
from fdaudit.storage.cache import digest_of, remembered_parts
from fdaudit.tasks import labels_of
from fdaudit.training.objectives import ClientStep
from fdaudit.training.optimizers import BETAS, optimizer_in
from fdaudit.training.trainer import Fit, Job, Parameters, Trainer, draw_batches, parameters_of

if TYPE_CHECKING:
    from fdaudit.adversary.knowledge import Knowledge
    from fdaudit.models import Architecture

__all__ = [
    "Recipe",
    "Shadows",
    "by_model",
    "fitted_in_parts",
    "in_and_out",
    "many_at_once",
    "network_and_core",
    "numbered",
    "on_cpu",
    "parts_of",
    "recipe_of",
    "shadow_models",
    "shadows",
    "stacked_logits",
]

_BLOCK = 25
"""Adam steps between two checks whether a model has fitted its records."""
_TOGETHER = 60
"""Models that are trained together; two processes that need the same models train different ones of these blocks."""
_MOST_DRAWS = 1000
"""Draws of the halves of a few records, until no model is without any."""
_MOST_STEPS = 2000
"""Default number of steps of one shadow model."""
_STACKED_WORK = 1_500_000
"""Floating-point operations of a forward pass below which many models at once are faster than one by one."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Shadows:
    """Shadow models and their training records.

    Attributes:
        parameters: of n models, on the CPU.
        inside: (n, m) whether model i was trained on record j of the pool.
    """

    parameters: list[Parameters]
    inside: Tensor


class Recipe(Config):
    """The training settings of shadow models."""

    fit: Fit
    """Optimiser and loss."""
    batch_size: int
    """Records a step."""
    epochs: int | None = None
    """Passes over a model's records; None if `steps` is given."""
    steps: int | None = None
    """Total number of steps; None if `epochs` is given."""
    most_steps: int = _MOST_STEPS
    """Largest number of steps, for either setting."""
    until_fitted: bool = False
    """Stop once every record is classified correctly; checked every few steps."""


def in_and_out(models: int, records: int, generator: torch.Generator) -> Tensor:
    """Return (models, records) bool: each record is in ⌊models/2⌋ models, drawn independently for each record.

    With an even number of models this is the design of Carlini et al. 2022 (section VI): a fair coin for each model,
    but with as many models in as out for every record. Of a few records a model may get none: then all are drawn again.
    """
    for _ in range(_MOST_DRAWS):
        keys = torch.rand(models, records, generator=generator)
        inside = keys.argsort(0).argsort(0) < models // 2
        if records * (models // 2) < models or bool(inside.any(1).all()):
            break
    return inside


def recipe_of(
    hyperparameters: Mapping[str, Any], y: Tensor, *, records: int, most_steps: int = _MOST_STEPS
) -> Recipe:
    """Return the target's training as far as the public configuration gives it; otherwise Adam until fitted.

    Their loss and clipping are the stated ones; a loss of the user's own is replaced by cross-entropy.
    If clients train in rounds, the passes or steps of all rounds follow each other without the exchange between them.
    `Knowledge.rehearse` gives shadow models of a protocol's whole run.

    Args:
        hyperparameters: the public configuration, `View.hyperparameters`.
        y: labels of the pool; they determine the loss.
        records: approximate number of records that a model is fitted on.
        most_steps: of one model.
    """
    objective = labels_of(y).objective
    step = ClientStep.of(hyperparameters, own=False)
    lr = hyperparameters.get("lr")
    batch = hyperparameters.get("batch_size")
    if not isinstance(lr, (int, float)) or not isinstance(batch, int):
        adam = Fit(lr=0.003, optimizer="adam", objective=objective, step=step)
        return Recipe(fit=adam, batch_size=64, steps=most_steps, most_steps=most_steps, until_fitted=True)
    fit = Fit(
        lr=float(lr),
        optimizer=optimizer_in(hyperparameters),
        momentum=float(hyperparameters.get("momentum") or 0),
        weight_decay=float(hyperparameters.get("weight_decay") or 0),
        betas=tuple(hyperparameters.get("betas") or BETAS),
        objective=objective,
        step=step,
    )
    rounds = int(hyperparameters.get("rounds") or 1)
    each = hyperparameters.get("local_steps")
    warm_up = int(hyperparameters.get("warm_up_steps") or 0)
    if each is not None:
        return Recipe(fit=fit, batch_size=batch, steps=warm_up + rounds * int(each), most_steps=most_steps)
    epochs = rounds * int(hyperparameters.get("local_epochs") or 1)
    epochs += math.ceil(warm_up / max(1, math.ceil(records / batch)))
    return Recipe(fit=fit, batch_size=batch, epochs=epochs, most_steps=most_steps)


def shadows(
    knowledge: Knowledge,
    x: Tensor,
    y: Tensor,
    count: int,
    *,
    hyperparameters: Mapping[str, Any] | None = None,
    most_steps: int = _MOST_STEPS,
    seed: int = 0,
) -> Shadows:
    """Train `count` shadow models, each on a random half of a pool (x, y) of m records.

    The halves depend only on `seed` and the numbers, so every attack and adversary with the same pool shares them.

    Args:
        knowledge: with the architecture and a training core.
        x: (m, c, h, w).
        y: (m,) or (m, C).
        count: number of models n.
        hyperparameters: the public configuration, if available.
        most_steps: of one model.
        seed: of the halves, the initial weights and the batches.
    """
    inside = in_and_out(count, len(y), child(seed, "shadows", "inside"))
    models = shadow_models(
        knowledge, x, y, inside, seed=seed, hyperparameters=hyperparameters, most_steps=most_steps
    )
    return Shadows(parameters=models, inside=inside)


def shadow_models(
    knowledge: Knowledge,
    x: Tensor,
    y: Tensor,
    inside: Tensor,
    *,
    seed: int = 0,
    hyperparameters: Mapping[str, Any] | None = None,
    recipe: Recipe | None = None,
    most_steps: int = _MOST_STEPS,
    start: Parameters | None = None,
) -> list[Parameters]:
    """Fit one model to each row of `inside`, all of them together, or load them from the cache.

    Args:
        knowledge: with the architecture and a training core.
        x: (m, c, h, w) the pool.
        y: (m,) or (m, C) its labels.
        inside: (n, m) bool; row i marks the training records of model i.
        seed: of the initial weights and the batches.
        hyperparameters: the public configuration, from which `recipe_of` derives the recipe.
        recipe: the recipe, if not derived.
        most_steps: of one model, if `recipe` does not give it.
        start: initial weights of all models; if omitted, each has its own.

    Returns:
        The parameters of n models, on the CPU.

    Raises:
        UsageError: no architecture or training core is known, a model has no record, or the cache cannot be used.
        TrainingDivergedError: not even Adam stayed finite.
    """
    train, network = network_and_core(knowledge)
    sizes = inside.sum(1)
    if inside.shape[1] != len(y) or not len(inside) or not bool((sizes > 0).all()):
        problem = f"does not give each model some of {len(y)} records"
        raise UsageError(
            "inside", tuple(inside.shape), problem, "Give a row of True and False for each model."
        )
    records = int(sizes.max())
    recipe = recipe or recipe_of(hyperparameters or {}, y, records=records, most_steps=most_steps)
    card = {
        "what": "shadow models",
        "network": network.described,
        "execution": train.execution.described,
        "recipe": recipe.model_dump(mode="json"),
        "seed": seed,
    }

    def fit_block(rows: range) -> dict[str, Tensor]:
        part = inside[rows.start : rows.stop]
        try:
            models = _fit(network, train, x, y, part, recipe, seed, start, rows)
        except TrainingDivergedError:
            # The target's rate was chosen for its own numbers of records; what matters here is a fitted model.
            adam = recipe_of({}, y, records=records, most_steps=most_steps)
            fit = adam.fit.model_copy(update={"step": recipe.fit.step})
            adam = adam.model_copy(update={"fit": fit})
            models = _fit(network, train, x, y, part, adam, seed, start, rows)
        return numbered(rows, models)

    def tensors(rows: range) -> list[Tensor | Mapping[str, Tensor]]:
        return [x, y, inside[rows.start : rows.stop], start or {}]

    return by_model(fitted_in_parts(card, len(inside), tensors, fit_block), len(inside))


def fitted_in_parts(
    card: Mapping[str, Any],
    count: int,
    tensors: Callable[[range], Sequence[Tensor | Mapping[str, Tensor]]],
    fit: Callable[[range], dict[str, Tensor]],
) -> list[dict[str, Tensor]]:
    """Return what `fit` computes of `count` models, part by part, cached.

    By part, so that an attack with more shadows shares the first ones with one that has fewer.

    Args:
        card: the computation and every setting that it depends on.
        count: number of models.
        tensors: from the models' numbers, every tensor that a part depends on.
        fit: from the models' numbers, the part's tensors.
    """
    works = {}
    for rows in parts_of(count):
        digest = digest_of({**card, "rows": [rows.start, rows.stop]}, *tensors(rows))
        works[digest] = partial(fit, rows)
    return remembered_parts(works)


def many_at_once(knowledge: Knowledge) -> Trainer | None:
    """Return a training core for many of the adversary's own models; on a CPU it trains small networks together."""
    network, train = knowledge.architecture, knowledge.train
    if network is None or train is None or train.device.type != "cpu" or network.work >= _STACKED_WORK:
        return train
    return Trainer(network, replace(train.execution, strategy="stacked", memory_format="contiguous"))


def network_and_core(knowledge: Knowledge) -> tuple[Trainer, Architecture]:
    """Return a training core for many of the adversary's own models, and their network.

    Raises:
        UsageError: one of them is not known.
    """
    network = knowledge.architecture
    train = many_at_once(knowledge)
    if network is None or train is None:
        raise UsageError("knowledge", None, "has no network to train", "Give an architecture and a trainer.")
    return train, network


def stacked_logits(train: Trainer, models: Sequence[Parameters], x: Tensor) -> Tensor:
    """Return the logits (m, n, C) of m models on samples x (n, c, h, w)."""
    return torch.stack([train.predict(model, x) for model in models])


def parts_of(count: int) -> list[range]:
    """Return the numbers of the models that are trained together, part by part."""
    return [range(k, min(k + _TOGETHER, count)) for k in range(0, count, _TOGETHER)]


def numbered(numbers: Sequence[int], models: Sequence[Parameters]) -> dict[str, Tensor]:
    """Return the tensors of several models, each under its model's number and its own name."""
    tensors: dict[str, Tensor] = {}
    for number, model in zip(numbers, models, strict=True):
        for name, tensor in model.items():
            tensors[f"{number:05d}/{name}"] = tensor
    return tensors


def by_model(parts: Iterable[Mapping[str, Tensor]], count: int) -> list[Parameters]:
    """Return the models whose tensors `numbered` named, by their number."""
    models: list[Parameters] = [{} for _ in range(count)]
    for part in parts:
        for name, tensor in part.items():
            number, _, parameter = name.partition("/")
            models[int(number)][parameter] = tensor
    return models


def _fit(
    network: Architecture,
    train: Trainer,
    x: Tensor,
    y: Tensor,
    inside: Tensor,
    recipe: Recipe,
    seed: int,
    start: Parameters | None,
    numbers: Sequence[int],
) -> list[Parameters]:
    """Fit the models with these numbers; `inside` has only their rows."""
    if start is None:
        models = [parameters_of(network.build(child(seed, "shadow", k, "start"))) for k in numbers]
    else:
        models = [start] * len(inside)
    if recipe.until_fitted:
        return _until_fitted(train, models, x, y, inside, recipe, seed, numbers)
    rows = [row.nonzero().squeeze(1) for row in inside]
    draws = [child(seed, "shadow", k, "batches") for k in numbers]
    dropout = [child_seed(seed, "shadow", k, "dropout") for k in numbers]
    return fit_models(train, models, x, y, rows, recipe, numbers, draws, dropout)


def fit_models(
    train: Trainer,
    models: Sequence[Parameters],
    x: Tensor,
    targets: Tensor,
    rows: Sequence[Tensor],
    recipe: Recipe,
    numbers: Sequence[int],
    draws: Sequence[torch.Generator],
    dropout: Sequence[int],
) -> list[Parameters]:
    """Return models fitted each to its own rows of (x, targets), as a recipe says.

    Args:
        train: the training core.
        models: their parameters at the start.
        x: (n, c, h, w) samples.
        targets: (n, ...) what the models learn of them.
        rows: the rows of each model.
        recipe: how they are fitted.
        numbers: the models' numbers, for errors.
        draws: by model, draws its batches.
        dropout: by model, the seed of what its network draws.
    """
    jobs = []
    for k, start, mine, generator, seed in zip(numbers, models, rows, draws, dropout, strict=True):
        batches = draw_batches(
            len(mine), recipe.batch_size, steps=recipe.steps, epochs=recipe.epochs, generator=generator
        )
        jobs.append(_job(k, start, x, targets, [mine[b] for b in batches[: recipe.most_steps]], seed))
    return [on_cpu(fitted.parameters) for fitted in train.fit(jobs, recipe.fit)]


def _until_fitted(
    train: Trainer,
    models: list[Parameters],
    x: Tensor,
    y: Tensor,
    inside: Tensor,
    recipe: Recipe,
    seed: int,
    numbers: Sequence[int],
) -> list[Parameters]:
    """Train models that have not fitted their records in blocks of a few steps, until all have or time is up."""
    mine = [row.nonzero().squeeze(1) for row in inside]
    draws = [child(seed, "shadow", k, "batches") for k in numbers]
    unfitted = list(range(len(mine)))
    steps = 0
    while unfitted and steps < recipe.most_steps:
        block = min(_BLOCK, recipe.most_steps - steps)
        jobs = []
        for k in unfitted:
            batches = draw_batches(len(mine[k]), recipe.batch_size, steps=block, generator=draws[k])
            dropout = child_seed(seed + steps, "shadow", numbers[k], "dropout")
            jobs.append(_job(numbers[k], models[k], x, y, [mine[k][b] for b in batches], dropout))
        for k, fitted in zip(unfitted, train.fit(jobs, recipe.fit), strict=True):
            models[k] = fitted.parameters
        steps += block
        still_unfitted = []
        for k in unfitted:
            labels = y[mine[k]]
            logits = train.predict(models[k], x[mine[k]])
            if not labels_of(labels).fitted(logits, labels).all():
                still_unfitted.append(k)
        unfitted = still_unfitted
    return list(map(on_cpu, models))


def _job(k: int, start: Parameters, x: Tensor, y: Tensor, batches: Sequence[Tensor], seed: int) -> Job:
    return Job(party=f"shadow {k}", parameters=start, x=x, targets=y, batches=batches, seed=seed)


def on_cpu(parameters: Mapping[str, Tensor]) -> Parameters:
    """Return parameters without gradients, on the CPU."""
    return {name: t.detach().cpu() for name, t in parameters.items()}
