"""FedAvg by Flower's simulation runtime: its message API, `serverapp.strategy.FedAvg`, clients in Ray's actors.

This module is imported by the actors, one of which runs on each thread; an actor makes all clients' records when it
meets its first client and keeps them, so that a round pays for training and messages only.
"""

from __future__ import annotations

import functools
import logging
import warnings

import torch
from _fedavg import CLIENTS, LR, SEED, Data, batches, clients, network
from _sides import Pause
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.simulation import run_simulation
from torch import nn
from torch.nn import functional as F

from fdaudit.rng import child

app = ClientApp()


@app.train()
def train(message: Message, context: Context) -> Message:
    """A client's steps of one round, from the parameters that the message brings."""
    torch.set_num_threads(1)
    config = message.content["config"]
    layout = torch.channels_last if config["layout"] == "channels_last" else torch.contiguous_format
    k = f"client/{context.node_config['partition-id']}"
    data, model = _records(layout)[k], _model(layout)
    model.load_state_dict(message.content["arrays"].to_torch_state_dict())
    optimizer = torch.optim.SGD(model.parameters(), lr=LR)
    for batch in batches(len(data.y), int(config["server-round"]) - 1, k):
        optimizer.zero_grad()
        F.cross_entropy(model(data.x[batch]), data.y[batch]).backward()
        optimizer.step()
    metrics = MetricRecord({"num-examples": len(data.y)})
    return Message(
        RecordDict({"arrays": ArrayRecord(model.state_dict()), "metrics": metrics}), reply_to=message
    )


def simulate(rounds: int, threads: int, layout: str, pause: Pause) -> None:
    """Runs so many rounds on so many actors of one thread each, with a pause before each round."""
    warnings.simplefilter("ignore")
    logging.getLogger("flwr").setLevel(logging.ERROR)
    server = ServerApp()

    @server.main()
    def main(grid: Grid, context: Context) -> None:
        def between(number: int, arrays: ArrayRecord) -> None:
            pause(arrays.to_torch_state_dict)

        first = ArrayRecord(network().build(child(SEED, "initial-parameters")).state_dict())
        strategy = FedAvg(fraction_evaluate=0.0, min_train_nodes=CLIENTS, min_available_nodes=CLIENTS)
        config = ConfigRecord({"layout": layout})
        strategy.start(grid, first, num_rounds=rounds, train_config=config, evaluate_fn=between)

    resources = {"init_args": {"num_cpus": threads}, "client_resources": {"num_cpus": 1, "num_gpus": 0}}
    run_simulation(server, app, num_supernodes=CLIENTS, backend_config=resources)


@functools.cache
def _records(layout: torch.memory_format) -> Data:
    return {k: type(d)(d.x.contiguous(memory_format=layout), d.y) for k, d in clients().items()}


@functools.cache
def _model(layout: torch.memory_format) -> nn.Module:
    return network().build(child(SEED, "initial-parameters")).to(memory_format=layout)
