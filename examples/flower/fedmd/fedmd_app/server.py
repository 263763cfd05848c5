"""The server averages the sites' scores of public digits. Lines marked `# +` record it."""

import time
from pathlib import Path

import numpy as np
from flwr.app import Array, ArrayRecord, Context, Message, RecordDict
from flwr.serverapp import Grid, ServerApp

from fdaudit.integrations.flower import RecordingGrid  # +

SITES = 3
KINDS = {  # +
    ("index", "instruction"): "proxy_indices",  # +
    ("scores", "reply"): "logits",  # +
    ("consensus", "instruction"): "ensemble_labels",  # +
}  # +
app = ServerApp()


def average(grid: Grid, rounds: int, total: int, public: int) -> None:
    """Ask for scores of some of the `total` public digits each round, and send their average with the next question."""
    while len(nodes := list(grid.get_node_ids())) < SITES:
        time.sleep(1)
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
    with RecordingGrid(grid, folder / "record", truth=folder / "truth", kinds=KINDS) as grid:  # +
        average(grid, int(settings["rounds"]), total, int(settings["public"]))
