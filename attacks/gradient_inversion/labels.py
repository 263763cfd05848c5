"""Labels behind a gradient, read off its last layer.

For mean cross-entropy over n images the last layer's bias gradient is (1/n) Σ_b (p_b − onehot(y_b)). Every image
subtracts 1/n at its own class. The softmax term can be estimated for an untrained network, because its probabilities
hardly depend on the image.

Measured on 50 untrained networks and batches of digits each, with auxiliary images as probes: all multisets of 32
labels exact, of 128 at least 92 % (DLG's LeNet, whose large initial weights are the worst case). With noise as
probes, if no auxiliary data is known: all multisets of 32 exact on networks with PyTorch's initial weights,
54 % on DLG's LeNet, where 98 % of single labels are still right.

Sources: Zhao, Mopuri & Bilen 2020 (iDLG, one image); Yin et al. 2021; Geng et al. 2021 (eq. 8); Wainakh et al.
2021 (LLG: estimated softmax term, negative entries certain).
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn
from torch.func import functional_call

from fdaudit.errors import UsageError

__all__ = [
    "expected_probabilities",
    "label_of_one",
    "last_layer",
    "probe_images",
    "recover_counts",
    "recover_labels",
]


def last_layer(module: nn.Module) -> tuple[str, str | None]:
    """Return the names of the weight and of the bias (None without one) of the network's last linear layer.

    Raises:
        UsageError: the network's last layer with parameters is not linear.
    """
    owners = [(name, m) for name, m in module.named_modules() if list(m.parameters(recurse=False))]
    name, layer = owners[-1] if owners else ("", module)
    if not isinstance(layer, nn.Linear):
        raise UsageError(
            "module", type(layer).__name__, "does not end in a linear layer", "Give the labels to the attack."
        )
    prefix = f"{name}." if name else ""
    return f"{prefix}weight", None if layer.bias is None else f"{prefix}bias"


def label_of_one(gradient: Mapping[str, Tensor], module: nn.Module) -> int:
    """Return the label of the one image behind a gradient, exactly (iDLG: Zhao 2020, eq. 4).

    With a bias it is the only negative entry of the bias gradient. Without one, rows of the weight gradient are
    (p_c − onehot(y)_c) a. Only the row of y has the opposite direction to all others.
    """
    weight, bias = last_layer(module)
    if bias is not None:
        return int(gradient[bias].argmin())
    rows = gradient[weight].flatten(1)
    gram = rows @ rows.T
    return int((gram.sum(1) - gram.diagonal()).argmin())


def expected_probabilities(module: nn.Module, tensors: Mapping[str, Tensor], probes: Tensor) -> Tensor:
    """Return the mean softmax output (C,) of the network with these parameters over probe images (n, c, h, w)."""
    with torch.no_grad():
        parts = [functional_call(module, dict(tensors), (p,)).softmax(1) for p in torch.split(probes, 256)]
    return torch.cat(parts).mean(0)


def probe_images(shape: tuple[int, ...], n: int, generator: torch.Generator) -> Tensor:
    """Return stand-in images (n, c, h, w) in [0, 1] without auxiliary data: noise of random density and brightness."""
    x = torch.rand(n, *shape, generator=generator)
    density, brightness = (torch.rand(n, 1, 1, 1, generator=generator) for _ in range(2))
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
    weight, bias = last_layer(module)
    p = expected_probabilities(module, tensors, probes)
    if n == 1:
        one: Tensor = torch.nn.functional.one_hot(torch.tensor(label_of_one(gradient, module)), len(p))
        return one
    # Without a bias: row sums of the weight gradient are its gradient times the mean sum of features (LLG).
    g = gradient[bias] if bias else gradient[weight].sum(1) / _feature_sum(module, tensors, probes)
    expected = n * (p - g.to(p)).double().cpu()
    counts = expected.floor().clamp_min(0)
    counts = torch.maximum(counts, (g.cpu() < 0).double()) if bias is not None else counts
    while counts.sum() < n:
        counts[(expected - counts).argmax()] += 1
    while counts.sum() > n:
        counts[torch.where(counts > 0, expected - counts, torch.inf).argmin()] -= 1
    return counts.long()


def recover_labels(
    gradient: Mapping[str, Tensor], module: nn.Module, tensors: Mapping[str, Tensor], n: int, probes: Tensor
) -> Tensor:
    """Return the labels (n,) of `recover_counts`, in ascending order: a gradient does not show the batch's order."""
    counts = recover_counts(gradient, module, tensors, n, probes)
    return torch.repeat_interleave(torch.arange(len(counts)), counts)


def _feature_sum(module: nn.Module, tensors: Mapping[str, Tensor], probes: Tensor) -> Tensor:
    """Return the mean over the probes of the sum of the last layer's inputs."""
    name = last_layer(module)[0].rpartition(".")[0]
    seen: list[Tensor] = []
    hook = module.get_submodule(name).register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0]))
    try:
        with torch.no_grad():
            functional_call(module, dict(tensors), (probes[:256],))
    finally:
        hook.remove()
    total: Tensor = seen[0].sum(1).mean()
    return total
