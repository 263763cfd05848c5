"""FKD (Jeong et al. 2018) and PLS (Wang et al. 2023): clients share their mean prediction for each class.

Knowledge is a table of C rows, one mean prediction a class, without single records.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor

from fdaudit.federation.client_models import ClientModels
from fdaudit.federation.local_settings import LocalTraining
from fdaudit.federation.protocol import CURIOUS, Round, Setting
from fdaudit.registry import ProtocolCard
from fdaudit.training.class_means import combine, mean_by_class, mixed_targets, predictions
from fdaudit.transcript.wire import Delivery

__all__ = ["FKD", "PLS", "ClasswiseTraining"]


class ClasswiseTraining(LocalTraining):
    """Local SGD with the class-wise teacher in the loss."""

    share: Literal["soft", "hard"] = "soft"
    """Average each class's softmax outputs, or its predicted classes."""
    gamma: float = Field(1.0, ge=0)
    """γ: weight of the teacher's cross-entropy; 0 trains alone."""


_TRUST: tuple[str, ...] = (
    "The server sees every client's table by itself; no secure aggregation is assumed.",
    (
        "The private preset's noise hides all of a client, so its ε holds for a whole client too. One record costs "
        "no less: it may move the model, and by it every row of the table."
    ),
    CURIOUS,
)
_PRIVACY: dict[str, Any] = {
    "claims": ("None: means by class in place of parameters. A mean over few records is nearly one of them."),
    "finds": {"server": "class_prototypes"},
    "private": {
        "params": {},
        "withhold": [],
        "training": [],
        "noise": {
            "kind": "class_prototypes",
            "sender": "client",
            "name": "gaussian-noise",
            "clip": 3.0,
        },
    },
}


class _Classwise(ClientModels):
    """The shared client steps of FKD and PLS: training towards labels and teacher, and predicting."""

    Config: ClassVar[type[ClasswiseTraining]] = ClasswiseTraining

    def __init__(self, config: ClasswiseTraining, setting: Setting) -> None:
        super().__init__(config, setting)
        self.config, self._classes = config, setting.classes
        for k in self._clients:
            self.state[f"{k}/teacher"] = torch.zeros(setting.classes, setting.classes)
            self.state[f"{k}/teacher_seq"] = torch.zeros(0, dtype=torch.int64)

    def _train_towards(self, t: int) -> dict[str, float]:
        """Run local SGD on φ(F, y) + γ φ(F, teacher_y)."""
        targets = {
            k: mixed_targets(data.y, self.state[f"{k}/teacher"], self.config.gamma)
            for k, data in self._clients.items()
        }
        taught = {k: self.state[f"{k}/teacher_seq"].tolist() for k in self._clients}
        return self._train("batches", t, targets=targets, taught=taught)

    def _own_predictions(self, k: str) -> Tensor:
        """Return client k's predictions (n, C) for its own records: softmax outputs, or one-hot predicted classes."""
        return predictions(self._predict(k, self._clients[k].x), self.config.share)

    def _learn(self, k: str, sent: Delivery) -> None:
        """Give client k the teacher that it received, for its next local training."""
        received = sent.of(k)
        self.state[f"{k}/teacher"] = received["values"].cpu()
        self.state[f"{k}/teacher_seq"] = torch.tensor([received.seq])


class FKD(_Classwise):
    """Clients teach each other with their mean prediction for each class of their own records.

    Each round every client trains on its records towards their labels and, with weight γ, towards the other clients'
    mean prediction for the class. It then sends its own mean predictions, a table of C rows. The server sends each
    client the mean of all other tables. There is no public data and no model leaves a client. Missing rows reveal which
    classes a client lacks.
    """

    card = ProtocolCard(
        name="fkd",
        source="Jeong, Oh, Kim, Park, Bennis & Kim 2018, Algorithm 1; as FKD: Seo et al. 2022",
        messages=(
            {
                "kind": "class_prototypes",
                "from": "client",
                "to": "server",
                ("what"): (
                    "values (C, C): row c is the mean prediction for the client's records of class c, zero without any"
                ),
            },
            {
                "kind": "class_prototypes",
                "from": "server",
                "to": "client",
                "what": "values (C, C): the mean of the other clients' rows; one table for each client",
            },
        ),
        trust=(
            "The server sees every client's table by itself; no secure aggregation is assumed.",
            (
                "The private preset's noise hides all of a client, so its ε holds for a whole client too. One record "
                "costs no less: it may move the model, and by it every row of the table."
            ),
            "A client is sent the mean of the others: with two clients, the other's table itself.",
            CURIOUS,
        ),
        starts={
            "weights": "own",
            "source": "Jeong et al. 2018, Algorithm 1: devices exchange mean outputs by class only, never a model.",
        },
        differences=(
            (
                "The paper averages predictions as they arise in local training; we take those of the model at the "
                "round's end for all of the client's records, once."
            ),
            (
                "The paper divides by M - 1 whatever classes the devices have; we divide by the number of other "
                "clients that have the class, and a class that no other client has is learnt from its labels alone."
            ),
            "The paper leaves γ open; the default is 1.",
            (
                "Federated augmentation, the paper's second part, is left out. Hard labels are not the paper's; Shao, "
                "Wu & Zhang 2023 compare them."
            ),
        ),
        roles=("server", "client"),
        oracles=(),
        withholdable=(),
        privacy=_PRIVACY,
        copies={"server": ("class_prototypes",), "client": ("class_prototypes",)},
        pools_data=False,
        heterogeneous=True,
        needs_public=False,
        tasks=("single-label", "text", "table"),
        trains={"model": "batch_size"},
    )

    def rounds(self, start: int) -> Iterator[Round]:
        """Run Algorithm 1: local training at each device, then the global ensembling at the server."""
        for k in range(start, self.config.rounds):
            self._wire.begin(k)
            losses = self._train_towards(k)  # w <- w - η grad {φ(F, y) + γ φ(F, F^_y)}
            local = self._send_means()  # F-_l for each label l, to the server
            self._send_ensembles(local)  # F^_l of the others, to each device
            batches = {message.seq: torch.arange(len(self._clients[i])) for i, message in local.items()}
            yield Round(index=k, models=self._models(), batches=batches, losses=losses)

    # -- the clients ----------------------------------------------------------------------------------------

    def _send_means(self) -> dict[str, Delivery]:
        """Send each client's table; omit silent clients."""
        local = {}
        for i, data in self._clients.items():
            means = mean_by_class(self._own_predictions(i), data.y, self._classes)
            message = self._wire.send(i, ["server"], "class_prototypes", {"values": means})
            if message is not None:
                local[i] = message
        return local

    # -- the server -----------------------------------------------------------------------------------------

    def _send_ensembles(self, local: Mapping[str, Delivery]) -> None:
        """Send each client i the mean over the others; nothing if there are none."""
        for i in self._clients:
            others = [message for j, message in local.items() if j != i]
            if not others:
                continue
            ensemble = combine([message["values"].cpu() for message in others], self._classes)
            inputs = [message.seq for message in others]
            message = self._wire.send("server", [i], "class_prototypes", {"values": ensemble}, inputs=inputs)
            if message is not None:
                self._learn(i, message)


class PLS(_Classwise):
    """Clients share the mean of their correct predictions for each class, and all learn from one table.

    Each round every client trains on its records towards their labels and, with weight γ, towards the federation's mean
    prediction for the class. It then sends its own means over the records that it predicts correctly. The server
    averages the tables and sends the same average to all clients. There is no public data and no model leaves a client.
    A missing row reveals that a client lacks a class, or predicts all of it wrongly.
    """

    card = ProtocolCard(
        name="pls",
        source="Wang, Zhang, Tao & Chen 2023, as a baseline of Shao, Wu & Zhang 2023",
        messages=(
            {
                "kind": "class_prototypes",
                "from": "client",
                "to": "server",
                ("what"): (
                    "values (C, C): row c is the mean prediction for the records of class c that are predicted rightly"
                ),
            },
            {
                "kind": "class_prototypes",
                "from": "server",
                "to": "client",
                "what": "values (C, C): the mean of the clients' rows, the same table for all",
            },
        ),
        starts={
            "weights": "own",
            "source": "Wang et al. 2023 is for clients with heterogeneous models, and none is sent.",
        },
        differences=(
            (
                "Reconstructed: all that our source says of PLS is that it needs no public data and shares class-wise "
                "average predictions, and its title names knowledge selection. That a client selects the predictions "
                "that agree with their labels, and that all clients get one table, is our reading."
            ),
            "The title's other half, optimised local updating, is left out: local steps are a setting.",
        ),
        roles=("server", "client"),
        trust=_TRUST,
        oracles=(),
        withholdable=(),
        privacy=_PRIVACY,
        copies={"server": ("class_prototypes",), "client": ("class_prototypes",)},
        pools_data=False,
        heterogeneous=True,
        needs_public=False,
        tasks=("single-label", "text", "table"),
        trains={"model": "batch_size"},
    )

    def rounds(self, start: int) -> Iterator[Round]:
        """Run local training towards labels and teacher, selection and means, then one average for all."""
        for t in range(start, self.config.rounds):
            self._wire.begin(t)
            losses = self._train_towards(t)
            local, selected = self._send_means()
            if local:
                table = combine([message["values"].cpu() for message in local.values()], self._classes)
                inputs = [message.seq for message in local.values()]
                everybody = list(self._clients)
                message = self._wire.send(
                    "server", everybody, "class_prototypes", {"values": table}, inputs=inputs
                )
                if message is not None:
                    for k in everybody:
                        self._learn(k, message)
            yield Round(index=t, models=self._models(), batches=selected, losses=losses)

    # -- the clients ----------------------------------------------------------------------------------------

    def _send_means(self) -> tuple[dict[str, Delivery], dict[int, torch.Tensor]]:
        """Send each client's table, without silent clients. Return deliveries and, by message, the records in it."""
        local, selected = {}, {}
        for k, data in self._clients.items():
            predicted, y = self._own_predictions(k), data.y.cpu()
            right = (predicted.argmax(1) == y).nonzero().flatten()
            means = mean_by_class(predicted[right], y[right], self._classes)
            message = self._wire.send(k, ["server"], "class_prototypes", {"values": means})
            if message is not None:
                local[k] = message
                if len(right):
                    selected[message.seq] = right
        return local, selected
