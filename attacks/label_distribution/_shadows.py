"""Calibration on shadow clients: simulate the messages of clients with known class shares.

The adversary distributes its auxiliary records unevenly over shadow clients and runs the protocol with them. It reads
each one's messages as it reads a victim's. A log-linear model, the same for every class, then maps the features to
class shares: π_c ∝ exp(w · φ_c). It has few weights, so a dozen shadow clients are enough.

Guarantees:
  * shadow clients hold only auxiliary records, and none holds a record twice: copies would distort a density estimate
    or a threshold on held-out records;
  * guessed shares are positive and sum to 1; all classes are treated equally, for any number of classes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from fdaudit.config import Config
from fdaudit.goals.label_distribution import LabelDistribution
from fdaudit.storage.cache import digest_of
from fdaudit.training.optimizers import lbfgs

from .._uploads import clients_of
from ._guesses import guesses

if TYPE_CHECKING:
    from fdaudit.adversary.knowledge import Knowledge
    from fdaudit.adversary.view import View

__all__ = ["CalibrationConfig", "Reading", "ShareModel", "calibrated", "calibrated_guesses", "draw_shadow"]

Reading = Callable[["View", str], "Tensor | None"]
"""A reading of a client in a view: (C, F) features of the classes, or None if there is nothing."""

_SIZES = (0.2, 0.8)
"""Records of a shadow client as a share of the auxiliary ones, log-uniform, before a class runs out of records."""
_CONCENTRATIONS = (0.2, 5.0)
"""Range of shadow clients' Dirichlet concentrations, drawn log-uniformly; the clients' own is unknown."""


class CalibrationConfig(Config):
    """Settings of a calibration on shadow clients."""

    shadows: int = Field(40, ge=1, le=100_000)
    """Smallest number of shadow clients for calibration; whole federations are rehearsed."""
    penalty: float = Field(0.001, gt=0)
    """Ridge penalty of the calibration, in nats for each squared weight."""


@dataclass(frozen=True, eq=False)
class ShareModel:
    """Class shares from features: π = softmax over classes of w · (φ - mean) / scale.

    Attributes:
        mean: (F,) of the features on shadow clients.
        scale: (F,) their standard deviations.
        weights: (F,).
    """

    mean: Tensor
    scale: Tensor
    weights: Tensor

    def __call__(self, features: Tensor) -> Tensor:
        """Return shares (..., C) for features (..., C, F)."""
        return (((features.double() - self.mean) / self.scale) @ self.weights).softmax(-1)

    @classmethod
    def fit(cls, features: Tensor, shares: Tensor, penalty: float) -> ShareModel:
        """Minimise the mean KL(true || guessed) over m clients plus `penalty` times the squared weights.

        Args:
            features: (m, C, F).
            shares: (m, C), rows summing to 1.
            penalty: of the weights, in nats.
        """
        phi = features.double()
        pi = shares.double()
        mean = phi.mean((0, 1))
        scale = (phi - mean).square().mean((0, 1)).sqrt().clamp_min(1e-9)
        z = (phi - mean) / scale
        w = torch.zeros(phi.shape[2], dtype=torch.float64, requires_grad=True)
        optimizer = lbfgs([w], 100)

        def closure() -> Tensor:
            optimizer.zero_grad()
            loss = -(pi * (z @ w).log_softmax(1)).sum(1).mean() + penalty * w.square().sum()
            loss.backward()
            return loss

        optimizer.step(closure)
        return cls(mean, scale, w.detach())


def draw_shadow(
    x: Tensor, y: Tensor, classes: int, generator: torch.Generator
) -> tuple[tuple[Tensor, Tensor], Tensor]:
    """Draw one shadow client's records with uneven classes, each at most once; return them with their shares (C,).

    Args:
        x: (n, c, h, w) auxiliary records.
        y: (n,) their classes.
        classes: number of classes C.
        generator: for every draw.
    """
    # PyTorch's Dirichlet sampler takes no generator, so NumPy draws, seeded by ours.
    seed = int(torch.randint(2**62, (), generator=generator))
    rng = np.random.default_rng(seed)
    size = max(2, round(len(y) * _between(_SIZES, rng)))
    concentration = _between(_CONCENTRATIONS, rng)
    present = torch.bincount(y, minlength=classes).nonzero().flatten().tolist()
    counts = rng.multinomial(size, rng.dirichlet([concentration] * len(present)))
    rows = []
    for label, count in zip(present, counts.tolist(), strict=True):
        of_class = (y == label).nonzero().flatten()
        order = torch.from_numpy(rng.permutation(len(of_class)))
        rows.append(of_class[order[:count]])
    index = torch.cat(rows)
    own_counts = torch.bincount(y[index], minlength=classes).double()
    return (x[index], y[index]), own_counts / own_counts.sum()


def calibrated(read: Reading, view: View, knowledge: Knowledge, shadows: int, penalty: float) -> ShareModel:
    """Fit a share model to at least `shadows` shadow clients, in federations as large as the view's.

    The auxiliary records alone determine the random draws, so adversaries with the same records rehearse the same
    federations.

    Raises:
        ValueError: the adversary has no auxiliary records or cannot rehearse, or reads nothing about any shadow.
    """
    if knowledge.auxiliary is None or knowledge.rehearse is None:
        raise ValueError("calibrated: needs auxiliary records and a rehearsal. Ask `applicable` first.")
    x, y = knowledge.auxiliary
    clients = clients_of(view)
    digest = digest_of({"what": "shadow federations", "clients": len(clients)}, x, y)
    generator = torch.Generator().manual_seed(int(digest[:15], 16))
    features, shares = [], []
    for _ in range(math.ceil(shadows / len(clients))):
        data, true_shares = [], []
        for _ in clients:
            records, own_shares = draw_shadow(x, y, knowledge.classes, generator)
            data.append(records)
            true_shares.append(own_shares)
        seed = int(torch.randint(2**62, (), generator=generator))
        rehearsal = knowledge.rehearse(data, seed)
        for client, own_shares in zip(clients, true_shares, strict=True):
            reading = read(rehearsal, client)
            if reading is not None:
                features.append(reading)
                shares.append(own_shares)
    if not features:
        raise ValueError("calibrated: nothing could be read about any shadow client")
    return ShareModel.fit(torch.stack(features), torch.stack(shares), penalty)


def calibrated_guesses(
    read: Reading, view: View, knowledge: Knowledge, targets: Sequence[str], config: CalibrationConfig
) -> tuple[LabelDistribution, ...]:
    """Return one guess a victim, by a share model of a reading; equal shares where nothing can be read."""
    model = calibrated(read, view, knowledge, config.shadows, config.penalty)

    def shares(target: str) -> Tensor | None:
        features = read(view, target)
        if features is None:
            return None
        return model(features)

    return guesses(targets, shares, knowledge.classes)


def _between(bounds: tuple[float, float], rng: np.random.Generator) -> float:
    """Draw a number log-uniformly."""
    return math.exp(rng.uniform(math.log(bounds[0]), math.log(bounds[1])))
