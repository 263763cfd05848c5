"""FKD, federated knowledge distillation without public data (Jeong et al. 2018): mean predictions by class."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, ClassVar

import torch

from fdaudit.federation.protocol import Round, Setting
from fdaudit.transcript.wire import Delivery

from ._classwise import ClasswiseDistillation, ClasswiseTraining, combine, mean_by_class

__all__ = ["FKD", "FKDConfig"]


class FKDConfig(ClasswiseTraining):
    """FKD's settings; symbols follow Jeong et al. 2018, Algorithm 1."""


class FKD(ClasswiseDistillation):
    """Clients teach each other with their mean prediction for each class of their own records.

    Each round every client trains on its records towards their labels and, with weight γ, towards the other clients'
    mean prediction for the class. It then sends its own mean predictions, a table of C rows. The server sends each
    client the mean of all other tables. There is no public data and no model leaves a client. Missing rows reveal which
    classes a client lacks.
    """

    name: ClassVar[str] = "fkd"
    source: ClassVar[str] = "Jeong, Oh, Kim, Park, Bennis & Kim 2018, Algorithm 1; as FKD: Seo et al. 2022"
    roles: ClassVar[tuple[str, ...]] = ("server", "client")
    messages: ClassVar[tuple[dict[str, Any], ...]] = (
        {
            "kind": "class_prototypes",
            "from": "client",
            "to": "server",
            "what": "values (C, C): row c is the mean prediction for the client's records of class c, zero without any",
        },
        {
            "kind": "class_prototypes",
            "from": "server",
            "to": "client",
            "what": "values (C, C): the mean of the other clients' rows; one table for each client",
        },
    )
    trust: ClassVar[tuple[str, ...]] = (
        "The server sees every client's table by itself; no secure aggregation is assumed.",
        (
            "The private preset's noise hides all of a client, so its ε holds for a whole client too. One record costs "
            "no less: it may move the model, and by it every row of the table."
        ),
        "A client is sent the mean of the others: with two clients, the other's table itself.",
        "Parties follow the protocol and are curious (honest-but-curious).",
    )
    oracles: ClassVar[tuple[dict[str, Any], ...]] = ()
    deviations: ClassVar[tuple[str, ...]] = (
        (
            "The paper averages predictions as they arise in local training; we take those of the model at the "
            "round's end for all of the client's records, once."
        ),
        (
            "The paper divides by M - 1 whatever classes the devices have; we divide by the number of other clients "
            "that have the class, and a class that no other client has is learnt from its labels alone."
        ),
        "The paper leaves γ open; the default is 1.",
        (
            "Federated augmentation, the paper's second part, is left out. Hard labels are not the paper's; Shao, Wu & "
            "Zhang 2023 compare them."
        ),
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
    Config: ClassVar[type[FKDConfig]] = FKDConfig

    def __init__(self, config: FKDConfig, setting: Setting) -> None:
        super().__init__(config, setting)
        self.config = config

    def rounds(self, start: int) -> Iterator[Round]:
        """Run Algorithm 1: local training at each device, then the global ensembling at the server."""
        for k in range(start, self.config.rounds):
            self._wire.begin(k)
            losses = self._train_towards(k)  # lines 2-6: w <- w - η grad {φ(F, y) + γ φ(F, F^_y)}
            local = self._send_means()  # lines 7-9: F-_l for each label l, to the server
            self._send_ensembles(local)  # lines 10-17: F^_l of the others, to each device
            batches = {sent.seq: torch.arange(len(self._clients[i])) for i, sent in local.items()}
            yield Round(index=k, models=self._models(), batches=batches, losses=losses)

    # -- the clients ----------------------------------------------------------------------------------------

    def _send_means(self) -> dict[str, Delivery]:
        """Send each client's table; omit silent clients."""
        local = {}
        for i, data in self._clients.items():
            means = mean_by_class(self._own_predictions(i), data.y, self._classes)
            sent = self._wire.send(i, ["server"], "class_prototypes", {"values": means})
            if sent is not None:
                local[i] = sent
        return local

    # -- the server -----------------------------------------------------------------------------------------

    def _send_ensembles(self, local: Mapping[str, Delivery]) -> None:
        """Send each client i the mean over the others; nothing if there are none."""
        for i in self._clients:
            others = [sent for j, sent in local.items() if j != i]
            if not others:
                continue
            ensemble = combine([sent["values"].cpu() for sent in others], self._classes)
            inputs = [sent.seq for sent in others]
            sent = self._wire.send("server", [i], "class_prototypes", {"values": ensemble}, inputs=inputs)
            if sent is not None:
                self._learn(i, sent)
