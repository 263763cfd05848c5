"""A shadow study of one client: which records each shadow holds, and models that trained on them as the client does.

An attack draws the shadows' records, trains the shadows, and compares what the client sent with what they answer.
Attacks with the same candidates, auxiliary records and settings share the same models, trained once.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from fdaudit.rng import child, child_seed
from fdaudit.storage.cache import computed_once
from fdaudit.tasks import labels_of
from fdaudit.training.trainer import parameters_of
from fdaudit.types import Applicability, AttackTask, Challenge

from .._shadows import numbered, recipe_of, shadow_models, stacked_logits
from .._uploads import with_payload
from ._coins import pairs_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from fdaudit.adversary.knowledge import Knowledge
    from fdaudit.adversary.view import View
    from fdaudit.training.trainer import Parameters, Trainer

__all__ = [
    "Study",
    "auxiliary_of",
    "before_answers",
    "core_of",
    "drawn",
    "drawn_of_stranger",
    "initial_weights",
    "missing",
    "told_counts",
    "trained",
]

_ANSWERS_FIRST = ("predict-first", "digest-revisit")
"""Orders in which a client's first answers follow its warm-up."""
_MOST_KEPT = 1 << 25
"""Bytes of logits that are cached; larger ones would take the room of the shadows themselves."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Study:
    """Shadows of one client.

    Attributes:
        inside: (m, n) the candidates that each shadow holds; of a client without known candidates n is 0.
        others: (m, a) the other records of the pool that each holds.
        coins: (m, k) ±1: whether the first candidate of each pair is in; without pairs, whether each candidate is.
        pool: (x, y) the candidates, and the other records after them.
        seed: of the shadows' initial weights and batches.
        models: of the m shadows, once they are trained.
    """

    inside: Tensor
    others: Tensor
    coins: Tensor
    pool: tuple[Tensor, Tensor]
    seed: int = 0
    models: list[Parameters] = field(default_factory=list)

    @property
    def held(self) -> Tensor:
        """Return the records of the pool (m, n + a) that each shadow holds."""
        return torch.cat([self.inside, self.others], 1)

    @property
    def records(self) -> list[Tensor]:
        """Return the numbers of the records of the pool that each shadow holds."""
        return [row.nonzero().squeeze(1) for row in self.held]

    @property
    def population(self) -> tuple[Tensor, Tensor]:
        """Return the records (x, y) of the pool that are no candidates."""
        x, y = self.pool
        candidates = self.inside.shape[1]
        return x[candidates:], y[candidates:]

    def logits(self, knowledge: Knowledge, x: Tensor) -> Tensor:
        """Return the shadows' logits (m, s, C), cached: several attacks and adversaries ask for the same ones."""
        train = core_of(knowledge)
        if 4 * len(self.models) * len(x) * knowledge.classes > _MOST_KEPT:
            return stacked_logits(train, self.models, x)
        card = {"what": "logits of shadows", **knowledge.described}
        tensors: list[Tensor | Mapping[str, Tensor]] = [x, numbered(range(len(self.models)), self.models)]
        kept = computed_once(card, tensors, lambda _: {"logits": stacked_logits(train, self.models, x)})
        return kept["logits"]


# -- what is known ----------------------------------------------------------------------------------------------------


def missing(knowledge: Knowledge, task: AttackTask) -> Applicability:
    """Check that everything that shadow models need is known; if not, name what is missing."""
    if not task.challenges:
        return Applicability(False, "no challenge was issued for the victims")
    if knowledge.architecture is None or knowledge.train is None:
        return Applicability(False, "the architecture is not known, so that no shadow model can be trained")
    if knowledge.auxiliary is None or len(knowledge.auxiliary[1]) < 2:
        return Applicability(False, "no auxiliary records are known, on which to train shadow models")
    return Applicability(True)


def core_of(knowledge: Knowledge) -> Trainer:
    """Return the training core, which also evaluates the adversary's own models.

    Raises:
        ValueError: there is none.
    """
    if knowledge.train is None:
        raise ValueError("no training core. Ask `missing` first.")
    return knowledge.train


def auxiliary_of(knowledge: Knowledge) -> tuple[Tensor, Tensor]:
    """Return the auxiliary records (x, y).

    Raises:
        ValueError: there are none.
    """
    if knowledge.auxiliary is None:
        raise ValueError("no auxiliary records. Ask `missing` first.")
    return knowledge.auxiliary


def initial_weights(knowledge: Knowledge) -> Parameters | None:
    """Return the initial weights that the server broadcast; None where each client has its own."""
    if knowledge.initial is None or knowledge.architecture is None:
        return None
    return parameters_of(knowledge.architecture.build(torch.Generator().manual_seed(knowledge.initial)))


def told_counts(view: View, target: str) -> tuple[Tensor | None, int | None]:
    """Return the client's class counts (C,) and its number of records, if it sent them."""
    counts = with_payload(view.select(kind="class_counts", sender=target))
    if counts:
        by_class = view.tensors(counts[-1])["counts"].double().cpu()
        return by_class, int(by_class.sum())
    sizes = with_payload(view.select(kind="sample_count", sender=target))
    if not sizes:
        return None, None
    return None, int(view.tensors(sizes[-1])["n"])


def before_answers(public: Mapping[str, Any], from_upload: bool = False) -> dict[str, Any]:
    """Return the configuration of a client's training before its first answers, or for one upload.

    Args:
        public: the public configuration, `View.hyperparameters`.
        from_upload: whether the client starts from a broadcast model, and so without a warm-up.
    """
    configuration = {**public, "rounds": 1}
    if from_upload:
        configuration["warm_up_steps"] = 0
    elif public.get("order") in _ANSWERS_FIRST:
        configuration["local_steps"] = 0
    return configuration


# -- which records each shadow holds ----------------------------------------------------------------------------------


def drawn(
    view: View, knowledge: Knowledge, challenge: Challenge, count: int, *, paired: bool, seed: int
) -> Study:
    """Draw the records of `count` shadows of a client: as many as it has, of the same classes.

    Args:
        view: for the client's class counts or sample count, if it sent any.
        knowledge: with auxiliary records.
        challenge: the client's candidates.
        count: m.
        paired: whether one candidate of each matched pair is in; otherwise each has its own coin.
        seed: of coins, other records, initial weights and batches.
    """
    x, y = auxiliary_of(knowledge)
    # Drawn apart: of two numbers of shadows the smaller one's are the first of the larger one's.
    inside, coins = _coins(challenge, count, paired, child(seed, "matched", "coins", challenge.target))
    draws = child(seed, "matched", "others", challenge.target)
    # Auxiliary records for the client's non-candidates, by class if its class counts are known.
    counts, total = told_counts(view, challenge.target)
    others = torch.zeros(len(inside), len(y), dtype=torch.bool)
    keys = torch.rand(len(inside), len(y), generator=draws)
    if counts is not None and labels_of(y).one_class:
        expected = torch.bincount(challenge.y, minlength=len(counts))[: len(counts)] / 2
        for label, lacking in enumerate((counts - expected).round().clamp_min(0).long().tolist()):
            of = (y == label).nonzero().squeeze(1)
            chosen = of[keys[:, of].argsort(1)[:, :lacking]]
            others.scatter_(1, chosen, True)
    elif total is not None:
        others.scatter_(1, keys.argsort(1)[:, : max(total - int(inside[0].sum()), 0)], True)
    return Study(
        inside=inside,
        others=others,
        coins=coins,
        pool=(torch.cat([challenge.x, x]), torch.cat([challenge.y, y])),
        # Shadows of two clients have nothing in common: what is read off sums of them would count it as their coins.
        seed=child_seed(seed, "matched", challenge.target),
    )


def drawn_of_stranger(
    view: View, knowledge: Knowledge, client: str, count: int, *, records: int, seed: int
) -> Study:
    """Draw the auxiliary records of plausible shadows of a client without known candidates.

    Args:
        view: for the client's class counts, if it sent any.
        knowledge: with auxiliary records.
        client: the client to imitate.
        count: m.
        records: largest number of records of each shadow, of the classes that the client reported, or else of a random
            half of all classes.
        seed: of classes, records, initial weights and batches.
    """
    x, y = auxiliary_of(knowledge)
    draws = child(seed, "strangers", client)
    counts, _ = told_counts(view, client)
    present = y.unique()
    masks = torch.zeros(count, len(y), dtype=torch.bool)
    for row in masks:
        half = present[torch.randperm(len(present), generator=draws)[: -(-len(present) // 2)]]
        allowed = torch.isin(y, half) if counts is None else counts[y] > 0
        keys = torch.rand(len(y), generator=draws).masked_fill(~allowed, 2)
        row[keys.argsort()[: min(records, max(int(allowed.sum()), 1))]] = True
    return Study(
        inside=torch.zeros(count, 0, dtype=torch.bool),
        others=masks,
        coins=torch.zeros(count, 0),
        pool=(x, y),
        seed=child_seed(seed, "strangers", client),
    )


def _coins(challenge: Challenge, count: int, paired: bool, draws: torch.Generator) -> tuple[Tensor, Tensor]:
    """Draw which candidates are in (m, n), and the coins (m, k); the same number in each model."""
    n = len(challenge.y)
    pairs = pairs_of(challenge) if paired else None
    inside = torch.zeros(count, n, dtype=torch.bool)
    if pairs is not None:
        first = torch.rand(count, len(pairs), generator=draws) < 0.5
        inside.scatter_(1, torch.where(first, pairs[:, 0], pairs[:, 1]), True)
        return inside, first.double() * 2 - 1
    order = torch.rand(count, n, generator=draws).argsort(1)
    inside.scatter_(1, order[:, : max(n // 2, 1)], True)
    return inside, inside.double() * 2 - 1


# -- their models -----------------------------------------------------------------------------------------------------


def trained(
    knowledge: Knowledge,
    study: Study,
    *,
    training: Mapping[str, Any],
    start: Parameters | None = None,
    most_steps: int,
) -> Study:
    """Return the study with models of its shadows, trained as the public configuration says.

    Args:
        knowledge: with the network and a training core.
        study: whose shadows are trained.
        training: the public configuration of the training to simulate.
        start: their initial weights; if omitted, those that the server broadcast, or else each shadow's own.
        most_steps: of one model.
    """
    x, y = study.pool
    masks = study.held
    recipe = recipe_of(training, y, records=int(masks.sum(1).max()), most_steps=most_steps)
    start = initial_weights(knowledge) if start is None else start
    models = shadow_models(knowledge, x, y, masks, seed=study.seed, recipe=recipe, start=start)
    return replace(study, models=models)
