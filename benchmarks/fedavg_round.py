"""Cost of recording: a FedAvg round with every message on disk and a checkpoint, against a bare loop.

A is `protocols/fedavg.py` over the wire: encoded, digested, salted, chained and written messages, the truth kept
in the vault, files made durable, state saved, `round.json` replaced. B is a plain PyTorch loop over the same
batches that keeps nothing. Both must end with the same parameters, or the benchmark fails. Target: at most 1.15.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

import torch
from _fedavg import BATCH, CLIENTS, SEED, STEPS, Bare, memory_format, network, recorded
from _images import CLASSES, SHAPE
from _pairs import HEADS, Pairs, compare_both, table
from _recorded import Recorded

from fdaudit.federation.protocol import PartyData
from fdaudit.rng import child
from fdaudit.training.execution import Execution

TARGET = 1.15


def measure(layout: torch.memory_format, execution: Execution, pairs: int) -> tuple[Pairs, Pairs]:
    """Measure pairs of rounds, after which both sides hold the same model."""
    data = {}
    for k in range(CLIENTS):
        generator = child(SEED, "images", k)
        x = torch.rand(STEPS * BATCH, *SHAPE, generator=generator)
        data[f"client/{k}"] = PartyData(x, torch.randint(CLASSES, (len(x),), generator=generator))
    with tempfile.TemporaryDirectory() as folder:
        one = recorded(Path(folder), data, execution, pairs + 3)
        bare = Bare(network(), data, layout)
        _same_work(one, bare)
        found = compare_both(one, bare, pairs=pairs, warm_up=1)
        _same_work(one, bare)
    return found


def _same_work(one: Recorded, bare: Bare) -> None:
    """Run one round from the same model, after which both sides must hold the same parameters.

    Over many rounds rounding alone makes them differ, since they add the same numbers in another order.
    """
    bare.adopt(one.parameters)
    one()
    bare()
    for name, tensor in bare.parameters.items():
        torch.testing.assert_close(one.parameters[name], tensor, rtol=1e-3, atol=1e-5)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pairs", type=int, default=15)
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    execution = Execution.resolve(device="cpu", threads=options.threads, convolutions=True)
    wall, processor = measure(memory_format(execution), execution, options.pairs)
    default, _ = measure(torch.contiguous_format, execution, options.pairs)
    rows = [
        wall.row("recorded / bare"),
        processor.row("recorded / bare, processor time"),
        default.row("recorded / bare in default memory format"),
    ]
    print(f"FedAvg round: {CLIENTS} clients x {STEPS} steps of {BATCH}, cnn-5-5, {options.threads} thread(s)")
    print(table(HEADS, rows))
    print(f"target of the first line: at most {TARGET}")


if __name__ == "__main__":
    main()
