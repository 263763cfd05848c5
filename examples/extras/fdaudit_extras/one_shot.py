"""One-shot averaging: train to the end, average once."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, ClassVar

import torch
from pydantic import Field

from fdaudit.federation.protocol import ProtocolConfig, Round, Setting
from fdaudit.registry import ProtocolCard
from fdaudit.rng import child, child_seed
from fdaudit.training.trainer import Fit, Job, Parameters, draw_batches


class OneShotConfig(ProtocolConfig):
    """Settings of one-shot averaging."""

    rounds: int = Field(1, ge=1, le=1)
    """Always 1."""
    local_epochs: int = Field(20, ge=1)
    """Passes over a client's data."""
    batch_size: int = Field(16, ge=1)
    """Records a step."""
    lr: float = Field(0.1, gt=0)
    """Learning rate of local SGD."""

    def alone(self) -> dict[str, Any]:
        """The reference lines train as much as a client does here."""
        return {name: getattr(self, name) for name in ("rounds", "local_epochs", "batch_size", "lr")}


class OneShot:
    """Each client trains to the end and sends its model once; the server averages the models and publishes."""

    card = ProtocolCard(
        name="one-shot",
        source="Guha, Talwalkar & Smith 2019, without distillation",
        roles=("server", "client"),
        messages=(
            {"kind": "model_parameters", "from": "server", "to": "client", "what": "initial model"},
            {"kind": "model_parameters", "from": "client", "to": "server", "what": "trained model"},
            {"kind": "model_parameters", "from": "server", "to": "client, world", "what": "average"},
        ),
        trust=("The server sees every client's model by itself.",),
        oracles=({"name": "released-model", "available_to": ("world",), "answers": ("soft", "hard")},),
        differences=("Averages parameters where the paper distils an ensemble.",),
        withholdable=(),
        pools_data=False,
        heterogeneous=False,
        needs_public=False,
        starts={"weights": "broadcast", "source": "the server sends them"},
        trains={"model": "batch_size"},
    )
    Config: ClassVar[type[OneShotConfig]] = OneShotConfig

    def __init__(self, config: OneShotConfig, setting: Setting) -> None:
        self.config, self._setting = config, setting
        self.state = {name: tensor.clone() for name, tensor in setting.initial["server"].items()}

    def rounds(self, start: int) -> Iterator[Round]:
        """The only round, unless it is over."""
        if start > 0:
            return
        wire, local, seed = self._setting.wire, self._setting.local, self._setting.seed
        clients = list(self._setting.clients)
        wire.begin(0)
        first = wire.send("server", clients, "model_parameters", self.state, inputs=[])
        # Only clients go silent, and what is not withholdable is not withheld.
        assert first is not None  # noqa: S101
        jobs = [self._job(k, first, seed) for k in clients]
        length, inputs = {"epochs": self.config.local_epochs}, dict.fromkeys(clients, (first.seq,))
        fitted, basis = local.fit(jobs, Fit(lr=self.config.lr), length=length, inputs=inputs)
        sent, batches = [], {}
        for k, result in zip(clients, fitted, strict=True):
            upload = wire.send(k, ["server"], "model_parameters", result.parameters, inputs=basis[k])
            if upload is not None:  # otherwise the client went silent
                sent.append(upload)
                batches[upload.seq] = torch.cat(list(result.batches))
        w = {n: torch.stack([u[n].cpu() for u in sent]).mean(0) for n in self.state} if sent else self.state
        self.state = w
        wire.send("server", [*clients, "world"], "model_parameters", w, inputs=[u.seq for u in sent])
        yield Round(index=0, models={"server": w}, batches=batches)

    def released(self) -> Parameters:
        """The average."""
        return self.state

    def _job(self, k: str, start: Parameters, seed: int) -> Job:
        data, cfg = self._setting.clients[k], self.config
        generator = child(seed, "one-shot", "batches", k)
        drawn = draw_batches(len(data), cfg.batch_size, epochs=cfg.local_epochs, generator=generator)
        dropout = child_seed(seed, "one-shot", "dropout", k)
        return Job(party=k, parameters=start, x=data.x, targets=data.y, batches=drawn, seed=dropout)
