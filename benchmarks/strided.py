"""Input gradients of strided convolutions: phase by phase beside the library's strided convolutions, as a ratio.

Both sides compute what an iteration of gradient inversion asks of such a layer: the derivative in the images of
⟨shared ∗ a, s⟩, and that of ⟨own ∗ a, s⟩ + ⟨shared ∗ a, r⟩ for restarts with weights of their own. A takes phases, as
the attack does where a layer has few input channels, and here in every layer, so that the last shows why not; B is the
same without them. Both must agree, or this fails.

    python benchmarks/strided.py             # one thread
    python benchmarks/strided.py --threads 2
"""

from __future__ import annotations

import argparse
from functools import partial

import torch
from _pairs import HEADS, compare, table
from fdaudit.attacks.gradient_inversion.second_order.convolutions import Convolution
from fdaudit.attacks.gradient_inversion.second_order.strided import Phases
from torch import Tensor, nn

from fdaudit.parallel import malloc

LAYERS = (
    (16, 32, 5, 28),
    (16, 32, 5, 16),
    (12, 12, 5, 14),
    (3, 12, 5, 28),
    (16, 32, 3, 28),
    (16, 32, 2, 28),
    (16, 64, 1, 36),
    (32, 64, 3, 16),
)
"""Input channels, outputs, side of the kernel and of the images; strides of 2."""
WHOLE, CPU = 20, torch.device("cpu")
"""`WHOLE` calls are one timing."""


class Layer:
    """One layer, after a pass.

    Args:
        size: as in `LAYERS`.
        restarts: R, of one image each.
        phases: whether it takes them.
    """

    def __init__(self, size: tuple[int, int, int, int], restarts: int, *, phases: bool) -> None:
        (c, outputs, k, side), g = size, torch.Generator().manual_seed(0)
        plain = nn.Conv2d(c, outputs, k, 2, k // 2)
        layer = Convolution(plain, torch.randn(plain.weight.shape, generator=g), None)
        layer.back = Phases(plain.weight.shape, layer.geometry, CPU) if phases else layer.form
        layer.back_weight = layer.back.weights(layer.flat).view(layer.back.kernel)
        self._pass = layer(torch.rand(restarts, c, side, side, generator=g), restarts)
        self._s, self._r = torch.randn(2, *self._pass.forward().shape, generator=g)
        self._pass.receive(self._s)
        self._pass.move(torch.randn(restarts, plain.weight.numel(), generator=g), None)

    def __call__(self) -> list[Tensor]:
        return [
            e for e in (*self._pass.backward(self._s), *self._pass.backward_along(self._r)) if e is not None
        ]


def repeated(call: Layer) -> None:
    for _ in range(WHOLE):
        call()


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--pairs", type=int, default=15)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--restarts", type=int, default=32)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    malloc.keep()  # as every run does
    rows = []
    for size in LAYERS:
        ours, theirs = (Layer(size, options.restarts, phases=p) for p in (True, False))
        torch.testing.assert_close(ours(), theirs(), rtol=1e-3, atol=1e-3)
        pairs = compare(partial(repeated, ours), partial(repeated, theirs), pairs=options.pairs)
        c, outputs, k, side = size
        rows.append(pairs.row(f"{c} to {outputs} channels, {k}x{k} over {side}x{side}"))
    print(f"{options.restarts} restarts, strides of 2, {options.threads} thread(s), {WHOLE} calls a timing")
    print(table(HEADS, rows))


if __name__ == "__main__":
    main()
