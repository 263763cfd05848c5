"""DaFKD (Wang et al. 2023): distillation that weights each client by how much a sample resembles its own data."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import ClassVar

import torch
from torch import Tensor

from fdaudit.errors import SpecError
from fdaudit.federation.client_models import sample_clients
from fdaudit.federation.local_training import joined
from fdaudit.federation.protocol import CURIOUS, PRIVATE_ROUNDS, RELEASED_MODEL, Round, Setting, arrived
from fdaudit.federation.state import basis_of, copies_of, keep_basis, put, take
from fdaudit.models.network import moved
from fdaudit.registry import ProtocolCard
from fdaudit.rng import child
from fdaudit.training.trainer import Parameters, parameters_of
from fdaudit.transcript.wire import Delivery

from .._uploads import announce_counts, count_seqs, reported_counts, weighted_mean
from .config import DaFKDConfig
from .parties import ArrivedModels, DaFKDClient, DaFKDServer, DaFKDUpdate, initial_generator

__all__ = ["DaFKD"]


class DaFKD:
    """Domain-aware federated distillation: an ensemble of the clients' models, weighted for each sample.

    Each round the server sends its classifier and its generator. A client trains its classifier and its domain
    discriminator on a shared extractor, then the generator against the discriminator. It sends all three back. The
    server averages classifiers and generators, and draws pseudo-samples. It weights each client by how real its
    discriminator finds a sample, and distils this ensemble into the average. DaFKD reveals everything that FedAvg
    reveals about the clients' data. It also reveals two more models learnt from the data: one that generates such data
    and one that recognises it.
    """

    card = ProtocolCard(
        name="dafkd",
        source="Wang, Li, Xu, Li, Zhan & Zeng 2023 (CVPR 2023), Algorithm 1",
        roles=("server", "client"),
        messages=(
            {
                "kind": "sample_count",
                "from": "client",
                "to": "server",
                "what": "n_k (), once",
                "when": {"weighting": "samples"},
            },
            {"kind": "model_parameters", "from": "server", "to": "client", "what": "w_t, every round"},
            {"kind": "generator_parameters", "from": "server", "to": "client", "what": "θ^g, every round"},
            {"kind": "model_parameters", "from": "client", "to": "server", "what": "w_k, extractor included"},
            {
                "kind": "discriminator_parameters",
                "from": "client",
                "to": "server",
                "what": "weight (1, d) and bias (1,) of θ_k^d's own layer, over the d features of w_k's extractor",
                "when": {"upload_discriminator": True, "share_extractor": True},
            },
            {
                "kind": "discriminator_parameters",
                "from": "client",
                "to": "server",
                "what": "all of θ_k^d: its own extractor, and weight (1, d) and bias (1,) of its head",
                "when": {"upload_discriminator": True, "share_extractor": False},
            },
            {"kind": "generator_parameters", "from": "client", "to": "server", "what": "θ_k^g"},
            {
                "kind": "generated_samples",
                "from": "server",
                "to": "client",
                "what": "the pseudo dataset (n, c, h, w), which clients score (Appendix B)",
                "when": {"upload_discriminator": False},
            },
            {
                "kind": "discriminator_scores",
                "from": "client",
                "to": "server",
                "what": "f(θ_k^d; x) (n,) (Appendix B)",
                "when": {"upload_discriminator": False},
            },
            {
                "kind": "soft_labels",
                "from": "client",
                "to": "server",
                "what": "f(θ_k^d; x) s(w_k; x) (n, C): rows sum to the score, not to 1 (Appendix B)",
                "when": {"upload_discriminator": False},
                "index": "public",
            },
            {
                "kind": "model_parameters",
                "from": "server",
                "to": "client, world",
                "what": "the final classifier",
            },
        ),
        trust=(
            (
                "The server sees each client's classifier, discriminator and generator by themselves; no secure "
                "aggregation."
            ),
            (
                "With upload_discriminator: false the server chooses the samples that clients score; nothing holds it "
                "to θ^g."
            ),
            "Appendix B would hide the scores by secure aggregation, but rows of the weighted soft labels sum to them.",
            CURIOUS,
        ),
        oracles=(
            RELEASED_MODEL,
            {"name": "chosen-samples", "available_to": ("server",), "answers": ("soft",)},
        ),
        differences=(
            "Eq. 2 as printed lacks its minus sign: minimised, the discriminator would learn that real is 0.",
            "The generator descends -log f, not log(1 - f) of Eq. 3, whose gradient vanishes where f is small.",
            (
                "Classes of pseudo-samples are drawn evenly, where they are negatives or distilled on: the paper does "
                "not say."
            ),
            "A generator learns on classes drawn as the client's records have them: Eq. 3 alone tells it of no class.",
            (
                "It also descends the classifier's cross-entropy (`recognised`): without, it makes one blur for all "
                "classes."
            ),
            (
                "It also descends how alike two samples of a class are (`diversity`): without, it makes one picture a "
                "class."
            ),
            "Pseudo-samples of local training are drawn afresh for each batch, as many as records.",
            "A client's own layer of the discriminator starts at random and stays with it from round to round.",
            (
                'With `share_extractor: false`, Table 3\'s "no sharing", a discriminator is a copy of the '
                "classifier's network and starts from the first model's extractor; the paper says neither. L_adv and L "
                "then touch separate parameters, in the same SGD steps."
            ),
            (
                "The paper averages classifiers without weights (its plain 1/K_t); `weighting: samples` is FedAvg's, "
                "not its."
            ),
            "The generator has LayerNorm in place of BatchNorm, whose statistics would couple the samples of a batch.",
            "In Appendix B the server sends the samples instead of a seed: clients do not hold the new generator yet.",
            (
                "A client whose discriminator did not arrive is weighed as the mean of the others; without any, as all "
                "alike."
            ),
            "Feature generators (Appendix A) are not offered.",
            (
                "Under DP-SGD classifier and discriminator are one training, each record's part of L_J clipped as a "
                "whole; the pseudo-samples' part is public given θ^g. A generator then learns on classes drawn evenly."
            ),
        ),
        settings={
            "paper": {
                "rounds": 60,
                "fraction": 0.4,
                "local_epochs": 20,
                "lr": 0.001,
                "weight_decay": 0.001,
                "generator_lr": 0.001,
                "distill_lr": 0.01,
            },
            "authors-code": {
                "rounds": 61,
                "fraction": 0.4,
                "local_epochs": 20,
                "batch_size": 32,
                "optimizer": "adam",
                "lr": 0.0001,
                "weighting": "samples",
                "adversarial": 2.0,
                "gradient_penalty": 0.15,
                "discriminator_rounds": 3,
                "generator_rounds": 5,
                "adversarial_epochs": 5,
                "interleaved": True,
                "conditional": False,
                "recognised": 0.0,
                "diversity": 0.0,
                "generator_lr": 0.0001,
                "latent": 100,
                "pseudo_samples": 1280,
                "distill_from": 1,
                "distill_optimizer": "adam",
                "distill_steps": 1600,
                "distill_batch_size": 32,
                "distill_lr": 0.0001,
                "ensemble": "logits",
                "temperature": 20.0,
            },
        },
        withholdable=(
            "sample_count",
            "discriminator_parameters",
            "discriminator_scores",
        ),
        privacy={
            "claims": (
                "None: uploaded generators may leak, says its discussion, and points to differentially private GANs; "
                "Appendix B keeps the discriminator at home."
            ),
            "finds": {"server": "model_parameters", "world": "model_parameters"},
            "private": {
                "params": {"weighting": "uniform"},
                "withhold": [],
                "training": ["model"],
                "tuned": PRIVATE_ROUNDS,
            },
        },
        starts={
            "weights": "broadcast",
            "source": "Wang et al. 2023, §3.3: clients train the last distilled average, which the server sends.",
        },
        pools_data=False,
        heterogeneous=False,
        needs_public=False,
        copies={"server": ("model_parameters",), "client": ("model_parameters", "soft_labels")},
        trains={"model": "batch_size"},
        generator={
            "build": "fdaudit.models.conditional:ConditionalGenerator",
            "arguments": {
                "latent": "latent",
                "width": "generator_width",
                "output_shape": "input_shape",
                "classes": "classes",
                "conditional": "conditional",
            },
            "takes": ("noise", "class"),
        },
        tasks=("single-label",),
    )
    Config: ClassVar[type[DaFKDConfig]] = DaFKDConfig

    def __init__(self, config: DaFKDConfig, setting: Setting) -> None:
        self.config, self._wire, self._seed = config, setting.wire, setting.seed
        self._local = setting.local
        if config.gradient_penalty and self._local.defended():
            problem = (
                "depends on pairs of records and pseudo-samples, which a training defence cannot clip apart"
            )
            raise SpecError(
                "protocol.params.gradient_penalty", config.gradient_penalty, problem, "Set it to 0."
            )
        self._trainer, self._data = setting.trainers["server"], dict(setting.clients)
        self._clients = {k: DaFKDClient(k, data, config, setting) for k, data in setting.clients.items()}
        self._server = DaFKDServer(config, setting)
        self.state: dict[str, Tensor] = {}
        put(self.state, "server/w/", copies_of(setting.initial["server"]))
        put(self.state, "server/g/", parameters_of(initial_generator(config, setting)))
        for name in ("server/basis/w", "server/basis/g"):
            self.state[name] = torch.zeros(0, dtype=torch.int64)
        for k, client in self._clients.items():
            put(self.state, f"{k}/d/", client.state())
            if self._local.defended():
                keep_basis(self.state, k, ())

    def rounds(self, start: int) -> Iterator[Round]:
        """Run Algorithm 1."""
        for k, client in self._clients.items():
            client.restore(take(self.state, f"{k}/d/"))
        K_t = max(round(self.config.fraction * len(self._clients)), 1)
        for t in range(start, self.config.rounds):
            self._wire.begin(t)
            if t == 0 and self.config.weighting == "samples":
                announce_counts(self.state, self._wire, self._data)
            S = sample_clients(self._clients, K_t, child(self._seed, "dafkd", "sample", t))
            w_t = self._broadcast("model_parameters", S, "w")
            g_t = self._broadcast("generator_parameters", S, "g")
            updates = self._train(t, S, w_t, g_t)  # Eq. 9, then Eq. 3
            uploads, batches = self._upload(updates, g_t)
            generators = {k: upload.g for k, upload in uploads.items() if upload.g is not None}
            if generators:  # Eq. 4
                put(self.state, "server/g/", self._average(generators))
                seqs = [g.seq for g in generators.values()]
                self._set_basis("g", [*seqs, *count_seqs(self.state, generators)])
            loss = self._aggregate(t, uploads)  # ŵ_{t+1}, then Eq. 7 and 8
            if t == self.config.rounds - 1:
                self._broadcast("model_parameters", [*self._clients, "world"], "w")
            models = {k: u.w for k, u in updates.items()} | {"server": self.released()}
            losses = {k: u.loss for k, u in updates.items()} | ({"server": loss} if uploads else {})
            yield Round(index=t, models=models, batches=batches, losses=losses)

    def released(self) -> Parameters:
        """Return the server's classifier."""
        return take(self.state, "server/w/")

    # -- the server -----------------------------------------------------------------------------------------

    def _broadcast(self, kind: str, receivers: Sequence[str], model: str) -> Delivery:
        inputs = list(map(int, self.state[f"server/basis/{model}"]))
        tensors = take(self.state, f"server/{model}/")
        message = self._wire.send("server", receivers, kind, tensors, inputs=inputs)
        return arrived(message, f"dafkd: the server's {kind}")

    def _aggregate(self, t: int, uploads: Mapping[str, ArrivedModels]) -> float:
        """Compute ŵ_{t+1} and distil it; without uploads the classifier stays the same. Return the mean KL."""
        if not uploads:
            return 0.0
        average = self._average({k: u.w for k, u in uploads.items()})
        basis = [u.w.seq for u in uploads.values()]
        if self.config.weights != "uniform":
            basis += [u.d.seq for u in uploads.values() if u.d is not None]
        basis += [*count_seqs(self.state, uploads), *map(int, self.state["server/basis/g"])]
        x = self._server.draw(t, take(self.state, "server/g/"))
        target: Tensor | None
        if self.config.upload_discriminator:
            target = self._server.target(list(uploads.values()), x)
        else:
            target, answer_seqs = self._ask(list(uploads), x)
            basis += answer_seqs
        loss = 0.0
        if target is not None:
            average, loss = self._server.distil(t, average, x, target)
        put(self.state, "server/w/", average)
        self._set_basis("w", basis)
        return loss

    def _ask(self, clients: Sequence[str], x: Tensor) -> tuple[Tensor | None, list[int]]:
        """Collect the clients' scores and predictions (Appendix B).

        Returns:
            the target of distillation, None without answers; and the numbers of the answers' messages.
        """
        inputs = list(map(int, self.state["server/basis/g"]))
        message = self._wire.send("server", clients, "generated_samples", {"samples": x}, inputs=inputs)
        request = arrived(message, "dafkd: the server's generated_samples")
        answers, seqs = [], list[int]()
        for k in clients:
            scores, weighted = self._clients[k].answer(request["samples"])
            behind = joined(basis_of(self.state, k), (request.seq,))
            f = self._wire.send(k, ["server"], "discriminator_scores", {"values": scores}, inputs=behind)
            s = self._wire.send(k, ["server"], "soft_labels", {"values": weighted}, inputs=behind)
            if s is not None:
                answers.append((None if f is None else f["values"], s["values"]))
                seqs += [message.seq for message in (s, f) if message is not None]
        if not answers:
            return None, seqs
        return self._server.target_of_answers(answers), seqs

    def _average(self, models: Mapping[str, Mapping[str, Tensor]]) -> Parameters:
        """Return the mean of models by client, equally weighted or by the reported numbers of records."""
        return weighted_mean(list(models.values()), reported_counts(self.state, models))

    def _set_basis(self, model: str, seqs: Sequence[int]) -> None:
        self.state[f"server/basis/{model}"] = torch.tensor(sorted(set(seqs)), dtype=torch.int64)

    # -- the clients ----------------------------------------------------------------------------------------

    def _train(self, t: int, selected: Sequence[str], w_t: Delivery, g_t: Delivery) -> dict[str, DaFKDUpdate]:
        """Run the selected clients' local work; on a CPU in as many threads as allowed."""
        guards = {k: self._local.guard(k, self.config.steps) for k in selected}
        outcomes = self._trainer.apart(
            lambda k: self._clients[k].update(t, w_t.of(k), g_t.of(k), guards[k]), selected
        )
        updates = dict(zip(selected, outcomes, strict=True))
        for k, update in updates.items():
            put(self.state, f"{k}/d/", moved(update.d, "cpu"))
            inputs = joined(basis_of(self.state, k), (w_t.of(k).seq, g_t.of(k).seq))
            keep_basis(self.state, k, self._local.release(k, guards[k], inputs=inputs))
        return updates

    def _upload(
        self, updates: Mapping[str, DaFKDUpdate], g_t: Delivery
    ) -> tuple[dict[str, ArrivedModels], dict[int, Tensor]]:
        """Send the clients' models; return what arrived, and the records behind each message.

        The default `inputs` say that a client's discriminator layer depends on all it ever held. A recorded training
        defence replaces them by the layer's actual inputs.
        """
        uploads, batches = dict[str, ArrivedModels](), dict[int, Tensor]()
        for k, update in updates.items():
            inputs = basis_of(self.state, k)
            w = self._wire.send(k, ["server"], "model_parameters", update.w, inputs=inputs)
            d = None
            if self.config.upload_discriminator:
                d = self._wire.send(k, ["server"], "discriminator_parameters", update.d, inputs=inputs)
            inputs = joined(inputs, (g_t.of(k).seq,))
            g = self._wire.send(k, ["server"], "generator_parameters", update.g, inputs=inputs)
            batches |= {message.seq: update.batch for message in (w, d) if message is not None}
            if w is not None:  # otherwise the client went silent: the round goes on without it
                uploads[k] = ArrivedModels(w, d, g)
        return uploads, batches
