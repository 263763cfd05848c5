"""FedKD's findings on MNIST at reduced scale: 10 clients of 300 records, 5,000 public images, three seeds.

Run with `-m slow -s` to see the figures. FDAUDIT_DATA must hold MNIST.
"""

from __future__ import annotations

import csv
import statistics
import time
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest

import fdaudit
from fdaudit.transcript.transcript import read_messages

from ...helpers.marks import SLOW_ON_DATA

pytestmark = SLOW_ON_DATA

SEEDS = (1, 2, 3)
BARE = {"levels": None, "gamma": None}
PLAIN = {"weights": "uniform"}
SETTINGS = {
    "local_epochs": 15,
    "batch_size": 32,
    "lr": 0.05,
    "momentum": 0.9,
    "weight_decay": 3e-4,
    "distill_rounds": 4,
    "distill_steps": 150,
    "distill_batch_size": 256,
}


def spec(seed: int, alpha: float, protocol: str, params: dict[str, Any], **more: Any) -> dict[str, Any]:
    """Of 8,000 images 5,000 are public; the clients share the rest."""
    return {
        "seed": seed,
        "device": "cpu",
        "threads": 1,
        "clients": 10,
        "dataset": {"name": "mnist", "limit": 8000},
        "splits": {"proxy": 0.625, "auxiliary": 0.0, "candidates": 0},
        "partition": {"name": "dirichlet", "alpha": alpha},
        "model": {"name": "cnn-5-5"},
        "protocol": {"name": protocol, "params": params},
        "evaluate_every": 10,
        "references": [],
        "attacks": [],
        "adversaries": ["server"],
        **more,
    }


def measured(alpha: float, seed: int, **change: Any) -> dict[str, float]:
    """One run, made once: accuracies in percent of the central model and of clients alone, bytes, largest logit."""
    return _measured(alpha, seed, tuple(change.items()))


@cache
def _measured(alpha: float, seed: int, change: tuple[tuple[str, Any], ...]) -> dict[str, float]:
    began = time.monotonic()
    with TemporaryDirectory() as folder:
        run = fdaudit.run(spec(seed, alpha, "fedkd", {**SETTINGS, **dict(change)}), Path(folder) / "run")
        rows = list(csv.DictReader((run.directory / "utility.csv").read_text().splitlines()))
        last = {r["party"]: 100 * float(r["accuracy"]) for r in rows if r["round"] == rows[-1]["round"]}
        view = run.view("aggregator")
        largest = max(float(view.tensors(m)["values"].abs().max()) for m in view.select(kind="logits"))
        made = {
            "central": last.pop("server"),
            "alone": statistics.mean(last.values()),
            "worst alone": min(last.values()),
            "bytes": total_bytes(run.directory),
            "range": largest,
            "seconds": time.monotonic() - began,
        }
    shown = ", ".join(f"{name} {value:,.1f}" for name, value in made.items())
    print(f"\nalpha {alpha}, seed {seed}, {dict(change) or 'as in the paper'}: {shown}", flush=True)
    return made


def total_bytes(directory: Path) -> int:
    """What crossed the wire, counted once for each receiver."""
    return sum(m.bytes_on_wire * len(m.receivers) for m in read_messages(directory / "transcript"))


def mean(name: str, alpha: float, **change: Any) -> float:
    return statistics.mean(measured(alpha, seed, **change)[name] for seed in SEEDS)


def test_the_central_model_is_8_points_above_the_mean_client_alone_at_alpha_1() -> None:
    assert mean("central", 1.0) - mean("alone", 1.0) >= 8


def test_the_central_model_is_30_points_above_the_mean_client_alone_at_alpha_0_1() -> None:
    assert mean("central", 0.1) - mean("alone", 0.1) >= 30


def test_class_count_weights_beat_plain_averaging_at_alpha_0_1() -> None:
    assert mean("central", 0.1) > mean("central", 0.1, **PLAIN)


@pytest.mark.parametrize("alpha", [1.0, 0.1])
def test_200_levels_and_noise_of_scale_1_cost_less_than_2_points(alpha: float) -> None:
    """And hide nothing: the logits span tens, so that the next grid point and the noise's scale are both small."""
    assert abs(mean("central", alpha) - mean("central", alpha, **BARE)) <= 2
    assert min(measured(alpha, seed)["range"] for seed in SEEDS) > 20


def test_a_hundredth_of_the_bytes_of_100_rounds_of_fedavg(tmp_path: Path) -> None:
    params = {"rounds": 100, "local_steps": 1, "batch_size": 8}
    more = {"record": "digest", "evaluate_every": 100}
    run = fdaudit.run(spec(1, 1.0, "fedavg", params, **more), tmp_path / "fedavg")
    fedavg, fedkd = total_bytes(run.directory), measured(1.0, 1)["bytes"]
    print(f"\nbytes: FedAvg {fedavg:,}, FedKD {fedkd:,.0f}, {fedavg / fedkd:.0f} times fewer", flush=True)
    assert fedavg >= 100 * fedkd


def test_every_run_takes_less_than_20_minutes() -> None:
    assert max(measured(alpha, seed)["seconds"] for alpha in (1.0, 0.1) for seed in SEEDS) < 20 * 60
