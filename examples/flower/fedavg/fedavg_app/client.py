"""A site takes some steps of SGD on its own digits. Lines marked `# +` note which ones, for the audit."""

import json
from pathlib import Path

import numpy as np
import torch
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from torch.nn import functional as F

from fdaudit.integrations.flower import note_records  # +

from .model import Net

app = ClientApp()


def own_digits(context: Context) -> tuple[torch.Tensor, torch.Tensor, np.ndarray]:
    """Return the site's digits (n, 1, 8, 8), their labels (n,), and the numbers of those that it trains on."""
    place = Path(str(context.run_config["folder"])) / "design" / "sites"
    name = f"client-{context.node_config['site']}"
    told = json.loads((place / f"{name}.json").read_bytes())
    with np.load(place / f"{name}.npz") as held:
        x, y = torch.from_numpy(held["x"])[:, None], torch.from_numpy(held["y"])
    return x, y, np.setdiff1d(np.arange(told["records"]), told["leave_out"])


@app.train()
def train(message: Message, context: Context) -> Message:
    """Return the model after the round's steps."""
    x, y, numbers = own_digits(context)
    site, t = int(context.node_config["site"]), int(message.content["config"]["server-round"])
    steps, batch = int(context.run_config["steps"]), int(context.run_config["batch"])
    drawn = np.random.default_rng((site, t)).choice(numbers, (steps, batch))
    model = Net()
    model.load_state_dict(message.content["arrays"].to_torch_state_dict())
    optimizer = torch.optim.SGD(model.parameters(), lr=float(context.run_config["lr"]))
    for rows in drawn:
        optimizer.zero_grad()
        F.cross_entropy(model(x[rows]), y[rows]).backward()
        optimizer.step()
    truth = f"{context.run_config['folder']}/site-{site}"
    note_records(message, context, truth, ids=drawn.ravel(), site=site)  # +
    content = {
        "arrays": ArrayRecord(model.state_dict()),
        "metrics": MetricRecord({"num-examples": steps * batch}),
    }
    return Message(RecordDict(content), reply_to=message)
