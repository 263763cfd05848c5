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

from fdaudit.metrics._arrays import Floats, Integers
from fdaudit.metrics.intervals import exceedance, mean_figure
from fdaudit.metrics.labels import class_pools, draw_like
from fdaudit.metrics.texts.overlap import (
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
    recovered: Sequence[Recovered],
    auxiliary: Integers,
    others: tuple[Integers, Integers],
    generator: np.random.Generator,
) -> Mapping[str, Figure]:
    """Return figures over victims, by name.

    Args:
        recovered: one a victim.
        auxiliary: (a, L) texts of the adversary; there may be none.
        others: texts (b, L) and classes (b,) that no victim trains on and no adversary holds.
        generator: draws other texts, and resamples.

    Returns:
        `token_f1`, `token_precision` and `token_recall` of distinct words, means over victims; `token_f1_prior`, and
        `token_gain` with p. If texts were guessed, `rouge_1`, `rouge_2`, `rouge_l` and `positions_right`, means over
        texts, each with its prior.
    """
    scores, priors = [], []
    for victim in recovered:
        scores.append(bag_scores(victim.words, bag(victim.truth)))
        priors.append(_prior(auxiliary, victim, generator))
    precision, recall, f1 = np.array(scores).mean(0).tolist()
    prior = float(np.mean(priors))
    figures = {}
    for name, value, note in (
        ("token_f1", f1, ""),
        ("token_precision", precision, ""),
        ("token_recall", recall, ""),
        ("token_f1_prior", prior, "of the most frequent auxiliary words"),
    ):
        figures[name] = Figure(name=name, value=value, unit="fraction", n=len(recovered), note=note)
    figures["token_gain"] = _gain(recovered, f1, prior, others, generator)
    return {**figures, **_in_order(recovered, auxiliary, generator)}


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
    # Naming as many words as a batch has costs precision: fewer, frequent ones may score better.
    best, best_score = frozenset[int](), -1.0
    for m in sorted({max(1, usual // 4), max(1, usual // 2), usual}):
        words_named = frozenset(ranked[:m])
        score = float(np.mean([bag_scores(words_named, sample)[2] for sample in samples]))
        if score > best_score:
            best, best_score = words_named, score
    return bag_scores(best, bag(one.truth))[2]


def _gain(
    recovered: Sequence[Recovered],
    f1: float,
    prior: float,
    others: tuple[Integers, Integers],
    generator: np.random.Generator,
) -> Figure:
    """Return F1 over the larger of the prior and the mean of the same guess on other texts, tested by those."""
    draws = [_on_others(r, others, generator) for r in recovered]
    usable = [d for d in draws if d is not None]
    if len(usable) < len(draws):
        why = "there are fewer other texts of the victim's classes than its own, so nothing bounds chance"
        return Figure(name="token_gain", value=f1 - prior, unit="fraction", n=len(recovered), note=why)
    chance = np.mean(usable, axis=0)
    floor = max(prior, float(chance.mean()))
    return Figure(
        name="token_gain",
        value=f1 - floor,
        unit="fraction",
        n=len(recovered),
        note=f"the same guess has an F1 of {chance.mean():.1%} on other texts of the same classes",
        p=exceedance(int((chance >= f1 - 1e-12).sum()), len(chance)),
    )


def _on_others(
    one: Recovered, others: tuple[Integers, Integers], generator: np.random.Generator
) -> Floats | None:
    """Return F1 (draws,) of a guess on as many other texts of the same classes; None if there are too few."""
    x, y = others
    pools = class_pools(one.labels, y)
    if pools is None:
        return None
    top = 1 + max(int(x.max()), int(one.truth.max()), max(one.words, default=0))
    has = np.zeros((len(x), top), dtype=bool)
    np.put_along_axis(has, x, True, axis=1)
    has[:, :2] = False  # padding and the unknown word
    guess = np.zeros(top, dtype=bool)
    guess[list(one.words)] = True
    scores = np.empty(_DRAWS)
    for k in range(_DRAWS):
        batch = has[draw_like(pools, generator)].any(0)
        scores[k] = 2 * (batch & guess).sum() / max(batch.sum() + guess.sum(), 1)
    return scores


def _in_order(
    recovered: Sequence[Recovered], auxiliary: Integers, generator: np.random.Generator
) -> Mapping[str, Figure]:
    """Return the figures of guessed texts, and of as many auxiliary texts in their place."""
    rows = []
    samples = []
    victims = []
    for victim in recovered:
        if victim.texts is not None:
            victims.append((victim.texts, victim.truth))
            rows += _rows(victim.texts, victim.truth)
    if not victims:
        return {}
    figures = {}
    for name, values in zip(_ORDERED, np.array(rows).T, strict=True):
        figures[name] = mean_figure(name, values, generator, unit="fraction")
    if not len(auxiliary):
        return figures
    for _, truth in victims:
        draws = []
        for _ in range(5):
            texts = auxiliary[generator.permutation(len(auxiliary))[: len(truth)]]
            draws.append(_rows(texts, truth))
        samples.append(np.mean(draws, 0))
    prior = np.concatenate(samples)
    for i, name in enumerate(_ORDERED):
        value, note = float(prior[:, i].mean()), "of auxiliary texts"
        figures[f"{name}_prior"] = Figure(
            name=f"{name}_prior", value=value, unit="fraction", n=len(prior), note=note
        )
    return figures


def _rows(guess: Integers, truth: Integers) -> list[list[float]]:
    """Return for each true text with a named word the figures of its guess, in the order of `_ORDERED`."""
    rows = []
    for text, g in zip(truth, matched(guess, truth), strict=True):
        if not (words := spoken(text)):
            continue
        if g < 0:
            rows.append([0.0] * len(_ORDERED))
            continue
        guessed = spoken(guess[g])
        overlaps = [rouge(guessed, words, 1), rouge(guessed, words, 2), rouge_l(guessed, words)]
        rows.append([*overlaps, positions_right(guess[g], text)])
    return rows
