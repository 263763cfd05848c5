"""Inversion of one step in training mode: reconstruction of CIFAR-10 images from networks with BatchNorm.

Three sides attack the same uploads of single images with known labels and the same number of iterations: Inverting
Gradients with the batch statistics that an update of a whole model carries, the same without them, and breaching's
`invertinggradients` (`benchmarks/requirements.txt`), which has no use for statistics of one step. Breaching gets no
buffers, so its network is in training as well. An update by Adam reaches it as the gradient that it would be of SGD.
A fourth side, `alone`, is L-BFGS on the statistics alone from the mean auxiliary image, or from the image that was sent
with noise. `--distances` shows how far gradients near that image are from the one sent.

PyTorch refuses to train torchvision's ResNet-18 on one image of 32x32: its last BatchNorm then sees one value in a
channel. `--side 33` repeats the last row and column, which is the smallest image that it trains on. `resnet18-cifar` is
that network with a first layer of 3x3 and stride 1, and without its first pooling.

    python benchmarks/inversion_in_training.py --data DIR/cifar10_jpeg.npz --network strided --iterations 1000
    python benchmarks/inversion_in_training.py --data DIR/cifar10_jpeg.npz --network resnet18 --side 33
    python benchmarks/inversion_in_training.py --data DIR/cifar10_jpeg.npz --network strided --optimizer adam
    python benchmarks/inversion_in_training.py --data DIR/cifar10_jpeg.npz --network resnet18-cifar --distances
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from fdaudit.attacks.gradient_inversion.engine import match_adam
from fdaudit.attacks.gradient_inversion.gradients import GradientMap, Simulator, flatten
from fdaudit.attacks.gradient_inversion.statistics import BatchStatistics, read_statistics
from fdaudit.attacks.gradient_inversion.updates import SMOOTHING, ClientSteps, UpdateMap, gradient_of_update
from torch import Tensor, nn
from torchvision.models import resnet18

from fdaudit.models import architecture
from fdaudit.models.network import seeded
from fdaudit.parallel import malloc
from fdaudit.spec.schema import ModelSpec

RATES = {"sgd": 0.1, "adam": 1e-3}
"""The clients' learning rates."""


NETWORKS = ("strided", "resnet8", "resnet18", "resnet18-cifar")


def strided(side: int) -> nn.Module:
    """Return three strided 5x5 convolutions with BatchNorm and sigmoid, and a linear layer."""
    layers: list[nn.Module] = []
    for inner, stride in ((3, 2), (12, 2), (12, 1)):
        layers += [nn.Conv2d(inner, 12, 5, stride, 2), nn.BatchNorm2d(12), nn.Sigmoid()]
    convolutions = nn.Sequential(*layers, nn.Flatten())
    with torch.no_grad():
        width = convolutions(torch.zeros(2, 3, side, side)).shape[1]
    return nn.Sequential(convolutions, nn.Linear(width, 10))


def network(name: str, side: int) -> nn.Module:
    """Return an untrained network in training."""
    if name == "strided":
        return seeded(0, lambda: strided(side)).train()
    if name == "resnet8":
        spec = ModelSpec(name="resnet8", params={"norm": "batch"})
        built = architecture(spec, input_shape=(3, side, side), classes=10)
        return built.build(torch.Generator().manual_seed(0)).train()
    module = seeded(0, lambda: resnet18(num_classes=10))
    if name == "resnet18-cifar":
        module.conv1 = seeded(1, lambda: nn.Conv2d(3, 64, 3, padding=1, bias=False))
        module.maxpool = nn.Identity()
    return module.train()


def state_of(module: nn.Module) -> dict[str, Tensor]:
    """Return copies of floating-point parameters and buffers."""
    return {name: t.detach().clone() for name, t in module.state_dict().items() if t.is_floating_point()}


class Case:
    """Uploads of single images after one step, and the three attacks on them."""

    def __init__(self, args: argparse.Namespace) -> None:
        archive = np.load(args.data)
        images = torch.from_numpy(archive["test_images"][: args.images]).permute(0, 3, 1, 2).contiguous()
        grown = args.side - images.shape[-1]
        self.x = F.pad(images.float() / 255, (0, grown, 0, grown), mode="replicate")[:, None]
        self.y = torch.from_numpy(archive["test_labels"][: args.images].astype(np.int64)).view(-1, 1)
        known = torch.from_numpy(archive["train_images"][:2000]).permute(0, 3, 1, 2).float() / 255
        self.mean = F.pad(known.mean(0, keepdim=True), (0, grown, 0, grown), mode="replicate")
        self.args, self.module = args, network(args.network, args.side)
        self.start = state_of(self.module)
        self.training = ClientSteps(lr=RATES[args.optimizer], batches=((0,),), optimizer=args.optimizer)
        self.changes = [self._trained(x, y) for x, y in zip(self.x, self.y, strict=True)]
        gradients = [gradient_of_update(change, self.start, self.training) for change in self.changes]
        self.gradients = gradients

    def _trained(self, x: Tensor, y: Tensor) -> dict[str, Tensor]:
        """Return what one step of a client adds to the model."""
        self.module.load_state_dict(self.start, strict=False)
        kind = torch.optim.SGD if self.args.optimizer == "sgd" else torch.optim.Adam
        optimizer = kind(self.module.parameters(), lr=self.training.lr)
        optimizer.zero_grad()
        F.cross_entropy(self.module(x), y).backward()
        optimizer.step()
        after = state_of(self.module)
        self.module.load_state_dict(self.start, strict=False)
        return {name: after[name] - tensor for name, tensor in self.start.items()}

    def ours(self, with_statistics: bool) -> Tensor:
        """Return the images that fdaudit finds."""
        args, simulate = self.args, self._simulator()
        sent = self.gradients if args.optimizer == "sgd" else self.changes
        target = torch.stack([flatten(upload, simulate.names) for upload in sent])  # type: ignore[attr-defined]
        guesses = []
        for k in range(len(self.x)):
            noise = torch.rand(1, *self.x.shape[1:], generator=torch.Generator().manual_seed(k))
            shown = read_statistics(self.module, self.start, self.changes[k]) if with_statistics else {}
            penalty = BatchStatistics(self.module, self.start, shown) if shown else None
            found = match_adam(
                simulate,
                target[k : k + 1],
                noise,
                self.y[k : k + 1],
                iterations=args.iterations,
                lr=args.lr,
                tv=args.tv,
                penalty=penalty,
            )
            guesses.append(found.images[0])
        return torch.stack(guesses)

    def alone(self) -> Tensor:
        """Return the images that L-BFGS on the statistics of the first layers finds."""
        guesses = []
        for k, x in enumerate(self.x):
            shown = read_statistics(self.module, self.start, self.changes[k])
            layers = list(shown.items())[: self.args.layers]
            distance = BatchStatistics(self.module, self.start, dict(layers))
            begin = self.mean
            if self.args.noise is not None:
                begin = x + self.args.noise * torch.randn(x.shape, generator=torch.Generator().manual_seed(1))
            image = begin[None].clone().requires_grad_()
            search = torch.optim.LBFGS(
                [image],
                max_iter=self.args.iterations,
                max_eval=self.args.iterations,
                history_size=50,
                tolerance_grad=0,
                tolerance_change=0,
                line_search_fn="strong_wolfe",
            )

            def closure(
                image: Tensor = image,
                search: torch.optim.Optimizer = search,
                distance: BatchStatistics = distance,
            ) -> Tensor:
                search.zero_grad()
                outside = image - image.detach().clamp(0, 1)
                value = distance(image).sum() + outside.square().mean()
                value.backward()  # type: ignore[no-untyped-call]
                return value

            search.step(closure)  # type: ignore[arg-type]
            guesses.append(image.detach()[0])
        return torch.stack(guesses)

    def distances(self) -> None:
        """Print the PSNR of images near the first one, and the cosine distances of their gradients, by block."""
        names = [name for name, _ in self.module.named_parameters()]
        blocks: dict[str, list[int]] = {}
        for i, name in enumerate(names):
            blocks.setdefault(".".join(name.split(".")[:2]), []).append(i)
        x, noise = self.x[0], torch.randn(self.x[0].shape, generator=torch.Generator().manual_seed(1))
        near = {f"noise of {s}": x + s * noise for s in (0.0, 0.001, 0.01, 0.03, 0.1)}
        near |= {f"{s:.0%} of the way to the mean": x + s * (self.mean - x) for s in (0.1, 0.2, 0.5, 1.0)}
        near["another image"] = self.x[-1]
        sent = self._gradient(x)
        print("image,psnr," + ",".join(blocks))
        for name, image in near.items():
            gradient, row = self._gradient(image), []
            for block in blocks.values():
                a, b = (torch.cat([g[i].flatten() for i in block]) for g in (gradient, sent))
                row.append(f"{1 - F.cosine_similarity(a, b, dim=0):.3f}")
            psnr = -10 * (image - x).square().mean().log10()
            print(f"{name},{psnr:.1f}," + ",".join(row), flush=True)

    def _gradient(self, x: Tensor) -> tuple[Tensor, ...]:
        """Return the gradient of an image with the first one's label."""
        self.module.load_state_dict(self.start, strict=False)
        return torch.autograd.grad(F.cross_entropy(self.module(x), self.y[0]), list(self.module.parameters()))

    def _simulator(self) -> Simulator:
        if self.args.optimizer == "sgd":
            return GradientMap(self.module, self.start)
        return UpdateMap(self.module, self.start, self.training, smoothing=SMOOTHING)

    def theirs(self) -> Tensor:
        """Return the images that breaching finds."""
        from _with_breaching import Breaching

        names = [name for name, _ in self.module.named_parameters()]
        guesses = []
        for k, gradient in enumerate(self.gradients):
            torch.manual_seed(k)
            shape = self.x.shape[2:]
            attack = Breaching(
                self.module, [gradient[n] for n in names], self.y[k], shape, 1, self.args.iterations
            )
            guesses.append(attack()[0].detach().clamp(0, 1))
        return torch.stack(guesses)

    def report(self, side: str, attack: Callable[[], Tensor]) -> None:
        """Print a side's PSNR in dB and its seconds as a line of CSV."""
        begin = time.perf_counter()
        guesses = attack()
        seconds = time.perf_counter() - begin
        scores = self._psnr(guesses)
        prior = statistics.median(self._psnr(self.mean.expand_as(self.x)))
        args = self.args
        row = [args.network, args.side, args.optimizer, side, args.iterations, len(scores)]
        row += [
            f"{statistics.median(scores):.1f}",
            f"{min(scores):.1f}",
            f"{max(scores):.1f}",
            f"{prior:.1f}",
        ]
        print(",".join(map(str, [*row, f"{seconds:.0f}"])), flush=True)

    def _psnr(self, guesses: Tensor) -> list[float]:
        squares = (guesses.clamp(0, 1) - self.x).square().flatten(1).mean(1)
        return (-10 * squares.log10()).tolist()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--data", type=Path, required=True, help="cifar10_jpeg.npz, in the layout of MedMNIST"
    )
    parser.add_argument("--network", choices=NETWORKS, default="strided")
    parser.add_argument("--side", type=int, default=32, help="pixels; more than 32 repeat the last ones")
    parser.add_argument("--optimizer", choices=tuple(RATES), default="sgd")
    parser.add_argument("--images", type=int, default=8)
    parser.add_argument("--iterations", type=int, default=200)
    parser.add_argument("--tv", type=float, default=1e-3, help="fdaudit's weight of total variation")
    parser.add_argument("--lr", type=float, default=0.1, help="fdaudit's step")
    parser.add_argument(
        "--layers", type=int, help="BatchNorms that `alone` matches, from the first; default: all"
    )
    parser.add_argument("--noise", type=float, help="start `alone` from the sent image with this noise")
    parser.add_argument(
        "--distances", action="store_true", help="show distances of gradients, and attack nothing"
    )
    parser.add_argument("--sides", nargs="+", default=["statistics", "none", "breaching"])
    args = parser.parse_args()
    torch.set_num_threads(1)
    malloc.keep()  # as every run does
    case = Case(args)
    if args.distances:
        case.distances()
        return
    sides: dict[str, Callable[[], Tensor]] = {
        "statistics": lambda: case.ours(True),
        "none": lambda: case.ours(False),
        "breaching": case.theirs,
        "alone": case.alone,
    }
    print("network,side,optimizer,attack,iterations,images,psnr_median,psnr_min,psnr_max,psnr_prior,seconds")
    for name in args.sides:
        case.report(name, sides[name])


if __name__ == "__main__":
    main()
