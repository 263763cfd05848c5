"""FedGEN (Zhu, Hong & Zhou 2021): clients also learn from features that the server's generator makes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import ClassVar

import torch
from torch import Tensor
from torch.func import functional_call

from fdaudit.federation.kit import (
    CURIOUS,
    DATA,
    PRIVATE_ROUNDS,
    RELEASED_MODEL,
    Basis,
    Computed,
    Delivery,
    Learner,
    Optimizer,
    Parameters,
    ProtocolCard,
    Round,
    Setting,
    SimpleProtocol,
    arrived,
    basis_of,
    child,
    joined,
    keep_basis,
    put,
    sample_clients,
    shared_network,
    take,
)

from .client import FedGenClient
from .config import FedGENConfig
from .generator import (
    class_shares,
    ensemble_loss,
    initial_generator,
    likeness,
    noise_and_classes,
    reported_classes,
)

__all__ = ["FedGEN"]


class FedGEN(SimpleProtocol):
    """Clients upload models and class counts; the server's generator of features carries their knowledge back.

    Each round the server sends its model and its generator to a sample of the clients. They train the model on their
    records and on generated features, and send it back. The server averages the models. Its generator then learns
    features of given classes that the clients' predictors recognise, weighted by their class counts. Clients may share
    the predictor alone (`share: head`); then no party has a whole model of all clients. FedGEN reveals what FedAvg
    reveals, the class counts, and a generator that every client receives.
    """

    card = ProtocolCard(
        name="fedgen",
        source="Zhu, Hong & Zhou 2021 (ICML 2021), Algorithm 1, and the authors' code",
        roles=("server", "client"),
        messages=(
            {"kind": "class_counts", "from": "client", "to": "server", "what": "n_k^y (C,), once"},
            {
                "kind": "model_parameters",
                "from": "server",
                "to": "client",
                "what": "θ, every round; its predictor θ^p alone with share: head",
            },
            {"kind": "generator_parameters", "from": "server", "to": "client", "what": "w, every round"},
            {
                "kind": "model_parameters",
                "from": "client",
                "to": "server",
                "what": "θ_k after local training",
                "when": {"share": "all"},
            },
            {
                "kind": "model_parameters",
                "from": "client",
                "to": "server",
                "what": "the predictor θ_k^p after local training",
                "when": {"share": "head"},
            },
            {
                "kind": "model_parameters",
                "from": "server",
                "to": "client, world",
                "what": "the final model",
                "when": {"share": "all"},
            },
        ),
        trust=(
            "The server sees each client's model, or its predictor, and its class counts by themselves.",
            "No secure aggregation is possible: the generator learns from each predictor by itself.",
            CURIOUS,
        ),
        oracles=(RELEASED_MODEL,),
        differences=(
            (
                "The losses are those of the authors' code. Eq. 4 takes the cross-entropy of the mean logits "
                "(`ensemble: logits`), and Eq. 5 has neither α, β nor their decay, nor the divergence that β weighs "
                "(`beta: 0`)."
            ),
            "As in the code, clients use the generator from the second round on; Algorithm 1 uses it from the first.",
            (
                "Clients draw the classes of generated features evenly among all, the server among those that a "
                "sampled client has. The code does nearly so. The paper draws both from p̂(y), the shares of the "
                "classes, which the server broadcasts; `labels: classes` does so at the server."
            ),
            "Noise is Gaussian, as in the paper; the code draws it evenly from 0 to 1.",
            (
                "The code counts the classes of the batches of a round, every round; here clients count their records "
                "once."
            ),
            "β's target is one for each class and step; the code draws one for each record.",
            "The generator has LayerNorm in place of BatchNorm, whose statistics would couple the features of a batch.",
            "Features end before a network's first fully connected layer; in the code, before the last.",
            (
                "With `share: head`, each client starts from an extractor of its own, and nothing is published. The "
                "code has no working partial sharing: it uploads and averages whole models."
            ),
            (
                "Learning rates stay as they are; the code's shrink by 1 % a round for clients and by 2 % for the "
                "generator."
            ),
            "The code stops using generated features after 20 local epochs of a round. Here all steps use them.",
            "The code's loss against a student model is left out: its weight is 0 in all of their settings.",
            (
                "With `local_steps`, batches are always full and passes reshuffled; the last batch of an epoch may be "
                "smaller."
            ),
            (
                "Under DP-SGD each record's cross-entropy and divergence are clipped together. The loss on generated "
                "features depends on no record; its gradient is added as it is."
            ),
        ),
        withholdable=("class_counts",),
        privacy={
            "claims": "None: the generator makes features, not samples; models and class counts leave the clients.",
            "finds": {"server": "class_counts", "world": "class_counts"},
            "private": {
                "params": {},
                "withhold": ["class_counts"],
                "training": ["model"],
                "tuned": PRIVATE_ROUNDS,
            },
        },
        pools_data=False,
        heterogeneous=False,
        needs_public=False,
        tasks=("single-label", "text", "table"),
        copies={"server": ("model_parameters",), "client": ("model_parameters",)},
        trains={"model": "batch_size"},
        starts={
            "weights": "broadcast",
            "source": (
                "Zhu et al. 2021, Algorithm 1: the server broadcasts θ. With `share: head` extractors begin with the "
                "clients' own weights."
            ),
        },
        generator={
            "build": "fdaudit.protocols.fedgen.generator:FeatureGenerator",
            "arguments": {
                "latent": "latent",
                "width": "generator_width",
                "features": "features",
                "classes": "classes",
            },
            "takes": ("noise", "class"),
            "makes": "features",
        },
    )
    Config: ClassVar[type[FedGENConfig]] = FedGENConfig

    def __init__(self, config: FedGENConfig, setting: Setting) -> None:
        super().__init__(config, setting)
        trainer, initial = setting.trainers["server"], setting.initial["server"]
        self._head, self._device = shared_network(trainer.network(initial)).eval().head, trainer.device
        self._shared_names = [n for n in initial if self._whole or n.startswith("head.")]
        self._parties = {k: FedGenClient(k, config, setting) for k in self.clients}
        adam = Optimizer(lr=config.generator_lr, weight_decay=config.generator_weight_decay)
        self._G = Learner("server", initial_generator(config, setting), adam, self._device)
        put(self.state, "server/generator/", self._G.state())
        self.state["server/generator-basis"] = torch.zeros(0, dtype=torch.int64)
        for k in self.clients if config.share == "head" else ():
            put(self.state, f"{k}/w/", setting.initial[k])
            keep_basis(self.state, k, ())

    @property
    def _whole(self) -> bool:
        return bool(self.config.share == "all")

    def rounds(self, start: int) -> Iterator[Round]:
        """Run Algorithm 1; with `share: head` the server has no whole model to show."""
        for outcome in super().rounds(start):
            models = dict(outcome.models)
            if not self._whole:
                models.pop("server", None)
            yield replace(outcome, models=models)

    def round(self, t: int) -> None:
        """Run a round: broadcast θ and w, local training (Eq. 5), the average, the generator's training (Eq. 4)."""
        if t == 0:
            for k, data in self.setting.clients.items():
                counts = torch.bincount(data.y.cpu(), minlength=self.setting.classes)
                message = self.send(k, ["server"], "class_counts", Computed({"counts": counts}, (DATA,)))
                if message is not None:
                    self.state[f"server/counts/{k}"] = message["counts"].cpu().round().long()
                    self.state[f"server/counts_seq/{k}"] = torch.tensor(message.seq)
        m = max(round(self.config.fraction * len(self.clients)), 1)
        S = sample_clients(self.clients, m, child(self.setting.seed, "fedgen", "sample", t))
        theta = self._send(S, "model_parameters", self._shared(self.model))
        basis = tuple(map(int, self.state["server/generator-basis"]))
        w = take(self.state, "server/generator/w/")
        w_t = self._send(S, "generator_parameters", Computed(w, basis))
        uploads: dict[str, Delivery] = {}
        for k in S:
            update = self._update(t, k, theta.of(k), w_t.of(k))
            upload = self.send(k, ["server"], "model_parameters", update)
            if upload is not None:
                uploads[k] = upload
        if uploads:
            counts = reported_classes(self.state, uploads, self.setting.classes)
            self.model = self._average(uploads, counts)
            self._teach(t, uploads, counts)
        if t == self.last and self._whole:
            self._send([*self.clients, "world"], "model_parameters", self.model)

    def released(self) -> Parameters | None:
        """Return the server's model; with `share: head` no party holds a whole one."""
        return super().released() if self._whole else None

    # -- the server -----------------------------------------------------------------------------------------

    def _send(self, receivers: Sequence[str], kind: str, tensors: Computed) -> Delivery:
        message = self.send("server", receivers, kind, tensors)
        return arrived(message, f"fedgen: the server's {kind}")

    def _shared(self, w: Computed) -> Computed:
        return Computed({n: w[n] for n in self._shared_names}, w.basis, w.batch)

    def _told(self, clients: Mapping[str, Delivery]) -> tuple[int, ...]:
        """Return the messages in which these clients sent their class counts."""
        seqs: list[int] = []
        for k in clients:
            seq = self.state.get(f"server/counts_seq/{k}")
            if seq is not None:
                seqs.append(int(seq))
        return tuple(seqs)

    def _average(self, sent: Mapping[str, Delivery], counts: Tensor) -> Computed:
        """Return the server's model with the average of what clients sent in it."""
        samples = self.config.weighting == "samples"
        n = [1] * len(counts)
        if samples:
            n = [max(int(row.sum()), 1) for row in counts]
        uploads = list(sent.values())
        mean = {}
        for name in uploads[0]:
            parts: list[Tensor] = []
            for n_k, u in zip(n, uploads, strict=True):
                part = n_k / sum(n) * u[name].cpu()
                parts.append(part)
            mean[name] = torch.stack(parts).sum(0)
        basis = joined(tuple(u.seq for u in uploads), self._told(sent) if samples else ())
        return Computed({**self.model, **mean}, basis)

    def _teach(self, t: int, uploads: Mapping[str, Delivery], counts: Tensor) -> None:
        """Train the generator against the clients' predictors (Eq. 4)."""
        cfg = self.config
        self._G.restore(take(self.state, "server/generator/"))
        predictors = []
        for upload in uploads.values():
            head: dict[str, Tensor] = {}
            for n, x in take(upload, "head.").items():
                head[n] = x.to(self._device)
            predictors.append(head)
        shares = class_shares(counts).to(self._device)
        total = counts.sum(0)
        classes = total.float() if cfg.labels == "classes" else (total > 0).float()
        if not total.any():
            classes = torch.ones(len(total))
        draws = child(self.setting.seed, "fedgen", "features", t)
        for _ in range(cfg.generator_steps):
            noise, y = noise_and_classes(cfg, classes, draws, self._device)
            z = self._G.module(noise, y)
            logits: list[Tensor] = []
            for head in predictors:
                of_client: Tensor = functional_call(self._head, head, (z,))
                logits.append(of_client)
            alpha = shares[:, y] if cfg.ensemble == "classes" else None
            loss = ensemble_loss(torch.stack(logits), y, alpha)
            self._G.step(loss + cfg.diversity * likeness(noise, z))
        put(self.state, "server/generator/", self._G.state())
        # The generator remembers all earlier uploads.
        before = self.state["server/generator-basis"].tolist()
        basis = {*before, *self._told(uploads), *(u.seq for u in uploads.values())}
        self.state["server/generator-basis"] = torch.tensor(sorted(basis), dtype=torch.int64)

    # -- the clients ----------------------------------------------------------------------------------------

    def _update(self, t: int, k: str, theta: Delivery, w_t: Delivery) -> Computed:
        """Train client k's model (Eq. 5) and return what it sends."""
        local = self.setting.local
        guard = local.guard(k, self.config.steps)
        update = self._parties[k].update(t, {**take(self.state, f"{k}/w/"), **theta}, w_t, guard)
        self.keep(k, update.theta, update.loss)
        used: Basis = joined((theta.seq,), (w_t.seq,) if t else ())
        if not self._whole:
            used = joined(basis_of(self.state, k), used)
        basis = local.release(k, guard, inputs=used)
        if not self._whole:
            put(self.state, f"{k}/w/", update.theta)
            keep_basis(self.state, k, basis)
        return self._shared(Computed(update.theta, basis, update.batch))
