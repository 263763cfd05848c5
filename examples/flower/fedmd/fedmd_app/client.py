"""A site learns from its own digits and from the average scores. Lines marked `# +` note its digits, for the audit."""

import json
from pathlib import Path

import numpy as np
import torch
from flwr.app import Array, ArrayRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp
from torch import Tensor
from torch.nn import functional as F

from fdaudit.integrations.flower import note_records  # +

from .model import Net

app = ClientApp()


def digits(path: Path) -> dict[str, Tensor]:
    """Return the digits x (n, 1, 8, 8) in a file and, if it has them, their labels y (n,)."""
    with np.load(path) as held:
        found = {name: torch.from_numpy(held[name]) for name in held.files}
    return {**found, "x": found["x"][:, None]}


@app.train()
def train(message: Message, context: Context) -> Message:
    """Digest the average, revisit the site's own digits, and return scores of the round's public digits."""
    settings, site, t = context.run_config, int(context.node_config["site"]), int(message.metadata.group_id)
    place = Path(str(settings["folder"])) / "design"
    own, public = digits(place / "sites" / f"client-{site}.npz"), digits(place / "public.npz")["x"]
    x, y = own["x"], own["y"]
    told = json.loads((place / "sites" / f"client-{site}.json").read_bytes())
    numbers = np.setdiff1d(np.arange(told["records"]), told["leave_out"])
    rng = np.random.default_rng((site, t))

    torch.manual_seed(site)
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=float(settings["lr"]))
    if "model" in context.state:
        model.load_state_dict(context.state["model"].to_torch_state_dict())
    if "consensus" in message.content:  # digest
        consensus = message.content["consensus"]
        seen = public[torch.from_numpy(consensus["index"].numpy())]
        for _ in range(int(settings["steps"])):
            optimizer.zero_grad()
            F.l1_loss(model(seen), torch.from_numpy(consensus["values"].numpy())).backward()
            optimizer.step()
    for _ in range(int(settings["steps"] if t else settings["warm-up"])):  # revisit
        rows = rng.choice(numbers, int(settings["batch"]))
        optimizer.zero_grad()
        F.cross_entropy(model(x[rows]), y[rows]).backward()
        optimizer.step()

    context.state["model"] = ArrayRecord(model.state_dict())
    note_records(message, context, f"{settings['folder']}/site-{site}", ids=numbers, site=site)  # +
    index = message.content["index"]["index"].numpy()
    with torch.no_grad():
        values = model(public[torch.from_numpy(index)]).numpy()
    scores = ArrayRecord({"index": Array(index), "values": Array(values)})
    return Message(RecordDict({"scores": scores}), reply_to=message)
