"""FedAvg, recorded."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
from flwr.app import Array, ArrayRecord, Context
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg

from fdaudit.integrations.flower import RecordingGrid

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Average the models of two clients, and note the number of this process first."""
    folder = Path(str(context.run_config["folder"]))
    folder.mkdir()
    (folder / "server.pid").write_text(str(os.getpid()))
    rng = np.random.default_rng(0)
    start = {
        "weight": rng.standard_normal((10, 64)).astype(np.float32),
        "bias": np.zeros(10, dtype=np.float32),
    }
    strategy = FedAvg(fraction_evaluate=0.0, min_train_nodes=2, min_available_nodes=2)
    with RecordingGrid(grid, folder / "record", truth=folder / "truth") as recording:
        strategy.start(
            recording,
            ArrayRecord({name: Array(value) for name, value in start.items()}),
            num_rounds=int(context.run_config["rounds"]),
        )
