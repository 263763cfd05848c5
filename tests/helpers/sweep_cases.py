"""What the tests of sweeps share: a grid whose runs take a second."""

from __future__ import annotations

import copy
from collections.abc import Generator, Mapping, Sequence
from typing import Any

from fdaudit.parallel.pool import Answer
from fdaudit.sweeps.worker import _outcome
from fdaudit.testing.specs import SMALL_SPEC

GRID: dict[str, Any] = {
    "sweep": 1,
    "name": "small",
    "base": {k: v for k, v in SMALL_SPEC.items() if k not in ("seed", "protocol")},
    "protocols": [
        {"name": "fedavg", "params": {"rounds": 2, "batch_size": 16, "local_steps": 1}},
        {
            "name": "standalone",
            "params": {"batch_size": 16, "local_steps": 1, "rounds": 1},
            "spec": {"adversaries": ["world"]},
        },
    ],
    "defences": [
        {
            "name": "clipped",
            "spec": {
                "defenses": [
                    {
                        "kind": "model_update",
                        "name": "gaussian-noise",
                        "params": {
                            "clip": 1.0,
                            "sigma": {"calibrate": "gaussian-noise", "releases": 2, "sensitivity": 2.0},
                        },
                    }
                ]
            },
        }
    ],
    "epsilon": [8, "inf"],
    "seeds": [1, 2],
}
"""Two protocols, of which one sends nothing that the defence could act on: six runs, two that do not apply."""


def grid(**changes: Any) -> dict[str, Any]:
    """`GRID` with some fields set; `base__clients=3` sets one below."""
    made = copy.deepcopy(GRID)
    for path, value in changes.items():
        *parents, last = path.split("__")
        node = made
        for name in parents:
            node = node[name]
        node[last] = value
    return made


def inline(pieces: Sequence[Mapping[str, Any]]) -> Generator[Answer, None, None]:
    """An executor without processes: each run in turn, here."""
    for number, piece in enumerate(pieces):
        yield number, _outcome(dict(piece), lambda *tick: None)
