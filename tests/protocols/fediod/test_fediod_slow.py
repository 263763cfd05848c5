"""What FedIOD reaches on MNIST without auxiliary data, on the reduced example, seed by seed.

Run with `-m slow -s` to see the figures. Each seed is three runs of a few minutes.
"""

from __future__ import annotations

import csv
import time
from pathlib import Path
from typing import Any

import pytest
import yaml

import fdaudit

from ...helpers.docs_pages import ROOT
from ...helpers.marks import SLOW_ON_DATA

pytestmark = SLOW_ON_DATA

EXAMPLE = ROOT / "examples" / "paper" / "fediod-mnist-small.yaml"


def reached(folder: Path, seed: int, alpha: float, **params: Any) -> tuple[float, float | None]:
    """Accuracy of the published student, and the mean standalone client's unless weights are changed."""
    spec = yaml.safe_load(EXAMPLE.read_text(encoding="utf-8"))
    spec |= {"seed": seed, "device": "cpu", "threads": 1, "references": [] if params else ["standalone"]}
    spec["partition"]["alpha"] = alpha
    spec["protocol"]["params"] |= params
    start = time.process_time()
    directory = fdaudit.run(spec, folder).directory
    with (directory / "utility.csv").open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    student = [float(r["accuracy"]) for r in rows if r["party"] == "server"][-1]
    alone = [float(r["accuracy"]) for r in rows if r["line"] == "standalone"]
    mean = sum(alone) / len(alone) if alone else None
    spent = time.process_time() - start
    beside = "" if mean is None else f", mean standalone client {mean:.4f}"
    print(
        f"\nseed {seed}, alpha {alpha}, {params}: student {student:.4f}{beside}; {spent:.0f} s of processor time"
    )
    return student, mean


SEEDS = pytest.mark.parametrize("seed", [1, 2, 3])


@SEEDS
def test_uneven_clients_the_student_beats_those_who_learn_alone(seed: int, tmp_path: Path) -> None:
    student, alone = reached(tmp_path / "run", seed, 0.1)
    assert alone is not None
    assert student >= alone + 0.2


def test_uneven_clients_eq_8_beats_plain_averaging_on_average(tmp_path: Path) -> None:
    """By seed it need not: with initial weights of each client's own, plain averages win in one seed of three."""
    gains = []
    for seed in (1, 2, 3):
        student, _ = reached(tmp_path / f"eq8-{seed}", seed, 0.1)
        plain, _ = reached(tmp_path / f"plain-{seed}", seed, 0.1, weights="uniform")
        gains.append(student - plain)
    assert sum(gains) > 0


@SEEDS
def test_milder_clients_the_student_is_not_below_those_who_learn_alone(seed: int, tmp_path: Path) -> None:
    student, alone = reached(tmp_path / "run", seed, 1.0)
    assert alone is not None
    assert student >= alone
