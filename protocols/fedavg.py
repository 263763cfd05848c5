"""FedAvg (McMahan et al. 2017), with FedProx's proximal term and server momentum."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar, Literal, Self

import torch
from pydantic import Field, model_validator
from torch import Tensor

from fdaudit.errors import ProtocolError
from fdaudit.federation import PartyData, Round, Setting
from fdaudit.local import joined
from fdaudit.messages import ALL, DATA, SUM
from fdaudit.rng import child, child_seed
from fdaudit.training import Job, Parameters, draw_batches
from fdaudit.wire import Delivery

from ._local import LocalTraining
from ._state import put, take

__all__ = ["FedAvg", "FedAvgConfig"]


class FedAvgConfig(LocalTraining):
    """FedAvg's settings; symbols follow McMahan et al. 2017, Algorithm 1."""

    upload: Literal["gradient", "model_update", "model_parameters"] = "model_update"
    """What a client sends: the gradient of one batch, the change of its model, or its model."""
    fraction: float = Field(1.0, gt=0, le=1)
    """C: share of the clients that take part in a round, at least one."""
    weighting: Literal["samples", "public", "uniform"] = "samples"
    """Average weighted by `sample_count`; by the same numbers where they are public by agreement; or plainly. Of the
    last two no count is sent."""
    aggregation: Literal["plain", "secure"] = "plain"
    """Who averages: the server, which then sees every upload; or secure aggregation, which hands it their sum alone.
    Of the latter clients send updates, each multiplied by its weight (1/m, or n_k/n where numbers are public) and
    clipped, where a defence clips, after that."""
    mu: float = Field(0.0, ge=0)
    """FedProx's μ (Li et al. 2020); 0 is FedAvg."""
    server_momentum: float = Field(0.0, ge=0, lt=1)
    """FedAvgM's β (Hsu et al. 2019); 0 is FedAvg."""

    @model_validator(mode="before")
    @classmethod
    def _gradients_are_one_step(cls, values: Any) -> Any:
        if isinstance(values, dict) and values.get("upload") == "gradient" and not values.get("local_epochs"):
            return {"local_steps": 1} | {k: v for k, v in values.items() if v is not None}
        return values

    @model_validator(mode="after")
    def _one_step_for_gradients(self) -> Self:
        if self.upload != "gradient":
            return self
        if self.local_epochs is not None or self.local_steps != 1:
            raise ValueError(
                "upload = 'gradient' is one step a round; local_epochs or local_steps say otherwise. "
                "Set local_steps to 1, or upload to 'model_update'."
            )
        if self.momentum or self.weight_decay or self.mu:
            raise ValueError(
                "upload = 'gradient' sends the bare gradient; momentum, weight_decay and mu would not apply. "
                "Set them to 0, or upload to 'model_update'."
            )
        return self

    @model_validator(mode="after")
    def _sums_of_weighted_updates(self) -> Self:
        if self.aggregation == "secure" and self.upload != "model_update":
            raise ValueError(
                f"aggregation = 'secure' adds up model updates; upload = {self.upload!r} is none. "
                "Set upload to 'model_update'."
            )
        if self.aggregation == "secure" and self.weighting == "samples":
            raise ValueError(
                "aggregation = 'secure' needs weights that clients know beforehand; weighting = 'samples' sends "
                "counts. Set weighting to 'uniform' or 'public'."
            )
        return self


class FedAvg:
    """Federated averaging: the server averages what clients learn from its model on their own data.

    Each round the server sends its parameters to a sampled share of the clients; each takes local
    steps and sends back a gradient, an update or its parameters; the server averages them, weighted by
    sample counts. The final model is published to everybody and to `world`. The reference that federated distillation
    is compared with, and the protocol whose messages carry the most about single records.

    With `aggregation: secure` a party `aggregator` stands for secure aggregation (Bonawitz et al. 2017): clients send
    it their weighted updates, and it sends the server their sum and how much weight is in it.
    """

    name: ClassVar[str] = "fedavg"
    source: ClassVar[str] = "McMahan, Moore, Ramage, Hampson & Agüera y Arcas 2017, Algorithm 1"
    roles: ClassVar[tuple[str, ...]] = ("server", "aggregator", "client")
    roles_when: ClassVar[dict[str, dict[str, Any]]] = {"aggregator": {"aggregation": "secure"}}
    messages: ClassVar[tuple[dict[str, Any], ...]] = (
        {
            "kind": "sample_count",
            "from": "client",
            "to": "server",
            "what": "n_k, once, where weighting asks for it",
            "when": {"weighting": "samples"},
        },
        {"kind": "model_parameters", "from": "server", "to": "client", "what": "w_t, every round"},
        {
            "kind": "gradient",
            "from": "client",
            "to": "server",
            "what": "gradient of one batch (upload: gradient)",
            "when": {"upload": "gradient"},
        },
        {
            "kind": "model_update",
            "from": "client",
            "to": "server",
            "what": "w_k - w_t (upload: model_update)",
            "when": {"upload": "model_update", "aggregation": "plain"},
        },
        {
            "kind": "model_update",
            "from": "client",
            "to": "aggregator",
            "what": "p_k (w_k - w_t); the field `weight` is p_k = 1/m or n_k/n among the m clients that were asked",
            "when": {"aggregation": "secure"},
        },
        {
            "kind": "model_update",
            "from": "aggregator",
            "to": "server",
            "what": "the sum of the updates that arrived; the field `weight` says what their weights add up to",
            "when": {"aggregation": "secure"},
        },
        {
            "kind": "model_parameters",
            "from": "client",
            "to": "server",
            "what": "w_k (upload: model_parameters)",
            "when": {"upload": "model_parameters"},
        },
        {"kind": "model_parameters", "from": "server", "to": "client, world", "what": "the final model"},
    )
    trust: ClassVar[tuple[str, ...]] = (
        "The server sees every client's upload by itself, but for `aggregation: secure`.",
        (
            "With `aggregation: secure` the party `aggregator` stands for a cryptographic protocol that keeps its "
            "promise: nobody, the server included, sees a single update, and the server gets the exact sum of what "
            "arrived. What the adversary `aggregator` sees is what leaks where that promise is broken."
        ),
        "With `weighting: public` everybody knows how many records each client has; nothing is claimed to hide it.",
        "Parties follow the protocol and are curious (honest-but-curious).",
    )
    oracles: ClassVar[tuple[dict[str, Any], ...]] = (
        {"name": "released-model", "available_to": ("world",), "answers": ("soft", "hard")},
    )
    deviations: ClassVar[tuple[str, ...]] = (
        "With `local_steps`, batches are always full and passes reshuffled; the paper speaks of epochs only.",
        "Integer buffers (BatchNorm's batch counter) stay with their party; other buffers are averaged.",
    )
    withholdable: ClassVar[tuple[str, ...]] = ("sample_count",)
    privacy: ClassVar[dict[str, Any]] = {
        "claims": (
            "None: records stay with their clients. That updates give them away was shown later (Zhu et al. 2019)."
        ),
        "finds": {"server": "model_update", "world": "model_update"},
        "private": {"params": {"weighting": "uniform"}, "withhold": [], "training": ["model"]},
    }
    pools_data: ClassVar[bool] = False
    heterogeneous: ClassVar[bool] = False
    needs_public: ClassVar[bool] = False
    tasks: ClassVar[tuple[str, ...]] = ("single-label", "multi-label")
    trains: ClassVar[dict[str, str]] = {"model": "batch_size"}
    Config: ClassVar[type[FedAvgConfig]] = FedAvgConfig

    def __init__(self, config: FedAvgConfig, setting: Setting) -> None:
        self.config, self._wire, self._seed = config, setting.wire, setting.seed
        self._trainer, initial = setting.trainers["server"], setting.initial["server"]
        self._local = setting.local
        self._clients, self._task = dict(setting.clients), setting.task
        if config.upload == "gradient" and set(self._trainer.trainable) != set(initial):
            raise ProtocolError(
                "upload = 'gradient' cannot carry BatchNorm's statistics. Use 'model_update'."
            )
        self.state: dict[str, Tensor] = {}
        put(self.state, "server/w/", {n: t.clone() for n, t in initial.items()})
        if config.server_momentum:
            put(self.state, "server/v/", {n: torch.zeros_like(t) for n, t in initial.items()})
        self.state["server/basis"] = torch.zeros(0, dtype=torch.int64)

    def rounds(self, start: int) -> Iterator[Round]:
        """Algorithm 1: the server's loop, with the clients' part in line."""
        for t in range(start, self.config.rounds):  # for each round t = 1, 2, ...
            self._wire.begin(t)
            if t == 0 and self.config.weighting == "samples":
                self._announce_counts()
            S = self._sample(t)  # S_t <- random set of m = max(C·K, 1) clients
            w_t = self._send_model(S)
            uploads, batches, losses, models = self._client_updates(t, w_t, S)
            weights = self._weights(list(uploads))
            if self.config.aggregation == "secure" and uploads:
                uploads, weights = self._sum(uploads, S)
            w = self._aggregate(w_t, uploads, weights)  # w_{t+1} <- sum n_k / n w_k
            if t == self.config.rounds - 1:
                self._send_model([*self._clients, "world"])
            yield Round(index=t, models={"server": w, **models}, batches=batches, losses=losses)

    def released(self) -> Parameters:
        """The server's model."""
        return take(self.state, "server/w/")

    # -- the server -----------------------------------------------------------------------------------------

    def _sample(self, t: int) -> list[str]:
        m = max(round(self.config.fraction * len(self._clients)), 1)
        order = torch.randperm(len(self._clients), generator=child(self._seed, "fedavg", "sample", t))
        chosen = {int(k) for k in order[:m]}
        return [name for k, name in enumerate(self._clients) if k in chosen]

    def _send_model(self, receivers: Sequence[str]) -> Delivery:
        # The velocity of server momentum goes back to every earlier upload: then all that is held counts.
        inputs = ALL if self.config.server_momentum else [int(i) for i in self.state["server/basis"]]
        sent = self._wire.send("server", receivers, "model_parameters", self.released(), inputs=inputs)
        if sent is None:
            raise ProtocolError("fedavg: the server's model did not arrive. Only clients may go silent.")
        return sent

    def _aggregate(
        self, w_t: Delivery, uploads: Mapping[str, Delivery], weights: Sequence[float]
    ) -> Parameters:
        """Line 8: the weighted average, from the model as it was sent (a defence may have changed it).

        FedAvgM (Hsu et al. 2019) keeps a velocity v <- βv + Δ of the change Δ and adds v instead of Δ.

        When no upload arrives the model stays as it is.
        """
        if not uploads:
            return self.released()
        scale = {"gradient": -self.config.lr, "model_update": 1.0, "model_parameters": 1.0}[
            self.config.upload
        ]
        beta, result = self.config.server_momentum, dict[str, Tensor]()
        for n, sent in w_t.items():
            previous = sent.cpu()
            parts = [p * u[n].cpu() for p, u in zip(weights, uploads.values(), strict=True)]
            mean = torch.stack(parts).sum(0)
            delta = mean - previous if self.config.upload == "model_parameters" else scale * mean
            if beta:
                delta = self.state[f"server/v/{n}"] = beta * self.state[f"server/v/{n}"] + delta
            elif self.config.upload == "model_parameters":
                previous, delta = mean, torch.zeros(())
            result[n] = self.state[f"server/w/{n}"] = previous + delta
        basis = [w_t.seq, *(u.seq for u in uploads.values()), *self._count_seqs(uploads)]
        self.state["server/basis"] = torch.tensor(basis, dtype=torch.int64)
        return result

    def _weights(self, senders: Sequence[str]) -> list[float]:
        """n_k / n over the clients that answered; uniform where counts are neither public nor arrived.

        A count that a defence has noised may come out as nothing or less; it counts as one record then.
        """
        if self.config.weighting == "public":
            n = {k: len(self._clients[k]) for k in senders}
            return [n[k] / sum(n.values()) for k in senders]
        counts = [max(int(self.state.get(f"server/n/{k}", torch.tensor(1))), 1) for k in senders]
        return [n / sum(counts) for n in counts]

    def _count_seqs(self, senders: Mapping[str, Delivery]) -> list[int]:
        return [int(self.state[f"server/n_seq/{k}"]) for k in senders if f"server/n_seq/{k}" in self.state]

    # -- secure aggregation -----------------------------------------------------------------------------------

    def _sum(
        self, uploads: Mapping[str, Delivery], S: Sequence[str]
    ) -> tuple[dict[str, Delivery], list[float]]:
        """Σ p_k Δ_k over the clients that answered, all that the server gets of them, and 1 / Σ p_k.

        Who answered is no secret: without the weight of those that are missing the sum would fall short.
        """
        p = self._shares(S)
        weight = sum(p[k] for k in uploads)
        first = next(iter(uploads.values()))
        total = {
            n: torch.stack([u[n].cpu().double() for u in uploads.values()]).sum(0).to(first[n].dtype)
            for n in first
        }
        inputs, fields = [u.seq for u in uploads.values()], {SUM: True, "weight": weight}
        sent = self._wire.send("aggregator", ["server"], "model_update", total, inputs=inputs, fields=fields)
        if sent is None:
            raise ProtocolError("fedavg: the sum of the updates did not arrive. Only clients may go silent.")
        return {"aggregator": sent}, [1 / weight]

    def _shares(self, S: Sequence[str]) -> dict[str, float]:
        """p_k of the clients that were asked, which each knows beforehand: public numbers of records, or 1/m."""
        return dict(zip(S, self._weights(S), strict=True))

    # -- the clients ----------------------------------------------------------------------------------------

    def _announce_counts(self) -> None:
        for k, data in self._clients.items():
            n_k = self._wire.send(
                k, ["server"], "sample_count", {"n": torch.tensor(len(data))}, inputs=[DATA]
            )
            if n_k is not None:
                self.state[f"server/n/{k}"] = n_k["n"].cpu()
                self.state[f"server/n_seq/{k}"] = torch.tensor(n_k.seq)

    def _client_updates(
        self, t: int, w_t: Delivery, selected: Sequence[str]
    ) -> tuple[dict[str, Delivery], dict[int, Tensor], dict[str, float], dict[str, Parameters]]:
        """Lines 5-6 and ClientUpdate: all selected clients advance together in the training core."""
        cfg = self.config
        jobs = [self._job(t, k, self._clients[k], w_t) for k in selected]  # B <- split into batches
        fit, inputs = cfg.fit(cfg.mu, self._task), dict.fromkeys(selected, (w_t.seq,))
        if cfg.upload == "gradient":
            fitted, basis = self._local.gradients(jobs, fit, inputs=inputs)
        else:  # w <- w - eta grad, for each local step
            fitted, basis = self._local.fit(jobs, fit, length=cfg.steps, inputs=inputs)
        secure, shares = cfg.aggregation == "secure", self._shares(selected)
        receiver = "aggregator" if secure else "server"
        uploads, batches, losses, models = {}, {}, {}, {}
        for job, result in zip(jobs, fitted, strict=True):
            tensors, behind = result.parameters, basis[job.party]
            if cfg.upload == "model_update":
                tensors, behind = {n: p - w_t[n] for n, p in tensors.items()}, joined(behind, (w_t.seq,))
            if secure:
                tensors = {n: shares[job.party] * delta for n, delta in tensors.items()}
            fields = {"weight": shares[job.party]} if secure else {}
            upload = self._wire.send(job.party, [receiver], cfg.upload, tensors, inputs=behind, fields=fields)
            if upload is not None:  # otherwise the client went silent: the round goes on without it
                uploads[job.party] = upload
                batches[upload.seq] = torch.cat(list(result.batches))
            losses[job.party] = float(result.losses.mean())
            if cfg.upload != "gradient":
                models[job.party] = result.parameters
        return uploads, batches, losses, models

    def _job(self, t: int, k: str, data: PartyData, w_t: Delivery) -> Job:
        generator = child(self._seed, "fedavg", "batches", t, k)
        batches = draw_batches(len(data), self.config.batch_size, generator=generator, **self.config.steps)
        seed = child_seed(self._seed, "fedavg", "dropout", t, k)
        return Job(party=k, parameters=w_t, x=data.x, targets=data.y, batches=batches, anchor=w_t, seed=seed)
