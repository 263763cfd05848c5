"""Cost of the batched boundary attack against bare forward passes, and against YOQO's one query.

All in one run on one overfit network: 200 members and 200 others of the digits, a third of the labels drawn at
random. Rates are of samples queried a second, so ratios hold on any machine. The share of time in the target's forward
passes is measured inside the attack. If the Adversarial Robustness Toolbox is installed, its HopSkipJump gets the
same candidates. Both distances are printed, since a rate means little if the other attack ends further away.
Targets: at least 60 % of the time in forward passes; at least twice the toolbox's queries a second.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable

import numpy as np
import torch
from _pairs import table
from fdaudit.attacks._shadows import shadows
from fdaudit.attacks.label_only.hopskipjump import Schedule, boundary_distances
from fdaudit.attacks.label_only.yoqo import craft_queries
from sklearn.metrics import roc_auc_score
from torch import Tensor

from fdaudit.adversary.knowledge import Knowledge
from fdaudit.data import load_dataset
from fdaudit.models import architecture
from fdaudit.rng import SecretStream, child
from fdaudit.spec.schema import DatasetSpec, ModelSpec
from fdaudit.training.execution import Execution
from fdaudit.training.trainer import Fit, Job, Trainer, draw_batches, parameters_of

EACH = 200


class Target:
    """A network that memorised EACH records, queried in chunks; it counts its queries and time."""

    def __init__(self) -> None:
        data = load_dataset(DatasetSpec(name="digits"), SecretStream(bytes(32), "dataset"))
        order = torch.randperm(len(data.y), generator=child(0, "order"))[: 2 * EACH + 100]
        drawn = torch.rand(len(order), generator=child(0, "noise")) < 1 / 3
        self.x = data.x[order]
        self.y = torch.where(
            drawn, torch.randint(10, (len(order),), generator=child(0, "labels")), data.y[order]
        )
        spec = ModelSpec(name="cnn-strided", params={"channels": [16, 32], "kernel": 3})
        self.network = architecture(spec, data.input_shape, data.classes)
        execution = Execution.resolve(device="cpu", threads=torch.get_num_threads(), convolutions=True)
        self.trainer = Trainer(self.network, execution)
        batches = draw_batches(EACH, 64, steps=600, generator=child(0, "batches"))
        job = Job(
            party="target",
            parameters=parameters_of(self.network.build(child(0, "weights"))),
            x=self.x[:EACH],
            targets=self.y[:EACH],
            batches=batches,
        )
        self.weights = self.trainer.fit([job], Fit(lr=0.003, optimizer="adam"))[0].parameters
        self.chunk, self.seconds, self.asked = 128, 0.0, 0

    def logits(self, x: Tensor) -> Tensor:
        start = time.perf_counter()
        found = torch.cat([self.trainer.predict(self.weights, part) for part in x.split(self.chunk)])
        self.seconds, self.asked = self.seconds + time.perf_counter() - start, self.asked + len(x)
        return found

    def __call__(self, x: Tensor) -> Tensor:
        return self.logits(x).argmax(1)

    def auc(self, scores: Tensor) -> float:
        return float(roc_auc_score(torch.arange(2 * EACH) < EACH, scores.nan_to_num(posinf=1e3)))


class Timed:
    """One piece of work: seconds, queries, seconds in forward passes, and what it returned."""

    def __init__(self, target: Target, work: Callable[[], Tensor]) -> None:
        target.seconds, target.asked = 0.0, 0
        start = time.perf_counter()
        self.found = work()
        self.seconds, self.asked, self.forward = time.perf_counter() - start, target.asked, target.seconds

    @property
    def rate(self) -> float:
        return self.asked / self.seconds


def boundary(target: Target, queries: int, chunk: int, rows: slice) -> Tensor:
    target.chunk = chunk
    starts = torch.rand(100, 1, 8, 8, generator=child(0, "starts"))
    schedule = Schedule(queries=queries, directions=40, chunk=chunk)
    found = boundary_distances(
        target, target.x[rows], target.y[rows], starts, target(starts), schedule, child(0, "walk")
    )
    return found.distance


def bare(target: Target, samples: int, chunk: int) -> Tensor:
    target.chunk = chunk
    x = torch.rand(chunk, 1, 8, 8, generator=child(0, "bare"))
    return torch.cat([target(x) for _ in range(samples // chunk)])


def toolbox(target: Target, iterations: int, rows: slice) -> Callable[[], Tensor] | None:
    """The Adversarial Robustness Toolbox's HopSkipJump, where it is installed."""
    try:
        from art.attacks.evasion import HopSkipJump
        from art.estimators.classification import BlackBoxClassifierNeuralNetwork
    except ImportError:
        return None

    def predict(samples: np.ndarray) -> np.ndarray:
        found = target.logits(torch.tensor(samples, dtype=torch.float32))
        return found.softmax(1).numpy().astype(np.float32)

    wrapped = BlackBoxClassifierNeuralNetwork(
        predict, input_shape=(1, 8, 8), nb_classes=10, clip_values=(0.0, 1.0), channels_first=True
    )
    attack = HopSkipJump(
        wrapped, norm=2, max_iter=iterations, max_eval=1000, init_eval=40, verbose=False, batch_size=128
    )
    x = target.x[rows]
    return lambda: (torch.tensor(attack.generate(x.numpy())) - x).flatten(1).norm(dim=1)


def one_query(target: Target, models: int) -> Timed:
    """Run YOQO on all candidates; only its queries to the target are counted, not its shadow models."""
    train = Trainer(target.network, target.trainer.execution)
    knowledge = Knowledge(architecture=target.network, train=train, classes=10)
    made = shadows(knowledge, target.x, target.y, models, most_steps=500)
    networks = [train.network(w).eval().requires_grad_(False) for w in made.parameters]
    x, y = target.x[: 2 * EACH], target.y[: 2 * EACH]
    queries = craft_queries(networks, made.inside[:, : 2 * EACH], x, y, iterations=10, lr=0.005, alpha=1.0)
    return Timed(target, lambda: (target(queries) == y).double())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--queries", type=int, default=1000, help="of the boundary attack, a candidate")
    parser.add_argument("--rounds", type=int, default=3, help="measurements of each rate, taken in turns")
    parser.add_argument("--shadows", type=int, default=8, help="shadow models of YOQO")
    options = parser.parse_args()
    torch.set_num_threads(1)
    target, few, every = Target(), slice(EACH - 20, EACH + 20), slice(0, 2 * EACH)
    rates: dict[str, list[float]] = {}
    shares, theirs, ours = [], [], []
    art = toolbox(target, 8, few)
    for _ in range(options.rounds):
        for name, work in {
            "batched, chunks of 128": lambda: boundary(target, options.queries, 128, slice(100, 300)),
            "batched, chunks of 2,048": lambda: boundary(target, options.queries, 2048, slice(100, 300)),
            "bare forward passes of 128": lambda: bare(target, 50_000, 128),
            **({"toolbox": art} if art else {}),
        }.items():
            if name == "toolbox":
                target.chunk = 128
            done = Timed(target, work)
            rates.setdefault(name, []).append(done.rate)
            if name == "batched, chunks of 128":
                shares.append(done.forward / done.seconds)
            if name == "toolbox":
                theirs.append(done)
                ours.append(Timed(target, lambda: boundary(target, 750, 128, few)))
    first = statistics.median(rates["batched, chunks of 128"])
    rows = [
        [n, f"{statistics.median(r):,.0f}", f"{first / statistics.median(r):.2f}"] for n, r in rates.items()
    ]
    print(table(("attack", "queries/s", "batched / this"), rows))
    print(
        f"share of the batched attack in forward passes: {statistics.median(shares):.0%} (target: at least 60 %)"
    )
    if theirs:
        a, b = theirs[0], ours[0]
        met = (a.found > 0) & b.found.isfinite() & (b.found > 0)
        print(
            f"same candidates: toolbox {a.asked / 40:.0f} queries each, median distance {a.found[met].median():.3f};"
            f" batched {b.asked / 40:.0f}, {b.found[met].median():.3f}"
        )
    print()
    single, heads, rows = one_query(target, options.shadows), ("attack", "queries a candidate", "AUC"), []
    rows.append(["YOQO", f"{single.asked / (2 * EACH):.0f}", f"{target.auc(single.found):.3f}"])
    for queries in (24, 60, 200, options.queries):
        done = Timed(target, lambda q=queries: boundary(target, q, 128, every))
        rows.append(["boundary", f"{done.asked / (2 * EACH):.0f}", f"{target.auc(done.found):.3f}"])
    print(table(heads, rows))


if __name__ == "__main__":
    main()
