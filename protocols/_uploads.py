"""Rounds in which a sample of the clients trains the server's model, and weights of results by numbers of records."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence, Sized
from typing import ClassVar

import torch
from pydantic import Field
from torch import Tensor

from fdaudit.federation.client_models import client_jobs, sample_clients
from fdaudit.federation.local_settings import LocalTraining
from fdaudit.federation.protocol import Setting
from fdaudit.registry import ProtocolCard
from fdaudit.rng import child
from fdaudit.training.jobs import mean_losses
from fdaudit.training.trainer import Parameters
from fdaudit.transcript.messages import DATA
from fdaudit.transcript.wire import Delivery, Wire

__all__ = [
    "ModelUploads",
    "SampledTraining",
    "announce_counts",
    "count_seqs",
    "reported_counts",
    "shares_of_clients",
    "weighted_mean",
]


def announce_counts(
    state: dict[str, Tensor], wire: Wire, clients: Mapping[str, Sized], to: Sequence[str] = ("server",)
) -> None:
    """Send each client's number of records; the server's state keeps the ones that arrive.

    Args:
        state: the protocol's state.
        wire: the channel.
        clients: the clients' records.
        to: the receivers; a client does not send its count to itself.
    """
    for k, data in clients.items():
        receivers = [party for party in to if party != k]
        n_k = wire.send(k, receivers, "sample_count", {"n": torch.tensor(len(data))}, inputs=[DATA])
        if n_k is not None:
            state[f"server/n/{k}"] = n_k["n"].cpu()
            state[f"server/n_seq/{k}"] = torch.tensor(n_k.seq)


def reported_counts(state: Mapping[str, Tensor], clients: Iterable[str]) -> list[int]:
    """Return n_k of each client; one that did not arrive, or that noise made non-positive, counts as one record."""
    counts = []
    for k in clients:
        n_k = int(state.get(f"server/n/{k}", 1))
        counts.append(max(n_k, 1))
    return counts


def count_seqs(state: Mapping[str, Tensor], clients: Iterable[str]) -> list[int]:
    """Return the numbers of the messages in which these clients sent their counts."""
    seqs: list[int] = []
    for k in clients:
        seq = state.get(f"server/n_seq/{k}")
        if seq is not None:
            seqs.append(int(seq))
    return seqs


def shares_of_clients(amounts: Tensor) -> Tensor:
    """Return each client's share of amounts (K, ...), which are not negative; equal shares where all are zero.

    Guarantees:
      * non-negative, and sums to one over the clients.
    """
    total = amounts.sum(0)
    some = total > 0
    return torch.where(some, amounts / total.where(some, 1), 1 / len(amounts))


def weighted_mean(models: Sequence[Mapping[str, Tensor]], counts: Sequence[int]) -> Parameters:
    """Return the average Σ_k n_k / n w_k of models by their numbers of records n_k, parameter by parameter."""
    n = sum(counts)
    mean = {}
    for name in models[0]:
        parts: list[Tensor] = []
        for n_k, model in zip(counts, models, strict=True):
            part = n_k / n * model[name].cpu()
            parts.append(part)
        mean[name] = torch.stack(parts).sum(0)
    return mean


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
        jobs = client_jobs(received, self._clients, self._training, self._seed, self.card.name, t)
        inputs = {k: (x.seq,) for k, x in received.items()}
        fitted, basis = self._own.fit(jobs, self._training.fit(), length=self._training.steps, inputs=inputs)
        uploads, batches, models = {}, {}, {}
        for job, result in zip(jobs, fitted, strict=True):
            k = job.party
            models[k] = result.parameters
            upload = self._wire.send(k, ["server"], "model_parameters", result.parameters, inputs=basis[k])
            if upload is not None:
                uploads[k] = upload
                batches[upload.seq] = torch.cat(list(result.batches))
        return uploads, batches, mean_losses(jobs, fitted), models
