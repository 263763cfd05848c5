"""Labels behind a gradient, read off its last layer.

For mean cross-entropy over n images the last layer's bias gradient is (1/n) Σ_b (p_b − onehot(y_b)). Every image
subtracts 1/n at its own class. The softmax term can be estimated for an untrained network, because its probabilities
hardly depend on the image.

Measured on 50 untrained networks and batches of digits each, with auxiliary images as probes: all multisets of 32
labels exact, of 128 at least 92 % (DLG's LeNet, whose large initial weights are the worst case). With noise as
probes, if no auxiliary data is known: all multisets of 32 exact on networks with PyTorch's initial weights,
54 % on DLG's LeNet, where 98 % of single labels are still right.

A network that ends otherwise (in a convolution, or in a linear layer whose answers are changed once more) shows its
labels too: its last parameters' gradient is E[J^T p] − (1/n) Σ_b J_b[y_b], J being the answers' derivatives in these
parameters. Means over probes stand for E[J^T p] and for each class's J, and the shares are a least-squares fit.

Sources: Zhao, Mopuri & Bilen 2020 (iDLG, one image); Yin et al. 2021; Geng et al. 2021 (eq. 8); Wainakh et al.
2021 (LLG: estimated softmax term, negative entries certain).
"""

from __future__ import annotations

from collections.abc import Mapping

import scipy  # its packages are loaded at first use
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fdaudit.errors import UsageError
from fdaudit.models.network import call_with, inputs_of, last_layer

__all__ = [
    "expected_probabilities",
    "label_of_one",
    "probe_images",
    "recover_counts",
    "recover_labels",
]

_PROBES = 256
"""Most probes of one pass."""
_STEPS = 10_000
"""Records, about, that counts are corrected by one at a time; larger excesses take larger steps."""

_CONSTANT = 0.01
"""A class whose answer's mean derivative is shorter than this share of the longest one is constant."""


def label_of_one(gradient: Mapping[str, Tensor], weight: str, bias: str | None) -> int:
    """Return the label of the one image behind a gradient, exactly (iDLG: Zhao 2020, eq. 4).

    With a bias it is the only negative entry of the bias gradient. Without one, rows of the weight gradient are
    (p_c − onehot(y)_c) a. Only the row of y has the opposite direction to all others.

    Args:
        gradient: named gradient of cross-entropy.
        weight: name of the weight of the linear layer that answers, as `last_layer` finds it.
        bias: name of its bias, or None without one.
    """
    if bias is not None:
        return int(gradient[bias].argmin())
    rows = gradient[weight].flatten(1)
    gram = rows @ rows.T
    return int((gram.sum(1) - gram.diagonal()).argmin())


def expected_probabilities(module: nn.Module, tensors: Mapping[str, Tensor], probes: Tensor) -> Tensor:
    """Return the mean softmax output (C,) of the network with these parameters over probe images (n, c, h, w)."""
    chunks = probes.chunk(-(-len(probes) // 256))
    with torch.no_grad():
        answers = torch.cat([call_with(module, tensors, chunk) for chunk in chunks])
    return answers.softmax(1).mean(0)


def probe_images(shape: tuple[int, ...], n: int, generator: torch.Generator) -> Tensor:
    """Return stand-ins without auxiliary data: images (n, c, h, w) of random density and brightness, or rows (n, d)."""
    if len(shape) == 1:
        return torch.randn(n, *shape, generator=generator)
    x = torch.rand(n, *shape, generator=generator)
    density = torch.rand(n, 1, 1, 1, generator=generator)
    brightness = torch.rand(n, 1, 1, 1, generator=generator)
    return x * brightness * (torch.rand(n, *shape, generator=generator) < density)


def recover_counts(
    gradient: Mapping[str, Tensor], module: nn.Module, tensors: Mapping[str, Tensor], n: int, probes: Tensor
) -> Tensor:
    """Return the number of images of each class among the n behind a gradient: (C,) int64, summing to n.

    Guarantees:
      * exact for one image;
      * a class with a negative bias gradient is counted at least once, which is certain;
      * exact if, for each class, the network's summed probabilities on the batch are within 1/2 of n times those on
        the probes. This holds for untrained networks and small batches, and less often as training proceeds.

    Args:
        gradient: named gradient of mean cross-entropy.
        module: the architecture.
        tensors: parameters, and buffers, at which the gradient was computed.
        n: number of images.
        probes: (m, c, h, w) images that stand in for the clients'.
    """
    try:
        weight, bias = last_layer(module, probes)
    except UsageError:
        return _apportioned(n * _class_shares(gradient, module, tensors, n, probes), n)
    p = expected_probabilities(module, tensors, probes)
    if n == 1:
        one: Tensor = F.one_hot(torch.tensor(label_of_one(gradient, weight, bias)), len(p))
        return one
    if bias is not None:
        g = gradient[bias]
        certain = g.cpu() < 0
    else:
        # Row sums of the weight gradient are the bias's gradient times the mean sum of features (LLG).
        layer = module.get_submodule(weight.rpartition(".")[0])
        with torch.no_grad(), inputs_of(layer) as features:
            call_with(module, tensors, probes[:_PROBES])
        g = gradient[weight].sum(1) / features[0].sum(1).mean()
        certain = None
    # The bias gradient is E[p] - n_c / n, so n_c = n (E[p] - g).
    expected = n * (p - g.to(p)).double().cpu()
    return _apportioned(expected, n, certain)


def recover_labels(
    gradient: Mapping[str, Tensor], module: nn.Module, tensors: Mapping[str, Tensor], n: int, probes: Tensor
) -> Tensor:
    """Return the labels (n,) of `recover_counts`, in ascending order: a gradient does not show the batch's order."""
    counts = recover_counts(gradient, module, tensors, n, probes)
    return torch.repeat_interleave(torch.arange(len(counts)), counts)


def _apportioned(expected: Tensor, n: int, certain: Tensor | None = None) -> Tensor:
    """Return counts (C,) that sum to n, near the expected ones (C,), with one at least for a certain class."""
    # Values that follow from no cross-entropy may be of any size, or not finite: loops below must not depend on it.
    expected = expected.nan_to_num(nan=0.0).clamp(-n, n)
    counts = expected.floor().clamp_min(0)
    if certain is not None:
        counts = torch.maximum(counts, certain.double())
    while (lacking := int(n - counts.sum())) > 0:
        counts[(expected - counts).argmax()] += max(1, lacking // _STEPS)
    while (excess := int(counts.sum() - n)) > 0:
        most = torch.where(counts > 0, expected - counts, torch.inf).argmin()
        counts[most] -= min(int(counts[most]), max(1, excess // _STEPS))
    return counts.long()


def _class_shares(
    gradient: Mapping[str, Tensor], module: nn.Module, tensors: Mapping[str, Tensor], n: int, probes: Tensor
) -> Tensor:
    """Return the classes' shares (C,) float64 behind a gradient, from the derivatives of the last parameters.

    A class whose answer is constant (rectified to 0) moves nothing; such classes share what the others leave.
    """
    tensors = {name: tensor.detach().clone() for name, tensor in tensors.items()}
    z = call_with(module, tensors, probes[:2])
    last: dict[
        str, Tensor
    ] = {}  # the last parameters, until they hold values enough to tell the classes apart
    for name in reversed(list(gradient)):
        if name in tensors:
            last[name] = tensors[name].requires_grad_()
            if sum(p.numel() for p in last.values()) > 4 * z.shape[1]:
                break
    z = call_with(module, tensors, probes[:_PROBES])

    def derivative(mean: Tensor) -> Tensor:
        parts = torch.autograd.grad(mean, list(last.values()), retain_graph=True, materialize_grads=True)
        return torch.cat([part.flatten() for part in parts]).double().cpu()

    # The gradient sent is E[J^T p] - Σ_c π_c E[J_c]; rows of `J` are E[J_c], and π is the least-squares solution.
    rows = []
    for c in range(z.shape[1]):
        row = derivative(z[:, c].mean())
        rows.append(row)
    J = torch.stack(rows)
    sent = torch.cat([gradient[name].flatten() for name in last]).double().cpu()
    mixed = derivative((z.softmax(1).detach() * z).sum(1).mean()) - sent
    sizes = J.norm(dim=1)
    constant = sizes <= _CONSTANT * sizes.max()
    pi, _ = scipy.optimize.nnls(J.T.numpy(), mixed.numpy())
    shares = torch.tensor(pi).masked_fill(constant, 0)
    if constant.any():
        shares[constant] = (1 - shares.sum()).clamp_min(0) / constant.sum()
    if n == 1 and shares[~constant].sum() > 0.5:
        alike = F.cosine_similarity(J, mixed[None]).masked_fill(constant, -1)
        return F.one_hot(alike.argmax(), len(J)).double()
    if not shares.sum() > 0:
        return torch.full_like(shares, 1 / len(shares))
    return shares / shares.sum()
