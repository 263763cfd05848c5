"""Identification: whether the reconstruction of a record singles it out in a gallery.

PSNR over a prior measures closeness. It does not show whether an image depicts one record and no other. Here each true
record is compared with a *gallery*: other records of its class that the adversary does not hold. Every record, true or
not, is scored by the guess that resembles it most. A record is *identified* if its score exceeds those of its whole
gallery. The share of identified records is the rank-1 identification rate (Phillips et al., "The FERET evaluation
methodology for face-recognition algorithms", IEEE TPAMI 22 (2000)).

The p-value is that of a randomisation test. If the guesses reveal only classes, the true records are as good as random
records of their classes. So they are drawn again, for all targets jointly, and every statistic is computed as before.
Nothing is matched to the truth: a record's score is the same whether it is true or drawn. The test uses the largest
standardised statistic over several distances, which corrects for their number (max-T; Westfall and Young 1993). Draws
end early if the p-value is large (Besag and Clifford, Biometrika 78 (1991)).

Each distance has two statistics, and an average of the true records raises neither:
  * the *margin* of the guess that resembles a record most over the average of the guesses, summed over the true
    records. A mean image in place of every guess has no margin;
  * the excess of the best of several true records over their mean, for guesses that are of a class, that are single,
    or that show one record more than once. A mean image resembles all of them equally.

Guarantees:
  * P(p <= α) <= α for every α and for all images, if guesses reveal only classes;
  * images that are equal count as one record, and equal scores identify none.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from fdaudit.metrics._arrays import Flags, Floats, Integers
from fdaudit.metrics.galleries.gallery import Gallery, Probe, Scores, score_identities, score_records
from fdaudit.metrics.intervals import exceedance, share_figure, unavailable
from fdaudit.types import Figure

__all__ = ["Identification", "Rank", "identify"]

_CALIBRATION = 400
"""Draws that estimate each statistic and the rank-1 rate by chance; the test does not use them."""

_MOST_DRAWS = 19_999
"""Most draws of the test: p-values down to 1 in 20,000 can pass a correction for hundreds of tests."""

_EXCEEDANCES = 20
"""Number of draws at least as good as the truth after which the p-value is precise enough."""

_AT_ONCE = 512


@dataclass(frozen=True)
class Rank:
    """A record's place in its gallery: 1 is identified, `of` counts the record itself."""

    rank: int
    of: int


@dataclass(frozen=True, kw_only=True, eq=False)
class Identification:
    """The results of the gallery tests.

    Attributes:
        figures: figures over all targets.
        targets: figures of each target.
        ranks: ranks by target and row of the gallery. For guesses of classes, only the best record of each class has
            one.
    """

    figures: tuple[Figure, ...]
    targets: Mapping[str, tuple[Figure, ...]]
    ranks: Mapping[str, Mapping[int, Rank]]


def identify(gallery: Gallery, probes: Sequence[Probe], generator: np.random.Generator) -> Identification:
    """Test whether guesses identify records in their galleries, for each target and for all targets.

    Args:
        gallery: the records. They must not include records that an adversary holds or that no target could hold.
        probes: the targets; no record belongs to two of them.
        generator: draws records in place of the true ones.

    Returns:
        Figures `identification` (rank-1 rate with its p-value, and an interval for independent records),
        `identification_chance` (the rate of drawn records) and `identification_rank` (median rank), each by the
        distance that identifies most, chance included. If the adversary holds records of known identities, also
        `identity_identification` and its chance: does an adversary with other records of a person recognise that
        person? This gallery consists of identities, each scored by the adversary's records of it. The true record is
        never among these. Without a gallery, figures are unavailable with the reason.
    """
    counts = [Counter(gallery.groups[p.rows].tolist()) for p in probes]
    tests = [("identification", _Test(score_records(gallery, probes, counts), probes))]
    if all(p.labels is None for p in probes):
        of_persons = score_identities(gallery, probes, counts)
        if of_persons is not None:
            tests.append(("identity_identification", _Test(of_persons, probes)))
    figures: tuple[Figure, ...] = ()
    targets: dict[str, tuple[Figure, ...]] = {}
    ranks: Mapping[str, Mapping[int, Rank]] = {}
    for name, test in tests:
        whole, by_target, test_ranks = test.run(name, generator.spawn(1)[0])
        figures += whole
        for target, own in by_target.items():
            targets[target] = targets.get(target, ()) + own
        ranks = ranks or test_ranks
    return Identification(figures=figures, targets=targets, ranks=ranks)


# -- the test ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class _Set:
    """True records of one target and class: their places (n,) among the records (N,) of that class in the test."""

    group: int
    start: int
    places: Integers


class _Test:
    """The randomisation test on scores of records, for each target and for all targets."""

    def __init__(self, scores: Scores, probes: Sequence[Probe]) -> None:
        self.probes, self.distances, self.left_out = probes, scores.distances, 0
        self.sets: list[list[_Set]] = [[] for _ in probes]
        self.rows: dict[int, Integers] = {}
        self.kinds: dict[int, Integers] = {}
        self._values: list[dict[int, tuple[Floats, Floats]]] = [{} for _ in probes]
        for group in np.unique(scores.groups).tolist():
            rows = np.flatnonzero(scores.groups == group)
            scored = ~np.isnan(scores.best[:, 0][:, rows])
            rows = rows[scored.any(0)]
            own = []
            for k, probe in enumerate(probes):
                own.append(np.flatnonzero(np.isin(rows, probe.rows) & scored[k].any()))
            total = sum(map(len, own))
            kinds = np.unique(scores.kinds[rows], return_inverse=True)[1].reshape(-1)
            if not total or len(rows) == total or len(np.unique(kinds)) < 2:
                self.left_out += total  # there is no gallery for them
                continue
            self.rows[group], self.kinds[group], start = rows, kinds, 0
            for k, places in enumerate(own):
                if len(places):
                    self.sets[k].append(_Set(group, start, places))
                    self._values[k][group] = (scores.best[k][:, rows], scores.margin[k][:, rows])
                    start += len(places)

    def run(
        self, name: str, generator: np.random.Generator
    ) -> tuple[tuple[Figure, ...], dict[str, tuple[Figure, ...]], dict[str, dict[int, Rank]]]:
        """Return the figures of all targets, each target's own, and the ranks of its records."""
        if not self.rows:
            none = _unavailable(name)
            return none, {p.target: none for p in self.probes}, {p.target: {} for p in self.probes}
        parties = [k for k, sets in enumerate(self.sets) if sets]
        several = [parties]  # all targets together, and each
        if len(parties) > 1:
            several += [[k] for k in parties]
        truth = {}
        for k in parties:
            truth[k] = [s.places[None] for s in self.sets[k]]
        draws = self._draw(_CALIBRATION, generator)
        scale = []
        observed = []
        for who in several:
            scale.append(_Scale.of(self._statistic(who, draws)))
            observed.append(float(scale[-1].largest(self._statistic(who, truth))[0]))
        p = self._p_values(several, scale, observed, generator)
        right, lucky, items = {}, {}, {}
        for k in parties:
            right[k] = self._hits(k, truth[k])[0][:, 0]
            lucky[k], items[k] = self._hits(k, draws[k])
        figures, ranks = [], dict[str, dict[int, Rank]]()
        by_target = dict.fromkeys((p.target for p in self.probes), _unavailable(name))
        for who, value in zip(several, p, strict=True):
            hits = np.sum([right[k] for k in who], axis=0)
            # The distance with most hits; in a tie the last one, which is the mean of all.
            best = len(hits) - 1 - int(hits[::-1].argmax())
            together = list[Rank]()
            for k in who:
                by_row = self._ranks(k, best)
                ranks[self.probes[k].target] = by_row
                together += by_row.values()
            # Chance may choose its distance too, in each draw.
            by_chance = np.sum([lucky[k] for k in who], axis=0).max(0).sum()
            most = np.sum([items[k] for k in who])
            figures.append(self._figures(name, together, value, float(by_chance / max(most, 1)), best))
            if len(who) == 1:
                by_target[self.probes[who[0]].target] = figures[-1]
        return figures[0], by_target, ranks

    def _draw(self, n: int, generator: np.random.Generator) -> dict[int, list[Integers]]:
        """Draw records in place of the true ones `n` times; return places (n, size) by target and set."""
        places: dict[int, list[Integers]] = {}
        for k, sets in enumerate(self.sets):
            if sets:
                places[k] = []
        for group, rows in self.rows.items():
            order = generator.permuted(np.tile(np.arange(len(rows)), (n, 1)), axis=1)
            for k, sets in enumerate(self.sets):
                for one in sets:
                    if one.group == group:
                        places[k].append(order[:, one.start : one.start + len(one.places)])
        return places

    def _statistic(self, who: Sequence[int], draws: Mapping[int, Sequence[Integers]]) -> Floats:
        """Return both statistics by every distance, (2 x distances, n), summed over targets."""
        by_target = []
        for k in who:
            probe, alone = self.probes[k], list[Floats]()
            apart, margins = np.zeros((2, len(self.distances), len(draws[k][0])))
            for one, places in zip(self.sets[k], draws[k], strict=True):
                best, margin = self._values[k][one.group]
                values = best[:, places] - best.mean(1)[:, None, None]
                if probe.labels is None and len(probe.guess) == 1:
                    alone.append(values)
                elif places.shape[1] > 1 or probe.labels is not None:
                    apart += _apart(values)
                if probe.labels is None and len(probe.guess) > 1:
                    margins += margin[:, places].sum(-1)
            if alone:
                apart += _apart(np.concatenate(alone, -1))
            by_target.append(np.concatenate([margins, apart]))
        total: Floats = np.sum(by_target, axis=0)
        return total

    def _p_values(
        self,
        several: Sequence[Sequence[int]],
        scale: Sequence[_Scale],
        observed: Sequence[float],
        generator: np.random.Generator,
    ) -> list[float]:
        """Draw until all p-values are known: each stops at its last exceedance, or at the most draws."""
        reached, count = [0] * len(several), 0
        p: list[float | None] = [None] * len(several)
        while count < _MOST_DRAWS and None in p:
            n = min(_AT_ONCE, _MOST_DRAWS - count)
            draws = self._draw(n, generator)
            for i, who in enumerate(several):
                if p[i] is not None:
                    continue
                largest = scale[i].largest(self._statistic(who, draws))
                as_good = np.flatnonzero(largest >= observed[i] - 1e-9)
                missing = _EXCEEDANCES - reached[i]
                if len(as_good) >= missing:
                    # Besag and Clifford: h / l if the h-th exceedance is draw l.
                    p[i] = _EXCEEDANCES / (count + int(as_good[missing - 1]) + 1)
                reached[i] += len(as_good)
            count += n
        values = []
        for r, value in zip(reached, p, strict=True):
            if value is None:
                value = exceedance(r, _MOST_DRAWS)
            values.append(value)
        return values

    def _hits(self, k: int, draws: Sequence[Integers]) -> tuple[Integers, Integers]:
        """Count the items of a target that each distance identifies (d, n), and the items with a gallery (n,)."""
        hits = np.zeros((len(self.distances), len(draws[0])), dtype=np.int64)
        counted = np.zeros(len(draws[0]), dtype=np.int64)
        for one, places in zip(self.sets[k], draws, strict=True):
            values = self._values[k][one.group][0]
            out = self._same_kind(one.group, places)
            most = np.where(out, -np.inf, values[:, None]).max(-1, keepdims=True)
            mine = values[:, places]
            if self.probes[k].labels is not None:
                mine = mine.max(-1, keepdims=True)
            has_gallery: Flags = ~np.asarray(out.all(1))
            hits += ((mine > most) & has_gallery[:, None]).sum(-1)
            counted += mine.shape[-1] * has_gallery
        return hits, counted

    def _same_kind(self, group: int, places: Integers) -> Flags:
        """Return which records (n, N) of a class are of a kind with one of those at `places` (n, size)."""
        kinds = self.kinds[group]
        present = np.zeros((len(places), int(kinds.max()) + 1), dtype=np.bool_)
        np.put_along_axis(present, kinds[places], True, 1)
        return present[:, kinds]

    def _ranks(self, k: int, distance: int) -> dict[int, Rank]:
        """Return the rank of each true record of a target, or of the best of each class, by its row of the gallery."""
        ranks: dict[int, Rank] = {}
        for one in self.sets[k]:
            values = self._values[k][one.group][0][distance]
            outside = ~self._same_kind(one.group, one.places[None])[0]
            kinds = self.kinds[one.group]
            # Records of one kind count as one: the best of them.
            largest = []
            for kind in np.unique(kinds[outside]):
                largest.append(values[outside & (kinds == kind)].max())
            others = np.array(largest)
            if not len(others):
                continue
            places = one.places
            if self.probes[k].labels is not None:
                places = places[[values[places].argmax()]]
            for place in places.tolist():
                rank = 1 + int((others >= values[place]).sum())
                ranks[int(self.rows[one.group][place])] = Rank(rank, len(others) + 1)
        return ranks

    def _figures(
        self, name: str, ranks: Sequence[Rank], p: float, chance: float, best: int
    ) -> tuple[Figure, ...]:
        if not ranks:
            return _unavailable(name)
        hits, n = sum(r.rank == 1 for r in ranks), len(ranks)
        size = int(np.median([r.of for r in ranks]))
        what = "records"
        if name.startswith("identity"):
            what = "identities"
        elif any(p.labels is not None for p in self.probes):
            what = "classes"
        note = f"{hits} of {n} {what} picked out of galleries of {size} (median), where chance picks out {chance:.2g}"
        note += f"; by {self.distances[best]}, which picks out most of {len(self.distances)} distances"
        if self.left_out:
            note += f"; {self.left_out} records without a gallery left out"
        rate = share_figure(name, hits, n, note=note, p=p)
        by_chance = Figure(name=f"{name}_chance", value=chance, unit="fraction", n=n)
        if name != "identification":
            return rate, by_chance
        median = float(np.median([r.rank for r in ranks]))
        return rate, by_chance, Figure(name=f"{name}_rank", value=median, n=n, note=f"median; of {size}")


def _apart(values: Floats) -> Floats:
    """Return the excess of the best of a set over its mean, (d, n, size) -> (d, n); for one record, its value."""
    if values.shape[-1] == 1:
        return np.asarray(values.max(-1))
    return np.asarray(values.max(-1) - values.mean(-1))


@dataclass(frozen=True, eq=False)
class _Scale:
    """The mean and spread (s, 1) of statistics by chance."""

    mean: Floats
    spread: Floats

    @classmethod
    def of(cls, draws: Floats) -> _Scale:
        return cls(draws.mean(1, keepdims=True), draws.std(1, keepdims=True))

    def largest(self, statistics: Floats) -> Floats:
        """Return the largest standardised statistic (n,) of (s, n)."""
        varies = self.spread > 1e-9
        z = np.where(varies, (statistics - self.mean) / np.where(varies, self.spread, 1.0), -np.inf)
        return np.asarray(z.max(0))


def _unavailable(name: str) -> tuple[Figure, ...]:
    why = "there are no other records of these classes that the adversary does not hold"
    if name != "identification":
        why = "the adversary holds records of fewer than two identities of these classes"
    return tuple(unavailable((name, f"{name}_chance"), why, "fraction"))
