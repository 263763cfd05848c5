"""FedED (Sui et al. 2020): clients train the central model, send predictions, and the server distils their ensemble."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import ClassVar, Literal

from torch import Tensor

from fdaudit.federation.client_models import client_jobs
from fdaudit.federation.local_training import Basis, joined
from fdaudit.federation.protocol import CURIOUS, PRIVATE_ROUNDS, RELEASED_MODEL, Round, Setting, arrived
from fdaudit.federation.public_answers import (
    CRAFTED_PROXY,
    PREDICTIONS,
    PREDICTIONS_SEEN,
    REQUEST,
    SAMPLES_KNOWN,
    PublicTraining,
    answer,
    average,
    existing,
    request,
)
from fdaudit.federation.state import copies_of, put, take
from fdaudit.registry import ProtocolCard
from fdaudit.rng import child
from fdaudit.training.jobs import mean_losses
from fdaudit.training.trainer import Parameters
from fdaudit.transcript.wire import Delivery

__all__ = ["FedED", "FedEDConfig"]


class FedEDConfig(PublicTraining):
    """FedED's settings."""

    share: Literal["soft_labels", "hard_labels"] = "soft_labels"
    """The clients' messages: softmax outputs, or predicted classes."""


class FedED:
    """The server sends its whole model; clients send only predictions on public samples.

    Each round the server sends its model. Every client trains it on its private records and sends its predictions for
    the round's public samples. The server averages them and distils the average into its model. Only the server sends
    parameters. A client learns of another client only what the ensemble taught the central model. The final model is
    published to all parties and to `world`.
    """

    card = ProtocolCard(
        name="feded",
        source="Sui, Chen, Zhao, Jia, Xie & Sun 2020",
        roles=("server", "client"),
        messages=(
            {
                "kind": "model_parameters",
                "from": "server",
                "to": "client",
                "what": "the central model, every round",
            },
            REQUEST,
            *PREDICTIONS,
            {
                "kind": "model_parameters",
                "from": "server",
                "to": "client, world",
                "what": "the final central model",
            },
        ),
        trust=(
            PREDICTIONS_SEEN,
            SAMPLES_KNOWN,
            CURIOUS,
        ),
        oracles=(
            RELEASED_MODEL,
            CRAFTED_PROXY,
        ),
        differences=(
            "The paper extracts relations from medical text; we classify images.",
            (
                "Public samples have no labels here, so the central model learns from the ensemble alone, without a "
                "supervised term. The loss is cross-entropy to the average prediction, at temperature 1."
            ),
            "Clients count alike in the ensemble, and the round's samples are drawn anew each round.",
            "Hard labels are not the paper's; Shao, Wu & Zhang 2023 compare them.",
            (
                "All clients have the server's network. Only answers go up, but every round begins with the central "
                "model's parameters at every client, and another network cannot load them. Without that message "
                "clients would never learn from each other, which is another protocol."
            ),
        ),
        withholdable=(),
        privacy={
            "claims": ("None is known to us: our source names it as a baseline only."),
            "finds": {"server": "soft_labels", "world": "soft_labels"},
            "private": {
                "params": {},
                "withhold": [],
                "training": ["model"],
                "tuned": PRIVATE_ROUNDS,
            },
        },
        starts={
            "weights": "broadcast",
            "source": "Our reading of Sui et al. 2020: every round begins with the central model at the clients.",
        },
        copies={
            "server": ("proxy_indices", "model_parameters"),
            "client": ("soft_labels", "hard_labels"),
        },
        pools_data=False,
        heterogeneous=False,
        needs_public=True,
        tasks=("single-label", "text", "table"),
        trains={"model": "batch_size"},
    )
    Config: ClassVar[type[FedEDConfig]] = FedEDConfig

    def __init__(self, config: FedEDConfig, setting: Setting) -> None:
        self.config, self._wire, self._seed = config, setting.wire, setting.seed
        self._trainer, self._clients = setting.trainers["server"], dict(setting.clients)
        self._local = setting.local
        self._public, self._classes = setting.public, setting.classes
        self.state: dict[str, Tensor] = {}
        put(self.state, "server/w/", copies_of(setting.initial["server"]))

    def rounds(self, start: int) -> Iterator[Round]:
        """Run a round: fork, train, predict, upload, ensemble, distil."""
        for t in range(start, self.config.rounds):
            self._wire.begin(t)
            w = self._send_model([*self._clients])
            models, basis, losses = self._train_locally(t, w)
            draws = child(self._seed, self.card.name, "samples", t)
            indices = request(len(self._public), self.config.public_batch, draws)
            asked = self._wire.send("server", list(self._clients), "proxy_indices", indices, inputs=[])
            answers = self._predict(models, basis, asked)
            self._distil(t, w, answers)
            if t == self.config.rounds - 1:
                self._send_model([*self._clients, "world"])
            yield Round(index=t, models={"server": self.released(), **models}, losses=losses)

    def released(self) -> Parameters:
        """Return the central model."""
        return take(self.state, "server/w/")

    # -- the server -----------------------------------------------------------------------------------------

    def _send_model(self, receivers: list[str]) -> Delivery:
        message = self._wire.send("server", receivers, "model_parameters", self.released())
        return arrived(message, "feded: the server's model")

    def _distil(self, t: int, w: Delivery, answers: Mapping[str, Delivery]) -> None:
        """Distil the mean of the clients that answered; without answers the model stays the same."""
        ensemble = average(answers.values(), len(self._public), self._classes)
        x, values = self._public[ensemble["index"]], ensemble["values"]
        if len(x):
            job = self.config.distill_job("server", w, x, values, self._seed, self.card.name, "distill", t)
            (fitted,) = self._trainer.fit([job], self.config.distillation("cross-entropy"))
            put(self.state, "server/w/", fitted.parameters)

    # -- the clients ----------------------------------------------------------------------------------------

    def _train_locally(
        self, t: int, w: Delivery
    ) -> tuple[dict[str, Parameters], dict[str, Basis], dict[str, float]]:
        """Train the central model on every client's own records; return the results, their inputs, and the losses."""
        starts = {k: w.of(k) for k in self._clients}
        jobs = client_jobs(starts, self._clients, self.config, self._seed, self.card.name, t)
        inputs = {k: (received.seq,) for k, received in starts.items()}
        fitted, basis = self._local.fit(jobs, self.config.fit(), length=self.config.steps, inputs=inputs)
        models = {k: result.parameters for k, result in zip(self._clients, fitted, strict=True)}
        return models, basis, mean_losses(jobs, fitted)

    def _predict(
        self, models: Mapping[str, Parameters], basis: Mapping[str, Basis], asked: Delivery | None
    ) -> dict[str, Delivery]:
        """Send each client's predictions for the requested samples; omit silent clients."""
        answers: dict[str, Delivery] = {}
        for k, model in models.items():
            request = None if asked is None else asked.of(k)
            index = existing(request, len(self._public))
            logits = self._trainer.predict(model, self._public[index])
            tensors = answer(index, logits, self.config.share, len(self._public))
            inputs = joined(basis[k], () if request is None else (request.seq,))
            message = self._wire.send(k, ["server"], self.config.share, tensors, inputs=inputs)
            if message is not None:
                answers[k] = message
        return answers
