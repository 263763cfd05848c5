"""A small federation that knows nothing of fdaudit: two clients that train and send one kind of message."""

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

import fdaudit
from fdaudit.planning.brought import ClientRecords, array_digests, commit
from fdaudit.recording.recorder import Recorder

PARTIES = ("client/0", "client/1")
NAMES = ("extractor.1.weight", "extractor.1.bias", "head.0.weight", "head.0.bias")
_SALT = bytes(range(32))

Sent = Callable[[dict[str, Tensor], str], dict[str, Tensor]]


def unchanged(tensors: dict[str, Tensor], kind: str) -> dict[str, Tensor]:
    return tensors


@dataclass(frozen=True, kw_only=True)
class Foreign:
    """A federation.

    Attributes:
        kind: of the clients' messages.
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
        sent: what becomes of tensors before they are sent.
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
    sent: Sent = unchanged
    card: dict[str, Any] = field(default_factory=dict)

    def run(self, folder: Path, **audit: Any) -> fdaudit.Run:
        """Train, record and import; return the run."""
        folder.mkdir(parents=True, exist_ok=True)
        generator = torch.Generator().manual_seed(1)
        each = self.records + self.pairs
        total = 2 * each + 3 * self.shared
        y = torch.arange(total) % self.classes
        x = 0.7 * torch.rand(total, *self.shape, generator=generator)
        x = x + 0.3 * y[:, None, None, None] / max(1, self.classes - 1)
        lists = self._lists(each, y, x)
        held = {"x": x.movedim(1, 3).numpy() if self.shape[0] > 1 else x[:, 0].numpy(), "y": y.numpy()}
        if self.coins:
            rows = {
                party: ClientRecords(**{name: torch.tensor(n) for name, n in own.items()})
                for party, own in lists["clients"].items()
            }
            made = commit(_SALT, rows, array_digests(held))
            lists["design"] = {"kind": "matched-pairs", "salt": _SALT.hex(), "commitment": made}
        (folder / "records").mkdir()
        (folder / "records" / "records.json").write_text(json.dumps(lists))
        np.savez(folder / "records" / "records.npz", **held)
        self._record(folder, lists, x, y)
        value = {
            "name": "A federation",
            "asserted_by": "its owner",
            "classes": self.classes,
            "input_shape": list(self.shape),
            "model": {"name": "mlp", "params": {"widths": [16]}},
            "protocol": {"name": "a-loop-of-its-own"},
            "training": {"lr": 0.1, "batch_size": each, "local_steps": self.steps, "optimizer": "sgd"},
            **self.card,
        }
        settings = {
            "adversaries": ["server"], "attacks": [], "device": "cpu", "threads": 1, "profile": "quick", **audit,
        }  # fmt: skip
        truth = [folder / "truth", folder / "records"]
        return fdaudit.import_record(
            folder / "record", folder / "run", card=value, truth=truth, audit=settings
        )

    def _lists(self, each: int, y: Tensor, x: Tensor) -> dict[str, Any]:
        """Return the lists of rows: each pair is of one class."""
        clients = {}
        for number, party in enumerate(PARTIES):
            rows = torch.arange(number * each, (number + 1) * each)
            pairs: list[list[int]] = []
            for label in range(self.classes):
                same = rows[y[rows] == label].tolist()
                pairs += [list(pair) for pair in zip(same[::2], same[1::2], strict=False)]
            pairs = pairs[: self.pairs]
            clients[party] = {
                "records": rows.tolist(),
                "members": [pair[0] for pair in pairs],
                "non_members": [pair[1] for pair in pairs],
            }
        start = 2 * each
        lists: dict[str, Any] = {"schema": "fdaudit-records/1", "design": None, "clients": clients}
        for place, name in enumerate(("auxiliary", "public", "test")):
            lists[name] = list(range(start + place * self.shared, start + (place + 1) * self.shared))
        return lists

    def _record(self, folder: Path, lists: dict[str, Any], x: Tensor, y: Tensor) -> None:
        torch.manual_seed(0)
        net = nn.Sequential(nn.Flatten(), nn.Linear(x[0].numel(), 16), nn.ReLU(), nn.Linear(16, self.classes))
        models = {party: copy.deepcopy(net) for party in PARTIES}
        public = x[lists["public"]]
        with Recorder(folder / "record", ["server", *PARTIES, "world"], truth=folder / "truth") as recorder:
            for number in range(self.rounds):
                recorder.round(number)
                shared = dict(zip(NAMES, (p.detach().clone() for p in net.parameters()), strict=True))
                if self.kind in ("model_update", "model_parameters", "gradient"):
                    recorder.send(
                        "server", PARTIES, "model_parameters", self.sent(shared, "model_parameters")
                    )
                    for model in models.values():
                        model.load_state_dict(net.state_dict())
                for party, model in models.items():
                    own = lists["clients"][party]
                    kept = [
                        place for place, row in enumerate(own["records"]) if row not in own["non_members"]
                    ]
                    kept = kept[self.idle :]
                    rows = torch.tensor(own["records"])[kept]
                    self._train(model, x[rows], y[rows])
                    message = self._message(model, shared, x[rows], y[rows], public)
                    told = kept if self.named or not number else None
                    recorder.send(party, "server", self.kind, self.sent(message, self.kind), records=told)
                with torch.no_grad():
                    for place, parameter in enumerate(net.parameters()):
                        parameter.copy_(
                            torch.stack([list(m.parameters())[place] for m in models.values()]).mean(0)
                        )
            final = dict(zip(NAMES, (p.detach().clone() for p in net.parameters()), strict=True))
            if self.kind in ("model_update", "model_parameters", "gradient"):
                recorder.send("server", "world", "model_parameters", final)

    def _train(self, model: nn.Module, x: Tensor, y: Tensor) -> None:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(self.steps):
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(x), y).backward()
            optimizer.step()

    def _message(
        self, model: nn.Module, shared: dict[str, Tensor], x: Tensor, y: Tensor, public: Tensor
    ) -> dict[str, Tensor]:
        """Return the tensors of a client's message."""
        named = dict(zip(NAMES, (p.detach().clone() for p in model.parameters()), strict=True))
        if self.kind == "model_parameters":
            return named
        if self.kind == "model_update":
            return {name: named[name] - shared[name] for name in NAMES}
        if self.kind == "gradient":
            loss = nn.functional.cross_entropy(model(x), y)
            return dict(zip(NAMES, torch.autograd.grad(loss, list(model.parameters())), strict=True))
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
