"""Coverage against nominal, by exact sums where they exist and by simulation where not."""

import numpy as np
import pytest
from scipy import stats

from fdaudit.errors import UsageError
from fdaudit.metrics import bootstrap, clopper_pearson, intervals, mean_figure


@pytest.mark.parametrize("n", [1, 2, 10, 57])
@pytest.mark.parametrize("confidence", [0.8, 0.95])
def test_clopper_pearson_covers_at_least_nominally(n: int, confidence: float) -> None:
    ends = np.array([clopper_pearson(k, n, confidence)[:2] for k in range(n + 1)])
    p = np.linspace(0, 1, 501)[:, None]
    inside = (ends[:, 0] <= p) & (p <= ends[:, 1])
    coverage = (stats.binom.pmf(np.arange(n + 1), n, p) * inside).sum(1)
    assert coverage.min() >= confidence - 1e-9
    # And is not vacuous: an interval that is never wrong would be [0, 1].
    assert coverage.min() < 1 or n < 3


@pytest.mark.parametrize(("k", "n"), [(0, 5), (5, 5), (3, 10), (970, 1000)])
def test_clopper_pearson_against_scipy(k: int, n: int) -> None:
    reference = stats.binomtest(k, n).proportion_ci(0.95, method="exact")
    assert clopper_pearson(k, n)[:2] == pytest.approx((reference.low, reference.high), abs=1e-10)


@pytest.mark.parametrize(("k", "n", "confidence"), [(1, 0, 0.9), (-1, 3, 0.9), (4, 3, 0.9), (1, 3, 1.0)])
def test_clopper_pearson_refuses_nonsense(k: int, n: int, confidence: float) -> None:
    with pytest.raises(UsageError):
        clopper_pearson(k, n, confidence)


def _mean_of(values: np.ndarray):
    return lambda weights: weights @ values / weights.sum(1)


@pytest.mark.parametrize("method", ["bca", "percentile"])
@pytest.mark.parametrize("draw", ["normal", "exponential"])
def test_bootstrap_covers_about_nominally(method: str, draw: str) -> None:
    rng, runs, hits = np.random.default_rng(11), 400, 0
    for _ in range(runs):
        values = rng.normal(1, 1, 60) if draw == "normal" else rng.exponential(1, 60)
        interval = bootstrap(_mean_of(values), 60, rng, resamples=400, confidence=0.9, method=method)
        assert interval is not None
        hits += interval.low <= 1 <= interval.high
    # Four standard errors of 400 runs around 0.9 are 0.06; skewed data lose a little more at n = 60.
    assert 0.83 <= hits / runs <= 0.96


@pytest.mark.parametrize("n", [6, 12])
def test_means_of_few_values_cover_about_nominally(n: int) -> None:
    rng, runs = np.random.default_rng(12), 400
    figures = [mean_figure("x", rng.normal(1, 1, n), rng, resamples=400, confidence=0.9) for _ in range(runs)]
    # Without the expansion, six values cover 0.8; four standard errors of 400 runs around 0.9 are 0.06.
    assert 0.84 <= np.mean([f.low <= 1 <= f.high for f in figures]) <= 0.96


def test_bca_against_scipy() -> None:
    values = np.random.default_rng(3).exponential(size=50)
    ours = bootstrap(_mean_of(values), 50, np.random.default_rng(1), resamples=20_000)
    theirs = stats.bootstrap(
        (values,), np.mean, n_resamples=20_000, method="BCa", random_state=np.random.default_rng(2)
    ).confidence_interval
    assert ours is not None
    # Two Monte Carlo runs of 20,000: ends agree to a few per cent of the width.
    width = theirs.high - theirs.low
    assert ours[:2] == pytest.approx((theirs.low, theirs.high), abs=0.05 * width)


def test_bca_over_two_strata_against_scipy() -> None:
    rng = np.random.default_rng(4)
    a, b = rng.exponential(size=40), rng.exponential(2, size=25)
    values, strata = np.concatenate([a, b]), np.repeat([0, 1], [40, 25])

    def difference(weights: np.ndarray) -> np.ndarray:
        first, second = weights[:, :40], weights[:, 40:]
        return second @ b / second.sum(1) - first @ a / first.sum(1)

    ours = bootstrap(difference, len(values), np.random.default_rng(1), strata=strata, resamples=20_000)
    theirs = stats.bootstrap(
        (b, a),
        lambda x, y, axis: x.mean(axis) - y.mean(axis),
        n_resamples=20_000,
        method="BCa",
        vectorized=True,
        random_state=np.random.default_rng(2),
    ).confidence_interval
    assert ours is not None
    width = theirs.high - theirs.low
    assert ours[:2] == pytest.approx((theirs.low, theirs.high), abs=0.05 * width)


def test_bca_without_an_acceleration_corrects_the_bias_alone() -> None:
    """How often the first of ten units is drawn again: zero whichever unit is left out."""
    interval = bootstrap(lambda weights: np.maximum(weights[:, 0] - 1, 0), 10, np.random.default_rng(5))
    draws = stats.binom(10, 0.1)
    bias = stats.norm.ppf(0.5 * draws.cdf(1))
    levels = stats.norm.cdf(2 * bias + stats.norm.ppf([0.025, 0.975]))
    assert interval is not None
    assert interval[:2] == tuple(np.maximum(draws.ppf(levels) - 1, 0))
    assert interval.high == 1


def test_resamples_keep_the_size_of_every_stratum() -> None:
    strata = np.array([0, 1, 1, 2, 2, 2])
    seen: list[np.ndarray] = []

    def record(weights: np.ndarray) -> np.ndarray:
        if len(weights) == 200:
            seen.append(weights)
        return weights @ np.arange(6.0)

    bootstrap(record, 6, np.random.default_rng(0), strata=strata, resamples=200)
    for group, size in enumerate([1, 2, 3]):
        assert (seen[0][:, strata == group].sum(1) == size).all()


def test_a_bootstrap_is_its_generators_whatever_the_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    values = np.random.default_rng(0).random(30)
    first, again, other = (bootstrap(_mean_of(values), 30, np.random.default_rng(seed)) for seed in (1, 1, 2))
    assert first == again != other
    whole = bootstrap(_mean_of(values), 30, np.random.default_rng(1))
    monkeypatch.setattr("fdaudit.metrics.intervals._CHUNK", 100)
    assert bootstrap(_mean_of(values), 30, np.random.default_rng(1)) == pytest.approx(whole[:3] + whole[3:])


def test_a_jackknife_of_blocks_gives_the_interval_of_single_units(monkeypatch: pytest.MonkeyPatch) -> None:
    values = np.random.default_rng(0).exponential(size=4000)
    ends = []
    for most in (1000, 4000):
        monkeypatch.setattr(intervals, "_MOST_BLOCKS", most)
        found = bootstrap(_mean_of(values), 4000, np.random.default_rng(1))
        assert found is not None
        ends.append(np.array(found[:2]))
    assert np.abs(ends[0] - ends[1]).max() < 0.02 * (ends[1][1] - ends[1][0])


@pytest.mark.parametrize("sizes", [(1, 1), (1, 5), (2, 3), (1500, 3, 1), (700, 300)])
def test_blocks_of_a_jackknife_part_every_stratum_evenly(sizes: tuple[int, ...]) -> None:
    groups = np.random.default_rng(2).permutation(np.repeat(np.arange(len(sizes)), sizes))
    blocks, strata = intervals._blocks(groups)
    for group, size in enumerate(sizes):
        own = blocks[groups == group]
        counts = np.bincount(own[own >= 0], minlength=len(strata))[strata == group]
        if size == 1:
            assert (own == -1).all()
            assert len(counts) == 0
            continue
        assert counts.sum() == size
        assert counts.max() - counts.min() <= 1
        assert len(counts) == size if sum(sizes) <= 1000 else len(counts) >= 2
        assert set(strata[own]) == {group}
    assert len(strata) <= 1000 + 2 * len(sizes)


def test_no_interval_where_there_is_nothing_to_resample() -> None:
    rng = np.random.default_rng(0)
    assert bootstrap(_mean_of(np.ones(1)), 1, rng) is None
    assert bootstrap(_mean_of(np.full(9, 0.1)), 9, rng) is None
    figure = mean_figure("x", [0.1] * 9, rng)
    assert (figure.value, figure.low, figure.high) == (pytest.approx(0.1), None, None)
    assert "do not vary" in figure.note
    assert "one item" in mean_figure("x", [3.0], rng).note


def test_values_of_one_group_are_resampled_together() -> None:
    rng = np.random.default_rng(5)
    centres = rng.normal(size=20)
    values, groups = np.repeat(centres, 50), np.repeat(np.arange(20), 50)
    grouped = mean_figure("x", values, np.random.default_rng(0), groups=groups)
    reference = mean_figure("x", centres, np.random.default_rng(0))
    assert (grouped.low, grouped.high) == pytest.approx((reference.low, reference.high))
    assert grouped.n == 20
    naive = mean_figure("x", values, np.random.default_rng(0))
    assert naive.high - naive.low < 0.5 * (grouped.high - grouped.low)


def test_refusals() -> None:
    rng = np.random.default_rng(0)
    with pytest.raises(UsageError, match="not finite"):
        mean_figure("x", [1.0, np.inf], rng)
    with pytest.raises(UsageError, match="NaN"):
        mean_figure("x", [1.0, np.nan], rng)
    with pytest.raises(UsageError, match="too few"):
        bootstrap(_mean_of(np.ones(3)), 3, rng, resamples=10)
