"""PLS (Wang et al. 2023, as described by Shao et al. 2023): class-wise means of selected predictions."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, ClassVar

import torch

from fdaudit.federation.protocol import Round, Setting
from fdaudit.transcript.wire import Delivery

from ._classwise import ClasswiseDistillation, ClasswiseTraining, combine, mean_by_class

__all__ = ["PLS", "PLSConfig"]


class PLSConfig(ClasswiseTraining):
    """PLS's settings."""


class PLS(ClasswiseDistillation):
    """Clients share the mean of their correct predictions for each class, and all learn from one table.

    Each round every client trains on its records towards their labels and, with weight γ, towards the federation's mean
    prediction for the class. It then sends its own means over the records that it predicts correctly. The server
    averages the tables and sends the same average to all clients. There is no public data and no model leaves a client.
    A missing row reveals that a client lacks a class, or predicts all of it wrongly.
    """

    name: ClassVar[str] = "pls"
    source: ClassVar[str] = "Wang, Zhang, Tao & Chen 2023, as a baseline of Shao, Wu & Zhang 2023"
    roles: ClassVar[tuple[str, ...]] = ("server", "client")
    messages: ClassVar[tuple[dict[str, Any], ...]] = (
        {
            "kind": "class_prototypes",
            "from": "client",
            "to": "server",
            "what": "values (C, C): row c is the mean prediction for the records of class c that are predicted rightly",
        },
        {
            "kind": "class_prototypes",
            "from": "server",
            "to": "client",
            "what": "values (C, C): the mean of the clients' rows, the same table for all",
        },
    )
    trust: ClassVar[tuple[str, ...]] = (
        "The server sees every client's table by itself; no secure aggregation is assumed.",
        (
            "The private preset's noise hides all of a client, so its ε holds for a whole client too. One record costs "
            "no less: it may move the model, and by it every row of the table."
        ),
        "Parties follow the protocol and are curious (honest-but-curious).",
    )
    oracles: ClassVar[tuple[dict[str, Any], ...]] = ()
    deviations: ClassVar[tuple[str, ...]] = (
        (
            "Reconstructed: all that our source says of PLS is that it needs no public data and shares class-wise "
            "average predictions, and its title names knowledge selection. That a client selects the predictions "
            "that agree with their labels, and that all clients get one table, is our reading."
        ),
        "The title's other half, optimised local updating, is left out: local steps are a setting.",
    )
    withholdable: ClassVar[tuple[str, ...]] = ()
    privacy: ClassVar[dict[str, Any]] = {
        "claims": (
            "None: means by class in place of parameters. A mean over few records is nearly one of them."
        ),
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
    pools_data: ClassVar[bool] = False
    heterogeneous: ClassVar[bool] = True
    needs_public: ClassVar[bool] = False
    tasks: ClassVar[tuple[str, ...]] = ("single-label",)
    trains: ClassVar[dict[str, str]] = {"model": "batch_size"}
    Config: ClassVar[type[PLSConfig]] = PLSConfig

    def __init__(self, config: PLSConfig, setting: Setting) -> None:
        super().__init__(config, setting)
        self.config = config

    def rounds(self, start: int) -> Iterator[Round]:
        """Run local training towards labels and teacher, selection and means, then one average for all."""
        for t in range(start, self.config.rounds):
            self._wire.begin(t)
            losses = self._train_towards(t)
            local, selected = self._send_means()
            self._send_average(local)
            yield Round(index=t, models=self._models(), batches=selected, losses=losses)

    # -- the clients ----------------------------------------------------------------------------------------

    def _send_means(self) -> tuple[dict[str, Delivery], dict[int, torch.Tensor]]:
        """Send each client's table, without silent clients. Return deliveries and, by message, the records in it."""
        local, selected = {}, {}
        for k, data in self._clients.items():
            predicted, y = self._own_predictions(k), data.y.cpu()
            right = (predicted.argmax(1) == y).nonzero().flatten()
            means = mean_by_class(predicted[right], y[right], self._classes)
            sent = self._wire.send(k, ["server"], "class_prototypes", {"values": means})
            if sent is not None:
                local[k] = sent
                if len(right):
                    selected[sent.seq] = right
        return local, selected

    # -- the server -----------------------------------------------------------------------------------------

    def _send_average(self, local: Mapping[str, Delivery]) -> None:
        """Send all clients the mean over the clients that answered; nothing without answers."""
        if not local:
            return
        table = combine([sent["values"].cpu() for sent in local.values()], self._classes)
        inputs = [sent.seq for sent in local.values()]
        sent = self._wire.send(
            "server", list(self._clients), "class_prototypes", {"values": table}, inputs=inputs
        )
        if sent is not None:
            for k in self._clients:
                self._learn(k, sent)
