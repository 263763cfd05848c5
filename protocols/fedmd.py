"""FedMD (Li & Wang 2019): clients with their own models agree on class scores for public samples."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar, Literal

from pydantic import Field

from fdaudit.federation.protocol import CURIOUS, Round, Setting
from fdaudit.federation.public_answers import (
    CRAFTED_PROXY,
    PREDICTIONS,
    PREDICTIONS_SEEN,
    REQUEST,
    SAMPLES_KNOWN,
    PublicDistillation,
    PublicTraining,
    Share,
    WarmUp,
)
from fdaudit.registry import ProtocolCard

__all__ = ["FedMD", "FedMDConfig"]


class FedMDConfig(WarmUp, PublicTraining):
    """FedMD's settings; names follow Li & Wang 2019, Algorithm 1."""

    share: Share = "logits"
    """The clients' messages: class scores (logits), their softmax, or predicted classes."""
    order: Literal["digest-revisit", "revisit-digest"] = "digest-revisit"
    """The paper's order, or private records first and the consensus last."""
    warm_up_steps: int = Field(200, ge=0)
    """SGD steps on private records before the first round."""


class FedMD(PublicDistillation):
    """Clients with their own networks learn from their average class scores on public samples.

    Each round the server names some public samples, and every client sends its class scores for them. The server sends
    back the average. Every client first digests it (trains its own scores towards it), then revisits its private
    records. No model leaves a client. The server sees each client's own scores, one row for each public sample, and can
    attack them. Each client sees only the average.
    """

    card = ProtocolCard(
        name="fedmd",
        source="Li & Wang 2019, Algorithm 1; as a baseline: Shao, Wu & Zhang 2023, Table 1",
        roles=("server", "client"),
        messages=(
            REQUEST,
            {
                "kind": "logits",
                "from": "client",
                "to": "server",
                "what": "index (m,), class scores (m, C) of the client's model (share: logits)",
                "when": {"share": "logits"},
                "index": "public",
            },
            *PREDICTIONS,
            {
                "kind": "ensemble_labels",
                "from": "server",
                "to": "client",
                "what": "index (m,), the clients' average (m, C): scores",
                "when": {"share": "logits"},
                "index": "public",
            },
            {
                "kind": "ensemble_labels",
                "from": "server",
                "to": "client",
                "what": "index (m,), the clients' average (m, C): probabilities",
                "when": {"share": "soft_labels"},
                "index": "public",
            },
            {
                "kind": "ensemble_labels",
                "from": "server",
                "to": "client",
                # A defence may turn votes into no class, and a sample without votes is left out.
                "what": "index (n,), shares of votes (n, C), n ≤ m: of the samples with a valid vote",
                "when": {"share": "hard_labels"},
            },
        ),
        trust=(
            PREDICTIONS_SEEN,
            SAMPLES_KNOWN,
            CURIOUS,
        ),
        oracles=(CRAFTED_PROXY,),
        differences=(
            (
                "The paper begins with transfer learning on labelled public data. Our public samples have no labels: a "
                "client begins with `warm_up_steps` on private records instead."
            ),
            (
                "The order is the paper's, digest then revisit. Implementations differ: that of Shao, Wu & Zhang 2023 "
                "revisits first and is measured after the digest (`order: revisit-digest`). Both take the same steps "
                "in turn; they differ in the step after which a model is measured and the run ends."
            ),
            (
                "The paper does not name the loss of the digest. Scores are fitted by mean absolute error, as in the "
                "authors' code; soft labels and votes by cross-entropy."
            ),
            "The weights c_k of the average are 1/m, as in the paper's experiments; a client that is silent has none.",
        ),
        withholdable=(),
        privacy={
            "claims": ("None: models stay private, scores on public samples are shared."),
            "finds": {"server": "logits"},
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
                "Li & Wang 2019, Algorithm 1: each participant has its independently designed model; none is sent."
            ),
        },
        copies={
            "server": ("proxy_indices", "ensemble_labels"),
            "client": ("logits", "soft_labels", "hard_labels"),
        },
        pools_data=False,
        heterogeneous=True,
        needs_public=True,
        tasks=("single-label", "text", "table"),
        trains={"model": "batch_size"},
    )
    Config: ClassVar[type[FedMDConfig]] = FedMDConfig

    def __init__(self, config: FedMDConfig, setting: Setting) -> None:
        super().__init__(config, setting)
        self.config = config

    def rounds(self, start: int) -> Iterator[Round]:
        """Run Algorithm 1: transfer learning, then communicate, aggregate, distribute, digest, revisit."""
        for t in range(start, self.config.rounds):  # for j = 1, 2, ..., P
            self._wire.begin(t)
            if t == 0 and self.config.warm_up_steps:  # transfer learning
                self._train("warm-up", length={"steps": self.config.warm_up_steps})
            if self.config.order == "revisit-digest":
                losses = self._train("revisit", t)
            scores = self._answer(self._ask(t), self.config.share)  # communicate: f_k(x_i) on a subset of D_0
            consensus = None
            if scores:  # aggregate: 1/m sum f_k(x_i) over the clients that answered; distribute
                consensus = self._send_labels(self._mean(scores.values()), scores)
            self._digest(t, consensus, "l1" if self.config.share == "logits" else "cross-entropy")
            if self.config.order == "digest-revisit":
                losses = self._train("revisit", t)  # revisit: a few epochs on D_k
            yield Round(index=t, models=self._models(), losses=losses)
