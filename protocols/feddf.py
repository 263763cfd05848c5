"""FedDF (Lin et al. 2020): federated averaging, then the server distils the ensemble of the uploaded models."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import ClassVar

import torch
from pydantic import Field
from torch import Tensor

from fdaudit.federation.client_models import draw_job
from fdaudit.federation.protocol import CURIOUS, PRIVATE_ROUNDS, RELEASED_MODEL, Round, Setting, arrived
from fdaudit.federation.state import copies_of, put, take
from fdaudit.registry import ProtocolCard
from fdaudit.training.trainer import Fit, Parameters, Trainer
from fdaudit.transcript.wire import Delivery

from ._uploads import ModelUploads, SampledTraining, announce_counts, reported_counts, weighted_mean

__all__ = ["FedDF", "FedDFConfig", "mean_logits"]


class FedDFConfig(SampledTraining):
    """FedDF's settings; symbols follow Lin et al. 2020, Algorithms 1 and 3."""

    distill_steps: int = Field(100, ge=1)
    """N: steps of distillation a round, at the server."""
    distill_batch_size: int = Field(128, ge=1)
    """Public samples a distillation step."""
    distill_lr: float = Field(0.001, gt=0)
    """Learning rate of Adam in distillation."""
    distill_final_lr: float | None = Field(1e-6, gt=0)
    """Final learning rate, on a half cosine over each round's steps. None: the rate is constant."""
    temperature: float = Field(1.0, gt=0)
    """τ: temperature of both softmaxes; the paper's is 1."""


def mean_logits(logits: Sequence[Tensor]) -> Tensor:
    """Return AVGLOGITS (m, C): the plain mean of the ensemble's logits (Lin et al. 2020, Eq. 1)."""
    return torch.stack(list(logits)).mean(0)


class FedDF(ModelUploads):
    """Clients upload their models; the server averages them and distils the ensemble into the average.

    Each round the server sends its model to a sample of the clients. Each client trains on its records and uploads all
    its parameters. The server averages them by sample counts. It then distils the mean logits of all uploaded models on
    unlabelled public samples into the average. If clients' networks differ, the server keeps one model for each
    network: it averages within a network and uses the ensemble of all. The privacy cost is FedAvg's, because whole
    models are uploaded.
    """

    card = ProtocolCard(
        name="feddf",
        source="Lin, Kong, Stich & Jaggi 2020, Algorithms 1 and 3",
        roles=("server", "client"),
        messages=(
            {"kind": "sample_count", "from": "client", "to": "server", "what": "n_k, once"},
            {
                "kind": "model_parameters",
                "from": "server",
                "to": "client",
                "what": "x_{t-1} of the client's network, every round",
            },
            {
                "kind": "model_parameters",
                "from": "client",
                "to": "server",
                "what": "x_t^k after local training",
            },
            {
                "kind": "model_parameters",
                "from": "server",
                "to": "client, world",
                "what": "the final model: of each network to its clients, of the server's network to world",
            },
        ),
        trust=(
            (
                "The server sees every client's model by itself; no secure aggregation is possible, as it asks each of "
                "them."
            ),
            "Only the server needs the public samples; nothing private is in them.",
            CURIOUS,
        ),
        oracles=(RELEASED_MODEL,),
        differences=(
            "The number of distillation steps is fixed; the paper stops early on validation data.",
            "A server's network that no client has is distilled from the ensemble, starting from where it stands.",
            "With `local_steps`, batches are always full and passes reshuffled; the paper speaks of epochs only.",
        ),
        withholdable=("sample_count",),
        privacy={
            "claims": ("None beyond FedAvg's: models are uploaded, and distilled at the server."),
            "finds": {"server": "model_parameters", "world": "model_parameters"},
            "private": {
                "params": {},
                "withhold": ["sample_count"],
                "training": ["model"],
                "tuned": PRIVATE_ROUNDS,
            },
        },
        starts={
            "weights": "broadcast",
            "source": "Lin et al. 2020, Algorithms 1 and 3: clients train from the server's model of their network.",
        },
        pools_data=False,
        heterogeneous=True,
        needs_public=True,
        tasks=("single-label", "text", "table"),
        copies={"server": ("model_parameters",), "client": ("model_parameters",)},
        trains={"model": "batch_size"},
    )
    Config: ClassVar[type[FedDFConfig]] = FedDFConfig

    def __init__(self, config: FedDFConfig, setting: Setting) -> None:
        super().__init__(config, setting)
        self.config, self._trainers, self._public = config, setting.trainers, setting.public
        # Parties of one network share a training core: one group each, the server's own network first.
        groups: dict[Trainer, list[str]] = {}
        for party in ("server", *self._clients):
            groups.setdefault(setting.trainers[party], []).append(party)
        self._groups = list(groups.values())
        self.state: dict[str, Tensor] = {}
        for p, group in enumerate(self._groups):
            put(self.state, f"server/w/{p}/", copies_of(setting.initial[group[0]]))

    def rounds(self, start: int) -> Iterator[Round]:
        """Run Algorithm 1, for each network of Algorithm 3."""
        for t in range(start, self.config.rounds):  # for each communication round
            self._wire.begin(t)
            if t == 0:
                announce_counts(self.state, self._wire, self._clients)
            selected = self._sample(t)  # S_t <- random subset of the clients
            messages: dict[str, Delivery] = {}
            for p, group in enumerate(self._groups):  # each client gets the model of its network
                receivers = [k for k in selected if k in group]
                if receivers:
                    message = self._send_model(p, receivers)
                    for k in receivers:
                        messages[k] = message.of(k)
            uploads, batches, losses, models = self._client_updates(t, messages)  # Client-LocalUpdate
            self._fuse(t, uploads)  # the average, then N distillation steps
            if (
                t == self.config.rounds - 1
            ):  # the final models; that of the server's network also goes to world
                for p, group in reversed(list(enumerate(self._groups))):
                    own = [k for k in group if k != "server"]
                    self._send_model(p, [*own, "world"] if p == 0 else own)
            yield Round(index=t, models={"server": self.released(), **models}, batches=batches, losses=losses)

    def released(self) -> Parameters:
        """Return the model of the server's own network."""
        return take(self.state, "server/w/0/")

    # -- the server -----------------------------------------------------------------------------------------

    def _send_model(self, p: int, receivers: Sequence[str]) -> Delivery:
        message = self._wire.send("server", receivers, "model_parameters", take(self.state, f"server/w/{p}/"))
        return arrived(message, "feddf: the server's model")

    def _fuse(self, t: int, uploads: Mapping[str, Delivery]) -> None:
        """Average each network, then take N steps towards the ensemble of all; without uploads nothing changes."""
        if not uploads:
            return
        logits: list[Tensor] = []
        for k, x in uploads.items():
            z_k = self._trainers[k].predict(x, self._public)
            logits.append(z_k)
        z = mean_logits(logits)
        teacher = (z / self.config.temperature).softmax(1)
        fit = Fit(
            lr=self.config.distill_lr,
            final_lr=self.config.distill_final_lr,
            optimizer="adam",
            objective="kl",
            temperature=self.config.temperature,
        )
        for p, group in enumerate(self._groups):
            answered = [k for k in group if k in uploads]
            x_t0 = take(self.state, f"server/w/{p}/")
            if answered:  # x_{t,0} <- sum n_k / n x_t^k
                counts = reported_counts(self.state, answered)
                x_t0 = weighted_mean([uploads[k] for k in answered], counts)
            job = draw_job(  # N steps: mini-batches d of unlabelled data, KL to the averaged logits
                "server",
                x_t0,
                self._public,
                teacher,
                seed=self._seed,
                path=(self.card.name, "distill", t, p),
                batch_size=self.config.distill_batch_size,
                steps=self.config.distill_steps,
            )
            (fitted,) = self._trainers[group[0]].fit([job], fit)
            put(self.state, f"server/w/{p}/", fitted.parameters)
