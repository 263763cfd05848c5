"""Test of the execution rules: loop against stacked, channels_last against contiguous, parts against batches.

Ten clients of one architecture take a few local steps of SGD. The results are ratios of seconds, both sides in the same
run. On a CPU also: clients side by side with a thread each against one after the other with all threads inside every
operation; and ten steps of one client, and predictions, whose batches are split into parts
(`fdaudit.training.replicas`) against the same batches at once. `holds` states that the way the rules choose is not
slower than the other, within the interval.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from functools import partial
from unittest.mock import patch

import torch
from _pairs import HEADS, Pairs, compare, table

from fdaudit.models import architecture
from fdaudit.rng import child
from fdaudit.spec.schema import ModelSpec
from fdaudit.training import replicas
from fdaudit.training.execution import Execution
from fdaudit.training.trainer import Fit, Job, Trainer, draw_batches, parameters_of

SHAPE, CLASSES, CLIENTS, STEPS, BATCH = (1, 28, 28), 10, 10, 3, 64
MODELS = ("cnn-5-5", "mlp-1024-1024")

LARGE, WHOLE = 512, 1e12
LARGE_IMAGES = (
    ("cnn-5-5", SHAPE),
    ("cnn-5-3", (3, 32, 32)),
    ("cnn-strided", SHAPE),
    ("lenet-dlg", (3, 32, 32)),
)


def fitting(
    model: str, strategy: str, memory_format: str, *, device: str, threads: int = 1, inside: int = 1
) -> Callable[[], object]:
    """Fits all clients once; every way of doing it takes the same steps.

    Args:
        model: name of the architecture.
        strategy: `loop` or `stacked`.
        memory_format: `contiguous` or `channels_last`.
        device: where.
        threads: how many clients train side by side.
        inside: threads inside operations where clients train one after the other.
    """
    network = architecture(ModelSpec(name=model), SHAPE, CLASSES)
    execution = Execution.resolve(
        device=device,
        threads=threads,
        strategy=strategy,
        memory_format=memory_format,
        convolutions=True,
    )
    trainer = Trainer(network, execution)
    start, jobs = parameters_of(network.build(child(1, "start"))), []
    for k in range(CLIENTS):
        generator = child(1, "client", k)
        x = torch.rand(STEPS * BATCH, *SHAPE, generator=generator)
        y = torch.randint(CLASSES, (len(x),), generator=generator)
        batches = draw_batches(len(x), BATCH, steps=STEPS, generator=generator)
        jobs.append(Job(party=f"client/{k}", parameters=start, x=x, targets=y, batches=batches))

    def run() -> None:
        torch.set_num_threads(inside)
        trainer.fit(jobs, Fit(lr=0.05))  # ends by reading the losses, so a GPU's work is done too

    return run


def in_parts(
    model: str, shape: tuple[int, int, int], predicting: bool, pixels: float
) -> Callable[[], object]:
    """Takes a step of a large batch, or predicts for it, so many pixels at a time."""
    network = architecture(ModelSpec(name=model), shape, CLASSES)
    trainer = Trainer(network, Execution.resolve(device="cpu", threads=1, convolutions=True))
    start, x = parameters_of(network.build(child(1, "start"))), torch.rand(LARGE, *shape)
    y, batches = torch.arange(LARGE) % CLASSES, [torch.arange(LARGE)] * 10
    job = Job(party="client/0", parameters=start, x=x, targets=y, batches=batches)

    def run() -> None:
        torch.set_num_threads(1)
        with patch("fdaudit.training.replicas._PIXELS", pixels):
            trainer.predict(start, x) if predicting else trainer.fit([job], Fit(lr=0.05))

    return run


def row(what: str, pairs: Pairs, chosen: str) -> list[str]:
    """A line of the table; `chosen` is the side that the rules take."""
    low, high = pairs.interval()
    slower = low > 1 if chosen == "A" else high < 1
    return [*pairs.row(what), chosen, "no" if slower else "yes"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pairs", type=int, default=11)
    parser.add_argument("--device", default="auto")
    options = parser.parse_args()
    rows = []
    for model in MODELS:
        ruled = Execution.resolve(
            device=options.device,
            convolutions=model.startswith("cnn"),
            work=architecture(ModelSpec(name=model), SHAPE, CLASSES).work,
        )
        on = partial(fitting, model, device=ruled.device)
        best = on("loop", ruled.memory_format if ruled.strategy == "loop" else "channels_last")
        found = compare(best, on("stacked", "contiguous"), pairs=options.pairs)
        rows.append(row(f"{model}: loop / stacked", found, "A" if ruled.strategy == "loop" else "B"))
        if ruled.strategy == "stacked":  # the format of images matters to a loop only
            continue
        found = compare(on("loop", "channels_last"), on("loop", "contiguous"), pairs=options.pairs)
        chosen = "A" if ruled.memory_format == "channels_last" else "B"
        rows.append(row(f"{model}: loop channels_last / contiguous", found, chosen))
        if ruled.threads > 1:
            side_by_side = on("loop", ruled.memory_format, threads=ruled.threads)
            inside = on("loop", ruled.memory_format, inside=ruled.threads)
            found = compare(side_by_side, inside, pairs=options.pairs)
            rows.append(row(f"{model}: {ruled.threads} threads side by side / inside", found, "A"))
            single = on("loop", ruled.memory_format, inside=1), inside
            found = compare(*single, pairs=options.pairs)
            rows.append(
                row(f"{model}: one thread / {ruled.threads} inside", found, "A" if ruled.inside == 1 else "B")
            )
    for model, shape in LARGE_IMAGES if ruled.device == "cpu" else ():
        size = f"{shape[1]}x{shape[2]}"
        for what, predicting in (("steps", False), ("predictions", True)):
            ways = [in_parts(model, shape, predicting, pixels) for pixels in (replicas._PIXELS, WHOLE)]
            found = compare(*ways, pairs=options.pairs)
            rows.append(row(f"{model}, {size}: {what} for {LARGE} in parts / at once", found, "A"))
    print(
        f"{CLIENTS} clients x {STEPS} steps of {BATCH} on {ruled.device}; one thread unless a line says more"
    )
    print(table((*HEADS, "rule", "holds"), rows))


if __name__ == "__main__":
    main()
