"""The federation whose stage of attacks is timed, spread over processes and killed."""

from __future__ import annotations

from typing import Any

SPEC: dict[str, Any] = {
    "seed": 3,
    "device": "cpu",
    "threads": 2,
    "profile": "quick",
    "clients": 3,
    "dataset": {"name": "digits", "limit": 300},
    "model": {"name": "mlp", "params": {"widths": [16]}},
    "protocol": {"name": "fedavg", "params": {"rounds": 2, "local_steps": 2, "batch_size": 16}},
    "splits": {"candidates": 10},
    "references": [],
    "adversaries": ["server", "world"],
    "victims": 2,
    "attacks": [{"name": "loss-threshold"}, {"name": "gap"}],
}
