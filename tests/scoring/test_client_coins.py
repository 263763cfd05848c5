"""Claims for whole clients: one coin a client, and what a run shows of them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy.stats import binom

import fdaudit
from fdaudit import defenses
from fdaudit.metrics import epsilon_lower_bound, most_contradictable
from fdaudit.scoring.claims import by_client
from fdaudit.testing.specs import small_spec

CLIENTS = 24


@contextmanager
def noise_forgotten() -> Iterator[None]:
    """DP-FedAvg that clips, forgets its noise, and still says what the noise would guarantee."""
    kind = defenses.REGISTRY.load("dp-fedavg")
    honest = kind.release

    def release(self: Any, name: str, tensors: Any, noise: Any) -> Any:
        claimed = honest(self, name, tensors, noise).event
        quiet = kind(kind.Config(clip=self.config.clip, sigma=1e-9))
        return replace(honest(quiet, name, tensors, noise), event=claimed)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(kind, "release", release)
        yield


def audited(sigma: float, unit: str = "client") -> dict[str, Any]:
    """Clients that each hold one of two sets of noise images, and send clipped updates under noise."""
    noise = {"kind": "model_update", "name": "dp-fedavg", "params": {"clip": 0.5, "sigma": sigma}}
    return small_spec(
        clients=CLIENTS,
        dataset__limit=600,
        splits={"test": 0.1, "proxy": 0.0, "auxiliary": 0.1, "candidates": 2},
        model__params__widths=[32],
        protocol={
            "name": "fedavg",
            "params": {"rounds": 1, "local_steps": 20, "batch_size": 64, "lr": 0.3, "weighting": "uniform"},
        },
        withhold=["sample_count"],
        privacy={"unit": unit},
        canaries={
            "count": 12,
            "clients": list(range(CLIENTS)),
            "kind": "noise",
            "design": "matched-pairs",
            "unit": "client",
            "guesses": CLIENTS,
        },
        attacks=[{"name": "update-projection"}],
        defenses=[noise],
    )


def server(run: fdaudit.Run) -> dict[str, Any]:
    (found,) = [c for c in run.result.plain()["checks"] if c["adversary"] == "server"]
    return dict(found)


# -- scores of clients ----------------------------------------------------------------------------------------------


def drawn(separation: float, clients: int, rng: np.random.Generator) -> tuple[dict[str, Any], dict[str, Any]]:
    scores, member = {}, {}
    for k in range(clients):
        held = torch.arange(20) < 10
        held = held if rng.random() < 0.5 else ~held
        scores[f"client/{k}"] = torch.from_numpy(rng.normal(size=20)) * (1 + k) + separation * held
        member[f"client/{k}"] = held
    return scores, member


def bound(scores: dict[str, Any], member: dict[str, Any]) -> float:
    values, held, pair = by_client(scores, member)
    return epsilon_lower_bound(
        values, held, 1e-5, design="matched-pairs", relation="replace-one", pair=pair, guesses=len(scores)
    )


def test_a_client_is_one_pair_whatever_the_number_of_its_records() -> None:
    values, held, pair = by_client(*drawn(50.0, 7, np.random.default_rng(0)))
    assert values.shape == held.shape == pair.shape == (14,)
    assert held.tolist() == [True, False] * 7
    assert bool((values[held] > values[~held]).all())
    assert bound(*drawn(1e6, 7, np.random.default_rng(0))) == pytest.approx(most_contradictable(7, 1e-5))


def test_scores_of_clients_show_little_by_chance_scale_or_ties() -> None:
    rng = np.random.default_rng(1)
    found = [bound(*drawn(0.0, 20, rng)) > 0 for _ in range(400)]
    assert sum(found) <= binom.ppf(0.999, 400, 0.05)
    scores, member = drawn(1.0, 5, np.random.default_rng(2))
    one = by_client(scores, member)[0]
    two = by_client({k: 7 * s + 3 for k, s in scores.items()}, member)[0]
    assert torch.allclose(one, two)
    flat = by_client({k: torch.zeros(20) for k in scores}, member)[0]
    assert flat.tolist() == [0.0] * 10


# -- whole runs -----------------------------------------------------------------------------------------------------


@pytest.mark.thorough
def test_noise_that_was_forgotten_contradicts_a_claim_for_whole_clients(tmp_path: Path) -> None:
    with noise_forgotten():
        run = fdaudit.run(audited(8.0), tmp_path / "run")
    found = server(run)
    assert (found["unit"], found["relation"]) == ("client", "replace-one")
    assert found["claimed"] == pytest.approx(run.ledger("server").epsilon)
    assert found["verdict"] == "contradicted", found["reason"]
    (whole,) = [e for e in found["evidence"] if e["on"] == "canaries"]
    assert (whole["coins"], whole["design"]) == (CLIENTS, "matched-pairs")


@pytest.mark.thorough
def test_with_its_noise_the_claim_for_whole_clients_stands(tmp_path: Path) -> None:
    found = server(fdaudit.run(audited(8.0), tmp_path / "run"))
    assert found["verdict"] in ("consistent", "inconclusive")
    assert found["bound"] <= found["claimed"]
    assert found["p"] > 0.05


@pytest.mark.thorough
def test_coins_of_clients_do_not_test_a_claim_for_single_records(tmp_path: Path) -> None:
    run = fdaudit.run(audited(8.0, "record"), tmp_path / "run")
    assert [e["on"] for e in server(run)["evidence"]] == ["candidates"]
