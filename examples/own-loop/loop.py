"""Federated distillation of a system's own, in plain PyTorch: three sites train, and agree on public samples.

python loop.py DESIGN: records to RECORD and TRUTH. Lines that end with `# +` are all that recording adds.
"""

import json
import sys
from pathlib import Path

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

from fdaudit.recording.recorder import Recorder  # +

DESIGN, ROUNDS, STEPS = Path(sys.argv[1]), 3, 200
CLIENTS = ["client/0", "client/1", "client/2"]


def site(party: str) -> dict:
    """Return a site's network, its records, and the numbers of those that it trains on."""
    file = DESIGN / "sites" / party.replace("/", "-")
    data, told = np.load(f"{file}.npz"), json.loads(Path(f"{file}.json").read_bytes())
    kept = np.setdiff1d(np.arange(told["records"]), told["leave_out"])
    x, y = torch.from_numpy(data["x"])[:, None], torch.from_numpy(data["y"])
    net = nn.Sequential(nn.Flatten(), nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10))
    return {"net": net, "x": x, "y": y, "kept": kept, "optimizer": torch.optim.SGD(net.parameters(), lr=0.1)}


def fit(own: dict, x: torch.Tensor, target: torch.Tensor, loss) -> None:
    """Take some steps on random batches."""
    for _ in range(STEPS):
        rows = torch.randint(len(x), (32,))
        own["optimizer"].zero_grad()
        loss(own["net"](x[rows]), target[rows]).backward()
        own["optimizer"].step()


torch.manual_seed(0)
public = torch.from_numpy(np.load(DESIGN / "public.npz")["x"])[:, None]
index, sites = torch.arange(len(public)), {party: site(party) for party in CLIENTS}
record = Recorder("RECORD", ["server", *CLIENTS], truth="TRUTH")  # +
for t in range(ROUNDS):
    record.round(t)  # +
    answers = []
    for party, own in sites.items():
        fit(own, own["x"][own["kept"]], own["y"][own["kept"]], F.cross_entropy)
        logits = own["net"](public).detach()
        sent = record.send(
            party, "server", "logits", {"index": index, "values": logits}, records=own["kept"]
        )  # +
        answers.append(torch.from_numpy(sent["values"]))  # +
    mean = torch.stack(answers).mean(0)
    sent = record.send("server", CLIENTS, "ensemble_labels", {"index": index, "values": mean})  # +
    for own in sites.values():
        fit(own, public, torch.from_numpy(sent["values"]), F.mse_loss)  # +
record.close()  # +
