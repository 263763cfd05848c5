"""Refuse guesses that are not about their target, or are more than its messages can show."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import torch

from fdaudit.transcript.messages import role
from fdaudit.types import Guess, LabelDistribution, Membership, Reconstruction, TextReconstruction

if TYPE_CHECKING:
    from fdaudit.adversary.view import View
    from fdaudit.scoring.ground_truth import Truth

__all__ = ["check_guesses", "refuse_too_many"]

_SUM_TOLERANCE = 1e-4
"""Tolerance for guessed shares' sum of 1: float32 rounding over thousands of classes."""
_MOST_IMAGES = 1000
"""Largest number of images a victim, because they are matched with its records one to one."""


def check_guesses(
    guesses: Sequence[Guess],
    victims: Sequence[str],
    candidates: Mapping[str, int],
    view: View,
    classes: int,
) -> None:
    """Refuse guesses that do not match their target or challenge.

    Membership needs one finite score for every candidate of every challenged victim. Class shares must be a
    distribution over the classes. A reconstruction is about messages or about classes. It must name a message of its
    target that is in the view, and none of another client. A class may occur only once. A victim has at most one guess.

    Args:
        guesses: what the attack returned.
        victims: the attacked parties.
        candidates: number of candidates, by challenged victim.
        view: what the attack was given.
        classes: number of classes.

    Raises:
        ValueError: a guess breaks one of these rules.
    """
    answered = sorted(g.target for g in guesses)
    if isinstance(guesses[0], LabelDistribution) and answered != sorted(victims):
        raise ValueError(f"the attack answered for {answered}; the victims are {sorted(victims)}")
    if isinstance(guesses[0], Membership) and answered != sorted(candidates):
        raise ValueError(f"the attack answered for {answered}; challenged were {sorted(candidates)}")
    senders = {m.seq: m.sender for m in view.messages}
    for guess in guesses:
        if type(guess) is not type(guesses[0]):
            raise ValueError("the attack returned guesses of more than one kind")
        if guess.target not in victims:
            raise ValueError(f"the attack answered for {guess.target}, who is no victim")
        if isinstance(guess, Membership):
            n = candidates[guess.target]
            if guess.scores.shape != (n,) or not bool(torch.isfinite(guess.scores).all()):
                got = tuple(guess.scores.shape)
                raise ValueError(
                    f"{guess.target}: needs one finite score for each of {n} candidates, got {got}"
                )
            made = guess.generated
            if made is not None and (made.ndim != 4 or not len(made) or not bool(torch.isfinite(made).all())):
                got = tuple(made.shape)
                raise ValueError(f"{guess.target}: needs finite generated images (k, c, h, w), got {got}")
        elif isinstance(guess, LabelDistribution):
            _check_shares(guess, classes)
        elif isinstance(guess, Reconstruction) and guess.by_class:
            first = guesses[0]
            if not (isinstance(first, Reconstruction) and first.by_class):
                raise ValueError("the attack returned reconstructions of messages and of classes")
            if guess.labels is None or guess.labels.shape != (len(guess.images),) or not len(guess.images):
                raise ValueError(f"{guess.target}: needs one class for each of {len(guess.images)} images")
            if len(guess.labels.unique()) < len(guess.labels):
                raise ValueError(
                    f"{guess.target}: shows a class more than once. Give one image a class at most"
                )
        elif isinstance(guess, Reconstruction):
            first = guesses[0]
            if isinstance(first, Reconstruction) and first.by_class:
                raise ValueError("the attack returned reconstructions of messages and of classes")
            _check_senders(guess.target, guess.messages, senders)
        elif isinstance(guess, TextReconstruction):
            _check_senders(guess.target, guess.messages, senders)
            _check_texts(guess)
    if isinstance(guesses[0], Reconstruction | TextReconstruction) and len(set(answered)) < len(answered):
        raise ValueError(f"the attack answered for {answered}: give one reconstruction a victim")


def _check_senders(target: str, messages: Sequence[int], senders: Mapping[int, str]) -> None:
    sent_by = {senders.get(seq, "nobody in this view") for seq in messages}
    others = sorted(s for s in sent_by - {target} if role(s) != "server")
    if others or target not in sent_by:
        named = others or "the server alone"
        raise ValueError(f"{target}: its reconstruction names messages of {named}, not its own")


def _check_texts(guess: TextReconstruction) -> None:
    words, texts = guess.words, guess.texts
    if words.ndim != 1 or bool((words < 0).any()) or len(words.unique()) < len(words):
        raise ValueError(f"{guess.target}: needs distinct numbers of words, got {tuple(words.shape)}")
    if texts is not None and (texts.ndim != 2 or bool((texts < 0).any())):
        raise ValueError(f"{guess.target}: needs texts (n, L) of token numbers, got {tuple(texts.shape)}")


def _check_shares(guess: LabelDistribution, classes: int) -> None:
    shares = guess.distribution
    if shares.shape != (classes,) or not bool(torch.isfinite(shares).all()):
        got = tuple(shares.shape)
        raise ValueError(f"{guess.target}: needs one finite share for each of {classes} classes, got {got}")
    if bool((shares < 0).any()) or abs(float(shares.double().sum()) - 1) > _SUM_TOLERANCE:
        raise ValueError(f"{guess.target}: its shares are negative or do not sum to 1")


def refuse_too_many(guesses: Sequence[Guess], view: View, truth: Truth) -> None:
    """Refuse more reconstructed images than records behind the messages that the guess names.

    An adversary may not know this number, so it may always guess one batch. If secret coins draw the records of a
    step, it may guess as many as the victim has.

    Raises:
        ValueError: a guess has more.
    """
    if "uses" in truth.plan.lacks:  # whoever holds the records counts them
        return
    batch = int(view.hyperparameters.get("batch_size") or 1)
    for guess in guesses:
        shown = _shown(guess)
        if not isinstance(guess, Reconstruction | TextReconstruction) or not shown:
            continue
        behind = len(truth.behind(guess.target, guess.messages)[0])
        secret = len(truth.plan.records(guess.target)[1]) if truth.plan.training else 0
        most = min(max(behind, batch, secret), _MOST_IMAGES)
        if shown > most:
            what = "images" if isinstance(guess, Reconstruction) else "texts"
            told = f"{guess.target}: has {shown} {what}, more than the {most} records"
            raise ValueError(f"{told} that its messages can come from. Give the {most} likeliest, or fewer")


def _shown(guess: Guess) -> int:
    """Return how many records a guess shows that it names messages for."""
    if isinstance(guess, TextReconstruction):
        return 0 if guess.texts is None else len(guess.texts)
    return len(guess.images) if isinstance(guess, Reconstruction) and not guess.by_class else 0
