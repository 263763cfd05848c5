"""Records that crafted models give away: images of one batch that are recovered above 40 dB, with and without.

A client sends the gradient of a batch of 32 images at the model it received: the honest one, an imprint, trap weights,
or a last layer that fishes for one class. All readings are those of the attack `analytic`, on the same images and the
same `mlp`. If breaching is installed (`benchmarks/requirements.txt`), its imprint (Fowl et al. 2022) is read by its own
attacker on the same images: a block with as many bins as the `mlp`'s first layer has neurons, before that `mlp`. It
takes images that are normalised, as its bins assume.

`cnn-strided` starts with no fully connected layer. There Inverting Gradients inverts the honest batch and the fished
records, with as many evaluations of an image. Both are judged on the records of the fished class (the first with at
least two in the batch).

The last rows are a sum of three clients' gradients, as secure aggregation shows it: all at the honest model, and all at
the models of `model-inconsistency`, which are for the first client an imprint and for others a silent first layer.

    python benchmarks/crafted_models.py --data DIR      # a folder with MNIST, as torchvision stores it
"""

from __future__ import annotations

import argparse
import importlib.util
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from fdaudit.attacks.gradient_inversion.analytic import between, candidates, imprinted
from fdaudit.attacks.gradient_inversion.fished import fished
from fdaudit.attacks.gradient_inversion.inverting import InvertingGradientsConfig, invert_gradients
from fdaudit.deviations.class_fishing import ClassFishing, ClassFishingConfig
from fdaudit.deviations.imprint import Imprint, ImprintConfig
from fdaudit.deviations.model_inconsistency import ModelInconsistency, ModelInconsistencyConfig
from fdaudit.deviations.trap_weights import TrapWeights, TrapWeightsConfig
from scipy.optimize import linear_sum_assignment
from torch import Tensor, nn

from fdaudit.adversary.knowledge import Knowledge
from fdaudit.data.named import read_torchvision
from fdaudit.models import Architecture, architecture
from fdaudit.spec.schema import ModelSpec
from fdaudit.transcript.wire import Outgoing

BATCH, AUXILIARY, CLIENTS = 32, 1000, 3
WIDTHS = [256, 64]
EXACT = 40.0
"""PSNR in dB above which an image counts as recovered."""

Gradient = dict[str, Tensor]


def received(deviation: Any, network: Architecture, client: int = 0) -> nn.Module:
    """Return the network that a client is sent in round 0, under a deviation or None."""
    module = network.build(torch.Generator().manual_seed(0))
    model = {name: p.detach().clone() for name, p in module.named_parameters()}
    if deviation is not None:
        receivers = tuple(f"client/{k}" for k in range(CLIENTS))
        draft = Outgoing(
            round=0, step=0, sender="server", receivers=receivers, kind="model_parameters", tensors=model
        )
        sent = deviation.sends(draft, torch.Generator().manual_seed(1))
        (mine,) = (one for one in sent if f"client/{client}" in one.receivers)
        module.load_state_dict(dict(mine.tensors), strict=False)
    return module


def gradient_of(module: nn.Module, x: Tensor, y: Tensor) -> Gradient:
    """Return the gradient of mean cross-entropy, by parameter."""
    names = [name for name, _ in module.named_parameters()]
    loss = F.cross_entropy(module(x), y)
    return dict(zip(names, torch.autograd.grad(loss, list(module.parameters())), strict=True))


def quality(images: Tensor, x: Tensor) -> Tensor:
    """Return the PSNR (n,) in dB of the images assigned to records x (n, ...), one each; -inf without one."""
    error = torch.cdist(x.flatten(1).double(), images.flatten(1).double()).square() / x[0].numel()
    rows, columns = linear_sum_assignment(error.clamp_min(1e-10).log())
    psnr = torch.full((len(x),), -torch.inf, dtype=torch.float64)
    psnr[rows] = -10 * error[rows, columns].clamp_min(1e-10).log10()
    return psnr


def read(model: Mapping[str, Tensor], gradient: Gradient, x: Tensor) -> Tensor:
    """Return the PSNR (n,) of records x that `analytic` reads off the gradient of their batch."""
    weight, bias = list(model)[:2]
    dW, db = gradient[weight], gradient[bias]
    if imprinted(model[weight]):
        dW, db = between(dW, db, model[bias])
    return quality(candidates(dW, db).inputs[: len(x)].clamp(0, 1), x)


def inverted(
    module: nn.Module, start: Mapping[str, Tensor], gradient: Gradient, y: Tensor, iterations: int
) -> Tensor:
    """Return the images (n, c, h, w) that Inverting Gradients finds for a gradient; labels are known."""
    matched = invert_gradients(
        module,
        start,
        [gradient],
        y[None],
        shape=(1, 28, 28),
        config=InvertingGradientsConfig(restarts=1, iterations=iterations),
        generator=torch.Generator().manual_seed(0),
    )
    return matched.images[0].clamp(0, 1)


class Batch:
    """One client's images, the server's own, and what each model gives away of them."""

    def __init__(self, x: Tensor, y: Tensor, seed: int, iterations: int) -> None:
        order = torch.randperm(len(y), generator=torch.Generator().manual_seed(seed))
        own, order = order[:AUXILIARY], order[AUXILIARY:]
        self.clients = [(x[part], y[part]) for part in order[: CLIENTS * BATCH].split(BATCH)]
        self.x, self.y = self.clients[0]
        self.auxiliary = x[own], y[own]
        self.iterations = iterations
        counts = torch.bincount(self.y, minlength=10)
        self.target = int((counts >= 2).nonzero()[0])
        self.mlp = architecture(ModelSpec(name="mlp", params={"widths": WIDTHS}), (1, 28, 28), 10)
        self.cnn = architecture(ModelSpec(name="cnn-strided"), (1, 28, 28), 10)

    def knowledge(self, network: Architecture) -> Knowledge:
        return Knowledge(architecture=network, auxiliary=self.auxiliary, classes=10)

    def rows(self) -> dict[str, Tensor]:
        """Return by row the PSNR in dB of each image."""
        knows = self.knowledge(self.mlp)
        fishing = ClassFishing(ClassFishingConfig(target=self.target), knows)
        crafted = {
            "honest model": None,
            "imprint": Imprint(ImprintConfig(), knows),
            "trap weights": TrapWeights(TrapWeightsConfig(), knows),
        }
        rows = {name: self._read(deviation) for name, deviation in crafted.items()}
        if importlib.util.find_spec("breaching"):
            from _with_breaching import imprint

            images = imprint(self.mlp.build(torch.Generator().manual_seed(0)), self.x, self.y, WIDTHS[0])
            rows["imprint by breaching"] = quality(images, self.x)
        of_class = self.y == self.target
        rows["honest model, records of one class"] = self._read(None)[of_class]
        rows["fished for that class"] = self._read(fishing)[of_class]
        rows |= self._on_convolutions(of_class)
        rows["secure sum, honest model"] = self._of_sum(None)
        inconsistency = ModelInconsistency(ModelInconsistencyConfig(), knows)
        rows["secure sum, inconsistent models"] = self._of_sum(inconsistency)
        return rows

    def _read(self, deviation: Any) -> Tensor:
        module = received(deviation, self.mlp)
        return read(dict(module.named_parameters()), gradient_of(module, self.x, self.y), self.x)

    def _of_sum(self, deviation: Any) -> Tensor:
        """Return the PSNR (n,) of the first client's records, read off the sum of all clients' gradients."""
        modules = [received(deviation, self.mlp, k) for k in range(CLIENTS)]
        pairs = zip(modules, self.clients, strict=True)
        gradients = [gradient_of(module, x, y) for module, (x, y) in pairs]
        total = {name: sum(g[name] for g in gradients) for name in gradients[0]}
        return read(dict(modules[0].named_parameters()), total, self.x)

    def _on_convolutions(self, of_class: Tensor) -> dict[str, Tensor]:
        honest = received(None, self.cnn)
        start = {name: p.detach() for name, p in honest.named_parameters()}
        images = inverted(honest, start, gradient_of(honest, self.x, self.y), self.y, self.iterations)
        crafted = received(
            ClassFishing(ClassFishingConfig(target=self.target), self.knowledge(self.cnn)), self.cnn
        )
        sent = {name: p.detach() for name, p in crafted.named_parameters()}
        part = fished(sent, gradient_of(crafted, self.x, self.y), len(self.y))
        if part is None or part.count != int(of_class.sum()):
            raise RuntimeError("the fished records were not told apart")
        same_work = self.iterations * len(self.y) // part.count
        alone = inverted(crafted, part.start, dict(part.gradient), self.y[of_class], same_work)
        return {
            "inverting gradients on cnn-strided, honest model": quality(images, self.x)[of_class],
            "inverting gradients on cnn-strided, fished": quality(alone, self.x[of_class]),
        }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--data",
        type=Path,
        default=os.environ.get("FDAUDIT_DATA"),
        help="folder with MNIST; default: FDAUDIT_DATA",
    )
    parser.add_argument("--batches", type=int, default=5)
    parser.add_argument("--iterations", type=int, default=300, help="of Inverting Gradients on the batch")
    parser.add_argument("--threads", type=int, default=1)
    args = parser.parse_args()
    if args.data is None:
        print("needs MNIST: name its folder with --data, or in FDAUDIT_DATA")
        return
    torch.set_num_threads(args.threads)
    raw = read_torchvision("mnist", args.data, download=False)
    x, y = raw.x.float() / 255 if raw.x.dtype == torch.uint8 else raw.x, raw.y
    tables = [Batch(x, y, seed, args.iterations).rows() for seed in range(args.batches)]
    print(f"{'images recovered above 40 dB':48} {'in all':>10}  median dB  by batch")
    for name in tables[0]:
        psnr = torch.cat([table[name] for table in tables])
        each = " ".join(str(int((table[name] > EXACT).sum())) for table in tables)
        print(
            f"{name:48} {int((psnr > EXACT).sum()):>3} of {len(psnr):<3}  {float(psnr.median()):>9.1f}  {each}"
        )


if __name__ == "__main__":
    main()
