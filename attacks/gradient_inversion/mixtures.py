"""Class shares behind an upload: the last layer's gradient as a mixture of per-class gradients."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
from scipy.optimize import nnls
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn import functional as F

from .labels import last_layer

__all__ = ["class_gradients", "mixture"]


def class_gradients(
    module: nn.Module, tensors: Mapping[str, Tensor], x: Tensor, y: Tensor, classes: int
) -> Tensor:
    """Return G (C, C, F + 1): the last layer's mean gradient of each class, bias last; 0 for a class without records.

    Args:
        module: the network, in evaluation mode.
        tensors: its parameters and buffers.
        x: (n, c, h, w) records.
        y: (n,) their classes.
        classes: number of classes C.
    """
    layer = module.get_submodule(last_layer(module)[0].rpartition(".")[0])
    seen: list[Tensor] = []
    hook = layer.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0].detach()))
    named = {n: t.to(x.device) for n, t in tensors.items()}
    try:
        with torch.no_grad():
            z = torch.cat([functional_call(module, named, (part,)) for part in x.split(512)])
    finally:
        hook.remove()
    a = torch.cat(seen).double()
    a = torch.cat([a, a.new_ones(len(a), 1)], 1)
    error = z.double().softmax(1) - F.one_hot(y, classes)
    sums = [error[y == c].T @ a[y == c] / max(1, int((y == c).sum())) for c in range(classes)]
    return torch.stack(sums).cpu()


def mixture(columns: list[Tensor], seen: list[Tensor]) -> Tensor:
    """Return shares (C,), π ≥ 0 minimising Σ ‖Σ_c π_c G_c - g‖² over uploads; they sum to 1, or to 0 if nothing fits.

    Args:
        columns: for each upload G (C, C, F), per-class gradients.
        seen: for each upload g (C, F), the gradient, or minus the update.
    """
    classes = len(columns[0])
    gram, right = np.zeros((classes, classes)), np.zeros(classes)
    for G, g in zip(columns, seen, strict=True):
        flat = G.reshape(classes, -1)
        gram += (flat @ flat.T).numpy()
        right += (flat @ g.double().flatten()).numpy()
    # The normal equations' square root, so that what is solved has C rows however large the layer is.
    gram += np.eye(classes) * (1e-9 * np.trace(gram) / classes + 1e-300)
    factor = np.linalg.cholesky(gram)
    pi, _ = nnls(factor.T, np.linalg.solve(factor, right))
    total = pi.sum()
    return torch.from_numpy(pi / total if total > 0 else pi)
