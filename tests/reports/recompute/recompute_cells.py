"""Claims about the cells of a report: settings, controls, and figures of membership and of class shares."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
from sklearn.metrics import roc_auc_score, roc_curve

from . import recompute_statistics as statistics
from .recompute_claims import Claims, Path, leaves
from .recompute_evidence import Array, Coins, Evidence
from .recompute_figures import CellClaims, Interval
from .recompute_images import Reconstruction

QUERIES = {"quick": 20_000}
"""The spec's default budget, by profile (docs/spec.md)."""


def claim_cell(claims: Claims, evidence: Evidence, place: int, cell: Any) -> None:
    """Claims every number of a cell, which is the one at that place in the result."""
    path: Path = ("result", "cells", place)
    _settings(claims, evidence, path, cell)
    if cell["targets"]:
        _GOALS[cell["goal"]](claims, evidence, path, cell).claim()
    _controls(claims, evidence, path, cell)


def _settings(claims: Claims, evidence: Evidence, path: Path, cell: Any) -> None:
    (asked,) = [a for a in evidence.spec["attacks"] if a["name"] == cell["attack"]] or [{"params": {}}]
    for name, value in leaves(evidence.cell_file(cell["id"])["params"]):
        claims.limited((*path, "params", *name), asked["params"].get(name[0], value))
    if cell["queries"]:
        budget = evidence.spec["queries"] or QUERIES[evidence.spec["profile"]]
        claims.equal((*path, "queries", "budget"), budget)
        claims.equal((*path, "queries", "spent"), evidence.asked(cell["id"]))
        claims.equal((*path, "queries", "messages"), evidence.logged(cell["id"]))
    if cell.get("canaries"):
        for name, value in leaves(evidence.cell_file(cell["id"])["canaries"]):
            claims.limited((*path, "canaries", *name), value)


def _controls(claims: Claims, evidence: Evidence, path: Path, cell: Any) -> None:
    if not cell["controls"]:
        return
    kept = evidence.json(f"attacks/controls/{cell['attack']}.json")["controls"]
    for name, value in leaves(kept):
        claims.limited((*path, "controls", *name), value)
    for which, control in kept.items():
        for k, figure in enumerate(control["figures"]):
            if figure["low"] is not None:
                where = (*path, "controls", which, "figures", k)
                claims.limited((*where, "low"), -math.inf, figure["value"])
                claims.limited((*where, "high"), figure["value"], math.inf)


class _Membership(CellClaims):
    """Scores from the vault against who was trained on."""

    def claim(self) -> None:
        self.scores = self.evidence.scores(self.cell["id"], "candidates")
        for k, target in enumerate(self.cell["targets"]):
            scores, coins = self._pooled([target["target"]])
            fpr, tpr, _ = roc_curve(coins.member, scores, drop_intermediate=False)
            for name, points in (("fpr", fpr), ("tpr", tpr)):
                for j, point in enumerate(points):
                    self.claims.equal((*self.path, "targets", k, "roc", name, j), point)
        for path, figures, victims in self.groups():
            self._figures(path, figures, victims)
        for name in (
            "auc",
            "balanced_accuracy",
            "pair_accuracy",
            "tpr_at_10fpr",
            "tpr_at_1fpr",
            "tpr_at_0.1fpr",
        ):
            self.worst(name, highest=True)

    def _pooled(self, victims: Sequence[str]) -> tuple[Array, Coins]:
        coins, offset = [self.evidence.coins(v, "candidates") for v in victims], 0
        numbers = []
        for one in coins:
            numbers.append(one.coin + offset)
            offset += len(one.member) // 2
        scores = np.concatenate([self.scores[v] for v in victims])
        return scores, Coins(np.concatenate([c.member for c in coins]), np.concatenate(numbers))

    def _figures(self, path: Path, figures: Sequence[Any], victims: Sequence[str]) -> None:
        scores, (member, coin) = self._pooled(victims)
        inside, outside = np.empty(len(coin) // 2), np.empty(len(coin) // 2)
        inside[coin[member]], outside[coin[~member]] = scores[member], scores[~member]
        n = len(inside)
        where = self.at(path, figures, "auc")
        auc = float(roc_auc_score(member, scores))
        self.claims.equal((*where, "value"), auc)
        self.claims.equal((*where, "n"), n)
        self.claims.equal((*where, "p"), statistics.auc_p(inside, outside))
        draws = _draws(self.seed("membership", victims), n)
        self._ends(where, auc, n, statistics.bca(statistics.auc_of(inside, outside), draws.of_auc, False))
        self._balanced(self.at(path, figures, "balanced_accuracy"), scores, member, coin, draws)
        where = self.at(path, figures, "pair_accuracy")
        wins, ties = int((inside > outside).sum()), int((inside == outside).sum())
        self.claims.equal((*where, "value"), (wins + ties / 2) / n)
        self.claims.equal((*where, "n"), n)
        low, high = (
            statistics.exact_interval(k, n)[end]
            for end, k in enumerate((wins + ties // 2, wins + -(-ties // 2)))
        )
        self.claims.equal((*where, "low"), low, relative=1e-7)
        self.claims.equal((*where, "high"), high, relative=1e-7)
        self.claims.equal((*where, "confidence"), 0.95)
        for rate in (0.1, 0.01, 0.001):
            self._rate(self.at(path, figures, f"tpr_at_{100 * rate:g}fpr"), scores, member, rate)

    def _ends(self, where: Path, value: float, n: int, ends: Interval) -> None:
        if value in (0.0, 1.0):
            self.exact_ends(where, int(value) * n, n)
        else:
            self.ends(where, ends)

    def _rate(self, where: Path, scores: Array, member: Array, rate: float) -> None:
        """The largest TPR of scikit-learn's curve up to an FPR, with the chance of a random order."""
        members, others = int(member.sum()), int((~member).sum())
        if others * rate < 1 - 1e-9:
            self.claims.equal((*where, "n"), members)
            return
        fpr, tpr, _ = roc_curve(member, scores, drop_intermediate=False)
        at = int(np.flatnonzero(fpr <= rate + 1e-12)[-1])
        found, wrong = round(tpr[at] * members), round(fpr[at] * others)
        self.exact(where, found, members)
        self.claims.equal((*where, "p"), statistics.order_p(found, members, wrong, others))

    def _balanced(self, where: Path, scores: Array, member: Array, coin: Array, draws: _Draws) -> None:
        """Each half of the pairs decided by the other's best threshold; halves are drawn after the AUC's resamples."""
        n = len(coin) // 2
        first = np.isin(coin, draws.half)
        right = np.empty(2 * n, dtype=bool)
        for chosen in (first, ~first):
            cut = _best_cut(scores[chosen], member[chosen])
            right[~chosen] = (scores[~chosen] > cut) == member[~chosen]
        by_pair = np.bincount(coin, right) / 2
        value = float(by_pair.mean())
        self.claims.equal((*where, "value"), value)
        self.claims.equal((*where, "n"), n)
        ends = statistics.bca(statistics.mean_of(by_pair.tolist()), draws.of_accuracy, False)
        self._ends(where, value, n, ends)


class _Draws(NamedTuple):
    """What a membership score draws: the AUC's resamples, half of the pairs, the balanced accuracy's resamples."""

    of_auc: Array
    half: Array
    of_accuracy: Array


@lru_cache
def _draws(seed: int, n: int) -> _Draws:
    draws = np.random.default_rng(seed)
    return _Draws(statistics.drawn(n, draws), draws.permutation(n)[: n // 2], statistics.drawn(n, draws))


def _best_cut(scores: Array, member: Array) -> float:
    """Of all thresholds half-way between scores that are best, the middle one."""
    distinct = np.unique(scores)
    cuts = [-math.inf, *((distinct[:-1] + distinct[1:]) / 2), math.inf]
    worth = [float((scores[member] > c).mean() - (scores[~member] > c).mean()) for c in cuts]
    best = [c for c, w in zip(cuts, worth, strict=True) if w >= max(worth) - 1e-9]
    return float(best[len(best) // 2])


class _Shares(CellClaims):
    """Guessed class shares against the client's, beside the better of two priors."""

    def claim(self) -> None:
        priors: Mapping[str, Array] = {
            "uniform": np.full(10, 0.1),
            "auxiliary": self.evidence.shares("auxiliary"),
        }
        truths = {t: self.evidence.shares(f"{t}/train") for t in self.targets}
        prior = min(
            priors.values(),
            key=lambda p: sum(statistics.divergences(t, p)["label_kl"] for t in truths.values()),
        )
        found: dict[str, list[float]] = {}
        held = self.evidence.cell_file(self.cell["id"])["targets"]
        for k, target in enumerate(self.cell["targets"]):
            path, truth = (*self.path, "targets", k), truths[target["target"]]
            guess = held[k]["shares"]["guess"]
            for c in range(10):
                self.claims.equal((*path, "shares", "truth", c), truth[c])
                self.claims.equal((*path, "shares", "prior", c), prior[c])
                self.claims.limited((*path, "shares", "guess", c), guess[c])
                self.claims.limited((*path, "shares", "guess", c), 0, 1)
            told = statistics.divergences(truth, guess)
            told |= {f"{n}_prior": v for n, v in statistics.divergences(truth, prior).items()}
            for name, value in told.items():
                where = self.at(path, target["figures"], name)
                self.claims.equal((*where, "value"), value, relative=1e-7)
                self.claims.equal((*where, "n"), 1)
                found.setdefault(name, []).append(value)
        for name, values in found.items():
            counts = statistics.drawn(len(values), np.random.default_rng(self.seed(name, self.targets)))
            ends = statistics.bca(statistics.mean_of(values), counts, True)
            self.mean(self.at(self.path, self.cell["figures"], f"{name}_mean"), values, ends, 1e-9)
            if not name.endswith("_prior"):
                self.worst(name, highest=False)


_GOALS = {"reconstruction": Reconstruction, "membership": _Membership, "label-distribution": _Shares}
