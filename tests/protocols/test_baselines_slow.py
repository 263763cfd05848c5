"""The baselines' findings on MNIST, strong non-IID: what Shao, Wu & Zhang 2023 (Table 1) say of them, at reduced scale.

Run with `-m slow -s` to see the figures. Each run takes the settings of its `examples/paper/*-mnist-small.yaml`.
"""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import pytest
import yaml

import fdaudit

from ..helpers.docs_pages import ROOT
from ..helpers.marks import SLOW_ON_DATA

pytestmark = SLOW_ON_DATA
SEEDS = (1, 2, 3)


def accuracies(folder: Path, protocol: str, seed: int, **params: Any) -> dict[tuple[str, str], float]:
    """The last round's mean accuracy, by line (the protocol's or a reference) and role."""
    spec = yaml.safe_load((ROOT / "examples" / "paper" / f"{protocol}-mnist-small.yaml").read_text("utf-8"))
    spec |= {"seed": seed, "device": "cpu", "threads": 1}
    spec["protocol"]["params"] |= params
    run = fdaudit.run(spec, folder).directory
    found: dict[tuple[str, str], list[float]] = {}
    with (run / "utility.csv").open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    for row in rows:
        if int(row["round"]) == max(int(r["round"]) for r in rows if r["line"] == row["line"]):
            found.setdefault((row["line"], row["party"].partition("/")[0]), []).append(float(row["accuracy"]))
    means = {key: sum(values) / len(values) for key, values in found.items()}
    print(f"{protocol}, seed {seed}:", {"/".join(k): round(100 * v, 1) for k, v in means.items()})
    return means


@pytest.mark.parametrize("seed", SEEDS)
def test_fedmd_with_hard_labels_reaches_35_percent_at_most(seed: int, tmp_path: Path) -> None:
    """The paper: 18.9 %. Every client votes for its own class, so the votes say nothing."""
    assert accuracies(tmp_path / "run", "fedmd", seed)["fedmd", "client"] <= 0.35


@pytest.mark.parametrize("protocol", ["fkd", "pls"])
@pytest.mark.parametrize("seed", SEEDS)
def test_class_wise_means_teach_nothing_to_clients_of_one_class(
    protocol: str, seed: int, tmp_path: Path
) -> None:
    """The paper: 10.0 %, like clients that learn alone. Within 2 points of them here."""
    found = accuracies(tmp_path / "run", protocol, seed)
    assert abs(found[protocol, "client"] - found["standalone", "client"]) <= 0.02
