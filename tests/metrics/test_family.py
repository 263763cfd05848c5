"""The family of a run's tests: its level, by simulation and by counting all coins, and what it may not depend on."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import stats

from fdaudit.metrics import FigureKey, Pairs, auc, auc_p_value, holm, reflip, tpr_at_fpr, tpr_p_value
from fdaudit.metrics.family import _at_most

LEVEL = 0.05
Floats = NDArray[np.float64]


def dependent_cells(rng: np.random.Generator, cells: int, victims: int, pairs: int) -> dict[str, Floats]:
    """Return scores (cells, pairs, 2) by victim that know no coin. Cells are correlated, and one has ties."""
    shared = rng.standard_normal((victims, 1, pairs, 2))
    own = rng.standard_normal((victims, cells, pairs, 2))
    mixed = np.sqrt(0.7) * shared + np.sqrt(0.3) * own
    mixed[:, 0] = np.round(mixed[:, 0])
    return {f"client/{k}": mixed[k] for k in range(victims)}


def scored(scores: dict[str, Floats], coins: dict[str, Floats]) -> dict[str, dict[str, Pairs]]:
    """The scores as cells; a coin of 1 says that the second half of its pair is the member."""
    cells = next(iter(scores.values())).shape[0]
    return {
        f"server/{c}": {
            k: Pairs(*(np.take_along_axis(s[c], (coins[k] ^ half)[:, None], 1)[:, 0] for half in (0, 1)))
            for k, s in scores.items()
        }
        for c in range(cells)
    }


def tossed(rng: np.random.Generator, scores: dict[str, Floats]) -> dict[str, Floats]:
    return {k: rng.integers(2, size=s.shape[1]) for k, s in scores.items()}


@pytest.mark.thorough
def test_null_runs_are_flagged_at_the_level_of_the_family() -> None:
    """Six dependent cells a run. Of 600 runs 2.8 to 7.5 % may be flagged, which a level of 5 % misses once in 100."""
    rng, runs = np.random.default_rng(1), 600
    flagged = 0
    for _ in range(runs):
        scores = dependent_cells(rng, cells=6, victims=2, pairs=12)
        found = reflip(scored(scores, tossed(rng, scores)), rng, level=LEVEL, reflips=99)
        flagged += min(found.p.values()) <= LEVEL
    low, high = stats.binom.ppf([0.005, 0.995], runs, LEVEL)
    assert low <= flagged <= high
    assert low > 0.02 * runs


def test_bonferroni_would_waste_most_of_the_level_where_cells_agree() -> None:
    """Copies of one cell cost nothing here: the adjusted p-value is that of one cell."""
    rng = np.random.default_rng(2)
    scores = dependent_cells(rng, cells=1, victims=1, pairs=30)
    once = scored(scores, tossed(rng, scores))["server/0"]
    one = reflip({"a": once}, np.random.default_rng(3), level=LEVEL, reflips=999)
    many = reflip({f"{k}": once for k in range(50)}, np.random.default_rng(3), level=LEVEL, reflips=999)
    assert many.p["7", None, "auc"] == one.p["a", None, "auc"]
    assert len(many.p) == 50 * len(one.p)


def test_adjusted_p_values_are_those_of_counting_all_coins() -> None:
    """Eight coins have 256 outcomes. Each statistic is computed from its definition, and the step-down by hand."""
    rng = np.random.default_rng(4)
    scores = {"client/0": rng.standard_normal((2, 8, 2)).round(1)}
    actual = tossed(rng, scores)
    found = reflip(scored(scores, actual), rng, level=LEVEL, reflips=60_000)
    names = list(found.p)
    assert {name.figure for name in names} == {"auc"}  # 8 pairs cannot resolve a rate

    def statistics(coins: Floats) -> list[float]:
        cells = scored(scores, {"client/0": coins})
        values = []
        for name in names:
            inside, outside = cells[name.cell]["client/0"]
            ranks = stats.rankdata(np.concatenate([inside, outside]))
            ahead = ranks[:8] - ranks[8:]
            values.append(float(ahead.sum() / np.linalg.norm(ahead)))
        return values

    every = np.array([statistics(np.array(c)) for c in product((0, 1), repeat=8)])
    seen = np.array(statistics(actual["client/0"]))
    reached, least = {}, 0.0
    for k in np.argsort(-seen):
        still = seen <= seen[k]
        least = max(least, float((every[:, still].max(1) >= seen[k] - 1e-12).mean()))
        reached[names[k]] = least
    for name in names:
        assert found.p[name] == pytest.approx(reached[name], abs=0.012)


def test_one_figure_alone_has_the_exact_p_value_of_its_auc() -> None:
    rng = np.random.default_rng(5)
    inside, outside = rng.standard_normal(9) + 0.8, rng.standard_normal(9)
    found = reflip({"a": {"client/0": Pairs(inside, outside)}}, rng, level=LEVEL, reflips=40_000)
    exact = auc_p_value(np.concatenate([inside, outside]), np.arange(18) < 9, pair=np.tile(np.arange(9), 2))
    assert found.p["a", "client/0", "auc"] == pytest.approx(exact, abs=0.01)


def test_a_rate_that_leaks_is_found_where_the_auc_does_not_move() -> None:
    """A tenth of the members have the highest scores: the AUC moves by 0.05, the rate at 1 % from 1 to 10 %."""
    rng = np.random.default_rng(6)
    inside, outside = rng.standard_normal(200), rng.standard_normal(200)
    inside[:20] = 10 + rng.random(20)
    found = reflip({"a": {"client/0": Pairs(inside, outside)}}, rng, level=LEVEL, reflips=2000)
    assert found.p["a", None, "tpr_at_1fpr"] < 0.01
    assert found.p["a", None, "tpr_at_1fpr"] < found.p["a", None, "auc"]


@pytest.mark.parametrize("ties", [False, True])
def test_the_statistic_of_a_rate_is_its_p_value(ties: bool) -> None:
    """Rates are ordered as their own p-values are, at rates that are not cut off."""
    from fdaudit.metrics.family import _rates

    rng = np.random.default_rng(7)
    for _ in range(30):
        values = rng.standard_normal((2, 60)).round(1 if ties else 9)
        coins = np.where(rng.random(60) < 0.5, 1, -1).astype(np.int8)
        inside, outside = np.where(coins > 0, values, values[::-1])
        member = np.arange(120) < 60
        rates = list(_rates("a", "client/0", np.arange(60), values.ravel()))
        assert {r.tested.figure for r in rates} == {"tpr_at_10fpr"}
        found = round(60 * tpr_at_fpr(np.concatenate([inside, outside]), member, 0.1))
        threshold = np.sort(outside)[::-1][6]
        wrong = int((outside > threshold).sum())
        expected = stats.norm.isf(min(tpr_p_value(found, 60, wrong, 60), 1 - 1e-12))
        assert rates[0](coins[:, None])[0] == pytest.approx(expected)


def test_increasing_maps_of_scores_and_constant_cells_change_nothing() -> None:
    rng = np.random.default_rng(8)
    scores = dependent_cells(rng, cells=3, victims=2, pairs=15)
    cells = scored(scores, tossed(rng, scores))
    before = reflip(cells, np.random.default_rng(9), level=LEVEL, reflips=499)
    mapped = {
        c: {k: Pairs(np.exp(p.inside), np.exp(p.outside)) for k, p in s.items()} for c, s in cells.items()
    }
    flat = {k: Pairs(np.zeros(15), np.zeros(15)) for k in scores}
    after = reflip(mapped | {"flat": flat}, np.random.default_rng(9), level=LEVEL, reflips=499)
    assert {k: v for k, v in after.p.items() if k.cell != "flat"} == before.p
    assert all(v == 1 for k, v in after.p.items() if k == FigureKey("flat", None, "auc"))


def test_a_leak_does_not_spend_the_level_of_other_cells() -> None:
    """Step-down: below cells that leak beyond doubt the others are held against each other alone."""
    rng = np.random.default_rng(10)
    scores = dependent_cells(rng, cells=3, victims=1, pairs=30)
    quiet = scored(scores, tossed(rng, scores))
    leaks = {f"leak/{k}": {"client/0": Pairs(rng.random(30) + 2, rng.random(30))} for k in range(20)}
    alone = reflip(quiet, np.random.default_rng(11), level=LEVEL, reflips=999)
    beside = reflip(quiet | leaks, np.random.default_rng(11), level=LEVEL, reflips=999)
    assert {k: v for k, v in beside.p.items() if k.cell in quiet} == alone.p
    assert all(beside.p[FigureKey(cell, None, "auc")] == 0.001 for cell in leaks)


def test_an_auc_is_significant_exactly_above_its_floor() -> None:
    """Coins make many AUCs of one set of scores. Those above the floor are significant, and no others."""
    rng = np.random.default_rng(12)
    values = rng.standard_normal((2, 25))
    seen = []
    for shift in range(26):
        coins = np.argsort(values[1] - values[0]) < shift  # more and more pairs have the higher score inside
        inside, outside = np.where(coins, values, values[::-1])
        found = reflip(
            {"a": {"client/0": Pairs(inside, outside)}}, np.random.default_rng(13), level=LEVEL, reflips=999
        )
        value = auc(np.concatenate([inside, outside]), np.arange(50) < 25)
        seen.append((value > found.floors["a", None, "auc"], found.p["a", None, "auc"] <= LEVEL))
    assert all(above == significant for above, significant in seen)
    assert {above for above, _ in seen} == {True, False}


def test_families_without_tests_or_with_few_coins_show_nothing() -> None:
    found = reflip(
        {"a": {"client/0": Pairs(np.arange(3) + 9.0, np.arange(3.0))}}, np.random.default_rng(14), level=LEVEL
    )
    assert min(found.p.values()) > LEVEL
    assert found.floors["a", None, "auc"] >= 1
    found = reflip({}, np.random.default_rng(15), level=LEVEL)
    assert (found.p, found.floors, found.coins) == ({}, {}, 0)
    assert holm([0.01, 0.04, 0.03]) == pytest.approx([0.03, 0.06, 0.06])
    assert holm([]) == []
    assert holm([0.9, 0.8]) == [1.0, 1.0]


@pytest.mark.parametrize(
    ("n", "draws", "allowed"), [(2, 6, 1), (50, 70, 5), (50, 110, 49), (3000, 1300, 300)]
)
def test_few_wrong_candidates_are_as_likely_as_scipy_says(n: int, draws: int, allowed: int) -> None:
    ours = _at_most(n, draws, allowed)
    for wrong in (0, 1, allowed):
        drawn = np.minimum(np.arange(draws + 1), 2 * n)
        theirs = stats.hypergeom.cdf(wrong, 2 * n, n, drawn)
        np.testing.assert_allclose(ours[: 2 * n + 1, wrong], theirs[: 2 * n + 1], rtol=1e-9, atol=1e-300)
