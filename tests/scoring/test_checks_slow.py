"""The acceptance figures of the one-run audit: 20 repeats of DP-SGD with its noise, and 20 that lost it."""

from __future__ import annotations

import sys
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

import fdaudit
from fdaudit.accounting.calibration import Shape, noise_for
from fdaudit.metrics import epsilon_lower_bound
from fdaudit.planning.simulated import simulated_case
from fdaudit.scoring.claims import CONFIDENCE
from fdaudit.scoring.ground_truth import Truth
from fdaudit.scoring.scoring import kept_scores
from fdaudit.spec.schema import load_spec
from fdaudit.storage.vault import Vault

from .check_cases import audited, without_noise

pytestmark = pytest.mark.slow

REPEATS, DELTA = 20, 1e-5
SHAPE = Shape(steps=300, sample_rate=0.1)


def repeated(folder: Path, epsilon: float, noisy: bool, **changes: Any) -> list[tuple[float, str, float]]:
    """By repeat: the claim, its verdict, and the 95 % bound of 100 guesses fixed beforehand."""
    noise, found = noise_for("dp-sgd", SHAPE, epsilon, DELTA)[0], []
    for seed in range(REPEATS):
        with nullcontext() if noisy else without_noise():
            run = fdaudit.run(audited(noise, seed=seed, **changes), folder / str(seed))
        (check,) = [c for c in run.result.plain()["checks"] if c["adversary"] == "server"]
        vault = Vault(run.directory / "vault")
        scores = kept_scores(run.directory, "server/loss-threshold", "canaries")["client/0"]
        case = simulated_case(load_spec(run.directory / "spec.yaml"), vault.secrets)
        _, member = Truth(case, vault).canaries("client/0")
        bound = epsilon_lower_bound(scores, member, DELTA, CONFIDENCE, guesses=100)
        found.append((check["claimed"], check["verdict"], bound))
    bounds = ", ".join(f"{b:.2f}" for _, _, b in found)
    said = {v: sum(w == v for _, w, _ in found) for _, v, _ in found}
    sys.stdout.write(f"\nε = {found[0][0]:.4f} claimed, noise {noisy}: bounds {bounds}; verdicts {said}\n")
    return found


def test_at_epsilon_8_at_most_3_of_20_bounds_exceed_the_claim(tmp_path: Path) -> None:
    gentle = {"rounds": 6, "local_steps": 50, "batch_size": 100, "lr": 0.2, "momentum": 0.9}
    small = {
        "name": "mlp",
        "params": {"widths": [64]},
    }  # a model that still learns something under this noise
    found = repeated(tmp_path, 8.0, True, model=small, protocol={"name": "fedavg", "params": gentle})
    assert all(claimed == pytest.approx(8.0, rel=2e-3) for claimed, _, _ in found)
    assert sum(bound > claimed for claimed, _, bound in found) <= 3
    # 500 canaries and 100 guesses cannot contradict 8, and the runs say so.
    assert all(verdict == "inconclusive" for _, verdict, _ in found)


def test_with_noise_at_epsilon_2_at_most_3_of_20_are_contradicted(tmp_path: Path) -> None:
    found = repeated(tmp_path, 2.0, noisy=True)
    assert sum(bound > claimed for claimed, _, bound in found) <= 3
    assert sum(verdict == "contradicted" for _, verdict, _ in found) <= 3


def test_with_the_noise_removed_at_least_18_of_20_contradict_epsilon_2(tmp_path: Path) -> None:
    found = repeated(tmp_path, 2.0, noisy=False)
    assert all(claimed == pytest.approx(2.0, rel=2e-3) for claimed, _, _ in found)
    assert sum(verdict == "contradicted" for _, verdict, _ in found) >= 18
    assert sum(bound > claimed for claimed, _, bound in found) >= 18
