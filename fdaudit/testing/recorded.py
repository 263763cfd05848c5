"""A small recording: a federation that fdaudit does not run, its record, and the run that imports it."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from fdaudit.audit.run import Run
from fdaudit.importing.records import import_record
from fdaudit.parallel.randomness import seeded_randomness
from fdaudit.planning.brought import ClientRecords, array_digests, commit
from fdaudit.recording.recorder import Recorder
from fdaudit.training.trainer import Parameters

__all__ = ["RecordedFederation", "Sent"]

_PARTIES = ("client/0", "client/1")
_NAMES = ("extractor.1.weight", "extractor.1.bias", "head.0.weight", "head.0.bias")
"""The network's parameters, by the names of fdaudit's perceptron."""
_OF_NETWORK = ("model_update", "model_parameters", "gradient")
"""Kinds of messages of federations in which the server averages models and sends the mean."""
_SALT = bytes(range(32))

Sent = Callable[[dict[str, Tensor], str], dict[str, Tensor]]
"""Returns tensors as they are sent, from the tensors and the kind of a message."""


def _unchanged(tensors: dict[str, Tensor], kind: str) -> dict[str, Tensor]:
    """Return tensors as they are."""
    return tensors


@dataclass(frozen=True, kw_only=True)
class RecordedFederation:
    """A server and two clients in plain PyTorch, which train and send one kind of message.

    `run` trains, records with `Recorder`, and imports the record.

    Attributes:
        kind: of the clients' messages: `model_update`, `model_parameters`, `gradient`, `logits`, `soft_labels`,
            `hard_labels`, `top_logits`, `top_soft_labels`, `class_counts`, `private_labels` or `class_prototypes`.
        records: that each client trains on.
        pairs: of candidates of each client; the left-out ones come in addition.
        classes: number of classes.
        shape: of images.
        shared: auxiliary, public and test records, each.
        rounds: number of rounds.
        k: classes of each answer of the kinds `top_…`.
        steps: of training on all records in each round.
        coins: whether coins decided who is a member.
        idle: records of each client, the first ones, that it trains on by the lists and never uses.
        named: whether every message names the records behind it; else those of the first round do.
        card: more fields of the card.
    """

    kind: str = "model_update"
    records: int = 12
    pairs: int = 4
    classes: int = 3
    shape: tuple[int, int, int] = (1, 6, 6)
    shared: int = 40
    rounds: int = 2
    k: int = 2
    steps: int = 20
    coins: bool = True
    idle: int = 0
    named: bool = True
    sent: Sent = _unchanged
    """Returns what is sent, from the tensors and the kind of a message. It may change the precision, for example."""
    card: dict[str, Any] = field(default_factory=dict)

    def run(self, folder: Path, **audit: Any) -> Run:
        """Train, record and import; return the run.

        Args:
            folder: gets `record`, `truth`, `records` and `run`.
            audit: settings of the audit, by their names in a spec.
        """
        generator = torch.Generator().manual_seed(1)
        total = len(_PARTIES) * self._held + 3 * self.shared
        y = torch.arange(total) % self.classes
        x = 0.7 * torch.rand(total, *self.shape, generator=generator)
        x = x + 0.3 * y[:, None, None, None] / max(1, self.classes - 1)  # brighter for later classes
        lists = self._lists(y)
        images = x.movedim(1, 3) if self.shape[0] > 1 else x[:, 0]
        arrays = {"x": images.numpy(), "y": y.numpy()}
        if self.coins:
            rows = {}
            for party, own in lists["clients"].items():
                tensors = {name: torch.tensor(numbers) for name, numbers in own.items()}
                rows[party] = ClientRecords(**tensors)
            commitment = commit(_SALT, rows, array_digests(arrays))
            lists["design"] = {"kind": "matched-pairs", "salt": _SALT.hex(), "commitment": commitment}
        brought = folder / "records"
        brought.mkdir(parents=True)
        (brought / "records.json").write_text(json.dumps(lists))
        np.savez(brought / "records.npz", x=arrays["x"], y=arrays["y"])
        self._record(folder, lists, x, y)
        settings: dict[str, Any] = {
            "adversaries": ["server"],
            "attacks": [],
            "device": "cpu",
            "threads": 1,
            "profile": "quick",
        }
        return import_record(
            folder / "record",
            folder / "run",
            card=self._card(),
            truth=[folder / "truth", brought],
            audit={**settings, **audit},
        )

    @property
    def _held(self) -> int:
        """Return the number of records of a client, left-out candidates included."""
        return self.records + self.pairs

    def _card(self) -> dict[str, Any]:
        return {
            "name": "A federation",
            "asserted_by": "its owner",
            "classes": self.classes,
            "input_shape": list(self.shape),
            "model": {"name": "mlp", "params": {"widths": [16]}},
            "protocol": {"name": "a-loop-of-its-own"},
            "training": {
                "lr": 0.1,
                "batch_size": self._held,
                "local_steps": self.steps,
                "optimizer": "sgd",
            },
            **self.card,
        }

    def _lists(self, y: Tensor) -> dict[str, Any]:
        """Return the lists of rows: each pair is of one class."""
        clients = {}
        for number, party in enumerate(_PARTIES):
            rows = torch.arange(number * self._held, (number + 1) * self._held)
            pairs: list[tuple[int, int]] = []
            for label in range(self.classes):
                same = rows[y[rows] == label].tolist()
                pairs += zip(same[::2], same[1::2], strict=False)
            pairs = pairs[: self.pairs]
            clients[party] = {
                "records": rows.tolist(),
                "members": [member for member, _ in pairs],
                "non_members": [left_out for _, left_out in pairs],
            }
        lists: dict[str, Any] = {"schema": "fdaudit-records/1", "design": None, "clients": clients}
        start = len(_PARTIES) * self._held
        for name in ("auxiliary", "public", "test"):
            lists[name] = list(range(start, start + self.shared))
            start += self.shared
        return lists

    def _record(self, folder: Path, lists: dict[str, Any], x: Tensor, y: Tensor) -> None:
        """Train for some rounds, and record every message."""
        with seeded_randomness(0):
            hidden, head = nn.Linear(x[0].numel(), 16), nn.Linear(16, self.classes)
        server = nn.Sequential(nn.Flatten(), hidden, nn.ReLU(), head)
        models = {party: copy.deepcopy(server) for party in _PARTIES}
        public = x[lists["public"]]
        of_network = self.kind in _OF_NETWORK
        with Recorder(folder / "record", ["server", *_PARTIES, "world"], truth=folder / "truth") as recorder:
            for number in range(self.rounds):
                recorder.round(number)
                start = _named(server)
                if of_network:
                    recorder.send(
                        "server", _PARTIES, "model_parameters", self.sent(start, "model_parameters")
                    )
                    for model in models.values():
                        model.load_state_dict(server.state_dict())
                for party, model in models.items():
                    own = lists["clients"][party]
                    numbers: list[int] = []
                    for place, row in enumerate(own["records"]):
                        if row not in own["non_members"]:
                            numbers.append(place)
                    numbers = numbers[self.idle :]
                    rows = torch.tensor(own["records"])[numbers]
                    images, labels = x[rows], y[rows]
                    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
                    for _ in range(self.steps):
                        optimizer.zero_grad()
                        nn.functional.cross_entropy(model(images), labels).backward()
                        optimizer.step()
                    message = self._message(model, start, images, labels, public)
                    behind = numbers if self.named or not number else None
                    recorder.send(party, "server", self.kind, self.sent(message, self.kind), records=behind)
                _average(server, list(models.values()))
            if of_network:
                recorder.send("server", "world", "model_parameters", _named(server))

    def _message(
        self, model: nn.Module, start: Parameters, x: Tensor, y: Tensor, public: Tensor
    ) -> dict[str, Tensor]:
        """Return the tensors of a client's message."""
        parameters = _named(model)
        if self.kind == "model_parameters":
            return parameters
        if self.kind == "model_update":
            return {name: parameters[name] - start[name] for name in _NAMES}
        if self.kind == "gradient":
            loss = nn.functional.cross_entropy(model(x), y)
            return dict(zip(_NAMES, torch.autograd.grad(loss, list(model.parameters())), strict=True))
        if self.kind == "class_counts":
            return {"counts": torch.bincount(y, minlength=self.classes)}
        if self.kind == "private_labels":
            return {"values": y}
        if self.kind == "class_prototypes":
            probabilities = model(x).detach().softmax(1)
            means = torch.zeros(self.classes, self.classes)
            for label in y.unique().tolist():
                means[label] = probabilities[y == label].mean(0)
            return {"values": means}
        logits = model(public).detach()
        if self.kind == "hard_labels":
            return {"values": logits.argmax(1)}
        values = logits if self.kind.endswith("logits") else logits.softmax(1)
        if not self.kind.startswith("top_"):
            return {"values": values}
        top = values.topk(self.k, dim=1)
        return {"values": top.values, "classes": top.indices}


def _named(model: nn.Module) -> dict[str, Tensor]:
    """Return copies of a network's parameters, by their names on record."""
    copies = [parameter.detach().clone() for parameter in model.parameters()]
    return dict(zip(_NAMES, copies, strict=True))


@torch.no_grad()
def _average(server: nn.Module, models: list[nn.Module]) -> None:
    """Set the server's parameters to the mean of the clients'."""
    parts = zip(*(model.parameters() for model in models), strict=True)
    for parameter, part in zip(server.parameters(), parts, strict=True):
        parameter.copy_(torch.stack(part).mean(0))
