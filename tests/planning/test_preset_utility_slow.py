"""Accuracy that each protocol's `private` preset leaves at an ε beside the protocol as published, each tuned.

Each side tries a few settings on a run's auxiliary records, anew at each ε, and is measured with the best of them.
Run with `-m slow -s`, or as a script for the table:

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
LEVELS = (math.inf, EPSILON, 4.0, 1.0)
"""Each ε of the table; at infinity the protocol as published."""
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
PRIVATE: tuple[dict[str, Any], ...] = ({"lr": 2.0}, {}, {"lr": 0.5})
"""What each side tries. The preset's own learning rate is 1."""
SELDOM: tuple[dict[str, Any], ...] = (*PUBLISHED, {"lr": 1.0, "rounds": 1, "local_epochs": 50})
"""What a protocol tries whose messages are noised: one message, which takes all of ε, among them."""
WIDER: tuple[dict[str, Any], ...] = (*PUBLISHED, {"lr": 1.0, "widths": [64]}, {"lr": 0.3, "widths": [64]})
"""What FedAvg as published tries: a hidden layer too, which helps it."""
OFTEN: tuple[dict[str, Any], ...] = (
    {"lr": 2.0},
    {"rounds": 30, "local_steps": 5},
    {"rounds": 30, "local_steps": 5, "widths": [64]},
)
"""What private FedAvg tries: as many steps, with averages after fewer of them."""
DRAWS = 12
"""Draws of records for FedAvg, on which both sides are run."""
NOISED_MESSAGES = ("fkd", "pls")
"""Presets that noise what is sent, not what is trained."""
AS_THEY_ARE = (*NOISED_MESSAGES, "standalone")
"""Presets without DP-SGD: their settings of local training are those as published."""
Choice = Mapping[str, Any]


def spec(protocol: str, seed: int, epsilon: float, choice: Choice) -> dict[str, Any]:
    """Five clients of 233 or 234 digits each, 89 public images, 269 auxiliary records."""
    private = math.isfinite(epsilon)
    published, both = PROTOCOLS[protocol]
    trained = {} if private and protocol not in AS_THEY_ARE else published
    preset = {"name": "private", "epsilon": epsilon} if private else {"name": "as-published"}
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
    if private and protocol in NOISED_MESSAGES:
        return SELDOM
    return PRIVATE if private and protocol not in AS_THEY_ARE else PUBLISHED


def tuned(run: fdaudit.Run, protocol: str, epsilon: float) -> Choice:
    """The choice with the highest accuracy in federations of a run's auxiliary records, on others of them."""
    utilities = []
    for choice in choices(protocol, math.isfinite(epsilon)):
        case = simulated_case(load_spec(spec(protocol, run.case.seed, epsilon, choice)), run.case.secrets)
        utilities.append((StandIn.of(case).utility(case), choice))
    return max(utilities, key=lambda pair: pair[0])[1]


def reached(protocol: str, seed: int, epsilon: float, records_of: Path | None = None) -> tuple[float, float]:
    """Mean accuracy of the models that are left at the end, and ε of the view that the preset bounds."""
    first = choices(protocol, math.isfinite(epsilon))[0]
    with TemporaryDirectory() as folder:
        run = fdaudit.run(spec(protocol, seed, epsilon, first), Path(folder) / "first", seed_from=records_of)
        choice = tuned(run, protocol, epsilon)
        if choice != first:
            asked = spec(protocol, seed, epsilon, choice)
            run = fdaudit.run(asked, Path(folder) / "tuned", seed_from=run.directory)
        with (run.directory / "utility.csv").open(encoding="utf-8", newline="") as file:
            rows = list(csv.DictReader(file))
        last = [r for r in rows if r["round"] == rows[-1]["round"]]
        published = [r for r in last if r["party"] == "server"] or last
        accuracy = statistics.mean(float(r["accuracy"]) for r in published)
        found = run.ledger(bounded(protocol)).epsilon
    print(f"{protocol}, seed {seed}, {choice}: ε {found:.4g}, accuracy {accuracy:.4f}", file=sys.stderr)
    return accuracy, found


def records(seed: int, folder: Path) -> Path:
    """A run from which others take their records: a run's splits are drawn from its secret, not from its seed."""
    return fdaudit.run(spec("fedavg", seed, EPSILON, {"rounds": 1}), folder / "records").directory


EVERY = pytest.mark.parametrize("protocol", PROTOCOLS)


@EVERY
def test_as_published_the_protocol_learns_and_nothing_can_be_claimed(protocol: str) -> None:
    accuracy, found = reached(protocol, 1, math.inf)
    assert accuracy > 0.65
    assert math.isinf(found) == (protocol != "standalone"), "only clients alone send nothing"


@EVERY
def test_the_preset_leaves_utility_where_training_is_what_is_noised(protocol: str) -> None:
    accuracy, found = reached(protocol, 1, EPSILON)
    assert found <= EPSILON
    if protocol not in NOISED_MESSAGES:
        assert accuracy > 0.35, "chance is a tenth"


def costs_of_fedavg() -> list[tuple[float, float]]:
    """Accuracy of FedAvg with its preset and without, on the same records, for each draw of them."""
    pairs = []
    for seed in range(DRAWS):
        with TemporaryDirectory() as folder:
            taken = records(seed, Path(folder))
            private, published = (reached("fedavg", seed, level, taken)[0] for level in (EPSILON, math.inf))
            pairs.append((private, published))
    return pairs


def test_private_fedavg_costs_little_on_digits() -> None:
    costs = [published - private for private, published in costs_of_fedavg()]
    assert statistics.mean(costs) < 0.03


def spread(accuracies: list[float]) -> str:
    """Mean, lowest and highest accuracy over the draws, in percent."""
    mean, low, high = (100 * f(accuracies) for f in (statistics.mean, min, max))
    return f"{mean:.1f} ({low:.1f} to {high:.1f})"


def table(names: list[str]) -> None:
    """Every protocol at each ε over three draws of records: what `docs/results/private-presets.csv` shows."""
    with TemporaryDirectory() as folder:
        taken = {seed: records(seed, Path(folder) / str(seed)) for seed in SEEDS}
        rows = csv.writer(sys.stdout)
        for name in names:
            figures = [[reached(name, seed, level, taken[seed])[0] for seed in SEEDS] for level in LEVELS]
            rows.writerow([name, *map(spread, figures)])
            sys.stdout.flush()


if __name__ == "__main__":
    if sys.argv[1:] == ["fedavg", "paired"]:
        for private, published in costs_of_fedavg():
            print(f"{private:.4f},{published:.4f}", flush=True)
    else:
        table(sys.argv[1:] or list(PROTOCOLS))
