"""Score recovered texts against the texts behind a client's messages, beside a prior and other people's texts.

Guarantees:
  * the prior uses auxiliary texts only: the most frequent words, or texts drawn from them;
  * if a guess does not depend on which texts of their classes a client trained on, `token_gain` has p of at most α with
    a chance of at most α: the true texts are then one draw among those that it is compared with.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain

import numpy as np
from numpy.typing import NDArray

from fdaudit.metrics.intervals import mean_figure
from fdaudit.metrics.texts.overlap import (
    Integers,
    bag,
    bag_scores,
    matched,
    positions_right,
    rouge,
    rouge_l,
    spoken,
)
from fdaudit.types import Figure

__all__ = ["Recovered", "score_texts"]

_DRAWS = 4999
"""Batches of other texts that a guess is compared with."""
_PRIOR_DRAWS = 20
_ORDERED = ("rouge_1", "rouge_2", "rouge_l", "positions_right")


@dataclass(frozen=True, kw_only=True, eq=False)
class Recovered:
    """One victim's texts, and what an attack recovered of them.

    Attributes:
        words: guessed distinct words.
        texts: (m, L) guessed texts; None if the attack guesses no order.
        truth: (n, L) the texts behind the messages.
        labels: (n,) their classes.
    """

    words: frozenset[int]
    texts: Integers | None
    truth: Integers
    labels: Integers


def score_texts(
    found: Sequence[Recovered],
    auxiliary: Integers,
    others: tuple[Integers, Integers],
    generator: np.random.Generator,
) -> Mapping[str, Figure]:
    """Return figures over victims, by name.

    Args:
        found: one a victim.
        auxiliary: (a, L) texts of the adversary; there may be none.
        others: texts (b, L) and classes (b,) that no victim trains on and no adversary holds.
        generator: draws other texts, and resamples.

    Returns:
        `token_f1`, `token_precision` and `token_recall` of distinct words, means over victims; `token_f1_prior`, and
        `token_gain` with p. If texts were guessed, `rouge_1`, `rouge_2`, `rouge_l` and `positions_right`, means over
        texts, each with its prior.
    """
    scores = np.array([bag_scores(r.words, bag(r.truth)) for r in found])
    precision, recall, f1 = scores.mean(0).tolist()
    prior = float(np.mean([_prior(auxiliary, r, generator) for r in found]))
    n = len(found)
    figures: dict[str, Figure] = {
        "token_f1": Figure(name="token_f1", value=f1, unit="fraction", n=n),
        "token_precision": Figure(name="token_precision", value=precision, unit="fraction", n=n),
        "token_recall": Figure(name="token_recall", value=recall, unit="fraction", n=n),
        "token_f1_prior": Figure(
            name="token_f1_prior",
            value=prior,
            unit="fraction",
            n=n,
            note="of the most frequent auxiliary words",
        ),
        "token_gain": _gain(found, f1, prior, others, generator),
    }
    return {**figures, **_in_order(found, auxiliary, generator)}


def _prior(auxiliary: Integers, one: Recovered, generator: np.random.Generator) -> float:
    """Return F1 of the most frequent auxiliary words, as many as suit that number of auxiliary texts best."""
    if not len(auxiliary):
        return 0.0
    bags = [bag(text[None]) for text in auxiliary]
    words, count = np.unique(list(chain.from_iterable(bags)), return_counts=True)
    ranked = words[np.argsort(-count, kind="stable")].tolist()
    size = min(len(one.truth), len(auxiliary))
    samples = []
    for _ in range(_PRIOR_DRAWS):
        rows = generator.permutation(len(bags))[:size]
        samples.append(frozenset[int]().union(*(bags[i] for i in rows)))
    usual = max(1, round(float(np.mean(list(map(len, samples))))))
    sizes = sorted({max(1, usual // 4), max(1, usual // 2), usual})
    best = max(sizes, key=lambda m: np.mean([bag_scores(frozenset(ranked[:m]), d)[2] for d in samples]))
    return bag_scores(frozenset(ranked[:best]), bag(one.truth))[2]


def _gain(
    found: Sequence[Recovered],
    f1: float,
    prior: float,
    others: tuple[Integers, Integers],
    generator: np.random.Generator,
) -> Figure:
    """Return F1 over the larger of the prior and the mean of the same guess on other texts, tested by those."""
    draws = [_on_others(r, others, generator) for r in found]
    usable = [d for d in draws if d is not None]
    if len(usable) < len(draws):
        why = "there are fewer other texts of the victim's classes than its own, so nothing bounds chance"
        return Figure(name="token_gain", value=f1 - prior, unit="fraction", n=len(found), note=why)
    chance = np.mean(usable, axis=0)
    floor = max(prior, float(chance.mean()))
    return Figure(
        name="token_gain",
        value=f1 - floor,
        unit="fraction",
        n=len(found),
        note=f"the same guess has an F1 of {chance.mean():.1%} on other texts of the same classes",
        p=float((1 + (chance >= f1 - 1e-12).sum()) / (1 + len(chance))),
    )


def _on_others(
    one: Recovered, others: tuple[Integers, Integers], generator: np.random.Generator
) -> NDArray[np.float64] | None:
    """Return F1 (draws,) of a guess on as many other texts of the same classes; None if there are too few."""
    x, y = others
    pools = []
    for label, count in zip(*np.unique(one.labels, return_counts=True), strict=True):
        rows = np.flatnonzero(y == label)
        if len(rows) < 2 * count:
            return None
        pools.append((rows, int(count)))
    top = 1 + max(int(x.max()), int(one.truth.max()), max(one.words, default=0))
    has = np.zeros((len(x), top), dtype=bool)
    np.put_along_axis(has, x, True, axis=1)
    has[:, :2] = False  # padding and the unknown word
    guess = np.zeros(top, dtype=bool)
    guess[list(one.words)] = True
    scores = np.empty(_DRAWS)
    for k in range(_DRAWS):
        rows = np.concatenate([generator.choice(pool, count, replace=False) for pool, count in pools])
        batch = has[rows].any(0)
        scores[k] = 2 * (batch & guess).sum() / max(batch.sum() + guess.sum(), 1)
    return scores


def _in_order(
    found: Sequence[Recovered], auxiliary: Integers, generator: np.random.Generator
) -> Mapping[str, Figure]:
    """Return the figures of guessed texts, and of as many auxiliary texts in their place."""
    with_texts = [r for r in found if r.texts is not None]
    if not with_texts:
        return {}
    rows = []
    for recovered in with_texts:
        rows += _rows(recovered.texts, recovered.truth)
    own = np.array(rows)
    figures = {
        name: mean_figure(name, own[:, i], generator, unit="fraction") for i, name in enumerate(_ORDERED)
    }
    if not len(auxiliary):
        return figures
    samples = []
    for r in with_texts:
        draws = []
        for _ in range(5):
            texts = auxiliary[generator.permutation(len(auxiliary))[: len(r.truth)]]
            draws.append(_rows(texts, r.truth))
        samples.append(np.mean(draws, 0))
    prior = np.concatenate(samples)
    for i, name in enumerate(_ORDERED):
        value = float(prior[:, i].mean())
        figures[f"{name}_prior"] = Figure(
            name=f"{name}_prior", value=value, unit="fraction", n=len(prior), note="of auxiliary texts"
        )
    return figures


def _rows(guess: Integers | None, truth: Integers) -> list[list[float]]:
    """Return for each true text with a named word the figures of its guess, in the order of `_ORDERED`."""
    if guess is None:
        return []
    rows = []
    for text, g in zip(truth, matched(guess, truth), strict=True):
        if not (words := spoken(text)):
            continue
        if g < 0:
            rows.append([0.0] * len(_ORDERED))
            continue
        guessed = spoken(guess[g])
        rows.append(
            [
                rouge(guessed, words, 1),
                rouge(guessed, words, 2),
                rouge_l(guessed, words),
                positions_right(guess[g], text),
            ]
        )
    return rows
