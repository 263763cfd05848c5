"""Shared parts of the FedAvg benchmarks: one round as a run does it, and as a bare PyTorch loop does it."""

from __future__ import annotations

from pathlib import Path

import torch
from _images import CLASSES, SHAPE, patterned
from _recorded import Recorded
from fdaudit.protocols.fedavg import FedAvg, FedAvgConfig
from torch import Tensor
from torch.nn import functional as F

from fdaudit.federation.protocol import PartyData
from fdaudit.models import Architecture, architecture
from fdaudit.rng import child
from fdaudit.spec.schema import ModelSpec
from fdaudit.training.execution import Execution
from fdaudit.training.trainer import draw_batches

SEED, CLIENTS, STEPS, BATCH, LR = 1, 20, 11, 64, 0.1
NOISE = 1.5
"""Noise of `learnable` images, in units of their intensity: accuracy rises over ten rounds, not in one."""

Data = dict[str, PartyData]


def recorded(folder: Path, data: Data, execution: Execution, rounds: int) -> Recorded:
    """Return FedAvg as a run does it, with one extra round, because the last one also publishes the model."""
    config = FedAvgConfig(rounds=rounds + 1, local_steps=STEPS, batch_size=BATCH, lr=LR)
    return Recorded(folder, FedAvg, config, network(), data, execution, SEED)


class Bare:
    """The same rounds in plain PyTorch, without a record."""

    def __init__(self, network: Architecture, data: Data, memory_format: torch.memory_format) -> None:
        self._model = network.build(child(SEED, "initial-parameters")).to(memory_format=memory_format)
        self._data = [(k, d.x.contiguous(memory_format=memory_format), d.y) for k, d in data.items()]
        self._server = [p.detach().clone() for p in self._model.parameters()]
        self._round = 0

    def __call__(self) -> None:
        weights = list(self._model.parameters())
        total = sum(len(y) for _, _, y in self._data)
        change = [torch.zeros_like(p) for p in self._server]
        for k, x, y in self._data:
            with torch.no_grad():
                for w, s in zip(weights, self._server, strict=True):
                    w.copy_(s)
            optimizer = torch.optim.SGD(weights, lr=LR)
            for batch in batches(len(y), self._round, k):
                optimizer.zero_grad()
                F.cross_entropy(self._model(x[batch]), y[batch]).backward()
                optimizer.step()
            with torch.no_grad():
                for c, w, s in zip(change, weights, self._server, strict=True):
                    c += (len(y) / total) * (w - s)
        for s, c in zip(self._server, change, strict=True):
            s += c
        self._round += 1

    def adopt(self, parameters: dict[str, Tensor]) -> None:
        for s, (n, _) in zip(self._server, self._model.named_parameters(), strict=True):
            s.copy_(parameters[n])

    @property
    def parameters(self) -> dict[str, Tensor]:
        names = [n for n, _ in self._model.named_parameters()]
        return dict(zip(names, self._server, strict=True))


def batches(records: int, round: int, client: str) -> list[Tensor]:
    """Return the rows of each of a client's steps in one round, as `protocols/fedavg.py` draws them."""
    generator = child(SEED, "fedavg", "batches", round, client)
    return list(draw_batches(records, BATCH, steps=STEPS, generator=generator))


def network() -> Architecture:
    """Return the papers' CNN of two 5x5 convolutions."""
    return architecture(ModelSpec(name="cnn-5-5"), SHAPE, CLASSES)


def memory_format(execution: Execution) -> torch.memory_format:
    """Return torch's name for the chosen memory format."""
    return torch.channels_last if execution.memory_format == "channels_last" else torch.contiguous_format


def learnable(records: int, *name: str | int) -> PartyData:
    """Return records of all classes."""
    generator = child(SEED, "learnable", *name)
    y = torch.randint(CLASSES, (records,), generator=generator)
    return PartyData(patterned(y, NOISE, generator), y)


def clients() -> Data:
    """Return records of each client, as many as the steps of one round take."""
    return {f"client/{k}": learnable(STEPS * BATCH, k) for k in range(CLIENTS)}
