"""Members of a foreign federation, by the coins of a design: found where its model memorised, and only there."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import fdaudit
from fdaudit import api
from fdaudit.recording.recorder import Recorder
from fdaudit.types import Figure

from ..helpers.noise_records import CLIENTS, NAMES, card, make_noise_design, network, site, train


@pytest.fixture
def design(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    return make_noise_design(tmp_path, monkeypatch)


def federate(design: Path, folder: Path, steps: int) -> None:
    """Run one round of FedAvg in plain PyTorch, and record it."""
    torch.manual_seed(0)
    net = network()
    with Recorder(folder / "record", ["server", *CLIENTS, "world"], truth=folder / "truth") as recorder:
        recorder.round(0)
        start = [p.detach().clone() for p in net.parameters()]
        recorder.send("server", CLIENTS, "model_parameters", dict(zip(NAMES, start, strict=True)))
        trained = []
        for party in CLIENTS:
            x, y, kept = site(design, party)
            with torch.no_grad():
                for parameter, value in zip(net.parameters(), start, strict=True):
                    parameter.copy_(value)
            train(net, x[kept], y[kept], steps)
            own = dict(zip(NAMES, [p.detach().clone() for p in net.parameters()], strict=True))
            recorder.send(party, "server", "model_parameters", own, records=kept)
            trained.append(own)
        mean = {n: torch.stack([own[n] for own in trained]).mean(0) for n in NAMES}
        recorder.send("server", "world", "model_parameters", mean)


def attacked(design: Path, folder: Path, steps: int) -> tuple[Figure, dict[str, Any]]:
    """Return the AUC of an attack on the released model's losses, and the check of the system's own claim."""
    folder.mkdir()
    federate(design, folder, steps)
    claims = [{"adversary": "world", "epsilon": 0.1, "source": "their page"}]
    run = fdaudit.import_record(
        folder / "record",
        folder / "run",
        card={**card(design), "claims": claims},
        truth=[folder / "truth", design / "truth"],
        # The level of a claim is shared by all attacks that are asked for: here by the one that is run.
        audit={"profile": "quick", "threads": 1, "victims": 2, "attacks": [{"name": "loss-threshold"}]},
    )
    cell = api.attack("loss-threshold", run, "world")
    [check] = [check for check in run.result.plain()["checks"] if check["source"]]
    return next(f for f in cell.figures if f.name == "auc"), check


@pytest.mark.thorough
def test_members_of_a_model_that_memorised_are_found(design: Path, tmp_path: Path) -> None:
    auc, check = attacked(design, tmp_path / "overfit", steps=150)
    assert auc.p is not None
    assert auc.p <= 0.01
    assert (auc.value or 0) > 0.8
    assert check["verdict"] == "contradicted"
    assert check["bound"] > 0.1


def test_members_of_an_untrained_model_are_not(design: Path, tmp_path: Path) -> None:
    auc, check = attacked(design, tmp_path / "untrained", steps=0)
    assert auc.p is not None
    assert auc.p > 0.01
    assert check["verdict"] != "contradicted"
