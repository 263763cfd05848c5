"""One step away from the model, masked; the site keeps what it would have sent in the clear."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from flwr.app import Context
from flwr.client import Client, NumPyClient
from flwr.client.mod import secaggplus_mod
from flwr.clientapp import ClientApp
from flwr.common import Config, NDArrays, Scalar


class Site(NumPyClient):
    """A site that takes a step of its own.

    Args:
        folder: its own directory.
        number: of the site.
    """

    def __init__(self, folder: Path, number: int) -> None:
        self.folder, self.number = folder, number

    def fit(self, parameters: NDArrays, config: Config) -> tuple[NDArrays, int, dict[str, Scalar]]:
        """Return the model after the step."""
        sent = [p + np.float32(0.1 * (self.number + 1)) * np.cos(p) for p in parameters]
        self.folder.mkdir(exist_ok=True)
        t = len(list(self.folder.glob("sent-*.npz")))
        np.savez(self.folder / f"sent-{t}.npz", *sent)
        np.savez(self.folder / f"received-{t}.npz", *parameters)
        return sent, 10 * (self.number + 1), {}


def client(context: Context) -> Client:
    """Return the site of a node."""
    number = int(context.node_config["site"])
    return Site(Path(str(context.run_config["folder"])) / f"site-{number}", number).to_client()


app = ClientApp(client, mods=[secaggplus_mod])
