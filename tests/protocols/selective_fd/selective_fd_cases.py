"""MNIST as the paper's non-IID settings divide it, and a federation on it; shared by the slow tests of Selective-FD."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch
from fdaudit.protocols import REGISTRY
from torch import Tensor

from fdaudit.config import validate
from fdaudit.data import Dataset, load_dataset
from fdaudit.federation.networks import Networks
from fdaudit.federation.protocol import Common, PartyData
from fdaudit.federation.rehearsal import kinds_of, parties_of, setting_of
from fdaudit.models import Architecture, architecture
from fdaudit.rng import child
from fdaudit.spec.schema import DatasetSpec, ModelSpec
from fdaudit.training.execution import Execution
from fdaudit.transcript.transcript import Transcript
from fdaudit.transcript.wire import Wire

from ...helpers.run_cases import stream

CLIENTS, CLASSES = 10, 10
SECRET = b"a secret of the auditor, not the seed"


@lru_cache
def mnist() -> Dataset:
    return load_dataset(DatasetSpec(name="mnist"), stream(0, "dataset"))


def network() -> Architecture:
    return architecture(ModelSpec(name="cnn-5-5"), (1, 28, 28), CLASSES)


def execution(threads: int = 1) -> Execution:
    return Execution.resolve(device="cpu", threads=threads, convolutions=True)


def divided(
    seed: int, *, per_class: int, classes: int, proxy: int
) -> tuple[dict[str, PartyData], Tensor, Tensor]:
    """Client k's records of classes k, k + 1, ... (mod 10), `per_class` of each; proxy samples and their labels."""
    data = mnist()
    order = torch.randperm(len(data.y), generator=child(seed, "order"))
    public, private = order[:proxy], order[proxy:]
    found = {}
    for k in range(CLIENTS):
        parts = []
        for j in range(classes):
            members = private[data.y[private] == (k + j) % CLASSES]
            parts.append(members[j * per_class : (j + 1) * per_class])
        index = torch.cat(parts)
        found[f"client/{k}"] = PartyData(data.x[index], data.y[index])
    return found, data.x[public], data.y[public]


def accuracy_after(
    folder: Path, name: str, params: Mapping[str, Any], *, seed: int, per_class: int = 1000, classes: int = 1
) -> float:
    """Mean accuracy in per cent of the clients' models on MNIST's test images after a recorded run."""
    clients, public, _ = divided(seed, per_class=per_class, classes=classes, proxy=6000)
    cls = REGISTRY.load(name)
    common = Common(networks=Networks(network()), execution=execution(), public=public)
    config = validate(cls.Config, params)
    with Transcript(folder, secret=SECRET) as transcript:
        wire = Wire(
            transcript,
            parties=parties_of(cls, config, CLIENTS),
            kinds=kinds_of(cls),
            device=torch.device("cpu"),
            secret=SECRET,
            withholdable=cls.card.withholdable,
        )
        setting = setting_of(cls, common, clients, wire, seed)
        protocol = cls(config, setting)
        models: dict[str, Any] = {}
        for done in protocol.rounds(0):
            models |= {k: m for k, m in done.models.items() if k in clients}
    data = mnist()
    assert data.test_x is not None
    assert data.test_y is not None
    logits = setting.trainers.predict(models, data.test_x)
    right = [(z.argmax(1) == data.test_y).float().mean() for z in logits.values()]
    return 100 * float(torch.stack(right).mean())
