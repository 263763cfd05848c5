"""Iris flowers and scikit-learn's logistic regression, whose parameters travel as a plain list of arrays."""

from __future__ import annotations

import warnings

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.datasets import load_iris
from sklearn.linear_model import LogisticRegression
from torch import Tensor, nn

Array = NDArray[np.float64]


class Softmax(nn.Module):
    """What `LogisticRegression` of three classes computes, in PyTorch: the network of the audit."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        """Return scores (n, 3) of flowers (n, 4)."""
        scores: Tensor = self.linear(x)
        return scores


def flowers(site: int, sites: int) -> tuple[Array, NDArray[np.int64]]:
    """Return the flowers (n, 4) of a site and their species (n,)."""
    x, y = load_iris(return_X_y=True)
    order = np.random.default_rng(0).permutation(len(y))[site::sites]
    return x[order], y[order]


def fitted(parameters: list[Array], site: int, sites: int) -> list[Array]:
    """Return the parameters after one pass of a solver over a site's flowers."""
    model = LogisticRegression(max_iter=1, warm_start=True, solver="saga", random_state=0)
    model.classes_ = np.arange(3)
    model.coef_, model.intercept_ = (np.array(p, dtype=np.float64) for p in parameters)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # one pass does not converge
        model.fit(*flowers(site, sites))
    return [model.coef_, model.intercept_]


def zeros() -> list[Array]:
    """Return the parameters before the first round."""
    return [np.zeros((3, 4)), np.zeros(3)]


def linear_state(parameters: list[Array]) -> dict[str, Tensor]:
    """Return parameters as those of `Softmax`."""
    return {
        n: torch.from_numpy(p).float()
        for n, p in zip(("linear.weight", "linear.bias"), parameters, strict=True)
    }
