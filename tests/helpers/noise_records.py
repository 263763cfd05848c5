"""Records whose labels say nothing, so that a model can only memorise them, with a design's coins."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from fdaudit.planning.design import make_design
from fdaudit.planning.site_records import DesignSpec
from fdaudit.storage.vault import Secrets

CLIENTS = ("client/0", "client/1")
NAMES = ("extractor.1.weight", "extractor.1.bias", "head.0.weight", "head.0.bias")
"""The parameters of fdaudit's `mlp` of one hidden layer, in the order of `network`."""


def make_noise_design(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Make a design on 360 records of two sites; always the same coins."""
    monkeypatch.setattr(Secrets, "draw", lambda seed=None: Secrets(seed or 7, bytes(32)))
    rng = np.random.default_rng(0)
    images, labels = rng.random((360, 8, 8), dtype=np.float32), rng.integers(0, 4, 360)
    np.savez(folder / "noise.npz", train_images=images, train_labels=labels)
    made = folder / "design"
    make_design(f"npz:{folder / 'noise.npz'}", made, DesignSpec(sites=2, fraction=1.0, auxiliary=0.2))
    return made


def site(design: Path, party: str) -> tuple[Tensor, Tensor, np.ndarray]:
    """Return a site's records (x, y), and the numbers of those that it trains on."""
    file = design / "sites" / party.replace("/", "-")
    with np.load(file.with_suffix(".npz")) as held:
        x, y = torch.from_numpy(held["x"])[:, None], torch.from_numpy(held["y"])
    told = json.loads(file.with_suffix(".json").read_bytes())
    return x, y, np.setdiff1d(np.arange(told["records"]), told["leave_out"])


def network() -> nn.Sequential:
    """Return the network."""
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 4))


def train(net: nn.Module, x: Tensor, y: Tensor, steps: int) -> None:
    """Train on all records at once."""
    optimizer = torch.optim.Adam(net.parameters(), lr=0.003)
    for _ in range(steps):
        optimizer.zero_grad()
        nn.functional.cross_entropy(net(x), y).backward()
        optimizer.step()


def card(design: Path) -> dict[str, object]:
    """Return a card of a system that trains this network on these records."""
    return {
        "name": "noise",
        "asserted_by": "the tests",
        "classes": 4,
        "input_shape": [1, 8, 8],
        "model": {"name": "mlp", "params": {"widths": [256]}},
        "protocol": {"name": "plain-loop"},
        "training": {"optimizer": "adam", "lr": 0.003, "batch_size": 64},
        "design": json.loads((design / "design.json").read_bytes())["commitment"],
    }
