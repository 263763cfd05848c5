"""Networks, images and scores that the gradient-inversion tests share."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from scipy.optimize import linear_sum_assignment
from torch import Tensor, nn

from fdaudit.adversary.knowledge import Knowledge
from fdaudit.adversary.view import View
from fdaudit.tasks import task_of
from fdaudit.transcript.messages import Message
from fdaudit.types import AttackTask, TensorInfo


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Small operations lose far more to threads that wait for each other than they gain."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def _conv_out(size: int, kernel: int, stride: int, padding: int) -> int:
    return (size + 2 * padding - kernel) // stride + 1


def init_uniform(module: nn.Module, generator: torch.Generator, bound: float | None = None) -> nn.Module:
    """Uniform weights in ±bound; without a bound, PyTorch's default ±1/√fan-in for every layer."""
    for layer in module.modules():
        if isinstance(layer, nn.Conv2d | nn.Linear):
            b = layer.weight[0].numel() ** -0.5 if bound is None else bound
            nn.init.uniform_(layer.weight, -b, b, generator=generator)
            nn.init.uniform_(layer.bias, -b, b, generator=generator)
    return module


def dlg_lenet(hw: int, generator: torch.Generator, c: int = 1, classes: int = 10) -> nn.Module:
    """The network of DLG's code: three 5x5 sigmoid convolutions of 12 channels; weights uniform(-0.5, 0.5)."""
    size = hw
    for stride in (2, 2, 1):
        size = _conv_out(size, 5, stride, 2)
    return init_uniform(
        nn.Sequential(
            nn.Conv2d(c, 12, 5, 2, 2),
            nn.Sigmoid(),
            nn.Conv2d(12, 12, 5, 2, 2),
            nn.Sigmoid(),
            nn.Conv2d(12, 12, 5, 1, 2),
            nn.Sigmoid(),
            nn.Flatten(),
            nn.Linear(12 * size * size, classes),
        ),
        generator,
        0.5,
    )


def strided_cnn(hw: int, generator: torch.Generator, c: int = 1, classes: int = 10) -> nn.Module:
    """ReLU convolutions of 16 and 32 channels, 5x5, that shrink by stride 1 then 2, never by pooling."""
    layers: list[nn.Module] = []
    size = hw
    for width, stride in ((16, 1), (32, 2)):
        layers += [nn.Conv2d(c, width, 5, stride, 2), nn.ReLU()]
        c, size = width, _conv_out(size, 5, stride, 2)
    return init_uniform(nn.Sequential(*layers, nn.Flatten(), nn.Linear(c * size * size, classes)), generator)


def mlp(hw: int, generator: torch.Generator, c: int = 1, classes: int = 10, width: int = 128) -> nn.Module:
    return init_uniform(
        nn.Sequential(nn.Flatten(), nn.Linear(c * hw * hw, width), nn.ReLU(), nn.Linear(width, classes)),
        generator,
    )


def pooling_cnn(hw: int, generator: torch.Generator, c: int = 1, classes: int = 10) -> nn.Module:
    """The max-pooling CNN of FedKD and its successors."""
    size = ((hw - 4) // 2 - 4) // 2
    return init_uniform(
        nn.Sequential(
            nn.Conv2d(c, 10, 5),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(10, 20, 5),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Flatten(),
            nn.Linear(20 * size * size, 50),
            nn.ReLU(),
            nn.Linear(50, classes),
        ),
        generator,
    )


def digits() -> tuple[Tensor, Tensor]:
    """scikit-learn's digits, (1797, 1, 16, 16) in [0, 1], zero-padded from 8x8."""
    from sklearn.datasets import load_digits

    data = load_digits()
    x = torch.tensor(data.images, dtype=torch.float32)[:, None] / 16
    return F.pad(x, (4, 4, 4, 4)), torch.tensor(data.target, dtype=torch.int64)


def mnist(n: int) -> tuple[Tensor, Tensor]:
    """The first n test images of MNIST, (n, 1, 28, 28) in [0, 1], from FDAUDIT_DATA."""
    raw = Path(os.environ["FDAUDIT_DATA"]) / "MNIST" / "raw"
    x = np.fromfile(raw / "t10k-images-idx3-ubyte", np.uint8, count=n * 784, offset=16).reshape(n, 1, 28, 28)
    y = np.fromfile(raw / "t10k-labels-idx1-ubyte", np.uint8, count=n, offset=8)
    return torch.from_numpy(x).float() / 255, torch.from_numpy(y).long()


def tensors(module: nn.Module) -> dict[str, Tensor]:
    return {k: v.detach().clone() for k, v in module.named_parameters()}


def true_gradient(
    module: nn.Module, x: Tensor, y: Tensor, loss: Callable[[Tensor, Tensor], Tensor] = F.cross_entropy
) -> dict[str, Tensor]:
    """What a client sends: gradients of the mean loss, by plain autograd on the module itself."""
    named = dict(module.named_parameters())
    gradients = torch.autograd.grad(loss(module(x), y), list(named.values()))
    return {k: g.detach() for k, g in zip(named, gradients, strict=True)}


def psnr(a: Tensor, b: Tensor) -> Tensor:
    """Peak signal-to-noise ratio in dB of images (n, c, h, w) in [0, 1]."""
    return -10 * (a - b).square().flatten(1).mean(1).clamp_min(1e-12).log10()


def matched_psnr(guess: Tensor, truth: Tensor) -> Tensor:
    """PSNR of each true image under the one-to-one matching with the least squared error."""
    cost = torch.cdist(truth.flatten(1).double(), guess.flatten(1).double()).square()
    rows, columns = linear_sum_assignment(cost.numpy())
    return psnr(guess[columns], truth[rows])


def prior_baseline(truth: Tensor, y: Tensor, aux_x: Tensor, aux_y: Tensor) -> float:
    """Mean matched PSNR of the best guess from auxiliary data alone.

    The best of: the mean auxiliary image of each true class, the grand mean, auxiliary images of the classes.
    """
    means = torch.stack([aux_x[aux_y == c].mean(0) for c in y.tolist()])
    grand = aux_x.mean(0, keepdim=True).expand_as(truth)
    drawn = torch.cat([aux_x[aux_y == c][i : i + 1] for i, c in enumerate(y.tolist())])
    return max(float(matched_psnr(g, truth).mean()) for g in (means, grand, drawn))


@dataclass(frozen=True, kw_only=True, eq=False)
class MemoryView(View):
    """A view whose payloads lie in memory."""

    payloads: Mapping[int, dict[str, Tensor]] = field(default_factory=dict)

    def tensors(self, message: Message) -> dict[str, Tensor]:
        return self.payloads[message.seq]


@dataclass(frozen=True)
class MemoryArchitecture:
    """A network of known shape; weights are never read off it."""

    make: Any
    input_shape: tuple[int, int, int] = (1, 16, 16)
    classes: int = 10

    @property
    def described(self) -> dict[str, Any]:
        return {"name": self.make.__name__, "input_shape": list(self.input_shape)}

    name = "network in memory"
    source = ""

    def random_inputs(self, n: int, generator: torch.Generator) -> Tensor:
        return torch.rand(n, *self.input_shape, generator=generator)

    def build(self, generator: torch.Generator) -> nn.Module:
        return self.make(self.input_shape[1], generator)

    @property
    def parameter_shapes(self) -> dict[str, tuple[int, ...]]:
        return {n: tuple(p.shape) for n, p in self.build(torch.Generator()).named_parameters()}

    @property
    def tensor_shapes(self) -> dict[str, tuple[int, ...]]:
        return {n: tuple(t.shape) for n, t in self.build(torch.Generator()).state_dict().items()}


def view_of_messages(
    sent: Sequence[tuple[str, tuple[str, ...], str, dict[str, Tensor]]], *, keep: bool = True, **public: Any
) -> MemoryView:
    """Return the server's view of messages: sender, receivers, kind, tensors; `keep=False` leaves digests only."""
    messages = tuple(
        Message(
            seq=seq,
            round=0,
            step=0,
            sender=sender,
            receivers=receivers,
            kind=kind,
            tensors={n: TensorInfo("F32", tuple(t.shape)) for n, t in values.items()},
            payload={"file": "in memory"} if keep else None,
        )
        for seq, (sender, receivers, kind, values) in enumerate(sent)
    )
    clients = sorted(
        {name for m in messages for name in (m.sender, *m.receivers) if name.startswith("client/")}
    )
    return MemoryView(
        name="server",
        members=("server",),
        parties=("server", *clients),
        hyperparameters=public,
        messages=messages,
        directory=Path("nowhere"),
        payloads={seq: values for seq, (*_, values) in enumerate(sent)},
    )


def world(
    make: Any,
    kind: str,
    counts: tuple[int, ...],
    *,
    keep: bool = True,
    noise: float = 0.0,
    records: tuple[Tensor, Tensor] | None = None,
    loss: Callable[[Tensor, Tensor], Tensor] = F.cross_entropy,
    **public: Any,
) -> tuple[MemoryView, Knowledge, AttackTask, list[tuple[Tensor, Tensor]]]:
    """One round in which client k sends what one full-batch step on `counts[k]` records gave: digits, or those given.

    The adversary knows the digits from the thousandth on, or the given records that no client holds.
    """
    x, y = digits() if records is None else records
    g = torch.Generator().manual_seed(5)
    module = make(16, g)
    start = tensors(module)
    clients = tuple(f"client/{k}" for k in range(len(counts)))
    hyper = {
        "lr": 0.5,
        "batch_size": max(counts),
        "local_steps": 1,
        "momentum": 0.0,
        "upload": kind,
        **public,
    }
    sent: list[tuple[str, tuple[str, ...], str, dict[str, Tensor]]] = []

    data, first = [], 0
    for name, n in zip(clients, counts, strict=True):
        data.append((x[first : first + n], y[first : first + n]))
        first += n
        sent.append((name, ("server",), "sample_count", {"n": torch.tensor(n)}))
    sent.append(("server", clients, "model_parameters", start))
    for name, (xk, yk) in zip(clients, data, strict=True):
        gradient = {
            k: v + noise * torch.randn(v.shape, generator=g)
            for k, v in true_gradient(module, xk, yk, loss).items()
        }
        if kind == "gradient":
            upload = gradient
        else:
            base = start if kind == "model_parameters" else {k: torch.zeros_like(v) for k, v in start.items()}
            upload = {k: base[k] - hyper["lr"] * v for k, v in gradient.items()}
        sent.append((name, ("server",), kind, upload))
    view = view_of_messages(sent, keep=keep, **hyper)
    known = 1000 if records is None else first
    knowledge = Knowledge(
        architecture=MemoryArchitecture(make), auxiliary=(x[known:], y[known:]), task=task_of(x, y)
    )
    return view, knowledge, AttackTask(targets=clients), data
