"""Claims about reconstructions: the pictures on disk against the digits, beside what auxiliary ones would show."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from . import recompute_statistics as statistics
from .recompute_claims import Path
from .recompute_evidence import Array
from .recompute_figures import CellClaims
from .recompute_identification import claim_identification

GREY = 0.5 / 255
"""How far rounding to 8 bits moves a pixel at most, and so a root-mean-square error."""
SSIM_SLACK = 0.005
"""How far that may move an SSIM: six times what it was found to do on these images."""


class Reconstruction(CellClaims):
    """Images: likeness after matching, the prior's, gains, maxima, labels and the distance between sets."""

    def claim(self) -> None:
        for k, target in enumerate(self.cell["targets"]):
            for j, seq in enumerate(self._messages(target["target"])):
                self.claims.equal((*self.path, "targets", k, "messages", j), seq)
            self._images((*self.path, "targets", k), target)
        for path, figures, victims in self.groups():
            self._figures(path, figures, [t for t in self.cell["targets"] if t["target"] in victims])
        claim_identification(self)

    def _messages(self, victim: str) -> list[int]:
        """Of the attacked round, the model that the victim was sent and the gradient that it answered."""
        of_round = [m for m in self.evidence.messages if m["round"] == self.cell["params"]["round"]]
        sent = [m["seq"] for m in of_round if m["kind"] == "model_parameters" and victim in m["receivers"]]
        return [sent[0], *(m["seq"] for m in of_round if (m["kind"], m["sender"]) == ("gradient", victim))]

    def _rows(self, target: Any) -> Array:
        return self.evidence.behind(target["target"], target["messages"])

    def _images(self, path: Path, target: Any) -> None:
        rows, (held,) = (
            self._rows(target),
            [
                t
                for t in self.evidence.cell_file(self.cell["id"])["targets"]
                if t["target"] == target["target"]
            ],
        )
        prior = dict(zip(range(len(rows)), self._prior("psnr", target["figures"], target), strict=True))
        self._matched(rows, target)
        for j, image in enumerate(target["images"]):
            where, place = (*path, "images", j), self.evidence.place(image["truth"])
            truth, guess = self.evidence.images(rows[place]), self.evidence.picture(image["guess"])
            shown = self.evidence.picture(image["truth"])
            if np.abs(shown - truth).max() > GREY * 1.001:
                self.claims.wrong.append(f"{image['truth']}: is not the record that the vault names")
            error = math.sqrt(float(((guess - truth) ** 2).mean()))
            low, high = (_decibels(e) for e in (error + GREY, max(0.0, error - GREY)))
            self.claims.limited((*where, "psnr"), low - 1e-6, high + 1e-6)
            alike = statistics.ssim(truth, guess)
            self.claims.limited((*where, "ssim"), alike - SSIM_SLACK, min(1 + 1e-9, alike + SSIM_SLACK))
            self.claims.equal((*where, "prior_psnr"), prior[place], relative=1e-6)
            self.claims.equal((*where, "true_label"), self.evidence.labels[rows[place]])
            if image["guessed_label"] is not None:
                self.claims.limited((*where, "guessed_label"), held["images"][j]["guessed_label"])

    def _matched(self, rows: Array, target: Any) -> None:
        """No other pairing of the pictures has a smaller squared error, but for their rounding."""
        images = sorted(target["images"], key=lambda i: self.evidence.place(i["truth"]))
        truth = self.evidence.images(rows)
        guess = np.stack([self.evidence.picture(i["guess"]) for i in images])
        best = guess[statistics.pairing(guess, truth)]
        shown, least = (float(((x - truth) ** 2).mean((1, 2)).sum()) for x in (guess, best))
        if shown > least + 2 * GREY * len(rows):
            self.claims.wrong.append(f"{self.cell['id']}: {target['target']}'s images could be paired better")

    def _prior(self, measure: str, figures: Sequence[Any], target: Any) -> list[float]:
        """The prior baseline's likeness of each record (n,), by the strategy that the figure names."""
        (figure,) = [f for f in figures if f["name"] == f"{measure}_prior"]
        found = re.match(r"strategy (class-mean|grand-mean);", figure["note"])
        if not found:
            self.claims.wrong.append(
                f"{self.cell['id']}: no recomputation of the prior in {figure['note']!r}"
            )
            return [math.nan] * len(self._rows(target))
        rows, held = self._rows(target), self.evidence.rows("auxiliary")
        labels, truth = self.evidence.labels, self.evidence.images(rows)
        known = held if found[1] == "grand-mean" else None
        of = [held[labels[held] == labels[row]] if known is None else held for row in rows]
        guess = np.stack([self.evidence.images(some if len(some) else held).mean(0) for some in of])
        guess = guess[statistics.pairing(guess, truth)]
        return [_likeness(measure, a, b) for a, b in zip(guess, truth, strict=True)]

    def _figures(self, path: Path, figures: Sequence[Any], targets: Sequence[Any]) -> None:
        images = [sorted(t["images"], key=lambda i: self.evidence.place(i["truth"])) for t in targets]
        psnr = [image["psnr"] for of in images for image in of]
        got = {
            "psnr": psnr,
            "ssim": [image["ssim"] for of in images for image in of],
            "mse": [10 ** (-value / 10) for value in psnr],
        }
        prior = {m: [v for t in targets for v in self._prior(m, figures, t)] for m in got}
        draws = self._draws(targets)
        counts = iter(draws.counts)
        for measure, values in got.items():
            # Of an image at the ceiling of 100 dB the error is known to be at most 1e-10 and no better.
            slack = 1e-9 if measure == "mse" else 1e-7 if measure == "ssim" else 1e-9
            sign = -1 if measure == "mse" else 1
            gains = [sign * (a - b) for a, b in zip(values, prior[measure], strict=True)]
            told = ((measure, values, slack), (f"{measure}_prior", prior[measure], 1e-6))
            for name, numbers, room in (*told, (f"{measure}_gain", gains, 1e-6)):
                ends = statistics.bca(statistics.mean_of(numbers), next(counts), True)
                self.mean(self.at(path, figures, name), numbers, ends, room)
        for name, value in (("psnr_max", max(psnr)), ("psnr_prior_max", max(prior["psnr"]))):
            where = self.at(path, figures, name)
            self.claims.equal((*where, "value"), value, relative=1e-6)
            self.claims.equal((*where, "n"), len(psnr))
        if len(targets) > 1:
            means = [(float(np.mean([i["psnr"] for i in of])), len(of)) for of in images]
            where = self.at(path, figures, "psnr_worst_target")
            self.claims.equal((*where, "value"), max(means)[0])
            self.claims.equal((*where, "n"), max(means)[1])
        self._labels(path, figures, images, draws)
        if path == self.path:
            self._distance(figures, targets, images)

    def _draws(self, targets: Sequence[Any]) -> _Draws:
        seed = self.seed("reconstruction", [t["target"] for t in targets])
        known = self.evidence.labels[self.evidence.rows("auxiliary")]
        return _draws(seed, tuple(known.tolist()), tuple(len(self._rows(t)) for t in targets))

    def _labels(self, path: Path, figures: Sequence[Any], images: Sequence[Any], draws: _Draws) -> None:
        pairs = [([i["guessed_label"] for i in of], [i["true_label"] for i in of]) for of in images]
        if any(g is None for guessed, _ in pairs for g in guessed):
            return
        total = sum(len(true) for _, true in pairs)
        self.exact(self.at(path, figures, "labels_right"), sum(_shared(g, t) for g, t in pairs), total)
        luck = [sum(_shared(g, t) for g, (_, t) in zip(drawn, pairs, strict=True)) for drawn in draws.labels]
        where = self.at(path, figures, "labels_right_prior")
        self.claims.equal((*where, "value"), float(np.mean(luck)) / total)
        self.claims.equal((*where, "n"), total)

    def _distance(self, figures: Sequence[Any], targets: Sequence[Any], images: Sequence[Any]) -> None:
        truth = np.concatenate([self.evidence.images(self._rows(t)) for t in targets])
        guess = np.stack([self.evidence.picture(i["guess"]) for of in images for i in of])
        where = self.at(self.path, figures, "Fréchet distance (auxiliary-trained cnn-strided encoder)")
        value = self.evidence.apart(guess, truth)
        self.claims.limited((*where, "value"), 0.99 * value, 1.01 * value, "Fréchet")
        self.claims.equal((*where, "n"), min(len(guess), len(truth)))


class _Draws(NamedTuple):
    """What the figures of some batches draw: resamples of nine means, and 256 times labels for each batch."""

    counts: list[Array]
    labels: list[list[list[int]]]


@lru_cache
def _draws(seed: int, known: tuple[int, ...], sizes: tuple[int, ...]) -> _Draws:
    """In their order; strategies of means draw nothing."""
    draws, labels = np.random.default_rng(seed), np.array(known)
    counts = [statistics.drawn(sum(sizes), draws) for _ in range(9)]
    return _Draws(counts, [[draws.choice(labels, size).tolist() for size in sizes] for _ in range(256)])


def _decibels(error: float) -> float:
    return 100.0 if error <= 1e-5 else -20 * math.log10(error)


def _likeness(measure: str, a: Array, b: Array) -> float:
    if measure == "ssim":
        return statistics.ssim(a, b)
    error = float(((a - b) ** 2).mean())
    return error if measure == "mse" else min(100.0, _decibels(math.sqrt(error)))


def _shared(guessed: Iterable[int], true: Iterable[int]) -> int:
    return sum((Counter(guessed) & Counter(true)).values())
