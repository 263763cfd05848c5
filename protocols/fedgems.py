"""FedGEMS (Cheng et al. 2021): a larger server model learns from labels, itself, and the clients that are right."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import ClassVar

import torch
from pydantic import Field
from torch import Tensor
from torch.nn import functional as F

from fdaudit.errors import ProtocolError
from fdaudit.federation.client_models import draw_job
from fdaudit.federation.protocol import CURIOUS, RELEASED_MODEL, Round, Setting
from fdaudit.federation.public_answers import (
    CRAFTED_PROXY,
    PublicDistillation,
    PublicTraining,
    WarmUp,
    draw_samples,
    stacked,
    told,
)
from fdaudit.federation.state import copies_of, put, take
from fdaudit.registry import ProtocolCard
from fdaudit.rng import child
from fdaudit.training.trainer import Fit, Parameters
from fdaudit.transcript.samples import narrow
from fdaudit.transcript.wire import Delivery

__all__ = ["FedGEMS", "FedGEMSConfig", "selected"]

_LEAST_ENTROPY = 1e-6
"""In nats; a client that is certain of its answer gets a finite weight."""


class FedGEMSConfig(WarmUp, PublicTraining):
    """FedGEMS's settings; names follow Cheng et al. 2021, Algorithm 1."""

    epsilon: float = Field(0.75, ge=0, le=1)
    """ε: weight of the public labels in the losses of server and clients; 1 - ε is that of distillation."""
    warm_up_steps: int = Field(200, ge=0)
    """SGD steps on private records before the first round."""
    server_epochs: int = Field(10, ge=1)
    """Passes of the server over the round's public samples."""
    server_batch_size: int = Field(64, ge=1)
    """Public samples a step of the server."""
    server_lr: float = Field(0.001, gt=0)
    """Learning rate of Adam at the server."""


def selected(logits: Tensor, present: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """Return Σ α_k l_k of Eq. 5 (n, C), and for which samples a client was right (n,).

    A client whose prediction is wrong has α_k = 0. The others share one softmax over 1 / H, where H is the entropy of
    a client's prediction (Eq. 3 and 4).

    Args:
        logits: (n, K, C) of the clients, float64.
        present: (n, K) which of them were sent.
        labels: (n,) true classes.
    """
    reliable = present & (logits.argmax(2) == labels[:, None])
    entropy = torch.special.entr(logits.softmax(2)).sum(2).clamp_min(_LEAST_ENTROPY)
    some = reliable.any(1)
    alpha = (1 / entropy).masked_fill(~reliable & some[:, None], -torch.inf).softmax(1)
    return torch.einsum("nk,nkc->nc", alpha, logits), some


class FedGEMS(PublicDistillation):
    """A server with a larger model asks clients only for what it cannot do itself, and teaches them what it knows.

    The public samples have labels, which every party knows. Each round the server predicts them. It asks the clients
    for samples that it gets wrong and never got right. There it learns from the clients that are right, the more
    confident the more. Where it has been right before it learns from its own earlier answer. It sends its logits to
    the clients, which distil them and then train on their own records. Which samples it asks for depends on its model,
    so the requests are not public. The server's model is published at the end.
    """

    card = ProtocolCard(
        name="fedgems",
        source="Cheng, Wu, Xiao & Liu 2021, Algorithm 1",
        roles=("server", "client"),
        messages=(
            {
                "kind": "proxy_indices",
                "from": "server",
                "to": "client",
                "what": "index (n,), n ≤ m: the round's samples that the server gets wrong and never got right",
            },
            {
                "kind": "logits",
                "from": "client",
                "to": "server",
                "what": "index (n,), class scores (n, C) of the client's model",
            },
            {
                "kind": "logits",
                "from": "server",
                "to": "client",
                "what": "index (m,) of the round's public samples, drawn at random; the server's class scores (m, C)",
                "index": "public",
            },
            {
                "kind": "model_parameters",
                "from": "server",
                "to": "world",
                "what": "the server's final model",
            },
        ),
        trust=(
            "The server sees every client's class scores by themselves; no secure aggregation is assumed.",
            (
                "All parties hold the same public samples and their labels before the first round; nothing private is "
                "in them."
            ),
            CURIOUS,
        ),
        oracles=(
            RELEASED_MODEL,
            CRAFTED_PROXY,
        ),
        differences=(
            (
                "The server evaluates itself once a round, before it learns. The algorithm box does so sample by "
                "sample while it learns; then each batch would need messages of its own."
            ),
            (
                "The text trains clients before the server, the box after it. A client here begins with "
                "`warm_up_steps`; then rounds follow the box."
            ),
            (
                "The paper does not say what the server learns if no client is right. It learns from the label alone, "
                "as it does if no client answers."
            ),
            "Softmax outputs of logits are compared, at temperature 1. The paper writes KL of logits.",
            (
                "The server takes `public_batch` samples a round; the paper takes all. Clients distil with SGD; the "
                "paper's use Adam. Adam's moments at the server begin anew each round."
            ),
            "The server's model is published in the end: the paper takes its accuracy, and does not say who gets it.",
        ),
        withholdable=(),
        privacy={
            "claims": ("None: logits in place of parameters."),
            "finds": {"server": "logits", "world": "logits"},
            "private": {
                "params": {},
                "withhold": [],
                "training": ["model"],
                "tuned": {"warm_up_steps": 50, "rounds": 10, "local_steps": 5, "lr": 1.0, "distill_lr": 0.5},
            },
        },
        starts={
            "weights": "own",
            ("source"): (
                "Cheng et al. 2021, Algorithm 1: clients may have other networks than the server; no model is sent."
            ),
        },
        copies={
            "server": ("proxy_indices", "logits"),
            "client": ("logits",),
        },
        pools_data=False,
        heterogeneous=True,
        needs_public=True,
        needs_labels=True,
        tasks=("single-label",),
        trains={"model": "batch_size"},
    )
    Config: ClassVar[type[FedGEMSConfig]] = FedGEMSConfig

    def __init__(self, config: FedGEMSConfig, setting: Setting) -> None:
        super().__init__(config, setting)
        if setting.public_labels is None:
            raise ProtocolError("fedgems: the public samples have no labels. Bring them with their classes.")
        self.config, self._labels = config, setting.public_labels.cpu().long()
        put(self.state, "server/w/", copies_of(setting.initial["server"]))
        self.state["server/pool"] = torch.zeros(len(self._public), self._classes)
        self.state["server/pooled"] = torch.zeros(len(self._public), dtype=torch.bool)

    def rounds(self, start: int) -> Iterator[Round]:
        """Run Algorithm 1: knowledge fusion at the server, then ClientTrain."""
        for t in range(start, self.config.rounds):
            self._wire.begin(t)
            if t == 0 and self.config.warm_up_steps:
                self._train("warm-up", length={"steps": self.config.warm_up_steps})
            draws = child(self._seed, self.card.name, "samples", t)
            index = draw_samples(len(self._public), self._public_batch, draws)
            losses = self._fuse(t, index)
            whole = len(index) == len(self._public)
            tensors = told(index, self._predict_as_server(index), len(self._public), whole=whole)
            L_s = self._wire.send("server", list(self._clients), "logits", tensors)
            self._digest(t, L_s, "cross-entropy")  # knowledge distillation on clients, Eq. 6
            losses |= self._train("local", t)  # local training on clients
            if t == self.config.rounds - 1:
                self._wire.send("server", ["world"], "model_parameters", self.released())
            yield Round(index=t, models={"server": self.released(), **self._models()}, losses=losses)

    def released(self) -> Parameters:
        """Return the server's model f_s."""
        return take(self.state, "server/w/")

    def _mixed(self, labels: Tensor, logits: Tensor) -> Tensor:
        """Return targets (n, C) whose cross-entropy has the gradient of ε L_CE + (1 - ε) D_KL."""
        epsilon = self.config.epsilon
        return epsilon * F.one_hot(labels, self._classes) + (1 - epsilon) * logits.softmax(1)

    # -- the server -----------------------------------------------------------------------------------------

    def _fuse(self, t: int, index: Tensor) -> dict[str, float]:
        """Train the server's model on the round's samples; return its mean loss."""
        logits, y = self._predict_as_server(index), self._labels[index]
        pool, pooled = self.state["server/pool"].clone(), self.state["server/pooled"].clone()
        correct = logits.argmax(1) == y
        pool[index[correct]], pooled[index[correct]] = logits[correct], True  # L_Global[idx] <- L_s[idx]
        self.state["server/pool"], self.state["server/pooled"] = pool, pooled
        teacher, taught = pool.clone(), pooled.clone()  # Eq. 2: self-distillation
        unknown = index[~pooled[index]]  # S*_Incorrect
        answers = self._client_select(unknown)
        if answers:  # Eq. 5: selective ensemble distillation
            sent, present = stacked(list(answers.values()), len(self._public), self._classes)
            fused, some = selected(sent[unknown], present[unknown], self._labels[unknown])
            teacher[unknown], taught[unknown] = fused.float(), some
        else:
            teacher[unknown], taught[unknown] = 0, False
        targets = F.one_hot(y, self._classes).float()  # Eq. 1: self-training
        rows = ~correct & taught[index]
        targets[rows] = self._mixed(y[rows], teacher[index[rows]])
        job = draw_job(
            "server",
            self.released(),
            self._public[index],
            targets,
            seed=self._seed,
            path=(self.card.name, "server", t),
            batch_size=self.config.server_batch_size,
            epochs=self.config.server_epochs,
        )
        return self._advance([job], Fit(lr=self.config.server_lr, optimizer="adam"))

    def _predict_as_server(self, index: Tensor) -> Tensor:
        return self._trainers["server"].predict(self.released(), self._public[index])

    def _client_select(self, index: Tensor) -> Mapping[str, Delivery]:
        """Ask every client for its logits on samples (n,); return those that arrived."""
        if not len(index):
            return {}
        samples = {"index": narrow(index, len(self._public))}
        request = self._wire.send("server", list(self._clients), "proxy_indices", samples)
        return self._answer(request, "logits")

    # -- the clients ----------------------------------------------------------------------------------------

    def _samples(self, consensus: Delivery | None) -> tuple[Tensor, Tensor]:
        """Return the public samples of the server's answers, and a client's targets for them (Eq. 6)."""
        index, logits = self._named(consensus)
        return self._public[index], self._mixed(self._labels[index], logits)
