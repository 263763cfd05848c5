"""FedFTG (Zhang et al. 2022): federated averaging; the server fine-tunes the average on samples that it generates."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import ClassVar

import torch
from torch import Tensor

from fdaudit.data.partition import class_counts
from fdaudit.federation.protocol import CURIOUS, PRIVATE_ROUNDS, RELEASED_MODEL, Round, Setting, arrived
from fdaudit.federation.state import copies_of, put, take
from fdaudit.registry import ProtocolCard
from fdaudit.training.trainer import Parameters
from fdaudit.transcript.messages import DATA
from fdaudit.transcript.wire import Delivery

from .._uploads import ModelUploads, shares_of_clients, weighted_mean
from ..fedgen.generator import reported_classes
from .config import FedFTGConfig
from .server import FedFTGServer

__all__ = ["FedFTG"]


class FedFTG(ModelUploads):
    """Clients upload models and class counts; the server fine-tunes the average without any data.

    Each round the server sends its model to a sample of the clients, which train it on their records and send it back.
    The server averages the models. Its generator then looks for samples of given classes on which the average
    disagrees with the clients' models, and the average learns the clients' weighted predictions of these. Class counts
    decide the weights and which classes are generated. FedFTG reveals what FedAvg with whole models reveals, and the
    class counts. The generator never leaves the server.
    """

    card = ProtocolCard(
        name="fedftg",
        source="Zhang, Shen, Ding, Tao & Duan 2022 (CVPR 2022), after the authors' code",
        roles=("server", "client"),
        messages=(
            {"kind": "class_counts", "from": "client", "to": "server", "what": "n_k^y (C,), once"},
            {"kind": "model_parameters", "from": "server", "to": "client", "what": "w_t, every round"},
            {
                "kind": "model_parameters",
                "from": "client",
                "to": "server",
                "what": "w_k after local training",
            },
            {"kind": "model_parameters", "from": "server", "to": "client, world", "what": "the final model"},
        ),
        trust=(
            (
                "The server sees every client's model by itself; no secure aggregation is possible, as it asks each of "
                "them."
            ),
            CURIOUS,
        ),
        oracles=(RELEASED_MODEL,),
        differences=(
            "The generator is fully connected with LayerNorm; the authors' is a convolutional one with BatchNorm.",
            "Classes are drawn at random in proportion to the counts; the authors' code shares them out exactly.",
            "The clients' cross-entropy is weighted sample by sample; the authors' code multiplies two batch means.",
            "Learning rates stay as they are; the authors' shrink by 0.2 % a round. Gradients are not clipped.",
            "With `local_steps`, batches are always full and passes reshuffled; the authors' code has epochs only.",
        ),
        withholdable=("class_counts",),
        privacy={
            "claims": "None: no data leave the clients, but their models and class counts do.",
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
        tasks=("single-label",),
        copies={"server": ("model_parameters",), "client": ("model_parameters",)},
        trains={"model": "batch_size"},
        starts={
            "weights": "broadcast",
            "source": "the authors' code loads the server's model into every client, in the first round too",
        },
    )
    Config: ClassVar[type[FedFTGConfig]] = FedFTGConfig

    def __init__(self, config: FedFTGConfig, setting: Setting) -> None:
        super().__init__(config, setting)
        self.config, self._classes = config, setting.classes
        self._server = FedFTGServer(config, setting)
        self.state: dict[str, Tensor] = {}
        put(self.state, "server/w/", copies_of(setting.initial["server"]))
        put(self.state, "server/g/", self._server.generator())
        self.state["server/basis"] = torch.zeros(0, dtype=torch.int64)

    def rounds(self, start: int) -> Iterator[Round]:
        """Run FedAvg's rounds; after each average, fine-tune it."""
        self._server.restore(take(self.state, "server/g/"))
        for t in range(start, self.config.rounds):
            self._wire.begin(t)
            if t == 0:
                for k, data in self._clients.items():
                    counts = {"counts": class_counts(data.y.cpu(), self._classes)}
                    message = self._wire.send(k, ["server"], "class_counts", counts, inputs=[DATA])
                    if message is not None:
                        self.state[f"server/counts/{k}"] = message["counts"].cpu().round().long()
                        self.state[f"server/counts_seq/{k}"] = torch.tensor(message.seq)
            w_t = self._send_model(self._sample(t))
            uploads, batches, losses, models = self._client_updates(t, w_t)
            if uploads:
                losses |= self._fuse(t, uploads)
            if t == self.config.rounds - 1:
                self._send_model([*self._clients, "world"])
            yield Round(index=t, models={"server": self.released(), **models}, batches=batches, losses=losses)

    def released(self) -> Parameters:
        """Return the server's model."""
        return take(self.state, "server/w/")

    # -- the server -----------------------------------------------------------------------------------------

    def _send_model(self, receivers: Sequence[str]) -> dict[str, Delivery]:
        inputs = list(map(int, self.state["server/basis"]))
        message = self._wire.send("server", receivers, "model_parameters", self.released(), inputs=inputs)
        model = arrived(message, "fedftg: the server's model")
        copies: dict[str, Delivery] = {}
        for k in receivers:
            if k in self._clients:
                copies[k] = model.of(k)
        return copies

    def _fuse(self, t: int, uploads: Mapping[str, Delivery]) -> dict[str, float]:
        """Average the uploads by numbers of records, fine-tune the average, and return the mean loss of that."""
        counts = reported_classes(self.state, uploads, self._classes)
        models, records = list(uploads.values()), list[int]()
        for row in counts:
            n_k = int(row.sum())
            records.append(max(n_k, 1))
        average = weighted_mean(models, records)
        losses: dict[str, float] = {}
        if self.config.iterations:
            total = counts.sum(0)
            labels = torch.ones(self._classes)
            if self.config.labels == "classes" and total.any():
                labels = total.float()
            weighing = counts if self.config.ensemble == "classes" else torch.ones_like(counts)
            shares = shares_of_clients(weighing.double()).float()  # α of each class
            average, losses["server"] = self._server.fine_tune(t, average, models, shares, labels)
            put(self.state, "server/g/", self._server.generator())
        put(self.state, "server/w/", average)
        # The generator remembers all earlier uploads.
        basis: set[int] = set()
        if self.config.iterations:
            basis.update(self.state["server/basis"].tolist())
        for seq in take(self.state, "server/counts_seq/").values():
            basis.add(int(seq))
        for upload in models:
            basis.add(int(upload.seq))
        self.state["server/basis"] = torch.tensor(sorted(basis), dtype=torch.int64)
        return losses
