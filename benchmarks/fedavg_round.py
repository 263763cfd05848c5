"""What recording costs: a FedAvg round with every message on disk and a checkpoint, against a bare loop.

A is `protocols/fedavg.py` over the wire: encoded, digested, salted, chained and written messages, the truth kept
in the vault, files made durable, state saved, `round.json` replaced. B is a plain PyTorch loop over the same
batches that keeps nothing. Both must end with the same parameters, or this fails. Target: at most 1.15.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

import torch
from _pairs import HEADS, Pairs, compare_both, table
from fdaudit.protocols.fedavg import FedAvg, FedAvgConfig
from torch import Tensor
from torch.nn import functional as F

from fdaudit.execution import Execution
from fdaudit.federation import Common, PartyData
from fdaudit.models import Architecture, architecture
from fdaudit.rehearsal import kinds_of, parties_of
from fdaudit.rng import child
from fdaudit.simulation import save_checkpoint
from fdaudit.spec import ModelSpec
from fdaudit.trainers import Networks
from fdaudit.training import draw_batches
from fdaudit.transcript import Transcript
from fdaudit.vault import Secrets, Vault
from fdaudit.wire import Wire

SEED, CLIENTS, STEPS, BATCH, LR = 1, 20, 11, 64, 0.05
SHAPE, CLASSES = (1, 28, 28), 10
TARGET = 1.15

Data = dict[str, PartyData]


class Recorded:
    """FedAvg as a run does it, one round a call."""

    def __init__(
        self, folder: Path, network: Architecture, data: Data, execution: Execution, rounds: int
    ) -> None:
        vault = Vault(folder / "vault")
        vault.create(Secrets.draw(SEED))
        secret = vault.secrets.secret
        transcript = Transcript(folder / "transcript", secret=secret)
        wire = Wire(
            transcript,
            parties=parties_of(FedAvg, CLIENTS),
            kinds=kinds_of(FedAvg),
            device=torch.device(execution.device),
            secret=secret,
        )
        nothing = torch.zeros(0, *network.input_shape)
        setting = Common(networks=Networks(network), execution=execution, public=nothing).setting(
            data, wire, SEED
        )
        config = FedAvgConfig(rounds=rounds, local_steps=STEPS, batch_size=BATCH, lr=LR)
        self._vault, self._transcript = vault, transcript
        self._protocol = FedAvg(config, setting)
        self._rounds = self._protocol.rounds(0)

    def __call__(self) -> None:
        done = next(self._rounds)
        save_checkpoint(self._vault, self._transcript, done, self._protocol.state, utility=0)

    @property
    def parameters(self) -> dict[str, Tensor]:
        return self._protocol.released()


class Bare:
    """The same rounds as anybody would write them who records nothing."""

    def __init__(self, network: Architecture, data: Data, memory_format: torch.memory_format) -> None:
        self._model = network.build(child(SEED, "initial-parameters")).to(memory_format=memory_format)
        self._data = [(k, d.x.contiguous(memory_format=memory_format), d.y) for k, d in data.items()]
        self._server = [p.detach().clone() for p in self._model.parameters()]
        self._round = 0

    def __call__(self) -> None:
        weights = list(self._model.parameters())
        total = sum(len(y) for _, _, y in self._data)
        change = [torch.zeros_like(p) for p in self._server]
        for k, x, y in self._data:
            with torch.no_grad():
                for w, s in zip(weights, self._server, strict=True):
                    w.copy_(s)
            optimizer = torch.optim.SGD(weights, lr=LR)
            generator = child(SEED, "fedavg", "batches", self._round, k)
            for batch in draw_batches(len(y), BATCH, steps=STEPS, generator=generator):
                optimizer.zero_grad()
                F.cross_entropy(self._model(x[batch]), y[batch]).backward()
                optimizer.step()
            with torch.no_grad():
                for c, w, s in zip(change, weights, self._server, strict=True):
                    c += (len(y) / total) * (w - s)
        for s, c in zip(self._server, change, strict=True):
            s += c
        self._round += 1

    def adopt(self, parameters: dict[str, Tensor]) -> None:
        for s, (n, _) in zip(self._server, self._model.named_parameters(), strict=True):
            s.copy_(parameters[n])

    @property
    def parameters(self) -> dict[str, Tensor]:
        names = [n for n, _ in self._model.named_parameters()]
        return dict(zip(names, self._server, strict=True))


def measure(memory_format: torch.memory_format, execution: Execution, pairs: int) -> tuple[Pairs, Pairs]:
    """Pairs of rounds, after which both sides hold the same model."""
    network = architecture(ModelSpec(name="cnn-5-5"), SHAPE, CLASSES)
    data = {}
    for k in range(CLIENTS):
        generator = child(SEED, "images", k)
        x = torch.rand(STEPS * BATCH, *SHAPE, generator=generator)
        data[f"client/{k}"] = PartyData(x, torch.randint(CLASSES, (len(x),), generator=generator))
    with tempfile.TemporaryDirectory() as folder:
        # One round more than is run: the last one also publishes the model.
        recorded = Recorded(Path(folder), network, data, execution, pairs + 4)
        bare = Bare(network, data, memory_format)
        _same_work(recorded, bare)
        found = compare_both(recorded, bare, pairs=pairs, warm_up=1)
        _same_work(recorded, bare)
    return found


def _same_work(recorded: Recorded, bare: Bare) -> None:
    """One round from the same model, after which both sides must hold the same parameters.

    Over many rounds rounding alone drives them apart, since they add the same numbers in another order.
    """
    bare.adopt(recorded.parameters)
    recorded()
    bare()
    for name, tensor in bare.parameters.items():
        torch.testing.assert_close(recorded.parameters[name], tensor, rtol=1e-3, atol=1e-5)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pairs", type=int, default=15)
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    execution = Execution.resolve(device="cpu", threads=options.threads, convolutions=True, batchnorm=False)
    same = torch.channels_last if execution.memory_format == "channels_last" else torch.contiguous_format
    wall, processor = measure(same, execution, options.pairs)
    default, _ = measure(torch.contiguous_format, execution, options.pairs)
    rows = [
        wall.row("recorded / bare"),
        processor.row("recorded / bare, processor time"),
        default.row("recorded / bare in default memory format"),
    ]
    print(f"FedAvg round: {CLIENTS} clients x {STEPS} steps of {BATCH}, cnn-5-5, {options.threads} thread(s)")
    print(table(HEADS, rows))
    print(f"target of the first line: at most {TARGET}")


if __name__ == "__main__":
    main()
