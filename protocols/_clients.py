"""Clients that keep models of their own from round to round, as protocols that exchange predictions have them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar

from torch import Tensor

from fdaudit.federation.local_training import joined
from fdaudit.federation.protocol import Setting
from fdaudit.rng import child, child_seed
from fdaudit.training.trainer import Fit, Fitted, Job, Parameters, draw_batches

from ._local import LocalTraining
from ._state import basis_of, keep_basis, put, take

__all__ = ["ClientModels", "draw_job"]


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
    """One model to fit on (x, targets), its batches and dropout drawn from children of `seed` named by `path`."""
    batches = draw_batches(
        len(x), batch_size, steps=steps, epochs=epochs, generator=child(seed, *path, "batches")
    )
    dropout = child_seed(seed, *path, "dropout")
    return Job(party=party, parameters=parameters, x=x, targets=targets, batches=batches, seed=dropout)


class ClientModels:
    """Each client's model lies in `state` under the client's name; clients of one network advance together.

    Messages leave their inputs at all that a client holds, which is always sound. Under a training defence that would
    hide what the defence does, so that what a model was made from is kept beside it and declared.
    """

    name: ClassVar[str]

    def __init__(self, config: LocalTraining, setting: Setting) -> None:
        self._local, self._wire, self._seed = config, setting.wire, setting.seed
        self._trainers, self._own, self._clients = setting.trainers, setting.local, dict(setting.clients)
        self.state: dict[str, Tensor] = {}
        for k in self._clients:
            put(self.state, f"{k}/w/", {n: t.clone() for n, t in setting.initial[k].items()})
            if self._own.defended():
                keep_basis(self.state, k, ())

    def released(self) -> Parameters | None:
        """Nothing is released."""
        return None

    def _models(self) -> dict[str, Parameters]:
        return {k: take(self.state, f"{k}/w/") for k in self._clients}

    def _train(
        self,
        *path: str | int,
        targets: Mapping[str, Tensor] | None = None,
        length: Mapping[str, int | None] | None = None,
        taught: Mapping[str, Sequence[int]] | None = None,
    ) -> dict[str, float]:
        """Every client fits its model to its own records; returns the mean losses.

        Args:
            path: names the draws, the client's name is added.
            targets: other targets than the records' classes, by client.
            length: `steps` or `epochs`, where not the settings' own.
            taught: by client, the messages that its targets were made from besides its records.
        """
        length = self._local.steps if length is None else length
        jobs = [
            draw_job(
                k,
                take(self.state, f"{k}/w/"),
                data.x,
                data.y if targets is None else targets[k],
                seed=self._seed,
                path=(self.name, *path, k),
                batch_size=self._local.batch_size,
                **length,
            )
            for k, data in self._clients.items()
        ]
        inputs = {k: joined(basis_of(self.state, k), (taught or {}).get(k, ())) for k in self._clients}
        fitted, basis = self._own.fit(jobs, self._local.fit(), length=length, inputs=inputs)
        for k, made_from in basis.items():
            keep_basis(self.state, k, made_from)
        return self._adopted(jobs, fitted)

    def _advance(self, jobs: Sequence[Job], fit: Fit, taught: Sequence[int] = ()) -> dict[str, float]:
        """Fits each job's model to public samples, which replaces its party's; returns the mean losses.

        Args:
            jobs: models and samples.
            fit: how they are fitted.
            taught: the messages that the samples' targets were made from.
        """
        for job in jobs:
            keep_basis(self.state, job.party, joined(basis_of(self.state, job.party), taught))
        return self._adopted(jobs, self._trainers.fit(jobs, fit))

    def _adopted(self, jobs: Sequence[Job], fitted: Sequence[Fitted]) -> dict[str, float]:
        for job, result in zip(jobs, fitted, strict=True):
            put(self.state, f"{job.party}/w/", result.parameters)
        return {j.party: float(f.losses.mean()) for j, f in zip(jobs, fitted, strict=True)}

    def _predict(self, k: str, x: Tensor) -> Tensor:
        """Client k's logits (n, C) for samples (n, c, h, w)."""
        return self._trainers[k].predict(take(self.state, f"{k}/w/"), x)
