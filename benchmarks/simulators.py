"""FedAvg rounds beside other simulators: the same data, batches, steps and threads, each in a process of its own.

Sides: fdaudit's recorded round, a bare PyTorch loop, pfl-research's `SimulatedBackend` with `FederatedAveraging`, and
Flower's simulation runtime on Ray. Their processes start one after another and then take turns, one round each, while
the others wait. fdaudit and the bare loop hold images and weights in the memory format that fdaudit chooses; the
others hold them in torch's default, as their tutorials do, and with `--same-format` in fdaudit's.

All sides start from the same parameters, or this fails; after the first round, which all compute from the same
batches, their parameters may differ by rounding only, or this fails. After that they go their own ways: they add the
same numbers in another order (Flower averages models, the others changes), and each step enlarges what rounding
leaves. How far they ended from the bare loop, and their accuracy on images held out, is shown.

A side that is not installed is named as such and left out; `benchmarks/requirements.txt` says how to install them.

    python benchmarks/simulators.py            # one thread
    python benchmarks/simulators.py --threads 2 --pairs 11
"""

from __future__ import annotations

import argparse
import importlib.util
import statistics
import tempfile
from collections import deque
from pathlib import Path

import torch
from _fedavg import BATCH, CLIENTS, STEPS, Bare, clients, learnable, memory_format, network, recorded
from _pairs import HEADS, Pairs, table
from _sides import Pause, Side, State, pause_on_pipe, round_by_round
from torch.func import functional_call

from fdaudit.rng import child
from fdaudit.training.execution import Execution

NEEDS: dict[str, tuple[str, ...]] = {
    "recorded": (),
    "bare": (),
    "pfl-research": ("pfl",),
    "Flower": ("flwr", "ray"),
}
"""What each side imports that fdaudit does not."""
TARGETS = {"bare": 1.10, "pfl-research": 1.0, "Flower": 1 / 1.4}
"""Of a recorded round / the side's."""
QUIET = {"FLWR_TELEMETRY_ENABLED": "0", "RAY_USAGE_STATS_ENABLED": "0"}
WARM_UP = 2
TOLERANCE = 1e-5
"""Of parameters after one round: rounding leaves some 1e-6, other batches 1e-3."""


def serve(side: str, rounds: int, execution: Execution, pause: Pause) -> None:
    """In the child: so many rounds of one side."""
    torch.set_num_threads(execution.threads)
    if side == "Flower":
        from _with_flower import simulate

        simulate(rounds, execution.threads, execution.memory_format, pause)
    elif side == "recorded":
        execution.begin()
        with tempfile.TemporaryDirectory() as folder:
            one = recorded(Path(folder), clients(), execution, rounds)
            round_by_round(one, lambda: one.parameters, rounds, pause)
    elif side == "bare":
        bare = Bare(network(), clients(), memory_format(execution))
        round_by_round(bare, lambda: bare.parameters, rounds, pause)
    else:
        from _with_pfl import Simulator

        simulator = Simulator(network(), clients(), memory_format(execution))
        round_by_round(simulator, lambda: simulator.parameters, rounds, pause)


def first_round(sides: dict[str, Side]) -> tuple[dict[str, float], dict[str, float]]:
    """Seconds of each side's first round, and how far its parameters then are from the bare loop's."""
    _distances(sides, 0.0)
    took = {name: side.round() for name, side in sides.items()}
    return took, _distances(sides, TOLERANCE)


def measure(sides: dict[str, Side], pairs: int) -> dict[str, list[float]]:
    """Seconds of each side's further rounds, in turn."""
    for _ in range(WARM_UP - 1):
        for side in sides.values():
            side.round()
    seconds: dict[str, list[float]] = {name: [] for name in sides}
    order = deque(sides)
    for _ in range(pairs):
        for name in order:
            seconds[name].append(sides[name].round())
        order.rotate(1)
    return seconds


def _distances(sides: dict[str, Side], most: float) -> dict[str, float]:
    """Largest absolute difference of any parameter from the bare loop's, which may be `most`."""
    bare = sides["bare"].parameters()
    found = {name: _distance(side.parameters(), bare) for name, side in sides.items()}
    for name, distance in found.items():
        if not distance <= most:
            raise SystemExit(
                f"{name}: parameters differ from the bare loop's by {distance:.2g}, more than {most}"
            )
    return found


def _distance(a: State, b: State) -> float:
    if a.keys() != b.keys():
        raise SystemExit(f"parameters are named {sorted(a)} and {sorted(b)}")
    return max(float((a[n] - b[n]).abs().max()) for n in b)


def outcome(sides: dict[str, Side], apart: dict[str, float]) -> list[list[str]]:
    """Return each side's distance from the bare loop's parameters, after one round and at the end, and its accuracy."""
    test, module = learnable(2000, "held out"), network().build(child(0, "any"))
    rows = []
    for name, distance in _distances(sides, float("inf")).items():
        with torch.no_grad():
            guess = functional_call(module, sides[name].parameters(), (test.x,)).argmax(1)
        rows.append(
            [name, f"{apart[name]:.1e}", f"{distance:.1e}", f"{(guess == test.y).float().mean():.3f}"]
        )
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--pairs", type=int, default=15, help="measured rounds of each side")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument(
        "--same-format", action="store_true", help="fdaudit's memory format for the other simulators too"
    )
    parser.add_argument("--side", choices=tuple(NEEDS), help=argparse.SUPPRESS)
    parser.add_argument("--rounds", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--format", default="auto", help=argparse.SUPPRESS)
    options = parser.parse_args()
    execution = Execution.resolve(
        device="cpu",
        threads=options.threads,
        memory_format=options.format,
        convolutions=True,
    )
    if options.side:
        serve(options.side, options.rounds, execution, pause_on_pipe())
        return
    print(
        f"FedAvg: {CLIENTS} clients x {STEPS} steps of {BATCH}, cnn-5-5, {options.threads} thread(s)",
        flush=True,
    )
    sides: dict[str, Side] = {}
    try:
        for name, modules in NEEDS.items():
            absent = [m for m in modules if importlib.util.find_spec(m) is None]
            if absent:
                print(f"{name}: not installed ({', '.join(absent)})")
                continue
            theirs = "auto" if options.same_format or name in ("recorded", "bare") else "contiguous"
            command = [__file__, "--side", name, "--rounds", str(WARM_UP + options.pairs), "--format", theirs]
            sides[name] = Side([*command, "--threads", str(options.threads)], QUIET)
        show(sides, options.pairs)
    finally:
        for side in sides.values():
            side.close()


def show(sides: dict[str, Side], pairs: int) -> None:
    """Measures, and prints ratios, what starting cost, and where the sides ended."""
    first, apart = first_round(sides)
    seconds = measure(sides, pairs)
    ours = tuple(seconds["recorded"])
    rows = [
        [*Pairs(ours, tuple(theirs)).row(f"recorded / {name}"), f"{TARGETS[name]:.2f}"]
        for name, theirs in seconds.items()
        if name != "recorded"
    ]
    print(table((*HEADS, "at most"), rows))
    print()
    rows = []
    for name, side in sides.items():
        late = first[name] - statistics.median(seconds[name])
        rows.append([name, f"{side.ready:.1f}", f"{late:.1f}"])
    print(table(("start", "until the first round, s", "first round above the median, s"), rows))
    print()
    heads = ("parameters, largest difference from bare", "round 1", f"round {WARM_UP + pairs}", "accuracy")
    print(table(heads, outcome(sides, apart)))


if __name__ == "__main__":
    main()
