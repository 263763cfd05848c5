"""What the attacks reach on gradients of untrained networks: 20 images, digits and MNIST, next to the prior.

Run with `-m slow -s` to see the figures.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from fdaudit.attacks.gradient_inversion.analytic import recover_image
from fdaudit.attacks.gradient_inversion.dlg import DLGConfig, deep_leakage
from fdaudit.attacks.gradient_inversion.inverting import InvertingGradientsConfig, invert_gradients
from fdaudit.attacks.gradient_inversion.labels import recover_labels
from torch import Tensor, nn

from fdaudit.models.normalization import first_linear

from ...helpers.marks import ON_DATA
from .gradient_inversion_cases import (
    digits,
    dlg_lenet,
    matched_psnr,
    mlp,
    mnist,
    one_thread,  # noqa: F401
    pooling_cnn,
    prior_baseline,
    psnr,
    strided_cnn,
    tensors,
    true_gradient,
)

pytestmark = pytest.mark.slow

Network = Callable[[int, torch.Generator], nn.Module]

DATASETS = [
    "digits",
    pytest.param(
        "mnist",
        marks=ON_DATA,
    ),
]


def _images(dataset: str) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """24 images drawn at random, their labels, and 1,000 others with theirs as auxiliary data."""
    x, y = digits() if dataset == "digits" else mnist(3000)
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(11))
    private, auxiliary = order[:24], order[24:1024]
    return x[private], y[private], x[auxiliary], y[auxiliary]


def _gradients(
    module: nn.Module, x: Tensor, y: Tensor, noise: float, g: torch.Generator
) -> list[dict[str, Tensor]]:
    """The gradient of each batch of x (M, n, c, h, w), plus noise of `noise` times its root-mean-square."""
    found = []
    for xb, yb in zip(x, y, strict=True):
        gradient = true_gradient(module, xb, yb)
        flat = torch.cat([v.flatten() for v in gradient.values()])
        scale = noise * flat.square().mean().sqrt()
        found.append({k: v + scale * torch.randn(v.shape, generator=g) for k, v in gradient.items()})
    return found


def _labels(module: nn.Module, gradients: list[dict[str, Tensor]], n: int, probes: Tensor) -> Tensor:
    return torch.stack([recover_labels(g, module, tensors(module), n, probes) for g in gradients])


def _dlg(
    dataset: str, network: Network, labels: str, noise: float = 0.0, images: int = 20, evaluations: int = 800
) -> tuple[Tensor, int, float]:
    """PSNR of each image, labels right, and the prior's mean PSNR; four networks, each with a share of the images."""
    x, y, ax, ay = _images(dataset)
    config = DLGConfig(restarts=4, evaluations=evaluations, tolerance=1e-9)
    scores, right, prior = [], 0, []
    for i, part in enumerate(torch.arange(images).chunk(4)):
        g = torch.Generator().manual_seed(i)
        module = network(x.shape[-1], g)
        xs, ys = x[part, None], y[part, None]
        gradients = _gradients(module, xs, ys, noise, g)
        known = _labels(module, gradients, 1, ax) if labels == "recover" else None
        found = deep_leakage(
            module, tensors(module), gradients, known, images=tuple(xs.shape[1:]), config=config, generator=g
        )
        scores.append(psnr(found.images[:, 0].nan_to_num(0.5).clamp(0, 1), xs[:, 0]))
        right += int((found.labels == ys).sum())
        prior += [prior_baseline(a, b, ax, ay) for a, b in zip(xs, ys, strict=True)]
    return torch.cat(scores), right, sum(prior) / len(prior)


@pytest.mark.parametrize("dataset", DATASETS)
@pytest.mark.parametrize("network", [dlg_lenet, strided_cnn])
@pytest.mark.parametrize("labels", ["recover", "optimise"])
def test_dlg_on_single_images(dataset: str, network: Network, labels: str) -> None:
    scores, right, prior = _dlg(dataset, network, labels)
    print(
        f"\nDLG, {dataset}, {network.__name__}, labels {labels}: {int((scores > 30).sum())} of 20 above 30 dB, "
        f"{right} of 20 labels, median {scores.median():.1f} dB, least {scores.min():.1f}, prior {prior:.1f}"
    )
    assert (scores > 30).sum() >= 18
    assert right == 20


@pytest.mark.parametrize("dataset", DATASETS)
@pytest.mark.parametrize("network", [dlg_lenet, strided_cnn])
def test_dlg_in_noise_is_no_better_than_the_prior(dataset: str, network: Network) -> None:
    scores, _, prior = _dlg(dataset, network, "recover", noise=10.0, images=8, evaluations=300)
    print(f"\nDLG in noise, {dataset}, {network.__name__}: mean {scores.mean():.1f} dB, prior {prior:.1f}")
    assert scores.mean() <= prior


def _analytic(dataset: str, noise: float) -> tuple[Tensor, float]:
    x, y, ax, ay = _images(dataset)
    scores, prior = [], []
    for i in range(20):
        g = torch.Generator().manual_seed(i)
        module = mlp(x.shape[-1], g)
        (gradient,) = _gradients(module, x[None, i : i + 1], y[None, i : i + 1], noise, g)
        layer = first_linear(module, tuple(x.shape[1:]))
        found = recover_image(gradient[f"{layer}.weight"], gradient[f"{layer}.bias"]).clamp(0, 1)
        scores.append(psnr(found.view(1, *x.shape[1:]), x[i : i + 1]))
        prior.append(prior_baseline(x[i : i + 1], y[i : i + 1], ax, ay))
    return torch.cat(scores), sum(prior) / 20


@pytest.mark.parametrize("dataset", DATASETS)
def test_analytic_recovery_of_single_images(dataset: str) -> None:
    scores, _ = _analytic(dataset, noise=0.0)
    noisy, prior = _analytic(dataset, noise=10.0)
    print(
        f"\nAnalytic, {dataset}, MLP: {int((scores > 60).sum())} of 20 above 60 dB, least {scores.min():.1f}; "
        f"in noise mean {noisy.mean():.1f} dB, prior {prior:.1f}"
    )
    assert (scores > 60).sum() == 20
    assert noisy.mean() <= prior


def _inverting(
    dataset: str,
    network: Network,
    noise: float = 0.0,
    batches: int = 3,
    iterations: int = 1500,
    tv: float | None = None,
) -> tuple[list[float], list[float], int]:
    """Mean matched PSNR of each batch of 8, the prior's, and how many batches' labels were exact."""
    x, y, ax, ay = _images(dataset)
    xs, ys = x[: 8 * batches].unflatten(0, (batches, 8)), y[: 8 * batches].unflatten(0, (batches, 8))
    default = 1e-2 if dataset == "mnist" else 1e-3
    config = InvertingGradientsConfig(restarts=1, iterations=iterations, tv=default if tv is None else tv)
    scores, prior, exact = [], [], 0
    for i in range(batches):
        g = torch.Generator().manual_seed(i)
        module = network(x.shape[-1], g)
        gradients = _gradients(module, xs[i : i + 1], ys[i : i + 1], noise, g)
        labels = _labels(module, gradients, 8, ax)
        exact += labels[0].tolist() == ys[i].sort().values.tolist()
        found = invert_gradients(
            module, tensors(module), gradients, labels, shape=tuple(x.shape[1:]), config=config, generator=g
        )
        scores.append(float(matched_psnr(found.images[0], xs[i]).mean()))
        prior.append(prior_baseline(xs[i], ys[i], ax, ay))
    return scores, prior, exact


def _figures(scores: list[float], prior: list[float]) -> str:
    return f"{[round(s, 1) for s in scores]} dB by batch, prior {[round(p, 1) for p in prior]}"


@pytest.mark.parametrize("dataset", DATASETS)
def test_inverting_gradients_on_batches_of_8(dataset: str) -> None:
    scores, prior, exact = _inverting(dataset, strided_cnn)
    gain = (sum(scores) - sum(prior)) / len(scores)
    print(
        f"\nInverting Gradients, {dataset}, strided CNN, batches of 8: {_figures(scores, prior)}, mean gain "
        f"{gain:.1f} dB, labels of {exact} of {len(scores)} batches exact"
    )
    assert gain >= 10


@pytest.mark.parametrize("dataset", DATASETS)
def test_inverting_gradients_in_noise_is_no_better_than_the_prior(dataset: str) -> None:
    scores, prior, _ = _inverting(dataset, strided_cnn, noise=10.0, batches=2, iterations=500)
    print(f"\nInverting Gradients in noise, {dataset}: {_figures(scores, prior)}")
    assert sum(scores) <= sum(prior)


@pytest.mark.parametrize("dataset", DATASETS)
def test_total_variation_decides_what_is_found_behind_max_pooling(dataset: str) -> None:
    """Max-pooling keeps detail out of the gradient; a strong prior makes up for a part of it."""
    found = {tv: _inverting(dataset, pooling_cnn, tv=tv) for tv in (1e-3, 1e-1)}
    for tv, (scores, prior, exact) in found.items():
        print(
            f"\nInverting Gradients, {dataset}, max-pooling CNN, batches of 8, total variation {tv}: "
            f"{_figures(scores, prior)}, labels of {exact} of {len(scores)} batches exact"
        )
    weak, strong = (sum(scores) / len(scores) for scores, _, _ in found.values())
    assert strong > weak + 1
