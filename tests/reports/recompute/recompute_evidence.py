"""What a run directory holds, read anew: by JSON, YAML, CSV, safetensors and PNG readers and scikit-learn's digits.

No reader of fdaudit's is used. Resamples are drawn again from the working seed as `docs/randomness.md` defines them:
SHA-256 of the JSON list of the seed and the draw's name. Orders of candidates are drawn again from the vault's secret.
"""

from __future__ import annotations

import csv
import hashlib
import hmac
import json
import re
from collections.abc import Callable
from functools import cache, cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
import yaml
from numpy.typing import NDArray
from PIL import Image
from safetensors.torch import load, load_file
from sklearn.datasets import load_digits

from .recompute_statistics import frechet

Array = NDArray[Any]


@cache
def _digits() -> tuple[Array, Array]:
    found = load_digits()
    return found.images / 16, found.target


def _lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text("utf-8").splitlines()]


@cache
def _json(path: Path) -> Any:
    return json.loads(path.read_text("utf-8"))


@cache
def _tensors(path: Path) -> dict[str, torch.Tensor]:
    return load_file(path)


@cache
def _picture(path: Path) -> Array:
    return np.asarray(Image.open(path), dtype=float) / 255


class Coins(NamedTuple):
    """Candidates in the order in which they were scored: who was trained on (n,), the number of each coin (n,)."""

    member: Array
    coin: Array


class Stream:
    """Blocks of SHAKE-256 of a key, which is HMAC-SHA-256 of the draw's name, and of the block's number."""

    def __init__(self, secret: bytes, *name: str | int) -> None:
        text = json.dumps(name, separators=(",", ":")).encode()
        self._key, self._blocks = hmac.new(secret, text, hashlib.sha256).digest(), 0

    def words(self, n: int) -> Array:
        block = hashlib.shake_256(self._key + self._blocks.to_bytes(8, "big")).digest(8 * n)
        self._blocks += 1
        return np.array(
            [int.from_bytes(block[8 * i : 8 * i + 8], "little") for i in range(n)], dtype=np.uint64
        )

    def order(self, n: int) -> Array:
        return np.argsort(self.words(n))


class Evidence:
    """One finished run on digits without a limit, its files as they lie; each is read once, so they must not change."""

    def __init__(self, run: Path, encode: Callable[[torch.Tensor], torch.Tensor]) -> None:
        self.run, self._encode = run, encode
        self._apart: dict[bytes, float] = {}

    @cached_property
    def spec(self) -> Any:
        return yaml.safe_load((self.run / "spec.yaml").read_text("utf-8"))

    @cached_property
    def messages(self) -> list[dict[str, Any]]:
        return _lines(self.run / "transcript" / "messages.jsonl")

    @cached_property
    def utility(self) -> list[dict[str, str]]:
        with (self.run / "utility.csv").open(newline="") as file:
            return list(csv.DictReader(file))

    def json(self, path: str) -> Any:
        return _json(self.run / path)

    def folder(self, cell: str) -> Path:
        return self.run / "attacks" / cell.replace("/", "-").replace("+", "_")

    def cell_file(self, cell: str) -> Any:
        return _json(self.folder(cell).with_suffix(".json"))

    # -- draws ----------------------------------------------------------------------------------------------------

    @cached_property
    def secrets(self) -> tuple[bytes, int]:
        stated = self.json("vault/secrets.json")
        return bytes.fromhex(stated["secret"]), stated["seed"]

    def seed(self, *name: str) -> int:
        secret, seed = self.secrets
        working = int(Stream(secret, "working-seed", seed).words(1)[0].byteswap()) >> 1
        digest = hashlib.sha256(json.dumps([working, *name], separators=(",", ":")).encode()).digest()
        return int.from_bytes(digest[:8], "big")

    def draws(self, *name: str) -> Stream:
        secret, seed = self.secrets
        return Stream(secret, "truth", seed, *name)

    # -- records --------------------------------------------------------------------------------------------------

    @cached_property
    def splits(self) -> dict[str, torch.Tensor]:
        return _tensors(self.run / "vault" / "splits.safetensors")

    @cached_property
    def clients(self) -> list[str]:
        return [f"client/{k}" for k in range(self.spec["clients"])]

    @cached_property
    def labels(self) -> Array:
        """Of all digits, and of the canaries of kind `noise` behind them."""
        labels, asked = _digits()[1], self.spec["canaries"]
        for number in asked["clients"] if asked else ():
            draws = self.draws("canaries", f"client/{number}")
            draws.words(64 * asked["count"])  # the images
            labels = np.concatenate([labels, (draws.words(asked["count"]) % 10).astype(int)])
        return labels

    def images(self, rows: Array) -> Array:
        return np.asarray(_digits()[0][rows])

    def rows(self, name: str) -> Array:
        return np.asarray(self.splits[name].numpy())

    def shares(self, name: str) -> Array:
        counts = np.bincount(self.labels[self.rows(name)], minlength=10)
        return np.asarray(counts / counts.sum())

    def behind(self, client: str, messages: list[int]) -> Array:
        """The digits (n,) that went into some messages, each once, in the order of first use."""
        local: dict[int, None] = {}
        for seq in map(str, sorted(messages)):
            for batches in map(_tensors, sorted((self.run / "vault" / "truth").glob("*.safetensors"))):
                local |= dict.fromkeys(batches[seq].tolist() if seq in batches else ())
        # An altered report may name a message of another client, who has more records.
        return self.rows(f"{client}/train").take(list(local), mode="clip")

    def coins(self, client: str, part: str) -> Coins:
        """The coins of a client's matched pairs (`candidates`) or of its single `canaries`."""
        if part == "canaries":
            rows = self.splits[f"{client}/canaries"]
            member, coins = torch.isin(rows, self.splits[f"{client}/train"]), len(rows)
            draws = self.draws("canary-challenge", client)
        else:
            coins = len(self.splits[f"{client}/members"])
            member, draws = torch.arange(2 * coins) < coins, self.draws("challenge", client)
        order = draws.order(len(member))
        number = np.tile(draws.order(coins), len(member) // coins)[order]
        return Coins(member.numpy()[order], number)

    def scores(self, cell: str, part: str) -> dict[str, Array]:
        """Scores (n,) by client."""
        outcome = json.loads(self.folder(cell).with_suffix(".json").read_bytes())
        text = json.dumps(outcome, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
        name = f"{hashlib.sha256(text.encode()).hexdigest()}.safetensors"
        path = self.run / "vault" / "scores" / self.folder(cell).name / name
        held = _tensors(path) if path.is_file() else {}
        return {k.removeprefix(f"{part}/"): v.numpy() for k, v in held.items() if k.startswith(f"{part}/")}

    def asked(self, cell: str) -> int:
        """Samples in a cell's questions to its oracle."""
        asked = [m for m in _lines(self.folder(cell) / "queries.jsonl") if m["kind"] == "oracle_query"]
        return sum(m["tensors"]["samples"]["shape"][0] for m in asked)

    def logged(self, cell: str) -> int:
        """Messages in a cell's log of questions and answers."""
        return len(_lines(self.folder(cell) / "queries.jsonl"))

    # -- models ---------------------------------------------------------------------------------------------------

    def predicted(self, parameters: dict[str, torch.Tensor]) -> Array:
        """Classes (n,) of the test records by a perceptron with one hidden layer."""
        named = {k: v.double().numpy() for k, v in parameters.items()}
        x = self.images(self.rows("test")).reshape(-1, 64)
        hidden = (x @ named["extractor.1.weight"].T + named["extractor.1.bias"]).clip(0)
        return np.asarray((hidden @ named["head.0.weight"].T + named["head.0.bias"]).argmax(1))

    def kept_model(self, party: str) -> dict[str, torch.Tensor]:
        return _tensors(self.run / "vault" / "models" / f"{party.replace('/', '-')}.safetensors")

    def sent_model(self, round_: int) -> dict[str, torch.Tensor] | None:
        """What the server sent its clients first in a round: its model after the round before."""
        for m in self.messages:
            sent = (m["kind"], m["sender"], m["round"]) == ("model_parameters", "server", round_)
            if sent and set(m["receivers"]) & set(self.clients):
                at, data = m["payload"], (self.run / "transcript" / m["payload"]["file"]).read_bytes()
                earlier = (e["payload"] for e in self.messages[: m["seq"]] if e["payload"])
                begin = sum(p["length"] for p in earlier if p["file"] == at["file"])
                return load(data[begin : begin + at["length"]])
        return None

    def apart(self, guess: Array, truth: Array) -> float:
        """The Fréchet distance of two sets of images (n, h, w) in the features of the report's encoder."""
        key = guess.tobytes() + truth.tobytes()
        if key not in self._apart:
            tensors = (torch.from_numpy(x).float()[:, None] for x in (guess, truth))
            features = [np.asarray(self._encode(x).double().numpy()) for x in tensors]
            self._apart[key] = frechet(*features)
        return self._apart[key]

    # -- pictures -------------------------------------------------------------------------------------------------

    def picture(self, path: str) -> Array:
        return _picture(self.run / path)

    @staticmethod
    def place(path: str) -> int:
        """The place of a picture's true image in its batch, from the picture's name."""
        found = re.search(r"-(\d{3})-\w+\.png$", path)
        assert found, path
        return int(found[1])
