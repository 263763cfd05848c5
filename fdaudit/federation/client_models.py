"""Clients that keep their own models between rounds, for protocols that exchange predictions."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn import functional as F

from fdaudit.federation.local_settings import LocalTraining
from fdaudit.federation.local_training import joined
from fdaudit.federation.protocol import PartyData, Setting
from fdaudit.federation.state import basis_of, copies_of, keep_basis, put, take
from fdaudit.registry import ProtocolCard
from fdaudit.rng import child, child_seed
from fdaudit.training.jobs import mean_losses
from fdaudit.training.trainer import Fit, Fitted, Job, Parameters, draw_batches

__all__ = ["ClientModels", "client_jobs", "draw_job", "sample_clients"]


def sample_clients(clients: Iterable[str], m: int, draws: torch.Generator) -> list[str]:
    """Return `m` clients, drawn without replacement, in the order of `clients`."""
    names = list(clients)
    order = torch.randperm(len(names), generator=draws)
    return [names[k] for k in sorted(order[:m].tolist())]


def draw_job(
    party: str,
    parameters: Mapping[str, Tensor],
    x: Tensor,
    targets: Tensor,
    *,
    seed: int,
    path: Sequence[str | int],
    batch_size: int,
    steps: int | None = None,
    epochs: int | None = None,
) -> Job:
    """Return a job to fit a model on (x, targets), with batches and dropout from children of `seed` named by `path`."""
    draws = child(seed, *path, "batches")
    batches = draw_batches(len(x), batch_size, steps=steps, epochs=epochs, generator=draws)
    dropout = child_seed(seed, *path, "dropout")
    return Job(party=party, parameters=parameters, x=x, targets=targets, batches=batches, seed=dropout)


def client_jobs(
    starts: Mapping[str, Mapping[str, Tensor]],
    clients: Mapping[str, PartyData],
    config: LocalTraining,
    seed: int,
    *path: str | int,
) -> list[Job]:
    """Return each client's job to fit the model that it starts from to its own records.

    Args:
        starts: the models, by client.
        clients: the records, by client.
        config: the length of local training, and the size of its batches.
        seed: the run's seed.
        path: names the draws; the client's name is added.
    """
    jobs = []
    for k, start in starts.items():
        x, y, own_path = clients[k].x, clients[k].y, (*path, k)
        size = config.batch_size
        jobs.append(draw_job(k, start, x, y, seed=seed, path=own_path, batch_size=size, **config.steps))
    return jobs


class ClientModels:
    """Keeps each client's model in `state` under the client's name. Clients with the same network train together.

    By default a message's inputs are all that a client holds, which is always sound. Under a training defence this
    would hide the defence's effect. The inputs of each model are then stored with it and declared.
    """

    card: ClassVar[ProtocolCard]

    def __init__(self, config: LocalTraining, setting: Setting) -> None:
        self._local, self._wire, self._seed = config, setting.wire, setting.seed
        self._trainers, self._own, self._clients = setting.trainers, setting.local, dict(setting.clients)
        self.state: dict[str, Tensor] = {}
        for k in self._clients:
            put(self.state, f"{k}/w/", copies_of(setting.initial[k]))
            if self._own.defended():
                keep_basis(self.state, k, ())

    def released(self) -> Parameters | None:
        """Return None: nothing is released."""
        return None

    def _models(self) -> dict[str, Parameters]:
        return {k: take(self.state, f"{k}/w/") for k in self._clients}

    def _train(
        self,
        *path: str | int,
        targets: Mapping[str, Tensor] | None = None,
        length: Mapping[str, int | None] | None = None,
        taught: Mapping[str, Sequence[int]] | None = None,
        beside: Mapping[str, tuple[Tensor, Tensor]] | None = None,
    ) -> dict[str, float]:
        """Fit every client's model to its own records; return the mean losses.

        Args:
            path: names the draws; the client's name is added.
            targets: targets other than the records' classes, by client.
            length: `steps` or `epochs`, if different from the settings.
            taught: by client, the messages that its targets were made from, in addition to its records.
            beside: by client, public samples (n, c, h, w) and their targets (n, C), which join its records.
        """
        length = self._local.steps if length is None else length
        jobs, inputs = [], {}
        for k, data in self._clients.items():
            x, y = data.x, data.y
            if targets is not None:
                y = targets[k]
            if beside is not None and k in beside:
                samples, sample_targets = beside[k]
                one_hot = F.one_hot(y, sample_targets.shape[1]).to(sample_targets)
                x, y = torch.cat([x, samples]), torch.cat([one_hot, sample_targets])
            own, own_path = take(self.state, f"{k}/w/"), (self.card.name, *path, k)
            size = self._local.batch_size
            jobs.append(draw_job(k, own, x, y, seed=self._seed, path=own_path, batch_size=size, **length))
            inputs[k] = joined(basis_of(self.state, k), (taught or {}).get(k, ()))
        fitted, basis = self._own.fit(jobs, self._local.fit(), length=length, inputs=inputs)
        for k, made_from in basis.items():
            keep_basis(self.state, k, made_from)
        return self._adopted(jobs, fitted)

    def _advance(
        self, jobs: Sequence[Job], fit: Fit, taught: Mapping[str, Sequence[int]] | None = None
    ) -> dict[str, float]:
        """Fit each job's model to public samples; it replaces its party's model. Return the mean losses.

        Args:
            jobs: models and samples.
            fit: how they are fitted.
            taught: by party, the messages that the samples' targets were made from.
        """
        for job in jobs:
            basis = joined(basis_of(self.state, job.party), (taught or {}).get(job.party, ()))
            keep_basis(self.state, job.party, basis)
        return self._adopted(jobs, self._trainers.fit(jobs, fit))

    def _adopted(self, jobs: Sequence[Job], fitted: Sequence[Fitted]) -> dict[str, float]:
        for job, result in zip(jobs, fitted, strict=True):
            put(self.state, f"{job.party}/w/", result.parameters)
        return mean_losses(jobs, fitted)

    def _predict(self, k: str, x: Tensor) -> Tensor:
        """Return client k's logits (n, C) for samples (n, c, h, w)."""
        return self._trainers[k].predict(take(self.state, f"{k}/w/"), x)
