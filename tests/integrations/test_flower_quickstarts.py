"""Flower's first examples, rebuilt small: recorded with the documented lines, imported, and attacked."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

pytest.importorskip("flwr", reason="needs the extra `flower`")

from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.client import Client, NumPyClient
from flwr.client.mod import fixedclipping_mod, secaggplus_mod
from flwr.clientapp import ClientApp
from flwr.common import Config, NDArrays, Scalar, ndarrays_to_parameters
from flwr.server import LegacyContext, ServerConfig
from flwr.server.strategy import DifferentialPrivacyClientSideFixedClipping
from flwr.server.strategy import FedAvg as OlderFedAvg
from flwr.server.workflow import DefaultWorkflow, SecAggPlusWorkflow
from flwr.server.workflow.constant import MAIN_PARAMS_RECORD
from flwr.serverapp import Grid
from flwr.serverapp.strategy import FedAvg

from fdaudit.integrations.flower import RecordingGrid, note_records, noting

from .grids import LocalGrid
from .quickstarts import tabular, vision
from .strangers import Stranger

pytestmark = pytest.mark.thorough

SITES = 3


def grid_of(app: Callable[[], ClientApp]) -> LocalGrid:
    """A grid of nodes with random numbers, whose simulation gives each a partition."""
    grid = LocalGrid({node: app() for node in (901, 17, 5555)})
    for number, context in enumerate(grid.contexts.values()):
        context.node_config.update({"partition-id": number, "num-partitions": SITES})
    grid.set_run(SimpleNamespace(run_id=7))
    return grid


# -- PyTorch ------------------------------------------------------------------------------------------------------


def vision_client(truth: Path, records: int, batch: int) -> ClientApp:
    app = ClientApp()

    @app.train()
    def train(message: Message, context: Context) -> Message:
        dataset = vision.partition(int(context.node_config["partition-id"]), records)
        model = vision.train(message.content["arrays"].to_torch_state_dict(), dataset, batch)
        note_records(message, context, truth, dataset)
        content = {
            "arrays": ArrayRecord(model.state_dict()),
            "metrics": MetricRecord({"num-examples": len(dataset), "train_loss": 0.5}),
        }
        return Message(RecordDict(content), reply_to=message)

    return app


def vision_server(grid: Grid, record: Path, truth: Path, rounds: int) -> None:
    torch.manual_seed(0)
    start = ArrayRecord(vision.Net().state_dict())
    with RecordingGrid(grid, record, truth=truth) as grid:
        strategy = FedAvg(fraction_evaluate=0.0)
        result = strategy.start(
            grid, start, num_rounds=rounds, train_config=ConfigRecord({"lr": vision.RATE})
        )
        grid.release(result.arrays)


VISION: dict[str, Any] = {
    "classes": 10,
    "input_shape": [1, 8, 8],
    "model": {"name": "import:quickstarts.vision:Net"},
    "protocol": {"name": "flower-quickstart"},
}


def facts(batch: int, epochs: int = 1) -> dict[str, Any]:
    return {
        "lr": vision.RATE,
        "batch_size": batch,
        "local_epochs": epochs,
        "optimizer": "sgd",
        "momentum": vision.MOMENTUM,
    }


def shared(stranger: Stranger, count: int = 60) -> None:
    """Put auxiliary records, which no site has, beside the truth."""
    x, y = vision.digits()
    np.savez(stranger.truth / "auxiliary.npz", x=vision.normalised(x[-count:]).numpy(), y=y[-count:].numpy())


def test_one_step_on_a_normalised_image_gives_it_back(stranger: Stranger) -> None:
    vision_server(grid_of(lambda: vision_client(stranger.truth, 1, 1)), stranger.record, stranger.truth, 1)
    shared(stranger)
    said = stranger.imported(**VISION, training=facts(1), preprocess={"mean": 0.5, "std": 0.5})
    assert "does not follow" not in said
    cell = stranger.attacked("inverting-gradients")
    figures = dict(stranger.figures(cell))
    assert cell["status"] == "run", cell["reason"]
    assert figures["psnr"] >= 25


def test_records_of_sites_are_refused_while_the_card_does_not_say_what_was_done_to_them(
    stranger: Stranger,
) -> None:
    vision_server(grid_of(lambda: vision_client(stranger.truth, 1, 1)), stranger.record, stranger.truth, 1)
    stranger.shell.told("card", "new", stranger.record)
    (stranger.record / "card.yaml").unlink()
    with pytest.raises(AssertionError, match="under `preprocess`"):
        stranger.imported(**VISION, training=facts(1))


def test_an_epoch_of_batches_is_imported_and_attacked(stranger: Stranger) -> None:
    vision_server(grid_of(lambda: vision_client(stranger.truth, 24, 8)), stranger.record, stranger.truth, 2)
    shared(stranger)
    said = stranger.imported(**VISION, training=facts(8), preprocess={"mean": 0.5, "std": 0.5})
    assert "23 in 2" in said
    cell = stranger.attacked("label-updates")
    assert cell["status"] in ("run", "inconclusive"), cell["reason"]
    assert 0 <= dict(stranger.figures(cell))["label_tv_mean"] <= 1


# -- scikit-learn on a table --------------------------------------------------------------------------------------


def table_client(truth: Path) -> ClientApp:
    app = ClientApp()

    @app.train()
    def train(message: Message, context: Context) -> Message:
        site = int(context.node_config["partition-id"])
        x, y = tabular.flowers(site, SITES)
        sent = tabular.fitted(message.content["arrays"].to_numpy_ndarrays(), site, SITES)
        note_records(message, context, truth, list(zip(x, y, strict=True)))
        content = {"arrays": ArrayRecord(sent), "metrics": MetricRecord({"num-examples": len(y)})}
        return Message(RecordDict(content), reply_to=message)

    return app


def test_a_logistic_regression_on_a_table_is_imported_and_attacked(stranger: Stranger) -> None:
    grid = grid_of(lambda: table_client(stranger.truth))
    with RecordingGrid(grid, stranger.record, truth=stranger.truth) as recording:
        strategy = FedAvg(fraction_evaluate=0.0)
        result = strategy.start(recording, ArrayRecord(tabular.zeros()), num_rounds=3)
        recording.release(result.arrays)
    card = {
        "task": "table",
        "classes": 3,
        "input_shape": [4],
        "model": {"name": "import:quickstarts.tabular:Softmax"},
        "names": "by-position",
        "protocol": {"name": "flower-sklearn"},
    }
    stranger.imported(**card)
    cell = stranger.attacked("label-updates")
    assert cell["status"] in ("run", "inconclusive", "not-applicable"), cell["reason"]
    released = stranger.attacked("loss-threshold", "world")
    assert released["status"] == "not-applicable"
    assert "candidates" in released["reason"]


# -- SecAgg+ and differential privacy -----------------------------------------------------------------------------


class Site(NumPyClient):
    """A client of Flower's older interface, which sees no message."""

    def __init__(self, context: Context) -> None:
        self.context = context
        self.dataset = vision.partition(int(context.node_config["partition-id"]), 8)

    def fit(self, parameters: NDArrays, config: Config) -> tuple[NDArrays, int, dict[str, Scalar]]:
        """Return the model after one pass."""
        names = vision.Net().state_dict()
        state = {name: torch.from_numpy(p.copy()) for name, p in zip(names, parameters, strict=True)}
        model = vision.train(state, self.dataset, 4)
        self.context.state["fdaudit.records"] = ConfigRecord({"ids": list(range(8))})
        return [p.numpy() for p in model.state_dict().values()], 8, {}


def older_client(truth: Path, *mods: Any) -> ClientApp:
    def site(context: Context) -> Client:
        return Site(context).to_client()

    return ClientApp(site, mods=[noting(truth), *mods])


def older_server(grid: Grid, record: Path, truth: Path, *, masked: bool, noise: float | None) -> None:
    torch.manual_seed(0)
    start = ndarrays_to_parameters([p.numpy() for p in vision.Net().state_dict().values()])
    strategy: Any = OlderFedAvg(fraction_evaluate=0.0, min_fit_clients=SITES, initial_parameters=start)
    if noise is not None:
        strategy = DifferentialPrivacyClientSideFixedClipping(strategy, noise, 1.0, SITES)
    run = Context(7, 1, {}, RecordDict(), {})
    context = LegacyContext(run, config=ServerConfig(num_rounds=2), strategy=strategy)
    workflow = DefaultWorkflow(fit_workflow=SecAggPlusWorkflow(1.0, 0.6)) if masked else DefaultWorkflow()
    with RecordingGrid(grid, record, truth=truth) as grid:
        workflow(grid, context)
        grid.release(context.state[MAIN_PARAMS_RECORD])


def test_masked_uploads_are_imported_and_no_single_one_is_attacked(stranger: Stranger) -> None:
    grid = grid_of(lambda: older_client(stranger.truth, secaggplus_mod))
    older_server(grid, stranger.record, stranger.truth, masked=True, noise=None)
    said = stranger.imported(**VISION, names="by-position", training=facts(4))
    assert "flower/masked-vector" in said
    cell = stranger.attacked("inverting-gradients")
    assert cell["status"] == "not-applicable", cell["reason"]


def test_clipped_uploads_of_a_private_strategy_are_imported_and_attacked(stranger: Stranger) -> None:
    grid = grid_of(lambda: older_client(stranger.truth, fixedclipping_mod))
    older_server(grid, stranger.record, stranger.truth, masked=False, noise=1.0)
    stranger.imported(**VISION, names="by-position", training=facts(4))
    cell = stranger.attacked("label-updates")
    assert cell["status"] in ("run", "inconclusive", "not-applicable"), cell["reason"]
