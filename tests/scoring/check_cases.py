"""Runs on which a claimed ε is checked: DP-SGD on few records and loud canaries, with its noise or without it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from fdaudit import defenses


def audited(noise_multiplier: float, **changes: Any) -> dict[str, Any]:
    """One client whose model learns 250 of 500 canaries, coins of which the server guesses 100."""
    training = {"clip": 1.0, "noise_multiplier": noise_multiplier, "sample_rate": 0.1}
    return {
        "seed": 11,
        "profile": "quick",
        "device": "cpu",
        "threads": 1,
        "clients": 1,
        "victims": 1,
        "dataset": {"name": "digits", "limit": 200},
        "splits": {"test": 0.1, "proxy": 0.0, "auxiliary": 0.1, "candidates": 10},
        "canaries": {"count": 500, "guesses": 100, "kind": "noise"},
        "model": {"name": "mlp", "params": {"widths": [256]}},
        "protocol": {
            "name": "fedavg",
            "params": {"rounds": 6, "local_steps": 50, "batch_size": 100, "lr": 2.0, "momentum": 0.9},
        },
        "withhold": ["sample_count"],
        "references": [],
        "adversaries": ["server"],
        "attacks": [{"name": "loss-threshold"}],
        "defenses": [{"at": "training", "name": "dp-sgd", "params": training}],
        **changes,
    }


@contextmanager
def without_noise() -> Iterator[None]:
    """DP-SGD that forgets its noise and still says what the noise would guarantee."""
    rule = defenses.REGISTRY.load("dp-sgd")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            rule, "noised", lambda self, total, noise: {n: t / self.expected_batch for n, t in total.items()}
        )
        yield
