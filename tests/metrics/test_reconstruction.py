"""Reconstruction scores: what is reported, next to which baseline, and the baseline's honesty."""

import math

import numpy as np
import pytest
import torch

from fdaudit.errors import UsageError
from fdaudit.metrics import (
    PSNR_CEILING,
    AuxiliaryPool,
    Measure,
    choose_strategies,
    match,
    mse,
    psnr,
    score_reconstruction,
    ssim,
)

PSNR = Measure("psnr", psnr, True)
MSE = Measure("mse", mse, False)


@pytest.fixture(autouse=True)
def _no_weights(monkeypatch: pytest.MonkeyPatch, tmp_path: object) -> None:
    monkeypatch.delenv("FDAUDIT_WEIGHTS", raising=False)
    monkeypatch.setenv("TORCH_HOME", str(tmp_path))


def _rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def _classes(
    rng: np.random.Generator, n: int, spread: float, classes: int = 4
) -> tuple[torch.Tensor, np.ndarray]:
    """Images around one random template a class, with noise of standard deviation `spread`."""
    templates = _rng(99).uniform(0.3, 0.7, size=(classes, 1, 8, 8))
    labels = np.arange(n) % classes
    noise = spread * rng.uniform(-math.sqrt(3), math.sqrt(3), size=(n, 1, 8, 8))
    return torch.from_numpy((templates[labels] + noise).clip(0, 1)).float(), labels


def _score(guess, truth, aux, labels=None, aux_labels=None, seed: int = 1, **more):
    return score_reconstruction(
        guess, truth, aux, _rng(seed), true_labels=labels, auxiliary_labels=aux_labels, **more
    )


def test_exact_reconstruction_is_capped_matched_and_gains() -> None:
    truth, labels = _classes(_rng(0), 8, 0.1)
    aux, aux_labels = _classes(_rng(1), 80, 0.1)
    score = _score(truth.flip(0), truth, aux, labels, aux_labels)
    f = score.figures
    assert f["psnr"].value == PSNR_CEILING
    assert "8 at" in f["psnr"].note
    assert f["mse"].value == 0
    assert f["ssim"].value == pytest.approx(1)
    assert "window 7" in f["ssim"].note
    assert [i.guess for i in score.images] == list(range(7, -1, -1))
    assert f["psnr_gain"].value == pytest.approx(PSNR_CEILING - f["psnr_prior"].value)
    assert f["psnr_gain"].low > 50
    assert all(math.isfinite(v) for x in f.values() for v in (x.value, x.low, x.high) if v is not None)


def test_figures_are_means_of_the_table_and_have_the_worst_beside_them() -> None:
    truth, labels = _classes(_rng(0), 12, 0.1)
    guess = (truth + torch.from_numpy(_rng(2).normal(size=truth.shape) * 0.05).float()).clamp(0, 1)
    aux, aux_labels = _classes(_rng(1), 80, 0.1)
    score = _score(guess, truth, aux, labels, aux_labels)
    table, f = score.table(), score.figures
    assert len(table) == 12
    assert table.psnr.to_numpy() == pytest.approx(psnr(guess, truth).numpy())
    assert table.ssim.to_numpy() == pytest.approx(ssim(guess, truth).numpy())
    for name in ("psnr", "ssim", "mse", "psnr_prior"):
        assert f[name].value == pytest.approx(table[name].mean())
        assert f[name].low < f[name].value < f[name].high
    assert f["psnr_gain"].value == pytest.approx((table.psnr - table.psnr_prior).mean())
    assert f["psnr_max"].value == table.psnr.max()
    assert f"image {table.psnr.idxmax()} " in f["psnr_max"].note
    assert f"{table.psnr.max():.4g}" in f["psnr"].note


def test_lpips_without_weights_is_unavailable_and_nothing_takes_its_place() -> None:
    truth, _ = _classes(_rng(0), 4, 0.1)
    score = _score(truth, truth, truth)
    for name in ("lpips", "lpips_prior", "lpips_gain"):
        assert score.figures[name].value is None
        assert "FDAUDIT_WEIGHTS" in score.figures[name].unavailable
    assert all(image.lpips is None for image in score.images)


def test_lpips_with_a_network_stands_next_to_its_prior() -> None:
    class Distance(torch.nn.Module):
        def forward(self, a: torch.Tensor, b: torch.Tensor, normalize: bool) -> torch.Tensor:
            return (a - b).abs().mean((1, 2, 3), keepdim=True)

    truth, labels = _classes(_rng(0), 6, 0.05)
    aux, aux_labels = _classes(_rng(1), 40, 0.05)
    score = _score(truth, truth, aux, labels, aux_labels, lpips_network=Distance())
    assert score.figures["lpips"].value == 0
    assert score.figures["lpips_prior"].value > 0
    assert score.figures["lpips_gain"].value == pytest.approx(score.figures["lpips_prior"].value)
    assert [image.lpips for image in score.images] == [0] * 6


def test_showing_the_class_mean_gains_nothing_and_noise_loses() -> None:
    truth, labels = _classes(_rng(0), 16, 0.1)
    aux, aux_labels = _classes(_rng(1), 400, 0.1)
    guess = torch.stack([aux[torch.from_numpy(aux_labels == y)].mean(0) for y in labels])
    f = _score(guess, truth, aux, labels, aux_labels).figures
    assert f["psnr"].value > 18
    assert f["psnr_gain"].value == pytest.approx(0, abs=1e-3)
    assert f["ssim_gain"].value <= 1e-3
    aux, aux_labels = _classes(_rng(1), 80, 0.1)
    guess = torch.from_numpy(_rng(3).random(truth.shape)).float()
    f = _score(guess, truth, aux, labels, aux_labels).figures
    assert f["psnr_gain"].high < 0
    assert f["mse_gain"].high < 0


def test_the_prior_guesses_once_by_a_strategy_that_draws_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    truth, labels = _classes(_rng(0), 8, 0.02)
    aux, aux_labels = _classes(_rng(1), 80, 0.02)
    _score(truth, truth, aux, labels, aux_labels)  # chooses the strategies, which is done once for a pool
    played = list[str]()
    real = AuxiliaryPool.guess
    monkeypatch.setattr(AuxiliaryPool, "guess", lambda self, s, *a: played.append(s) or real(self, s, *a))
    score = _score(truth, truth, aux, labels, aux_labels)
    assert set(score.strategies["psnr"]) == {"class-mean"}
    assert played.count("class-mean") == 1


def test_psnr_of_the_prior_against_its_closed_form() -> None:
    """Constant images u_i: the class mean misses by |u_i - mean|, so PSNR is -20 log10 of that."""
    levels = torch.tensor([0.2, 0.3, 0.65, 0.8])
    aux = torch.tensor([0.25, 0.75]).repeat_interleave(10).view(20, 1, 1, 1).expand(-1, 1, 8, 8)
    truth = levels.view(4, 1, 1, 1).expand(-1, 1, 8, 8)
    score = _score(truth, truth, aux, [0, 0, 1, 1], np.repeat([0, 1], 10))
    missed = np.array([0.05, 0.05, 0.1, 0.05])
    assert score.figures["mse_prior"].value == pytest.approx((missed**2).mean(), rel=1e-5)
    assert score.figures["psnr_prior"].value == pytest.approx(-20 * np.log10(missed).mean(), rel=1e-5)
    assert score.figures["psnr_prior_max"].value == pytest.approx(-20 * math.log10(0.05), rel=1e-5)


@pytest.mark.parametrize(
    ("spread", "classes", "labels_known", "expected"),
    [
        # One tight cluster a class: its mean is best when labels are told.
        (0.05, 4, True, "class-mean"),
        # No class structure at all: the grand mean is the steadiest estimate of every class.
        (0.15, 1, False, "grand-mean"),
    ],
)
def test_the_strategy_that_suits_the_data_is_chosen(
    spread: float, classes: int, labels_known: bool, expected: str
) -> None:
    aux, aux_labels = _classes(_rng(1), 60, spread, classes)
    pool = AuxiliaryPool(aux, None if classes == 1 else aux_labels)
    chosen = choose_strategies(pool, 4, 4, (MSE,), _rng(0), labels_known=labels_known)
    assert chosen["mse"] == expected


def test_few_images_are_guessed_by_drawing_and_the_choice_sees_no_truth() -> None:
    # Two templates in equal parts, unlabelled: eight random draws matched beat eight copies of grey.
    aux = torch.cat([torch.zeros(30, 1, 8, 8), torch.ones(30, 1, 8, 8)])
    chosen = choose_strategies(AuxiliaryPool(aux), 8, 8, (MSE,), _rng(0), labels_known=False)
    assert chosen["mse"] == "random"
    aux, aux_labels = _classes(_rng(1), 60, 0.1)
    one, labels = _classes(_rng(2), 8, 0.1)
    chosen = [
        _score(one, t, aux, labels, aux_labels).strategies for t in (one, 1 - one, torch.zeros_like(one))
    ]
    assert chosen[0] == chosen[1] == chosen[2]


def test_held_out_images_take_no_part_in_their_own_guess() -> None:
    aux, labels = _classes(_rng(1), 40, 0.1)
    held = np.array([0, 3, 5])
    altered = aux.clone()
    altered[held] = 1 - altered[held]
    for strategy in ("class-mean", "grand-mean", "random"):
        guesses = [
            AuxiliaryPool(x, labels).guess(strategy, 5, np.array([0, 1, 3]), _rng(0), held)
            for x in (aux, altered)
        ]
        assert torch.allclose(*guesses, atol=1e-12)
        rest = [i for i in range(40) if i not in held]
        if strategy == "random":
            assert all(bool((aux[rest].double() == g).flatten(1).all(1).any()) for g in guesses[0])


def test_guesses_of_the_pool_are_class_means_or_draws_of_the_labels_told() -> None:
    aux, labels = _classes(_rng(1), 40, 0.1)
    pool = AuxiliaryPool(aux, labels)
    guess = pool.guess("class-mean", 2, np.array([2, 77]), _rng(0))
    assert torch.allclose(guess[0], aux[labels == 2].double().mean(0))
    assert torch.allclose(guess[1], aux.double().mean(0))
    guess = AuxiliaryPool(aux, labels).guess("random", 10, np.array([2]), _rng(0))
    found = match(aux, guess).numpy()
    assert (labels[found] == 2).all()
    assert len(set(found.tolist())) == 10


def test_labels_told_make_a_stronger_prior_and_guessed_ones_stand_beside_theirs() -> None:
    truth, labels = _classes(_rng(0), 8, 0.02)
    aux, aux_labels = _classes(_rng(1), 80, 0.02)
    told, not_told = (
        _score(truth, truth, aux, labels, aux_labels, labels_known=known).figures["psnr_prior"].value
        for known in (True, False)
    )
    assert told > not_told
    truth, labels = _classes(_rng(0), 8, 0.1)
    aux, aux_labels = _classes(_rng(1), 80, 0.1)
    f = _score(truth, truth, aux, labels, aux_labels, guess_labels=labels[::-1].copy()).figures
    assert f["labels_right"].value == 1
    assert f["labels_right"].low < 1
    assert 0.3 < f["labels_right_prior"].value < 0.9
    assert "no labels" in _score(truth, truth, aux).figures["labels_right"].unavailable


def test_one_image_has_no_interval_and_no_auxiliary_data_no_baseline() -> None:
    truth, _ = _classes(_rng(0), 4, 0.1)
    figures = _score(truth, truth, None).figures
    for name in ("psnr_prior", "psnr_gain", "psnr_prior_max", "mse_gain"):
        assert "no auxiliary data" in figures[name].unavailable
    assert figures["psnr"].value == PSNR_CEILING
    truth, _ = _classes(_rng(0), 1, 0.1)
    aux, _ = _classes(_rng(1), 10, 0.1)
    figure = _score(truth / 2, truth, aux).figures["psnr"]
    assert figure.low is None
    assert "one item" in figure.note
    truth, labels = _classes(_rng(0), 6, 0.1)
    aux, aux_labels = _classes(_rng(1), 40, 0.1)
    first, again = (_score(truth / 2, truth, aux, labels, aux_labels).figures for _ in range(2))
    assert first == again


def test_counts_that_differ_are_said() -> None:
    truth, labels = _classes(_rng(0), 4, 0.1)
    aux, aux_labels = _classes(_rng(1), 40, 0.1)
    fewer = _score(truth[[2, 0]], truth, aux, labels, aux_labels)
    assert [(i.truth, i.guess) for i in fewer.images] == [(0, 1), (2, 0)]
    assert "2 of 4" in fewer.figures["psnr"].note
    assert "of 2 guesses" in fewer.figures["psnr"].note
    more = _score(torch.cat([aux[:3], truth]), truth, aux, labels, aux_labels)
    assert [i.guess for i in more.images] == [3, 4, 5, 6]
    assert "of 7 guesses" in more.figures["psnr"].note
    # The baseline has as many tries: more random draws are matched better.
    assert "of 4 true" in more.figures["mse"].note


def test_several_batches_are_matched_apart_and_the_worst_target_is_named() -> None:
    truth, labels = _classes(_rng(0), 12, 0.1)
    aux, aux_labels = _classes(_rng(1), 40, 0.1)
    batches = list(truth.split(4))
    noisy = [(b + e).clamp(0, 1) for b, e in zip(batches, (0.2, 0.01, 0.1), strict=True)]
    score = score_reconstruction(
        noisy,
        batches,
        aux,
        _rng(0),
        true_labels=list(labels.reshape(3, 4)),
        auxiliary_labels=aux_labels,
        targets=["client/0", "client/1", "client/0"],
    )
    assert [i.batch for i in score.images] == [0] * 4 + [1] * 4 + [2] * 4
    worst = score.figures["psnr_worst_target"]
    assert "client/1" in worst.note
    assert worst.value == pytest.approx(40, abs=0.5)
    assert "batch 1 (client/1)" in score.figures["psnr_max"].note


def test_many_batches_are_resampled_whole() -> None:
    truth, _ = _classes(_rng(0), 40, 0.1)
    shifts = np.linspace(0.01, 0.2, 20)
    batches = list(truth.split(2))
    noisy = [(b + e).clamp(0, 1) for b, e in zip(batches, shifts, strict=True)]
    figure = score_reconstruction(noisy, batches, None, _rng(0)).figures["psnr"]
    assert figure.n == 20
    assert "n counts batches" in figure.note


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"guess_images": torch.zeros(2, 1, 4, 4)}, "cannot be compared"),
        ({"auxiliary": torch.zeros(9, 3, 8, 8)}, "cannot be compared"),
        ({"auxiliary": torch.zeros(1, 1, 8, 8)}, "too few"),
        ({"guess_images": [torch.zeros(2, 1, 8, 8)] * 2}, "does not match 1 true"),
        ({"true_labels": [0]}, "does not have shape"),
        ({"auxiliary_labels": [0]}, "does not have shape"),
        ({"targets": ["a", "b"]}, "names for 1"),
        ({"guess_images": torch.full((2, 1, 8, 8), 2.0)}, "outside"),
    ],
)
def test_what_does_not_fit_together_is_refused(change: dict, problem: str) -> None:
    good = {
        "guess_images": torch.zeros(2, 1, 8, 8),
        "true_images": torch.zeros(2, 1, 8, 8),
        "auxiliary": torch.zeros(9, 1, 8, 8),
    }
    with pytest.raises(UsageError, match=problem):
        score_reconstruction(**{**good, **change}, generator=_rng())


@pytest.mark.parametrize("shape", [(1, 1, 30), (1, 2, 2), (3, 1, 7)])
def test_images_too_thin_for_ssim_keep_every_other_figure(shape: tuple[int, int, int]) -> None:
    truth = torch.rand(4, *shape)
    score = _score(truth, truth, torch.rand(20, *shape))
    assert score.figures["psnr"].value == PSNR_CEILING
    for name in ("ssim", "ssim_prior", "ssim_gain"):
        assert score.figures[name].value is None
        assert f"{shape[1]}x{shape[2]}" in score.figures[name].unavailable
    assert score.images[0].ssim is None


@pytest.mark.parametrize("channels", [1, 2, 3, 4])
def test_lpips_is_of_one_channel_or_three(channels: int) -> None:
    def network(a: torch.Tensor, b: torch.Tensor, normalize: bool) -> torch.Tensor:
        return (a - b).square().mean((1, 2, 3), keepdim=True)

    truth = torch.rand(4, channels, 8, 8)
    figures = _score(truth, truth, torch.rand(20, channels, 8, 8), lpips_network=_Network(network)).figures
    assert figures["ssim"].value == pytest.approx(1)
    assert (figures["lpips"].value is None) == (channels in (2, 4))
    if channels in (2, 4):
        assert f"these have {channels} channels" in figures["lpips"].unavailable


class _Network(torch.nn.Module):
    def __init__(self, distance) -> None:
        super().__init__()
        self.distance = distance

    def forward(self, a, b, normalize):
        return self.distance(a, b, normalize)
