"""Cost of recording Selective-FD: a round with every message and a checkpoint on disk, against plain PyTorch.

A is the protocol over the wire: encoded, digested, salted, chained and written messages, the truth kept in the vault,
state saved. B does the same arithmetic in a plain loop that keeps nothing: predictions, their mean over those
that answer, local and distillation steps. Three such loops:

- *bare*, with all images in one tensor, in the memory format that fdaudit chooses (target: at most 1.2);
- *sample by sample*, as the authors' public code has it (github.com/shaojiawei07/Selective-FD,
  `step5_train_model_softclass.py`): images fetched one at a time from a `Dataset` and stacked, the public ones once
  a round for all clients; torch's default memory format; one client after another;
- *loader at every step*: the same, but every step's batch comes through a `DataLoader` that decodes and transforms each
  sample, as code with `torchvision` datasets usually does (target of both: at most 0.75).

Before each of its rounds A has its process keep freed memory, as a run does; before theirs the two last are given what
glibc comes to by itself. The batches are the same on all sides. All must end a round with the same parameters, or this
fails; accuracy after the measured rounds is shown.
"""

from __future__ import annotations

import argparse
import ctypes
import tempfile
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

import torch
from _images import CLASSES, SHAPE, patterned
from _pairs import HEADS, Pairs, compare_both, table
from _recorded import Recorded
from fdaudit.protocols.selective_fd import SelectiveFD, SelectiveFDConfig
from PIL import Image
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset
from torchvision.transforms import ToTensor

from fdaudit.federation.protocol import PartyData
from fdaudit.models import Architecture, architecture
from fdaudit.parallel import malloc
from fdaudit.rng import child
from fdaudit.spec.schema import ModelSpec
from fdaudit.training.execution import Execution
from fdaudit.training.trainer import draw_batches

SEED, CLIENTS, PUBLIC, BATCH, LR = 1, 10, 2000, 64, 0.1
LOCAL, DISTIL = 1, 10
TARGET, TARGET_LOADED = 1.2, 0.75

Models = dict[str, dict[str, Tensor]]


class RecordedModels(Recorded):
    """Selective-FD as a run does it, and what each client holds."""

    @property
    def models(self) -> Models:
        return {k: c.model for k, c in self.protocol._clients.items()}

    @property
    def accepts(self) -> dict[str, Tensor]:
        """Return the public samples that each client answers for; all sides select equally."""
        return {k: c.accepts for k, c in self.protocol._clients.items() if c.accepts is not None}


class Bare:
    """The same rounds in plain PyTorch, without a record."""

    def __init__(
        self,
        network: Architecture,
        data: Mapping[str, PartyData],
        public: Tensor,
        accepts: dict[str, Tensor],
        asked: int,
        layout: torch.memory_format,
    ) -> None:
        self._labels = {k: d.y for k, d in data.items()}
        self._models = {k: network.build(child(SEED, "initial")).to(memory_format=layout) for k in data}
        self._accepts, self._asked, self._round = accepts, asked, 0
        self._images = {k: self._hold(d.x, layout) for k, d in data.items()}
        self._public = self._hold(public, layout)

    def __call__(self) -> None:
        t, total = self._round, torch.zeros(self._asked, CLASSES, dtype=torch.float64)
        asked = torch.randperm(PUBLIC, generator=child(SEED, "selective-fd", "proxy", t))[: self._asked]
        count, x = torch.zeros(self._asked), self._fetch(self._public, asked)
        for k, model in self._models.items():
            with torch.no_grad():
                answered = self._accepts[k][asked]
                total[answered] += model(x)[answered].softmax(1)
                count += answered
        kept = count > 0
        rows, x, targets = asked[kept], x[kept], (total[kept] / count[kept, None]).float()
        for k, model in self._models.items():
            labels = self._labels[k]
            generator = child(SEED, "selective-fd", "local", t, k)
            optimizer = torch.optim.SGD(model.parameters(), lr=LR)
            for batch in draw_batches(len(labels), BATCH, steps=LOCAL, generator=generator):
                self._step(model, optimizer, self._fetch(self._images[k], batch), labels[batch])
            for _ in range(DISTIL):
                self._step(model, optimizer, self._again(x, rows), targets)
        self._round += 1

    def _hold(self, images: Tensor, layout: torch.memory_format) -> object:
        return images.contiguous(memory_format=layout)

    def _fetch(self, images: Tensor, rows: Tensor) -> Tensor:
        return images[rows]

    def _again(self, x: Tensor, rows: Tensor) -> Tensor:
        """The public samples of a further step: the same, which are there already."""
        return x

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


class SampleBySample(Bare):
    """Images are kept one by one, fetched one by one and stacked."""

    def _hold(self, images: Tensor, layout: torch.memory_format) -> list[Tensor]:
        return list(images)

    def _fetch(self, images: list[Tensor], rows: Tensor) -> Tensor:
        return torch.stack([images[i] for i in rows])


class Decoded(Dataset[Tensor]):
    """8-bit images as torchvision's datasets hold them: each is decoded and transformed when it is fetched."""

    def __init__(self, images: Tensor) -> None:
        self._images = (255 * images).round().to(torch.uint8).squeeze(1)
        self._transform = ToTensor()

    def __len__(self) -> int:
        return len(self._images)

    def __getitem__(self, i: int) -> Tensor:
        transformed: Tensor = self._transform(Image.fromarray(self._images[i].numpy()))
        return transformed


class LoaderAtEveryStep(Bare):
    """Every step's batch comes through a `DataLoader`."""

    def _hold(self, images: Tensor, layout: torch.memory_format) -> Decoded:
        return Decoded(images)

    def _fetch(self, images: Decoded, rows: Tensor) -> Tensor:
        batch: Tensor = next(iter(DataLoader(images, batch_sampler=[rows.tolist()])))
        return batch

    def _again(self, x: Tensor, rows: Tensor) -> Tensor:
        return self._fetch(self._public, rows)


def measure(
    other: type[Bare],
    layout: torch.memory_format,
    execution: Execution,
    asked: int,
    pairs: int,
    around: Callable[[], object],
) -> tuple[Pairs, Pairs, tuple[float, float]]:
    """Pairs of rounds, before and after which both sides make the same models; and both sides' accuracy.

    `around` prepares the C library for a round of the other side.
    """
    network = architecture(ModelSpec(name="cnn-5-5"), SHAPE, CLASSES)
    data, public, test = images()
    config = SelectiveFDConfig(
        rounds=pairs + 5, labels="soft", public_batch=asked, warm_up_steps=0, lr=LR, batch_size=BATCH
    )
    with tempfile.TemporaryDirectory() as folder:
        recorded = RecordedModels(
            Path(folder), SelectiveFD, config, network, data, execution, SEED, public=public
        )
        recorded()  # fits the selectors, once a run
        bare = other(network, data, public, recorded.accepts, asked, layout)
        _same_work(recorded, bare, 1)
        wall, processor = compare_both(
            partial(_with_heap, malloc.keep, recorded),
            partial(_with_heap, around, bare),
            pairs=pairs,
            warm_up=1,
        )
        accuracies = _accuracy(network, recorded.models, test), _accuracy(network, bare.models, test)
        _same_work(recorded, bare, pairs + 3)
    return wall, processor, accuracies


def _with_heap(settle: Callable[[], object], one_round: Callable[[], object]) -> None:
    settle()
    one_round()


def as_glibc_does() -> None:
    """The thresholds that glibc's own rule ends at once blocks of any size have been freed, and nothing held."""
    libc = ctypes.CDLL(None)
    libc.mallopt(-3, 32 << 20)  # M_MMAP_THRESHOLD
    libc.mallopt(-1, 64 << 20)  # M_TRIM_THRESHOLD
    libc.malloc_trim(0)


def images() -> tuple[dict[str, PartyData], Tensor, PartyData]:
    """Clients of one class each, public samples and test records of all; in steps of 1/255, which 8 bits hold."""

    def drawn(y: Tensor, name: str) -> Tensor:
        return (255 * patterned(y, 0.3, child(SEED, "noise", name))).round() / 255

    labels = {f"client/{k}": torch.full((500,), k) for k in range(CLIENTS)}
    data = {k: PartyData(drawn(y, k), y) for k, y in labels.items()}
    y = torch.arange(1000) % CLASSES
    return data, drawn(torch.arange(PUBLIC) % CLASSES, "public"), PartyData(drawn(y, "test"), y)


def _same_work(recorded: RecordedModels, bare: Bare, rounds: int) -> None:
    """One round from the same models, after which both sides must hold the same parameters."""
    bare.adopt(recorded.models, rounds)
    recorded()
    bare()
    for k, model in bare.models.items():
        for name, tensor in model.items():
            torch.testing.assert_close(recorded.models[k][name], tensor.detach(), rtol=1e-3, atol=1e-4)


@torch.no_grad()
def _accuracy(network: Architecture, models: Models, test: PartyData) -> float:
    """Return the mean over the clients."""
    module = network.build(child(SEED, "initial"))
    right = [functional_call(module, m, (test.x,)).argmax(1) == test.y for m in models.values()]
    return float(torch.stack(right).float().mean())


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--pairs", type=int, default=15)
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    execution = Execution.resolve(device="cpu", threads=options.threads, convolutions=True)
    same = torch.channels_last if execution.memory_format == "channels_last" else torch.contiguous_format
    print(
        f"Selective-FD round: {CLIENTS} clients, {LOCAL} local step of {BATCH} and {DISTIL} of what comes back,"
    )
    print(f"cnn-5-5, {options.threads} thread(s)")
    rows = []
    default = torch.contiguous_format
    for name, other, layout, asked, target, around in (
        ("bare", Bare, same, 256, TARGET, malloc.keep),
        ("sample by sample", SampleBySample, default, 512, TARGET_LOADED, as_glibc_does),
        ("loader at every step", LoaderAtEveryStep, default, 512, TARGET_LOADED, as_glibc_does),
    ):
        wall, processor, (ours, theirs) = measure(other, layout, execution, asked, options.pairs, around)
        accuracy = f"{ours:.3f} {theirs:.3f}"
        rows.append([*wall.row(f"recorded / {name}"), str(asked), f"{target}", accuracy])
        rows.append([*processor.row(f"recorded / {name}, processor time"), str(asked), "", ""])
    print(table((*HEADS, "samples", "at most", "accuracies"), rows))


if __name__ == "__main__":
    main()
