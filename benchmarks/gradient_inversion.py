"""Speed of many problems together against one at a time: image evaluations a second, as a ratio.

Both sides evaluate the same objective and its gradient in the images, at the same points of the same optimiser.
The fast side is the attack itself. The slow side is the same attack by plain autograd, restart after restart:
`torch.autograd.grad(create_graph=True)` for the gradient, `torch.autograd.grad` with respect to the images for
its mismatch (no parameter gradients are wasted), with torch's own optimiser (Adam, or L-BFGS with
strong Wolfe line search). The two are timed in turn, `--pairs` times. The ratio of each pair counts
evaluations, not iterations.

If breaching is installed (`benchmarks/requirements.txt`), its own attack is a third side, with its configuration
`invertinggradients`: cosine distance and total variation, Adam on the sign, one restart after another.
fdaudit uses its step and its weight of total variation, and both attack the same gradient of an image of three
channels. The benchmark checks that both have one objective, or fails: at one start its value is ours except for the
edge that breaching's total variation adds. It shows the final values from the same starts. Breaching keeps the image
one step after its best one, so it ends slightly above. Targets: 4, 5, 8 and 8 times for 2, 4, 16 and 32 restarts of
the four small networks; 3 times for 4 and 16 of the residual ones. `--only-breaching` shows also how many of the
operations that this processor makes in a product of matrices each side makes.

    python benchmarks/gradient_inversion.py            # torch's default threads on both sides
    python benchmarks/gradient_inversion.py --threads 1
    python benchmarks/gradient_inversion.py --threads 1 --only-breaching --restarts 2 4 16 32
    python benchmarks/gradient_inversion.py --threads 1 --only-breaching --restarts 4 16 --networks resnet8 resnet18
"""

from __future__ import annotations

import argparse
import importlib.util
import statistics
import time
from collections.abc import Callable

import torch
import torch.nn.functional as F
from fdaudit.attacks.gradient_inversion.engine import Matched, match_adam, match_lbfgs, total_variation
from fdaudit.attacks.gradient_inversion.gradients import GradientMap, choose_strategy
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from fdaudit.models import architecture
from fdaudit.parallel import malloc
from fdaudit.spec.schema import ModelSpec

TV, LR = 1e-3, 0.1
SMALL = ("lenet-dlg", "cnn-strided")
"""Networks that are attacked at `SIDES`."""
SIDES = (16, 28)
RESIDUAL = ("resnet8", "resnet18")
"""Networks of 32x32 pixels, in evaluation mode."""
Timed = Callable[[], int]
"""Runs once and returns the image evaluations made."""


class Case:
    """R restarts on one image's gradient at one untrained network, attacked both ways."""

    def __init__(self, network: str, side: int, restarts: int, iterations: int, channels: int = 1) -> None:
        g, self.shape = torch.Generator().manual_seed(0), (channels, side, side)
        self.module = module_of(network, self.shape, g).eval()
        self.parameters = list(self.module.parameters())
        self.iterations, self.restarts = iterations, restarts
        x, y = torch.rand(1, *self.shape, generator=g), torch.tensor([3])
        sent = torch.autograd.grad(F.cross_entropy(self.module(x), y), self.parameters)
        self.sent = [t.detach() for t in sent]
        self.start = torch.rand(restarts, 1, *self.shape, generator=g)
        self.y = y
        tensors = {**dict(self.module.named_parameters()), **dict(self.module.named_buffers())}
        self.simulate = GradientMap(self.module, tensors)
        self.target = torch.cat([t.flatten() for t in self.sent])[None].expand(restarts, -1)
        self.name = f"{network} {side}x{side}"
        self.rule = choose_strategy(self.module, restarts, 1, self.shape)

    # -- Inverting Gradients --------------------------------------------------------------------------------

    def adam_together(self) -> int:
        y = self.y.expand(self.restarts, 1)
        found = match_adam(
            self.simulate, self.target, self.start, y, iterations=self.iterations, lr=LR, tv=TV
        )
        return int(found.evaluations.sum())

    def adam_alone(self) -> int:
        square = sum(t.square().sum() for t in self.sent)
        for start in self.start:
            x = start.clone().requires_grad_()
            optimiser = torch.optim.Adam([x], lr=LR)
            for _ in range(self.iterations):
                gradient = torch.autograd.grad(
                    F.cross_entropy(self.module(x), self.y), self.parameters, create_graph=True
                )
                dot = sum((g * t).sum() for g, t in zip(gradient, self.sent, strict=True))
                norm = sum(g.square().sum() for g in gradient)
                loss = 1 - dot / (norm * square).sqrt() + TV * total_variation(x[None]).sum()
                (g,) = torch.autograd.grad(loss, x)
                x.grad = g.sign()
                optimiser.step()
                with torch.no_grad():
                    x.clamp_(0, 1)
        return self.restarts * self.iterations

    def beside_breaching(self, pairs: int) -> None:
        """Show rates of both, and the final values of both from the same starts."""
        from _with_breaching import Breaching

        def made(restarts: int) -> Breaching:
            return Breaching(self.module, self.sent, self.y, self.shape, restarts, self.iterations)

        theirs, single = made(self.restarts), made(1)

        def ours(start: Tensor) -> Matched:
            y = self.y.expand(len(start), 1)
            return match_adam(
                self.simulate,
                self.target[: len(start)],
                start,
                y,
                iterations=self.iterations,
                lr=theirs.lr,
                tv=theirs.tv,
            )

        def alone() -> int:
            theirs()
            return theirs.evaluations

        ended = []
        for start in self.start[:4]:
            image, values = single(start)
            expected = float(self.distance(start)) + single.variation(start)
            if abs(values[0] - expected) > 5e-4:  # float32 sums over eleven million values
                raise SystemExit(f"breaching begins at {values[0]:.5f} where ours begins at {expected:.5f}")
            ended.append(float(self.distance(image)))
        name = f"beside breaching, {self.name}, {self.restarts} restarts ({self.rule})"
        fast, slow = compare(name, lambda: int(ours(self.start).evaluations.sum()), alone, pairs)
        each, most = self.operations(), peak()
        print(
            f"    {each / 1e6:.0f} MFLOP an evaluation by plain autograd; of {most / 1e9:.0f} GFLOP/s in products of "
            f"matrices: fdaudit {each * fast / most:.0%}, breaching {each * slow / most:.0%}"
        )
        found = ours(self.start[:4]).objective
        print(
            f"    cosine distance from the same {len(found)} starts, median before "
            f"{statistics.median(float(self.distance(s)) for s in self.start[:4]):.3f}, after {self.iterations} "
            f"iterations: fdaudit {found.median():.3f}, breaching {statistics.median(ended):.3f}"
        )

    def operations(self) -> int:
        """Floating-point operations of one evaluation's convolutions and linear layers by plain autograd.

        Seven times those of a forward pass: the derivatives in inputs and weights are two; the second differentiation
        has four, two for each of them.
        """
        with FlopCounterMode(display=False) as counter, torch.no_grad():
            self.module(self.start[0])
        return 7 * int(counter.get_total_flops())

    def distance(self, x: Tensor) -> Tensor:
        """Cosine distance of an image's gradient, (1, c, h, w), from the one sent."""
        gradient = torch.autograd.grad(F.cross_entropy(self.module(x), self.y), self.parameters)
        flat = torch.cat([g.flatten() for g in gradient])
        return 1 - F.cosine_similarity(flat, self.target[0], dim=0)

    # -- DLG ------------------------------------------------------------------------------------------------

    def lbfgs_together(self) -> int:
        y = self.y.expand(self.restarts, 1)
        found = match_lbfgs(
            self.simulate, self.target, self.start, y, evaluations=self.iterations, history=20
        )
        return int(found.evaluations.sum())

    def lbfgs_alone(self) -> int:
        scale, calls = sum(float(t.square().sum()) for t in self.sent), 0
        for start in self.start:
            x = start.clone().requires_grad_()
            optimiser = torch.optim.LBFGS(
                [x],
                max_iter=self.iterations,
                max_eval=self.iterations,
                history_size=20,
                tolerance_grad=0,
                tolerance_change=0,
                line_search_fn="strong_wolfe",
            )

            def closure(x: Tensor = x) -> Tensor:
                nonlocal calls
                calls += 1
                gradient = torch.autograd.grad(
                    F.cross_entropy(self.module(x), self.y), self.parameters, create_graph=True
                )
                loss = sum((g - t).square().sum() for g, t in zip(gradient, self.sent, strict=True)) / scale
                (x.grad,) = torch.autograd.grad(loss, x)
                return loss.detach()

            optimiser.step(closure)
        return calls


def rate(run: Timed) -> float:
    """Return image evaluations a second."""
    begin = time.perf_counter()
    return run() / (time.perf_counter() - begin)


def compare(name: str, together: Timed, alone: Timed, pairs: int) -> tuple[float, float]:
    """Show the ratio of two rates; return both medians, in image evaluations a second."""
    rate(together), rate(alone)  # warm up
    ratios, fast, slow = [], [], []
    for i in range(pairs):
        order = (together, alone) if i % 2 else (alone, together)
        rates = {run: rate(run) for run in order}
        fast.append(rates[together])
        slow.append(rates[alone])
        ratios.append(fast[-1] / slow[-1])
    ratios.sort()
    # The range from the second smallest to the second largest of n ratios covers their median with probability
    # 1 - 2 (n + 1) / 2^n: 98 % for n = 11, 87.5 % for n = 7; smallest to largest 1 - 2^(1-n), 93.75 % for n = 5.
    cut = 1 if pairs >= 7 else 0
    covered = 1 - 2 * (pairs + 1 if cut else 1) / 2**pairs
    print(
        f"{name:58s} {statistics.median(ratios):5.1f}x  [{ratios[cut]:.1f}, {ratios[-1 - cut]:.1f}] "
        f"({covered:.1%}, {pairs} pairs)  {statistics.median(fast):6.0f} against {statistics.median(slow):5.0f} "
        "image evaluations/s",
        flush=True,
    )
    return statistics.median(fast), statistics.median(slow)


def module_of(network: str, shape: tuple[int, int, int], g: torch.Generator) -> nn.Module:
    """An untrained network: one of fdaudit's, or torchvision's ResNet-18."""
    if network == "resnet18":
        from torchvision.models import resnet18

        torch.manual_seed(0)
        return resnet18(num_classes=10)
    params: dict[str, object] = {"channels": [16, 32], "kernel": 5} if network == "cnn-strided" else {}
    return architecture(ModelSpec(name=network, params=params), input_shape=shape, classes=10).build(g)


def peak(side: int = 1024) -> float:
    """Operations a second in a product of square matrices, the best of ten."""
    a = torch.rand(side, side)
    seconds = []
    for _ in range(10):
        begin = time.perf_counter()
        torch.mm(a, a)
        seconds.append(time.perf_counter() - begin)
    return 2 * side**3 / min(seconds)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--pairs", type=int, default=9, help="interleaved pairs of timings")
    parser.add_argument("--threads", type=int, default=None, help="torch threads (default: torch's own)")
    parser.add_argument(
        "--iterations", type=int, default=30, help="evaluations of each restart in one timing"
    )
    parser.add_argument(
        "--restarts",
        type=int,
        nargs="+",
        default=[32],
        help="that Inverting Gradients makes (DLG: a quarter)",
    )
    parser.add_argument("--networks", nargs="+", choices=[*SMALL, *RESIDUAL], default=SMALL)
    parser.add_argument("--only-breaching", action="store_true", help="leave out the plain sides")
    args = parser.parse_args()
    if args.threads:
        torch.set_num_threads(args.threads)
    malloc.keep()  # as every run does
    print(f"torch {torch.__version__}, {torch.get_num_threads()} threads, one image a restart")
    breaching = importlib.util.find_spec("breaching") is not None
    if not breaching:
        print("breaching: not installed")
    cases = [(network, side) for network in args.networks for side in (SIDES if network in SMALL else (32,))]
    for network, side in cases:
        for restarts in args.restarts:
            if not args.only_breaching and network in SMALL:
                case = Case(network, side, restarts, args.iterations)
                name = f"Inverting Gradients, {case.name}, {case.restarts} restarts ({case.rule})"
                compare(name, case.adam_together, case.adam_alone, args.pairs)
                case = Case(network, side, max(1, restarts // 4), args.iterations)
                name = f"DLG, {case.name}, {case.restarts} restarts ({case.rule})"
                compare(name, case.lbfgs_together, case.lbfgs_alone, args.pairs)
            if breaching:
                Case(network, side, restarts, args.iterations, channels=3).beside_breaching(args.pairs)


if __name__ == "__main__":
    main()
