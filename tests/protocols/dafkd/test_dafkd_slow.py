"""What DaFKD reaches on MNIST beside FedAvg and its own ensemble without weights, on the reduced example, by seed.

Run with `-m slow -s` to see the figures, or run this file as a script with the arguments
`FOLDER 0.1,0.05 1,2,3 fedavg,eq7,uniform` for the rows of the table in docs/results.md.
"""

from __future__ import annotations

import csv
import os
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import yaml

import fdaudit

pytestmark = [
    pytest.mark.slow,
    pytest.mark.data,
    pytest.mark.skipif("FDAUDIT_DATA" not in os.environ, reason="FDAUDIT_DATA is unset"),
]
EXAMPLE = Path(__file__).parents[3] / "examples" / "paper" / "dafkd-mnist-small.yaml"
FEDAVG = ("rounds", "local_steps", "batch_size", "lr", "weighting")
"""What FedAvg takes over: the same local training and the same average, for the same rounds."""


def reached(folder: Path, seed: int, alpha: float, what: str) -> float:
    """Accuracy of the published model in percent, of `fedavg`, or of `dafkd` with weights `eq7` or `uniform`."""
    spec: dict[str, Any] = yaml.safe_load(EXAMPLE.read_text(encoding="utf-8"))
    spec |= {"seed": seed, "device": "cpu", "threads": 1}
    spec["partition"]["alpha"] = alpha
    params = spec["protocol"]["params"]
    if what == "fedavg":
        spec["protocol"] = {"name": "fedavg", "params": {name: params[name] for name in FEDAVG}}
    else:
        params["weights"] = what
    start = time.process_time()
    directory = fdaudit.run(spec, folder).directory
    spent = time.process_time() - start
    with (directory / "utility.csv").open(encoding="utf-8", newline="") as file:
        rows = [r for r in csv.DictReader(file) if r["party"] == "server"]
    curve = {int(r["round"]) + 1: round(100 * float(r["accuracy"]), 2) for r in rows}
    print(f"seed {seed}, alpha {alpha}, {what}: {curve}; {spent:.0f} s of processor time", flush=True)
    return curve[max(curve)]


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_dafkd_keeps_up_with_fedavg_and_its_weights_are_worth_it(seed: int, tmp_path: Path) -> None:
    """The paper: 95.56 % against 95.16 % for FedAvg and 94.14 % without correlation.

    The example averages by records. With the paper's plain averages five seeds show no gain of Eq. 7 over uniform
    weights that differs from zero: `examples/sweep-dafkd.yaml`, docs/results.md.
    """
    fedavg, eq7, uniform = (
        reached(tmp_path / what, seed, 0.1, what) for what in ("fedavg", "eq7", "uniform")
    )
    assert eq7 >= fedavg - 1
    assert eq7 > uniform


if __name__ == "__main__":
    folder, alphas, seeds, lines = (Path(sys.argv[1]), *(part.split(",") for part in sys.argv[2:5]))
    for alpha in map(float, alphas):
        for seed in map(int, seeds):
            for what in lines:
                reached(folder / f"{seed}-{alpha}-{what}", seed, alpha, what)
