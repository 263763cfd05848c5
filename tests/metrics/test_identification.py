"""Identification fires where a person would recognise, keeps its level on noise, and ignores averages."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from scipy.stats import binom

from fdaudit.metrics import Gallery, Identification, Probe, identify, match, psnr
from fdaudit.metrics.galleries.gallery import score_records
from fdaudit.metrics.galleries.resemblance import resemblances
from fdaudit.types import Figure

from .face_cases import blurred, faces


def rng(*seed: int) -> np.random.Generator:
    return np.random.default_rng(seed)


def figures(found: Identification) -> dict[str, Figure]:
    return {f.name: f for f in found.figures}


def test_forty_faces_are_identified_where_the_gain_over_another_photograph_is_negative() -> None:
    x, who = faces(rng(0), people=40, photographs=10)
    rows = rng(1).permutation(len(x))[:40]
    guess = blurred(x[rows], 0.15, rng(2))[torch.from_numpy(rng(3).permutation(40))]
    shown = float(psnr(guess[match(guess, x[rows])], x[rows]).mean())
    others = [next(q for q in np.flatnonzero(who == who[r]) if q != r) for r in rows]
    assert 14 < shown < 17
    assert shown < float(psnr(x[others], x[rows]).mean()) - 2
    found = figures(identify(Gallery(x, who), [Probe("client/0", guess, rows)], rng(4)))
    rate, chance = found["identification"], found["identification_chance"]
    assert rate.value is not None
    assert rate.value >= 0.95
    assert chance.value is not None
    assert (
        0.1 < chance.value < 0.3
    )  # the luckiest distance's, of one photograph among the seven to ten that are no true ones
    assert rate.p is not None
    assert rate.p < 1e-4
    assert found["identification_rank"].value == 1.0


def test_power_falls_with_noise() -> None:
    x, who = faces(rng(0), people=40, photographs=10)
    rows = rng(1).permutation(len(x))[:40]
    rates = []
    for noise in (0.1, 0.4, 0.8, 3.0):
        guess = blurred(x[rows], noise, rng(2))
        found = figures(identify(Gallery(x, who), [Probe("client/0", guess, rows)], rng(4)))
        rates.append(found["identification"].value or 0.0)
    assert rates[0] > 0.9
    assert rates[1] > 0.4
    assert rates[3] < 0.4
    assert rates == sorted(rates, reverse=True)


# -- what must not fire -----------------------------------------------------------------------------------------

Null = Callable[[torch.Tensor, torch.Tensor, torch.Tensor, np.random.Generator], torch.Tensor]
"""Guesses from the true records, the class of each, records that the adversary holds of each class, and draws."""


def noise(
    true: torch.Tensor, of: torch.Tensor, held: torch.Tensor, draws: np.random.Generator
) -> torch.Tensor:
    return torch.from_numpy(draws.uniform(size=tuple(true.shape))).float()


def held_images(
    true: torch.Tensor, of: torch.Tensor, held: torch.Tensor, draws: np.random.Generator
) -> torch.Tensor:
    return held[of, torch.from_numpy(draws.integers(held.shape[1], size=len(of)))]


def held_means(
    true: torch.Tensor, of: torch.Tensor, held: torch.Tensor, draws: np.random.Generator
) -> torch.Tensor:
    return (held[of].mean(1) + 0.05 * torch.from_numpy(draws.standard_normal(true.shape)).float()).clamp(0, 1)


def batch_mean(
    true: torch.Tensor, of: torch.Tensor, held: torch.Tensor, draws: np.random.Generator
) -> torch.Tensor:
    return true.mean(0, keepdim=True).repeat(len(true), 1, 1, 1)


def noisy_batch_mean(
    true: torch.Tensor, of: torch.Tensor, held: torch.Tensor, draws: np.random.Generator
) -> torch.Tensor:
    spread = 0.05 * torch.from_numpy(draws.standard_normal(true.shape)).float()
    return (true.mean(0, keepdim=True) + spread).clamp(0, 1)


def class_means(
    true: torch.Tensor, of: torch.Tensor, held: torch.Tensor, draws: np.random.Generator
) -> torch.Tensor:
    return torch.stack([true[of == c].mean(0) for c in of])


def single_mean(
    true: torch.Tensor, of: torch.Tensor, held: torch.Tensor, draws: np.random.Generator
) -> torch.Tensor:
    return true.mean(0, keepdim=True)


def p_of_null(make: Null, draws: np.random.Generator, *, by_class: bool = False) -> float:
    """The p-value of one gallery test of two classes, 60 records each and 8 of them true."""
    x, _ = faces(draws, people=24, photographs=6, height=10, width=9)
    of = np.arange(len(x)) % 2
    order = draws.permutation(len(x))
    known, kept = order[:24], order[24:]
    least = min(int((of[known] == c).sum()) for c in (0, 1))
    held = torch.stack([x[known[of[known] == c][:least]] for c in (0, 1)])
    rows = np.concatenate([np.flatnonzero(of[kept] == c)[:8] for c in (0, 1)])
    classes = torch.from_numpy(of[kept][rows])
    guess = make(x[kept][rows], classes, held, draws)
    labels = None
    if by_class:
        guess, labels = guess[[0, 8]], np.array([0, 1])
    found = figures(identify(Gallery(x[kept], of[kept]), [Probe("client/0", guess, rows, labels)], draws))
    p = found["identification"].p
    assert p is not None
    return p


def too_many(p: list[float], level: float) -> bool:
    """Whether more p-values are at most a level than chance brings about once in a thousand trials."""
    return bool(binom.sf(sum(value <= level for value in p) - 1, len(p), level) < 1e-3)


@pytest.mark.thorough
def test_two_hundred_galleries_of_noise_keep_their_level() -> None:
    p = [p_of_null(noise, rng(5, k)) for k in range(200)]
    assert sum(value <= 0.05 for value in p) <= 10
    assert not too_many(p, 0.2)
    assert not too_many([1 - value for value in p], 0.5)  # nor is the test asleep


@pytest.mark.thorough
@pytest.mark.parametrize(
    "make", [held_images, held_means, batch_mean, noisy_batch_mean, class_means, single_mean]
)
def test_other_images_and_averages_are_no_identification(make: Null) -> None:
    p = [p_of_null(make, rng(6, k)) for k in range(40)]
    assert not too_many(p, 0.05)
    assert not too_many(p, 0.2)


@pytest.mark.thorough
@pytest.mark.parametrize("make", [held_images, class_means])
def test_of_classes_other_images_and_averages_are_no_identification(make: Null) -> None:
    p = [p_of_null(make, rng(7, k), by_class=True) for k in range(40)]
    assert not too_many(p, 0.05)


# -- laws -------------------------------------------------------------------------------------------------------


def test_p_is_the_share_of_ways_to_draw_the_records_that_do_as_well() -> None:
    x, _ = faces(rng(8), people=8, photographs=1)
    rows = np.array([1, 4, 6])
    exact = 1 / 56  # three of eight records
    p = [
        figures(identify(Gallery(x, np.zeros(8, np.int64)), [Probe("c", x[rows], rows)], rng(9, k)))
        for k in range(12)
    ]
    assert np.mean([f["identification"].p for f in p]) == pytest.approx(exact, rel=0.3)


def test_one_record_or_none_besides_is_no_identification() -> None:
    x, _ = faces(rng(8), people=6, photographs=1)
    found = figures(identify(Gallery(x, np.zeros(6, np.int64)), [Probe("c", x[:1], np.array([0]))], rng(9)))
    assert found["identification"].value == 1.0
    assert found["identification"].p == pytest.approx(1 / 6, rel=0.5)
    x, _ = faces(rng(24), people=4, photographs=1)
    found = figures(identify(Gallery(x, np.arange(4)), [Probe("c", x, np.arange(4))], rng(25)))
    assert found["identification"].value is None
    assert "no other records" in found["identification"].unavailable


def test_a_duplicate_in_the_gallery_is_no_wrong_answer() -> None:
    x, _ = faces(rng(10), people=30, photographs=1)
    twice, rows = torch.cat([x, x]), np.arange(10)
    found = identify(Gallery(twice, np.zeros(60, np.int64)), [Probe("c", x[rows], rows)], rng(11))
    assert figures(found)["identification"].value == 1.0
    assert {rank.rank for rank in found.ranks["c"].values()} == {1}
    assert found.ranks["c"][0].of == 21  # ten others are true, and copies count once


def test_contrast_changes_no_correlation_and_without_it_nobody_is_identified() -> None:
    x, _ = faces(rng(12), people=30, photographs=1)
    for grey in (torch.zeros(5, 1, 28, 23), torch.full((5, 1, 28, 23), 0.5)):
        found = figures(
            identify(Gallery(x, np.zeros(30, np.int64)), [Probe("c", grey, np.arange(5))], rng(13))
        )
        assert found["identification"].p is not None
        assert found["identification"].p > 0.05
    x, _ = faces(rng(14), people=12, photographs=1)
    faint = resemblances(0.2 * x[:4] + 0.6, x)
    for name, values in resemblances(x[:4], x).items():
        if name != "pixels":
            np.testing.assert_allclose(values, faint[name], atol=1e-5)


def test_images_on_their_side_resemble_each_other_as_upright() -> None:
    x, _ = faces(rng(24), people=12, photographs=1)
    guess = blurred(x[:4], 0.05, rng(25))
    on_side = resemblances(guess.mT, x.mT)
    for name, values in resemblances(guess, x).items():
        np.testing.assert_allclose(on_side[name], values, atol=1e-6, err_msg=name)


def test_a_margin_is_what_the_best_guess_has_above_the_guesses_mean() -> None:
    x, _ = faces(rng(26), people=6, photographs=1)
    gallery, rows = Gallery(x, np.zeros(6, np.int64)), np.arange(2)
    scores = score_records(gallery, [Probe("c", x[:2], rows)], [{0: 2}])
    alike = resemblances(x[:2], x)
    for name, margin in zip(scores.distances, scores.margin[0], strict=True):
        np.testing.assert_allclose(margin, alike[name].max(0) - alike[name].mean(0), atol=1e-12)
    mean = x.mean(0, keepdim=True).expand(2, -1, -1, -1)
    averages = score_records(gallery, [Probe("c", mean, rows)], [{0: 2}])
    np.testing.assert_allclose(averages.margin, 0, atol=1e-12)


def test_guesses_of_classes_that_show_one_record_are_identified() -> None:
    x, who = faces(rng(15), people=12, photographs=20)
    own = np.concatenate([np.flatnonzero(who == c)[:5] for c in range(12)])
    probe = Probe("c", blurred(x[own[::5]], 0.05, rng(16)), own, np.arange(12))
    found = figures(identify(Gallery(x, who), [probe], rng(17)))
    assert found["identification"].value == 1.0
    assert found["identification"].n == 12
    assert found["identification"].p is not None
    assert found["identification"].p < 1e-3


def test_a_person_is_recognised_by_other_photographs() -> None:
    x, who = faces(rng(18), people=40, photographs=10)
    of = who % 2
    known = np.arange(0, 400, 10)
    kept = np.setdiff1d(np.arange(400), known)
    rows = rng(19).permutation(len(kept))[:12]
    held = Gallery(x[known], of[known], who[known])
    gallery = Gallery(x[kept], of[kept], who[kept], held)
    guess = blurred(x[kept][rows], 0.1, rng(20))
    rate = figures(identify(gallery, [Probe("c", guess, rows)], rng(21)))["identity_identification"]
    assert rate.value is not None
    assert rate.value > 0.7
    assert rate.p is not None
    assert rate.p < 0.01
    blind = noise(x[rows], torch.zeros(12), x[:1], rng(22))
    rate = figures(identify(gallery, [Probe("c", blind, rows)], rng(23)))["identity_identification"]
    assert rate.p is not None
    assert rate.p > 0.05


def test_targets_are_tested_apart_and_together() -> None:
    x, who = faces(rng(26), people=10, photographs=12)
    order = rng(27).permutation(len(x))
    shown, hidden = order[:10], order[10:20]
    probes = [
        Probe("client/0", blurred(x[shown], 0.05, rng(28)), shown),
        Probe("client/1", noise(x[hidden], torch.zeros(10), x[:1], rng(29)), hidden),
    ]
    found = identify(Gallery(x, who), probes, rng(30))
    assert figures(found)["identification"].n == 20
    one, two = ({f.name: f for f in found.targets[f"client/{k}"]}["identification"] for k in (0, 1))
    assert one.value == 1.0
    assert one.p is not None
    assert two.p is not None
    assert one.p < 1e-3 < 0.01 < two.p
