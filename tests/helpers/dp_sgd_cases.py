"""The rule of DP-SGD, with noise or without, and small trainings under it."""

from __future__ import annotations

import torch
from fdaudit.defenses import REGISTRY

from fdaudit.config import validate
from fdaudit.rng import SecretStream, child
from fdaudit.testing.federation import CLASSES, SHAPE, initial
from fdaudit.training.private_step import Guard
from fdaudit.training.trainer import Job

CLS = REGISTRY.load("dp-sgd")
SECRET = b"a secret of sixteen bytes or more"
N = 12
LR = 0.3
HUGE = 1e6


def rule(clip=1.0, noise=0.0, q=1.0, expected=N):
    """The rule; without noise, which a spec cannot ask for, so that sums can be compared."""
    config = validate(CLS.Config, {"clip": clip, "noise_multiplier": noise or 1.0, "sample_rate": q})
    return CLS(config.model_copy(update={"noise_multiplier": noise}), expected)


def stream(path="m"):
    return SecretStream(SECRET, path)


def data(n=N, seed=0):
    x = torch.rand(n, *SHAPE, generator=child(seed, "x"))
    return x, torch.randint(CLASSES, (n,), generator=child(seed, "y"))


def job(made, steps=1, *, targets=None, n=N, path="m", **more):
    x, y = data(n)
    guard = Guard(made, stream(path), steps)
    targets = y if targets is None else targets
    return Job(party="c", parameters=initial(), x=x, targets=targets, batches=(), guard=guard, **more)
