"""Accuracy that each protocol's `private` preset leaves beside the protocol as published, both tuned alike.

Each side tries learning rates on a run's auxiliary records, and is measured with the best one. Run with
`-m slow -s`, or as a script for the table:

    python -m tests.planning.test_preset_utility_slow [PROTOCOL ...]
    python -m tests.planning.test_preset_utility_slow fedavg paired
"""

from __future__ import annotations

import csv
import math
import statistics
import sys
from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest

import fdaudit
from fdaudit.planning.simulated import simulated_case
from fdaudit.remedies.tuning import StandIn
from fdaudit.spec.schema import load_spec

pytestmark = pytest.mark.slow

SEEDS = (1, 2, 3)
EPSILON = 8.0
ROUNDS = {"batch_size": 16, "rounds": 10, "local_epochs": 5}
ANSWERS = {"batch_size": 16, "warm_up_steps": 200, "local_steps": 20, "rounds": 10, "distill_lr": 0.5}
ONCE = {"batch_size": 16, "local_epochs": 50}
PROTOCOLS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "fedavg": (ROUNDS, {}),
    "fedkd": (
        ONCE,
        {"distill_rounds": 3, "distill_steps": 150, "distill_batch_size": 50, "distill_lr": 0.01},
    ),
    "dafkd": (
        ROUNDS,
        {"generator_width": 16, "pseudo_samples": 256, "distill_steps": 20, "distill_lr": 0.01},
    ),
    "fediod": (ONCE, {"rounds": 5, "steps_per_round": 20, "samples": 32, "student_steps": 20}),
    "selective-fd": (ANSWERS, {"labels": "soft"}),
    "fedmd": (ANSWERS, {}),
    "ds-fl": (ANSWERS, {}),
    "centralized": (ROUNDS, {}),
    "standalone": (ROUNDS, {}),
    "cronus": ({n: v for n, v in ANSWERS.items() if n != "distill_lr"}, {}),
    "fedgems": (ANSWERS, {}),
    "feded": (ROUNDS, {"distill_steps": 20, "distill_lr": 0.1}),
    "feddf": (ROUNDS, {"distill_steps": 20}),
    "fedftg": (ROUNDS, {"iterations": 2}),
    "fedgen": (ROUNDS, {"alpha": 1.0, "beta": 1.0}),
    "fkd": (ROUNDS, {}),
    "pls": (ROUNDS, {}),
}
"""Settings of local training as published, which the preset chooses itself, and settings of both sides."""
PUBLISHED: tuple[dict[str, Any], ...] = ({"lr": 1.0}, {"lr": 0.3})
PRIVATE: tuple[dict[str, Any], ...] = ({}, {"lr": 1.0})
"""What each side tries. The preset's own learning rate is 2."""
WIDER: tuple[dict[str, Any], ...] = (*PUBLISHED, {"lr": 1.0, "widths": [64]}, {"lr": 0.3, "widths": [64]})
"""What FedAvg as published tries: a hidden layer too, which helps it."""
OFTEN: tuple[dict[str, Any], ...] = (
    {},
    {"rounds": 30, "local_steps": 5, "lr": 1.0},
    {"rounds": 30, "local_steps": 5, "lr": 1.0, "widths": [64]},
)
"""What private FedAvg tries: as many steps, with averages after fewer of them."""
DRAWS = 12
"""Draws of records for FedAvg, on which both sides are run."""
NOISED_MESSAGES = ("fkd", "pls")
"""Presets that noise what is sent, not what is trained."""
AS_THEY_ARE = (*NOISED_MESSAGES, "standalone")
"""Presets without DP-SGD: their settings of local training are those as published."""
Choice = Mapping[str, Any]


def spec(protocol: str, seed: int, private: bool, choice: Choice) -> dict[str, Any]:
    """Five clients of 233 or 234 digits each, 89 public images, 269 auxiliary records."""
    published, both = PROTOCOLS[protocol]
    trained = {} if private and protocol not in AS_THEY_ARE else published
    preset = {"name": "private", "epsilon": EPSILON} if private else {"name": "as-published"}
    settings = dict(choice)
    widths = settings.pop("widths", [])
    return {
        "device": "cpu",
        "threads": 1,
        "profile": "quick",
        "seed": seed,
        "clients": 5,
        "dataset": {"name": "digits"},
        "splits": {"test": 0.15, "proxy": 0.05, "auxiliary": 0.15, "candidates": 0},
        "model": {"name": "mlp", "params": {"widths": widths, "standardize": True}},
        "protocol": {"name": protocol, "params": {**trained, **both, **settings}},
        "preset": preset,
        "references": [],
        "evaluate_every": 100,
        "record": "digest",
        "attacks": [],
        "adversaries": [bounded(protocol)],
    }


def bounded(protocol: str) -> str:
    """Whose view the preset keeps to its ε."""
    return "world" if protocol in ("centralized", "standalone") else "server"


def choices(protocol: str, private: bool) -> tuple[Choice, ...]:
    """The settings that a side tries."""
    if protocol == "fedavg":
        return OFTEN if private else WIDER
    return PRIVATE if private and protocol not in AS_THEY_ARE else PUBLISHED


def tuned(run: fdaudit.Run, protocol: str, private: bool) -> Choice:
    """The choice with the highest accuracy in federations of a run's auxiliary records, on others of them."""
    utilities = []
    for choice in choices(protocol, private):
        case = simulated_case(load_spec(spec(protocol, run.case.seed, private, choice)), run.case.secrets)
        utilities.append((StandIn.of(case).utility(case), choice))
    return max(utilities, key=lambda pair: pair[0])[1]


def reached(protocol: str, seed: int, private: bool, records_of: Path | None = None) -> tuple[float, float]:
    """Mean accuracy of the models that are left at the end, and ε of the view that the preset bounds."""
    first = choices(protocol, private)[0]
    with TemporaryDirectory() as folder:
        run = fdaudit.run(spec(protocol, seed, private, first), Path(folder) / "first", seed_from=records_of)
        choice = tuned(run, protocol, private)
        if choice != first:
            asked = spec(protocol, seed, private, choice)
            run = fdaudit.run(asked, Path(folder) / "tuned", seed_from=run.directory)
        with (run.directory / "utility.csv").open(encoding="utf-8", newline="") as file:
            rows = list(csv.DictReader(file))
        last = [r for r in rows if r["round"] == rows[-1]["round"]]
        published = [r for r in last if r["party"] == "server"] or last
        accuracy = statistics.mean(float(r["accuracy"]) for r in published)
        found = run.ledger(bounded(protocol)).epsilon
    print(f"{protocol}, seed {seed}, {choice}: ε {found:.4g}, accuracy {accuracy:.4f}", flush=True)
    return accuracy, found


EVERY = pytest.mark.parametrize("protocol", PROTOCOLS)


@EVERY
def test_as_published_the_protocol_learns_and_nothing_can_be_claimed(protocol: str) -> None:
    accuracy, found = reached(protocol, 1, private=False)
    assert accuracy > 0.65
    assert math.isinf(found) == (protocol != "standalone"), "only clients alone send nothing"


@EVERY
def test_the_preset_leaves_utility_where_training_is_what_is_noised(protocol: str) -> None:
    accuracy, found = reached(protocol, 1, private=True)
    assert found <= EPSILON
    if protocol not in NOISED_MESSAGES:
        assert accuracy > 0.35, "chance is a tenth"


def costs_of_fedavg() -> list[tuple[float, float]]:
    """Accuracy of FedAvg with its preset and without, on the same records, for each draw of them."""
    pairs = []
    for seed in range(DRAWS):
        with TemporaryDirectory() as folder:
            # A run's splits are drawn from its secret: the other runs take this one's.
            plan = spec("fedavg", seed, True, {"rounds": 1})
            records_of = fdaudit.run(plan, Path(folder) / "records").directory
            private, published = (reached("fedavg", seed, side, records_of)[0] for side in (True, False))
            pairs.append((private, published))
    return pairs


def test_private_fedavg_costs_little_on_digits() -> None:
    costs = [published - private for private, published in costs_of_fedavg()]
    assert statistics.mean(costs) < 0.03


def table(names: list[str]) -> None:
    """Every protocol with its preset and without, over three seeds: what `docs/results/private-presets.csv` shows."""
    for name in names:
        columns: list[float] = []
        for private in (True, False):
            accuracies = [100 * reached(name, seed, private)[0] for seed in SEEDS]
            columns += [*accuracies, statistics.mean(accuracies)]
        print(",".join(["digits tuned", name, *(f"{figure:.1f}" for figure in columns)]), flush=True)


if __name__ == "__main__":
    if sys.argv[1:] == ["fedavg", "paired"]:
        for private, published in costs_of_fedavg():
            print(f"{private:.4f},{published:.4f}", flush=True)
    else:
        table(sys.argv[1:] or list(PROTOCOLS))
