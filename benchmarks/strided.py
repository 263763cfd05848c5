"""Input gradients of strided convolutions: products of matrices beside the library's convolutions, as a ratio.

Both sides compute what an iteration of gradient inversion asks of such a layer: the derivative in the images of
⟨own ∗ a, s⟩ + ⟨shared ∗ a, r⟩ for restarts with weights of their own. A is `strided.input_gradient`; B are two
convolutions' input gradients, one of as many groups as restarts, and their sum. Both must agree, or this fails.

    python benchmarks/strided.py             # one thread
    python benchmarks/strided.py --threads 2
"""

from __future__ import annotations

import argparse
from functools import partial

import torch
from _pairs import HEADS, compare, table
from fdaudit.attacks.gradient_inversion.columns import Geometry
from fdaudit.attacks.gradient_inversion.convolutions import _input_gradient
from fdaudit.attacks.gradient_inversion.strided import input_gradient
from torch import Tensor

from fdaudit import heap

LAYERS = ((16, 32, 5, 28), (16, 32, 5, 16), (12, 12, 5, 14), (3, 12, 5, 28), (16, 32, 3, 28), (32, 64, 3, 16))
"""Input channels, outputs, side of the kernel and of the images; strides of 2."""
GEOMETRY, WHOLE = Geometry((2, 2), (2, 2), (1, 1)), 20
"""`WHOLE` calls are one timing."""


def convolutions(images: Tensor, own: Tensor, s: Tensor, shared: Tensor, r: Tensor) -> Tensor:
    """As layers without strides do it; arguments as `input_gradient`'s, images of the size wanted in its place."""
    weights = own.view(-1, *shared.shape[1:])
    grouped = _input_gradient(_groups(images), _groups(s), weights, GEOMETRY, len(own))
    return grouped.view_as(images).add_(_input_gradient(images, r, shared, GEOMETRY))


def _groups(t: Tensor) -> Tensor:
    """(R, c, h, w) as (1, R*c, h, w)."""
    return t.flatten(0, 1)[None]


def repeated(call: partial[Tensor]) -> None:
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
    heap.keep()  # as every run does
    g, R, rows = torch.Generator().manual_seed(0), options.restarts, []
    for c, outputs, k, side in LAYERS:
        (p, q), kernel = GEOMETRY.outputs((side, side), (k, k)), (outputs, c, k, k)
        own, shared = torch.randn(R, c * k * k * outputs, generator=g), torch.randn(kernel, generator=g)
        s, r = (torch.randn(R, outputs, p, q, generator=g) for _ in range(2))
        ours = partial(input_gradient, (side, side), GEOMETRY, own, s, shared, r)
        theirs = partial(convolutions, torch.empty(R, c, side, side), own, s, shared, r)
        torch.testing.assert_close(ours(), theirs(), rtol=1e-3, atol=1e-3)
        pairs = compare(partial(repeated, ours), partial(repeated, theirs), pairs=options.pairs)
        rows.append(pairs.row(f"{c} to {outputs} channels, {k}x{k} over {side}x{side}"))
    print(f"{R} restarts, strides of 2, {options.threads} thread(s), {WHOLE} calls a timing")
    print(table(HEADS, rows))


if __name__ == "__main__":
    main()
