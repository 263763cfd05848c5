"""Run, record, import and attack FedAvg on networks that nobody here wrote.

Two clients, one round, one step on four images of 32x32 pixels in colour (enlarged digits). Each network is audited
twice: fdaudit trains it, and a plain PyTorch loop trains it beside the recorder. Target: each attack gives a figure or
a reason, and none fails.
"""

from __future__ import annotations

import argparse
import csv
import importlib.util
import json
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import _outside
import numpy as np
import torch
from _outside import NAMES, SIDE
from sklearn.datasets import load_digits
from torch.nn import functional as F

import fdaudit
from fdaudit.errors import FdauditError
from fdaudit.recording.recorder import Recorder
from fdaudit.result import Cell

BATCH, RATE, CLASSES = 4, 0.01, 10
SHAPE = (3, SIDE, SIDE)
CLIENTS = {f"client/{k}": list(range(100 * k, 100 * k + 100)) for k in range(2)}
FIGURES = {"inverting-gradients": "psnr", "loss-threshold": "auc", "label-updates": "label_tv_mean"}


def data(records: int) -> tuple[np.ndarray, np.ndarray]:
    """Return enlarged digits (records, SIDE, SIDE, 3) in [0, 1], and their classes."""
    digits = load_digits()
    small = torch.tensor(digits.images[:records, None] / 16, dtype=torch.float32)
    large = F.interpolate(small, SIDE, mode="bilinear").clamp(0, 1)
    return large.expand(-1, 3, -1, -1).permute(0, 2, 3, 1).numpy(), digits.target[:records]


def simulated(name: str, folder: Path, images: np.ndarray, labels: np.ndarray) -> fdaudit.Run:
    """Let fdaudit train the network."""
    np.savez(folder / "digits.npz", train_images=images, train_labels=labels)
    spec = {
        "name": name,
        "clients": len(CLIENTS),
        "dataset": {"name": "npz:digits.npz", "root": str(folder)},
        "model": {"name": f"import:_outside:{name}"},
        "protocol": {
            "name": "fedavg",
            "params": {"rounds": 1, "local_steps": 1, "batch_size": BATCH, "lr": RATE},
        },
        "profile": "quick",
        "references": [],
        "adversaries": ["server"],
        "victims": 1,
        "attacks": [],
    }
    return fdaudit.run(spec, folder / "simulated")


def recorded(name: str, folder: Path, images: np.ndarray, labels: np.ndarray) -> fdaudit.Run:
    """Train the network in a loop that knows nothing of fdaudit, and import its record."""
    x, y = torch.tensor(images).permute(0, 3, 1, 2), torch.tensor(labels)
    model = getattr(_outside, name)(num_classes=CLASSES)
    record = Recorder(folder / "record", ["server", "world", *CLIENTS], truth=folder / "truth")
    shared = {key: tensor.clone() for key, tensor in model.state_dict().items()}
    record.round(0)
    start = record.send("server", list(CLIENTS), "model_parameters", shared)
    updates = []
    for party, rows in CLIENTS.items():
        model.load_state_dict(shared)
        model.train()
        optimizer = torch.optim.SGD(model.parameters(), lr=RATE)
        answers = model(x[rows[:BATCH]])
        F.cross_entropy(getattr(answers, "logits", answers), y[rows[:BATCH]]).backward()
        optimizer.step()
        optimizer.zero_grad()
        update = {key: tensor - shared[key] for key, tensor in model.state_dict().items()}
        updates.append(update)
        record.send(party, "server", "model_update", update, ["data", start.seq], list(range(BATCH)))
    released = {key: t + sum(u[key] for u in updates) / len(updates) for key, t in shared.items()}
    released = {key: t.to(shared[key].dtype) for key, t in released.items()}
    record.send("server", "world", "model_parameters", released)
    record.close()
    key = folder / "records"
    key.mkdir()
    np.savez(key / "records.npz", x=images, y=labels)
    lists = {
        "schema": "fdaudit-records/1",
        "design": None,
        "auxiliary": list(range(200, 400)),
        "test": list(range(400, 500)),
        "clients": {
            party: {"records": rows, "members": rows[:20], "non_members": rows[-20:]}
            for party, rows in CLIENTS.items()
        },
    }
    (key / "records.json").write_text(json.dumps(lists))
    card = {
        "name": name,
        "asserted_by": "a loop in PyTorch",
        "classes": CLASSES,
        "input_shape": list(SHAPE),
        "model": {"name": f"import:_outside:{name}"},
        "protocol": {"name": "own-fedavg"},
        "training": {"lr": RATE, "batch_size": BATCH, "local_steps": 1, "optimizer": "sgd"},
    }
    audit = {"adversaries": ["server"], "victims": 1, "attacks": [], "profile": "quick"}
    return fdaudit.import_record(
        folder / "record", folder / "imported", card=card, truth=[folder / "truth", key], audit=audit
    )


def told(cell: Cell) -> str:
    """Return the figure that a cell is read by, or its reason."""
    wanted = FIGURES[cell.attack]
    for figure in cell.figures:
        if figure.name == wanted and figure.value is not None:
            return f"{cell.status}: {figure.name} {figure.value:.3g} {figure.unit}".strip()
    return f"{cell.status}: {cell.reason or [f.name for f in cell.figures]}"


def attacked(run: fdaudit.Run, inversion: dict[str, Any]) -> dict[str, str]:
    """Return what each attack of the server found; `inversion` holds settings of Inverting Gradients."""
    found = {}
    for name in FIGURES:
        params = inversion if name == "inverting-gradients" else {}
        found[name] = told(fdaudit.attack(name, run, **params))
    return found


def main() -> None:
    """Print a line for each network and source; end with 1 if anything failed."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--networks", nargs="+", default=list(NAMES), choices=NAMES)
    parser.add_argument("--iterations", type=int, default=100, help="of Inverting Gradients (default: 100)")
    parser.add_argument("--untuned", action="store_true", help="let Inverting Gradients choose no settings")
    parser.add_argument("--out", type=Path, help="a CSV file to which lines are added")
    asked = parser.parse_args()
    sys.path.insert(0, str(Path(__file__).parent))
    images, labels = data(500)
    inversion = {"iterations": asked.iterations, "tune": not asked.untuned}
    failed = 0
    fdaudit.trust_code()
    for name in asked.networks:
        if name.endswith("_timm") and importlib.util.find_spec("timm") is None:
            print(f"{name}: timm is not installed")
            continue
        for audit in (simulated, recorded):
            begun = time.monotonic()
            with tempfile.TemporaryDirectory() as folder:
                try:
                    found = attacked(audit(name, Path(folder), images, labels), inversion)
                except FdauditError as error:
                    found = dict.fromkeys(FIGURES, f"refused: {error}")
            failed += any(text.startswith("failed") for text in found.values())
            seconds = time.monotonic() - begun
            line = [name, audit.__name__, f"{seconds:.0f}", *found.values()]
            print(*line, sep="; ", flush=True)
            if asked.out is not None:
                with asked.out.open("a", newline="") as file:
                    csv.writer(file).writerow(line)
    raise SystemExit(bool(failed))


if __name__ == "__main__":
    main()
