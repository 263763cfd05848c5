"""Small specs and cases: two clients, two rounds, a network of 314 parameters."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

from fdaudit.planning.case import Case
from fdaudit.planning.simulated import simulated_case
from fdaudit.spec.schema import load_spec
from fdaudit.storage.vault import Secrets

__all__ = ["SMALL_SPEC", "small_case", "small_spec"]

SMALL_SPEC: Mapping[str, Any] = {
    "seed": 7,
    "profile": "quick",
    "device": "cpu",
    "threads": 1,
    "clients": 2,
    "victims": 1,
    "dataset": {"name": "digits", "limit": 100},
    "splits": {"test": 0.2, "proxy": 0.0, "auxiliary": 0.1, "candidates": 4},
    "model": {"name": "mlp", "params": {"widths": [4]}},
    "protocol": {"name": "fedavg", "params": {"rounds": 2, "batch_size": 16, "local_steps": 1}},
    "references": [],
    "adversaries": ["server"],
    "attacks": [],
}
"""A spec of nine messages that runs in a fraction of a second."""


def small_spec(**changes: Any) -> dict[str, Any]:
    """Return `SMALL_SPEC` with some fields set; `protocol__params__rounds=3` sets one below."""
    spec = copy.deepcopy(dict(SMALL_SPEC))
    for path, value in changes.items():
        *parents, last = path.split("__")
        node = spec
        for name in parents:
            node = node.setdefault(name, {})
        node[last] = value
    return spec


def small_case(**changes: Any) -> Case:
    """Return the case of `small_spec(**changes)`: the federation, its records and the truth about them."""
    spec = load_spec(small_spec(**changes))
    return simulated_case(spec, Secrets.draw(spec.seed))
