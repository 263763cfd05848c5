"""DS-FL (Itahara et al. 2021): predictions on open samples, averaged and sharpened, teach clients and server."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar, Literal

from pydantic import Field
from torch import Tensor

from fdaudit.federation.protocol import CURIOUS, RELEASED_MODEL, Round, Setting
from fdaudit.federation.public_answers import (
    CRAFTED_PROXY,
    PREDICTIONS,
    PREDICTIONS_SEEN,
    PublicDistillation,
    PublicTraining,
    WarmUp,
)
from fdaudit.federation.state import copies_of, put, take
from fdaudit.registry import ProtocolCard
from fdaudit.training.trainer import Parameters

__all__ = ["DSFL", "DSFLConfig", "sharpen"]


class DSFLConfig(WarmUp, PublicTraining):
    """DS-FL's settings; names follow Itahara et al. 2021."""

    share: Literal["soft_labels", "hard_labels"] = "soft_labels"
    """The clients' messages: softmax outputs, or predicted classes."""
    aggregation: Literal["era", "sa"] = "era"
    """Entropy reduction aggregation, which sharpens the average, or simple aggregation, which does not."""
    temperature: float = Field(0.1, gt=0)
    """T of entropy reduction; the lower, the sharper."""
    warm_up_steps: int = Field(0, ge=0)
    """SGD steps on private records before the first round; the paper has none."""


def sharpen(probabilities: Tensor, temperature: float) -> Tensor:
    """Return the softmax of probabilities (n, C) divided by T: entropy reduction (Itahara et al. 2021, §3.2).

    The entropy falls with T. At the paper's T = 0.1 it is below the average's entropy if one class has a clear
    majority. Otherwise it may be higher, because a softmax has no zeros.
    """
    return (probabilities / temperature).softmax(1)


class DSFL(PublicDistillation):
    """Clients label open samples together; the sharpened average labels teach every client and the server.

    Each round every client first updates its model on its private records. It then sends its predictions on the round's
    open samples. The server averages them, sharpens the average (ERA) and sends it back. Clients and server distil it.
    The server's model learns only from these labels, and is published at the end.
    """

    card = ProtocolCard(
        name="ds-fl",
        source="Itahara, Nishio, Koda, Morikura & Yamamoto 2021, Algorithm 1",
        roles=("server", "client"),
        messages=(
            {
                "kind": "proxy_indices",
                "from": "server",
                "to": "client",
                "what": "index (m,) of the round's open samples o_r, drawn at random",
                "index": "public",
            },
            *PREDICTIONS,
            {
                "kind": "ensemble_labels",
                "from": "server",
                "to": "client",
                "what": "index (m,), global labels (m, C): the average, sharpened with aggregation: era",
                "when": {"share": "soft_labels"},
                "index": "public",
            },
            {
                "kind": "ensemble_labels",
                "from": "server",
                "to": "client",
                # A defence may turn votes into no class, and a sample without votes is left out.
                "what": "index (n,), the same of votes (n, C), n ≤ m: of the samples with a valid vote",
                "when": {"share": "hard_labels"},
            },
            {
                "kind": "model_parameters",
                "from": "server",
                "to": "world",
                "what": "the server's final model",
            },
        ),
        trust=(
            PREDICTIONS_SEEN,
            "All parties hold the same open samples before the first round; nothing private is in them.",
            CURIOUS,
        ),
        oracles=(
            RELEASED_MODEL,
            CRAFTED_PROXY,
        ),
        differences=(
            "The paper calls the outputs that are sent logits; they are softmax outputs and sent as soft labels.",
            "Hard labels are not the paper's; Shao, Wu & Zhang 2023 compare them. A vote counts as its one-hot vector.",
            "The server's model is published in the end: the paper takes its accuracy, and does not say who gets it.",
        ),
        withholdable=(),
        privacy={
            "claims": ("None: model outputs in place of parameters."),
            "finds": {"server": "soft_labels", "world": "soft_labels"},
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
                "Itahara et al. 2021, Algorithm 1: no model is sent to clients; the server's has its own weights."
            ),
        },
        copies={
            "server": ("proxy_indices", "ensemble_labels"),
            "client": ("soft_labels", "hard_labels"),
        },
        pools_data=False,
        heterogeneous=True,
        needs_public=True,
        tasks=("single-label", "text", "table"),
        trains={"model": "batch_size"},
    )
    Config: ClassVar[type[DSFLConfig]] = DSFLConfig

    def __init__(self, config: DSFLConfig, setting: Setting) -> None:
        super().__init__(config, setting)
        self.config = config
        put(self.state, "server/w/", copies_of(setting.initial["server"]))

    def rounds(self, start: int) -> Iterator[Round]:
        """Run Algorithm 1: update, predict, upload, aggregate, broadcast, distil."""
        for r in range(start, self.config.rounds):
            self._wire.begin(r)
            if r == 0 and self.config.warm_up_steps:
                self._train("warm-up", length={"steps": self.config.warm_up_steps})
            losses = self._train("update", r)  # 1. update: w_k on private records
            local = self._answer(self._ask(r), self.config.share)  # 2.-3. prediction on o_r, upload
            labels = None
            if local:  # 4.-5. aggregation over the clients that answered, broadcast
                mean = self._mean(local.values())
                if self.config.aggregation == "era":
                    mean["values"] = sharpen(mean["values"], self.config.temperature)
                labels = self._send_labels(mean, local)
            self._digest(r, labels, "cross-entropy")  # 6. distillation at the clients
            x, values = self._samples(labels)
            if len(x):  # 6. distillation at the server: w_g
                job = self.config.distill_job(
                    "server", self.released(), x, values, self._seed, self.card.name, "distill", r, "server"
                )
                self._advance([job], self.config.distillation("cross-entropy"))
            if r == self.config.rounds - 1:
                self._wire.send("server", ["world"], "model_parameters", self.released())
            yield Round(index=r, models={"server": self.released(), **self._models()}, losses=losses)

    def released(self) -> Parameters:
        """Return the server's model w_g."""
        return take(self.state, "server/w/")
