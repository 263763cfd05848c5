"""The server averages the sites' models. Lines marked `# +` record it."""

import time

import torch
from flwr.app import ArrayRecord, Context, Message, RecordDict
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg

from fdaudit.integrations.flower import RecordingGrid, parties  # +
from fdaudit.recording.recorder import Recorder  # +

from .model import Net

SITES = 3
app = ServerApp()


def numbered(grid: Grid) -> dict[int, str]:  # +
    """Ask each node for the number of its site. The design of the audit counts the sites in the same way."""
    while len(nodes := list(grid.get_node_ids())) < SITES:
        time.sleep(1)
    asked = [Message(RecordDict(), node, "query") for node in nodes]
    return {
        reply.metadata.src_node_id: f"client/{reply.content['site']['number']}"
        for reply in grid.send_and_receive(asked)
    }


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Train for some rounds."""
    folder, rounds = str(context.run_config["folder"]), int(context.run_config["rounds"])
    torch.manual_seed(0)
    start = ArrayRecord(Net().state_dict())
    strategy = FedAvg(fraction_evaluate=0.0, min_train_nodes=SITES, min_available_nodes=SITES)
    clients = numbered(grid)  # +
    with (  # +
        Recorder(f"{folder}/record", [*parties(SITES), "world"]) as recorder,  # +
        RecordingGrid(grid, recorder, clients=clients, truth=f"{folder}/truth") as grid,  # +
    ):  # +
        result = strategy.start(grid, start, num_rounds=rounds)
        recorder.send("server", "world", "model_parameters", result.arrays.to_torch_state_dict())  # +
    torch.save(result.arrays.to_torch_state_dict(), f"{folder}/model.pt")
