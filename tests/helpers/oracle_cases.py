"""Small specs in which somebody may ask a model."""

from __future__ import annotations

from typing import Any

from .run_cases import three_clients

__all__ = ["NOISE", "PRIVATE", "on_message", "spec"]

NOISE = {"sigma": 400.0, "clip": 1.0}
PRIVATE = {
    "at": "training",
    "name": "dp-sgd",
    "params": {"clip": 1.0, "noise_multiplier": 2.0, "sample_rate": 0.1},
}


def spec(protocol: str, params: dict[str, Any] | None = None, **changes: Any) -> dict[str, Any]:
    own = {
        "seed": 5,
        "model": {"name": "mlp", "params": {"widths": [8]}},
        "protocol": {"name": protocol, "params": params or {"rounds": 2, "local_steps": 2}},
        "splits": {"candidates": 6, "auxiliary": 0.2},
        "adversaries": ["world"],
        "victims": 1,
        "queries": 400,
    }
    return three_clients(**own | changes)


def on_message(
    kind: str, name: str = "gaussian-noise", sender: str = "client", **params: Any
) -> dict[str, Any]:
    return {"kind": kind, "sender": sender, "name": name, "params": params or NOISE}
