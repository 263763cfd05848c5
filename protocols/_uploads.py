"""Rounds in which a sample of the clients trains the server's model and sends it back whole."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import torch
from pydantic import Field
from torch import Tensor

from fdaudit.federation.client_models import draw_job, sample_clients
from fdaudit.federation.local_settings import LocalTraining
from fdaudit.federation.protocol import Setting
from fdaudit.registry import ProtocolCard
from fdaudit.rng import child
from fdaudit.training.jobs import mean_losses
from fdaudit.training.trainer import Parameters
from fdaudit.transcript.wire import Delivery

__all__ = ["ModelUploads", "SampledTraining"]


class SampledTraining(LocalTraining):
    """Local SGD of a sample of the clients, round after round."""

    fraction: float = Field(1.0, gt=0, le=1)
    """C: share of the clients that take part in a round, at least one."""


class ModelUploads:
    """The clients' part of FedDF and FedFTG, and the server's choice of clients."""

    card: ClassVar[ProtocolCard]

    def __init__(self, config: SampledTraining, setting: Setting) -> None:
        self._training, self._wire, self._seed = config, setting.wire, setting.seed
        self._own, self._clients = setting.local, dict(setting.clients)

    def _sample(self, t: int) -> list[str]:
        m = max(round(self._training.fraction * len(self._clients)), 1)
        return sample_clients(self._clients, m, child(self._seed, self.card.name, "sample", t))

    def _client_updates(
        self, t: int, received: Mapping[str, Delivery]
    ) -> tuple[dict[str, Delivery], dict[int, Tensor], dict[str, float], dict[str, Parameters]]:
        """Train each received model at its client and send it back. A silent client uploads nothing.

        Returns:
            the uploads that arrived, by client; the records behind each, by `seq`; the mean losses and the trained
            models, by client.
        """
        length = self._training.steps
        jobs = [
            draw_job(
                k,
                x,
                self._clients[k].x,
                self._clients[k].y,
                seed=self._seed,
                path=(self.card.name, t, k),
                batch_size=self._training.batch_size,
                **length,
            )
            for k, x in received.items()
        ]
        inputs = {k: (x.seq,) for k, x in received.items()}
        fitted, basis = self._own.fit(jobs, self._training.fit(), length=length, inputs=inputs)
        uploads, batches = {}, {}
        for job, result in zip(jobs, fitted, strict=True):
            k = job.party
            upload = self._wire.send(k, ["server"], "model_parameters", result.parameters, inputs=basis[k])
            if upload is not None:
                uploads[k] = upload
                batches[upload.seq] = torch.cat(list(result.batches))
        losses = mean_losses(jobs, fitted)
        return uploads, batches, losses, {j.party: f.parameters for j, f in zip(jobs, fitted, strict=True)}
