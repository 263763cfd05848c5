"""The server averages the sites' scores of public digits. Lines marked `# +` record it."""

import time
from pathlib import Path

import numpy as np
from flwr.app import Array, ArrayRecord, Context, Message, RecordDict
from flwr.serverapp import Grid, ServerApp

from fdaudit.integrations.flower import RecordingGrid, parties  # +
from fdaudit.recording.recorder import Recorder  # +

SITES = 3
KINDS = {  # +
    ("index", "instruction"): "proxy_indices",  # +
    ("scores", "reply"): "logits",  # +
    ("consensus", "instruction"): "ensemble_labels",  # +
}  # +
app = ServerApp()


def numbered(grid: Grid) -> dict[int, str]:
    """Ask each node for the number of its site. The design of the audit counts the sites in the same way."""
    while len(nodes := list(grid.get_node_ids())) < SITES:
        time.sleep(1)
    asked = [Message(RecordDict(), node, "query") for node in nodes]
    return {
        reply.metadata.src_node_id: f"client/{reply.content['site']['number']}"
        for reply in grid.send_and_receive(asked)
    }


def average(grid: Grid, nodes: list[int], rounds: int, total: int, public: int) -> None:
    """Ask for scores of some of the `total` public digits each round, and send their average with the next question."""
    rng, consensus = np.random.default_rng(0), None
    for t in range(rounds):
        index = np.sort(rng.choice(total, public, replace=False))
        content = {"index": ArrayRecord({"index": Array(index)})}
        if consensus is not None:
            content["consensus"] = consensus
        asked = [Message(RecordDict(content), node, "train", group_id=str(t)) for node in nodes]
        scores = [reply.content["scores"]["values"].numpy() for reply in grid.send_and_receive(asked)]
        consensus = ArrayRecord({"index": Array(index), "values": Array(np.mean(scores, axis=0))})


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Exchange scores for some rounds."""
    folder, settings = Path(str(context.run_config["folder"])), context.run_config
    with np.load(folder / "design" / "public.npz") as held:
        total = len(held["x"])
    clients = numbered(grid)
    with (  # +
        Recorder(folder / "record", parties(SITES)) as recorder,  # +
        RecordingGrid(grid, recorder, kinds=KINDS, clients=clients, truth=folder / "truth") as grid,  # +
    ):  # +
        average(grid, list(clients), int(settings["rounds"]), total, int(settings["public"]))
