"""Gradients show more than answers do, soft or hard: white-box inversion against inversion of models that answer.

The setting of Shao, Wu & Zhang 2023, Fig. 8, on MNIST: white-box inversion of FedAvg's uploads against black-box
inversion of clients' models that the server of Selective-FD asks. Run with `-m slow -s` to see the figures.

The paper attacks FedAvg by GMI (Zhang et al. 2020), which inverts an uploaded model: the case `gmi`. The case
`white-box` is ours: it inverts the gradient of one image in the first round, another message that shows far more.

The two kinds of figure differ in what is compared: an inverted gradient with the very records behind it, an inverted
model with the nearest record of the class. The second is the lenient one, so that the first step of the ordering holds
a fortiori.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import fdaudit
from fdaudit.evaluation.controls import kept

from ...helpers.marks import SLOW_ON_DATA

pytestmark = SLOW_ON_DATA

IDEAL = {
    "prior": "none",  # data-free, as the paper's: else auxiliary images would show most of what is shown
    "queries": 4000,
    "rounds": 8,
    "generator_steps": 10,
    "surrogate_steps": 60,
    "width": 64,
    "batch": 64,
    "restarts": 2,
    "iterations": 60,
}
CASES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "white-box": (
        {"name": "fedavg", "params": {"rounds": 1, "upload": "gradient", "batch_size": 1, "lr": 0.1}},
        {"name": "inverting-gradients", "params": {"restarts": 1, "iterations": 300}},
    ),
    "gmi": (
        {
            "name": "fedavg",
            "params": {
                "rounds": 20,
                "upload": "model_parameters",
                "local_epochs": 1,
                "batch_size": 32,
                "lr": 0.1,
            },
        },
        {"name": "gmi", "params": {"gan_steps": 1000, "iterations": 300, "restarts": 16}},
    ),
    **{
        answers: (
            {
                "name": "selective-fd",
                "params": {
                    "rounds": 2,
                    "warm_up_steps": 200,
                    "batch_size": 32,
                    "public_batch": 100,
                    "labels": answers,
                },
            },
            {"name": f"ideal-{answers}", "params": IDEAL},
        )
        for answers in ("soft", "hard")
    },
}


def spec_of(case: str, seed: int) -> dict[str, Any]:
    """Return the spec of a case: it is all that `fdaudit run` needs to repeat it."""
    protocol, attack = CASES[case]
    return {
        "seed": seed,
        "profile": "quick",
        "device": "cpu",
        "threads": 1,
        "clients": 3,
        "victims": 2,
        "dataset": {"name": "mnist", "limit": 1500},
        "splits": {"proxy": 0.2, "auxiliary": 0.1, "candidates": 4},
        "model": {"name": "cnn-strided", "params": {"channels": [16, 32]}},
        "protocol": protocol,
        "references": [],
        "adversaries": ["server"],
        # GMI's GAN is of other classes, as its paper has it; IDEAL with `prior: none` makes no use of either.
        "auxiliary": {"inversion": "class-disjoint" if case == "gmi" else "same"},
        "attacks": [attack],
    }


SHOWN = ("psnr", "psnr_prior", "evaluator_accuracy")


def measured(case: str, seed: int, directory: Path) -> dict[str, float]:
    """Means over two victims: PSNR and its prior in dB, and the share of images whose class an evaluator names."""
    result = fdaudit.run(spec_of(case, seed), directory).result.plain()
    (cell,) = [c for c in result["cells"] if c["status"] in ("run", "inconclusive", "failed")]
    assert cell["status"] == "run", cell["reason"]
    if case in ("soft", "hard"):
        assert cell["queries"]["asked"] == ["client/0", "client/1"]
        assert cell["queries"]["spent"] == 8000
    return {f["name"]: f["value"] for f in cell["figures"] if f["name"] in SHOWN}


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_gradients_show_more_than_answers(seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # Controls have tests of their own and would take three quarters of the time.
    monkeypatch.setattr(kept, "controls", lambda attack, case, setting: {})
    found = {case: measured(case, seed, tmp_path / case) for case in CASES}
    for case, figures in found.items():
        print(
            f"\nseed {seed}, {case}: " + ", ".join(f"{name} {value:.2f}" for name, value in figures.items())
        )
    assert found["white-box"]["psnr"] > max(found[case]["psnr"] for case in ("gmi", "soft", "hard")) + 20
