"""What the server and the clients of the job compute."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from nvflare.apis.dxo import DXO, DataKind, from_shareable
from nvflare.apis.executor import Executor
from nvflare.apis.fl_context import FLContext
from nvflare.apis.shareable import Shareable
from nvflare.app_common.abstract.fl_model import FLModel
from nvflare.app_common.workflows.fedavg import FedAvg


def keep(path: Path, arrays: Mapping[str, Any]) -> None:
    """Write arrays that are there whole or not at all: the test kills this process at any moment."""
    with path.with_suffix(".part").open("wb") as part:
        np.savez(part, **arrays)
    path.with_suffix(".part").replace(path)


class Averaging(FedAvg):  # type: ignore[misc]
    """FedAvg, which keeps the model of each round."""

    def __init__(self, folder: str, clients: int, rounds: int) -> None:
        super().__init__(num_clients=clients, num_rounds=rounds, model={"w": [0.0, 1.0, 2.0]})
        self.folder, self.clients, self.rounds = folder, clients, rounds

    def save_model(self, model: FLModel) -> None:
        """Keep the model of a round."""
        keep(Path(self.folder) / f"model-{self.current_round}.npz", model.params)


class Trainer(Executor):  # type: ignore[misc]
    """Takes a step of its own from the model, and keeps what it received and what it sent."""

    def __init__(self, folder: str, step: float, wait: float) -> None:
        super().__init__()
        self.folder, self.step, self.wait = folder, step, wait

    def execute(
        self, task_name: str, shareable: Shareable, fl_ctx: FLContext, abort_signal: Any
    ) -> Shareable:
        """Return the model of the task after the step."""
        t = shareable.get_header("current_round")
        received = {k: np.asarray(v, dtype=np.float64) for k, v in from_shareable(shareable).data.items()}
        sent = {k: (np.cos(v) + self.step).astype(np.float32) for k, v in received.items()}
        place = Path(self.folder) / fl_ctx.get_identity_name()
        place.mkdir(parents=True, exist_ok=True)
        keep(place / f"received-{t}.npz", received)
        keep(place / f"sent-{t}.npz", sent)
        time.sleep(self.wait)
        result: Shareable = DXO(
            DataKind.WEIGHTS, sent, {"NUM_STEPS_CURRENT_ROUND": 3, "fdaudit.records": [t, 7]}
        ).to_shareable()
        return result
