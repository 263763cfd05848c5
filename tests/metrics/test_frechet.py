"""The Fréchet distance against closed forms and two other computations."""

import warnings

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import linalg

from fdaudit.errors import UsageError
from fdaudit.metrics import frechet_distance, frechet_figure, task_encoder_distance
from fdaudit.metrics.images.frechet import frechet_to_subsets

SEEDS = st.integers(0, 2**32 - 1)


def _sample(seed: int, n: int, mean: np.ndarray, cov: np.ndarray) -> np.ndarray:
    """Features whose empirical mean and unbiased covariance are exactly these."""
    raw = np.random.default_rng(seed).normal(size=(n, len(mean)))
    raw -= raw.mean(0)
    raw = raw @ np.linalg.inv(np.linalg.cholesky(np.atleast_2d(np.cov(raw, rowvar=False)))).T
    return raw @ np.linalg.cholesky(cov).T + mean


@settings(max_examples=40, deadline=None)
@given(SEEDS, st.integers(1, 6))
def test_diagonal_gaussians_against_the_closed_form(seed: int, d: int) -> None:
    rng = np.random.default_rng(seed)
    (ma, mb), (va, vb) = rng.normal(size=(2, d)), rng.uniform(0.1, 4, size=(2, d))
    a, b = _sample(seed, 30, ma, np.diag(va)), _sample(seed + 1, 50, mb, np.diag(vb))
    closed = ((ma - mb) ** 2).sum() + ((np.sqrt(va) - np.sqrt(vb)) ** 2).sum()
    assert frechet_distance(a, b) == pytest.approx(closed, rel=1e-8, abs=1e-8)


@pytest.mark.parametrize("n", [200, 12])
def test_against_the_matrix_square_root_and_pytorch_fid(n: int) -> None:
    rng = np.random.default_rng(0)
    a, b = rng.normal(size=(n, 10)), rng.normal(size=(n + 5, 10)) @ rng.normal(size=(10, 10)) + 1
    ca, cb = np.cov(a, rowvar=False), np.cov(b, rowvar=False)
    apart = ((a.mean(0) - b.mean(0)) ** 2).sum()
    reference = apart + np.trace(ca + cb) - 2 * np.trace(linalg.sqrtm(ca @ cb)).real
    assert frechet_distance(a, b) == pytest.approx(reference, rel=1e-8)
    from pytorch_fid.fid_score import calculate_frechet_distance

    with warnings.catch_warnings():
        # pytorch-fid 0.3.0 passes an argument that SciPy deprecates: why its function is not what we call.
        warnings.filterwarnings("ignore", category=DeprecationWarning, message="The `disp` argument")
        theirs = calculate_frechet_distance(a.mean(0), ca, b.mean(0), cb)
    assert frechet_distance(a, b) == pytest.approx(theirs, rel=1e-8)


@settings(max_examples=25, deadline=None)
@given(SEEDS, st.integers(2, 12), st.integers(4, 12), st.integers(1, 20))
def test_to_subsets_of_a_pool_as_to_each_by_itself(seed: int, n: int, m: int, d: int) -> None:
    rng = np.random.default_rng(seed)
    a, pool = rng.normal(size=(n, d)), rng.normal(size=(m, d)) * rng.uniform(0.1, 10, d)
    length = int(rng.integers(2, m + 1))
    rows = [rng.permutation(m)[:length] for _ in range(3)]
    expected = [frechet_distance(a, pool[one]) for one in rows]
    assert frechet_to_subsets(a, pool, rows) == pytest.approx(expected, rel=1e-6, abs=1e-6)


@settings(max_examples=25, deadline=None)
@given(SEEDS, st.integers(2, 12), st.integers(2, 12), st.integers(1, 20))
def test_laws(seed: int, n: int, m: int, d: int) -> None:
    rng = np.random.default_rng(seed)
    a, b = rng.normal(size=(n, d)), rng.normal(size=(m, d))
    distance = frechet_distance(a, b)
    assert distance >= ((a.mean(0) - b.mean(0)) ** 2).sum() - 1e-9
    assert frechet_distance(b, a) == pytest.approx(distance, rel=1e-9, abs=1e-9)
    assert frechet_distance(a, a) == pytest.approx(0, abs=1e-9)
    assert frechet_distance(a + 2, b + 2) == pytest.approx(distance, rel=1e-9, abs=1e-9)
    rotation = np.linalg.qr(rng.normal(size=(d, d)))[0]
    assert frechet_distance(a @ rotation, b @ rotation) == pytest.approx(distance, rel=1e-9, abs=1e-9)


def test_fewer_samples_than_dimensions_against_eigenvalues() -> None:
    rng = np.random.default_rng(1)
    a, b = rng.normal(size=(5, 40)), rng.normal(size=(7, 40)) + 0.5
    ca, cb = np.cov(a, rowvar=False), np.cov(b, rowvar=False)
    # Σ_a Σ_b has real, non-negative eigenvalues; all but four are zero.
    roots = np.sqrt(np.clip(np.linalg.eigvals(ca @ cb).real, 0, None))
    reference = ((a.mean(0) - b.mean(0)) ** 2).sum() + np.trace(ca + cb) - 2 * np.sort(roots)[-4:].sum()
    assert frechet_distance(a, b) == pytest.approx(reference, rel=1e-8)
    assert "singular" in frechet_figure(a, b, "x").note
    assert "singular" not in frechet_figure(rng.normal(size=(9, 8)), rng.normal(size=(9, 8)), "x").note


def test_samples_may_be_repeated_and_features_constant() -> None:
    a = np.concatenate([np.ones((6, 1)), np.tile([[0.0], [1.0]], (3, 1))], axis=1)
    assert frechet_distance(a, a) == pytest.approx(0, abs=1e-12)
    assert frechet_distance(a, a + np.array([1, 0])) == pytest.approx(1)


@pytest.mark.parametrize(
    ("a", "b", "problem"),
    [
        (np.zeros((1, 3)), np.zeros((4, 3)), "n >= 2"),
        (np.zeros((4, 3)), np.zeros((4, 2)), "columns"),
        (np.full((4, 3), np.nan), np.zeros((4, 3)), "NaN"),
        (np.zeros(4), np.zeros(4), "n >= 2"),
    ],
)
def test_unfit_features_are_refused(a: np.ndarray, b: np.ndarray, problem: str) -> None:
    with pytest.raises(UsageError, match=problem):
        frechet_distance(a, b)


def test_task_encoder_distance_is_named_after_its_encoder() -> None:
    rng = np.random.default_rng(2)
    a, b = rng.random((6, 1, 4, 4)), rng.random((8, 1, 4, 4))
    matrix = torch.from_numpy(rng.normal(size=(16, 3))).float()

    def encode(x: torch.Tensor) -> torch.Tensor:
        return x.flatten(1) @ matrix

    figure = task_encoder_distance(a, b, encode, "digits CNN", batch_size=3)
    assert "digits CNN" in figure.name
    w = matrix.double().numpy()
    expected = frechet_distance(a.reshape(6, 16) @ w, b.reshape(8, 16) @ w)
    assert figure.value == pytest.approx(expected, rel=1e-4)
    for name in ("", "FID", "my-fid"):
        with pytest.raises(UsageError, match="task encoder"):
            task_encoder_distance(a, b, encode, name)
