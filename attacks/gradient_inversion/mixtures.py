"""Class shares behind an upload: the last layer's gradient as a mixture of per-class gradients.

With C classes and a layer of F inputs all per-class gradients have C²F values: for 40 classes and 80,000 inputs a
gigabyte. They are made in blocks of inputs, and a block is dropped once its inner products are known.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import scipy  # its packages are loaded at first use
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fdaudit.models.network import call_with, inputs_of, last_layer, moved

__all__ = ["LastLayer", "halfway", "mixture_of"]

_BLOCK = 1 << 24
"""Most values of per-class gradients at once. A constant, and not the free memory: it decides the last bits."""


@dataclass(frozen=True, eq=False)
class LastLayer:
    """One pass of records through a network, as its last layer sees it.

    Attributes:
        error: (n, C) probabilities less one-hot classes, float64.
        inputs: (n, F + 1) inputs of the layer, the last one 1 for the bias.
        y: (n,) classes.
    """

    error: Tensor
    inputs: Tensor
    y: Tensor

    @classmethod
    def of(
        cls, module: nn.Module, tensors: Mapping[str, Tensor], x: Tensor, y: Tensor, classes: int
    ) -> LastLayer:
        """Pass records x (n, c, h, w) of classes y (n,) through a network with these tensors."""
        weight, _ = last_layer(module, x)
        layer = module.get_submodule(weight.rpartition(".")[0])
        on_device = moved(tensors, x.device)
        chunks = x.chunk(-(-len(x) // 512))
        with torch.no_grad(), inputs_of(layer) as layer_inputs:
            answers = torch.cat([call_with(module, on_device, chunk) for chunk in chunks])
        a = torch.cat(layer_inputs)
        a = torch.cat([a, a.new_ones(len(a), 1)], 1)
        error = answers.double().softmax(1) - F.one_hot(y, classes)
        return cls(error, a, y)

    @property
    def finite(self) -> bool:
        """Return whether all values are; BatchNorm's statistics after one step may send them beyond all numbers."""
        return bool(self.error.isfinite().all() and self.inputs.isfinite().all())

    def gradients(self, part: slice = slice(None)) -> Tensor:
        """Return the classes' mean gradients (C, C, width) in some inputs; 0 for a class without records."""
        a, classes = self.inputs[:, part].double(), self.error.shape[1]
        out = a.new_empty(classes, classes, a.shape[1])
        for c in range(classes):
            own = self.y == c
            out[c] = self.error[own].T @ a[own] / max(1, int(own.sum()))
        return out.cpu()


def halfway(before: LastLayer, after: LastLayer, sent: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield per-class gradients (C, C, f) and the sent values (C, f), block by block of the layer's inputs.

    Args:
        before: the pass at the model before an upload.
        after: the pass at the model after it; the gradients are means of both.
        sent: (C, F + 1) the gradient, or minus the update.
    """
    width = max(1, _BLOCK // len(sent) ** 2)
    for start in range(0, sent.shape[1], width):
        part = slice(start, start + width)
        gradients = before.gradients(part)
        if after is not before:
            gradients.add_(after.gradients(part)).div_(2)
        yield gradients, sent[:, part]


def mixture_of(parts: Iterable[tuple[Tensor, Tensor]], classes: int) -> Tensor:
    """Return shares (C,), π ≥ 0 minimising Σ ‖Σ_c π_c G_c - g‖² over parts; they sum to 1, or to 0 if nothing fits.

    Args:
        parts: uploads, or blocks of them, one at a time: per-class gradients G (C, C, f), and the gradient, or minus
            the update, g (C, f).
        classes: C.
    """
    gram = np.zeros((classes, classes))
    right = np.zeros(classes)
    for G, g in parts:
        flat = G.reshape(classes, -1)
        gram += (flat @ flat.T).numpy()
        right += (flat @ g.double().flatten()).numpy()
    # The normal equations' square root L, LLᵀ = GGᵀ: ‖Lᵀπ - L⁻¹Gg‖ differs from ‖Gᵀπ - g‖ by a constant, and what is
    # solved has C rows however large the layer is.
    gram += np.eye(classes) * (1e-9 * np.trace(gram) / classes + 1e-300)
    factor = np.linalg.cholesky(gram)
    pi, _ = scipy.optimize.nnls(factor.T, np.linalg.solve(factor, right))
    total = pi.sum()
    if total > 0:
        pi = pi / total
    return torch.from_numpy(pi)
