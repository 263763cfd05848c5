"""One step of gradient descent on two images; the site notes what it received and what it sent."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import numpy as np
from flwr.app import Array, ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from numpy.typing import NDArray
from sklearn.datasets import load_digits

from fdaudit.integrations.flower import note_records

app = ClientApp()


def site(context: Context) -> Path:
    """Return the site's own directory."""
    return Path(str(context.run_config["folder"])) / f"site-{context.node_config['site']}"


def digests(values: dict[str, NDArray[np.float32]]) -> dict[str, str]:
    """Return a digest of each array's bytes."""
    return {name: hashlib.sha256(value.tobytes()).hexdigest() for name, value in values.items()}


@app.train()
def train(message: Message, context: Context) -> Message:
    """Take the round's two images of this site, and return the weights after one step."""
    images, labels = load_digits(return_X_y=True)
    t = int(message.content["config"]["server-round"])
    ids = [4 * t + 2 * int(context.node_config["site"]) + i for i in range(2)]
    received = {name: array.numpy() for name, array in message.content["arrays"].items()}
    x, y = images[ids].astype(np.float32) / 16, np.eye(10, dtype=np.float32)[labels[ids]]
    scores = x @ received["weight"].T + received["bias"]
    p = np.exp(scores - scores.max(1, keepdims=True))
    error = (p / p.sum(1, keepdims=True) - y) / len(ids)
    sent = {
        "weight": received["weight"] - np.float32(0.5) * (error.T @ x),
        "bias": received["bias"] - np.float32(0.5) * error.sum(0),
    }
    note_records(message, context, site(context), ids=ids, site=int(context.node_config["site"]))
    note = {"round": t, "received": digests(received), "sent": digests(sent), "records": ids}
    with (site(context) / "log.jsonl").open("a") as log:
        log.write(json.dumps(note) + "\n")
    content = {
        "arrays": ArrayRecord({name: Array(value) for name, value in sent.items()}),
        "metrics": MetricRecord({"num-examples": len(ids)}),
    }
    return Message(RecordDict(content), reply_to=message)
