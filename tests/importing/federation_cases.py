"""The records of two clients whose training knows nothing of fdaudit, and the import of what they sent."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

import fdaudit
from fdaudit.models import architecture
from fdaudit.rng import child
from fdaudit.spec.schema import ModelSpec

CLASSES, SHAPE = 4, (1, 6, 6)
MODEL = {"name": "mlp", "params": {"widths": [16]}}
ROWS = {f"client/{k}": torch.arange(k, 20, 2) for k in range(2)}
"""The records of each client; 20 to 49 are auxiliary and the rest test records."""


def drawn(shape: tuple[int, int, int] = SHAPE) -> tuple[Tensor, Tensor]:
    """Draw 60 images in [0, 1] with 256 levels, and their classes."""
    x = torch.rand(60, *shape, generator=child(1, "x")).mul(255).round().div(255)
    return x, torch.randint(CLASSES, (60,), generator=child(1, "y"))


def network(shape: tuple[int, int, int] = SHAPE) -> nn.Module:
    """Return the network that clients begin with."""
    return architecture(ModelSpec(**MODEL), shape, CLASSES).build(child(1, "weights"))


def write_truth(folder: Path, images: NDArray[Any], y: Tensor) -> None:
    """Write the records (n, h, w, c) below `records/`, and who has which."""
    (folder / "records").mkdir()
    np.savez(folder / "records" / "records.npz", x=images, y=y.numpy())
    lists = {
        "schema": "fdaudit-records/1",
        "design": None,
        "auxiliary": list(range(20, 50)),
        "test": list(range(50, 60)),
        "clients": {party: {"records": rows.tolist()} for party, rows in ROWS.items()},
    }
    (folder / "records" / "records.json").write_text(json.dumps(lists))


def imported(
    folder: Path, training: Mapping[str, Any] | None = None, own_loss: str | None = None, **card: Any
) -> fdaudit.Run:
    """Import `record/` of a folder with its truth and records; the card states this training."""
    value = {
        "name": "A federation",
        "asserted_by": "its owner",
        "classes": CLASSES,
        "input_shape": list(SHAPE),
        "model": MODEL,
        "protocol": {"name": "own-fedavg"},
        "training": {"local_steps": 1, **(training or {})},
        **card,
    }
    truth = [folder / "truth", folder / "records"]
    audit = {"adversaries": ["server"], "attacks": [], "device": "cpu", "threads": 1}
    return fdaudit.import_record(
        folder / "record", folder / "run", card=value, truth=truth, audit=audit, loss=own_loss
    )
