"""Selective-FD's findings on MNIST at reduced scale: what selection is worth, and which selector tells errors apart.

Ten clients of 1,000 records a class, 6,000 proxy samples. Run with `-m slow -s` to see the figures.
"""

from __future__ import annotations

from pathlib import Path
from statistics import mean
from typing import Any

import pytest
import torch
from fdaudit.protocols.selective_fd import BoundingBox, Selection, confidence, energy, fit_density
from scipy.stats import rankdata
from torch import Tensor

from fdaudit.federation.networks import Networks, Trainers
from fdaudit.rng import child
from fdaudit.training.trainer import Fit, Job, draw_batches

from ...helpers.marks import SLOW_ON_DATA
from .selective_fd_cases import accuracy_after, divided, execution, network

pytestmark = SLOW_ON_DATA

SEEDS = (1, 2, 3)
FIRST = {"order": "local-first", "warm_up_steps": 0, "rounds": 120, "bandwidth": 1.5}
"""Without a warm-up, and with local steps first: what every seed learns from; see docs/results/."""
HARD = {**FIRST, "labels": "hard", "public_batch": 256, "tau_client": 0.5}
SOFT = {**FIRST, "labels": "soft", "public_batch": 128}
WARM = {**HARD, "warm_up_steps": 200}
SHORTER = {**WARM, "distill_lr": 0.01}
"""With targets divided by the number of clients, as in the authors' early code: with SGD a tenth of the rate."""


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize(
    ("settings", "bound"),
    [(HARD, 75), (SOFT, 88), (WARM, 75), (SHORTER, 75)],
    ids=["hard", "soft", "hard-warm-up", "hard-warm-up-shorter-steps"],
)
def test_selection_lets_clients_of_one_class_learn_all_ten(
    settings: dict[str, Any], bound: float, seed: int, tmp_path: Path
) -> None:
    """Shao et al. 2023, Table 1 (strong non-IID): 85.9 % with hard labels, 94.7 % with soft ones."""
    found = accuracy_after(tmp_path / "run", "selective-fd", settings, seed=seed)
    print(f"selective-fd, {settings['labels']} labels, seed {seed}: {found:.1f} %")
    assert found >= bound


@pytest.mark.parametrize("seed", SEEDS)
def test_fedmd_with_soft_labels_learns_most_of_what_selective_fd_does(seed: int, tmp_path: Path) -> None:
    """Shao et al. 2023, Table 1 (strong non-IID): FedMD reaches 88.7 % with soft labels, 18.9 % with hard ones."""
    settings = {
        "share": "soft_labels",
        "order": "revisit-digest",
        "warm_up_steps": 0,
        "rounds": 120,
        "local_steps": 1,
        "batch_size": 64,
        "lr": 0.1,
        "public_batch": 128,
        "distill_steps": 10,
    }
    found = accuracy_after(tmp_path / "run", "fedmd", settings, seed=seed)
    print(f"fedmd, soft labels, seed {seed}: {found:.1f} %")
    assert found >= 80


# -- selectors --------------------------------------------------------------------------------------------------


def auroc(scores: Tensor, right: Tensor) -> float:
    """The chance that a right prediction scores higher than a wrong one; ties count half."""
    ranks = torch.from_numpy(rankdata(scores.clamp(max=torch.finfo(torch.float64).max).numpy()))
    n, m = int(right.sum()), int((~right).sum())
    return (float(ranks[right].sum()) - n * (n + 1) / 2) / (n * m)


def selectors(seed: int, classes: int) -> dict[str, list[float]]:
    """AUROC by selector and client for spotting its wrong predictions of 3,000 proxy samples, after 200 steps."""
    clients, public, labels = divided(seed, per_class=1000, classes=classes, proxy=3000)
    networks = Networks(network())
    trainers, start = Trainers(networks, execution(), list(clients)), networks.initial(list(clients), seed)
    jobs = [
        Job(
            party=k,
            parameters=start[k],
            x=d.x,
            targets=d.y,
            batches=draw_batches(len(d), 64, steps=200, generator=child(seed, "batches", k)),
        )
        for k, d in clients.items()
    ]
    fitted = trainers.fit(jobs, Fit(lr=0.1))
    found: dict[str, list[float]] = {"density ratio": [], "confidence": [], "energy": []}
    for job, result in zip(jobs, fitted, strict=True):
        z = trainers[job.party].predict(result.parameters, public)
        right = z.argmax(1) == labels
        density = fit_density(
            clients[job.party],
            Selection(bandwidth=1.5),
            represent=lambda x: x.flatten(1),
            box=BoundingBox.unit(784),
            seed=seed,
            party=job.party,
        )
        scores = {
            "density ratio": density.scores(public.flatten(1)),
            "confidence": confidence(z),
            "energy": energy(z),
        }
        for name, score in scores.items():
            found[name].append(auroc(score, right))
    return found


@pytest.mark.parametrize(
    ("classes", "margin"),
    [
        (1, 0.1),
        # Clients of two classes, which the paper does not measure: confidence reaches 0.83 and the density ratio 0.91
        # (0.93 with 2,500 records a class), so that 0.1 is not reached.
        (2, 0.05),
    ],
    ids=["one-class", "two-classes"],
)
@pytest.mark.parametrize("seed", SEEDS)
def test_density_ratios_tell_wrong_predictions_better_than_outputs_do(
    seed: int, classes: int, margin: float
) -> None:
    """Shao et al. 2023, Fig. 5 (strong non-IID): confidence and energy barely beat guessing on MNIST."""
    found = selectors(seed, classes)
    for name, values in found.items():
        print(
            f"{classes} class(es) a client, seed {seed}, {name}: mean {mean(values):.3f}, worst {min(values):.3f}"
        )
    best = max(mean(found["confidence"]), mean(found["energy"]))
    assert mean(found["density ratio"]) >= best + margin
