"""Gradient inversion's own double differentiation beside PyTorch's, as a ratio, at the sizes that audits run.

One timing is a short run of Inverting Gradients: forward, backward and the derivative in the images, with Adam's steps.
Both sides make the same steps at the same points, or this fails. A is `torch.func.vmap`, or plain autograd one problem
after another: the faster of the two in a trial. B is the attack's own passes, with all problems in one batch. The
attack's own passes must be at least 1.3 times as fast for some network at each number of problems.

Problems are victims times restarts: 2 (`quick`), 4 (`standard`) and 16 (`full`) with two victims.

    python benchmarks/second_order.py --threads 1
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from functools import partial

import torch
from _pairs import HEADS, compare, table
from fdaudit.attacks.gradient_inversion.engine import match_adam
from fdaudit.attacks.gradient_inversion.gradients import GradientMap, Strategy
from torch import Tensor

from fdaudit.models import architecture
from fdaudit.parallel import malloc
from fdaudit.spec.schema import ModelSpec

NETWORKS = (
    ("cnn-strided", {"channels": [16, 32], "kernel": 3}, (1, 8, 8)),
    ("cnn-5-5", {}, (1, 28, 28)),
    ("lenet-dlg", {}, (3, 32, 32)),
    ("mlp", {"widths": [128]}, (1, 8, 8)),
    ("resnet8", {"norm": "batch"}, (3, 32, 32)),
    ("resnet8", {"norm": "group"}, (3, 32, 32)),
)
"""Name, parameters and image shape: the quickstart's network, others that specs of the examples name, and residual ones
with BatchNorm, in training, and GroupNorm.
"""
PROBLEMS, TIMED = (2, 4, 16), 0.15
"""`TIMED` is the least seconds of one timing."""


class Case:
    """R problems of one network, B images each."""

    def __init__(
        self, name: str, params: dict[str, object], shape: tuple[int, int, int], R: int, B: int
    ) -> None:
        g = torch.Generator().manual_seed(0)
        built = architecture(ModelSpec(name=name, params=params), input_shape=shape, classes=10)
        self.module = built.build(g).train()
        self.parameters = dict(self.module.named_parameters())
        self.x, self.y = torch.rand(R, B, *shape, generator=g), torch.randint(10, (R, B), generator=g)
        sent = GradientMap(self.module, self.parameters, "loop")
        self.target = sent(torch.rand(R, B, *shape, generator=g), self.y).detach()

    def side(self, strategy: Strategy) -> Callable[[int], Tensor]:
        """Return the attack by one strategy, as a function of its iterations."""
        simulate = GradientMap(self.module, self.parameters, strategy)

        def run(iterations: int) -> Tensor:
            found = match_adam(simulate, self.target, self.x, self.y, iterations=iterations, lr=0.1, tv=1e-3)
            return found.images

        return run


def seconds(run: Callable[[int], Tensor], iterations: int) -> float:
    begin = time.perf_counter()
    run(iterations)
    return time.perf_counter() - begin


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--pairs", type=int, default=7)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--images", type=int, nargs="*", default=[1, 8])
    parser.add_argument("--problems", type=int, nargs="*", default=PROBLEMS)
    parser.add_argument("--networks", nargs="*", default=sorted({name for name, _, _ in NETWORKS}))
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    malloc.keep()  # as every run does
    rows = []
    for name, params, shape in NETWORKS:
        if name not in options.networks:
            continue
        label = " ".join([name, *map(str, params.values())]) if "norm" in params else name
        for B in options.images:
            for R in options.problems:
                case = Case(name, params, shape, R, B)
                folded, loop, vmapped = (case.side(s) for s in ("folded", "loop", "vmap"))
                for side in (loop, vmapped):
                    torch.testing.assert_close(folded(1), side(1), rtol=0.05, atol=0.05)
                iterations = max(2, round(TIMED / (seconds(folded, 5) / 5)))
                plain = min((loop, vmapped), key=lambda side: min(seconds(side, 3) for _ in range(3)))
                sides = (partial(side, iterations) for side in (plain, folded))
                found = compare(*sides, pairs=options.pairs, warm_up=1)
                rows.append(
                    found.row(f"{label} {shape}, {R} x {B}: {'loop' if plain is loop else 'vmap'} / folded")
                )
    print(f"{options.threads} thread(s)")
    print(table(HEADS, rows))


if __name__ == "__main__":
    main()
