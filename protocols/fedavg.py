"""FedAvg (McMahan et al. 2017), with FedProx's proximal term and server momentum."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import cycle
from typing import Any, ClassVar

import torch
from torch import Tensor

from fdaudit.errors import ProtocolError
from fdaudit.events import DrawnGaussian, Event, SampledGaussian
from fdaudit.federation.client_models import sample_clients
from fdaudit.federation.local_training import joined
from fdaudit.federation.protocol import (
    CURIOUS,
    PRIVATE_ROUNDS,
    RELEASED_MODEL,
    PartyData,
    Round,
    Setting,
    arrived,
)
from fdaudit.federation.state import copies_of, put, take
from fdaudit.models.network import moved
from fdaudit.registry import ProtocolCard
from fdaudit.rng import child, child_seed
from fdaudit.training.trainer import Job, Parameters, draw_batches
from fdaudit.transcript.messages import ALL, DRAWN, SUM
from fdaudit.transcript.wire import Delivery
from fdaudit.types import GradientRule

from ._fedavg_settings import FedAvgConfig
from ._uploads import announce_counts, count_seqs, reported_counts

__all__ = ["FedAvg", "FedAvgConfig"]


class FedAvg:
    """Federated averaging: the server averages what clients learn from its model on their own data.

    Each round the server sends its parameters to a sample of the clients. Each client takes local steps and sends back
    a gradient, an update or its parameters. The server averages them, weighted by sample counts. The final model is
    published to all parties and to `world`. FedAvg is the reference for federated distillation, and its messages reveal
    the most about single records.

    With `aggregation: secure` a party `aggregator` stands for secure aggregation (Bonawitz et al. 2017). Clients send
    it their weighted updates. It sends the server their sum and the total weight in it.
    """

    card = ProtocolCard(
        name="fedavg",
        source="McMahan, Moore, Ramage, Hampson & Agüera y Arcas 2017, Algorithm 1",
        roles=("server", "aggregator", "client"),
        roles_when={"aggregator": {"aggregation": "secure"}},
        messages=(
            {
                "kind": "sample_count",
                "from": "client",
                "to": "server",
                "what": "n_k, once, where weighting asks for it",
                "when": {"weighting": "samples"},
            },
            {
                "kind": "sample_count",
                "from": "client",
                "to": "server, client, world",
                "what": "n_k, once, where weights are public and no constants",
                "when": {"weighting": "public", "weights": None},
            },
            {
                "kind": "sample_count",
                "from": "client",
                "to": "aggregator",
                "what": "the same message",
                "when": {"weighting": "public", "weights": None, "aggregation": "secure"},
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
                "what": "p_k (w_k - w_t); the field `weight` is p_k = 1/m, n_k/n or w_k/w among the m clients asked",
                "when": {"aggregation": "secure"},
            },
            {
                "kind": "model_update",
                "from": "aggregator",
                "to": "server",
                ("what"): (
                    "the sum of the updates that arrived; the fields `clients` and `weight` say whose, with what total"
                ),
                "when": {"aggregation": "secure"},
            },
            {
                "kind": "model_parameters",
                "from": "client",
                "to": "server",
                "what": "w_k (upload: model_parameters)",
                "when": {"upload": "model_parameters"},
            },
            {
                "kind": "optimizer_state",
                "from": "client",
                "to": "server",
                "what": "the state of the client's optimiser after its steps",
                "when": {"send_state": True},
            },
            {"kind": "model_parameters", "from": "server", "to": "client, world", "what": "the final model"},
        ),
        trust=(
            "The server sees every client's upload by itself, but for `aggregation: secure`.",
            (
                "With `aggregation: secure` the party `aggregator` stands for a cryptographic protocol that keeps its "
                "promise: nobody, the server included, sees a single update, and the server gets the exact sum of what "
                "arrived. What the adversary `aggregator` sees is what leaks where that promise is broken."
            ),
            "With `weighting: public` and no `weights`, every client tells everybody how many records it has.",
            "With `weights`, p_k are constants of the spec; that nobody looked at the data for them is taken on trust.",
            CURIOUS,
        ),
        oracles=(RELEASED_MODEL,),
        differences=(
            "With `local_steps`, batches are always full and passes reshuffled; the paper speaks of epochs only.",
            "Integer buffers (BatchNorm's batch counter) stay with their party; other buffers are averaged.",
        ),
        withholdable=("sample_count",),
        privacy={
            "claims": (
                "None: records stay with their clients. That updates give them away was shown later (Zhu et al. 2019)."
            ),
            "finds": {"server": "model_update", "world": "model_update"},
            "private": {
                "params": {"weighting": "uniform"},
                "withhold": [],
                "training": ["model"],
                "tuned": PRIVATE_ROUNDS,
            },
            "clients": {
                "params": {"weighting": "uniform", "upload": "model_update", "aggregation": "secure"},
                "kind": "model_update",
                "sender": "client",
                "name": "dp-fedavg",
                "settings": {},
                "clipped": True,
                "releases": ["rounds"],
            },
        },
        starts={
            "weights": "broadcast",
            "source": "McMahan et al. 2017, Algorithm 1: the server initialises w_0 and sends w_t in each round.",
        },
        pools_data=False,
        heterogeneous=False,
        needs_public=False,
        tasks=("single-label", "multi-label", "segmentation", "text", "table"),
        trains={"model": "batch_size"},
        averages={"updates": "cohort"},
        copies={
            "server": ("model_parameters",),
            "client": ("gradient", "model_update", "model_parameters"),
            "aggregator": ("model_update",),
        },
    )
    Config: ClassVar[type[FedAvgConfig]] = FedAvgConfig

    def __init__(self, config: FedAvgConfig, setting: Setting) -> None:
        self.config, self._wire, self._seed = config, setting.wire, setting.seed
        self._trainer, initial = setting.trainers["server"], setting.initial["server"]
        self._local = setting.local
        self._clients, self._task = dict(setting.clients), setting.task
        config.refuse_unused(setting.classes, setting.task, defended=self._local.defended())
        if config.upload == "gradient" and self._trainer.keeps_statistics:
            raise ProtocolError(
                "upload = 'gradient' cannot carry statistics of batches, as BatchNorm keeps. Use 'model_update'."
            )
        self._rule = self._wire.training.get("updates")
        if self._rule is not None:
            config.refuse_uneven(self._rule.event(1))
        self.state: dict[str, Tensor] = {}
        put(self.state, "server/w/", copies_of(initial))
        if config.server_momentum:
            for n, tensor in initial.items():
                self.state[f"server/v/{n}"] = torch.zeros_like(tensor)
        self.state["server/basis"] = torch.zeros(0, dtype=torch.int64)

    def rounds(self, start: int) -> Iterator[Round]:
        """Run Algorithm 1: the server's loop, with the clients' steps inline."""
        m = self.config.taking_part(len(self._clients))  # max(C·K, 1)
        for t in range(start, self.config.rounds):  # for each round t = 1, 2, ...
            self._wire.begin(t)
            if t == 0 and self.config.weighting == "samples":
                announce_counts(self.state, self._wire, self._clients)
            elif t == 0 and self.config.weighting == "public" and self.config.weights is None:
                aggregator = ["aggregator"] if self.config.aggregation == "secure" else []
                everybody = ["server", *aggregator, *self._clients, "world"]
                announce_counts(self.state, self._wire, self._clients, everybody)
            if self._rule is not None:
                yield self._private_round(t, self._rule)
                continue
            draws = child(self._seed, "fedavg", "sample", t)
            S = sample_clients(self._clients, m, draws)  # S_t <- random set of m clients
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
        """Return the server's model."""
        return take(self.state, "server/w/")

    # -- the server -----------------------------------------------------------------------------------------

    def _send_model(self, receivers: Sequence[str], fields: Mapping[str, Any] | None = None) -> Delivery:
        # The velocity of server momentum goes back to every earlier upload: then all that is held counts.
        inputs = ALL if self.config.server_momentum else list(map(int, self.state["server/basis"]))
        message = self._wire.send(
            "server", receivers, "model_parameters", self.released(), inputs=inputs, fields=fields
        )
        return arrived(message, "fedavg: the server's model")

    def _aggregate(
        self, w_t: Delivery, uploads: Mapping[str, Delivery], weights: Sequence[float]
    ) -> Parameters:
        """Return the weighted average w_{t+1}, from the model as it was sent (a defence may have changed it).

        FedAvgM (Hsu et al. 2019) keeps a velocity v <- βv + Δ of the change Δ and adds v instead of Δ.

        Without uploads the model stays the same.
        """
        if not uploads:
            return self.released()
        scale = {"gradient": -self.config.lr, "model_update": 1.0, "model_parameters": 1.0}[
            self.config.upload
        ]
        beta, result = self.config.server_momentum, dict[str, Tensor]()
        for n, tensor in w_t.items():
            previous = tensor.cpu()
            if any(
                n not in u for u in uploads.values()
            ):  # gradients carry no buffers and no frozen parameters
                result[n] = self.state[f"server/w/{n}"] = previous
                continue
            parts: list[Tensor] = []
            for p, u in zip(weights, uploads.values(), strict=True):
                part = p * u[n].cpu()
                parts.append(part)
            mean = torch.stack(parts).sum(0)
            delta = mean - previous if self.config.upload == "model_parameters" else scale * mean
            if beta:
                delta = self.state[f"server/v/{n}"] = beta * self.state[f"server/v/{n}"] + delta
            elif self.config.upload == "model_parameters":
                previous, delta = mean, torch.zeros(())
            result[n] = self.state[f"server/w/{n}"] = previous + delta
        basis = [w_t.seq, *(u.seq for u in uploads.values()), *count_seqs(self.state, uploads)]
        self.state["server/basis"] = torch.tensor(basis, dtype=torch.int64)
        return result

    def _weights(self, senders: Sequence[str]) -> list[float]:
        """Return w_k / w or n_k / n over these clients; uniform weights if no count arrived."""
        if self.config.weights is not None:
            constant = dict(zip(self._clients, cycle(self.config.weights), strict=False))
            total = sum(constant[k] for k in senders)
            return [constant[k] / total for k in senders]
        counts = reported_counts(self.state, senders)
        return [n / sum(counts) for n in counts]

    def _private_round(self, t: int, rule: GradientRule) -> Round:
        """Run a round of DP-FedAvg (McMahan et al. 2018, Algorithm 1): clipped updates and noise on their sum.

        Clients take part by coins, or a `fraction` of them by a draw without replacement. A client that does not take
        part, or is silent, adds nothing. The sum keeps its noise and its divisor.
        """
        coins = self._wire.coins("updates", "server")
        names = list(self._clients)
        if self.config.fraction == 1:
            S = [names[int(k)] for k in rule.draw(len(names), coins)]
        else:
            numbers = coins.permutation(len(names))[: self.config.taking_part(len(names))]
            S = [names[k] for k in sorted(numbers.tolist())]
        w = self.released()
        uploads, batches = dict[str, Delivery](), dict[int, Tensor]()
        losses: dict[str, float] = {}
        models: dict[str, Parameters] = {}
        basis = list(map(int, self.state["server/basis"]))
        if S:
            w_t = self._send_model(S, {DRAWN: len(self._clients)} if self.config.fraction < 1 else None)
            basis, w = [*basis, w_t.seq], moved(w_t, "cpu")
            uploads, batches, losses, models = self._client_updates(t, w_t, S)
        updates = {}
        for n, p in w.items():
            sent = [u[n].cpu() for u in uploads.values()]
            updates[n] = torch.stack([torch.zeros_like(p), *sent])
        noisy = rule.noised(rule.clipped(updates), coins)
        model: dict[str, Tensor] = {}
        for n, p in w.items():
            model[n] = p + noisy[n].to(p.dtype)
        put(self.state, "server/w/", model)
        event, described = self._private_event(rule)
        inputs = [*basis, *(u.seq for u in uploads.values())]
        release = self._wire.release("server", event, inputs=inputs, described=described)
        self.state["server/basis"] = torch.tensor([release], dtype=torch.int64)
        if t == self.config.rounds - 1:
            self._send_model([*self._clients, "world"])
        return Round(index=t, models={"server": self.released(), **models}, batches=batches, losses=losses)

    def _private_event(self, rule: GradientRule) -> tuple[Event, dict[str, Any]]:
        """Return the event of one noisy sum of updates and its description.

        What the rule states of one gradient of many holds of one client's update. Under a draw of a fixed size a
        replaced client moves the sum by two clips.
        """
        event, described = rule.event(1), {**rule.describe(), "of": "updates"}
        if not isinstance(event, SampledGaussian):
            return event, described
        if self.config.fraction == 1:
            return replace(event, unit="client", covers=("each-client",)), described
        K = len(self._clients)
        m = self.config.taking_part(K)
        gaussian = DrawnGaussian(
            sensitivity=2 * event.sensitivity,
            scale=event.scale,
            drawn=m,
            clients=K,
            unit="client",
            relation="replace-one",
            covers=("each-client",),
        )
        return gaussian, {**described, "sampling": f"{m} of {K} clients without replacement, secret draw"}

    # -- secure aggregation -----------------------------------------------------------------------------------

    def _sum(
        self, uploads: Mapping[str, Delivery], S: Sequence[str]
    ) -> tuple[dict[str, Delivery], list[float]]:
        """Return Σ p_k Δ_k over the clients that answered, the server's only input, and 1 / Σ p_k.

        The set of clients that answered is public. The server divides by their total weight to correct for missing
        clients.
        """
        p = self._shares(S)
        weight = sum(p[k] for k in uploads)
        first = next(iter(uploads.values()))
        total = {}
        for n in first:
            parts: list[Tensor] = []
            for u in uploads.values():
                part = u[n].cpu().double()
                parts.append(part)
            total[n] = torch.stack(parts).sum(0).to(first[n].dtype)
        # The weight follows from the counts of all that were asked. Then this is no sum of its inputs alone.
        inputs = [*(u.seq for u in uploads.values()), *count_seqs(self.state, S)]
        fields = {SUM: True, "weight": weight, "clients": list(uploads)}
        message = self._wire.send(
            "aggregator", ["server"], "model_update", total, inputs=inputs, fields=fields
        )
        return {"aggregator": arrived(message, "fedavg: the sum of the updates")}, [1 / weight]

    def _shares(self, S: Sequence[str]) -> dict[str, float]:
        """Return p_k of the selected clients, known to each in advance: from public weights or counts, or 1/m."""
        return dict(zip(S, self._weights(S), strict=True))

    # -- the clients ----------------------------------------------------------------------------------------

    def _client_updates(
        self, t: int, w_t: Delivery, selected: Sequence[str]
    ) -> tuple[dict[str, Delivery], dict[int, Tensor], dict[str, float], dict[str, Parameters]]:
        """Run ClientUpdate for all selected clients: all selected clients train together in the training core."""
        cfg = self.config
        jobs: list[Job] = []
        inputs: dict[str, tuple[int, ...]] = {}
        for k in selected:
            start = w_t.of(k)
            jobs.append(self._job(t, k, self._clients[k], start))  # B <- split into batches
            inputs[k] = (start.seq,)
        fit = cfg.fit(cfg.mu, self._task)
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
                start = w_t.of(job.party)
                tensors, behind = {}, joined(behind, (start.seq,))
                for n, p in result.parameters.items():
                    tensors[n] = p - start[n]
            if secure:
                tensors = {n: shares[job.party] * delta for n, delta in tensors.items()}
                behind = joined(behind, count_seqs(self.state, selected))
            fields = {"weight": shares[job.party]} if secure else {}
            upload = self._wire.send(job.party, [receiver], cfg.upload, tensors, inputs=behind, fields=fields)
            if upload is not None:  # otherwise the client went silent: the round goes on without it
                uploads[job.party] = upload
                batches[upload.seq] = torch.cat(list(result.batches))
                if cfg.send_state:
                    state = self._wire.send(
                        job.party, ["server"], "optimizer_state", result.moments, inputs=basis[job.party]
                    )
                    if state is not None:
                        batches[state.seq] = batches[upload.seq]
            losses[job.party] = float(result.losses.mean())
            if cfg.upload != "gradient":
                models[job.party] = result.parameters
        return uploads, batches, losses, models

    def _job(self, t: int, k: str, data: PartyData, w_t: Delivery) -> Job:
        generator = child(self._seed, "fedavg", "batches", t, k)
        batches = draw_batches(len(data), self.config.batch_size, generator=generator, **self.config.steps)
        seed = child_seed(self._seed, "fedavg", "dropout", t, k)
        return Job(
            party=k,
            parameters=w_t,
            x=data.x,
            targets=data.y,
            batches=batches,
            anchor=w_t,
            seed=seed,
            moments={} if self.config.send_state else None,
        )
