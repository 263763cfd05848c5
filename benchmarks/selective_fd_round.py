"""What recording costs Selective-FD: a round with every message and a checkpoint on disk, against bare PyTorch.

A is the protocol over the wire: encoded, digested, salted, chained and written messages, the truth kept in the vault,
state saved. B does the same arithmetic in a plain loop that keeps nothing: predictions, their mean over those
that answer, local and distillation steps. Both must end with the same parameters, or this fails. Target: at most 1.2.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

import torch
from _pairs import HEADS, Pairs, compare_both, table
from fdaudit.protocols.selective_fd import SelectiveFD, SelectiveFDConfig
from torch import Tensor, nn
from torch.nn import functional as F

from fdaudit.execution import Execution
from fdaudit.federation import Common, PartyData
from fdaudit.models import Architecture, architecture
from fdaudit.rehearsal import kinds_of, parties_of, setting_of
from fdaudit.rng import child
from fdaudit.simulation import save_checkpoint
from fdaudit.spec import ModelSpec
from fdaudit.trainers import Networks
from fdaudit.training import draw_batches
from fdaudit.transcript import Transcript
from fdaudit.vault import Secrets, Vault
from fdaudit.wire import Wire

SEED, CLIENTS, PUBLIC, ASKED, BATCH, LR = 1, 10, 2000, 256, 64, 0.1
LOCAL, DISTIL = 1, 10
SHAPE, CLASSES = (1, 28, 28), 10
TARGET = 1.2

Models = dict[str, dict[str, Tensor]]


class Recorded:
    """Selective-FD as a run does it, one round a call."""

    def __init__(
        self,
        folder: Path,
        network: Architecture,
        data: dict[str, PartyData],
        public: Tensor,
        execution: Execution,
        rounds: int,
    ) -> None:
        vault = Vault(folder / "vault")
        vault.create(Secrets.draw(SEED))
        secret = vault.secrets.secret
        transcript = Transcript(folder / "transcript", secret=secret)
        wire = Wire(
            transcript,
            parties=parties_of(SelectiveFD, CLIENTS),
            kinds=kinds_of(SelectiveFD),
            device=torch.device(execution.device),
            secret=secret,
        )
        common = Common(networks=Networks(network), execution=execution, public=public)
        config = SelectiveFDConfig(
            rounds=rounds, labels="soft", public_batch=ASKED, warm_up_steps=0, lr=LR, batch_size=BATCH
        )
        self._vault, self._transcript = vault, transcript
        self._protocol = SelectiveFD(config, setting_of(SelectiveFD, common, data, wire, SEED))
        self._rounds = self._protocol.rounds(0)

    def __call__(self) -> None:
        done = next(self._rounds)
        save_checkpoint(self._vault, self._transcript, done, self._protocol.state, utility=0)

    @property
    def models(self) -> Models:
        return {k: c.model for k, c in self._protocol._clients.items()}

    @property
    def accepts(self) -> dict[str, Tensor]:
        """Which public samples each client answers for: both sides select alike."""
        return {k: c.accepts for k, c in self._protocol._clients.items() if c.accepts is not None}


class Bare:
    """The same rounds as anybody would write them who records nothing."""

    def __init__(
        self,
        network: Architecture,
        data: dict[str, PartyData],
        public: Tensor,
        accepts: dict[str, Tensor],
        memory_format: torch.memory_format,
    ) -> None:
        self._data = {k: (d.x.contiguous(memory_format=memory_format), d.y) for k, d in data.items()}
        self._models = {
            k: network.build(child(SEED, "initial")).to(memory_format=memory_format) for k in data
        }
        self._public, self._accepts = public.contiguous(memory_format=memory_format), accepts
        self._round = 0

    def __call__(self) -> None:
        t, total = self._round, torch.zeros(ASKED, CLASSES, dtype=torch.float64)
        asked = torch.randperm(PUBLIC, generator=child(SEED, "selective-fd", "proxy", t))[:ASKED]
        count, x = torch.zeros(ASKED), self._public[asked]
        for k, model in self._models.items():
            with torch.no_grad():
                answered = self._accepts[k][asked]
                total[answered] += model(x)[answered].softmax(1)
                count += answered
        kept = count > 0
        x, targets = x[kept], (total[kept] / count[kept, None]).float()
        for k, model in self._models.items():
            own, labels = self._data[k]
            generator = child(SEED, "selective-fd", "local", t, k)
            optimizer = torch.optim.SGD(model.parameters(), lr=LR)
            for batch in draw_batches(len(labels), BATCH, steps=LOCAL, generator=generator):
                self._step(model, optimizer, own[batch], labels[batch])
            for _ in range(DISTIL):
                self._step(model, optimizer, x, targets)
        self._round += 1

    @staticmethod
    def _step(model: nn.Module, optimizer: torch.optim.Optimizer, x: Tensor, targets: Tensor) -> None:
        optimizer.zero_grad()
        F.cross_entropy(model(x), targets).backward()
        optimizer.step()

    def adopt(self, models: Models, rounds: int) -> None:
        self._round = rounds
        for k, model in self._models.items():
            model.load_state_dict(models[k])

    @property
    def models(self) -> Models:
        return {k: dict(m.named_parameters()) for k, m in self._models.items()}


def measure(execution: Execution, pairs: int) -> tuple[Pairs, Pairs]:
    """Pairs of rounds, after which both sides hold the same models."""
    network = architecture(ModelSpec(name="cnn-5-5"), SHAPE, CLASSES)
    data, public = images()
    same = torch.channels_last if execution.memory_format == "channels_last" else torch.contiguous_format
    with tempfile.TemporaryDirectory() as folder:
        recorded = Recorded(Path(folder), network, data, public, execution, pairs + 5)
        recorded()  # fits the selectors, once a run
        bare = Bare(network, data, public, recorded.accepts, same)
        _same_work(recorded, bare, 1)
        found = compare_both(recorded, bare, pairs=pairs, warm_up=1)
        _same_work(recorded, bare, pairs + 3)
    return found


def images() -> tuple[dict[str, PartyData], Tensor]:
    """Clients of one class each, and public samples of all; a class is noise about an image of its own."""
    centres = torch.rand(CLASSES, *SHAPE, generator=child(SEED, "centres"))

    def drawn(y: Tensor, name: str) -> Tensor:
        noise = torch.randn(len(y), *SHAPE, generator=child(SEED, "noise", name))
        return (centres[y] + 0.1 * noise).clamp(0, 1)

    labels = {f"client/{k}": torch.full((500,), k) for k in range(CLIENTS)}
    data = {k: PartyData(drawn(y, k), y) for k, y in labels.items()}
    return data, drawn(torch.arange(PUBLIC) % CLASSES, "public")


def _same_work(recorded: Recorded, bare: Bare, rounds: int) -> None:
    """One round from the same models, after which both sides must hold the same parameters."""
    bare.adopt(recorded.models, rounds)
    recorded()
    bare()
    for k, model in bare.models.items():
        for name, tensor in model.items():
            torch.testing.assert_close(recorded.models[k][name], tensor.detach(), rtol=1e-3, atol=1e-4)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pairs", type=int, default=15)
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    execution = Execution.resolve(device="cpu", threads=options.threads, convolutions=True, batchnorm=False)
    wall, processor = measure(execution, options.pairs)
    steps = f"{LOCAL} local step of {BATCH} and {DISTIL} of what comes back of {ASKED} samples"
    print(f"Selective-FD round: {CLIENTS} clients, {steps}, cnn-5-5, {options.threads} thread(s)")
    print(table(HEADS, [wall.row("recorded / bare"), processor.row("recorded / bare, processor time")]))
    print(f"target of the first line: at most {TARGET}")


if __name__ == "__main__":
    main()
