"""PSNR, SSIM, MSE and matching against laws and independent references."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import ndimage
from sklearn.metrics import mean_squared_error

from fdaudit.errors import UsageError
from fdaudit.metrics import match, mse, psnr, ssim, ssim_window

SEEDS = st.integers(0, 2**32 - 1)


def _images(seed: int, n: int = 3, c: int = 1, h: int = 8, w: int = 8) -> torch.Tensor:
    return torch.from_numpy(np.random.default_rng(seed).random((n, c, h, w)))


@settings(max_examples=50, deadline=None)
@given(SEEDS, st.floats(1e-4, 0.5), st.booleans())
def test_psnr_of_a_shift(seed: int, d: float, down: bool) -> None:
    a = _images(seed) / 2
    a, b = (a + 0.5, a + 0.5 - d) if down else (a, a + d)
    assert psnr(a, b).numpy() == pytest.approx(-20 * math.log10(d), abs=1e-6)


def test_identical_images_have_infinite_psnr_and_ssim_one() -> None:
    a = _images(0, c=3)
    assert torch.equal(psnr(a, a), torch.full((3,), torch.inf, dtype=torch.float64))
    a, b = _images(3, c=3), _images(4, c=3)
    assert ssim(a, a).numpy() == pytest.approx(1)
    assert ssim(a, b).numpy() == pytest.approx(ssim(b, a).numpy())
    assert (ssim(a, b) < 0.9).all()
    with pytest.raises(UsageError, match="too small"):
        ssim(torch.zeros(1, 1, 2, 8), torch.zeros(1, 1, 2, 8))


@settings(max_examples=25, deadline=None)
@given(SEEDS)
def test_mse_and_psnr_against_scikit_learn(seed: int) -> None:
    a, b = _images(seed, c=3), _images(seed + 1, c=3)
    reference = [mean_squared_error(x.ravel(), y.ravel()) for x, y in zip(a.numpy(), b.numpy(), strict=True)]
    assert mse(a, b).numpy() == pytest.approx(reference)
    assert psnr(a, b).numpy() == pytest.approx([10 * math.log10(1 / r) for r in reference])
    assert torch.equal(psnr(a, b), psnr(b, a))


@pytest.mark.parametrize("kind", ["float32", "float16", "list", "array", "uint8"])
def test_images_come_as_tensors_arrays_and_lists(kind: str) -> None:
    a, b = torch.zeros(2, 1, 4, 4), torch.full((2, 1, 4, 4), 0.5)
    given_as = {
        "float32": lambda x: x,
        "float16": lambda x: x.half(),
        "list": lambda x: x.tolist(),
        "array": lambda x: x.numpy(),
        "uint8": lambda x: (x > 0.25).to(torch.uint8),
    }[kind]
    expected = 0.0 if kind == "uint8" else 20 * math.log10(2)
    assert psnr(given_as(a), given_as(b)).tolist() == pytest.approx([expected] * 2)


@pytest.mark.parametrize(
    ("bad", "problem"),
    [
        (torch.zeros(2, 4, 4), "not a non-empty batch"),
        (torch.zeros(0, 1, 4, 4), "not a non-empty batch"),
        (torch.full((2, 1, 4, 4), 1.1), "outside"),
        (torch.full((2, 1, 4, 4), -0.1), "outside"),
        (torch.full((2, 1, 4, 4), torch.nan), "outside"),
        (torch.zeros(3, 1, 4, 4), "cannot be compared"),
        (torch.zeros(2, 1, 4, 5), "cannot be compared"),
        ([[1.0], [1.0, 2.0]], "ragged"),
        (["a"], "does not hold numbers"),
    ],
)
def test_unfit_images_are_refused(bad: object, problem: str) -> None:
    with pytest.raises(UsageError, match=problem):
        psnr(bad, torch.zeros(2, 1, 4, 4))


def _reference_ssim(a: np.ndarray, b: np.ndarray, window: int, sigma: float) -> float:
    """Wang et al. (2004), equation 13, one channel, mirrored borders, by scipy's correlation."""
    at = np.arange(window) - window // 2
    kernel = np.exp(-(at**2) / (2 * sigma**2))
    kernel /= kernel.sum()

    def blur(x: np.ndarray) -> np.ndarray:
        once = ndimage.correlate1d(x, kernel, axis=0, mode="mirror")
        return ndimage.correlate1d(once, kernel, axis=1, mode="mirror")

    ma, mb = blur(a), blur(b)
    va, vb, vab = blur(a * a) - ma**2, blur(b * b) - mb**2, blur(a * b) - ma * mb
    c1, c2 = 0.01**2, 0.03**2
    return float((((2 * ma * mb + c1) * (2 * vab + c2)) / ((ma**2 + mb**2 + c1) * (va + vb + c2))).mean())


@pytest.mark.parametrize(
    ("h", "w", "window"), [(16, 16, 11), (11, 20, 11), (10, 16, 9), (8, 8, 7), (6, 6, 5), (3, 9, 3)]
)
def test_ssim_against_an_independent_reference(h: int, w: int, window: int) -> None:
    assert ssim_window(h, w) == window
    a, b = _images(1, 2, 2, h, w), _images(2, 2, 2, h, w)
    b = 0.7 * a + 0.3 * b
    reference = [
        np.mean([_reference_ssim(x, y, window, 1.5 * window / 11) for x, y in zip(i, j, strict=True)])
        for i, j in zip(a.numpy(), b.numpy(), strict=True)
    ]
    assert ssim(a, b).numpy() == pytest.approx(reference, abs=1e-5)


@pytest.mark.parametrize("contrast", [1, 0.1, 0.01, 0.001])
def test_ssim_of_nearly_flat_images_is_right_to_what_it_says(contrast: float) -> None:
    a, b = (0.5 + contrast * (torch.rand(8, 1, 16, 16, dtype=torch.float64) - 0.5) for _ in "ab")
    reference = [_reference_ssim(x[0].numpy(), y[0].numpy(), 11, 1.5) for x, y in zip(a, b, strict=True)]
    assert ssim(a, b).numpy() == pytest.approx(np.array(reference), abs=2e-3)


def test_ssim_does_not_depend_on_how_many_images_are_in_memory_together(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    a, b = (torch.rand(9, 1, 12, 12, generator=torch.Generator().manual_seed(n)) for n in (1, 2))
    together = ssim(a, b)
    for values in (1, 12 * 12 * 2, 12 * 12 * 4):
        monkeypatch.setattr("fdaudit.metrics.images.similarity._AT_ONCE", values)
        assert torch.equal(ssim(a, b), together)


@settings(max_examples=50, deadline=None)
@given(SEEDS, st.integers(1, 6))
def test_matching_is_never_worse_than_any_pairing(seed: int, n: int) -> None:
    guess, truth = _images(seed, n, 1, 3, 3), _images(seed + 1, n, 1, 3, 3)
    permutation = match(guess, truth)
    assert sorted(permutation.tolist()) == list(range(n))
    best = float(mse(guess[permutation], truth).sum())
    rng = np.random.default_rng(seed)
    for other in [np.arange(n), *(rng.permutation(n) for _ in range(20))]:
        assert best <= float(mse(guess[torch.from_numpy(other)], truth).sum()) + 1e-12


@settings(max_examples=25, deadline=None)
@given(SEEDS, st.integers(1, 8))
def test_matching_undoes_a_shuffle(seed: int, n: int) -> None:
    truth = _images(seed, n)
    order = torch.from_numpy(np.random.default_rng(seed).permutation(n))
    assert torch.equal(truth[order][match(truth[order], truth)], truth)


def test_matching_takes_more_and_fewer_guesses_and_nearly_exact_ones() -> None:
    truth = _images(5, 4)
    more = torch.cat([_images(6, 2), truth.flip(0)])
    assert match(more, truth).tolist() == [5, 4, 3, 2]
    assert match(truth[[2]], truth).tolist() == [-1, -1, 0, -1]
    truth = torch.full((2, 1, 8, 8), 0.5, dtype=torch.float64)
    truth[1] += 1e-9
    assert match(truth.flip(0), truth).tolist() == [1, 0]
