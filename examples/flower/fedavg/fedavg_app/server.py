"""The server averages the sites' models. Lines marked `# +` record it."""

import torch
from flwr.app import ArrayRecord, Context
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg

from fdaudit.integrations.flower import RecordingGrid  # +

from .model import Net

SITES = 3
app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Train for some rounds."""
    folder, rounds = str(context.run_config["folder"]), int(context.run_config["rounds"])
    torch.manual_seed(0)
    start = ArrayRecord(Net().state_dict())
    strategy = FedAvg(fraction_evaluate=0.0, min_train_nodes=SITES, min_available_nodes=SITES)
    with RecordingGrid(grid, f"{folder}/record", truth=f"{folder}/truth") as grid:  # +
        result = strategy.start(grid, start, num_rounds=rounds)
        grid.release(result.arrays)  # +
    torch.save(result.arrays.to_torch_state_dict(), f"{folder}/model.pt")
