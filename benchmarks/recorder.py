"""Cost of recording another system's federation: rounds, import, and very many messages.

A is a FedAvg round in plain PyTorch whose messages go through `fdaudit/recording/recorder.py`, made durable at the end.
Both parties compute with the arrays that the recorder returns. B is the same loop without the recorder.
Both must end with the same parameters bit for bit, or the benchmark fails. 20 clients train for one epoch on their
share of scikit-learn's digits. Targets: a round at most 1.10, the import at most 0.2 s.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import _many_messages
import torch
from _many_messages import FEW, MANY
from _pairs import HEADS, compare_both, table
from numpy.typing import NDArray
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.nn import functional as F

from fdaudit.recording import recorder
from fdaudit.recording.recorder import Recorder

CLIENTS, BATCH, LR, SEED = 20, 16, 0.1, 1
TARGET, IMPORT_TARGET = 1.10, 0.2


def small_cnn() -> nn.Module:
    """Return a CNN of 9,098 parameters for images of 28x28."""
    return nn.Sequential(
        nn.Conv2d(1, 8, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(8, 16, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(784, 10),
    )


def mlp() -> nn.Module:
    """Return an MLP of 159,010 parameters for images of 28x28."""
    return nn.Sequential(nn.Flatten(), nn.Linear(784, 200), nn.ReLU(), nn.Linear(200, 10))


class Copies:
    """Records nothing. It hands out new arrays, as every recorder must so that nobody changes what is on record."""

    def round(self, t: int) -> None:
        """Do nothing."""

    def send(
        self, sender: str, receivers: object, kind: str, tensors: dict[str, Tensor]
    ) -> dict[str, NDArray]:
        """Return copies."""
        return {name: value.numpy().copy() for name, value in tensors.items()}


class Federation:
    """FedAvg in plain PyTorch; one round a call."""

    def __init__(self, build: Callable[[], nn.Module], record: Recorder | Copies | None) -> None:
        torch.manual_seed(SEED)
        self._model, self._record, self._round = build(), record, 0
        x, y = load_digits(return_X_y=True)
        images = torch.from_numpy(x).float().view(-1, 1, 8, 8) / 16
        images, labels = F.interpolate(images, size=(28, 28), mode="bilinear"), torch.from_numpy(y)
        self._data = [(images[k::CLIENTS], labels[k::CLIENTS]) for k in range(CLIENTS)]
        self._clients = [f"client/{k}" for k in range(CLIENTS)]
        self.server = {n: v.clone() for n, v in self._model.state_dict().items()}

    def __call__(self) -> None:
        if self._record is not None:
            self._record.round(self._round)
        received = self._send("server", self._clients, "model_parameters", self.server)
        total = sum(len(y) for _, y in self._data)
        updates = []
        for party, (x, y) in zip(self._clients, self._data, strict=True):
            update = self._send(party, "server", "model_update", self._trained(received, x, y))
            updates.append((len(y) / total, update))
        for weight, update in updates:
            for name, value in self.server.items():
                value += weight * update[name]
        self._round += 1

    def _trained(self, start: dict[str, Tensor], x: Tensor, y: Tensor) -> dict[str, Tensor]:
        self._model.load_state_dict(start)
        optimizer = torch.optim.SGD(self._model.parameters(), lr=LR)
        for begin in range(0, len(y), BATCH):
            optimizer.zero_grad()
            F.cross_entropy(self._model(x[begin : begin + BATCH]), y[begin : begin + BATCH]).backward()
            optimizer.step()
        return {n: v - start[n] for n, v in self._model.state_dict().items()}

    def _send(
        self, sender: str, receivers: str | list[str], kind: str, tensors: dict[str, Tensor]
    ) -> dict[str, Tensor]:
        if self._record is None:
            return tensors
        sent = self._record.send(sender, receivers, kind, tensors)
        return {name: torch.from_numpy(array) for name, array in sent.items()}


def rounds(name: str, build: Callable[[], nn.Module], pairs: int) -> list[list[str]]:
    """Return the rows of a network: by the wall clock, and in processor time."""
    with tempfile.TemporaryDirectory() as folder:
        parties = ["server", *(f"client/{k}" for k in range(CLIENTS))]
        with Recorder(Path(folder) / "record", parties) as record:
            one, bare = Federation(build, record), Federation(build, None)
            wall, processor = compare_both(one, bare, pairs=pairs)
    for key, value in bare.server.items():
        if not torch.equal(one.server[key], value):
            raise SystemExit(f"{name}: {key} differs between the recorded and the bare loop")
    least, _ = compare_both(Federation(build, Copies()), Federation(build, None), pairs=pairs)
    sent = (CLIENTS + 1) * sum(value.nbytes for value in bare.server.values()) / 1e6
    more = statistics.median(a - b for a, b in zip(wall.a, wall.b, strict=True)) * 1e3
    print(f"{name}: {sent:.1f} MB a round, {more / sent:.1f} ms more for each MB")
    return [
        wall.row(f"{name}: recorded / bare"),
        processor.row(f"{name}: the same, processor time"),
        least.row(f"{name}: copies alone / bare"),
    ]


def imports(times: int) -> list[list[str]]:
    """Return rows of seconds of whole interpreters, in turns."""
    path = f"import sys; sys.path.insert(0, {str(Path(recorder.__file__).parent)!r}); import recorder"
    codes = {"bare Python": "", "import numpy": "import numpy", "import recorder": path}
    found: dict[str, list[float]] = {name: [] for name in codes}
    for number in range(times + 1):
        for name, code in codes.items():
            start = time.perf_counter()
            subprocess.run([sys.executable, "-c", code], check=True)
            if number:  # the first time files come from the disk
                found[name].append(time.perf_counter() - start)
    least = statistics.median(found["bare Python"])
    return [
        [name, f"{statistics.median(took):.3f}", f"{statistics.median(took) - least:.3f}"]
        for name, took in found.items()
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pairs", type=int, default=15)
    parser.add_argument("--times", type=int, default=10, help="interpreters of each kind")
    options = parser.parse_args()
    torch.set_num_threads(1)
    print(f"FedAvg round: {CLIENTS} clients x one epoch of digits in batches of {BATCH}, one thread")
    rows = rounds("small CNN", small_cnn, options.pairs) + rounds("MLP", mlp, options.pairs)
    print(table(HEADS, rows))
    print(f"target by the wall clock: at most {TARGET}\n")
    print(table((f"{options.times} times each", "median, s", "above bare, s"), imports(options.times)))
    print(f"target of import recorder: at most {IMPORT_TARGET} s above bare\n")
    done = subprocess.run(
        [sys.executable, _many_messages.__file__], check=True, stdout=subprocess.PIPE, text=True
    )
    rate, few, many = (float(figure) for figure in done.stdout.split())
    row = [f"{MANY:,}", f"{rate:.0f}", f"{few / 1024:.1f}", f"{many / 1024:.1f}"]
    print(table(("small messages", "messages/s", f"MiB at {FEW:,}", f"MiB at {MANY:,}"), [row]))


if __name__ == "__main__":
    main()
