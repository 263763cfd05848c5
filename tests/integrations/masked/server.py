"""FedAvg with SecAgg+, recorded."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from flwr.app import Context
from flwr.common import ndarrays_to_parameters
from flwr.server import LegacyContext, ServerConfig
from flwr.server.strategy import FedAvg
from flwr.server.workflow import DefaultWorkflow, SecAggPlusWorkflow
from flwr.serverapp import Grid, ServerApp

from fdaudit.integrations.flower import RecordingGrid

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Average the masked models of three clients."""
    folder = Path(str(context.run_config["folder"]))
    folder.mkdir()
    start = [np.linspace(-1, 1, 640, dtype=np.float32).reshape(10, 64), np.zeros(10, dtype=np.float32)]
    strategy = FedAvg(
        fraction_evaluate=0.0,
        min_fit_clients=3,
        min_available_clients=3,
        initial_parameters=ndarrays_to_parameters(start),
    )
    rounds = ServerConfig(num_rounds=int(context.run_config["rounds"]))
    workflow = DefaultWorkflow(fit_workflow=SecAggPlusWorkflow(num_shares=1.0, reconstruction_threshold=0.6))
    with RecordingGrid(grid, folder / "record", truth=folder / "truth") as recording:
        workflow(recording, LegacyContext(context, config=rounds, strategy=strategy))
