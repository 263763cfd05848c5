"""The two reference lines of every curve: clients that train alone, and one client with the union of all data."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

from torch import Tensor

from fdaudit.federation.local_settings import LocalTraining
from fdaudit.federation.protocol import PRIVATE_ROUNDS, RELEASED_MODEL, Round, Setting
from fdaudit.federation.state import basis_of, copies_of, keep_basis, put, take
from fdaudit.registry import ProtocolCard
from fdaudit.rng import child, child_seed
from fdaudit.training.jobs import mean_losses
from fdaudit.training.trainer import Job, Parameters, draw_batches

__all__ = ["Centralized", "CentralizedConfig", "Standalone", "StandaloneConfig"]


class StandaloneConfig(LocalTraining):
    """Local SGD, round by round, without any exchange."""


class CentralizedConfig(LocalTraining):
    """Local SGD of one client that holds the union of the data."""

    publish: bool = True
    """Publish the final model to `world`."""


class _Alone:
    """Clients that never exchange anything: round t continues from the parameters of round t - 1."""

    def __init__(self, config: LocalTraining, setting: Setting) -> None:
        self.config, self._wire, self._seed = config, setting.wire, setting.seed
        self._local, self._clients = setting.local, dict(setting.clients)
        self._task = setting.task
        self.state: dict[str, Tensor] = {}
        for k in self._clients:
            put(self.state, f"{k}/w/", copies_of(setting.initial[k]))
            keep_basis(self.state, k, ())

    def rounds(self, start: int) -> Iterator[Round]:
        """Run every client's local steps; send nothing."""
        for t in range(start, self.config.rounds):
            self._wire.begin(t)
            jobs = []
            for k, data in self._clients.items():
                draws = child(self._seed, "alone", "batches", t, k)
                batches = draw_batches(
                    len(data), self.config.batch_size, generator=draws, **self.config.steps
                )
                seed = child_seed(self._seed, "alone", "dropout", t, k)
                own = self._own(k)
                jobs.append(
                    Job(party=k, parameters=own, x=data.x, targets=data.y, batches=batches, seed=seed)
                )
            fit = self.config.fit(task=self._task)
            inputs = {k: basis_of(self.state, k) for k in self._clients}
            fitted, basis = self._local.fit(jobs, fit, length=self.config.steps, inputs=inputs)
            for job, result in zip(jobs, fitted, strict=True):
                put(self.state, f"{job.party}/w/", result.parameters)
                keep_basis(self.state, job.party, basis[job.party])
            losses = mean_losses(jobs, fitted)
            yield Round(index=t, models={k: self._own(k) for k in self._clients}, losses=losses)

    def released(self) -> Parameters | None:
        """Return None: nothing is released."""
        return None

    def _own(self, k: str) -> Parameters:
        return take(self.state, f"{k}/w/")


class Standalone(_Alone):
    """Each client trains on its own data and sends nothing: a baseline that collaboration must beat.

    No message is sent, so no other party learns anything. The accuracy is the lower reference line of every utility
    curve.
    """

    card = ProtocolCard(
        name="standalone",
        source="reference line; `IndepLearn` in Shao, Wu & Zhang 2023",
        roles=("client",),
        messages=(),
        trust=("Nothing leaves a client.",),
        oracles=(),
        starts={
            "weights": "own",
            "source": "A client that receives nothing can only draw its own.",
        },
        differences=(),
        withholdable=(),
        privacy={
            "claims": ("None: a reference line."),
            "finds": {},
            "private": {"params": {}, "withhold": [], "training": []},
        },
        pools_data=False,
        heterogeneous=True,
        needs_public=False,
        tasks=("single-label", "multi-label", "segmentation", "text", "table"),
        trains={"model": "batch_size"},
    )
    Config: ClassVar[type[StandaloneConfig]] = StandaloneConfig


class Centralized(_Alone):
    """One client holds the union of all data: an upper reference for collaboration.

    The privacy cost is that all data is pooled before the protocol starts. Only the final model is sent, to `world`.
    """

    card = ProtocolCard(
        name="centralized",
        source="reference line",
        roles=("client",),
        messages=(
            {
                "kind": "model_parameters",
                "from": "client",
                "to": "world",
                "what": "the final model, when published",
                "when": {"publish": True},
            },
        ),
        trust=("One party holds everybody's data.",),
        oracles=(RELEASED_MODEL,),
        starts={
            "weights": "own",
            "source": "The only client draws them; nothing is sent before the end.",
        },
        differences=(),
        withholdable=("model_parameters",),
        privacy={
            "claims": (
                "None: records are pooled before the protocol starts; only what is published is in the ledger."
            ),
            "finds": {"world": "model_parameters"},
            "private": {
                "params": {},
                "withhold": [],
                "training": ["model"],
                "tuned": PRIVATE_ROUNDS,
            },
        },
        pools_data=True,
        heterogeneous=False,
        needs_public=False,
        tasks=("single-label", "multi-label", "segmentation", "text", "table"),
        trains={"model": "batch_size"},
    )
    Config: ClassVar[type[CentralizedConfig]] = CentralizedConfig

    def __init__(self, config: CentralizedConfig, setting: Setting) -> None:
        super().__init__(config, setting)
        self._publish = config.publish

    def rounds(self, start: int) -> Iterator[Round]:
        """Train the pooled client, then publish its model."""
        for round in super().rounds(start):
            if self._publish and round.index == self.config.rounds - 1:
                (only,) = self._clients
                inputs = basis_of(self.state, only)
                self._wire.send(only, ["world"], "model_parameters", self._own(only), inputs=inputs)
            yield round

    def released(self) -> Parameters | None:
        """Return the pooled client's model if it is published."""
        (only,) = self._clients
        return self._own(only) if self._publish else None
