"""Seconds for 200 matched shadow models of a client like the quickstart's FedKD ones, together and one by one.

31 pairs of candidates, 34 records, 40 epochs in batches of 8, the strided CNN on images of 8x8. One thread.
Target: 200 together in at most 12 s.
"""

from __future__ import annotations

import argparse
import time

import torch
from _pairs import HEADS, compare
from fdaudit.attacks import _shadows
from fdaudit.attacks._shadows import Recipe, shadow_models

from fdaudit.adversary.knowledge import Knowledge
from fdaudit.models import architecture
from fdaudit.spec.schema import ModelSpec
from fdaudit.training.execution import Execution
from fdaudit.training.trainer import Fit, Trainer

PAIRS, OTHERS, AUXILIARY, FEW = 31, 3, 100, 20
WORK = _shadows._STACKED_WORK


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--shadows", type=int, default=200)
    parser.add_argument("--pairs", type=int, default=5)
    asked = parser.parse_args()
    network = architecture(ModelSpec(name="cnn-strided", params={"kernel": 3}), (1, 8, 8), 10)
    execution = Execution(device="cpu", threads=1, strategy="loop", memory_format="channels_last")
    execution.begin()  # as attacks do: memory that is freed is kept
    knowledge = Knowledge(architecture=network, train=Trainer(network, execution), classes=10)
    draws = torch.Generator().manual_seed(0)
    x = torch.rand(2 * PAIRS + AUXILIARY, 1, 8, 8, generator=draws)
    y = torch.randint(10, (len(x),), generator=draws)
    recipe = Recipe(fit=Fit(lr=0.1), batch_size=8, epochs=40)
    seeds = iter(range(10_000))

    def fitted(count: int, together: bool = True) -> float:
        first = torch.rand(count, PAIRS, 1, generator=draws) < 0.5
        others = torch.arange(AUXILIARY).expand(count, -1) < OTHERS
        inside = torch.cat([torch.cat([first, ~first], 2).flatten(1), others], 1)
        _shadows._STACKED_WORK = WORK if together else 0
        began = time.perf_counter()
        shadow_models(knowledge, x, y, inside, recipe=recipe, seed=next(seeds))
        return time.perf_counter() - began

    fitted(2)  # loads libraries
    print(f"{asked.shadows} shadows together: {fitted(asked.shadows):.1f} s (target: 12 s)")
    pairs = compare(lambda: fitted(FEW), lambda: fitted(FEW, False), pairs=asked.pairs, warm_up=1)
    for row in (HEADS, pairs.row(f"{FEW} shadows together / one by one")):
        print(" | ".join(row))


if __name__ == "__main__":
    main()
