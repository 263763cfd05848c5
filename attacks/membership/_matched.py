"""Shadow models of one client, with as many records, the same classes, and one candidate of each pair."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from fdaudit.rng import child, child_seed
from fdaudit.tasks import labels_of
from fdaudit.training.trainer import parameters_of

from .._shadows import recipe_of, shadow_models
from .._uploads import with_payload
from ._coins import pairs_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from fdaudit.adversary.knowledge import Knowledge
    from fdaudit.adversary.view import View
    from fdaudit.training.trainer import Parameters
    from fdaudit.types import Challenge

__all__ = [
    "Matched",
    "before_answers",
    "drawn",
    "drawn_of_stranger",
    "initial_weights",
    "matched",
    "pool_of",
    "strangers",
    "told_counts",
]

_ANSWERS_FIRST = ("predict-first", "digest-revisit")
"""Orders in which a client's first answers follow its warm-up."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Matched:
    """Shadow models of one client.

    Attributes:
        models: m of them.
        inside: (m, n) the candidates that each was trained on.
        others: (m, a) the auxiliary records that each was trained on.
        coins: (m, k) ±1: whether the first candidate of each pair is in; without pairs, whether each candidate is.
        pool: (x, y) the candidates, and the auxiliary records after them.
    """

    models: list[Parameters]
    inside: Tensor
    others: Tensor
    coins: Tensor
    pool: tuple[Tensor, Tensor]

    @property
    def held(self) -> Tensor:
        """Return the records of the pool (m, n + a) that each was trained on."""
        return torch.cat([self.inside, self.others], 1)


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


def matched(
    view: View,
    knowledge: Knowledge,
    challenge: Challenge,
    count: int,
    *,
    training: Mapping[str, Any],
    start: Parameters | None = None,
    paired: bool,
    most_steps: int,
    seed: int,
) -> Matched:
    """Train shadow models of a client from the view and the public configuration.

    Their other records are auxiliary ones.

    Args:
        view: for the client's class counts or sample count, if it sent any.
        knowledge: with auxiliary records, the network, a training core.
        challenge: the client's candidates.
        count: m.
        training: the public configuration of the training to simulate.
        start: their initial weights; if omitted, those that the server broadcast, or else each shadow's own.
        paired: whether one candidate of each matched pair is in; otherwise each has its own coin.
        most_steps: of one model.
        seed: of coins, other records and batches.
    """
    if knowledge.auxiliary is None or knowledge.architecture is None or knowledge.train is None:
        raise ValueError("matched: no auxiliary records, network or training core. Ask `missing` first.")
    inside, others, coins = drawn(view, knowledge, challenge, count, paired=paired, seed=seed)
    x, y = pool_of(challenge, knowledge.auxiliary)
    masks = torch.cat([inside, others], 1)
    recipe = recipe_of(training, y, records=int(masks.sum(1).max()), most_steps=most_steps)
    start = initial_weights(knowledge) if start is None else start
    # Shadows of two clients have nothing in common: what is read off sums of them would count it as their coins.
    own = child_seed(seed, "matched", challenge.target)
    models = shadow_models(knowledge, x, y, masks, seed=own, recipe=recipe, start=start)
    return Matched(models=models, inside=inside, others=others, coins=coins, pool=(x, y))


def drawn(
    view: View, knowledge: Knowledge, challenge: Challenge, count: int, *, paired: bool, seed: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Draw the records of `count` shadows of a client.

    Args:
        view: for the client's class counts or sample count, if it sent any.
        knowledge: with auxiliary records.
        challenge: the client's candidates.
        count: m.
        paired: whether one candidate of each matched pair is in; otherwise each has its own coin.
        seed: of coins and other records.

    Returns:
        The candidates (m, n) and the auxiliary records (m, a) of each shadow, bool, and the coins (m, k) ±1.
    """
    if knowledge.auxiliary is None:
        raise ValueError("drawn: no auxiliary records. Ask `missing` first.")
    # Drawn apart: of two numbers of shadows the smaller one's are the first of the larger one's.
    inside, coins = _coins(challenge, count, paired, child(seed, "matched", "coins", challenge.target))
    draws = child(seed, "matched", "others", challenge.target)
    others = _others(view, knowledge.auxiliary[1], challenge, int(inside[0].sum()), inside, draws)
    return inside, others, coins


def strangers(
    view: View,
    knowledge: Knowledge,
    client: str,
    count: int,
    *,
    records: int,
    training: Mapping[str, Any],
    start: Parameters | None = None,
    most_steps: int,
    seed: int,
) -> Matched:
    """Return `count` plausible models of a client without known candidates, trained on auxiliary records.

    Each holds records of the classes that the client reported, or else of a random half of all classes.

    Args:
        view: for the client's class counts, if it sent any.
        knowledge: with auxiliary records, the network, a training core.
        client: the client to imitate.
        count: number of models.
        records: largest number of records of each model.
        training: the public configuration of the training to simulate.
        start: their initial weights; if omitted, as of `matched`.
        most_steps: of one model.
        seed: of classes, records and batches.
    """
    if knowledge.auxiliary is None:
        raise ValueError("strangers: no auxiliary records. Ask `missing` first.")
    x, y = knowledge.auxiliary
    inside = drawn_of_stranger(view, knowledge, client, count, records=records, seed=seed)
    recipe = recipe_of(training, y, records=int(inside.sum(1).max()), most_steps=most_steps)
    start = initial_weights(knowledge) if start is None else start
    own = child_seed(seed, "strangers", client)
    models = shadow_models(knowledge, x, y, inside, seed=own, recipe=recipe, start=start)
    nobody = torch.zeros(count, 0, dtype=torch.bool)
    return Matched(models=models, inside=nobody, others=inside, coins=torch.zeros(count, 0), pool=(x, y))


def drawn_of_stranger(
    view: View, knowledge: Knowledge, client: str, count: int, *, records: int, seed: int
) -> Tensor:
    """Draw the auxiliary records (count, a), bool, of plausible shadows of a client without known candidates.

    Each holds at most `records` records of the classes that the client reported, or else of a random half of all
    classes.
    """
    if knowledge.auxiliary is None:
        raise ValueError("drawn_of_stranger: no auxiliary records. Ask `missing` first.")
    _, y = knowledge.auxiliary
    draws = child(seed, "strangers", client)
    counts, _ = told_counts(view, client)
    present = y.unique()
    inside = torch.zeros(count, len(y), dtype=torch.bool)
    for row in inside:
        half = present[torch.randperm(len(present), generator=draws)[: -(-len(present) // 2)]]
        allowed = torch.isin(y, half) if counts is None else counts[y] > 0
        keys = torch.rand(len(y), generator=draws).masked_fill(~allowed, 2)
        row[keys.argsort()[: min(records, max(int(allowed.sum()), 1))]] = True
    return inside


def pool_of(challenge: Challenge, auxiliary: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
    """Return the records and labels of a pool: the candidates, and the auxiliary records after them."""
    x, y = auxiliary
    return torch.cat([challenge.x, x]), torch.cat([challenge.y, y])


def initial_weights(knowledge: Knowledge) -> Parameters | None:
    """Return the initial weights that the server broadcast; None where each client has its own."""
    if knowledge.initial is None or knowledge.architecture is None:
        return None
    return parameters_of(knowledge.architecture.build(torch.Generator().manual_seed(knowledge.initial)))


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


def _others(
    view: View, y: Tensor, challenge: Challenge, members: int, inside: Tensor, draws: torch.Generator
) -> Tensor:
    """Draw auxiliary records (m, a) for the client's non-candidates, by class if its class counts are known."""
    counts, total = told_counts(view, challenge.target)
    masks = torch.zeros(len(inside), len(y), dtype=torch.bool)
    keys = torch.rand(len(inside), len(y), generator=draws)
    if counts is not None and labels_of(y).one_class:
        expected = torch.bincount(challenge.y, minlength=len(counts))[: len(counts)] / 2
        for label, missing in enumerate((counts - expected).round().clamp_min(0).long().tolist()):
            of = (y == label).nonzero().squeeze(1)
            chosen = of[keys[:, of].argsort(1)[:, :missing]]
            masks.scatter_(1, chosen, True)
    elif total is not None:
        masks.scatter_(1, keys.argsort(1)[:, : max(total - members, 0)], True)
    return masks


def told_counts(view: View, target: str) -> tuple[Tensor | None, int | None]:
    """Return the client's class counts (C,) and its number of records, if it sent them."""
    counts = with_payload(view.select(kind="class_counts", sender=target))
    if counts:
        by_class = view.tensors(counts[-1])["counts"].double().cpu()
        return by_class, int(by_class.sum())
    sizes = with_payload(view.select(kind="sample_count", sender=target))
    return None, int(view.tensors(sizes[-1])["n"]) if sizes else None
