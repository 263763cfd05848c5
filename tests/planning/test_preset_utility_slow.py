"""Accuracy on MNIST that each protocol's `private` preset leaves, beside what it reaches as published; seed by seed.

Run with `-m slow -s` to see the figures, or as a script for the whole table:

    FDAUDIT_DATA=DIR python -m tests.planning.test_preset_utility_slow [PROTOCOL ...]
"""

from __future__ import annotations

import csv
import math
import os
import statistics
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest

import fdaudit

pytestmark = [
    pytest.mark.slow,
    pytest.mark.data,
    pytest.mark.skipif("FDAUDIT_DATA" not in os.environ, reason="FDAUDIT_DATA is unset"),
]

SEEDS = (1, 2, 3)
EPSILON = 8.0
BATCH = {"batch_size": 100, "lr": 0.2}
LOCAL = {**BATCH, "local_steps": 10, "rounds": 10}
PROTOCOLS: dict[str, dict[str, Any]] = {
    "centralized": LOCAL,
    "fedavg": {**BATCH, "rounds": 10, "local_epochs": 1},
    "fedkd": {
        **BATCH,
        "local_epochs": 10,
        "distill_rounds": 3,
        "distill_steps": 150,
        "distill_batch_size": 50,
    },
    "dafkd": {**LOCAL, "generator_width": 16, "pseudo_samples": 256, "distill_steps": 20, "distill_lr": 0.01},
    "fediod": {
        **BATCH,
        "local_epochs": 10,
        "rounds": 5,
        "steps_per_round": 20,
        "samples": 32,
        "student_steps": 20,
    },
    "selective-fd": {**BATCH, "warm_up_steps": 50, "local_steps": 5, "rounds": 10, "distill_steps": 20},
    "fedmd": {**BATCH, "warm_up_steps": 50, "local_steps": 5, "rounds": 10, "distill_steps": 20},
    "ds-fl": {**BATCH, "warm_up_steps": 50, "local_steps": 5, "rounds": 10, "distill_steps": 20},
    "cronus": {**BATCH, "warm_up_steps": 50, "local_steps": 5, "rounds": 10},
    "fedgems": {**BATCH, "warm_up_steps": 50, "local_steps": 5, "rounds": 10, "distill_steps": 20},
    "feded": {**LOCAL, "distill_steps": 20},
    "feddf": {**LOCAL, "distill_steps": 20},
    "fedftg": {**LOCAL, "iterations": 2},
    "fedgen": {**LOCAL, "alpha": 1.0, "beta": 1.0},
    "fkd": LOCAL,
    "pls": LOCAL,
}
"""Settings by which each protocol learns within a minute; the same ones under the preset and without it."""
NOISED_MESSAGES = ("fkd", "pls")
"""Presets that noise what is sent, not what is trained: a few hundred numbers a round, each of which costs."""


def spec(protocol: str, seed: int, preset: dict[str, Any]) -> dict[str, Any]:
    """Five clients of a thousand records each, 400 public images, one small network."""
    return {
        "device": "cpu",
        "threads": 1,
        "profile": "quick",
        "seed": seed,
        "clients": 5,
        "dataset": {"name": "mnist", "limit": 5400},
        "partition": {"name": "dirichlet", "alpha": 1.0},
        "splits": {"proxy": 400 / 5400, "auxiliary": 0.0, "candidates": 0},
        "model": {"name": "mlp", "params": {"widths": [64]}},
        "protocol": {"name": protocol, "params": PROTOCOLS[protocol]},
        "preset": preset,
        "references": [],
        "evaluate_every": 100,
        "record": "digest",
        "attacks": [],
        "adversaries": [bounded(protocol)],
    }


def bounded(protocol: str) -> str:
    """Whose view the preset keeps to its ε."""
    return "world" if protocol == "centralized" else "server"


def reached(protocol: str, seed: int, epsilon: float) -> tuple[float, float]:
    """Mean accuracy of the models that are left at the end, and ε of the view that the preset bounds."""
    preset = {"name": "as-published"} if math.isinf(epsilon) else {"name": "private", "epsilon": epsilon}
    with TemporaryDirectory() as folder:
        run = fdaudit.run(spec(protocol, seed, preset), Path(folder) / "run")
        with (run.directory / "utility.csv").open(encoding="utf-8", newline="") as file:
            rows = list(csv.DictReader(file))
        last = [r for r in rows if r["round"] == rows[-1]["round"]]
        published = [r for r in last if r["party"] == "server"] or last
        accuracy = statistics.mean(float(r["accuracy"]) for r in published)
        found = run.ledger(bounded(protocol)).epsilon
    print(f"{protocol}, seed {seed}, ε ≤ {epsilon:g}: ε {found:.4g}, accuracy {accuracy:.4f}", flush=True)
    return accuracy, found


EVERY = pytest.mark.parametrize("protocol", PROTOCOLS)


@EVERY
def test_as_published_the_protocol_learns_and_nothing_can_be_claimed(protocol: str) -> None:
    accuracy, found = reached(protocol, 1, math.inf)
    assert accuracy > 0.65
    assert math.isinf(found)


@EVERY
def test_the_preset_leaves_utility_where_training_is_what_is_noised(protocol: str) -> None:
    accuracy, found = reached(protocol, 1, EPSILON)
    assert found <= EPSILON
    if protocol not in NOISED_MESSAGES:
        assert accuracy > 0.35, "chance is a tenth"


def table(names: list[str]) -> None:
    """Every protocol with its preset and without, over three seeds: what `docs/results/private-presets.csv` shows."""
    for name in names:
        columns: list[float] = []
        for epsilon in (EPSILON, math.inf):
            accuracies = [100 * reached(name, seed, epsilon)[0] for seed in SEEDS]
            columns += [*accuracies, statistics.mean(accuracies)]
        print(",".join([name, *(f"{figure:.1f}" for figure in columns)]), flush=True)


if __name__ == "__main__":
    table(sys.argv[1:] or list(PROTOCOLS))
