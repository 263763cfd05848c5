"""Members of a foreign federation, by the coins of a design: found where its model memorised, and only there."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import fdaudit
from fdaudit import api
from fdaudit.planning.design import make_design
from fdaudit.planning.site_records import DesignSpec
from fdaudit.recording.recorder import Recorder
from fdaudit.storage.vault import Secrets
from fdaudit.types import Figure

CLIENTS = ("client/0", "client/1")


@pytest.fixture
def design(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A design on records whose labels say nothing, so that a model can only memorise them; always the same coins."""
    monkeypatch.setattr(Secrets, "draw", lambda seed=None: Secrets(seed or 7, bytes(32)))
    rng = np.random.default_rng(0)
    images, labels = rng.random((360, 8, 8), dtype=np.float32), rng.integers(0, 4, 360)
    np.savez(tmp_path / "noise.npz", train_images=images, train_labels=labels)
    make_design(
        f"npz:{tmp_path / 'noise.npz'}", tmp_path / "design", DesignSpec(sites=2, fraction=1.0, auxiliary=0.2)
    )
    return tmp_path / "design"


def site(design: Path, party: str) -> tuple[Tensor, Tensor, np.ndarray]:
    """Return a site's records (x, y), and the numbers of those that it trains on."""
    file = design / "sites" / party.replace("/", "-")
    with np.load(file.with_suffix(".npz")) as held:
        x, y = torch.from_numpy(held["x"])[:, None], torch.from_numpy(held["y"])
    told = json.loads(file.with_suffix(".json").read_bytes())
    return x, y, np.setdiff1d(np.arange(told["records"]), told["leave_out"])


def federate(design: Path, folder: Path, steps: int) -> None:
    """Run one round of FedAvg in plain PyTorch, and record it."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Flatten(), nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 4))
    names = ["extractor.1.weight", "extractor.1.bias", "head.0.weight", "head.0.bias"]
    with Recorder(folder / "record", ["server", *CLIENTS, "world"], truth=folder / "truth") as recorder:
        recorder.round(0)
        start = [p.detach().clone() for p in net.parameters()]
        recorder.send("server", CLIENTS, "model_parameters", dict(zip(names, start, strict=True)))
        trained = []
        for party in CLIENTS:
            x, y, kept = site(design, party)
            with torch.no_grad():
                for parameter, value in zip(net.parameters(), start, strict=True):
                    parameter.copy_(value)
            optimizer = torch.optim.Adam(net.parameters(), lr=0.003)
            for _ in range(steps):
                optimizer.zero_grad()
                nn.functional.cross_entropy(net(x[kept]), y[kept]).backward()
                optimizer.step()
            own = dict(zip(names, [p.detach().clone() for p in net.parameters()], strict=True))
            recorder.send(party, "server", "model_parameters", own, records=kept)
            trained.append(own)
        mean = {n: torch.stack([own[n] for own in trained]).mean(0) for n in names}
        recorder.send("server", "world", "model_parameters", mean)


def attacked(design: Path, folder: Path, steps: int) -> tuple[Figure, dict[str, Any]]:
    """Return the AUC of an attack on the released model's losses, and the check of the system's own claim."""
    folder.mkdir()
    federate(design, folder, steps)
    card = {
        "name": "noise",
        "asserted_by": "the tests",
        "classes": 4,
        "input_shape": [1, 8, 8],
        "model": {"name": "mlp", "params": {"widths": [256]}},
        "protocol": {"name": "plain-loop"},
        "training": {"optimizer": "adam", "lr": 0.003, "batch_size": 64},
        "claims": [{"adversary": "world", "epsilon": 0.1, "source": "their page"}],
        "design": json.loads((design / "design.json").read_bytes())["commitment"],
    }
    run = fdaudit.import_record(
        folder / "record",
        folder / "run",
        card=card,
        truth=[folder / "truth", design / "truth"],
        audit={"profile": "quick", "threads": 1, "victims": 2},
    )
    cell = api.attack("loss-threshold", run, "world")
    [check] = [check for check in run.result["checks"] if check["source"]]
    return next(f for f in cell.figures if f.name == "auc"), check


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
